//! Values that every store derives alike from what it is given, so that moving from one to the other changes
//! no answer.

use jiff::Timestamp;
use tenure_model::timetable::{ScheduleProgress, Timetable};
use tenure_model::{DagSpec, NewRun, RunId, VersionHash};

/// Tells whether two requests that carry the same idempotency key ask for the same run.
/// Left out is what a server fills in from its clock: a client that repeats itself a second later still says
/// the same.
pub fn request_fingerprint(run: &NewRun) -> String {
    let named_by_clock = run.run_id == run.run_type.run_id(run.run_after);
    let chosen = NewRun {
        run_id: if named_by_clock { RunId::new("") } else { run.run_id.clone() },
        run_after: Timestamp::UNIX_EPOCH,
        ..run.clone()
    };
    let text = serde_json::to_string(&chosen).expect("a request is plain data");
    VersionHash::of(text.as_bytes()).as_str().to_owned()
}

/// When a schedule fires next, for people to see before the owner has made its first run.
/// A timetable that cannot be read shows nothing here; its owner says why.
pub fn next_tick(spec: &DagSpec, progress: ScheduleProgress, at: Timestamp) -> Option<Timestamp> {
    Timetable::new(spec).ok()?.next(progress, at).map(|due| due.run_after)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tenure_model::{RunType, Schedule, TenantId};

    use super::*;

    fn manual(at: &str) -> NewRun {
        let at: Timestamp = at.parse().expect("an instant");
        NewRun {
            tenant: TenantId::default_tenant(),
            dag: "etl".into(),
            run_id: RunType::Manual.run_id(at),
            run_type: RunType::Manual,
            logical_date: None,
            data_interval: None,
            run_after: at,
            conf: json!({"n": 1}),
            note: None,
            triggered_by: "ada".into(),
            idempotency_key: Some("k".into()),
        }
    }

    #[test]
    fn a_repeated_request_is_the_same_although_the_clock_has_moved() {
        let (first, again) = (manual("2026-01-01T00:00:00Z"), manual("2026-01-01T00:00:01Z"));
        assert_eq!(request_fingerprint(&first), request_fingerprint(&again));
    }

    #[test]
    fn what_a_client_chooses_makes_a_difference() {
        let first = manual("2026-01-01T00:00:00Z");
        let other_conf = NewRun { conf: json!({"n": 2}), ..first.clone() };
        let other_name = NewRun { run_id: "mine".into(), ..first.clone() };
        assert_ne!(request_fingerprint(&first), request_fingerprint(&other_conf));
        assert_ne!(request_fingerprint(&first), request_fingerprint(&other_name));
    }

    #[test]
    fn a_schedule_shows_its_next_tick_and_a_manual_dag_none() {
        let at: Timestamp = "2026-01-01T00:00:30Z".parse().expect("an instant");
        let progress = ScheduleProgress { anchor: Some(at), last_tick: None };
        let mut spec = DagSpec::new("etl", vec![]);
        assert_eq!(next_tick(&spec, progress, at), None);
        spec.schedule = Schedule::Every { interval: Duration::from_secs(60) };
        assert_eq!(next_tick(&spec, progress, at), Some("2026-01-01T00:01:30Z".parse().expect("an instant")));
    }
}
