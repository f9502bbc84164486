//! Goal: what capacity is missing is told once, whoever leads, and taken back when it is there.
//! Method: a real store and real controllers; the test says which nodes are there.

mod rig;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rig::chief::Chief;
use rig::{Options, Rig, exec, wait};
use tenure_model::{DagSpec, NodeId, Resources, TaskSpec, TenantId};
use tenure_scheduler::{Signal, SignalListener, SignalRules, Signalling};
use tenure_store::{AuditQuery, NodeRegistration, Paging};

/// Remembers what it was told.
#[derive(Default)]
struct Ear(Mutex<Vec<Signal>>);

impl SignalListener for Ear {
    fn hear(&self, _: Timestamp, signals: &[Signal]) {
        self.0.lock().unwrap().extend_from_slice(signals);
    }
}

impl Ear {
    fn heard(&self) -> Vec<String> {
        let words = |signal: &Signal| match signal {
            Signal::CapacityShortage(shortage) => format!("{} tasks: {}", shortage.tasks, shortage.shape),
            Signal::CapacityShortageOver { shape } => format!("over: {shape}"),
            Signal::NodesIdle { nodes } => format!("idle: {nodes:?}"),
            Signal::NodesNoLongerIdle { nodes } => format!("not idle: {nodes:?}"),
        };
        self.0.lock().unwrap().iter().map(words).collect()
    }
}

fn quick(ear: &Arc<Ear>) -> Signalling {
    let rules = SignalRules {
        shortage_after: Duration::from_millis(300),
        idle_after: Duration::from_secs(3_600),
        interval: Duration::from_millis(1),
        keep_nodes: 0,
    };
    Signalling { rules, listener: Some(Arc::clone(ear) as _) }
}

fn gpu_dag(id: &str, tasks: usize) -> DagSpec {
    let task = |number: usize| TaskSpec {
        resources: Resources::default().with("gpu", 1_000),
        ..exec(&format!("t{number}"))
    };
    DagSpec::new(id, (0..tasks).map(task).collect())
}

/// Nodes that somebody hears, as replicas tell it.
async fn present(rig: &Rig, nodes: &[&str]) {
    let nodes: Vec<NodeId> = nodes.iter().map(NodeId::new).collect();
    rig.store.record_presence("r1", &nodes).await.unwrap();
}

async fn audited(rig: &Rig) -> Vec<String> {
    let query = AuditQuery {
        tenant: TenantId::default_tenant(),
        dag: None,
        run: None,
        after_seq: None,
        paging: Paging { limit: 1_000, ..Paging::default() },
    };
    let rows = rig.store.list_audit(&query).await.unwrap().items;
    let signals = rows.iter().filter(|row| row.scope.as_deref() == Some("controller/leader"));
    signals.flat_map(|row| row.entries.iter().map(|entry| entry.event.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shortage_is_told_once_however_many_tasks_dags_and_leaders_there_are() {
    let rig = Rig::new().await;
    present(&rig, &["n"]).await;
    let _owner = rig.owner(Options::default());
    for dag in ["x", "y"] {
        rig.register(gpu_dag(dag, 3)).await;
        rig.trigger(dag, "r").await;
        rig.wait_states(dag, "r", "scheduled scheduled scheduled").await;
    }
    let ear = Arc::new(Ear::default());
    let first = Chief::signalling(&rig, "first", quick(&ear));
    wait("the shortage is told", || !ear.heard().is_empty()).await;
    rig.trigger("x", "more").await;
    first.stop().await;
    assert_eq!(ear.heard(), ["6 tasks: gpu 1"]);

    let next = Chief::signalling(&rig, "next", quick(&ear));
    let capacity = Resources::default().with("gpu", 2_000).with(Resources::TASKS, 64_000);
    rig.register_node(NodeRegistration::new(NodeId::new("gpus"), capacity, "test")).await;
    present(&rig, &["n", "gpus"]).await;
    wait("it is over", || ear.heard().len() > 1).await;
    next.stop().await;
    assert_eq!(ear.heard(), ["6 tasks: gpu 1", "over: gpu 1"]);
    assert_eq!(audited(&rig).await, ["capacity_shortage", "capacity_shortage_over"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_is_not_missed() {
    let rig = Rig::new().await;
    present(&rig, &["n"]).await;
    let _owner = rig.owner(Options::default());
    for dag in ["paused", "wanted"] {
        let mut spec = gpu_dag(dag, 1);
        spec.tasks[0].resources = Resources::default().with(dag, 1_000);
        rig.register(spec).await;
        rig.trigger(dag, "r").await;
        rig.wait_states(dag, "r", "scheduled").await;
    }
    rig.store.set_paused(&rig.user(), &"paused".into(), true).await.unwrap();
    let ear = Arc::new(Ear::default());
    let chief = Chief::signalling(&rig, "chief", quick(&ear));
    wait("a shortage is told", || !ear.heard().is_empty()).await;
    chief.stop().await;
    assert_eq!(ear.heard(), ["1 tasks: wanted 1"]);
}
