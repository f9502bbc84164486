//! Goal: a node is who a join token made it, for as long as nobody says otherwise, and nothing that was refused once
//! gets in by repeating it.

use jiff::{SignedDuration, Timestamp};
use tenure_model::{NodeId, Resources};
use tenure_store::{
    Join, JoinTokenRecord, NewJoinToken, NodeIdentity, NodeRegistration, RemovedNode, Renewal, StoreError,
    Trigger,
};

use crate::Fresh;
use crate::harness::*;

/// So long after the beginning of the story.
fn after(seconds: i64) -> Timestamp {
    day_of_january(1) + SignedDuration::from_secs(seconds)
}

/// Somebody in charge, at that time.
fn admin(seconds: i64) -> Trigger {
    Trigger { at: after(seconds), ..user() }
}

fn token(id: &str, node: Option<&str>, uses: u32) -> NewJoinToken {
    NewJoinToken {
        id: id.into(),
        digest: format!("digest of {id}"),
        node: node.map(NodeId::new),
        uses,
        expires_at: after(3600),
    }
}

fn join(id: &str, node: &str, secret: &str) -> Join {
    Join {
        token: format!("digest of {id}"),
        node: node.into(),
        digest: secret.into(),
        at: after(1),
        until: after(86_400),
    }
}

fn renewal(shown: &str, next: &str) -> Renewal {
    Renewal { shown: shown.into(), next: next.into(), at: after(2), until: after(90_000) }
}

async fn add(world: &World, token: NewJoinToken) -> JoinTokenRecord {
    world.store.add_join_token(&admin(0), &token).await.expect("added")
}

async fn identity(world: &World, digest: &str) -> Option<NodeIdentity> {
    world.store.node_identity(digest).await.expect("answered")
}

fn says<T: std::fmt::Debug>(outcome: Result<T, StoreError>, word: &str) {
    match outcome {
        Err(StoreError::Conflict(text)) => assert!(text.contains(word), "{text}"),
        other => panic!("{other:?} is no conflict about {word:?}"),
    }
}

async fn register(world: &World, node: &str) {
    let capacity = Resources::default().with(Resources::CPU, 1_000);
    let registration = NodeRegistration::new(node.into(), capacity, "1");
    world.store.register_node(&registration, after(0)).await.expect("registered");
}

async fn listed(world: &World) -> Vec<(String, bool)> {
    let nodes = world.store.list_nodes().await.expect("listed");
    let limits = world.store.limits().await.expect("limits");
    assert_eq!(limits.nodes, nodes, "schedulers and screens see the same");
    nodes.into_iter().map(|node| (node.node.to_string(), !node.takes_work())).collect()
}

pub async fn a_join_token_gives_an_identity_and_is_used_up(fresh: Fresh) {
    let world = World::of(fresh);
    let made = add(&world, token("t1", None, 1)).await;
    assert_eq!((made.uses, made.used, made.node.clone(), made.revoked_at), (1, 0, None, None));
    assert_eq!((made.created_by.as_str(), made.expires_at), (user().actor.as_str(), after(3600)));
    assert_eq!(world.store.join_node(&join("t1", "n1", "s1")).await.expect("joined"), after(86_400));
    let known = identity(&world, "s1").await.expect("known");
    assert_eq!((known.node.as_str(), known.expires_at, known.revoked_at), ("n1", after(86_400), None));
    assert!(known.is_valid(after(5)) && !known.is_valid(after(86_400)));
    assert_eq!(world.store.join_tokens().await.expect("listed")[0].used, 1);
    says(world.store.join_node(&join("t1", "n2", "s2")).await, "used once");
    assert_eq!(identity(&world, "s2").await, None);
    let until = world.store.identified_until(&"n1".into(), after(5)).await.expect("answered");
    assert_eq!(until, Some(after(86_400)));
    assert_eq!(world.store.identified_until(&"n1".into(), after(86_400)).await.expect("answered"), None);
    assert_eq!(world.store.identified_until(&"n2".into(), after(5)).await.expect("answered"), None);
}

pub async fn a_join_whose_answer_was_lost_is_repeated_for_free(fresh: Fresh) {
    let world = World::of(fresh);
    add(&world, token("t1", None, 1)).await;
    let first = world.store.join_node(&join("t1", "n1", "s1")).await.expect("joined");
    let again = Join { at: after(9), until: after(99_000), ..join("t1", "n1", "s1") };
    assert_eq!(world.store.join_node(&again).await.expect("joined already"), first);
    assert_eq!(world.store.join_tokens().await.expect("listed")[0].used, 1);
    // The same secret does not make another node.
    add(&world, token("t2", None, 5)).await;
    says(world.store.join_node(&join("t2", "n2", "s1")).await, "secret");
    says(world.store.join_node(&join("t1", "n2", "s1")).await, "secret");
}

pub async fn a_token_that_does_not_fit_lets_nobody_in(fresh: Fresh) {
    let world = World::of(fresh);
    says(world.store.join_node(&join("none", "n1", "s")).await, "not known");
    add(&world, token("bound", Some("n1"), 5)).await;
    says(world.store.join_node(&join("bound", "n2", "s")).await, "n1");
    let late = Join { at: after(3600), ..join("bound", "n1", "s") };
    says(world.store.join_node(&late).await, "expired");
    add(&world, token("taken-back", None, 5)).await;
    world.store.join_node(&join("taken-back", "n3", "s3")).await.expect("joined");
    world.store.revoke_join_token(&admin(1), "taken-back").await.expect("revoked");
    world.store.revoke_join_token(&admin(1), "taken-back").await.expect("it was so already");
    says(world.store.join_node(&join("taken-back", "n4", "s4")).await, "revoked");
    assert!(identity(&world, "s3").await.expect("known").is_valid(after(5)), "what it has given stays");
    assert_not_found(world.store.revoke_join_token(&admin(1), "nowhere").await, "nowhere");
    assert_conflict(world.store.add_join_token(&admin(0), &token("bound", None, 1)).await, "bound");
    let ids: Vec<String> =
        world.store.join_tokens().await.expect("listed").into_iter().map(|token| token.id).collect();
    assert_eq!(ids, ["bound", "taken-back"]);
}

pub async fn a_name_that_is_taken_needs_a_token_of_its_own(fresh: Fresh) {
    let world = World::of(fresh);
    add(&world, token("any", None, 9)).await;
    world.store.join_node(&join("any", "n1", "s1")).await.expect("joined");
    says(world.store.join_node(&join("any", "n1", "s2")).await, "--name n1");
    assert_eq!(world.store.join_tokens().await.expect("listed")[0].used, 1, "a refusal uses nothing up");
    add(&world, token("own", Some("n1"), 1)).await;
    world.store.join_node(&join("own", "n1", "s2")).await.expect("joined");
    // An identity that has run out keeps nobody from the name.
    add(&world, NewJoinToken { expires_at: after(200_000), ..token("later", None, 1) }).await;
    let later = Join { at: after(100_000), until: after(200_000), ..join("later", "n1", "s3") };
    world.store.join_node(&later).await.expect("joined");
}

pub async fn a_valid_identity_is_renewed_and_no_other(fresh: Fresh) {
    let world = World::of(fresh);
    add(&world, token("t1", None, 1)).await;
    world.store.join_node(&join("t1", "n1", "s1")).await.expect("joined");
    assert_eq!(world.store.renew_node(&renewal("s1", "s2")).await.expect("renewed"), after(90_000));
    assert_eq!(identity(&world, "s2").await.expect("known").node.as_str(), "n1");
    assert!(identity(&world, "s1").await.expect("known").is_valid(after(5)), "until its own end");
    let again = Renewal { until: after(99_000), ..renewal("s1", "s2") };
    assert_eq!(world.store.renew_node(&again).await.expect("its answer was lost"), after(90_000));
    says(world.store.renew_node(&renewal("s1", "s1")).await, "secret");
    says(world.store.renew_node(&renewal("nobody", "s3")).await, "not known");
    let late = Renewal { at: after(86_400), ..renewal("s1", "s3") };
    says(world.store.renew_node(&late).await, "expired");
    let until = world.store.identified_until(&"n1".into(), after(86_400)).await.expect("answered");
    assert_eq!(until, Some(after(90_000)));
}

pub async fn a_removed_node_is_refused_with_all_its_identities(fresh: Fresh) {
    let world = World::of(fresh);
    add(&world, token("t1", None, 9)).await;
    register(&world, "n1").await;
    register(&world, "n2").await;
    for (node, secret) in [("n1", "s1"), ("n2", "s2")] {
        world.store.join_node(&join("t1", node, secret)).await.expect("joined");
    }
    world.store.renew_node(&renewal("s1", "s1b")).await.expect("renewed");
    assert_eq!(world.store.revoked_identities(after(5)).await.expect("read"), Vec::<String>::new());
    let removed = world.store.remove_node(&admin(4), &"n1".into()).await.expect("removed");
    assert_eq!(removed, RemovedNode { holds: 0, had_identity: true });
    assert_eq!(world.store.revoked_identities(after(5)).await.expect("read"), ["s1", "s1b"]);
    assert_eq!(world.store.revoked_identities(after(86_400)).await.expect("read"), ["s1b"], "a short list");
    assert!(identity(&world, "s1b").await.expect("known").revoked_at.is_some());
    says(world.store.renew_node(&renewal("s1b", "s9")).await, "removed");
    says(world.store.join_node(&join("t1", "n1", "s9")).await, "removed");
    says(world.store.join_node(&join("t1", "n1", "s1")).await, "secret");
    assert_eq!(listed(&world).await, [("n2".to_owned(), false)]);
    assert!(identity(&world, "s2").await.expect("known").is_valid(after(5)), "others are not concerned");
    assert_not_found(world.store.remove_node(&admin(4), &"n1".into()).await, "n1");

    // Somebody who wants it back makes another token.
    world.store.add_join_token(&admin(10), &token("t2", None, 1)).await.expect("added");
    let back = Join { at: after(11), ..join("t2", "n1", "s10") };
    world.store.join_node(&back).await.expect("joined");
    register(&world, "n1").await;
    assert_eq!(listed(&world).await.len(), 2);
}

pub async fn a_removed_node_is_listed_while_it_holds_something(fresh: Fresh) {
    let world = World::of(fresh);
    register(&world, NODE).await;
    let run = world.run_of("etl", "a").await;
    let owner = world.owner_of("etl").await;
    world.drive(&owner, run.key, "run=running a=running").await;
    world.attend(&owner, "etl").await;
    let before = world.limits_version().await;
    let removed = world.store.remove_node(&admin(4), &NODE.into()).await.expect("removed");
    assert_eq!(removed, RemovedNode { holds: 1, had_identity: false });
    assert_eq!(listed(&world).await, [(NODE.to_owned(), true)], "and gets nothing more");
    assert_eq!(world.limits_version().await, before + 1);
    world.drive(&owner, run.key, "a=failed run=failed").await;
    assert_eq!(listed(&world).await, []);
    register(&world, NODE).await;
    assert_eq!(listed(&world).await, [(NODE.to_owned(), false)], "an agent that may come in brings it back");
}
