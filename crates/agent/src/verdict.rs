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
