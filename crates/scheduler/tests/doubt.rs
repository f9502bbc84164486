//! Goal: a commit whose answer was lost, and which lands only later, overcommits nothing. Method: the real scheduler on a
//! real Postgres and a node with one place. A deferred trigger holds the COMMIT back inside the server while the
//! connection of whoever sent it is cut; the test counts what has the place.

mod rig;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rig::wire::Wire;
use rig::{Options, Owner, PATIENCE, Rig, exec, wait};
use tenure_clock::Entropy;
use tenure_model::{Ack, Assignment, DagId, DagSpec, Outcome, RunState, ShardId, TaskSpec, TenantId};
use tenure_scheduler::OwnerConfig;
use tenure_store::TiView;
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::{Postgres, TestDatabase};
use tokio_postgres::{Client, NoTls};

/// Long enough for an owner to read its shard again and to bind.
const A_WHILE: Duration = Duration::from_millis(1_500);

struct Bench {
    database: TestDatabase,
    shards: u16,
}

impl Bench {
    async fn rig(&self, url: &str) -> Rig {
        let options = PostgresOptions { shards: self.shards, ..PostgresOptions::default() };
        let store = PostgresStore::connect(url, options, &Entropy::from_os()).await.unwrap();
        let rig = Rig::on(Arc::new(store), self.shards).await;
        rig.node(1).await;
        rig
    }

    async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.database.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// From now on a COMMIT after such a change waits until the answer is dropped.
    async fn hold_commits(&self, table: &str, of: &str) -> Client {
        let client = self.client().await;
        let hold = format!(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER hold AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW WHEN ({of}) EXECUTE FUNCTION hold();
            SELECT pg_advisory_lock(7);"
        );
        client.batch_execute(&hold).await.unwrap();
        client
    }

    async fn wait_held(&self) {
        let client = self.client().await;
        let held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event = 'advisory' AND query = 'COMMIT'";
        let seen = async {
            while client.query_one(held, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("a COMMIT that waits");
    }
}

fn process(rig: &Rig, name: &'static str) -> Owner {
    let config = OwnerConfig { tick: Duration::from_millis(100), ..OwnerConfig::new(name) };
    rig.owner(Options { name, config, restarted: false, ..Options::default() })
}

/// However long it is waited, one of both has the place; when it has ended the other one has it.
async fn check(rig: &Rig, owners: &mut [&mut Owner], held: Client, dags: [&str; 2]) {
    tokio::time::sleep(A_WHILE).await;
    drop(held);
    tokio::time::sleep(A_WHILE).await;
    let mut placed = vec![];
    for dag in dags {
        let bound = |ti: &TiView| ti.instance.state.is_bound();
        placed.extend(rig.tis(dag, "r").await.iter().any(bound).then_some(dag));
    }
    assert_eq!(placed.len(), 1, "the node has one place, and it is of use: {placed:?}");
    let mut played = BTreeSet::new();
    while played.len() < dags.len() {
        let assignment = next(owners).await;
        // What is bound already may be offered more than once.
        if played.insert(assignment.attempt) {
            let owner = owners.last().unwrap();
            assert_eq!(owner.claim(&assignment).await, Ack::Accepted);
            assert_eq!(owner.end(&assignment, Outcome::Success).await, Ack::Accepted);
        }
    }
    for dag in dags {
        assert_eq!(rig.wait_end(dag, "r").await.state, RunState::Success);
    }
}

/// What any of them hands out.
async fn next(owners: &mut [&mut Owner]) -> Assignment {
    let waiting = async {
        loop {
            if let Some(assignment) = owners.iter_mut().find_map(|owner| owner.try_next()) {
                return assignment;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("an assignment within the time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_give_back_in_doubt_that_lands_later_lets_nobody_use_the_room_twice() {
    let bench = Bench { database: Postgres::shared().database().await, shards: 2 };
    let wire = Wire::to(&bench.database.url).await;
    let (far, rig) = (bench.rig(&wire.url).await, bench.rig(&bench.database.url).await);
    let (mut one, mut two) = (process(&far, "one"), process(&rig, "two"));
    wait("one each", || one.owned().len() == 1 && two.owned().len() == 1).await;
    let giver = ShardId::of_scope(one.owned()[0].as_str()).unwrap();
    let of_shard = |shard: ShardId| {
        let mut names = (0..).map(|number| format!("d{number}"));
        let tenant = TenantId::default_tenant();
        names.find(|name| ShardId::of(&tenant, &DagId::from(name.clone()), 2) == shard).unwrap()
    };
    let (given, taken) = (of_shard(giver), of_shard(ShardId(1 - giver.0)));
    for dag in [&given, &taken] {
        rig.register(DagSpec::new(dag, vec![exec("t")])).await;
    }
    rig.trigger(&given, "first").await;
    one.play(Outcome::Success).await;
    rig.wait_end(&given, "first").await;

    // Its shard still has the place. Another one asks for it, and the answer to its giving it back is lost.
    let held = bench.hold_commits("shares", &format!("OLD.shard = {}", giver.0)).await;
    rig.trigger(&taken, "r").await;
    bench.wait_held().await;
    wire.cut();
    rig.trigger(&given, "r").await;
    check(&rig, &mut [&mut one, &mut two], held, [&given, &taken]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_in_doubt_that_lands_later_lets_no_other_task_use_its_place() {
    let bench = Bench { database: Postgres::shared().database().await, shards: 1 };
    let wire = Wire::to(&bench.database.url).await;
    let (far, rig) = (bench.rig(&wire.url).await, bench.rig(&bench.database.url).await);
    let mut owner = process(&far, "one");
    wait("the shard", || owner.owned().len() == 1).await;
    for (dag, priority) in [("low", 1), ("high", 9)] {
        rig.register(DagSpec::new(dag, vec![TaskSpec { priority, ..exec(dag) }])).await;
    }
    let held = bench.hold_commits("task_instances", "NEW.task_id = 'low' AND NEW.state = 'queued'").await;
    rig.trigger("low", "r").await;
    bench.wait_held().await;
    wire.cut();
    rig.trigger("high", "r").await;
    check(&rig, &mut [&mut owner], held, ["low", "high"]).await;
}
