//! The store as one replica sees it: behind a network, with every verb a boundary where things go wrong.
//!
//! A request that was sent arrives although its sender has given up, was paused or has died; an answer that is lost leaves
//! «unknown». Wakes and hints come by the same way, late or not at all.

mod chores;
mod leases;
mod views;

use std::collections::BTreeMap;
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
    Bid, ClearRequest, Cleared, Committed, CreateRunOutcome, DagRegistration, DagSchedule, DagVersion,
    DagVersionName, IntentStore, Limits, LoadedRuns, Look, MarkRequest, NodeRecord, NodeRegistration, Pass,
    PastRun, PoolRecord, Quota, Registered, RunView, SchedulingStore, ShardSnapshot, Share, StoreError,
    TiView, Trigger,
};
use tenure_store_memory::{Authority, Bells, MemoryStore};
use tokio::sync::{broadcast, oneshot, watch};

use crate::boundaries::is_about_leases;
use crate::gate::Gate;
use crate::network::{Cut, Fate, Network, QUICK};
use crate::replica::name;
use crate::world::{Party, World};

/// When a call that nobody answers is given up: a driver's statement timeout.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// How many of a hundred reads take their time although nothing is wrong.
const LEISURELY: f64 = 30.0;

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
            if self.hears(|network| &network.store_cuts) {
                self.bells[usize::from(shard.0)].ring();
            }
        }
    }

    async fn pass_hints_on(&self) {
        let mut hints = self.world.store.watch();
        while let Ok(hint) = hints.recv().await {
            if self.hears(|network| &network.lease_cuts) {
                let _ = self.hints.send(hint); // nobody may be listening
            }
        }
    }

    /// Whether it is told what happens there.
    fn hears(&self, cuts: impl Fn(&Network) -> &BTreeMap<usize, Cut>) -> bool {
        let network = self.world.network();
        !network.deaf.contains(&self.replica) && !cuts(&network).contains_key(&self.replica)
    }

    /// Something that may change the store: what is under way arrives, whatever becomes of the sender.
    async fn call<T, E, F, W>(&self, verb: &'static str, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: Trouble,
        F: FnOnce(Arc<MemoryStore>) -> W + Send + 'static,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let fate = self.set_off(verb).await?;
        let (answer, heard) = oneshot::channel();
        let (far, replica, gate) = (Arc::clone(&self.world), self.replica, self.gate.clone());
        let deed = async move {
            tokio::time::sleep(fate.there).await;
            if fate.lost_there {
                return;
            }
            let result = work(Arc::clone(&far.store)).await;
            far.event(name(replica), verb, result.as_ref().map_or_else(Trouble::how, |_| "ok"));
            if far.dies(&gate, Party::Replica(replica), verb, true) {
                return;
            }
            if fate.back > QUICK {
                tokio::time::sleep(fate.back).await;
            }
            if !fate.lost_back {
                let _ = answer.send(result); // whoever asked may have given up
            }
        };
        tokio::spawn(deed);
        // A connection that is lost is noticed at once, or only by waiting; whoever died in between is never answered.
        let waiting = async {
            match heard.await {
                Ok(result) => Some(result),
                Err(_) if fate.noticed => None,
                Err(_) => std::future::pending().await,
            }
        };
        let answered = match fate.is_in_time() {
            true => waiting.await,
            false => tokio::time::timeout(PATIENCE, waiting).await.ok().flatten(),
        };
        self.gate.pass().await;
        answered.unwrap_or_else(|| self.unanswered(verb))
    }

    /// Something that changes nothing, and so nobody notices when its sender has given up.
    async fn look<T, E, F, W>(&self, verb: &'static str, work: F) -> Result<T, E>
    where
        E: Trouble,
        F: FnOnce(Arc<MemoryStore>) -> W,
        W: Future<Output = Result<T, E>>,
    {
        let fate = self.set_off(verb).await?;
        if !fate.is_in_time() {
            tokio::time::sleep(if fate.noticed { fate.there } else { PATIENCE }).await;
            self.gate.pass().await;
            self.world.event(name(self.replica), verb, "unknown");
            return Err(E::unavailable(verb));
        }
        // On a good day most reads are as quick as none at all: what comes between a read and what is made of it then comes
        // from the slow ones, and virtual hours cost much less.
        if fate.fault.is_some() || self.world.dice.chance(LEISURELY) {
            tokio::time::sleep(fate.there).await;
        }
        let result = work(Arc::clone(&self.world.store)).await;
        self.world.event(name(self.replica), verb, result.as_ref().map_or_else(Trouble::how, |_| "ok"));
        self.world.step(&self.gate, Party::Replica(self.replica), verb, true).await;
        if fate.back > QUICK {
            tokio::time::sleep(fate.back).await;
        }
        self.gate.pass().await;
        result
    }

    /// On the way to the store: what will become of the call.
    async fn set_off<E: Trouble>(&self, verb: &'static str) -> Result<Fate, E> {
        let (world, who) = (&self.world, name(self.replica));
        if !self.gate.is_up() {
            world.trace().met("paused or dead", verb);
            self.gate.pass().await;
        }
        world.step(&self.gate, Party::Replica(self.replica), verb, false).await;
        let mut fate = world.network().fate_of_call(self.replica, is_about_leases(verb), &world.dice);
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
        Ok(fate)
    }

    /// Nobody knows what has become of it.
    fn unanswered<T, E: Trouble>(&self, verb: &'static str) -> Result<T, E> {
        self.world.event(name(self.replica), verb, "unknown");
        Err(E::unknown(verb))
    }

    /// SIGSTOP, and SIGCONT after so long.
    fn freeze(&self, lasts: Duration) {
        let Some(replica) = self.world.replica(self.replica) else { return };
        let world = Arc::clone(&self.world);
        replica.pause();
        world.look_for_silence();
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            replica.resume();
            world.look_for_silence();
        });
    }
}

/// `remote!(self, verb, (owned arguments), call)`, and `remote!(self, look verb, …)` for what changes nothing.
macro_rules! remote {
    ($self:ident, look $verb:literal, |$store:ident| => $call:expr) => {
        $self.look($verb, |$store| async move { $call.await }).await
    };
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
        remote!(self, look "shard_snapshot", |store| => store.shard_snapshot(shard))
    }
    async fn attention(&self, shard: ShardId, limit: u32) -> Result<Look, StoreError> {
        remote!(self, look "attention", |store| => store.attention(shard, limit))
    }
    async fn limits(&self) -> Result<Limits, StoreError> {
        remote!(self, look "limits", |store| => store.limits())
    }
    async fn load_runs(&self, runs: &[RunKey]) -> Result<LoadedRuns, StoreError> {
        remote!(self, look "load_runs", |store| => store.load_runs(runs))
    }
    async fn orphans(
        &self,
        shard: ShardId,
        untouched_since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunKey>, StoreError> {
        remote!(self, look "orphans", |store| => store.orphans(shard, untouched_since, limit))
    }
    async fn trade_shares(&self, guard: &EpochGuard<'_>, bids: &[Bid]) -> Result<Vec<Share>, StoreError> {
        let (authority, bids) = (Authority::from(guard), bids.to_vec());
        self.call("trade_shares", move |store| async move { store.trade_shares_as(&authority, &bids) }).await
    }
    async fn record_presence(&self, replica: &str, nodes: &[NodeId]) -> Result<(), StoreError> {
        remote!(self, "record_presence", |store| replica, nodes => store.record_presence(&replica, &nodes))
    }
    async fn present(&self, nodes: &[NodeId], within: Duration) -> Result<Vec<NodeId>, StoreError> {
        remote!(self, look "present", |store| => store.present(nodes, within))
    }
    async fn load_dag(&self, tenant: &TenantId, dag: &DagId) -> Result<Option<DagSchedule>, StoreError> {
        remote!(self, look "load_dag", |store| => store.load_dag(tenant, dag))
    }
    async fn dag_versions(
        &self,
        wanted: &[DagVersionName],
    ) -> Result<Vec<Result<DagVersion, StoreError>>, StoreError> {
        remote!(self, look "dag_versions", |store| => store.dag_versions(wanted))
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
        remote!(self, look "past_run", |store| => store.past_run(tenant, dag, before))
    }
    async fn results(&self, run: RunKey) -> Result<Vec<(TaskId, i32, Value)>, StoreError> {
        remote!(self, look "results", |store| => store.results(run))
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
