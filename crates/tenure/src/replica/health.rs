//! What the probes hear about this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_api::{HealthSource, SchedulerHealth, ScopeHealth};
use tenure_clock::Clock;
use tenure_lease::{Elector, Phase, Scope};
use tenure_scheduler::{CONTROLLER_SCOPE, OwnerStatus, SchedulerHandle};

/// A shard goes round once in a tick at the least. Silence for this much longer is not idleness.
const SILENCE: Duration = Duration::from_secs(15);

pub struct Health {
    scheduler: SchedulerHandle,
    elector: Arc<Elector>,
    clock: Arc<dyn Clock>,
    silence: SignedDuration,
    /// Without one there is nothing that it does: `tenure up`, whose agent belongs to nobody else.
    needs_a_shard: bool,
    /// Everything else that this process offers is there.
    started: AtomicBool,
    stopping: AtomicBool,
}

/// What it is made from.
pub struct Vitals {
    pub scheduler: SchedulerHandle,
    pub elector: Arc<Elector>,
    pub clock: Arc<dyn Clock>,
    pub tick: Duration,
    pub needs_a_shard: bool,
}

impl Health {
    pub fn new(vitals: Vitals) -> Self {
        let Vitals { scheduler, elector, clock, tick, needs_a_shard } = vitals;
        let silence = SignedDuration::try_from(SILENCE + tick).unwrap_or(SignedDuration::MAX);
        let (started, stopping) = Default::default();
        Self { scheduler, elector, clock, silence, needs_a_shard, started, stopping }
    }

    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Nothing new should be sent here.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    fn shard(&self, status: &OwnerStatus) -> ScopeHealth {
        let problem = Some(status.reason.clone()).filter(|reason| !reason.is_empty());
        match (&status.tenure, self.scheduler.lease(&status.scope)) {
            (Some(tenure), _) => ScopeHealth {
                last_pass_at: status.last_pass_at,
                problem: problem.or_else(|| self.stuck(status)),
                ..ScopeHealth::of(tenure)
            },
            // Whose it is says enough, where it is somebody's.
            (None, Some(record)) if record.is_held() => ScopeHealth::elsewhere(&record),
            (None, Some(record)) => ScopeHealth { problem, ..ScopeHealth::elsewhere(&record) },
            (None, None) => ScopeHealth { problem, ..ScopeHealth::campaigning(status.scope.to_string()) },
        }
    }

    fn stuck(&self, status: &OwnerStatus) -> Option<String> {
        let at = status.last_pass_at?;
        let silent = self.clock.now().duration_since(at);
        (silent > self.silence).then(|| format!("it has not gone round since {at}"))
    }

    /// Whoever does the chores, as the elector knows it.
    fn controller(&self) -> Option<ScopeHealth> {
        let status = self.elector.scope_status(&Scope::new(CONTROLLER_SCOPE))?;
        let problem = status.problem.as_ref().map(|problem| problem.text().to_owned());
        let leading = matches!(status.phase, Phase::Leading | Phase::Draining);
        let seen = match &status.record {
            Some(record) if leading => ScopeHealth {
                leading,
                last_renewal_succeeded: problem.is_none(),
                renewed_at: Some(record.renewed_at),
                valid_for_ms: record.remaining.as_millis() as u64,
                ..ScopeHealth::elsewhere(record)
            },
            Some(record) => ScopeHealth::elsewhere(record),
            None => ScopeHealth::campaigning(CONTROLLER_SCOPE),
        };
        Some(ScopeHealth { problem, ..seen })
    }

    fn ready(&self, shards: &[OwnerStatus], shown: &[ScopeHealth]) -> Result<(), String> {
        if self.stopping.load(Ordering::Acquire) {
            return Err("stopping: shards are handed over".into());
        }
        if !self.started.load(Ordering::Acquire) {
            return Err("starting: not everything is ready yet".into());
        }
        let mut owned = shards.iter().zip(shown).filter(|(status, _)| status.tenure.is_some()).peekable();
        if owned.peek().is_none() && self.needs_a_shard {
            let reason = shards.first().map_or("there are no shards", |status| status.reason.as_str());
            return Err(reason.to_owned());
        }
        match owned.find_map(|(_, shown)| Some((&shown.scope, shown.problem.as_ref()?))) {
            Some((scope, problem)) => Err(format!("{scope}: {problem}")),
            None => Ok(()),
        }
    }
}

impl HealthSource for Health {
    fn health(&self) -> SchedulerHealth {
        let shards = self.scheduler.status();
        let scopes: Vec<ScopeHealth> = shards.iter().map(|status| self.shard(status)).collect();
        let last_pass_at: Option<Timestamp> = shards.iter().filter_map(|status| status.last_pass_at).max();
        SchedulerHealth {
            ready: self.ready(&shards, &scopes),
            last_pass_at,
            scopes,
            controller: self.controller(),
        }
    }
}
