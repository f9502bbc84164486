//! What a run is made from.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{DagId, RunId, TenantId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunType {
    Scheduled,
    Manual,
    Backfill,
}

impl RunType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Manual => "manual",
            Self::Backfill => "backfill",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Scheduled, Self::Manual, Self::Backfill].into_iter().find(|kind| kind.as_str() == text)
    }

    /// `scheduled__2026-01-01T00:00:00Z`: the name of a run that was not given one.
    pub fn run_id(self, run_after: Timestamp) -> RunId {
        RunId::from(format!("{}__{run_after}", self.as_str()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInterval {
    pub start: Timestamp,
    pub end: Timestamp,
}

/// A run to be created from the dag version in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewRun {
    pub tenant: TenantId,
    pub dag: DagId,
    pub run_id: RunId,
    pub run_type: RunType,
    /// Unique per dag where present; manual runs may have none.
    pub logical_date: Option<Timestamp>,
    pub data_interval: Option<DataInterval>,
    pub run_after: Timestamp,
    pub conf: Value,
    pub note: Option<String>,
    /// Who asked for it: `admin`, `timetable`.
    pub triggered_by: String,
    /// A client's own key: the same key with the same body gives the same run, with another body a conflict.
    pub idempotency_key: Option<String>,
}
