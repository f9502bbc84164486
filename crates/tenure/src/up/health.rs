//! What the probes hear about this process.

use std::sync::atomic::{AtomicBool, Ordering};

use tenure_api::{HealthSource, SchedulerHealth, ScopeHealth};
use tenure_scheduler::SchedulerHandle;

#[derive(Debug)]
pub(super) struct Health {
    scheduler: SchedulerHandle,
    /// The agent was accepted and the dags folder has been read once.
    started: AtomicBool,
}

impl Health {
    pub fn new(scheduler: SchedulerHandle) -> Self {
        Self { scheduler, started: AtomicBool::new(false) }
    }

    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }
}

impl HealthSource for Health {
    fn health(&self) -> SchedulerHealth {
        let status = self.scheduler.status();
        let ready = match (status.ready, self.started.load(Ordering::Acquire)) {
            (true, true) => Ok(()),
            (true, false) => Err("starting: the agent or the dags folder is not ready yet".into()),
            (false, _) => Err(status.reason.clone()),
        };
        let scope = match (&status.tenure, &status.other) {
            (Some(tenure), _) => ScopeHealth::of(tenure),
            (None, Some(other)) => ScopeHealth {
                owner: Some(other.holder.to_string()),
                epoch: Some(other.epoch.0),
                ..ScopeHealth::campaigning(status.scope.to_string())
            },
            (None, None) => ScopeHealth::campaigning(status.scope.to_string()),
        };
        SchedulerHealth { ready, last_pass_at: status.last_pass_at, scopes: vec![scope] }
    }
}
