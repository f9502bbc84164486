//! A small good history, written by hand: two shards, a failover, a retry, a clear, a cancel, a lost node, an
//! attempt that nobody claimed, nodes that are full, and a timetable.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_judge::history::{
    Aftermath, Answer, Asked, Call, Effect, End, Entry, Fault, FenceRow, History, Hit, Limits, Need, Place,
    Room, RunName, RunRow, Schedule, Start, TaskRow, TermRow, TrailRow, TryRow,
};

const ANNA: &str = "anna";
const BERT: &str = "bert";
const SHARD_3: &str = "scheduler/shard-03";
const SHARD_5: &str = "scheduler/shard-05";

pub fn good() -> History {
    let mut scribe = Scribe::new();
    scribe.plain_chain();
    scribe.side_by_side();
    scribe.flaky();
    scribe.cleared();
    scribe.cancelled();
    scribe.unclaimed_and_failover();
    scribe.lost_node();
    scribe.timetable();
    scribe.triggers_without_a_run();
    scribe.history.ended_at = scribe.now + SignedDuration::from_secs(60);
    scribe.history
}

struct Scribe {
    history: History,
    now: Timestamp,
    owner: Owner,
    attempts: u32,
}

/// Under whose authority the next rows are written.
#[derive(Clone, Copy)]
struct Owner {
    actor: &'static str,
    scope: &'static str,
    epoch: u64,
}

struct Task {
    run: RunName,
    task: &'static str,
    try_number: u32,
}

impl Scribe {
    fn new() -> Self {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let term = |scope: &str, epoch, holder: &str| TermRow {
            scope: scope.into(),
            epoch,
            term: format!("{scope}-{epoch}"),
            holder: holder.into(),
        };
        let fence = |scope: &str, epoch| FenceRow { scope: scope.into(), epoch };
        let history = History {
            terms: vec![term(SHARD_3, 1, ANNA), term(SHARD_5, 1, ANNA), term(SHARD_5, 2, BERT)],
            fences: vec![fence(SHARD_3, 1), fence(SHARD_5, 2)],
            rooms: vec![
                room(Place::Node("n1".into()), "tasks", 1),
                room(Place::Node("n2".into()), "tasks", 1),
                room(Place::Node("n3".into()), "tasks", 1),
                room(Place::Pool("default".into()), "slots", 2),
            ],
            needs: [("chain", "a"), ("chain", "b"), ("flaky", "f"), ("wide", "w")].map(need).into(),
            limits: Limits { silence: Duration::from_secs(5), ..Limits::default() },
            ..History::default()
        };
        let owner = Owner { actor: ANNA, scope: SHARD_3, epoch: 1 };
        Self { history, now, owner, attempts: 0 }
    }

    fn plain_chain(&mut self) {
        let run = self.triggered("chain", "r1");
        self.started(&run);
        for task in ["a", "b"] {
            let mut task = self.task(&run, task);
            self.runs_to(&mut task, "n1", 0);
        }
        self.finished(&run, "success");
    }

    /// On two nodes, which are full with that, and so is the pool.
    fn side_by_side(&mut self) {
        let run = self.triggered("chain", "r4");
        self.started(&run);
        let mut tasks = ["a", "b"].map(|task| self.task(&run, task));
        let mut attempts = vec![];
        for (task, node) in tasks.iter_mut().zip(["n1", "n2"]) {
            self.step(task, "scheduled", "none", "scheduled", None);
            attempts.push(self.placed_and_claimed(task, node));
        }
        for ((task, node), attempt) in tasks.iter_mut().zip(["n1", "n2"]).zip(&attempts) {
            self.ran(task, attempt, Some(0));
            self.ended(task, attempt, node, "succeeded", "success", None);
        }
        self.finished(&run, "success");
    }

    fn flaky(&mut self) {
        let run = self.triggered("flaky", "r1");
        self.started(&run);
        let mut task = self.task(&run, "f");
        self.step(&mut task, "scheduled", "none", "scheduled", None);
        let attempt = self.placed_and_claimed(&mut task, "n1");
        self.ran(&task, &attempt, Some(1));
        self.ended(&mut task, &attempt, "n1", "failed", "up_for_retry", Some("exit code 1"));
        self.retried(&mut task, &attempt);
        let attempt = self.placed_and_claimed(&mut task, "n1");
        self.ran(&task, &attempt, Some(0));
        self.ended(&mut task, &attempt, "n1", "succeeded", "success", None);
        self.finished(&run, "success");
    }

    fn cleared(&mut self) {
        let run = self.triggered("chain", "r2");
        self.started(&run);
        let mut task = self.task(&run, "a");
        self.runs_to(&mut task, "n1", 0);
        self.finished(&run, "success");
        let sent_at = self.later();
        let cleared = Entry { task: Some("a".into()), ..entry("cleared", "success", "none") };
        self.user(&run, vec![cleared, entry("cleared", "success", "queued")]);
        self.call(&run, Asked::Clear { cleared: 1 }, sent_at, Answer::Acknowledged);
        self.set_run(&run, "queued");
        self.started(&run);
        let before = self.history.tasks.last().unwrap().attempt.clone();
        self.history.tries.push(TryRow {
            run: run.clone(),
            task: "a".into(),
            try_number: 1,
            attempt: before,
        });
        task.try_number = 2;
        self.runs_to(&mut task, "n2", 0);
        self.finished(&run, "success");
    }

    fn cancelled(&mut self) {
        let run = self.triggered("chain", "r3");
        self.started(&run);
        let mut task = self.task(&run, "a");
        self.step(&mut task, "scheduled", "none", "scheduled", None);
        let attempt = self.placed_and_claimed(&mut task, "n1");
        self.ran(&task, &attempt, None);
        let sent_at = self.later();
        let marked = Entry {
            task: Some("a".into()),
            attempt: Some(attempt),
            node: Some("n1".into()),
            ..entry("marked", "running", "failed")
        };
        self.user(&run, vec![marked, entry("marked", "running", "failed")]);
        self.call(&run, Asked::End { state: "failed".into() }, sent_at, Answer::Acknowledged);
        self.set_task(&task, "failed");
        self.set_run(&run, "failed");
    }

    /// Placed by an owner that dies; its successor takes the attempt back and places it anew.
    fn unclaimed_and_failover(&mut self) {
        self.owner = Owner { actor: ANNA, scope: SHARD_5, epoch: 1 };
        let run = self.triggered("wide", "r1");
        self.started(&run);
        let mut task = self.task(&run, "w");
        self.step(&mut task, "scheduled", "none", "scheduled", None);
        let attempt = self.placed(&mut task, "n1");
        let at = self.later();
        let hit = Hit { scope: SHARD_5.into(), epoch: 1, deposed: true };
        self.fault("kill-owner", ANNA, at, &[], vec![hit]);
        let waiting = self.triggered("wide", "r1b");
        self.owner = Owner { actor: BERT, scope: SHARD_5, epoch: 2 };
        self.started(&waiting);
        let mut first = self.task(&waiting, "w");
        self.runs_to(&mut first, "n3", 0);
        self.finished(&waiting, "success");
        self.ended(&mut task, &attempt, "n1", "withdrawn", "scheduled", Some("not claimed in time"));
        let attempt = self.placed_and_claimed(&mut task, "n3");
        self.ran(&task, &attempt, Some(0));
        self.ended(&mut task, &attempt, "n3", "succeeded", "success", None);
        self.finished(&run, "success");
    }

    fn lost_node(&mut self) {
        let run = self.triggered("wide", "r2");
        self.started(&run);
        let mut task = self.task(&run, "w");
        self.step(&mut task, "scheduled", "none", "scheduled", None);
        let attempt = self.placed_and_claimed(&mut task, "n2");
        self.ran(&task, &attempt, None);
        let at = self.later();
        self.fault("node-crash", "n2", at, &["n2"], vec![]);
        self.ended(&mut task, &attempt, "n2", "failed", "up_for_retry", Some("lost: its supervisor is gone"));
        self.retried(&mut task, &attempt);
        let attempt = self.placed_and_claimed(&mut task, "n3");
        self.ran(&task, &attempt, Some(0));
        self.ended(&mut task, &attempt, "n3", "succeeded", "success", None);
        self.finished(&run, "success");
    }

    fn timetable(&mut self) {
        let first = self.now;
        for _ in 0..3 {
            let date = self.now;
            let run = RunName::new("ticks", format!("scheduled__{date}"));
            self.created(&run, Some(date), None);
            self.started(&run);
            self.finished(&run, "success");
            self.now = date + SignedDuration::from_secs(40);
        }
        self.history.schedules.push(Schedule {
            dag: "ticks".into(),
            first,
            every: Duration::from_secs(40),
            until: first + SignedDuration::from_secs(100),
        });
        // The tick that falls due at the very end need not have its run yet.
        self.now -= SignedDuration::from_secs(50);
    }

    fn triggers_without_a_run(&mut self) {
        for (name, answer) in [("never-seen", Answer::Unknown), ("refused", Answer::Refused)] {
            let sent_at = self.later();
            self.call(&RunName::new("chain", name), Asked::Trigger { key: name.into() }, sent_at, answer);
        }
    }

    fn later(&mut self) -> Timestamp {
        self.now += SignedDuration::from_millis(10);
        self.now
    }

    fn triggered(&mut self, dag: &str, id: &str) -> RunName {
        let run = RunName::new(dag, id);
        let sent_at = self.later();
        let key = format!("{dag}-{id}");
        self.created(&run, None, Some(key.clone()));
        self.call(&run, Asked::Trigger { key }, sent_at, Answer::Acknowledged);
        run
    }

    fn created(&mut self, run: &RunName, logical_date: Option<Timestamp>, key: Option<String>) {
        let shard = self.owner.scope.rsplit_once('-').unwrap().1.parse().unwrap();
        self.history.runs.push(RunRow {
            name: run.clone(),
            shard,
            state: "queued".into(),
            scheduled: key.is_none(),
            logical_date,
            idempotency_key: key,
        });
        self.user(run, vec![entry("created", "", "queued")]);
    }

    fn started(&mut self, run: &RunName) {
        self.pass(run, vec![entry("started", "queued", "running")]);
        self.set_run(run, "running");
    }

    fn finished(&mut self, run: &RunName, state: &str) {
        self.pass(run, vec![entry("finished", "running", state)]);
        self.set_run(run, state);
    }

    fn task(&mut self, run: &RunName, task: &'static str) -> Task {
        let row = TaskRow {
            run: run.clone(),
            task: task.into(),
            state: "none".into(),
            try_number: 1,
            attempt: None,
        };
        self.history.tasks.push(row);
        Task { run: run.clone(), task, try_number: 1 }
    }

    fn runs_to(&mut self, task: &mut Task, node: &str, code: i32) {
        // Scheduled and placed in one pass, as it mostly is.
        self.attempts += 1;
        let attempt = format!("0000-{:04}", self.attempts);
        let scheduled = self.entry_of(task, "scheduled", "none", "scheduled");
        let bound = Entry {
            attempt: Some(attempt.clone()),
            node: Some(node.into()),
            ..self.entry_of(task, "bound", "scheduled", "queued")
        };
        self.pass(&task.run.clone(), vec![scheduled, bound]);
        self.set_task(task, "queued");
        self.ended(task, &attempt, node, "claimed", "running", None);
        self.ran(task, &attempt, Some(code));
        self.ended(task, &attempt, node, "succeeded", "success", None);
    }

    fn placed(&mut self, task: &mut Task, node: &str) -> String {
        self.attempts += 1;
        let attempt = format!("0000-{:04}", self.attempts);
        self.ended(task, &attempt, node, "bound", "queued", None);
        attempt
    }

    fn placed_and_claimed(&mut self, task: &mut Task, node: &str) -> String {
        let attempt = self.placed(task, node);
        self.ended(task, &attempt, node, "claimed", "running", None);
        attempt
    }

    fn retried(&mut self, task: &mut Task, attempt: &str) {
        self.history.tries.push(TryRow {
            run: task.run.clone(),
            task: task.task.into(),
            try_number: task.try_number,
            attempt: Some(attempt.into()),
        });
        task.try_number += 1;
        self.step(task, "retried", "up_for_retry", "scheduled", None);
    }

    /// A process that begins now and ends a little later, or is killed.
    fn ran(&mut self, task: &Task, attempt: &str, code: Option<i32>) {
        let start = Start { at: self.later(), run: task.run.clone(), task: task.task.into() };
        let seen_at = self.later();
        let end = code.map(|code| End { at: seen_at, code });
        self.history.effects.push(Effect { attempt: attempt.into(), starts: vec![start], seen_at, end });
    }

    /// A step of an attempt, from wherever its task is now. Ends are sometimes written by another replica.
    fn ended(
        &mut self,
        task: &mut Task,
        attempt: &str,
        node: &str,
        event: &str,
        to: &str,
        reason: Option<&str>,
    ) {
        let from = self.row(task).state.clone();
        let entry = Entry {
            attempt: Some(attempt.into()),
            node: Some(node.into()),
            reason: reason.map(Into::into),
            ..self.entry_of(task, event, &from, to)
        };
        if event == "succeeded" && self.attempts.is_multiple_of(2) {
            self.user(&task.run.clone(), vec![entry]);
        } else {
            self.pass(&task.run.clone(), vec![entry]);
        }
        self.set_task(task, to);
        self.row(task).attempt = Some(attempt.into());
    }

    fn step(&mut self, task: &mut Task, event: &str, from: &str, to: &str, reason: Option<&str>) {
        let entry = Entry { reason: reason.map(Into::into), ..self.entry_of(task, event, from, to) };
        self.pass(&task.run.clone(), vec![entry]);
        self.set_task(task, to);
    }

    fn entry_of(&self, task: &Task, event: &str, from: &str, to: &str) -> Entry {
        Entry { task: Some(task.task.into()), try_number: Some(task.try_number), ..entry(event, from, to) }
    }

    fn row(&mut self, task: &Task) -> &mut TaskRow {
        let found = |row: &&mut TaskRow| row.run == task.run && row.task == task.task;
        self.history.tasks.iter_mut().find(found).unwrap()
    }

    fn set_task(&mut self, task: &Task, state: &str) {
        let try_number = task.try_number;
        let row = self.row(task);
        (row.state, row.try_number) = (state.into(), try_number);
    }

    fn set_run(&mut self, run: &RunName, state: &str) {
        self.history.runs.iter_mut().find(|row| row.name == *run).unwrap().state = state.into();
    }

    fn pass(&mut self, run: &RunName, entries: Vec<Entry>) {
        let Owner { actor, scope, epoch } = self.owner;
        self.write(run, actor, Some((scope, epoch)), entries);
    }

    fn user(&mut self, run: &RunName, entries: Vec<Entry>) {
        self.write(run, "admin", None, entries);
    }

    fn write(&mut self, run: &RunName, actor: &str, authority: Option<(&str, u64)>, entries: Vec<Entry>) {
        let committed_at = self.later();
        self.history.trail.push(TrailRow {
            seq: self.history.trail.len() as i64 * 2 + 1,
            committed_at,
            run: Some(run.clone()),
            actor: actor.into(),
            scope: authority.map(|(scope, _)| scope.into()),
            epoch: authority.map(|(_, epoch)| epoch),
            entries,
        });
    }

    fn call(&mut self, run: &RunName, what: Asked, sent_at: Timestamp, answer: Answer) {
        let answered_at = self.later();
        self.history.calls.push(Call { what, run: run.clone(), sent_at, answered_at, answer });
    }

    fn fault(&mut self, name: &str, target: &str, at: Timestamp, silenced: &[&str], hit: Vec<Hit>) {
        let silenced = silenced.iter().map(ToString::to_string).collect();
        let until = at + SignedDuration::from_millis(50);
        let bound = Duration::from_secs(5);
        let aftermath = Aftermath::Whole { at: until };
        self.history.faults.push(Fault {
            name: name.into(),
            target: target.into(),
            at,
            until,
            silenced,
            hit,
            bound,
            aftermath,
        });
    }
}

fn room(of: Place, name: &str, has: u64) -> Room {
    Room { of, has: [(name.to_owned(), has)].into() }
}

fn need((dag, task): (&str, &str)) -> Need {
    Need {
        dag: dag.into(),
        task: task.into(),
        of_node: [("tasks".to_owned(), 1)].into(),
        pool: "default".into(),
        of_pool: [("slots".to_owned(), 1)].into(),
    }
}

fn entry(event: &str, from: &str, to: &str) -> Entry {
    Entry { event: event.into(), from: from.into(), to: to.into(), ..Entry::default() }
}
