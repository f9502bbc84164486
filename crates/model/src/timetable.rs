//! When a dag is due.
//!
//! A timetable is a set of instants, its ticks, and a rule for which of them comes next, given what has
//! been made so far. It is pure: the same spec, progress and time always give the same answer.
//!
//! - A tick at T makes a run with logical date = interval start = interval end = run_after = T. With data
//!   intervals the run covers the time since the tick before: logical date = interval start = that tick,
//!   and `start_date` and `end_date` are compared with the logical date.
//! - Ticks are never repeated: whatever the clock does, the next one lies after `last_tick`.
//! - What daylight saving time does to cron ticks is written down in `cron.rs`. Fixed intervals count
//!   elapsed time and do not know it.
//!
//! Instants are whole microseconds, the precision that every store keeps: a tick that is read back is the
//! tick that was made.

mod cron;

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::{DagSpec, DataInterval, Schedule};
use cron::CronTicks;

/// One run that a timetable calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRun {
    pub logical_date: Timestamp,
    pub data_interval: DataInterval,
    /// The run may be created once this has come.
    pub run_after: Timestamp,
}

/// What has happened so far to a dag's schedule; stored with the dag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleProgress {
    /// When the schedule came into force: registration of the dag's first version.
    pub anchor: Option<Timestamp>,
    /// `run_after` of the latest run the timetable has made.
    pub last_tick: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimetableError {
    #[error("{expression:?} is not a cron expression: {error}")]
    Cron { expression: String, error: String },
    #[error("{0:?} is not a known time zone (use an IANA name such as Europe/Berlin)")]
    TimeZone(String),
    #[error("an interval of {} is too short (the shortest is 1s)", crate::duration::format(*.0))]
    Interval(Duration),
}

#[derive(Debug, Clone)]
pub struct Timetable {
    rule: Rule,
    data_intervals: bool,
    catchup: bool,
    start_date: Option<Timestamp>,
    end_date: Option<Timestamp>,
}

#[derive(Debug, Clone)]
enum Rule {
    Never,
    Once,
    Continuous,
    // Boxed: a parsed pattern is hundreds of bytes, and most dags of a big installation have none.
    Cron(Box<CronTicks>),
    Every(Duration),
}

impl Timetable {
    pub const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

    pub fn new(spec: &DagSpec) -> Result<Self, TimetableError> {
        let zone =
            TimeZone::get(&spec.timezone).map_err(|_| TimetableError::TimeZone(spec.timezone.clone()))?;
        let rule = match &spec.schedule {
            Schedule::None => Rule::Never,
            Schedule::Once => Rule::Once,
            Schedule::Continuous => Rule::Continuous,
            Schedule::Cron { expression } => Rule::Cron(Box::new(CronTicks::new(expression, zone)?)),
            Schedule::Every { interval } if *interval < Self::SHORTEST_INTERVAL => {
                return Err(TimetableError::Interval(*interval));
            }
            Schedule::Every { interval } => Rule::Every(*interval),
        };
        Ok(Self {
            rule,
            data_intervals: spec.data_intervals,
            catchup: spec.catchup,
            start_date: spec.start_date.map(whole_microseconds),
            end_date: spec.end_date,
        })
    }

    /// The next run to create; it is due once `now >= run_after`. `None`: never again.
    /// With catch-up off, ticks missed before `now` are passed over, except for the latest one.
    pub fn next(&self, progress: ScheduleProgress, now: Timestamp) -> Option<DueRun> {
        let begin = self.start_date.or(progress.anchor).map_or(now, whole_microseconds);
        match &self.rule {
            Rule::Never => None,
            Rule::Once if progress.last_tick.is_some() => None,
            Rule::Once => self.at_instant(begin),
            Rule::Continuous => self.at_instant(self.right_away(progress, now)?),
            Rule::Cron(ticks) => self.among(&**ticks, begin, progress, now),
            Rule::Every(interval) => {
                // Without a start date the grid follows the last run, so that a changed interval counts
                // from there.
                let origin = self.start_date.or(progress.last_tick).unwrap_or(begin);
                self.among(&Grid { origin, interval: *interval }, begin, progress, now)
            }
        }
    }

    fn at_instant(&self, instant: Timestamp) -> Option<DueRun> {
        self.end_date.is_none_or(|end| instant <= end).then(|| due(instant, instant))
    }

    /// `now`, but not before the start and after the last one: two runs never share a logical date.
    fn right_away(&self, progress: ScheduleProgress, now: Timestamp) -> Option<Timestamp> {
        let now = whole_microseconds(now).max(self.start_date.unwrap_or(Timestamp::MIN));
        match progress.last_tick {
            Some(last) => Some(now.max(last.checked_add(1.microsecond()).ok()?)),
            None => Some(now),
        }
    }

    fn among(
        &self,
        ticks: &dyn Ticks,
        begin: Timestamp,
        progress: ScheduleProgress,
        now: Timestamp,
    ) -> Option<DueRun> {
        let oldest = self.oldest(ticks, begin, progress)?;
        let run = match self.catchup || oldest > now {
            true => oldest,
            false => self.latest(ticks, now)?.max(oldest),
        };
        let run = due(self.logical_date(ticks, run)?, run);
        self.end_date.is_none_or(|end| run.logical_date <= end).then_some(run)
    }

    /// The first tick that has made no run yet.
    fn oldest(&self, ticks: &dyn Ticks, begin: Timestamp, progress: ScheduleProgress) -> Option<Timestamp> {
        let first = match self.start_date {
            Some(start) if self.data_intervals => ticks.after(ticks.at_or_after(start)?)?,
            Some(start) => ticks.at_or_after(start)?,
            None => ticks.after(begin)?,
        };
        match progress.last_tick {
            // The anchor has done its work once a tick has been made; a start date that a newer version
            // moves into the future has not.
            Some(last) if self.start_date.is_none() => ticks.after(last),
            Some(last) => Some(ticks.after(last)?.max(first)),
            None => Some(first),
        }
    }

    /// The last tick up to `now` that `end_date` still allows.
    fn latest(&self, ticks: &dyn Ticks, now: Timestamp) -> Option<Timestamp> {
        let latest = ticks.at_or_before(now)?;
        let Some(end) = self.end_date else { return Some(latest) };
        let last_start = ticks.at_or_before(end)?;
        let allowed = if self.data_intervals { ticks.after(last_start)? } else { last_start };
        Some(latest.min(allowed))
    }

    fn logical_date(&self, ticks: &dyn Ticks, tick: Timestamp) -> Option<Timestamp> {
        if self.data_intervals { ticks.before(tick) } else { Some(tick) }
    }
}

/// A set of instants that can be searched from any point in both directions.
trait Ticks {
    fn at_or_after(&self, instant: Timestamp) -> Option<Timestamp>;
    fn at_or_before(&self, instant: Timestamp) -> Option<Timestamp>;

    fn after(&self, instant: Timestamp) -> Option<Timestamp> {
        self.at_or_after(instant.checked_add(1.nanosecond()).ok()?)
    }

    fn before(&self, instant: Timestamp) -> Option<Timestamp> {
        self.at_or_before(instant.checked_sub(1.nanosecond()).ok()?)
    }
}

impl Ticks for CronTicks {
    fn at_or_after(&self, instant: Timestamp) -> Option<Timestamp> {
        self.at_or_after(instant)
    }

    fn at_or_before(&self, instant: Timestamp) -> Option<Timestamp> {
        self.at_or_before(instant)
    }
}

/// `origin + k · interval` for every whole k.
#[derive(Debug)]
struct Grid {
    origin: Timestamp,
    interval: Duration,
}

impl Grid {
    fn tick(&self, k: i128) -> Option<Timestamp> {
        let offset = k.checked_mul(self.interval.as_nanos() as i128)?;
        Timestamp::from_nanosecond(self.origin.as_nanosecond().checked_add(offset)?).ok()
    }

    /// The k of the last tick at or before an instant.
    fn floor(&self, instant: Timestamp) -> i128 {
        (instant.as_nanosecond() - self.origin.as_nanosecond()).div_euclid(self.interval.as_nanos() as i128)
    }
}

impl Ticks for Grid {
    fn at_or_after(&self, instant: Timestamp) -> Option<Timestamp> {
        let k = self.floor(instant);
        match self.tick(k) {
            Some(tick) if tick == instant => Some(tick),
            _ => self.tick(k + 1),
        }
    }

    fn at_or_before(&self, instant: Timestamp) -> Option<Timestamp> {
        self.tick(self.floor(instant))
    }
}

fn due(logical_date: Timestamp, tick: Timestamp) -> DueRun {
    DueRun { logical_date, data_interval: DataInterval { start: logical_date, end: tick }, run_after: tick }
}

fn whole_microseconds(instant: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(instant.as_microsecond()).expect("rounding towards zero stays in range")
}

#[cfg(test)]
mod tests;
