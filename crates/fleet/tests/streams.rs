//! Goal: the fleet keeps its word to schedulers and agents, whatever an agent does. Method: real streams over TCP
//! through the HTTP server of the API; the test itself plays the agent, message by message.

mod common;

use std::time::Duration;

use common::{PATIENCE, Replica, TOKEN, assignment, claim, hello, reports};
use tenure_agent_proto::wire::{FromAgent, InventoryAnswer, LogEndRequest, PutLogPartRequest, ToAgent};
use tenure_agent_proto::{Nonsense, Refusal, Why, wire};
use tenure_dispatch::{AssignError, Executor};
use tenure_model::{
    Ack, Assignment, AttemptId, EmbeddedFile, FailReason, Held, NodeId, ReportBody, RunKey, TaskNo, TiKey,
};
use tenure_testkit::wait_for;
use tonic::{Code, Request};
use uuid::Uuid;

async fn unlinked(replica: &Replica) {
    let gone = || async { replica.fleet.linked().is_empty().then_some(()) };
    wait_for("the link to go", PATIENCE, gone).await
}

#[tokio::test]
async fn a_node_that_says_hello_is_linked_registered_and_gets_its_work() {
    let replica = Replica::start().await;
    *replica.book.failing.lock().unwrap() = 1;
    let mut changes = replica.fleet.links();
    changes.mark_unchanged();
    let mut agent = replica.agent("n1").await;
    assert!(changes.has_changed().unwrap());
    assert_eq!(replica.fleet.linked(), [NodeId::new("n1")]);
    assert!(replica.fleet.link(&"n1".into()).is_some() && replica.fleet.link(&"n2".into()).is_none());

    let work = assignment("n1");
    replica.fleet.assign(work.clone()).await.unwrap();
    let message = agent.hear().await.unwrap();
    let given: Vec<Result<Assignment, Nonsense>> =
        message.assignments.into_iter().map(TryInto::try_into).collect();
    assert_eq!(given, [Ok(work.clone())]);
    replica.fleet.stop(&"n1".into(), work.attempt).await;
    assert_eq!(agent.hear().await.unwrap().stops, [work.attempt.into()]);

    agent.say(reports(vec![claim(7, 1), claim(8, 2)]));
    let acks = agent.hear_until(|message| !message.accepted.is_empty()).await;
    let mut accepted: Vec<u64> = acks.into_iter().flat_map(|message| message.accepted).collect();
    while accepted.len() < 2 {
        accepted.extend(agent.hear().await.unwrap().accepted);
    }
    assert_eq!(accepted, [7, 8]);
    let heard = replica.reported(2).await;
    assert!(heard.iter().all(|report| report.node == NodeId::new("n1")), "the node is whoever said hello");

    let registered = || async { replica.book.registered.lock().unwrap().first().cloned() };
    let registered = wait_for("the registration, at the second try", PATIENCE, registered).await;
    assert_eq!((registered.capacity.get("cpu"), registered.version.as_str()), (4_000, "9.9.9"));
    assert_eq!(registered.labels["zone"], "b");
    assert_eq!(registered.taints, ["gpu=a100".parse().unwrap()].into());
    assert_eq!(registered.queues, ["big".into()].into());
    replica.stop().await;
}

#[tokio::test]
async fn a_node_that_is_not_linked_takes_nothing() {
    let replica = Replica::start().await;
    let refused = replica.fleet.assign(assignment("n1")).await;
    assert!(matches!(refused, Err(AssignError::NotTaken { .. })), "{refused:?}");
    let agent = replica.agent("n1").await;
    drop(agent);
    unlinked(&replica).await;
    let refused = replica.fleet.assign(assignment("n1")).await;
    assert!(matches!(refused, Err(AssignError::NotTaken { .. })), "{refused:?}");
    assert_eq!(replica.fleet.inventory(&"n1".into()).await, None);
}

#[tokio::test]
async fn every_kind_of_answer_reaches_its_report() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    for (number, ack) in [(1, Ack::Superseded), (2, Ack::Retry), (3, Ack::Accepted)] {
        replica.book.answers.lock().unwrap().push_back(ack);
        agent.say(reports(vec![claim(number, 1)]));
        let heard: Vec<(u64, Ack)> = agent.hear().await.unwrap().acks().collect();
        assert_eq!(heard, [(number, ack)]);
    }
}

#[tokio::test]
async fn a_report_that_makes_no_sense_or_panics_costs_itself_alone() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    let bad = wire::NumberedReport { attempt: None, ..claim(1, 1) };
    let panics = wire::NumberedReport { scope: "panic".into(), ..claim(2, 1) };
    agent.say(reports(vec![bad, panics, claim(3, 1)]));
    let (mut retry, mut accepted) = (vec![], vec![]);
    while retry.len() + accepted.len() < 3 {
        let message = agent.hear().await.unwrap();
        retry.extend(message.retry);
        accepted.extend(message.accepted);
    }
    retry.sort_unstable();
    assert_eq!((retry, accepted), (vec![1, 2], vec![3]));
}

#[tokio::test]
async fn an_inventory_is_asked_for_and_given_after_what_was_sent_before() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    replica.fleet.assign(assignment("n1")).await.unwrap();
    let (fleet, node) = (replica.fleet.clone(), NodeId::new("n1"));
    let asking = tokio::spawn(async move { fleet.inventory(&node).await });
    let heard = agent.hear_until(|message| !message.inventory_requests.is_empty()).await;
    assert_eq!(heard.iter().map(|message| message.assignments.len()).sum::<usize>(), 1);
    let request = heard.last().unwrap().inventory_requests[0];
    let held = Held {
        attempt: AttemptId(Uuid::from_u128(5)),
        ti: TiKey::unmapped(RunKey(1), TaskNo(2)),
        scope: "scheduler/shard-00".into(),
    };
    let wrong = InventoryAnswer { request: request + 1, held: vec![] };
    let right = InventoryAnswer { request, held: vec![held.clone().into()] };
    agent.say(FromAgent { inventories: vec![wrong, right], ..Default::default() });
    assert_eq!(asking.await.unwrap(), Some(vec![held]));
}

#[tokio::test]
async fn nobody_waits_for_the_inventory_of_a_link_that_broke() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    // Something of the link lives on, because a report of it is still being worked on.
    agent.say(reports(vec![wire::NumberedReport { scope: "hold".into(), ..claim(1, 1) }]));
    replica.reported(1).await;
    let (fleet, node) = (replica.fleet.clone(), NodeId::new("n1"));
    let asking = tokio::spawn(async move { fleet.inventory(&node).await });
    agent.hear_until(|message| !message.inventory_requests.is_empty()).await;
    drop(agent);
    // Sooner than the inventory's own deadline of five seconds would allow.
    let answer = tokio::time::timeout(Duration::from_secs(4), asking).await.expect("told at once");
    assert_eq!(answer.unwrap(), None);
}

#[tokio::test]
async fn a_later_connection_of_a_node_replaces_the_earlier_one() {
    let replica = Replica::start().await;
    let mut first = replica.agent("n1").await;
    let first_link = replica.fleet.link(&"n1".into()).unwrap().id;
    let mut second = replica.agent("n1").await;
    let second_link = replica.fleet.link(&"n1".into()).unwrap().id;
    assert_ne!(first_link, second_link);
    assert_eq!(first.end().await.code(), Code::Cancelled);
    replica.fleet.assign(assignment("n1")).await.unwrap();
    assert_eq!(second.hear().await.unwrap().assignments.len(), 1);
    assert_eq!(
        replica.fleet.link(&"n1".into()).unwrap().id,
        second_link,
        "the end of the first changes nothing"
    );

    let mut other = replica.silent_agent(Some(TOKEN)).await.unwrap();
    other.say(FromAgent { hello: Some(hello("n1", 2)), ..Default::default() });
    other.hear().await.unwrap();
    let status = second.end().await;
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("n1") && status.message().contains("--name"), "{status}");
}

#[tokio::test]
async fn an_agent_that_does_not_read_is_given_no_more_than_its_queue_holds() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    let mut large = assignment("n1");
    large.env.insert("X".into(), "x".repeat(4_000));
    let mut given = 0;
    let refused = loop {
        match replica.fleet.assign(large.clone()).await {
            Ok(()) => given += 1,
            Err(refused) => break refused,
        }
        assert!(given < 20_000, "the queue has no end");
    };
    assert!(
        matches!(&refused, AssignError::NotTaken { .. }) && refused.to_string().contains("wait"),
        "{refused}"
    );
    assert!((8_192..10_000).contains(&given), "{given}");
    let mut received = 0;
    while received < given {
        received += agent.hear().await.unwrap().assignments.len();
    }
    assert_eq!(received, given);
    replica.fleet.assign(large).await.unwrap();
}

#[tokio::test]
async fn a_refused_assignment_is_told_as_not_delivered() {
    let replica = Replica::start().await;
    let agent = replica.agent("n1").await;
    let refuse = |number: u128, why: Why| -> wire::Refusal {
        let (attempt, ti) = (AttemptId(Uuid::from_u128(number)), TiKey::unmapped(RunKey(1), TaskNo(2)));
        Refusal { attempt, ti, scope: "scheduler/shard-03".into(), why }.into()
    };
    replica.book.answers.lock().unwrap().push_back(Ack::Retry);
    let refusals = vec![
        refuse(1, Why::StaleEpoch { highest: 9 }),
        refuse(2, Why::NotTaken { reason: "shutting down".into() }),
        refuse(3, Why::Unreadable { reason: "no grace".into() }),
    ];
    agent.say(FromAgent { refusals, ..Default::default() });
    let mut told: Vec<(u128, Option<FailReason>)> = replica
        .reported(3)
        .await
        .into_iter()
        .map(|report| match report.body {
            ReportBody::Undelivered { attempt, failure, .. } => (attempt.0.as_u128(), failure),
            other => panic!("{other:?}"),
        })
        .collect();
    told.sort_by_key(|(attempt, _)| *attempt);
    told.dedup();
    let cannot = FailReason::CannotStart { error: "no grace".into() };
    assert_eq!(told, [(2, None), (3, Some(cannot))], "of a stale epoch nothing is told");
}

#[tokio::test]
async fn an_assignment_that_no_message_can_hold_fails_instead_of_coming_back_for_ever() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    let mut huge = assignment("n1");
    let content = "x".repeat(33 * 1024 * 1024);
    huge.files.insert("data".into(), EmbeddedFile { content, executable: false });
    replica.fleet.assign(huge.clone()).await.unwrap();
    let told = replica.reported(1).await.remove(0);
    let ReportBody::Undelivered { attempt, failure: Some(reason), .. } = told.body else {
        panic!("{told:?}")
    };
    assert_eq!(attempt, huge.attempt);
    assert!(reason.to_string().contains("bytes"), "{reason}");

    huge.files.get_mut("data").unwrap().content.truncate(20 * 1024 * 1024);
    replica.fleet.assign(huge).await.unwrap();
    assert_eq!(agent.hear().await.unwrap().assignments.len(), 1, "what a message can hold still arrives");
}

#[tokio::test]
async fn an_agent_that_sends_too_much_or_nonsense_loses_its_own_link_only() {
    let replica = Replica::start().await;
    let mut good = replica.agent("good").await;
    let too_many: Vec<_> = (0..40_000).map(|number| claim(number, 1)).collect();
    let spoil: [(FromAgent, &str); 4] = [
        (reports(too_many), "40000"),
        (FromAgent { hello: Some(hello("n1", 1)), ..Default::default() }, "second hello"),
        (FromAgent { refusals: vec![wire::Refusal::default()], ..Default::default() }, "refusal"),
        (reports(vec![wire::NumberedReport { scope: "x".repeat(33 << 20), ..claim(1, 1) }]), "too large"),
    ];
    for (message, words) in spoil {
        let mut agent = replica.agent("n1").await;
        agent.say(message);
        let status = agent.end().await;
        assert!(status.message().contains(words), "{words}: {status:?}");
    }
    good.say(FromAgent::default());
    assert_eq!(good.hear().await.unwrap(), ToAgent::default(), "a heartbeat is answered");
}

#[tokio::test]
async fn who_shows_no_token_or_a_wrong_one_is_not_let_in() {
    let replica = Replica::start().await;
    for token in [None, Some("guess"), Some("")] {
        let refused = replica.silent_agent(token).await.err().expect("it is refused");
        assert_eq!(refused.code(), Code::Unauthenticated, "{token:?}");
    }
    let mut client = replica.client().await;
    assert_eq!(client.log_end(LogEndRequest::default()).await.unwrap_err().code(), Code::Unauthenticated);
    let put = client.put_log_part(PutLogPartRequest::default()).await;
    assert_eq!(put.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn another_protocol_or_no_name_is_refused_with_what_to_do() {
    let replica = Replica::start().await;
    let refused = async |hello: Option<wire::Hello>| {
        let mut agent = replica.silent_agent(Some(TOKEN)).await.unwrap();
        agent.say(FromAgent { hello, ..Default::default() });
        agent.end().await
    };
    let old = refused(Some(wire::Hello { protocol: 99, ..hello("n1", 1) })).await;
    assert_eq!(old.code(), Code::FailedPrecondition);
    assert!(old.message().contains("99") && old.message().contains("same version"), "{old}");
    assert_eq!(refused(Some(hello("", 1))).await.code(), Code::InvalidArgument);
    assert_eq!(refused(None).await.code(), Code::InvalidArgument);
    let tainted = refused(Some(wire::Hello { taints: vec!["g pu".into()], ..hello("n1", 1) })).await;
    assert!(tainted.message().contains("g pu"), "{tainted}");
    assert!(replica.fleet.linked().is_empty());
}

#[tokio::test]
async fn news_of_other_replicas_reach_agents_that_are_there_already() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    replica.peers.send_replace(vec!["http://10.0.0.2:1".into()]);
    let message = agent.hear().await.unwrap();
    assert_eq!(message.welcome.unwrap().peers, ["http://10.0.0.2:1"]);
}

#[tokio::test]
async fn closing_says_what_is_queued_then_ends_every_stream_and_takes_no_new_one() {
    let replica = Replica::start().await;
    let mut agent = replica.agent("n1").await;
    replica.fleet.assign(assignment("n1")).await.unwrap();
    replica.fleet.close().await;
    let refused = replica.fleet.assign(assignment("n1")).await;
    assert!(matches!(refused, Err(AssignError::NotTaken { .. })), "{refused:?}");
    assert_eq!(agent.hear().await.unwrap().assignments.len(), 1);
    assert_eq!(agent.hear().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(replica.silent_agent(Some(TOKEN)).await.err().unwrap().code(), Code::Unavailable);
    replica.stop().await;
}

#[tokio::test]
async fn presence_is_recorded_for_nodes_that_are_heard() {
    let replica = Replica::start().await;
    let _agent = replica.agent("n1").await;
    let recorded = || async {
        let presence = replica.book.presence.lock().unwrap();
        presence.last().filter(|(_, nodes)| !nodes.is_empty()).cloned()
    };
    let recorded = wait_for("presence", PATIENCE, recorded).await;
    assert_eq!(recorded, ("a".to_owned(), vec![NodeId::new("n1")]));
}

#[tokio::test]
async fn logs_are_stored_through_a_replica_and_stay_inside_its_store() {
    let replica = Replica::start().await;
    let mut client = replica.client().await;
    let authorized = |message: PutLogPartRequest| {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
        request
    };
    let attempt = AttemptId(Uuid::from_u128(3));
    let part = PutLogPartRequest {
        prefix: "default/etl/r1/load/-1/1".into(),
        attempt: Some(attempt.into()),
        start: 0,
        end: 6,
        text: "hello\n".into(),
    };
    client.put_log_part(authorized(part.clone())).await.unwrap();
    let mut ask = Request::new(LogEndRequest { prefix: part.prefix.clone(), attempt: part.attempt });
    ask.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    assert_eq!(client.log_end(ask).await.unwrap().into_inner().end, 6);
    let prefix = object_store::path::Path::from("default/etl/r1/load/-1/1");
    let stored = tenure_logs::read(&*replica.logs, &prefix, tenure_logs::LogCursor::Start).await.unwrap();
    assert_eq!(stored.text, "hello\n");

    for prefix in ["../outside", "a//b", "", "/", "a/../../b"] {
        let outside =
            client.put_log_part(authorized(PutLogPartRequest { prefix: prefix.into(), ..part.clone() }));
        let refused = outside.await.expect_err(prefix);
        assert_eq!(refused.code(), Code::InvalidArgument, "{prefix}: {refused}");
    }
    let backwards = authorized(PutLogPartRequest { start: 9, end: 6, ..part });
    assert_eq!(client.put_log_part(backwards).await.unwrap_err().code(), Code::InvalidArgument);
}
