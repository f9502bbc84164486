//! Goal: what an agent says to whoever does not own the run becomes the same row as in the owner's own pass, once,
//! and the owner notices.

use tenure_lease::Tenure;
use tenure_model::{
    Ack, AttemptId, FailReason, Outcome, Report, ReportBody, RunKey, RunState, TaskNo, TiKey,
};
use tenure_store::{Attention, RunSnapshot};

use crate::harness::{NODE, World, clear_of, key_of, now, pass_of, spec, states, tenant, ti, user, value};
use crate::{Fresh, Spoiled};

/// Reports about a task of a run as it was last seen.
struct Agent<'a> {
    run: &'a RunSnapshot,
    task: &'a str,
}

impl Agent<'_> {
    fn attempt(&self) -> AttemptId {
        ti(self.run, self.task).ti.attempt.expect("bound")
    }

    fn key(&self) -> TiKey {
        key_of(self.run.header.key, ti(self.run, self.task))
    }

    fn claim(&self) -> Report {
        report(ReportBody::Claim { attempt: self.attempt(), ti: self.key() })
    }

    fn end(&self, outcome: Outcome) -> Report {
        self.end_with(outcome, None)
    }

    fn end_with(&self, outcome: Outcome, result: Option<serde_json::Value>) -> Report {
        let (attempt, ti) = (self.attempt(), self.key());
        report(ReportBody::End { attempt, ti, outcome, ended_at: now(), result })
    }
}

fn agent<'a>(run: &'a RunSnapshot, task: &'a str) -> Agent<'a> {
    Agent { run, task }
}

fn report(body: ReportBody) -> Report {
    Report { node: NODE.into(), scope: "scheduler/shard-00".into(), body }
}

fn failed() -> Outcome {
    Outcome::Failed { reason: FailReason::Exit { code: 3 } }
}

async fn tell(world: &World, said: Report) -> Ack {
    let acks = world.store.record_reports(&[said], now()).await.expect("recorded");
    let [ack] = acks[..] else { panic!("one answer: {acks:?}") };
    ack
}

/// A running run of these tasks, all queued on the node; attention is attended to.
async fn queued(world: &World, dag: &str, tasks: &str) -> (Tenure, RunSnapshot) {
    let run = world.run_of(dag, tasks).await;
    let owner = world.owner_of(dag).await;
    let all = |state: &str| {
        tasks.split_whitespace().map(|task| format!("{task}={state}")).collect::<Vec<_>>().join(" ")
    };
    world.drive(&owner, run.key, &format!("run=running {}", all("scheduled"))).await;
    let run = world.drive(&owner, run.key, &all("queued")).await;
    world.attend(&owner, dag).await;
    (owner, run)
}

pub async fn a_claim_moves_a_queued_task_to_running_once(fresh: Fresh) {
    let world = World::of(fresh);
    let (_, run) = queued(&world, "etl", "a").await;
    let at = now();
    let said = agent(&run, "a").claim();
    assert_eq!(
        world.store.record_reports(std::slice::from_ref(&said), at).await.expect("told"),
        [Ack::Accepted]
    );
    let claimed = world.load(run.header.key).await;
    assert_eq!(states(&claimed), "a=running");
    let (before, after) = (&ti(&run, "a").ti, &ti(&claimed, "a").ti);
    assert_eq!((after.started_at, after.attempt, &after.node), (Some(at), before.attempt, &before.node));
    assert_eq!(claimed.header.revision, run.header.revision + 1);

    assert_eq!(tell(&world, said).await, Ack::Accepted, "the answer was lost, and the same is said again");
    let again = world.load(run.header.key).await;
    assert_eq!(again.tis, claimed.tis);
    assert!(
        again.header.revision > claimed.header.revision,
        "whoever has planned meanwhile has to look again"
    );
}

/// The node was silent, its owner is about to give the attempt up, and then the node is back and asks again whether it may
/// start: if it may, the attempt must not be given up.
pub async fn a_repeated_claim_makes_a_plan_that_has_not_seen_it_a_conflict(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a").await;
    let said = agent(&run, "a").claim();
    assert_eq!(tell(&world, said.clone()).await, Ack::Accepted);
    world.attend(&owner, "etl").await;
    let seen = world.load(run.header.key).await;
    assert_eq!(tell(&world, said).await, Ack::Accepted);
    let gives_up = pass_of(vec![world.change(&seen, "a=failed")]);
    let committed = world.commit(&owner, &gives_up).await.expect("committed");
    assert_eq!(committed.conflicts, [run.header.key]);
    assert_eq!(states(&world.load(run.header.key).await), "a=running");
    assert_eq!(world.attention(seen.header.shard).await.len(), 1, "the owner looks again");
    let trail = world.trail("etl", "r1").await;
    assert_eq!(trail.iter().filter(|entry| entry.contains("claimed")).count(), 1, "it began once");
}

pub async fn another_attempt_is_superseded_and_changes_nothing(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a").await;
    let stale = agent(&run, "a").claim();
    let stale_end = agent(&run, "a").end(failed());
    world.drive(&owner, run.header.key, "a=scheduled").await;
    let placed_again = world.drive(&owner, run.header.key, "a=queued").await;
    let trail = world.trail("etl", "r1").await;
    assert_eq!(tell(&world, stale).await, Ack::Superseded);
    assert_eq!(tell(&world, stale_end).await, Ack::Superseded);
    assert_eq!(
        tell(&world, agent(&placed_again, "a").end(Outcome::Success)).await,
        Ack::Superseded,
        "never claimed"
    );
    let after = world.load(run.header.key).await;
    assert_eq!((after.header, after.tis), (placed_again.header, placed_again.tis));
    assert_eq!(world.trail("etl", "r1").await, trail);
    assert_eq!(world.attention_of("etl").await, vec![]);
}

pub async fn an_end_does_what_the_owner_would(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "good skips retried never unprepared").await;
    let run =
        world.drive(&owner, run.header.key, "good=running skips=running retried=running never=running").await;
    for (task, outcome) in [
        ("good", Outcome::Success),
        ("skips", Outcome::Skipped),
        ("retried", failed()),
        ("never", Outcome::NeverStarted),
        ("unprepared", failed()),
    ] {
        assert_eq!(tell(&world, agent(&run, task).end(outcome.clone())).await, Ack::Accepted, "{task}");
        // The row is what the decision makes of it, to the last column.
        let after = world.load(run.header.key).await;
        let (before, after) = (&ti(&run, task).ti, &ti(&after, task).ti);
        let ended_at = after.ended_at.unwrap_or(now());
        let decided = before.end(before.attempt.expect("bound"), &outcome, ended_at).step.expect("a step").to;
        assert_eq!(*after, decided, "{task}");
    }
    let after = world.load(run.header.key).await;
    assert_eq!(
        states(&after),
        "good=success skips=skipped retried=up_for_retry never=scheduled unprepared=up_for_retry"
    );
    assert_eq!(ti(&after, "retried").ti.reason.as_deref(), Some("exit code 3"));
    assert_eq!(after.header.state, RunState::Running, "what follows is for the owner to plan");
    assert_eq!(
        tell(&world, agent(&run, "good").end(Outcome::Success)).await,
        Ack::Superseded,
        "known already"
    );
}

pub async fn the_last_try_fails_for_good(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a").await;
    let mut change = world.change(&run, "a=running");
    change.tis[0].to.try_number = 2;
    world.commit_whole(&owner, &pass_of(vec![change])).await;
    let run = world.load(run.header.key).await;
    assert_eq!(tell(&world, agent(&run, "a").end(failed())).await, Ack::Accepted);
    assert_eq!(states(&world.load(run.header.key).await), "a=failed");
}

pub async fn an_end_is_never_later_than_it_was_heard(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a").await;
    let run = world.drive(&owner, run.header.key, "a=running").await;
    let mut said = agent(&run, "a").end(Outcome::Success);
    if let ReportBody::End { ended_at, .. } = &mut said.body {
        *ended_at = "2999-01-01T00:00:00Z".parse().expect("an instant");
    }
    let at = now();
    world.store.record_reports(&[said], at).await.expect("recorded");
    assert_eq!(ti(&world.load(run.header.key).await, "a").ti.ended_at, Some(at));
}

pub async fn what_a_task_returned_is_kept_when_it_succeeded(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a b").await;
    let run = world.drive(&owner, run.header.key, "a=running b=running").await;
    tell(&world, agent(&run, "a").end_with(Outcome::Success, Some(value(7)))).await;
    tell(&world, agent(&run, "b").end_with(failed(), Some(value(8)))).await;
    let results = world.store.results(run.header.key).await.expect("results");
    assert_eq!(results, vec![("a".into(), TiKey::UNMAPPED, value(7))]);
}

pub async fn the_end_of_a_cleared_task_sends_it_to_history(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a").await;
    let run = world.drive(&owner, run.header.key, "a=running").await;
    world.store.clear(&user(), &clear_of("etl", "r1", &["a"])).await.expect("cleared");
    let said = agent(&run, "a").end_with(Outcome::Success, Some(value(7)));
    assert_eq!(tell(&world, said).await, Ack::Accepted);
    let after = world.load(run.header.key).await;
    let row = &ti(&after, "a").ti;
    assert_eq!((states(&after).as_str(), row.attempt, row.try_number, row.max_tries), ("a=none", None, 1, 2));
    let tries =
        world.store.list_tries(&tenant(), &"etl".into(), &"r1".into(), &"a".into(), TiKey::UNMAPPED).await;
    let tries: Vec<_> = tries.expect("listed").into_iter().map(|past| past.instance.attempt).collect();
    assert_eq!(tries, [Some(agent(&run, "a").attempt())]);
    assert_eq!(world.store.results(run.header.key).await.expect("results"), vec![]);
}

pub async fn an_owner_that_missed_a_report_conflicts(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a b").await;
    let (_, other) = queued(&world, "other", "a").await;
    let withdraw = world.change(&run, "a=scheduled");
    assert_eq!(tell(&world, agent(&run, "a").claim()).await, Ack::Accepted);
    let committed = world.commit(&owner, &pass_of(vec![withdraw])).await.expect("committed");
    assert_eq!(committed.conflicts, [run.header.key]);
    assert_eq!(states(&world.load(run.header.key).await), "a=running b=queued");
    assert_eq!(world.load(other.header.key).await.header.revision, other.header.revision);
}

pub async fn a_report_leaves_attention_and_an_audit_row_of_its_node(fresh: Fresh) {
    let world = World::of(fresh);
    let (_, run) = queued(&world, "etl", "a b").await;
    let mut wakes = world.store.wakes(world.shard_of("etl").await);
    wakes.borrow_and_update();
    let both = [agent(&run, "a").claim(), agent(&run, "b").claim()];
    world.store.record_reports(&both, now()).await.expect("recorded");
    let soon = std::time::Duration::from_secs(5);
    tokio::time::timeout(soon, wakes.changed()).await.expect("woken").expect("open");
    assert!(world.attention_of("etl").await.contains(&Attention::Run { run: run.header.key }));
    let rows = world.audit("etl", Some("r1")).await;
    let told: Vec<_> = rows.iter().filter(|row| row.actor == format!("node {NODE}")).collect();
    let entries: Vec<_> = told.iter().flat_map(|row| &row.entries).collect();
    assert_eq!(entries.iter().map(|entry| entry.event.as_str()).collect::<Vec<_>>(), ["claimed", "claimed"]);
    assert_eq!(entries[0].attempt, Some(agent(&run, "a").attempt()));
    assert!(
        told.iter().all(|row| row.scope.is_none() && row.epoch.is_none()),
        "it has no authority of its own"
    );
}

pub async fn reports_are_answered_in_order_and_one_bad_one_spoils_none(fresh: Fresh) {
    let world = World::of(fresh);
    let (_, first) = queued(&world, "etl", "a b").await;
    let (_, second) = queued(&world, "other", "a").await;
    let (_, bad) = queued(&world, "bad", "a b").await;
    world.spoil(Spoiled::Task(agent(&bad, "a").key())).await;
    let missing = TiKey { task: TaskNo(99), ..agent(&first, "a").key() };
    let said = [
        agent(&second, "a").claim(),
        report(ReportBody::Claim { attempt: agent(&first, "a").attempt(), ti: missing }),
        agent(&bad, "a").claim(),
        agent(&first, "b").claim(),
        agent(&first, "b").end(Outcome::Success),
        report(ReportBody::Claim {
            attempt: agent(&first, "a").attempt(),
            ti: TiKey { run: RunKey(first.header.key.0 + 1_000), ..missing },
        }),
        agent(&first, "a").claim(),
    ];
    let acks = world.store.record_reports(&said, now()).await.expect("recorded");
    use Ack::{Accepted, Retry, Superseded};
    assert_eq!(acks, [Accepted, Superseded, Retry, Accepted, Accepted, Superseded, Accepted]);
    assert_eq!(states(&world.load(first.header.key).await), "a=running b=success");
    assert_eq!(states(&world.load(second.header.key).await), "a=running");
    assert_eq!(world.store.record_reports(&[], now()).await.expect("nothing to do"), []);
}

pub async fn reports_about_what_has_finished_or_gone_are_superseded(fresh: Fresh) {
    let world = World::of(fresh);
    let (owner, run) = queued(&world, "etl", "a b").await;
    let run = world.drive(&owner, run.header.key, "a=running").await;
    world.store.set_run_state(&user(), &"etl".into(), &"r1".into(), RunState::Failed).await.expect("ended");
    let ended = world.load(run.header.key).await;
    assert_eq!(tell(&world, agent(&run, "a").end(Outcome::Success)).await, Ack::Superseded);
    assert_eq!(tell(&world, agent(&run, "b").claim()).await, Ack::Superseded);
    let after = world.load(run.header.key).await;
    assert_eq!((after.header, after.tis), (ended.header, ended.tis), "terminal is final");
    world.store.delete_run(&user(), &"etl".into(), &"r1".into()).await.expect("deleted");
    assert_eq!(tell(&world, agent(&run, "a").end(Outcome::Success)).await, Ack::Superseded);
}

/// A claim that is accepted is never taken back by a pass that did not know of it, and the other way round.
pub async fn a_claim_and_a_withdrawal_that_meet_have_one_winner(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    let owner = world.owner_of("etl").await;
    let (mut claimed, mut withdrawn) = (0, 0);
    for round in 0..30 {
        let run = world.trigger("etl", &format!("r{round}")).await;
        world.drive(&owner, run.key, "run=running a=scheduled").await;
        let run = world.drive(&owner, run.key, "a=queued").await;
        let pass = pass_of(vec![world.change(&run, "a=scheduled")]);
        let (ack, committed) =
            tokio::join!(tell(&world, agent(&run, "a").claim()), world.commit(&owner, &pass));
        let kept = committed.expect("committed").conflicts.is_empty();
        let after = states(&world.load(run.header.key).await);
        match (ack, kept) {
            (Ack::Accepted, false) => assert_eq!(after, "a=running"),
            (Ack::Superseded, true) => assert_eq!(after, "a=scheduled"),
            other => panic!("{other:?} in round {round}, {after}"),
        }
        claimed += u32::from(!kept);
        withdrawn += u32::from(kept);
    }
    assert_eq!(claimed + withdrawn, 30);
}

/// Answers and rows agree however many replicas hear the same agents at once.
pub async fn one_claim_told_to_many_replicas_happens_once(fresh: Fresh) {
    let world = World::of(fresh);
    let (_, run) = queued(&world, "etl", "a b c d").await;
    let said: Vec<Report> = ["a", "b", "c", "d"].map(|task| agent(&run, task).claim()).to_vec();
    let hearers: Vec<_> = (0..8)
        .map(|number| {
            let (store, mut said) = (world.store.clone(), said.clone());
            // Not all in the same order, as it is with several agents on several streams.
            said.rotate_left(number % 4);
            tokio::spawn(async move { store.record_reports(&said, now()).await.expect("recorded") })
        })
        .collect();
    for hearer in hearers {
        assert_eq!(hearer.await.expect("no panic"), [Ack::Accepted; 4]);
    }
    let after = world.load(run.header.key).await;
    assert_eq!(states(&after), "a=running b=running c=running d=running");
    assert!(after.header.revision >= run.header.revision + 4);
    let claims = world.trail("etl", "r1").await.into_iter().filter(|entry| entry.contains("claimed")).count();
    assert_eq!(claims, 4);
}
