//! Tasks behind an executor that takes half a second for each call, and a scheduler that must not mind.
//!
//! Agents on a stream take what is pushed to them and make nobody wait, so the seam itself is slowed down: the real
//! scheduler on the real Postgres, in this process, with an executor whose every call takes that long, as an API of
//! some cloud may. Fifty such tasks are always under way. Measured are the passes of the scheduler's loop, by its own
//! histogram, and runs that need no executor and share the loop with them: from the trigger to the end.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_dispatch::{AssignError, DispatchMetrics, EnvSecrets, Executor, Link, PoolSize};
use tenure_lease::{Elector, ElectorConfig, ElectorParts, Holder, LeaseMetrics, Session};
use tenure_model::{
    Assignment, AttemptId, DagSpec, Held, NewRun, NodeId, Outcome, Report, ReportBody, Resources, RunId,
    RunState, RunType, TaskKind, TaskSpec, TenantId,
};
use tenure_scheduler::{OwnerConfig, ReportDesk, Scheduler, SchedulerMetrics, SchedulerParts};
use tenure_store::{DagRegistration, NodeRegistration, SharedStore, Trigger};
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tokio::sync::watch;

use super::Bench;
use super::database::Database;
use crate::report::{Figure, Statistic};

const CALL_TAKES: Duration = Duration::from_millis(500);
const SLOW_TASKS: usize = 50;
const WATCHED_FOR: Duration = Duration::from_secs(30);
const WITNESS_EVERY: Duration = Duration::from_millis(100);
const NODE: &str = "far-away";

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    eprintln!("{SLOW_TASKS} tasks behind an executor that takes {CALL_TAKES:?} a call");
    let database = Database::create(&bench.postgres.url())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (witnesses, passes) = runtime.block_on(watch(&database.url))?;
    runtime.shutdown_background();
    let pass = Figure::of(
        format!("{SLOW_TASKS} tasks behind calls of 500 ms: a pass, by the bounds of its buckets"),
        "ms",
        passes,
        None,
    );
    bench.figures.push(pass.at_most(Statistic::P99, 1_000.0));
    bench.figures.push(Figure::millis(
        "beside them: a run that needs no executor, trigger to end",
        &witnesses,
        None,
    ));
    Ok(())
}

async fn watch(url: &str) -> Result<(Vec<Duration>, Vec<f64>)> {
    let (clock, entropy): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), Entropy::from_os());
    let store = Arc::new(PostgresStore::connect(url, PostgresOptions::default(), &entropy).await?);
    let session = Session(entropy.uuid(clock.now()));
    let holder = Holder { name: "bench".into(), instance: "bench".into(), session, address: None };
    let lease_metrics = LeaseMetrics::default();
    let elector_parts = ElectorParts {
        leases: store.clone(),
        fences: store.clone(),
        clock: Arc::clone(&clock),
        entropy: entropy.clone(),
        metrics: lease_metrics.clone(),
    };
    let elector =
        Arc::new(Elector::start(elector_parts, ElectorConfig::new(holder, Duration::from_secs(15)))?);
    let office = Office { store: store.clone() };
    office.prepare().await?;
    let far = Arc::new(FarAway { desk: OnceLock::new(), links: watch::Sender::new(0) });
    let mut registry = Registry::default();
    let scheduler = Scheduler::start(SchedulerParts {
        store: store.clone(),
        elector: Arc::clone(&elector),
        shards: 1,
        executor: far.clone(),
        secrets: Arc::new(EnvSecrets),
        pool: PoolSize::PRO,
        clock,
        entropy,
        metrics: SchedulerMetrics::register(&mut registry),
        lease_metrics,
        dispatch_metrics: DispatchMetrics::register(&mut registry),
        config: OwnerConfig::new("bench"),
        sole_instance: true,
    });
    ensure!(far.desk.set(scheduler.desk()).is_ok(), "the desk is set once");

    let began = Instant::now();
    let (mut slow, mut witnesses) = (0, vec![]);
    while began.elapsed() < WATCHED_FOR {
        // Three runs ahead, so that fifty tasks are always under way.
        while slow < 3 || office.has_ended("slow", slow - 2).await? {
            office.trigger("slow", slow).await?;
            slow += 1;
        }
        let sent = Instant::now();
        office.trigger("witness", witnesses.len()).await?;
        while !office.has_ended("witness", witnesses.len()).await? {
            ensure!(sent.elapsed() < Duration::from_secs(30), "a run that needs no executor does not end");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        witnesses.push(sent.elapsed());
        tokio::time::sleep(WITNESS_EVERY.saturating_sub(sent.elapsed())).await;
    }
    ensure!(slow > 3, "no slow run has ended");
    let passes = buckets(&registry, "tenure_pass_seconds")?;
    scheduler.stop().await;
    elector.stop().await;
    Ok((witnesses, passes))
}

/// Each observation as the upper bound of its bucket, in milliseconds.
fn buckets(registry: &Registry, name: &str) -> Result<Vec<f64>> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    let (mut values, mut before) = (vec![], 0);
    for line in text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("_bucket{le=\"")) {
        let (bound, count) = line.split_once("\"} ").context("a bucket has a bound and a count")?;
        let (bound, count): (f64, usize) = (bound.replace("+Inf", "inf").parse()?, count.parse()?);
        values.extend(std::iter::repeat_n(bound * 1_000.0, count - before));
        before = count;
    }
    ensure!(!values.is_empty(), "no {name} was observed");
    Ok(values)
}

/// What a user does.
struct Office {
    store: SharedStore,
}

impl Office {
    fn user(&self) -> Trigger {
        Trigger { tenant: TenantId::default_tenant(), actor: "bench".into(), at: Timestamp::now() }
    }

    async fn prepare(&self) -> Result<()> {
        let capacity = Resources::default().with(Resources::TASKS, 1_000_000);
        let node = NodeRegistration::new(NodeId::new(NODE), capacity, "bench");
        self.store.register_node(&node, Timestamp::now()).await?;
        let far = |number| TaskSpec::new(format!("t{number}"), TaskKind::Exec { argv: vec!["true".into()] });
        let slow = DagSpec {
            max_active_runs: 1,
            max_active_tasks: 100,
            ..DagSpec::new("slow", (0..SLOW_TASKS).map(far).collect())
        };
        let witness = DagSpec::new("witness", vec![TaskSpec::new("t", TaskKind::Empty)]);
        for spec in [slow, witness] {
            let registration = DagRegistration {
                trigger: self.user(),
                spec,
                source: String::new(),
                origin: "bench".into(),
                paused_if_new: false,
            };
            self.store.register_dag(&registration).await?;
        }
        Ok(())
    }

    async fn trigger(&self, dag: &str, number: usize) -> Result<()> {
        let run = NewRun {
            tenant: TenantId::default_tenant(),
            dag: dag.into(),
            run_id: RunId::new(format!("run-{number}")),
            run_type: RunType::Manual,
            logical_date: None,
            data_interval: None,
            run_after: Timestamp::now(),
            conf: json!({}),
            note: None,
            triggered_by: "bench".into(),
            idempotency_key: None,
        };
        self.store.create_run(&self.user(), &run).await?;
        Ok(())
    }

    async fn has_ended(&self, dag: &str, number: usize) -> Result<bool> {
        let run = RunId::new(format!("run-{number}"));
        let run = self.store.get_run(&TenantId::default_tenant(), &dag.into(), &run).await?;
        let run = run.context("a triggered run is there")?;
        ensure!(run.state != RunState::Failed, "a run of {dag} has failed");
        Ok(run.state.is_finished())
    }
}

/// An executor that takes its time and then does what it was asked for at once.
struct FarAway {
    desk: OnceLock<ReportDesk>,
    links: watch::Sender<u64>,
}

#[async_trait]
impl Executor for FarAway {
    async fn assign(&self, assignment: Assignment) -> Result<(), AssignError> {
        tokio::time::sleep(CALL_TAKES).await;
        let desk = self.desk.get().expect("the desk is open before anything is triggered").clone();
        tokio::spawn(async move {
            let Assignment { attempt, ti, node, scope, .. } = assignment;
            let claim = ReportBody::Claim { attempt, ti };
            desk.submit(Report { node: node.clone(), scope: scope.clone(), body: claim }).await;
            let (outcome, ended_at) = (Outcome::Success, Timestamp::now());
            let end = ReportBody::End { attempt, ti, outcome, ended_at, result: None };
            desk.submit(Report { node, scope, body: end }).await;
        });
        Ok(())
    }

    fn link(&self, node: &NodeId) -> Option<Link> {
        (node.as_str() == NODE).then(|| Link { id: 1, heard: SystemClock.boottime() })
    }

    fn linked(&self) -> Vec<NodeId> {
        vec![NodeId::new(NODE)]
    }

    fn links(&self) -> watch::Receiver<u64> {
        self.links.subscribe()
    }

    async fn inventory(&self, _: &NodeId) -> Option<Vec<Held>> {
        None
    }

    async fn stop(&self, _: &NodeId, _: AttemptId) {}
}
