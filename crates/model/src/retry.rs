//! When a failed try is tried again.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::{DagId, RunId, TaskSpec};

const LONGEST_DELAY: Duration = Duration::from_secs(24 * 3600);

/// Identifies one try for the jitter: the same try waits equally long on every replica.
#[derive(Clone, Copy, Debug)]
pub struct TryName<'a> {
    pub dag: &'a DagId,
    pub run: &'a RunId,
    pub logical_date: Option<Timestamp>,
    pub try_number: u32,
}

/// How long to wait after try `name.try_number` of `task` has ended.
pub fn delay(task: &TaskSpec, name: TryName<'_>) -> Duration {
    let Some(multiplier) = task.retry_backoff else {
        return task.retry_delay.min(LONGEST_DELAY);
    };
    let cap = task.max_retry_delay.unwrap_or(LONGEST_DELAY).min(LONGEST_DELAY);
    let exponent = name.try_number.saturating_sub(1).min(1_000) as i32;
    let seconds = (task.retry_delay.as_secs_f64() * multiplier.powi(exponent)).ceil();
    // Beyond the cap the jitter no longer matters, and the arithmetic below stays far from overflow.
    if !seconds.is_finite() || seconds >= cap.as_secs_f64() {
        return cap;
    }
    let least = (seconds as u64).max(1);
    Duration::from_secs(least + jitter(task, name) % least).min(cap)
}

fn jitter(task: &TaskSpec, name: TryName<'_>) -> u64 {
    // A run without a logical date is told apart by its own name.
    let date = name.logical_date.map_or_else(|| name.run.to_string(), |date| date.to_string());
    let digest = Sha256::digest(format!("{}#{}#{date}#{}", name.dag, task.id, name.try_number));
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TaskKind, TaskSpec};

    fn task(delay_s: u64, backoff: Option<f64>, cap_s: Option<u64>) -> TaskSpec {
        TaskSpec {
            retry_delay: Duration::from_secs(delay_s),
            retry_backoff: backoff,
            max_retry_delay: cap_s.map(Duration::from_secs),
            ..TaskSpec::new("t", TaskKind::Empty)
        }
    }

    fn wait(task: &TaskSpec, try_number: u32) -> u64 {
        let (dag, run) = (DagId::new("d"), RunId::new("r"));
        delay(task, TryName { dag: &dag, run: &run, logical_date: None, try_number }).as_secs()
    }

    #[test]
    fn a_fixed_delay_is_the_same_for_every_try() {
        assert_eq!([1, 2, 9].map(|n| wait(&task(30, None, None), n)), [30, 30, 30]);
    }

    #[test]
    fn backoff_doubles_within_its_jitter_and_stops_at_the_cap() {
        let task = task(10, Some(2.0), Some(100));
        for (try_number, least) in [(1, 10), (2, 20), (3, 40)] {
            let seconds = wait(&task, try_number);
            assert!((least..2 * least).contains(&seconds), "try {try_number} waits {seconds} s");
            assert_eq!(seconds, wait(&task, try_number), "the jitter is deterministic");
        }
        assert_eq!(wait(&task, 5), 100);
        assert_eq!(wait(&task, u32::MAX), 100);
    }

    #[test]
    fn no_delay_exceeds_a_day() {
        assert_eq!(wait(&task(3600, Some(10.0), None), 40), 86_400);
    }
}
