//! Goal: leases can be kept in any database, and are the same ones when it becomes Tenure's.

mod common;

use common::{client, granted, leases, request, store};
use tenure_clock::Entropy;
use tenure_lease::{LeaseStore, Scope, Takeover};
use tenure_store_postgres::{ConnectError, PostgresLeaseOptions, PostgresLeases};
use tenure_testkit::{Postgres, Settings};

fn scope() -> Scope {
    Scope::new("tests/one")
}

/// Everything about the three tables that a statement could stumble over.
async fn shape(url: &str) -> Vec<String> {
    let sql = "
        SELECT concat_ws(' ', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
            a.attcollation::regcollation, a.attnotnull, pg_get_expr(d.adbin, d.adrelid), c.reloptions)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relname IN ('leases', 'fences', 'lease_terms') AND c.relkind = 'r'
        UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename IN ('leases', 'fences', 'lease_terms')
        ORDER BY 1";
    let rows = client(url).await.query(sql, &[]).await.expect("answered");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_tables_are_the_same_in_a_tenure_database_and_in_any_other() {
    let (tenures, anybodys) = (Postgres::shared().database().await, Postgres::shared().database().await);
    drop(store(&tenures.url, 1).await);
    drop(leases(&anybodys.url).await);
    let shape_there = shape(&tenures.url).await;
    assert_eq!(shape_there.len(), 16 + 3 + 12 + 3, "columns and indexes: {shape_there:#?}");
    assert_eq!(shape_there, shape(&anybodys.url).await);
}

#[tokio::test]
async fn a_database_with_leases_can_become_tenures_and_keeps_every_epoch() {
    let database = Postgres::shared().database().await;
    let before = leases(&database.url).await;
    let first = granted(&*before, &request(&scope(), Takeover::IfFree)).await;
    let ours = store(&database.url, 1).await;
    let found = ours.find_lease(&scope()).await.unwrap().expect("it was kept");
    assert_eq!((found.term, found.epoch), (first.term, first.epoch));
    let heir = granted(&*ours, &request(&scope(), Takeover::OfDead(first.term))).await;
    assert_eq!(heir.epoch.0, first.epoch.0 + 1);
    let shown = before.find_lease(&scope()).await.unwrap().expect("the very same tables");
    assert_eq!(shown.term, heir.term);
}

#[tokio::test]
async fn processes_that_start_together_make_the_tables_once() {
    let database = Postgres::shared().database().await;
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let url = database.url.clone();
            tokio::spawn(
                async move { leases(&url).await.acquire(&request(&scope(), Takeover::IfFree)).await },
            )
        })
        .collect();
    let mut granted = 0;
    for start in starts {
        let outcome = start.await.expect("no panic").expect("answered");
        granted += usize::from(matches!(outcome, tenure_lease::AcquireOutcome::Granted(_)));
    }
    assert_eq!(granted, 1);
}

#[tokio::test]
async fn somebody_elses_table_of_that_name_is_refused_and_left_alone() {
    let database = Postgres::shared().database().await;
    let stranger = client(&database.url).await;
    stranger.batch_execute("CREATE TABLE leases (flat text, tenant text)").await.unwrap();
    let refused =
        PostgresLeases::connect(&database.url, PostgresLeaseOptions::default(), &Entropy::from_os()).await;
    assert!(matches!(refused, Err(ConnectError::Migrate { .. })), "{refused:?}");
    let sql = "SELECT column_name::text FROM information_schema.columns WHERE table_name = 'leases'";
    let columns: Vec<String> = stranger.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(columns, ["flat", "tenant"]);
}

#[tokio::test]
async fn whoever_may_not_make_tables_can_use_those_that_are_there() {
    let server = Postgres::own(Settings::default());
    drop(leases(&server.url()).await);
    let admin = client(&server.url()).await;
    admin
        .batch_execute(
            "CREATE ROLE plain LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON leases, fences, lease_terms TO plain",
        )
        .await
        .unwrap();
    let ours = leases(&server.url().replace("tenure@", "plain@")).await;
    granted(&*ours, &request(&scope(), Takeover::IfFree)).await;
}
