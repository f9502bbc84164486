//! An operating-system thread that ends authority at its deadline, whatever the async runtime is doing.
//!
//! It is the last line inside the process: a runtime that is starved, blocked or deadlocked neither renews nor
//! notices. A process that is frozen as a whole acts before its watchdog runs; against that only the fence helps.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tenure_clock::Clock;

use crate::store::LossReason;
use crate::tenure::Reins;

/// The longest the thread sleeps while something is held: how late it may notice a suspended machine.
const GLANCE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct Shared {
    watched: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Watched {
    /// With how long the machine had been suspended when the term began.
    terms: Vec<(Reins, Duration)>,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().expect("no panic while holding the list")
    }
}

impl Watchdog {
    /// `on_trip` runs on the watchdog's thread, after the authority has ended.
    pub(crate) fn start(
        clock: Arc<dyn Clock>,
        margin: Duration,
        on_trip: impl Fn(&Reins, LossReason) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { watched: Mutex::default(), changed: Condvar::new() });
        let (watching, reading) = (Arc::clone(&shared), Arc::clone(&clock));
        let work = move || watch(&watching, &*reading, margin, on_trip);
        std::thread::Builder::new().name("tenure-watchdog".into()).spawn(work)?;
        Ok(Self { shared, clock })
    }

    pub(crate) fn watch(&self, reins: Reins) {
        let suspended = self.clock.suspended();
        self.shared.lock().terms.push((reins, suspended));
        self.shared.changed.notify_one();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

fn watch(shared: &Shared, clock: &dyn Clock, margin: Duration, on_trip: impl Fn(&Reins, LossReason)) {
    let mut watched = shared.lock();
    while !watched.ended {
        let suspended = clock.suspended();
        let mut tripped = vec![];
        watched.terms.retain(|(reins, before)| {
            if reins.is_over() {
                return false;
            }
            // Timers did not run while the machine slept: whatever they were to do has not been done.
            let reason = match reins.valid_for().is_zero() {
                true => LossReason::DeadlinePassed,
                false if suspended.saturating_sub(*before) >= margin => LossReason::Suspended,
                false => return true,
            };
            if reins.trip(reason.clone()) {
                tripped.push((reins.clone(), reason));
            }
            false
        });
        let next = watched.terms.iter().map(|(reins, _)| reins.valid_for()).min();
        if !tripped.is_empty() {
            drop(watched);
            tripped.into_iter().for_each(|(reins, reason)| on_trip(&reins, reason));
            watched = shared.lock();
            continue;
        }
        watched = match next {
            None => shared.changed.wait(watched).expect("no panic while holding the list"),
            Some(next) => {
                let nap = next.min(GLANCE).max(Duration::from_millis(1));
                shared.changed.wait_timeout(watched, nap).expect("no panic while holding the list").0
            }
        };
    }
}
