//! The elector over HTTP, as `tenure elect` uses it.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Entropy, SystemClock};
use tenure_lease::{
    Campaign, Candidacy, Elector, ElectorConfig, ElectorParts, FenceStore, LeaseMetrics, Scope, Tenure,
};
use tenure_lease_http::HttpLeases;

use crate::harness::{Real, holder, leases_at, memory};

const PATIENCE: Duration = Duration::from_secs(30);

fn stand(leases: HttpLeases, name: &str) -> (Elector, Candidacy) {
    let leases = Arc::new(leases);
    let parts = ElectorParts {
        leases: leases.clone(),
        fences: leases,
        clock: Arc::new(SystemClock),
        entropy: Entropy::from_os(),
        metrics: LeaseMetrics::default(),
    };
    let elector = Elector::start(parts, ElectorConfig::new(holder(name), Duration::from_secs(60))).unwrap();
    let candidacy = elector.campaign(Campaign {
        component: "controller".into(),
        scopes: vec![Scope::new("controller/leader")],
        note: String::new(),
        sole_instance: false,
    });
    (elector, candidacy)
}

async fn elected(candidacy: &mut Candidacy) -> Tenure {
    let elected = tokio::time::timeout(PATIENCE, candidacy.elected()).await;
    elected.expect("elected in time").expect("the elector runs")
}

/// Far below the duration: only the hint of the release can have woken the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_follows_at_once_on_a_clean_end() {
    let memory = memory();
    let real = Real::start(&memory).await;
    let (first, mut candidacy) = stand(leases_at(&[real.address]), "a:1");
    let leader = elected(&mut candidacy).await;
    let (_second, mut waiting) = stand(leases_at(&[real.address]), "b:1");
    drop(candidacy);
    drop(leader);
    tokio::time::timeout(PATIENCE, first.stop()).await.expect("stops in time");
    let successor = elected(&mut waiting).await;
    assert!(successor.guard().is_ok());
    let fence = memory.fence(&Scope::new("controller/leader")).await.unwrap();
    assert_eq!(fence.map(|(epoch, _)| epoch), Some(successor.epoch()));
    assert_eq!(successor.record().holder.name, "b:1");
}
