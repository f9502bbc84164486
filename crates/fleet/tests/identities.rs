//! Goal: a node that has joined is that node and no other, for as long as its identity lasts and nobody removes it.
//! Method: real streams over TCP to fleets on one real store; the test plays the agents.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{PATIENCE, RawAgent, Replica, TOKEN, claim, hello, reports};
use jiff::SignedDuration;
use tempfile::TempDir;
use tenure_agent_proto::REFUSED_KEY;
use tenure_agent_proto::wire::{FromAgent, JoinRequest, LogEndRequest, RenewRequest};
use tenure_clock::{Clock, SystemClock};
use tenure_dispatch::Executor;
use tenure_fleet::Identities;
use tenure_model::credential::digest;
use tenure_model::{NodeId, TenantId};
use tenure_store::{IdentityStore, NewJoinToken, Trigger};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};
use tenure_testkit::wait_for;
use tonic::{Code, Request, Status};

const DAY: Duration = Duration::from_secs(86_400);
const JOIN: &str = "tenure-join-1";

/// The book of identities that all replicas share.
struct Book {
    store: Arc<SqliteStore>,
    _folder: TempDir,
}

impl Book {
    async fn new() -> Self {
        let folder = tenure_testkit::temp_dir();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store =
            SqliteStore::open(&folder.path().join("state.db"), SqliteOptions::default(), clock).unwrap();
        let book = Self { store: Arc::new(store), _folder: folder };
        let expires_at = book.admin().at + SignedDuration::from_hours(1);
        let token = NewJoinToken { id: "t1".into(), digest: digest(JOIN), node: None, uses: 100, expires_at };
        book.store.add_join_token(&book.admin(), &token).await.unwrap();
        book
    }

    fn admin(&self) -> Trigger {
        Trigger { tenant: TenantId::default_tenant(), actor: "ada".into(), at: SystemClock.now() }
    }

    async fn replica(&self, lifetime: Duration) -> Replica {
        let store = Arc::clone(&self.store) as Arc<dyn IdentityStore>;
        Replica::start_with(Some(Identities { store, lifetime })).await
    }
}

fn with_bearer<T>(message: T, bearer: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {bearer}").parse().unwrap());
    request
}

async fn join(replica: &Replica, node: &str, secret: &str) -> Result<u64, Status> {
    let request = JoinRequest { node: node.into(), digest: digest(secret) };
    let answer = replica.client().await.join(with_bearer(request, JOIN)).await?;
    Ok(answer.into_inner().valid_for_ms)
}

async fn renew(replica: &Replica, secret: &str, next: &str) -> Result<u64, Status> {
    let request = with_bearer(RenewRequest { digest: digest(next) }, secret);
    Ok(replica.client().await.renew(request).await?.into_inner().valid_for_ms)
}

async fn log_end(replica: &Replica, secret: &str) -> Result<u64, Status> {
    let attempt = Some(tenure_agent_proto::wire::Id { high: 1, low: 2 });
    let request = LogEndRequest { prefix: "etl/r1/load/1".into(), attempt };
    Ok(replica.client().await.log_end(with_bearer(request, secret)).await?.into_inner().end)
}

/// Says hello under this name, and hears what comes of it.
async fn connect(replica: &Replica, node: &str, secret: &str) -> Result<RawAgent, Status> {
    let mut agent = replica.silent_agent(Some(secret)).await?;
    agent.say(FromAgent { hello: Some(hello(node, 1)), ..Default::default() });
    agent.hear().await.map(|welcome| {
        assert!(welcome.welcome.is_some());
        agent
    })
}

fn is_final(status: &Status) -> bool {
    status.code() == Code::PermissionDenied && status.metadata().contains_key(REFUSED_KEY)
}

#[tokio::test]
async fn a_node_that_has_joined_is_that_node_and_no_other() {
    let book = Book::new().await;
    let replica = book.replica(DAY).await;
    let valid_for = join(&replica, "n1", "tenure-node-1").await.unwrap();
    let day = DAY.as_millis() as u64;
    assert!((day - 1000..=day).contains(&valid_for), "{valid_for}: stores keep microseconds");
    let mut agent = connect(&replica, "n1", "tenure-node-1").await.unwrap();
    agent.say(reports(vec![claim(1, 1)]));
    agent.hear_until(|message| !message.accepted.is_empty()).await;
    assert_eq!(replica.reported(1).await[0].node, NodeId::new("n1"));
    assert_eq!(log_end(&replica, "tenure-node-1").await.unwrap(), 0);

    let other = connect(&replica, "n2", "tenure-node-1").await.map(drop).unwrap_err();
    assert!(is_final(&other) && other.message().contains("n1") && other.message().contains("n2"), "{other}");
    assert_eq!(replica.fleet.linked(), [NodeId::new("n1")], "the node itself was not disturbed");

    // A token of the API speaks for whom it likes, as ever.
    connect(&replica, "n2", TOKEN).await.unwrap();
    replica.stop().await;
}

#[tokio::test]
async fn nothing_but_an_identity_or_a_token_of_the_api_opens_the_door() {
    let book = Book::new().await;
    let replica = book.replica(DAY).await;
    for (shown, word) in [
        (JOIN, "join token"),
        ("tenure-node-unknown", "not known"),
        ("tenure-join-9", "join token"),
        ("x", "not known"),
    ] {
        let refused = connect(&replica, "n1", shown).await.map(drop).unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{shown}: {refused}");
        assert!(refused.message().contains(word), "{shown}: {refused}");
        assert_eq!(log_end(&replica, shown).await.unwrap_err().code(), Code::Unauthenticated, "{shown}");
    }
    let request = with_bearer(JoinRequest { node: "n1".into(), digest: digest("s") }, "tenure-join-9");
    let refused = replica.client().await.join(request).await.unwrap_err();
    assert!(is_final(&refused) && refused.message().contains("not known"), "{refused}");
    // An administrator's token lets in, and makes nobody a node of its own.
    let request = with_bearer(JoinRequest { node: "n1".into(), digest: digest("s") }, TOKEN);
    assert_eq!(replica.client().await.join(request).await.unwrap_err().code(), Code::Unauthenticated);
    let nameless = with_bearer(JoinRequest { node: String::new(), digest: digest("s") }, JOIN);
    assert_eq!(replica.client().await.join(nameless).await.unwrap_err().code(), Code::InvalidArgument);
    replica.stop().await;
}

#[tokio::test]
async fn an_identity_that_runs_out_ends_the_stream_unless_it_was_renewed() {
    let book = Book::new().await;
    let (short, long) = (book.replica(Duration::from_secs(2)).await, book.replica(DAY).await);
    for (node, secret) in [("n1", "tenure-node-1"), ("n2", "tenure-node-2")] {
        join(&short, node, secret).await.unwrap();
    }
    let mut lapses = connect(&short, "n1", "tenure-node-1").await.unwrap();
    let stays = connect(&short, "n2", "tenure-node-2").await.unwrap();
    // At another replica: the one that holds the stream learns of it from the book.
    renew(&long, "tenure-node-2", "tenure-node-2b").await.unwrap();
    let end = lapses.end().await;
    assert_eq!(end.code(), Code::Unauthenticated, "{end}");
    assert!(end.message().contains("expired") && end.message().contains("tenure node token"), "{end}");
    let refused = connect(&short, "n1", "tenure-node-1").await.map(drop).unwrap_err();
    assert!(refused.message().contains("expired"), "{refused}");
    let late = renew(&short, "tenure-node-1", "tenure-node-1b").await.unwrap_err();
    assert!(late.message().contains("expired"), "{late}");
    assert_eq!(log_end(&short, "tenure-node-1").await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(short.fleet.linked(), [NodeId::new("n2")], "it has another one");
    connect(&short, "n2", "tenure-node-2b").await.unwrap();
    drop(stays);
    short.stop().await;
    long.stop().await;
}

#[tokio::test]
async fn a_node_that_is_removed_is_cut_off_everywhere_and_stays_out() {
    let book = Book::new().await;
    let (a, b) = (book.replica(DAY).await, book.replica(DAY).await);
    for (node, secret) in [("n1", "tenure-node-1"), ("n2", "tenure-node-2")] {
        join(&a, node, secret).await.unwrap();
    }
    let mut at_a = connect(&a, "n1", "tenure-node-1").await.unwrap();
    let mut at_b = connect(&b, "n1", "tenure-node-1").await.unwrap();
    let _other = connect(&a, "n2", "tenure-node-2").await.unwrap();
    log_end(&a, "tenure-node-1").await.unwrap();
    book.store.remove_node(&book.admin(), &"n1".into()).await.unwrap();
    for agent in [&mut at_a, &mut at_b] {
        let end = agent.end().await;
        assert!(is_final(&end) && end.message().contains("n1 was removed"), "{end}");
    }
    let only_the_other = || async { (a.fleet.linked() == [NodeId::new("n2")]).then_some(()) };
    wait_for("the link to go", PATIENCE, only_the_other).await;
    for replica in [&a, &b] {
        let refused = connect(replica, "n1", "tenure-node-1").await.map(drop).unwrap_err();
        assert!(is_final(&refused), "{refused}");
        assert!(is_final(&log_end(replica, "tenure-node-1").await.unwrap_err()));
        assert!(is_final(&renew(replica, "tenure-node-1", "tenure-node-1b").await.unwrap_err()));
        let again = join(replica, "n1", "tenure-node-1c").await.unwrap_err();
        assert!(is_final(&again) && again.message().contains("removed"), "{again}");
    }
    a.stop().await;
    b.stop().await;
}
