//! Goal: many scopes cost one renewal, lose one by one, and are shared out evenly. Method: real electors with workers
//! that do nothing but count; leases so long that nothing is due to one running out, unless a test is about that.

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use prometheus_client::registry::Registry;
use rig::{
    DURATION, Fault, LONG, Troubled, Verb, campaign, config, elected, fenced, in_time, scope, stand, start,
    until,
};
use tenure_clock::SystemClock;
use tenure_lease::{Elector, ElectorConfig, LeaseMetrics, LossReason, Scope, Session, Tenure};
use tokio::task::JoinHandle;

fn scopes(count: usize) -> Vec<Scope> {
    (0..count).map(|number| Scope::new(format!("shards/{number:04}"))).collect()
}

#[tokio::test]
async fn a_thousand_scopes_are_renewed_in_one_call_and_lost_one_by_one() {
    let store = fenced();
    let elector = start(&store, config("a", DURATION * 6));
    let mut candidacy = elector.campaign(campaign(scopes(1000)));
    let mut held: BTreeMap<Scope, Tenure> = BTreeMap::new();
    while held.len() < 1000 {
        let tenure = elected(&mut candidacy).await;
        held.insert(tenure.scope().clone(), tenure);
    }
    // The seat among the members is renewed with them.
    store.renewals.lock().unwrap().clear();
    until("renewals", || store.renewals.lock().unwrap().len() >= 3).await;
    assert!(store.renewals.lock().unwrap().iter().all(|batch| *batch == 1001));

    let gone: BTreeSet<Scope> = held.keys().skip(400).step_by(10).take(10).cloned().collect();
    gone.iter().for_each(|scope| store.leases.forget_lease(scope));
    for scope in &gone {
        in_time("the loss", held[scope].lost().cancelled()).await;
        assert_eq!(held[scope].why_lost(), Some(&LossReason::Gone));
    }
    assert!(held.iter().all(|(scope, tenure)| gone.contains(scope) == tenure.guard().is_err()));
    // Those are free, and won again.
    let mut again = BTreeSet::new();
    while again.len() < gone.len() {
        again.insert(elected(&mut candidacy).await.scope().clone());
    }
    assert_eq!(again, gone);
    assert!(held.iter().all(|(scope, tenure)| gone.contains(scope) == tenure.guard().is_err()));
}

/// A process that works under whatever it wins, and stops when asked.
struct Member {
    elector: Elector,
    session: Session,
    held: Arc<Mutex<BTreeSet<Scope>>>,
    work: JoinHandle<()>,
}

impl Member {
    fn start(store: &Arc<Troubled>, name: &str, scopes: Vec<Scope>) -> Self {
        let config = ElectorConfig { crash_hints: true, ..config(name, LONG) };
        let session = config.holder.session;
        let elector = start(store, config);
        let mut candidacy = elector.campaign(campaign(scopes));
        let held: Arc<Mutex<BTreeSet<Scope>>> = Arc::default();
        let counted = Arc::clone(&held);
        let work = tokio::spawn(async move {
            while let Some(tenure) = candidacy.elected().await {
                assert!(counted.lock().unwrap().insert(tenure.scope().clone()), "won once");
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    tokio::select! {
                        () = tenure.asked_back().cancelled() => {}
                        () = tenure.lost().cancelled() => {}
                    }
                    counted.lock().unwrap().remove(tenure.scope());
                });
            }
        });
        Self { elector, session, held, work }
    }

    fn count(&self) -> usize {
        self.held.lock().unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_share_sixty_scopes_and_again_after_one_stops_and_one_crashes() {
    let store = fenced();
    let a = Member::start(&store, "a", scopes(60));
    until("the first to have all", || a.count() == 60).await;
    let (b, c) = (Member::start(&store, "b", scopes(60)), Member::start(&store, "c", scopes(60)));
    until("thirds", || [a.count(), b.count(), c.count()] == [20, 20, 20]).await;
    in_time("the stop", b.elector.stop()).await;
    until("halves", || [a.count(), b.count(), c.count()] == [30, 0, 30]).await;
    in_time("the end of the work", b.work).await.unwrap();
    // Gone without a word; somebody sees it.
    drop(c.elector);
    store.leases.crash(c.session);
    until("the rest", || a.count() == 60).await;
}

#[tokio::test]
async fn every_figure_is_there_after_a_takeover_a_failure_and_a_loss() {
    let store = fenced();
    let mut registry = Registry::default();
    let metrics = LeaseMetrics::register(&mut registry, Arc::new(SystemClock));
    let elector =
        rig::start_with(&store, config("host-1:7", DURATION), Arc::new(SystemClock), metrics.clone());
    // Free, and its only candidate cannot take it.
    store.fail(Verb::Acquire, Fault::Unavailable, usize::MAX);
    let mut candidacy = stand(&elector);
    let ownerless = || scrape(&registry).contains("tenure_lease_ownerless_seconds{");
    until("the scope to be seen", ownerless).await;
    until("time without an owner", || value(&scrape(&registry), "tenure_lease_ownerless_seconds") > 0.0)
        .await;
    store.heal();
    let tenure = elected(&mut candidacy).await;
    store.fail(Verb::Renew, Fault::Unavailable, 1);
    until("a failed renewal", || !tenure.renewal_status().last_renewal_succeeded).await;
    until("a renewal", || tenure.renewal_status().last_renewal_succeeded).await;
    store.leases.forget_lease(&scope());
    in_time("the loss", tenure.lost().cancelled()).await;
    let tenure = elected(&mut candidacy).await;
    metrics.fenced_write(&scope());
    let text = scrape(&registry);
    let shown = |line: &str| assert!(text.lines().any(|l| l.starts_with(line)), "no {line} in\n{text}");
    shown(r#"tenure_lease_epoch{scope="controller/leader"} 2"#);
    shown(r#"tenure_lease_leading{scope="controller/leader"} 1"#);
    shown(r#"tenure_lease_holder{scope="controller/leader",holder="host-1:7"} 1"#);
    shown(r#"tenure_lease_takeovers_total{scope="controller/leader",reason="first"} 2"#);
    shown(r#"tenure_lease_losses_total{scope="controller/leader",reason="gone"} 1"#);
    shown(r#"tenure_lease_renewal_errors_total{scope="controller/leader"} 1"#);
    shown(r#"tenure_lease_fenced_writes_total{scope="controller/leader"} 1"#);
    shown(r#"tenure_lease_ownerless_seconds{scope="controller/leader"} 0"#);
    assert!(value(&text, "tenure_lease_valid_seconds") > 0.0, "{text}");
    assert!(value(&text, "tenure_lease_renewed_timestamp_seconds") > 1.7e9, "{text}");
    let renewals = text.lines().find_map(|l| l.strip_prefix("tenure_lease_renewal_seconds_count ")).unwrap();
    assert!(renewals.parse::<u64>().unwrap() >= 2, "{text}");

    store.cut();
    in_time("the loss", tenure.lost().cancelled()).await;
    let text = scrape(&registry);
    assert!(text.contains(r#"tenure_lease_leading{scope="controller/leader"} 0"#), "{text}");
    assert!(value(&text, "tenure_lease_valid_seconds") == 0.0, "{text}");
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}{{")));
    line.and_then(|line| line.rsplit_once(' '))
        .unwrap_or_else(|| panic!("no {name} in\n{text}"))
        .1
        .parse()
        .unwrap()
}
