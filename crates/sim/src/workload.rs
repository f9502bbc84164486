//! What the cluster has to do, and the users who change their minds about it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tenure_clock::Clock;
use tenure_judge::history::{Answer, Asked, Call, Need, RunName, Schedule};
use tenure_model::{
    DagSpec, NewRun, NodeId, OnDisconnect, Resources, RunState, RunType, Schedule as Timetable, TaskKind,
    TaskSpec, TaskState, TenantId, TriggerRule,
};
use tenure_store::{
    ClearRequest, ClearSelection, DagRegistration, IntentStore, PoolRecord, StoreError, Trigger,
};

use tokio_util::task::TaskTracker;

use crate::dice::Dice;
use crate::replica::Replica;
use crate::time::GENESIS;
use crate::world::World;

pub const TICKS: &str = "ticks";
const TICK_EVERY: Duration = Duration::from_secs(240);
/// A client that gets no answer goes on asking for so long.
const LAST_TRIES: Duration = Duration::from_secs(600);

pub struct Workload {
    world: Arc<World>,
    dice: Dice,
    dags: Vec<String>,
    calls: Mutex<Vec<Call>>,
    drained: Mutex<BTreeSet<usize>>,
    /// Tasks that must not run on without contact.
    pub fenced: Vec<(String, String)>,
    /// What each task takes up.
    pub needs: Vec<Need>,
}

impl Workload {
    /// Dags that the seed has drawn, registered before anything breaks.
    pub async fn set_up(world: &Arc<World>, dice: &Dice, ticking: Duration) -> Self {
        let mut workload = Self {
            world: Arc::clone(world),
            dice: dice.child(),
            dags: vec![],
            calls: Mutex::default(),
            drained: Mutex::default(),
            fenced: vec![],
            needs: vec![],
        };
        if let Some(pool) = &world.rooms.pool {
            world.store.put_pool(&by_setup(), pool).await.expect("a world without faults yet");
        }
        for number in 0..4 + workload.dice.below(4) {
            let spec = workload.random_dag(&format!("dag-{number}"));
            let of_dag = spec.tasks.iter().filter(|task| task.on_disconnect == OnDisconnect::Stop);
            let fenced: Vec<_> = of_dag.map(|task| (spec.id.to_string(), task.id.to_string())).collect();
            workload.fenced.extend(fenced);
            workload.dags.push(spec.id.to_string());
            workload.register(spec).await;
        }
        let mut ticks = DagSpec::new(TICKS, vec![work_task("t", 2_000, 0)]);
        ticks.schedule = Timetable::Every { interval: TICK_EVERY };
        ticks.start_date = Some(GENESIS);
        ticks.end_date = Some(GENESIS + ticking);
        ticks.catchup = true;
        ticks.max_active_runs = 100;
        workload.register(ticks).await;
        workload
    }

    pub fn schedule(&self, ticking: Duration) -> Schedule {
        Schedule { dag: TICKS.into(), first: GENESIS, every: TICK_EVERY, until: GENESIS + ticking }
    }

    fn random_dag(&self, id: &str) -> DagSpec {
        let dice = &self.dice;
        let mut tasks: Vec<TaskSpec> = vec![];
        for number in 0..1 + dice.below(6) {
            let takes = dice.spread(Duration::from_millis(100), self.world.rooms.longest_task());
            let fails = if dice.chance(25.0) { 1 + dice.below(2) } else { 0 };
            let mut task = work_task(&format!("t{number}"), takes.as_millis() as u64, fails as u32);
            if number > 0 && dice.chance(10.0) {
                task.kind = TaskKind::Empty;
            }
            task.needs = tasks.iter().filter(|_| dice.chance(50.0)).map(|task| task.id.clone()).collect();
            task.trigger_rule =
                *dice.pick(&[TriggerRule::AllSuccess, TriggerRule::AllSuccess, TriggerRule::AllDone]);
            task.retries = dice.below(4) as u32;
            task.retry_delay = dice.between(Duration::from_secs(1), Duration::from_secs(10));
            if dice.chance(30.0) {
                task.on_disconnect = OnDisconnect::Stop;
            }
            self.world.rooms.furnish(&mut task);
            tasks.push(task);
        }
        let mut spec = DagSpec::new(id, tasks);
        (spec.max_active_runs, spec.max_active_tasks) = (10_000, 1_000);
        spec
    }

    async fn register(&mut self, spec: DagSpec) {
        self.needs.extend(spec.tasks.iter().map(|task| need(&spec, task)));
        let registration = DagRegistration {
            trigger: by_setup(),
            spec,
            source: String::new(),
            origin: "sim".into(),
            paused_if_new: false,
        };
        self.world.store.register_dag(&registration).await.expect("a world without faults yet");
    }

    /// Triggers, clears and cancels for so long.
    pub async fn go_on(self: Arc<Self>, time: Duration) {
        let end = self.world.time.elapsed() + time;
        let asking = TaskTracker::new();
        for number in 0.. {
            tokio::time::sleep(self.dice.spread(Duration::from_secs(2), Duration::from_secs(90))).await;
            if self.world.time.elapsed() >= end {
                break;
            }
            let workload = Arc::clone(&self);
            let draw = self.dice.below(100);
            asking.spawn(async move {
                match draw {
                    0..60 => workload.trigger(number).await,
                    60..75 => workload.clear().await,
                    75..90 => workload.cancel().await,
                    _ => workload.drain().await,
                }
            });
        }
        // Whoever is still asking gets an answer, or gives up.
        asking.close();
        asking.wait().await;
    }

    /// One run, asked for under one key until there is an answer.
    async fn trigger(&self, number: u32) {
        let run = RunName::new(self.dice.pick(&self.dags).as_str(), format!("run-{number:04}"));
        let key = format!("{run}");
        let sent_at = self.world.time.now();
        let give_up = self.world.time.elapsed() + LAST_TRIES;
        let mut in_doubt = false;
        let answer = loop {
            let answer = match self.anyone() {
                None => Answer::Unknown,
                Some(replica) => {
                    let at = replica.clock.now();
                    let new = NewRun {
                        tenant: TenantId::default_tenant(),
                        dag: run.dag.as_str().into(),
                        run_id: run.run.as_str().into(),
                        run_type: RunType::Manual,
                        logical_date: None,
                        data_interval: None,
                        run_after: at,
                        conf: json!({}),
                        note: None,
                        triggered_by: "user".into(),
                        idempotency_key: Some(key.clone()),
                    };
                    let by = by_user(&replica);
                    judge(self.ask(&replica, replica.store.create_run(&by, &new)).await)
                }
            };
            if answer == Answer::Acknowledged || (answer == Answer::Refused && !in_doubt) {
                break answer;
            }
            in_doubt = true;
            if self.world.time.elapsed() > give_up {
                break Answer::Unknown;
            }
            tokio::time::sleep(self.dice.between(Duration::from_millis(100), Duration::from_secs(3))).await;
        };
        self.called(Asked::Trigger { key }, run, sent_at, answer);
    }

    async fn clear(&self) {
        let (Some(run), Some(replica)) = (self.recent(), self.anyone()) else { return };
        let request = ClearRequest {
            dag: run.dag.as_str().into(),
            run: run.run.as_str().into(),
            selection: ClearSelection::All,
            only_failed: self.dice.chance(30.0),
            only_running: false,
            upstream: false,
            downstream: false,
            past: false,
            future: false,
            reset_runs: true,
            latest_version: false,
            dry_run: false,
        };
        let sent_at = self.world.time.now();
        let by = by_user(&replica);
        let answered = self.ask(&replica, replica.store.clear(&by, &request)).await;
        // What nothing has happened to yet is in the answer and stays as it is.
        let touched = |cleared: &tenure_store::Cleared| {
            cleared.tis.iter().filter(|ti| ti.instance.state != TaskState::None).count()
        };
        let cleared = answered.as_ref().and_then(|answer| answer.as_ref().ok()).map_or(0, touched);
        self.called(Asked::Clear { cleared }, run, sent_at, judge(answered));
    }

    async fn cancel(&self) {
        let (Some(run), Some(replica)) = (self.recent(), self.anyone()) else { return };
        let sent_at = self.world.time.now();
        let (dag, run_id) = (run.dag.as_str().into(), run.run.as_str().into());
        let by = by_user(&replica);
        let ending = replica.store.set_run_state(&by, &dag, &run_id, RunState::Failed);
        let answered = self.ask(&replica, ending).await;
        self.called(Asked::End { state: "failed".into() }, run, sent_at, judge(answered));
    }

    /// Empties a node for a while.
    async fn drain(&self) {
        let machine = self.dice.pick(&self.world.machines);
        {
            // Somebody is always left: a cluster without a place goes on with nothing, whoever owns it.
            let mut drained = self.drained.lock().expect("no panic");
            if drained.len() + 1 >= self.world.machines.len() || !drained.insert(machine.number) {
                return;
            }
        }
        self.empty_for_a_while(&machine.node).await;
        self.drained.lock().expect("no panic").remove(&machine.number);
    }

    async fn empty_for_a_while(&self, node: &NodeId) {
        let grace = self.dice.spread(Duration::from_secs(1), Duration::from_secs(120));
        if let Some(replica) = self.anyone() {
            let by = by_user(&replica);
            let deadline = replica.clock.now() + SignedDuration::try_from(grace).expect("minutes");
            // Whether it was heard or not: both are lives that nodes have.
            let _ = self.ask(&replica, replica.store.drain_node(&by, node, deadline)).await;
        }
        tokio::time::sleep(grace + self.dice.spread(Duration::from_secs(5), Duration::from_secs(120))).await;
        for _ in 0..200 {
            if let Some(replica) = self.anyone() {
                let by = by_user(&replica);
                let undone = self.ask(&replica, replica.store.undrain_node(&by, node)).await;
                if matches!(undone, Some(Ok(_)) | Some(Err(StoreError::NotFound(_)))) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }

    /// `None`: the connection broke, or nobody answered in time.
    async fn ask<T>(&self, replica: &Replica, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = replica.gate.died() => None,
            answer = call => Some(answer),
            () = tokio::time::sleep(Duration::from_secs(30)) => None,
        }
    }

    fn anyone(&self) -> Option<Arc<Replica>> {
        self.world.replica(self.dice.below(self.world.replicas()))
    }

    fn called(&self, what: Asked, run: RunName, sent_at: jiff::Timestamp, answer: Answer) {
        let answered_at = self.world.time.now();
        self.world.event("user", "asks", "ok");
        self.calls.lock().expect("no panic").push(Call { what, run, sent_at, answered_at, answer });
    }

    fn recent(&self) -> Option<RunName> {
        let calls = self.calls.lock().expect("no panic");
        let triggers = calls
            .iter()
            .rev()
            .filter(|call| matches!(call.what, Asked::Trigger { .. }) && call.answer == Answer::Acknowledged);
        let recent: Vec<RunName> = triggers.take(6).map(|call| call.run.clone()).collect();
        (!recent.is_empty()).then(|| self.dice.pick(&recent).clone())
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("no panic").clone()
    }
}

fn work_task(id: &str, takes_ms: u64, fails: u32) -> TaskSpec {
    let argv = vec!["work".into(), takes_ms.to_string(), fails.to_string()];
    TaskSpec { grace: Duration::from_secs(1), ..TaskSpec::new(id, TaskKind::Exec { argv }) }
}

fn need(dag: &DagSpec, task: &TaskSpec) -> Need {
    let of_node = task.resources.clone().with(Resources::TASKS, 1_000);
    Need {
        dag: dag.id.to_string(),
        task: task.id.to_string(),
        of_node: of_node.0,
        pool: task.pool.to_string(),
        of_pool: [(PoolRecord::SLOTS.to_owned(), u64::from(task.pool_slots) * 1_000)].into(),
    }
}

/// Before anything breaks.
fn by_setup() -> Trigger {
    Trigger { tenant: TenantId::default_tenant(), actor: "user".into(), at: GENESIS }
}

fn by_user(replica: &Replica) -> Trigger {
    Trigger { tenant: TenantId::default_tenant(), actor: "user".into(), at: replica.clock.now() }
}

/// Only a clear word counts.
fn judge<T>(answered: Option<Result<T, StoreError>>) -> Answer {
    match answered {
        Some(Ok(_)) => Answer::Acknowledged,
        Some(Err(StoreError::Conflict(_) | StoreError::NotFound(_))) => Answer::Refused,
        Some(Err(_)) | None => Answer::Unknown,
    }
}
