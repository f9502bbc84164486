//! One pass: read what is new, decide, write once, act.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tenure_dispatch::Place;
use tenure_lease::NotLeading;
use tenure_model::{
    Ack, AttemptId, NewRun, NodeId, RunKey, RunState, RunType, TaskEvent, TaskId, TaskState, TiKey,
};
use tenure_planner::{Changes, Past};
use tenure_store::{Attention, NewRunOutcome, RunSnapshot, ScheduleChange, StoreError};

use crate::changes::PassBuilder;
use crate::dags::DagNo;
use crate::isolation::Step;
use crate::ledger::Limit;
use crate::metrics::{ShardLabel, StateLabel};
use crate::owner::ShardOwner;
use crate::reports::Answer;

/// Attention rows read at once; more wait for the next pass, which follows immediately.
const ATTENTION_BATCH: u32 = 500;
/// Runs the timetable of one dag creates in a pass.
const CREATED_PER_DAG: usize = 25;
/// Queued runs read and started in a pass.
const STARTED_PER_PASS: usize = 200;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a pass leaves to do.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PassReport {
    /// Another pass would find work now.
    pub again: bool,
    pub committed: bool,
    /// Nothing was left out for the sake of the rest.
    pub whole: bool,
}

impl ShardOwner {
    /// `look`: also ask the database what others have changed.
    pub async fn pass(&mut self, look: bool) -> Result<PassReport, PassError> {
        let started = self.deps.clock.boottime();
        let now = self.deps.clock.now();
        let mut report = PassReport { whole: !self.carried.cautious, ..PassReport::default() };
        let mut builder = PassBuilder::new(now, &self.deps.config.actor);

        let mut mail = self.inbox.drain();
        mail.reports.splice(0..0, std::mem::take(&mut self.doubted));
        if look {
            report.again |= self.attend(&mut builder, now).await?;
        }
        self.load_reported(&mail.reports);
        self.load_stale(now).await?;
        let answers = self.apply_reports(mail.reports, &mut builder, now);
        report.again |= !self.doubted.is_empty();
        for inventory in mail.inventories {
            self.compare_inventory(inventory, &mut builder, now).await?;
        }
        for (node, held) in mail.found {
            self.stop_unwanted(node, held, &mut builder).await?;
        }
        if look {
            self.meet_nodes();
            self.empty_drained(&mut builder, now);
            if self.watch.is_round_due(self.deps.clock.boottime(), self.deps.config.tick) {
                self.reap_silent(now).await?;
                self.leave_missing(&mut builder, now).await?;
            }
            self.see_leavers_off(&mut builder).await?;
            self.make_room(&mut builder, now);
            self.reap_orphans(now).await?;
        }
        self.withdraw_unclaimed(&mut builder, now);
        self.wake_runs(now);
        report.again |= self.create_and_start(&mut builder, now).await?;
        self.plan_touched(&mut builder, now).await?;
        self.bind_ready(&mut builder, now);
        self.tell_parked(&mut builder);

        report.committed = self.commit(&mut builder, answers, now, &mut report.again).await?;
        report.again |= match self.knows_what_is_taken() {
            true => self.trade().await?,
            false => true,
        };
        self.deps.metrics.passes.inc();
        self.deps
            .metrics
            .pass_seconds
            .observe(self.deps.clock.boottime().saturating_since(started).as_secs_f64());
        Ok(report)
    }

    /// What users and other replicas have changed.
    async fn attend(&mut self, builder: &mut PassBuilder, now: Timestamp) -> Result<bool, PassError> {
        let look = self.deps.store.attention(self.shard, ATTENTION_BATCH).await?;
        let more = look.items.len() as u32 == ATTENTION_BATCH;
        let unknown = look.items.iter().any(|item| item.what == Attention::Unknown);
        self.keep_up_with(look.limits, unknown).await?;
        for item in look.items {
            builder.pass.attended.push(item.seq);
            match item.what {
                Attention::Run { run } => {
                    self.stale.insert(run);
                }
                Attention::Dag { tenant, dag } => {
                    let number = self.dags.number(&tenant, &dag);
                    self.forget_graphs(number);
                    match self.deps.store.load_dag(&tenant, &dag).await? {
                        Some(schedule) => self.load_and_install_dag(schedule).await?,
                        None => self.dags.get_mut(number).plan = None,
                    }
                    if !self.dags.get(number).is_paused() {
                        self.ready.free(Limit::Paused(number));
                    }
                    self.dags.reschedule(number, now);
                }
                // The row has moved on already, whatever becomes of this pass.
                Attention::Stop { node, attempt } => self.ended_by_user(node, attempt),
                Attention::Shares { of, given_back: true } => {
                    self.trades.offer(of, self.deps.clock.boottime());
                }
                Attention::Shares { of, given_back: false } => {
                    self.trades.press(of, self.deps.clock.boottime());
                }
                // From a release that told in this way that the limits have changed.
                Attention::Unknown => {}
            }
        }
        Ok(more)
    }

    /// A run that is to be read anew, or to be failed, may occupy what is not in the books meanwhile.
    fn knows_what_is_taken(&self) -> bool {
        self.stale.is_empty() && self.poisoned.is_empty()
    }

    /// Until there are none: one that is gone makes those that depend on it stale.
    pub(crate) async fn load_stale(&mut self, now: Timestamp) -> Result<(), PassError> {
        while !self.stale.is_empty() {
            self.load_stale_once(now).await?;
        }
        Ok(())
    }

    async fn load_stale_once(&mut self, now: Timestamp) -> Result<(), PassError> {
        let keys: Vec<RunKey> = std::mem::take(&mut self.stale).into_iter().collect();
        let loaded = self.deps.store.load_runs(&keys).await?;
        let mut gone: BTreeSet<RunKey> = keys.into_iter().collect();
        for (run, what) in loaded.unreadable {
            gone.remove(&run);
            self.evict(run);
            self.park_unreadable(run, what);
        }
        for snapshot in loaded.runs {
            let header = &snapshot.header;
            gone.remove(&header.key);
            if header.shard != self.shard {
                self.elsewhere.insert(header.key);
                continue;
            }
            if self.runs.get(&header.key).is_some_and(|cached| cached.header.revision == header.revision) {
                continue; // news about something we have seen, or done, ourselves
            }
            let number = self.dags.number(&header.tenant, &header.dag);
            self.evict(header.key);
            self.dags.forget_run(number, header.key);
            self.tell_dependents(header.key, number, || {
                snapshot.tis.iter().map(|cached| (cached.task_id.clone(), cached.ti.state)).collect()
            });
            self.is_named(&snapshot);
            let header = &snapshot.header;
            match header.state {
                RunState::Queued => {
                    self.install_queued(&snapshot.header);
                    self.preloaded.insert(snapshot.header.key, snapshot);
                }
                RunState::Running => self.install(snapshot).await?,
                RunState::Success | RunState::Failed => {}
            }
            self.dags.reschedule(number, now);
        }
        for key in gone {
            self.forget_deleted(key, now);
        }
        Ok(())
    }

    /// A run that is no longer in the database: nobody waits for it, and nobody depends on it any more.
    fn forget_deleted(&mut self, key: RunKey, now: Timestamp) {
        self.evict(key);
        self.dags.forget_everywhere(key);
        let dependents = self.runs.iter().filter(|(_, run)| run.past == Some(key)).map(|(run, _)| *run);
        let dependents: Vec<RunKey> = dependents.collect();
        for dependent in dependents {
            self.evict(dependent);
            self.stale.insert(dependent);
        }
        for dag in self.dags.numbers() {
            self.dags.reschedule(dag, now);
        }
    }

    fn wake_runs(&mut self, now: Timestamp) {
        let due = self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, run)| *run);
        self.touched.extend(due.collect::<Vec<_>>());
    }

    /// Due ticks become runs; queued runs start while their dag has room.
    async fn create_and_start(
        &mut self,
        builder: &mut PassBuilder,
        now: Timestamp,
    ) -> Result<bool, PassError> {
        let mut starting = vec![];
        let due = self.dags.take_due(now);
        let cautious = std::mem::take(&mut self.carried.cautious);
        for &number in &due {
            if !cautious {
                self.create_due(number, builder, now);
            }
            starting.extend(self.dags.get(number).startable(now));
        }
        let more = starting.len() > STARTED_PER_PASS;
        starting.truncate(STARTED_PER_PASS);
        let mut snapshots: Vec<_> = starting.iter().filter_map(|run| self.preloaded.remove(run)).collect();
        self.preloaded.clear();
        starting.retain(|run| snapshots.iter().all(|snapshot| snapshot.header.key != *run));
        if !starting.is_empty() {
            let loaded = self.deps.store.load_runs(&starting).await?;
            snapshots.extend(loaded.runs);
            for (run, what) in loaded.unreadable {
                self.park_unreadable(run, what);
            }
        }
        for snapshot in snapshots {
            starting.retain(|run| *run != snapshot.header.key);
            self.start(snapshot, now).await?;
        }
        // Gone from the database: waiting for them would never end.
        for (run, dag) in starting.iter().flat_map(|run| due.iter().map(move |dag| (*run, *dag))) {
            self.dags.forget_run(dag, run);
        }
        let more = more || (cautious && !due.is_empty());
        for number in due {
            self.dags.reschedule(number, now);
        }
        Ok(more)
    }

    fn create_due(&mut self, number: DagNo, builder: &mut PassBuilder, now: Timestamp) {
        let dag = self.dags.get_mut(number);
        let room = dag.room_to_create(now).min(CREATED_PER_DAG);
        let Some(plan) = &mut dag.plan else { return };
        for _ in 0..room {
            let Some(due) = plan.next_due(now).filter(|due| due.run_after <= now) else { break };
            let late = now.duration_since(due.run_after).as_secs_f64().max(0.0);
            self.deps.metrics.lateness_seconds.observe(late);
            builder.pass.new_runs.push(NewRun {
                tenant: dag.tenant.clone(),
                dag: dag.dag.clone(),
                run_id: RunType::Scheduled.run_id(due.run_after),
                run_type: RunType::Scheduled,
                logical_date: Some(due.logical_date),
                data_interval: Some(due.data_interval),
                run_after: due.run_after,
                conf: serde_json::json!({}),
                note: None,
                triggered_by: "timetable".into(),
                idempotency_key: None,
            });
            plan.schedule.progress.last_tick = Some(due.run_after);
            builder.pass.schedules.retain(|change| (&change.tenant, &change.dag) != (&dag.tenant, &dag.dag));
            builder.pass.schedules.push(ScheduleChange {
                tenant: dag.tenant.clone(),
                dag: dag.dag.clone(),
                last_tick: due.run_after,
                next_tick: plan.next_due(now).map(|next| next.run_after),
            });
        }
    }

    async fn start(&mut self, snapshot: RunSnapshot, now: Timestamp) -> Result<(), PassError> {
        let key = snapshot.header.key;
        let number = self.dags.number(&snapshot.header.tenant, &snapshot.header.dag);
        self.dags.forget_run(number, key);
        if snapshot.header.state != RunState::Queued {
            self.stale.insert(key); // somebody has moved it; its attention row is on the way
            return Ok(());
        }
        self.install(snapshot).await?;
        if self.with_plan(key, Step::Start, |plan| plan.start(now)).is_some() {
            self.dags.get_mut(number).active.insert(key);
        }
        Ok(())
    }

    /// Plans every run that something has happened to, each in isolation.
    async fn plan_touched(&mut self, builder: &mut PassBuilder, now: Timestamp) -> Result<(), PassError> {
        loop {
            if let Some(key) = self.touched.pop_first() {
                self.with_plan(key, Step::Plan, |plan| plan.plan(now));
                self.absorb(key, builder);
                self.set_wake(key);
            } else if let Some((key, why)) = self.poisoned.pop_first() {
                self.fail_poisoned(key, &why, builder, now).await?;
            } else {
                return Ok(());
            }
        }
    }

    /// Takes a run's changes into the transaction and lets their consequences take effect in memory.
    pub(crate) fn absorb(&mut self, key: RunKey, builder: &mut PassBuilder) {
        let Some(run) = self.runs.get_mut(&key) else { return };
        let changes = run.plan.take_changes();
        if changes.is_empty() {
            return;
        }
        let (dag, revision) = (run.dag, run.header.revision);
        self.follow(key, &changes, builder);
        let run = &self.runs[&key];
        builder.add(key, revision, &run.plan, changes);
        if run.plan.graph().depends_on_past() {
            let states = run.plan.states_by_task();
            self.tell_dependents(key, dag, || states);
        }
    }

    fn follow(&mut self, key: RunKey, changes: &Changes, builder: &mut PassBuilder) {
        for step in &changes.steps {
            let ti = TiKey::unmapped(key, step.task);
            let entered = StateLabel { state: step.to.to_string() };
            self.deps.metrics.task_transitions.get_or_create(&entered).inc();
            if let (TaskEvent::Fail { .. }, Some(node)) = (step.event, &step.node) {
                self.ledger.note_failure(node, builder.pass.at);
            }
            if step.from.is_bound() && !step.to.is_bound() {
                self.give_back(ti);
                if step.event == TaskEvent::RunEnded
                    && let (Some(node), Some(attempt)) = (&step.node, step.attempt)
                {
                    builder.stops.push((node.clone(), attempt));
                }
            }
            if step.from == TaskState::Scheduled
                && step.to != TaskState::Queued
                && let Some(wish) = self.wish(key, step.task)
            {
                self.ready.remove(&self.candidate(key, step.task), &self.ledger.limits_of(ti, &wish));
            }
            if step.to == TaskState::Scheduled {
                self.ready.push(self.candidate(key, step.task));
            }
        }
    }

    /// Later runs of the dag may have waited for what this one has come to.
    fn tell_dependents(
        &mut self,
        key: RunKey,
        dag: DagNo,
        states: impl FnOnce() -> BTreeMap<TaskId, TaskState>,
    ) {
        let waits = |run: &RunKey| self.runs.get(run).is_some_and(|run| run.past == Some(key));
        let dependents: Vec<RunKey> = self.dags.get(dag).active.iter().copied().filter(waits).collect();
        if dependents.is_empty() {
            return;
        }
        let past = Past::Run(states());
        for dependent in dependents {
            let run = self.runs.get_mut(&dependent).expect("it was just found");
            run.plan.set_past(past.clone());
            self.touched.insert(dependent);
        }
    }

    /// Gives places to ready tasks while the dispatch pool has room.
    fn bind_ready(&mut self, builder: &mut PassBuilder, now: Timestamp) {
        self.ledger.advance(now);
        let mut place = None;
        while self.knows_what_is_taken() {
            self.ready.promote(|limit| self.ledger.room(limit));
            let Some(candidate) = self.ready.pop() else {
                if self.ready.refill(|limit| self.ledger.room(limit)) {
                    continue;
                }
                break;
            };
            let (key, task) = (candidate.run, candidate.task);
            let waits = self.runs.get(&key).filter(|run| run.plan.state() == RunState::Running);
            if waits.and_then(|run| run.plan.task(task)).is_none_or(|ti| ti.state != TaskState::Scheduled) {
                continue; // stale entry
            }
            if self.dags.get(candidate.dag).is_paused() {
                self.ready.park(Limit::Paused(candidate.dag), candidate);
                continue;
            }
            let ti = TiKey::unmapped(key, task);
            if self.leavers.holds_up(ti) {
                self.ready.park(Limit::Leaving(ti), candidate);
                continue;
            }
            let Some(wish) = self.wish(key, task) else { continue };
            let Some(taken) = place.take().or_else(|| self.deps.dispatch.place()) else {
                self.ready.push(candidate);
                self.deps.dispatch.was_full();
                break;
            };
            match self.ledger.take(ti, wish) {
                Ok(node) => self.bind(ti, node, taken, builder, now),
                Err(limit) => {
                    self.ready.park(limit, candidate);
                    place = Some(taken);
                }
            }
        }
    }

    fn bind(&mut self, ti: TiKey, node: NodeId, place: Place, builder: &mut PassBuilder, now: Timestamp) {
        let attempt = AttemptId(self.deps.entropy.uuid(now));
        // It is linked, or it would be no place. Before it had anything of this shard nobody took note of that, and should
        // the link break before the next look, its silence counts from here and not from the takeover.
        self.watch.hear(&node, self.deps.clock.boottime());
        if let Some(link) = self.deps.dispatch.executor().link(&node) {
            self.watch.use_node(&node, link.id);
        }
        if self.with_plan(ti.run, Step::Bind, |plan| plan.bind(ti.task, attempt, node, now)).is_none() {
            return; // what it took is free again
        }
        self.expect_claim(ti, attempt, now);
        self.absorb(ti.run, builder);
        builder.bindings.extend(self.binding(ti.run, ti.task).map(|binding| (binding, place)));
    }

    /// Writes the pass, then lets the world know.
    pub(crate) async fn commit(
        &mut self,
        builder: &mut PassBuilder,
        answers: Vec<Answer>,
        now: Timestamp,
        again: &mut bool,
    ) -> Result<bool, PassError> {
        let pass = builder.finish();
        let mut conflicts = vec![];
        let committed = !pass.is_empty();
        if committed {
            let started = self.deps.clock.boottime();
            let guard = self.tenure.guard()?;
            let outcome = self.deps.store.commit_pass(&guard, pass).await?;
            let took = self.deps.clock.boottime().saturating_since(started);
            self.deps.metrics.commit_seconds.observe(took.as_secs_f64());
            conflicts = outcome.conflicts;
            self.settle(builder, &conflicts, outcome.created, now, again);
        }
        let failed = std::mem::take(&mut self.failed);
        let poisoned = &self.poisoned;
        let lost =
            |run: &RunKey| conflicts.contains(run) || failed.contains(run) || poisoned.contains_key(run);
        for Answer { envelope, ack, run } in answers {
            envelope.acknowledge(if lost(&run) { Ack::Retry } else { ack });
        }
        for binding in std::mem::take(&mut self.reoffer) {
            let place = self.deps.dispatch.extra_place();
            self.deps.dispatch.offer(binding, place);
        }
        for (binding, place) in std::mem::take(&mut builder.bindings) {
            if !lost(&binding.ti.run) {
                self.deps.dispatch.offer(binding, place);
            }
        }
        for (node, attempt) in std::mem::take(&mut builder.stops) {
            self.deps.dispatch.stop(node, attempt);
        }
        Ok(committed)
    }

    /// Memory follows what is now in the database.
    fn settle(
        &mut self,
        builder: &PassBuilder,
        conflicts: &[RunKey],
        created: Vec<NewRunOutcome>,
        now: Timestamp,
        again: &mut bool,
    ) {
        for change in &builder.pass.runs {
            let key = change.run;
            if conflicts.contains(&key) {
                self.deps.metrics.conflicts.inc();
                self.evict(key);
                self.stale.insert(key);
                *again = true;
                continue;
            }
            let Some(run) = self.runs.get_mut(&key) else { continue };
            run.header.revision += 1;
            run.header.state = run.plan.state();
            if run.header.state.is_finished() {
                let label = StateLabel { state: run.header.state.to_string() };
                self.deps.metrics.runs_finished.get_or_create(&label).inc();
                let dag = run.dag;
                self.evict(key);
                self.dags.reschedule(dag, now);
                *again |= self.dags.next_agenda().is_some_and(|at| at <= now);
            }
        }
        for outcome in created {
            if let NewRunOutcome::Created(header) = outcome {
                let number = self.dags.number(&header.tenant, &header.dag);
                self.install_queued(&header);
                self.dags.reschedule(number, now);
                *again = true;
            }
        }
        let active = self.deps.metrics.active_runs.get_or_create(&ShardLabel::of(self.shard));
        active.set(self.runs.len() as i64);
    }
}
