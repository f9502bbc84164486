//! The store as one replica sees it: behind a network, with every verb a boundary where things go wrong.
//!
//! A request that was sent arrives although its sender has given up, was paused or has died; an answer that is lost leaves
//! «unknown». Wakes and hints come by the same way, late or not at all.

mod chores;
mod leases;
mod views;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tenure_lease::{EpochGuard, Hint, LeaseError, LeaseStore};
use tenure_model::{
    Ack, DagId, NewRun, NodeId, PoolName, Report, RunId, RunKey, RunState, ShardId, TaskId, TenantId,
};
use tenure_store::{
    AttentionItem, Bid, ClearRequest, Cleared, Committed, CreateRunOutcome, DagRegistration, DagSchedule,
    DagVersion, DagVersionName, IntentStore, LoadedRuns, MarkRequest, NodeRecord, NodeRegistration, Pass,
    PastRun, PoolRecord, Quota, Registered, RunView, SchedulingStore, ShardSnapshot, Share, StoreError,
    TiView, Trigger,
};
use tenure_store_memory::{Authority, Bells, MemoryStore};
use tokio::sync::{broadcast, oneshot, watch};

use crate::gate::Gate;
use crate::replica::name;
use crate::world::World;

/// When a call that nobody answers is given up: a driver's statement timeout.
const PATIENCE: Duration = Duration::from_secs(4);

pub struct RemoteStore {
    world: Arc<World>,
    replica: usize,
    gate: Gate,
    bells: Vec<Bells>,
    hints: broadcast::Sender<Hint>,
}

/// The words for what went wrong on the way.
trait Trouble: Sized + Send + 'static {
    fn unknown(doing: &'static str) -> Self;
    fn unavailable(doing: &'static str) -> Self;
    fn how(&self) -> &'static str;
}

impl Trouble for StoreError {
    fn unknown(doing: &'static str) -> Self {
        Self::Unknown { doing, source: "simulated".into() }
    }
    fn unavailable(doing: &'static str) -> Self {
        Self::Unavailable { doing, source: "simulated".into() }
    }
    fn how(&self) -> &'static str {
        match self {
            Self::Fenced { .. } => "fenced",
            Self::Conflict(_) => "conflict",
            Self::NotFound(_) => "not found",
            Self::Unknown { .. } => "unknown",
            Self::Unavailable { .. } => "unavailable",
            Self::Corrupt { .. } => "corrupt",
        }
    }
}

impl Trouble for LeaseError {
    fn unknown(_: &'static str) -> Self {
        Self::Ambiguous("simulated".into())
    }
    fn unavailable(_: &'static str) -> Self {
        Self::Unavailable("simulated".into())
    }
    fn how(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Ambiguous(_) => "unknown",
            Self::Refused(_) => "refused",
        }
    }
}

impl RemoteStore {
    /// Also begins to pass wakes and hints on, until the replica dies.
    pub fn connect(world: &Arc<World>, replica: usize, gate: Gate, shards: u16) -> Arc<Self> {
        let store = Arc::new(Self {
            world: Arc::clone(world),
            replica,
            gate: gate.clone(),
            bells: (0..shards).map(|_| Bells::default()).collect(),
            hints: broadcast::Sender::new(256),
        });
        for shard in (0..shards).map(ShardId) {
            let (store, gate) = (Arc::clone(&store), gate.clone());
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = gate.died() => {}
                    () = store.pass_wakes_on(shard) => {}
                }
            });
        }
        let hearing = Arc::clone(&store);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = gate.died() => {}
                () = hearing.pass_hints_on() => {}
            }
        });
        store
    }

    async fn pass_wakes_on(&self, shard: ShardId) {
        let mut wakes = self.world.store.wakes(shard);
        while wakes.changed().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            wakes.mark_unchanged();
            if !self.is_deaf() {
                self.bells[usize::from(shard.0)].ring();
            }
        }
    }

    async fn pass_hints_on(&self) {
        let mut hints = self.world.store.watch();
        while let Ok(hint) = hints.recv().await {
            if !self.is_deaf() {
                let _ = self.hints.send(hint); // nobody may be listening
            }
        }
    }

    fn is_deaf(&self) -> bool {
        let network = self.world.network();
        network.deaf.contains(&self.replica) || network.store_cuts.contains_key(&self.replica)
    }

    async fn call<T, E, F, W>(&self, verb: &'static str, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: Trouble,
        F: FnOnce(Arc<MemoryStore>) -> W + Send + 'static,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (world, who) = (&self.world, name(self.replica));
        if !self.gate.is_up() {
            world.trace().met("paused or dead", verb);
            self.gate.pass().await;
        }
        if world.steps_into_trap(self.replica, verb, false) {
            world.trace().met("crash before", verb);
            return self.fall().await;
        }
        let mut fate = world.network().fate_of_call(self.replica, &world.dice);
        if let Some(lasts) = world.stalls(self.replica, verb) {
            world.trace().met("frozen in the middle", verb);
            world.tell(|| format!("{who} freezes in the middle of {verb} for {lasts:?}"));
            fate.there += lasts;
            self.freeze(lasts);
        }
        if let Some(fault) = fate.fault {
            world.trace().met(fault, verb);
        }
        if fate.refused {
            tokio::time::sleep(fate.there).await;
            world.event(who, verb, "refused");
            return Err(E::unavailable(verb));
        }
        let (answer, heard) = oneshot::channel();
        let (far, replica) = (Arc::clone(world), self.replica);
        let deed = async move {
            tokio::time::sleep(fate.there).await;
            if fate.lost_there {
                return;
            }
            let result = work(Arc::clone(&far.store)).await;
            far.event(who, verb, result.as_ref().map_or_else(Trouble::how, |_| "ok"));
            if far.steps_into_trap(replica, verb, true) {
                far.trace().met("crash after", verb);
                if let Some(replica) = far.replica(replica) {
                    replica.gate.kill();
                }
                let _ = far.fallen.send(replica); // nobody restarts anything at the end of the world
                return;
            }
            if fate.back > Duration::from_millis(1) {
                tokio::time::sleep(fate.back).await;
            }
            if !fate.lost_back {
                let _ = answer.send(result); // whoever asked may have given up
            }
        };
        // What is under way arrives, whatever becomes of the sender.
        tokio::spawn(deed);
        let answered = match tokio::time::timeout(PATIENCE, heard).await {
            Ok(Ok(result)) => Some(result),
            Ok(Err(_)) if fate.noticed => None,
            Ok(Err(_)) => {
                tokio::time::sleep(PATIENCE).await;
                None
            }
            Err(_) => None,
        };
        self.gate.pass().await;
        answered.unwrap_or_else(|| {
            world.event(who, verb, "unknown");
            Err(E::unknown(verb))
        })
    }

    /// SIGSTOP, and SIGCONT after so long.
    fn freeze(&self, lasts: Duration) {
        let Some(replica) = self.world.replica(self.replica) else { return };
        let world = Arc::clone(&self.world);
        replica.clock.freeze();
        replica.gate.pause();
        world.look_for_silence();
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            replica.clock.thaw();
            replica.gate.resume();
            world.look_for_silence();
        });
    }

    /// This replica is dead from here on.
    async fn fall<T>(&self) -> T {
        self.gate.kill();
        let _ = self.world.fallen.send(self.replica); // as above
        std::future::pending().await
    }
}

/// `remote!(self, verb, (owned arguments), call)`.
macro_rules! remote {
    ($self:ident, $verb:literal, |$store:ident| $($own:ident),* => $call:expr) => {{
        $(let $own = $own.to_owned();)*
        $self.call($verb, move |$store| async move { $call.await }).await
    }};
}
pub(crate) use remote;

#[async_trait]
impl SchedulingStore for RemoteStore {
    async fn shard_count(&self) -> Result<u16, StoreError> {
        self.world.store.shard_count().await
    }
    async fn shard_snapshot(&self, shard: ShardId) -> Result<ShardSnapshot, StoreError> {
        remote!(self, "shard_snapshot", |store| => store.shard_snapshot(shard))
    }
    async fn attention(&self, shard: ShardId, limit: u32) -> Result<Vec<AttentionItem>, StoreError> {
        remote!(self, "attention", |store| => store.attention(shard, limit))
    }
    async fn load_runs(&self, runs: &[RunKey]) -> Result<LoadedRuns, StoreError> {
        remote!(self, "load_runs", |store| runs => store.load_runs(&runs))
    }
    async fn orphans(
        &self,
        shard: ShardId,
        untouched_since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunKey>, StoreError> {
        remote!(self, "orphans", |store| => store.orphans(shard, untouched_since, limit))
    }
    async fn trade_shares(&self, guard: &EpochGuard<'_>, bids: &[Bid]) -> Result<Vec<Share>, StoreError> {
        let (authority, bids) = (Authority::from(guard), bids.to_vec());
        self.call("trade_shares", move |store| async move { store.trade_shares_as(&authority, &bids) }).await
    }
    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
        remote!(self, "record_presence", |store| replica, nodes => store.record_presence(&replica, &nodes))
    }
    async fn present(&self, nodes: &[NodeId], within: Duration) -> Result<Vec<NodeId>, StoreError> {
        remote!(self, "present", |store| nodes => store.present(&nodes, within))
    }
    async fn load_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, StoreError> {
        remote!(self, "load_dag", |store| tenant, dag => store.load_dag(&tenant, &dag))
    }
    async fn dag_versions(
        &self,
        wanted: &[DagVersionName],
    ) -> Result<Vec<Result<DagVersion, StoreError>>, StoreError> {
        remote!(self, "dag_versions", |store| wanted => store.dag_versions(&wanted))
    }
    async fn read_ahead(&self) -> Result<usize, StoreError> {
        Ok(0)
    }
    async fn past_run(
        &self,
        tenant: &TenantId,
        dag: &DagId,
        before: Timestamp,
    ) -> Result<Option<PastRun>, StoreError> {
        remote!(self, "past_run", |store| tenant, dag => store.past_run(&tenant, &dag, before))
    }
    async fn pools(&self) -> Result<Vec<PoolRecord>, StoreError> {
        remote!(self, "pools", |store| => store.pools())
    }
    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        remote!(self, "nodes", |store| => store.nodes())
    }
    async fn quotas(&self) -> Result<Vec<Quota>, StoreError> {
        remote!(self, "quotas", |store| => store.quotas())
    }
    async fn results(&self, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, StoreError> {
        remote!(self, "results", |store| => store.results(run))
    }
    async fn commit_pass(&self, guard: &EpochGuard<'_>, pass: &Pass) -> Result<Committed, StoreError> {
        let (authority, pass) = (Authority::from(guard), pass.clone());
        self.call("commit_pass", move |store| async move { store.commit_pass_as(&authority, &pass) }).await
    }
    fn wakes(&self, shard: ShardId) -> watch::Receiver<u64> {
        self.bells[usize::from(shard.0)].listen()
    }
}

#[async_trait]
impl IntentStore for RemoteStore {
    async fn register_dag(&self, registration: &DagRegistration) -> Result<Registered, StoreError> {
        remote!(self, "register_dag", |store| registration => store.register_dag(&registration))
    }
    async fn set_paused(&self, trigger: &Trigger, dag: &DagId, paused: bool) -> Result<(), StoreError> {
        remote!(self, "set_paused", |store| trigger, dag => store.set_paused(&trigger, &dag, paused))
    }
    async fn delete_dag(&self, trigger: &Trigger, dag: &DagId) -> Result<(), StoreError> {
        remote!(self, "delete_dag", |store| trigger, dag => store.delete_dag(&trigger, &dag))
    }
    async fn create_run(&self, trigger: &Trigger, run: &NewRun) -> Result<CreateRunOutcome, StoreError> {
        remote!(self, "create_run", |store| trigger, run => store.create_run(&trigger, &run))
    }
    async fn delete_run(&self, trigger: &Trigger, dag: &DagId, run: &RunId) -> Result<(), StoreError> {
        remote!(self, "delete_run", |store| trigger, dag, run => store.delete_run(&trigger, &dag, &run))
    }
    async fn set_run_state(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        state: RunState,
    ) -> Result<RunView, StoreError> {
        remote!(self, "set_run_state", |store| trigger, dag, run => store.set_run_state(&trigger, &dag, &run, state))
    }
    async fn set_run_note(
        &self,
        trigger: &Trigger,
        dag: &DagId,
        run: &RunId,
        note: Option<&str>,
    ) -> Result<RunView, StoreError> {
        self.world.store.set_run_note(trigger, dag, run, note).await
    }
    async fn clear(&self, trigger: &Trigger, request: &ClearRequest) -> Result<Cleared, StoreError> {
        remote!(self, "clear", |store| trigger, request => store.clear(&trigger, &request))
    }
    async fn mark(&self, trigger: &Trigger, request: &MarkRequest) -> Result<Vec<TiView>, StoreError> {
        remote!(self, "mark", |store| trigger, request => store.mark(&trigger, &request))
    }
    async fn put_pool(&self, trigger: &Trigger, pool: &PoolRecord) -> Result<(), StoreError> {
        remote!(self, "put_pool", |store| trigger, pool => store.put_pool(&trigger, &pool))
    }
    async fn delete_pool(&self, trigger: &Trigger, pool: &PoolName) -> Result<(), StoreError> {
        remote!(self, "delete_pool", |store| trigger, pool => store.delete_pool(&trigger, &pool))
    }
    async fn put_quota(&self, trigger: &Trigger, quota: &Quota) -> Result<(), StoreError> {
        remote!(self, "put_quota", |store| trigger, quota => store.put_quota(&trigger, &quota))
    }
    async fn delete_quota(&self, trigger: &Trigger, tenant: &TenantId) -> Result<(), StoreError> {
        remote!(self, "delete_quota", |store| trigger, tenant => store.delete_quota(&trigger, &tenant))
    }
    async fn register_node(&self, node: &NodeRegistration, at: Timestamp) -> Result<NodeRecord, StoreError> {
        remote!(self, "register_node", |store| node => store.register_node(&node, at))
    }
    async fn drain_node(
        &self,
        trigger: &Trigger,
        node: &NodeId,
        deadline: Timestamp,
    ) -> Result<NodeRecord, StoreError> {
        remote!(self, "drain_node", |store| trigger, node => store.drain_node(&trigger, &node, deadline))
    }
    async fn undrain_node(&self, trigger: &Trigger, node: &NodeId) -> Result<NodeRecord, StoreError> {
        remote!(self, "undrain_node", |store| trigger, node => store.undrain_node(&trigger, &node))
    }
    async fn record_reports(&self, reports: &[Report], at: Timestamp) -> Result<Vec<Ack>, StoreError> {
        remote!(self, "record_reports", |store| reports => store.record_reports(&reports, at))
    }
    async fn admin_token(&self, offered: Option<&str>) -> Result<Option<String>, StoreError> {
        self.world.store.admin_token(offered).await
    }
}
