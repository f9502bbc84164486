//! Cron expressions on the clocks of a time zone: five fields, vixie style, with croner's extras
//! (`L`, `W`, `#`, names of months and weekdays).
//!
//! Daylight saving time, after vixie cron. The hour field decides:
//! - **Fixed hours** (`30 2 * * *`, `0 1,13 * * *`): every matching wall-clock time of the calendar fires
//!   exactly once. A time that a spring gap leaves out fires at the first instant after the gap (several
//!   such times fire together, once); a time that an autumn overlap repeats fires at its first occurrence.
//! - **Any hour** (`0 * * * *`, `*/10 */2 * * *`, all 24 listed): fires at every instant whose wall-clock
//!   time matches, so an hourly schedule keeps firing every real hour through both changes. Times in a gap
//!   do not exist and do not fire; repeated times fire twice.
//!
//! How: a zone is a sequence of segments of constant offset. Between two changes civil time and instants
//! differ by a constant, so both searches hop from segment to segment and from matching day to matching
//! day, never from minute to minute.
//!
//! Promises: bounded work. A search looks `HORIZON_YEARS` ahead or back and then answers «never».

use croner::parser::{CronParser, Seconds, Year};
use croner::{CronPattern, Weekday};
use jiff::civil::Date;
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan};

use super::TimetableError;

/// The rarest dates an expression can name, a 29 February on a given weekday, come every 28 years, and
/// 40 years apart around a century that has no leap day.
const HORIZON_YEARS: i16 = 40;
/// No zone changes its clocks more than four times a year (twice for summer, twice around Ramadan).
const MOST_SEGMENTS: usize = 2 + 4 * HORIZON_YEARS as usize;

const PRESETS: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

#[derive(Debug, Clone)]
pub(super) struct CronTicks {
    zone: TimeZone,
    pattern: CronPattern,
    /// Minutes of the day, ascending.
    times: Vec<i64>,
    any_hour: bool,
}

impl CronTicks {
    pub(super) fn new(expression: &str, zone: TimeZone) -> Result<Self, TimetableError> {
        let pattern = parse(expression)
            .map_err(|error| TimetableError::Cron { expression: expression.to_owned(), error })?;
        let hours = pattern.hours.values();
        let minutes = pattern.minutes.values();
        let times = hours
            .iter()
            .flat_map(|hour| minutes.iter().map(move |minute| i64::from(hour * 60 + minute)))
            .collect();
        Ok(Self { zone, any_hour: pattern.hours.from_wildcard || hours.len() == 24, times, pattern })
    }

    pub(super) fn at_or_after(&self, instant: Timestamp) -> Option<Timestamp> {
        let mut from = instant.as_second() + i64::from(instant.subsec_nanosecond() > 0);
        for _ in 0..MOST_SEGMENTS {
            let segment = self.segment(from)?;
            // What a gap left out belongs before the segment's first civil time, and fires at its start.
            let lower = match from == segment.start {
                true => segment.civil_start,
                false => segment.civil(from).max(segment.civil_start),
            };
            let civil = self.next_civil(lower)?;
            if civil < segment.civil_end {
                return segment.instant(civil);
            }
            from = segment.end;
        }
        None
    }

    pub(super) fn at_or_before(&self, instant: Timestamp) -> Option<Timestamp> {
        // `as_second` rounds towards zero; before 1970 that is towards the future.
        let second = instant.as_second() - i64::from(instant.subsec_nanosecond() < 0);
        let mut segment = self.segment(second)?;
        let mut upper = segment.civil(second);
        for _ in 0..MOST_SEGMENTS {
            let civil = self.previous_civil(upper)?;
            if civil >= segment.civil_start {
                return segment.instant(civil);
            }
            segment = self.segment(segment.start - 1)?;
            upper = segment.civil_end - 1;
        }
        None
    }

    /// The stretch of constant offset that `second` lies in.
    fn segment(&self, second: i64) -> Option<Segment> {
        // Whole seconds throughout: before 1970, jiff looks up fractions on the wrong side of a change.
        let at = Timestamp::from_second(second).ok()?;
        let offset = i64::from(self.zone.to_offset(at).seconds());
        let start = self.zone.preceding(at + 1.second()).next().map(|change| change.timestamp());
        let offset_before =
            start.map_or(offset, |start| i64::from(self.zone.to_offset(start - 1.second()).seconds()));
        let end = self.zone.following(at).next().map(|change| change.timestamp());
        let start = start.unwrap_or(Timestamp::MIN).as_second();
        let end = end.unwrap_or(Timestamp::MAX).as_second();
        // With the old offset the civil ranges of neighbours touch: every civil time has one segment, a
        // missing one that after the gap, a repeated one that before the change.
        let civil_start = start + if self.any_hour { offset } else { offset_before };
        Some(Segment { start, end, offset, civil_start, civil_end: end + offset })
    }

    /// The first match at or after a civil time; civil times are counted in seconds as if they were UTC.
    fn next_civil(&self, lower: i64) -> Option<i64> {
        let minute = lower.div_euclid(60) + i64::from(lower.rem_euclid(60) != 0);
        let mut date = date_of(minute.div_euclid(MINUTES_A_DAY))?;
        let mut earliest = minute.rem_euclid(MINUTES_A_DAY);
        let last_year = date.year().saturating_add(HORIZON_YEARS);
        while date.year() <= last_year {
            if !self.month_matches(date) {
                date = date.last_of_month().tomorrow().ok()?;
                earliest = 0;
                continue;
            }
            let time = self.times.get(self.times.partition_point(|time| *time < earliest));
            match time.filter(|_| self.day_matches(date)) {
                Some(time) => return Some(seconds_of(date)? + time * 60),
                None => date = date.tomorrow().ok()?,
            }
            earliest = 0;
        }
        None
    }

    /// The last match at or before a civil time.
    fn previous_civil(&self, upper: i64) -> Option<i64> {
        let minute = upper.div_euclid(60);
        let mut date = date_of(minute.div_euclid(MINUTES_A_DAY))?;
        let mut latest = minute.rem_euclid(MINUTES_A_DAY);
        let first_year = date.year().saturating_sub(HORIZON_YEARS);
        while date.year() >= first_year {
            if !self.month_matches(date) {
                date = date.first_of_month().yesterday().ok()?;
                latest = MINUTES_A_DAY;
                continue;
            }
            let upto = self.times.partition_point(|time| *time <= latest);
            match self.times[..upto].last().filter(|_| self.day_matches(date)) {
                Some(time) => return Some(seconds_of(date)? + time * 60),
                None => date = date.yesterday().ok()?,
            }
            latest = MINUTES_A_DAY;
        }
        None
    }

    fn month_matches(&self, date: Date) -> bool {
        self.pattern.month_match(date.month() as u32).expect("a date has a month")
    }

    fn day_matches(&self, date: Date) -> bool {
        let weekday = Weekday::from_days_from_sunday(date.weekday().to_sunday_zero_offset() as u32);
        self.pattern
            .day_match(date.year().into(), date.month() as u32, date.day() as u32, weekday)
            .expect("a date is a date")
    }
}

const MINUTES_A_DAY: i64 = 24 * 60;

/// Instants `start..end` with one offset, and the civil times that fire in them.
#[derive(Debug)]
struct Segment {
    start: i64,
    end: i64,
    offset: i64,
    civil_start: i64,
    civil_end: i64,
}

impl Segment {
    fn civil(&self, instant: i64) -> i64 {
        instant + self.offset
    }

    fn instant(&self, civil: i64) -> Option<Timestamp> {
        Timestamp::from_second((civil - self.offset).max(self.start)).ok()
    }
}

fn date_of(epoch_day: i64) -> Option<Date> {
    let midnight = Timestamp::from_second(epoch_day.checked_mul(86_400)?).ok()?;
    Some(Offset::UTC.to_datetime(midnight).date())
}

fn seconds_of(date: Date) -> Option<i64> {
    Some(Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).ok()?.as_second())
}

fn parse(expression: &str) -> Result<CronPattern, String> {
    let trimmed = expression.trim();
    let fields = match PRESETS.iter().find(|(name, _)| *name == trimmed) {
        Some((_, fields)) => fields,
        None if trimmed.starts_with('@') => {
            let names: Vec<_> = PRESETS.iter().map(|(name, _)| *name).collect();
            return Err(format!("there is no such preset (known: {})", names.join(", ")));
        }
        None => trimmed,
    };
    let count = fields.split_whitespace().count();
    if count != 5 {
        let are = if count == 1 { "is 1 field".to_owned() } else { format!("are {count} fields") };
        return Err(format!("there {are}, not the five of minute, hour, day, month and weekday"));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    // Field by field first: croner does not say which one it stumbled over.
    for (index, (name, field)) in FIELDS.iter().zip(fields.split_whitespace()).enumerate() {
        let mut alone = ["*"; 5];
        alone[index] = field;
        // `,` is a field that names nothing, which croner takes.
        let named = field.split(',').any(|part| !part.is_empty());
        let problem = match parser.parse(&alone.join(" ")) {
            Ok(_) if named => continue,
            Ok(_) => "it is empty".to_owned(),
            Err(error) => plain(&error.to_string()),
        };
        return Err(format!("the {name} field {field:?}: {problem}"));
    }
    parser.parse(fields).map(|cron| cron.pattern).map_err(|error| plain(&error.to_string()))
}

const FIELDS: [&str; 5] = ["minute", "hour", "day", "month", "weekday"];

/// croner's texts begin with the name of its own error variant, which tells an author nothing.
fn plain(error: &str) -> String {
    let text =
        ["Component error: ", "Invalid pattern: ", "Pattern contains illegal characters: CronPattern "]
            .iter()
            .find_map(|prefix| error.strip_prefix(prefix))
            .unwrap_or(error);
    let mut chars = text.trim_end_matches('.').chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
