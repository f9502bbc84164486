//! Goal: whoever leads the controller forgets what is old, in small batches, and nothing that anybody needs; what it
//! has told is remembered.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_lease::{AcquireOutcome, AcquireRequest, Epoch, Scope, Takeover, Tenure};
use tenure_model::{RunKey, RunState, TiKey};
use tenure_store::{
    AuditEntry, AuditQuery, CONTROLLER_SCOPE, Paging, Pass, RunChange, RunQuery, StoreError, TryRecord,
};

use crate::Fresh;
use crate::harness::{
    NODE, World, assert_conflict, assert_fenced, due_run, holder, key_of, new_run, now, pass_of, spec,
    tenant, term, ti, value,
};

async fn controller(world: &World) -> Tenure {
    world.leader(Scope::new(CONTROLLER_SCOPE)).await
}

async fn delete_runs(world: &World, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
    let leader = controller(world).await;
    world.store.delete_old_runs(&leader.guard().expect("a long lease"), before, limit).await
}

async fn delete_audit(world: &World, before: Timestamp, limit: u32) -> u64 {
    let leader = controller(world).await;
    let guard = leader.guard().expect("a long lease");
    world.store.delete_old_audit(&guard, before, limit).await.expect("deleted")
}

async fn delete_members(world: &World, before: Timestamp, limit: u32) -> u64 {
    let leader = controller(world).await;
    let guard = leader.guard().expect("a long lease");
    world.store.delete_old_members(&guard, before, limit).await.expect("deleted")
}

fn days_ago(days: i64) -> Timestamp {
    now() - SignedDuration::from_hours(24 * days)
}

/// Ends a run at that time.
async fn finish(world: &World, run: RunKey, at: Timestamp) {
    let snapshot = world.load(run).await;
    let owner = world.owner_of(snapshot.header.dag.as_str()).await;
    let mut change: RunChange = world.change(&snapshot, "a=success run=success");
    change.state.as_mut().expect("it ends").at = at;
    world.commit_whole(&owner, &Pass { at, ..pass_of(vec![change]) }).await;
}

async fn finished(world: &World, dag: &str, run: &str, at: Timestamp) -> RunKey {
    let key = world.create(&new_run(dag, run)).await.key;
    finish(world, key, at).await;
    key
}

/// Ids of all runs of a dag, by key.
async fn left(world: &World, dag: &str) -> Vec<String> {
    let mut runs =
        world.store.list_runs(&RunQuery::of(tenant(), Some(dag.into()))).await.expect("listed").items;
    runs.sort_by_key(|run| run.key);
    runs.iter().map(|run| run.run_id.to_string()).collect()
}

pub async fn only_the_leader_of_the_controller_does_chores(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    finished(&world, "etl", "old", days_ago(9)).await;
    finished(&world, "etl", "new", now()).await;
    let owner = world.owner_of("etl").await;
    let guard = owner.guard().expect("a long lease");
    let scope = owner.scope().as_str();
    assert_conflict(world.store.delete_old_runs(&guard, now(), 10).await, scope);
    assert_conflict(world.store.delete_old_audit(&guard, now(), 10).await, scope);
    assert_conflict(world.store.delete_old_members(&guard, now(), 10).await, scope);

    let paused = controller(&world).await;
    let guard = paused.guard().expect("it leads");
    world.heir_of(&paused).await;
    let audit = world.audit("etl", None).await.len();
    assert_fenced(world.store.delete_old_runs(&guard, now(), 10).await);
    assert_fenced(world.store.delete_old_audit(&guard, now(), 10).await);
    assert_fenced(world.store.delete_old_members(&guard, now(), 10).await);
    assert_eq!((left(&world, "etl").await.len(), world.audit("etl", None).await.len()), (2, audit));
}

pub async fn an_old_run_goes_with_all_it_had_but_its_audit(fresh: Fresh) {
    let world = World::of(fresh);
    let old = world.run_of("etl", "a").await.key;
    let owner = world.owner_of("etl").await;
    let before = world.drive(&owner, old, "run=running a=running").await;
    let mut change = world.change(&before, "a=success");
    let cached = ti(&before, "a");
    let key: TiKey = key_of(old, cached);
    change.past_tries =
        vec![TryRecord { ti: key, task_id: cached.task_id.clone(), instance: cached.ti.clone() }];
    change.results = vec![(key, value(7))];
    world.commit_whole(&owner, &pass_of(vec![change])).await;
    finish(&world, old, days_ago(9)).await;
    finished(&world, "etl", "new", now()).await;
    assert_eq!(delete_runs(&world, days_ago(1), 10).await.expect("deleted"), 1);

    assert_eq!(left(&world, "etl").await, ["new"]);
    assert!(world.store.load_runs(&[old]).await.expect("loaded").runs.is_empty());
    assert_eq!(world.store.get_result(key).await.expect("answered"), None);
    let tries =
        world.store.list_tries(&tenant(), &"etl".into(), &"r1".into(), &"a".into(), TiKey::UNMAPPED).await;
    assert!(tries.is_ok_and(|tries| tries.is_empty()), "nothing is left of its tries");
    // The same name is free again, and its history begins where the old one ended.
    let reborn = world.trigger("etl", "r1").await;
    assert_ne!(reborn.key, old);
    let rows = world.audit("etl", Some("r1")).await;
    let gone = rows.iter().find(|row| row.entries.iter().any(|entry| entry.event == "deleted"));
    let gone = gone.expect("an audit row says that it is gone");
    assert_eq!(gone.scope.as_deref(), Some(CONTROLLER_SCOPE));
    assert_eq!(gone.entries[0].from, RunState::Success.as_str());
}

pub async fn unfinished_and_young_runs_stay_and_so_does_the_newest_of_each_dag(fresh: Fresh) {
    let world = World::of(fresh);
    for dag in ["etl", "idle"] {
        world.register(&spec(dag, "a")).await;
    }
    finished(&world, "etl", "old", days_ago(9)).await;
    finished(&world, "etl", "young", days_ago(1)).await;
    let running = world.trigger("etl", "running").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, running.key, "run=running").await;
    world.trigger("etl", "queued").await;
    finished(&world, "idle", "older", days_ago(99)).await;
    finished(&world, "idle", "newest", days_ago(90)).await;
    assert_eq!(delete_runs(&world, days_ago(2), 10).await.expect("deleted"), 2);
    assert_eq!(left(&world, "etl").await, ["young", "running", "queued"]);
    assert_eq!(left(&world, "idle").await, ["newest"]);
    assert_eq!(delete_runs(&world, days_ago(2), 10).await.expect("nothing left"), 0);
}

pub async fn the_run_that_the_next_may_depend_on_stays(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    for day in [1, 3, 2] {
        let run = world.create(&due_run("etl", day)).await;
        finish(&world, run.key, days_ago(9)).await;
    }
    finished(&world, "etl", "by hand", days_ago(8)).await;
    assert_eq!(delete_runs(&world, days_ago(1), 10).await.expect("deleted"), 2);
    assert_eq!(left(&world, "etl").await, [due_run("etl", 3).run_id.to_string(), "by hand".into()]);
}

pub async fn runs_go_in_batches_the_oldest_first(fresh: Fresh) {
    let world = World::of(fresh);
    world.register(&spec("etl", "a")).await;
    for (run, days) in [("d", 10), ("b", 20), ("a", 30), ("c", 15), ("kept", 9)] {
        finished(&world, "etl", run, days_ago(days)).await;
    }
    assert_eq!(delete_runs(&world, days_ago(1), 2).await.expect("deleted"), 2);
    assert_eq!(left(&world, "etl").await, ["d", "c", "kept"]);
    assert_eq!(delete_runs(&world, days_ago(12), 2).await.expect("deleted"), 1);
    assert_eq!(left(&world, "etl").await, ["d", "kept"]);
    assert_eq!(delete_runs(&world, days_ago(1), 0).await.expect("nothing asked"), 0);
}

pub async fn old_audit_rows_go_in_batches_the_oldest_first(fresh: Fresh) {
    let world = World::of(fresh);
    let owner = world.owner_of("etl").await;
    world.register(&spec("etl", "a b c")).await;
    let between = now() + SignedDuration::from_millis(1);
    let after = between + SignedDuration::from_secs(1);
    let run = world.trigger("etl", "r1").await;
    for task in ["a", "b"] {
        let change = world.change(&world.load(run.key).await, &format!("{task}=success"));
        world.commit_whole(&owner, &Pass { at: after, ..pass_of(vec![change]) }).await;
    }
    let events = |rows: Vec<tenure_store::AuditView>| -> Vec<String> {
        rows.into_iter().flat_map(|row| row.entries).map(|entry| entry.event).collect()
    };
    assert_eq!(events(world.audit("etl", None).await), ["registered", "created", "moved", "moved"]);
    assert_eq!(delete_audit(&world, after, 1).await, 1);
    assert_eq!(events(world.audit("etl", None).await), ["created", "moved", "moved"]);
    assert_eq!(delete_audit(&world, after, 100).await, 1);
    assert_eq!(events(world.audit("etl", None).await), ["moved", "moved"], "they are not old");
    assert_eq!(delete_audit(&world, after, 100).await, 0);
}

/// Somebody who will not come back.
async fn passer_by(world: &World, scope: Scope, duration: Duration) -> Epoch {
    let request = AcquireRequest {
        scope,
        holder: holder("passer-by"),
        term: term(&world.entropy),
        duration,
        takeover: Takeover::IfFree,
        note: String::new(),
    };
    match world.store.acquire(&request).await.expect("answered") {
        AcquireOutcome::Granted(record) => record.epoch,
        other => panic!("nobody holds it: {other:?}"),
    }
}

pub async fn seats_of_members_that_are_gone_are_forgotten_and_their_epochs_go_on(fresh: Fresh) {
    let world = World::of(fresh);
    controller(&world).await;
    let (seat, live) = (Scope::member("scheduler", "gone"), Scope::member("scheduler", "here"));
    let named = Scope::new("billing/leader");
    let short = world.store.capabilities().minimum_duration;
    // Runs out before the seat does.
    passer_by(&world, named.clone(), short).await;
    let first = passer_by(&world, seat.clone(), short).await;
    passer_by(&world, live.clone(), Duration::from_secs(600)).await;
    assert_eq!(delete_members(&world, days_ago(1), 10).await, 0, "it has not run out for so long");
    // Whatever time it is told: what still holds is not forgotten.
    let tomorrow = days_ago(-1);
    let forgotten = async {
        while delete_members(&world, tomorrow, 10).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(short + Duration::from_secs(10), forgotten).await.expect("it runs out");
    assert_eq!(world.store.find_lease(&seat).await.expect("answered"), None);
    assert_eq!(world.store.lease_history(&seat, 10).await.expect("answered"), vec![]);
    assert!(world.store.find_lease(&live).await.expect("answered").is_some_and(|lease| lease.is_held()));
    assert!(world.store.find_lease(&named).await.expect("answered").is_some(), "no member's seat");
    assert_eq!(world.store.lease_history(&live, 10).await.expect("answered").len(), 1);
    assert!(world.store.fence(&seat).await.expect("answered").is_some(), "the floor under its epochs");
    assert!(passer_by(&world, seat, short).await > first);
}

pub async fn replicas_that_no_longer_report_are_forgotten_in_batches(fresh: Fresh) {
    let world = World::of(fresh);
    controller(&world).await;
    for number in 0..3 {
        world.store.record_presence(&format!("replica-{number}"), &["n1".into()]).await.expect("recorded");
    }
    let long = Duration::from_secs(600);
    assert_eq!(delete_members(&world, days_ago(1), 10).await, 0);
    let soon = now() + SignedDuration::from_secs(1);
    assert_eq!(delete_members(&world, soon, 2).await, 2);
    assert_eq!(world.store.present(&["n1".into()], long).await.expect("answered"), ["n1".into()]);
    assert_eq!(delete_members(&world, soon, 2).await, 1);
    assert_eq!(world.store.present(&["n1".into()], long).await.expect("answered"), []);
}

fn told(event: &str) -> AuditEntry {
    let (node, reason) = (Some(NODE.into()), Some("no node has one".into()));
    AuditEntry { to: "gpu 1".into(), node, reason, ..AuditEntry::new(event) }
}

pub async fn signals_are_told_under_the_controllers_fence_and_remembered(fresh: Fresh) {
    let world = World::of(fresh);
    assert_eq!(world.store.open_signals().await.expect("answered"), None);
    let leader = controller(&world).await;
    let guard = leader.guard().expect("a long lease");
    let tell = async |guard, event, open| world.store.tell_signals(guard, now(), &[told(event)], open).await;
    tell(&guard, "capacity_shortage", "one").await.expect("told");
    tell(&guard, "capacity_shortage_over", "two").await.expect("told again");
    assert_eq!(world.store.open_signals().await.expect("answered").as_deref(), Some("two"));

    world.register(&spec("etl", "a")).await;
    let owner = world.owner_of("etl").await;
    let of_owner = owner.guard().expect("a long lease");
    let refused = tell(&of_owner, "of an owner", "three").await;
    assert_conflict(refused, owner.scope().as_str());
    world.heir_of(&leader).await;
    assert_fenced(tell(&guard, "too late", "four").await);
    assert_eq!(world.store.open_signals().await.expect("answered").as_deref(), Some("two"));

    let all =
        AuditQuery { tenant: tenant(), dag: None, run: None, after_seq: None, paging: Paging::default() };
    let rows = world.store.list_audit(&all).await.expect("listed").items;
    let rows: Vec<_> = rows.iter().filter(|row| row.scope.as_deref() == Some(CONTROLLER_SCOPE)).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!(rows[0].entries, [told("capacity_shortage")]);
    assert_eq!((rows[1].epoch, rows[1].actor.as_str()), (Some(leader.epoch().0), "controller"));
}
