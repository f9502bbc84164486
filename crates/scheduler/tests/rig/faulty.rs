//! A store that fails or panics where a test says so, and is otherwise the one behind it. Leases are left in peace.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, EpochGuard, FenceStore, Hint, LeaseError,
    LeaseRecord, LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tenure_model::{
    Ack, DagId, NewRun, NodeId, PoolName, Report, RunId, RunKey, RunState, ShardId, TaskId, TenantId, TiKey,
};
use tenure_store::*;
use tokio::sync::{broadcast, watch};

pub struct Faulty {
    inner: SharedStore,
    fault: Box<Fault>,
}

/// Told of each call before it is made: its verb, and for what is written also what.
type Fault = dyn Fn(&str) -> Result<(), StoreError> + Send + Sync;

impl Faulty {
    pub fn before(
        inner: SharedStore,
        fault: impl Fn(&str) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> SharedStore {
        Arc::new(Self { inner, fault: Box::new(fault) })
    }
}

pub fn unavailable() -> StoreError {
    StoreError::Unavailable { doing: "what the test forbids", source: "planted".into() }
}

pub fn in_doubt() -> StoreError {
    StoreError::Unknown { doing: "what the test forbids", source: "planted".into() }
}

macro_rules! pass_on {
    ($trait:ident { $($more:tt)* } $($verb:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl $trait for Faulty {
            $($more)*
            $(async fn $verb(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                (self.fault)(stringify!($verb))?;
                self.inner.$verb($($arg),*).await
            })*
        }
    };
}

pass_on! { SchedulingStore {
        async fn commit_pass(&self, guard: &EpochGuard<'_>, pass: &Pass) -> Result<Committed, StoreError> {
            (self.fault)(&format!("commit_pass {pass:?}"))?;
            self.inner.commit_pass(guard, pass).await
        }
        fn wakes(&self, shard: ShardId) -> watch::Receiver<u64> {
            self.inner.wakes(shard)
        }
    }
    shard_count() -> u16;
    shard_snapshot(shard: ShardId) -> ShardSnapshot;
    attention(shard: ShardId, limit: u32) -> Look;
    limits() -> Limits;
    load_runs(runs: &[RunKey]) -> LoadedRuns;
    orphans(shard: ShardId, untouched_since: Timestamp, limit: u32) -> Vec<RunKey>;
    trade_shares(guard: &EpochGuard<'_>, bids: &[Bid]) -> Vec<Share>;
    record_presence(replica: &str, nodes: &[NodeId]) -> ();
    present(nodes: &[NodeId], within: Duration) -> Vec<NodeId>;
    load_dag(tenant: &TenantId, dag: &DagId) -> Option<DagSchedule>;
    dag_versions(wanted: &[DagVersionName]) -> Vec<Result<DagVersion, StoreError>>;
    read_ahead() -> usize;
    past_run(tenant: &TenantId, dag: &DagId, before: Timestamp) -> Option<PastRun>;
    results(run: RunKey) -> Vec<(TaskId, i32, Value)>;
}

pass_on! { IntentStore {
        async fn record_reports(&self, reports: &[Report], at: Timestamp) -> Result<Vec<Ack>, StoreError> {
            (self.fault)(&format!("record_reports {reports:?}"))?;
            self.inner.record_reports(reports, at).await
        }
    }
    register_dag(registration: &DagRegistration) -> Registered;
    set_paused(trigger: &Trigger, dag: &DagId, paused: bool) -> ();
    delete_dag(trigger: &Trigger, dag: &DagId) -> ();
    create_run(trigger: &Trigger, run: &NewRun) -> CreateRunOutcome;
    delete_run(trigger: &Trigger, dag: &DagId, run: &RunId) -> ();
    set_run_state(trigger: &Trigger, dag: &DagId, run: &RunId, state: RunState) -> RunView;
    set_run_note(trigger: &Trigger, dag: &DagId, run: &RunId, note: Option<&str>) -> RunView;
    clear(trigger: &Trigger, request: &ClearRequest) -> Cleared;
    mark(trigger: &Trigger, request: &MarkRequest) -> Vec<TiView>;
    put_pool(trigger: &Trigger, pool: &PoolRecord) -> ();
    delete_pool(trigger: &Trigger, pool: &PoolName) -> ();
    put_quota(trigger: &Trigger, quota: &Quota) -> ();
    delete_quota(trigger: &Trigger, tenant: &TenantId) -> ();
    register_node(node: &NodeRegistration, at: Timestamp) -> NodeRecord;
    drain_node(trigger: &Trigger, node: &NodeId, deadline: Timestamp) -> NodeRecord;
    undrain_node(trigger: &Trigger, node: &NodeId) -> NodeRecord;
    admin_token(offered: Option<&str>) -> Option<String>;
}

pass_on! { ChoreStore {}
    delete_old_runs(guard: &EpochGuard<'_>, before: Timestamp, limit: u32) -> u64;
    delete_old_audit(guard: &EpochGuard<'_>, before: Timestamp, limit: u32) -> u64;
    advance_drain(guard: &EpochGuard<'_>, node: &NodeId, since: Timestamp, to: DrainStage) -> bool;
    delete_old_members(guard: &EpochGuard<'_>, before: Timestamp, limit: u32) -> u64;
    tell_signals(guard: &EpochGuard<'_>, at: Timestamp, entries: &[AuditEntry], open: &str) -> ();
    open_signals() -> Option<String>;
}

pass_on! { IdentityStore {}
    add_join_token(trigger: &Trigger, token: &NewJoinToken) -> JoinTokenRecord;
    join_tokens() -> Vec<JoinTokenRecord>;
    revoke_join_token(trigger: &Trigger, id: &str) -> ();
    join_node(join: &Join) -> Timestamp;
    renew_node(renewal: &Renewal) -> Timestamp;
    node_identity(digest: &str) -> Option<NodeIdentity>;
    identified_until(node: &NodeId, at: Timestamp) -> Option<Timestamp>;
    revoked_identities(at: Timestamp) -> Vec<String>;
    remove_node(trigger: &Trigger, node: &NodeId) -> RemovedNode;
}

pass_on! { Views {}
    ping() -> ();
    list_dags(query: &DagQuery) -> Page<DagView>;
    get_dag(tenant: &TenantId, dag: &DagId) -> Option<DagView>;
    list_versions(tenant: &TenantId, dag: &DagId, paging: &Paging) -> Page<VersionView>;
    get_version(tenant: &TenantId, dag: &DagId, version: Option<u32>) -> Option<VersionView>;
    list_runs(query: &RunQuery) -> Page<RunView>;
    get_run(tenant: &TenantId, dag: &DagId, run: &RunId) -> Option<RunView>;
    list_tis(query: &TiQuery) -> Page<TiView>;
    list_tries(tenant: &TenantId, dag: &DagId, run: &RunId, task: &TaskId, map_index: i32) -> Vec<TryView>;
    get_result(ti: TiKey) -> Option<Value>;
    list_audit(query: &AuditQuery) -> Page<AuditView>;
    list_pools() -> Vec<PoolRecord>;
    list_quotas() -> Vec<Quota>;
    list_nodes() -> Vec<NodeRecord>;
    occupancy() -> Vec<Occupancy>;
    waiting() -> Vec<Waiting>;
    dag_activity(dags: &[(TenantId, DagId)]) -> Vec<DagActivity>;
    list_presence(within: Duration) -> Vec<PresenceView>;
}

#[async_trait]
impl LeaseStore for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        self.inner.acquire(request).await
    }
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.inner.renew(claims).await
    }
    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.inner.release(claim).await
    }
    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.inner.list_leases(under).await
    }
    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.inner.find_lease(scope).await
    }
    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.inner.lease_history(scope, limit).await
    }
    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.inner.watch()
    }
    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        self.inner.attach(session).await
    }
}

#[async_trait]
impl FenceStore for Faulty {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        self.inner.install_fence(scope, term, floor).await
    }
    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.inner.fence(scope).await
    }
}
