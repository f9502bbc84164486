//! From what an attempt left in its folder to what is reported about it.

use std::fs;
use std::io;

use tenure_model::{Assignment, FailReason, Outcome};

use crate::folder::{AttemptFolder, Cut, End, Exit, Order, Verdict};
use crate::redact::Redactor;

const SKIP_CODE: i32 = 99;

/// The verdict on an attempt whose supervisor has written down how it ended.
pub(crate) fn of_exit(exit: Exit, order: &Order, folder: &AttemptFolder) -> Verdict {
    let Exit { end, cut, ended_at, out_of_memory } = exit;
    let limit_bytes = order.group.as_ref().and_then(|group| group.memory_bytes).filter(|_| out_of_memory);
    let outcome = match (outcome_of(end, cut, &order.assignment), limit_bytes) {
        // Whatever the end looked like: that is why. What succeeded all the same has succeeded.
        (
            Outcome::Failed { reason: FailReason::Exit { .. } | FailReason::Signal { .. } },
            Some(limit_bytes),
        ) => Outcome::Failed { reason: FailReason::OutOfMemory { limit_bytes } },
        (outcome, _) => outcome,
    };
    let (outcome, result) = match outcome {
        Outcome::Success => match read_result(folder, order) {
            Ok(result) => (Outcome::Success, result),
            Err(error) => (Outcome::Failed { reason: FailReason::BadResult { error } }, None),
        },
        other => (other, None),
    };
    Verdict { outcome, ended_at, result }
}

fn outcome_of(end: End, cut: Option<Cut>, assignment: &Assignment) -> Outcome {
    let failed = |reason| Outcome::Failed { reason };
    match (cut, end) {
        (Some(Cut::Stopped), _) => failed(FailReason::Stopped),
        (Some(Cut::Silence { silent_ms }), _) => failed(FailReason::CutOff { silent_ms }),
        (Some(Cut::TimedOut), _) => {
            let after_ms = assignment.timeout.unwrap_or_default().as_millis() as u64;
            failed(FailReason::TimedOut { after_ms })
        }
        (None, End::Code { code: 0 }) => Outcome::Success,
        (None, End::Code { code: SKIP_CODE }) => Outcome::Skipped,
        (None, End::Code { code }) => failed(FailReason::Exit { code }),
        (None, End::Signal { name }) => failed(FailReason::Signal { name }),
        (None, End::CannotStart { error }) => {
            let error = Redactor::new(&assignment.secrets).redact_text(&error);
            failed(FailReason::CannotStart { error })
        }
    }
}

fn read_result(folder: &AttemptFolder, order: &Order) -> Result<Option<serde_json::Value>, String> {
    let (task, path) = (&order.assignment.task, folder.result_path());
    let unreadable = |error: io::Error| format!("the result of task {task} could not be read: {error}");
    let size = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    if size > order.result_limit as u64 {
        return Err(format!(
            "the result of task {task} is {}; at most {} may be returned: write large data to storage and return its address",
            kibibytes(size),
            kibibytes(order.result_limit as u64),
        ));
    }
    let bytes = fs::read(&path).map_err(unreadable)?;
    if bytes.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        format!("the result of task {task} is not JSON ({error}): write one JSON value to $TENURE_RESULT, a text in quotes")
    })
}

pub(crate) fn kibibytes(size: u64) -> String {
    match size {
        0..1024 => format!("{size} bytes"),
        _ => format!("{} KiB", size.div_ceil(1024)),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a task that was killed for memory says so, and nobody else does. Method: ends as supervisors write them down.
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    const LIMIT: u64 = 24 * 1024 * 1024;

    /// As it lies in the folder of an attempt.
    fn order(memory_bytes: Option<u64>) -> Order {
        let group = json!({
            "path": "group", "outside": "agent", "memory_bytes": memory_bytes, "pids": 20, "required": false,
        });
        let assignment = json!({
            "attempt": "00000000-0000-0000-0000-000000000001", "node": "n", "scope": "scheduler/shard-00", "epoch": 1,
            "ti": { "run": 1, "task": 0, "map_index": -1 }, "tenant": "default", "dag": "d", "run_id": "r",
            "task": "t", "try_number": 1, "program": { "type": "process", "argv": ["x"] }, "env": {}, "files": {},
            "timeout": "5s", "grace": "1s", "secrets": [],
        });
        let order = json!({
            "boot_id": "b", "argv": ["x"], "env": {}, "run_dir": "run", "result_limit": 1_024, "group": group,
            "assignment": assignment,
        });
        serde_json::from_value(order).unwrap()
    }

    fn of(exit: Exit, memory_bytes: Option<u64>) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        of_exit(exit, &order(memory_bytes), &AttemptFolder::at(folder.path())).outcome
    }

    /// Of an attempt in whose group the kernel has killed for memory.
    fn outcome(end: End, cut: Option<Cut>, memory_bytes: Option<u64>) -> Outcome {
        of(Exit { out_of_memory: true, ..Exit::new(end, cut, Timestamp::UNIX_EPOCH) }, memory_bytes)
    }

    fn killed() -> End {
        End::Signal { name: "SIGKILL".into() }
    }

    #[test]
    fn a_failure_after_a_kill_for_memory_names_the_limit_however_it_looked() {
        let out_of_memory = Outcome::Failed { reason: FailReason::OutOfMemory { limit_bytes: LIMIT } };
        for end in [killed(), End::Code { code: 137 }, End::Code { code: 1 }] {
            assert_eq!(outcome(end, None, Some(LIMIT)), out_of_memory);
        }
    }

    #[test]
    fn what_succeeded_or_was_cut_off_or_had_no_limit_was_not_killed_for_it() {
        assert_eq!(outcome(End::Code { code: 0 }, None, Some(LIMIT)), Outcome::Success);
        assert_eq!(outcome(End::Code { code: SKIP_CODE }, None, Some(LIMIT)), Outcome::Skipped);
        let failed = |reason| Outcome::Failed { reason };
        let timed_out = failed(FailReason::TimedOut { after_ms: 5_000 });
        assert_eq!(outcome(killed(), Some(Cut::TimedOut), Some(LIMIT)), timed_out);
        assert_eq!(outcome(killed(), Some(Cut::Stopped), Some(LIMIT)), failed(FailReason::Stopped));
        let by_signal = failed(FailReason::Signal { name: "SIGKILL".into() });
        assert_eq!(outcome(killed(), None, None), by_signal);
        let by_somebody = of(Exit::new(killed(), None, Timestamp::UNIX_EPOCH), Some(LIMIT));
        assert_eq!(by_somebody, by_signal, "not every kill is for memory");
    }
}
