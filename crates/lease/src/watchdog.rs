//! Ends authority at its deadline, whatever the async runtime is doing: an operating-system thread.
//!
//! It is the last line inside the process: a runtime that is starved, blocked or deadlocked neither renews nor
//! notices. A process that is frozen as a whole acts before its watchdog runs; against that only the fence helps.
//! Under a simulated clock there is no such thread, because nothing real may decide there: the same rounds are made by a
//! task.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tenure_clock::Clock;
use tokio::sync::Notify;

use crate::store::LossReason;
use crate::tenure::Reins;

/// The longest the thread sleeps while something is held: how late it may notice a suspended machine.
const GLANCE: Duration = Duration::from_millis(250);

/// Who watches over the deadlines of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogKind {
    /// A thread of its own, which no runtime can starve.
    Thread,
    /// A task of the runtime: for virtual time, where a thread would bring real time in.
    Task,
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct Shared {
    watched: Mutex<Watched>,
    changed: Condvar,
    /// The same for a task.
    rung: Notify,
}

#[derive(Debug, Default)]
struct Watched {
    /// With how long the machine had been suspended when the term began.
    terms: Vec<(Reins, Duration)>,
    ended: bool,
}

/// What a look at all terms has shown.
struct Round {
    tripped: Vec<(Reins, LossReason)>,
    /// Until the next deadline.
    next: Option<Duration>,
}

impl Watched {
    fn round(&mut self, clock: &dyn Clock, margin: Duration) -> Round {
        let suspended = clock.suspended();
        let mut tripped = vec![];
        self.terms.retain(|(reins, before)| {
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
        Round { tripped, next: self.terms.iter().map(|(reins, _)| reins.valid_for()).min() }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().expect("no panic while holding the list")
    }

    fn ring(&self) {
        self.changed.notify_one();
        self.rung.notify_one();
    }
}

impl Watchdog {
    /// `on_trip` runs where the watchdog does, after the authority has ended.
    pub(crate) fn start(
        kind: WatchdogKind,
        clock: Arc<dyn Clock>,
        margin: Duration,
        on_trip: impl Fn(&Reins, LossReason) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { watched: Mutex::default(), changed: Condvar::new(), rung: Notify::new() });
        let (watching, reading) = (Arc::clone(&shared), Arc::clone(&clock));
        match kind {
            WatchdogKind::Thread => {
                let work = move || watch(&watching, &*reading, margin, on_trip);
                std::thread::Builder::new().name("tenure-watchdog".into()).spawn(work)?;
            }
            WatchdogKind::Task => {
                tokio::spawn(async move { watch_as_task(&watching, &*reading, margin, on_trip).await });
            }
        }
        Ok(Self { shared, clock })
    }

    pub(crate) fn watch(&self, reins: Reins) {
        let suspended = self.clock.suspended();
        self.shared.lock().terms.push((reins, suspended));
        self.shared.ring();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.ring();
    }
}

fn watch(shared: &Shared, clock: &dyn Clock, margin: Duration, on_trip: impl Fn(&Reins, LossReason)) {
    let mut watched = shared.lock();
    while !watched.ended {
        let Round { tripped, next } = watched.round(clock, margin);
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

async fn watch_as_task(
    shared: &Shared,
    clock: &dyn Clock,
    margin: Duration,
    on_trip: impl Fn(&Reins, LossReason),
) {
    loop {
        let Round { tripped, next } = {
            let mut watched = shared.lock();
            if watched.ended {
                return;
            }
            watched.round(clock, margin)
        };
        if !tripped.is_empty() {
            tripped.into_iter().for_each(|(reins, reason)| on_trip(&reins, reason));
            continue;
        }
        match next {
            None => shared.rung.notified().await,
            // Whichever comes first: both only mean «look again».
            Some(next) => {
                let nap = next.max(Duration::from_millis(1));
                let _ = tokio::time::timeout(nap, shared.rung.notified()).await;
            }
        }
    }
}
