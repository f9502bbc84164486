//! What the probes hear about this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::SignedDuration;
use tenure_api::{HealthSource, SchedulerHealth, ScopeHealth};
use tenure_clock::Clock;
use tenure_scheduler::{OwnerStatus, SchedulerHandle};

const SILENCE: SignedDuration = SignedDuration::from_secs(15);

#[derive(Debug)]
pub(super) struct Health {
    scheduler: SchedulerHandle,
    clock: Arc<dyn Clock>,
    /// The agent was accepted and the dags folder has been read once.
    started: AtomicBool,
}

impl Health {
    pub fn new(scheduler: SchedulerHandle, clock: Arc<dyn Clock>) -> Self {
        Self { scheduler, clock, started: AtomicBool::new(false) }
    }

    /// It goes round once a second at the least, so silence for this long is not idleness.
    fn is_stuck(&self, status: &OwnerStatus) -> bool {
        status.last_pass_at.is_some_and(|at| self.clock.now().duration_since(at) > SILENCE)
    }

    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }
}

impl HealthSource for Health {
    fn health(&self) -> SchedulerHealth {
        let status = self.scheduler.status();
        let ready = match (status.ready, self.started.load(Ordering::Acquire)) {
            (true, true) if self.is_stuck(&status) => {
                Err("the scheduler has not gone round for a while".into())
            }
            (true, true) => Ok(()),
            (true, false) => Err("starting: the agent or the dags folder is not ready yet".into()),
            (false, _) => Err(status.reason.clone()),
        };
        let scope = match (&status.tenure, self.scheduler.lease()) {
            (Some(tenure), _) => ScopeHealth::of(tenure),
            (None, Some(other)) => ScopeHealth {
                owner: other.is_held().then(|| other.holder.to_string()),
                epoch: Some(other.epoch.0),
                ..ScopeHealth::campaigning(status.scope.to_string())
            },
            (None, None) => ScopeHealth::campaigning(status.scope.to_string()),
        };
        SchedulerHealth { ready, last_pass_at: status.last_pass_at, scopes: vec![scope] }
    }
}
