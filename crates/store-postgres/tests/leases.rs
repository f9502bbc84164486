//! Goal: leases on Postgres behave as they do everywhere. Method: the shared suite, each fact in a database of
//! its own that nothing of Tenure's was in before.

mod common;

use common::{client, leases};
use tenure_lease_conformance::{Deed, Fresh};
use tenure_testkit::Postgres;

async fn fresh() -> Fresh {
    let database = Postgres::shared().database().await;
    let leases = leases(&database.url).await;
    let url = database.url.clone();
    let forget_leases: Deed = Box::new(move || {
        let url = url.clone();
        Box::pin(
            async move { client(&url).await.batch_execute("DELETE FROM leases").await.expect("deleted") },
        )
    });
    Fresh { leases: leases.clone(), fences: leases, forget_leases, keep: Box::new(database) }
}

tenure_lease_conformance::exercise!(fresh);
