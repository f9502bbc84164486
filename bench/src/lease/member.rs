//! One candidate in a process of its own: stands for scopes on real backends, writes under its fence as soon as it
//! leads, and says on standard output when. The measuring process reads, kills, freezes and stops it.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    Campaign, Elector, ElectorConfig, ElectorParts, FenceStore, Holder, LeaseMetrics, LeaseStore, Scope,
    Session, Tenure,
};
use tenure_lease_etcd::EtcdLeases;
use tenure_model::{ShardId, TenantId};
use tenure_store::{Pass, ScheduleChange, SchedulingStore, StoreError};
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tokio::signal::unix::{SignalKind, signal};

use super::boottime;

/// Between two writes of a busy owner.
const WRITE_EVERY: Duration = Duration::from_millis(10);
pub const DAG: &str = "bench";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Candidate {
    pub name: String,
    /// Postgres: the state, and the fences.
    pub database: String,
    /// Leases in etcd instead of the same database.
    pub etcd: Option<String>,
    pub duration: Duration,
    /// One scope is a scheduler's shard, which is written to; more are only held.
    pub scopes: usize,
}

/// What a candidate tells, one JSON object a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Told {
    /// Somebody else holds the scope, and this candidate knows whom to wait for.
    Follows,
    /// The first write of a term was committed.
    Wrote {
        at: Duration,
        epoch: u64,
    },
    Holds {
        at: Duration,
        count: usize,
    },
}

pub fn run(candidate: &Candidate) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(stand(candidate))
}

async fn stand(candidate: &Candidate) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy = Entropy::from_os();
    let options = PostgresOptions { pool_size: 2, ..PostgresOptions::default() };
    let store = Arc::new(PostgresStore::connect(&candidate.database, options, &entropy).await?);
    let leases: Arc<dyn LeaseStore> = match &candidate.etcd {
        Some(url) => Arc::new(EtcdLeases::open(url.parse()?, Arc::clone(&clock))?),
        None => Arc::clone(&store) as _,
    };
    let session = Session(entropy.uuid(clock.now()));
    let (name, instance) = (candidate.name.clone(), candidate.name.clone());
    let holder = Holder { name, instance, session, address: None };
    let parts = ElectorParts {
        leases,
        fences: Arc::clone(&store) as Arc<dyn FenceStore>,
        clock: Arc::clone(&clock),
        entropy,
        metrics: LeaseMetrics::default(),
    };
    let config = ElectorConfig { crash_hints: true, ..ElectorConfig::new(holder, candidate.duration) };
    let elector = Arc::new(Elector::start(parts, config)?);
    let scopes: Vec<Scope> = match candidate.scopes {
        1 => vec![Scope::new(ShardId(0).scope())],
        many => (0..many).map(|number| Scope::new(format!("bench/scope-{number:04}"))).collect(),
    };
    let single = (scopes.len() == 1).then(|| scopes[0].clone());
    let (component, note) = ("bench".to_owned(), String::new());
    let mut candidacy = elector.campaign(Campaign { component, scopes, note, sole_instance: false });
    if let Some(scope) = single {
        tokio::spawn(say_when_following(Arc::clone(&elector), scope, candidate.name.clone()));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let held = Arc::new(Mutex::new(BTreeSet::new()));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            tenure = candidacy.elected() => {
                let tenure = tenure.context("the elector has ended")?;
                match candidate.scopes {
                    1 => drop(tokio::spawn(write(Arc::clone(&store), tenure))),
                    _ => drop(tokio::spawn(hold(Arc::clone(&held), tenure))),
                }
            }
        }
    }
    elector.stop().await;
    Ok(())
}

async fn say_when_following(elector: Arc<Elector>, scope: Scope, own: String) {
    loop {
        let record = elector.scope_status(&scope).and_then(|status| status.record);
        if record.is_some_and(|record| record.is_held() && record.holder.name != own) {
            return tell(&Told::Follows);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A busy owner: a real row, in a real fenced transaction, again and again.
async fn write(store: Arc<PostgresStore>, tenure: Tenure) {
    let mut first = true;
    while !tenure.asked_back().is_cancelled() {
        let Ok(guard) = tenure.guard() else { return };
        let now = SystemClock.now();
        let change = ScheduleChange {
            tenant: TenantId::default_tenant(),
            dag: DAG.into(),
            last_tick: now,
            next_tick: None,
        };
        let pass = Pass { schedules: vec![change], ..Pass::new(now, "bench") };
        match store.commit_pass(&guard, &pass).await {
            Ok(_) if std::mem::take(&mut first) => {
                tell(&Told::Wrote { at: boottime(), epoch: tenure.epoch().0 });
            }
            Ok(_) => {}
            Err(StoreError::Fenced { .. }) => return,
            Err(error) => eprintln!("a write failed: {error}"),
        }
        // Asked back, it is done with the write in hand.
        tenure.asked_back().run_until_cancelled(tokio::time::sleep(WRITE_EVERY)).await;
    }
    tenure.resign().await;
}

async fn hold(held: Arc<Mutex<BTreeSet<Scope>>>, tenure: Tenure) {
    count(&held, |held| held.insert(tenure.scope().clone()));
    tokio::select! {
        () = tenure.asked_back().cancelled() => {}
        () = tenure.lost().cancelled() => {}
    }
    count(&held, |held| held.remove(tenure.scope()));
    tenure.resign().await;
}

fn count(held: &Mutex<BTreeSet<Scope>>, change: impl FnOnce(&mut BTreeSet<Scope>) -> bool) {
    let mut held = held.lock().expect("no panic while counting");
    if change(&mut held) {
        tell(&Told::Holds { at: boottime(), count: held.len() });
    }
}

fn tell(told: &Told) {
    let line = serde_json::to_string(told).expect("plain data");
    // The reader may have gone; then this process is about to be killed.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
