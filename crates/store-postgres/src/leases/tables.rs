//! The tables of leases in a database that need not be Tenure's.

use deadpool_postgres::Pool;
use tenure_store::StoreError;

use super::verbs::PROBES;
use crate::connect::ConnectError;
use crate::migrate;
use crate::session::Session;

/// All or nothing: they are made in one transaction.
const THERE: &str = "SELECT to_regclass('leases') IS NOT NULL AND to_regclass('fences') IS NOT NULL
    AND to_regclass('lease_terms') IS NOT NULL";

/// Makes what is absent, once, whoever comes first. A database that has them already is only read: its user
/// need not be allowed to make any.
pub(super) async fn ensure(pool: &Pool, target: &str) -> Result<(), ConnectError> {
    let failed =
        |error: StoreError| ConnectError::Migrate { target: target.to_owned(), source: error.into() };
    let session = Session::begin(pool, "looking for the lease tables").await.map_err(failed)?;
    let outcome = make(&session).await;
    session.finish(outcome).await.map_err(failed)
}

async fn make(session: &Session) -> Result<(), StoreError> {
    let there = session.row(THERE, &[]).await?.expect("a row without a table");
    if !there.get::<_, bool>(0) {
        session.batch(migrate::ALONE).await?;
        session.batch(migrate::LEASES).await?;
    }
    // Tables of somebody else's that happen to have these names are found out here, before they are changed
    // for good.
    for probe in PROBES {
        session.prepare(&[probe]).await?;
    }
    Ok(())
}
