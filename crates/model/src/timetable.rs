//! When a dag is due.

use jiff::Timestamp;

use crate::{DagSpec, DataInterval};

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
}

#[derive(Debug, Clone)]
pub struct Timetable {}

impl Timetable {
    pub fn new(_spec: &DagSpec) -> Result<Self, TimetableError> {
        Ok(Self {})
    }

    /// The next run to create; it is due once `now >= run_after`. `None`: never again.
    /// With catch-up off, ticks missed before `now` are passed over, except for the latest one.
    pub fn next(&self, _progress: ScheduleProgress, _now: Timestamp) -> Option<DueRun> {
        None
    }
}
