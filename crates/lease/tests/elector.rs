//! Goal: a term begins, lasts and ends as promised. Method: real electors, real milliseconds, leases in memory.
//! Where something must happen at once, the lease is so long that it cannot happen for any other reason.

mod rig;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rig::{
    DURATION, LONG, campaign, config, elected, fenced, in_time, nobody, record, scope, stand, start, until,
};
use tenure_clock::{Clock, Entropy, ManualClock, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Elector, ElectorError, ElectorParts, Epoch, FenceStore, Holder,
    LeaseMetrics, LeaseStore, LossReason, MemoryLeases, Phase, Scope, Succession, Takeover, Term,
    acquire_fenced,
};

#[tokio::test]
async fn the_only_candidate_wins_and_is_renewed_beyond_the_duration() {
    let store = fenced();
    let elector = start(&store, config("a", DURATION));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    assert_eq!((tenure.epoch(), tenure.record().succession), (Epoch(1), Succession::First));
    assert_eq!(tenure.record().note, "test");
    let first = tenure.valid_until();
    let mut renewals = tenure.renewals();
    in_time("renewals", renewals.wait_for(|until| *until > first + DURATION)).await.unwrap();
    assert_eq!(tenure.guard().unwrap().epoch(), Epoch(1));
    assert_eq!(elector.scope_status(&scope()).unwrap().phase, Phase::Leading);
    assert!(tenure.renewal_status().leading && tenure.renewal_status().last_renewal_succeeded);
    elector.stop().await;
}

#[tokio::test]
async fn a_released_scope_is_the_waiting_candidates_at_once() {
    let store = fenced();
    let (a, b) = (start(&store, config("a", LONG)), start(&store, config("b", LONG)));
    let mut first = stand(&a);
    let tenure = elected(&mut first).await;
    let mut second = stand(&b);
    nobody(&mut second, Duration::from_millis(100)).await;
    assert_eq!(b.scope_status(&scope()).unwrap().record.unwrap().holder.name, "a");
    let stopping = async {
        tenure.asked_back().cancelled().await;
        tenure.resign().await;
    };
    in_time("the withdrawal", async { tokio::join!(first.withdraw(), stopping) }).await;
    let successor = elected(&mut second).await;
    assert_eq!((successor.epoch(), successor.record().succession), (Epoch(2), Succession::Released));
    assert!(tenure.guard().is_err() && tenure.why_lost().is_none(), "given back, not lost");
}

#[tokio::test]
async fn a_holder_that_vanishes_is_succeeded_when_its_lease_runs_out() {
    let store = fenced();
    let (a, b) = (start(&store, config("a", DURATION)), start(&store, config("b", DURATION)));
    let mut first = stand(&a);
    let tenure = elected(&mut first).await;
    let mut second = stand(&b);
    drop(a);
    let successor = elected(&mut second).await;
    assert_eq!((successor.epoch(), successor.record().succession), (Epoch(2), Succession::Expired));
    assert!(tenure.guard().is_err());
}

#[tokio::test]
async fn a_winner_installs_its_fence_before_it_leads() {
    let store = rig::unfenced();
    let elector = start(&store, config("a", LONG));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    assert_eq!(store.fence(&scope()).await.unwrap(), Some((tenure.epoch(), tenure.term())));
    assert_eq!(record(&store).await.epoch, tenure.epoch());
    // The lease is lost with all its records; the epoch goes on from the fence.
    store.leases.forget_lease(&scope());
    in_time("the loss", tenure.lost().cancelled()).await;
    assert_eq!(tenure.why_lost(), Some(&LossReason::Gone));
    assert_eq!(elected(&mut candidacy).await.epoch(), Epoch(2));
}

#[tokio::test]
async fn being_superseded_is_seen_at_once() {
    let store = fenced();
    let elector = start(&store, config("a", LONG));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    let outcome = store.leases.acquire(&request("b", Takeover::OfDead(tenure.term()))).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Granted(_)));
    in_time("the loss", tenure.lost().cancelled()).await;
    assert!(matches!(tenure.why_lost(), Some(LossReason::Superseded { epoch: Epoch(2), .. })));
    assert!(tenure.guard().is_err());
}

#[tokio::test]
async fn work_that_takes_longer_to_stop_than_the_lease_lasts_keeps_its_lease() {
    let store = fenced();
    let config = tenure_lease::ElectorConfig { drain_for: LONG, ..config("a", DURATION) };
    let elector = start(&store, config);
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    let (asked, first) = (tenure.asked_back().clone(), tenure.valid_until());
    let work = async {
        asked.cancelled().await;
        let mut renewals = tenure.renewals();
        renewals.wait_for(|until| *until > first + DURATION * 2).await.unwrap();
        assert!(tenure.guard().is_ok(), "still leading while it stops");
        assert!(record(&store).await.is_held());
        tenure.resign().await;
    };
    in_time("the withdrawal", async { tokio::join!(candidacy.withdraw(), work) }).await;
    assert!(record(&store).await.released);
    assert_eq!(tenure.why_lost(), None);
}

#[tokio::test]
async fn work_that_does_not_stop_in_time_loses_its_authority_and_the_scope_goes_on() {
    let store = fenced();
    let config = tenure_lease::ElectorConfig { drain_for: Duration::from_millis(100), ..config("a", LONG) };
    let elector = start(&store, config);
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    in_time("the withdrawal", candidacy.withdraw()).await;
    assert_eq!(tenure.why_lost(), Some(&LossReason::DrainTimedOut));
    assert!(tenure.guard().is_err());
    assert!(record(&store).await.released);
}

#[tokio::test]
async fn dropping_the_last_clone_of_a_tenure_resigns() {
    let store = fenced();
    let elector = start(&store, config("a", LONG));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    let clone = tenure.clone();
    drop(tenure);
    assert!(clone.guard().is_ok());
    drop(clone);
    // It stands for the scope still, and wins it again under a new epoch.
    assert_eq!(elected(&mut candidacy).await.epoch(), Epoch(2));
}

#[tokio::test]
async fn a_term_that_nobody_has_taken_up_does_not_hold_up_a_stop_and_is_not_worked_under() {
    let store = fenced();
    let elector = start(&store, config("a", LONG));
    let mut candidacy = stand(&elector);
    until("the election", || elector.scope_status(&scope()).is_some_and(|s| s.phase == Phase::Leading)).await;
    in_time("the stop", elector.stop()).await;
    assert!(record(&store).await.released);
    assert!(in_time("the end", candidacy.elected()).await.is_none(), "nobody is elected any more");
}

#[tokio::test]
async fn a_clean_stop_keeps_the_lease_until_the_work_has_stopped_and_elects_nobody_afterwards() {
    let store = fenced();
    let elector = Arc::new(start(&store, config("a", LONG)));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    let stopping = tokio::spawn({
        let elector = Arc::clone(&elector);
        async move { elector.stop().await }
    });
    in_time("being asked back", tenure.asked_back().cancelled()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(tenure.guard().is_ok() && record(&store).await.is_held(), "held while the work goes on");
    in_time("the resignation", tenure.resign()).await;
    assert!(record(&store).await.released);
    in_time("the stop", stopping).await.unwrap();
    assert!(in_time("the end", candidacy.elected()).await.is_none());
    let mut late = elector.campaign(campaign(vec![scope()]));
    assert!(in_time("the end", late.elected()).await.is_none(), "a stopped elector elects nobody");
}

#[tokio::test]
async fn identical_names_are_two_members_and_one_of_them_leads() {
    let store = fenced();
    let (a, b) = (start(&store, config("same", LONG)), start(&store, config("same", LONG)));
    let (mut first, mut second) = (stand(&a), stand(&b));
    let (leader, other) = in_time("an election", async {
        tokio::select! {
            tenure = first.elected() => (tenure.unwrap(), &mut second),
            tenure = second.elected() => (tenure.unwrap(), &mut first),
        }
    })
    .await;
    nobody(other, Duration::from_millis(200)).await;
    let seats = store.leases.list_leases("members/controller/").await.unwrap();
    assert_eq!(seats.iter().filter(|seat| seat.is_held()).count(), 2, "{seats:?}");
    leader.resign().await;
    let successor = elected(other).await;
    assert_eq!(successor.epoch(), Epoch(2));
    assert_ne!(successor.term(), leader.term());
}

#[tokio::test]
async fn what_a_sole_instance_has_left_behind_is_taken_over_at_once() {
    let store = fenced();
    let predecessor = start(&store, config("a", LONG));
    let mut first = stand(&predecessor);
    let tenure = elected(&mut first).await;
    drop(predecessor);
    let elector = start(&store, config("a", LONG));
    let campaign = tenure_lease::Campaign { sole_instance: true, ..campaign(vec![scope()]) };
    let mut candidacy = elector.campaign(campaign);
    let successor = elected(&mut candidacy).await;
    assert_eq!((successor.epoch(), successor.record().succession), (Epoch(2), Succession::Crashed));
    assert!(tenure.guard().is_err());
}

#[tokio::test]
async fn a_suspended_machine_loses_its_terms_and_stands_again() {
    let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
    let store = rig::Troubled::new(MemoryLeases::new(Arc::new(clock.clone())));
    let elector =
        rig::start_with(&store, config("a", LONG), Arc::new(clock.clone()), LeaseMetrics::default());
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    // More than the margin of a tenth, and less than the lease.
    clock.suspend(LONG / 5);
    in_time("the loss", tenure.lost().cancelled()).await;
    assert_eq!(tenure.why_lost(), Some(&LossReason::Suspended));
    assert_eq!(elected(&mut candidacy).await.epoch(), Epoch(2));
}

#[tokio::test]
async fn a_term_is_not_lost_for_a_suspend_that_came_before_it() {
    let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
    let store = rig::Troubled::new(MemoryLeases::new(Arc::new(clock.clone())));
    let elector =
        rig::start_with(&store, config("a", LONG), Arc::new(clock.clone()), LeaseMetrics::default());
    clock.suspend(LONG / 5);
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    let lost = tokio::time::timeout(Duration::from_millis(600), tenure.lost().cancelled()).await;
    assert!(lost.is_err(), "lost: {:?}", tenure.why_lost());
}

#[tokio::test]
async fn a_holder_that_was_fenced_ends_its_term_and_stands_again() {
    let store = fenced();
    let metrics = LeaseMetrics::default();
    let elector = rig::start_with(&store, config("a", LONG), Arc::new(SystemClock), metrics);
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    tenure.fenced();
    assert!(tenure.guard().is_err(), "at once");
    assert_eq!(tenure.why_lost(), Some(&LossReason::Fenced));
    in_time("the end of the term", tenure.resign()).await;
    assert!(elected(&mut candidacy).await.epoch() > tenure.epoch());
}

#[tokio::test]
async fn while_leading_drops_the_work_with_the_term() {
    let store = fenced();
    let elector = start(&store, config("a", LONG));
    let mut candidacy = stand(&elector);
    let tenure = elected(&mut candidacy).await;
    assert_eq!(tenure.while_leading(async { 7 }).await, Ok(7));
    store.leases.forget_lease(&scope());
    let lost = in_time("the loss", tenure.while_leading(std::future::pending::<()>())).await.unwrap_err();
    assert_eq!(
        lost.to_string(),
        "no longer leading controller/leader: the term at e1 was lost or has run out"
    );
}

#[tokio::test]
async fn a_configuration_without_slack_is_refused_with_its_arithmetic() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let store = Arc::new(MemoryLeases::new(Arc::clone(&clock)));
    let refused = |duration: Duration, margin: Duration| {
        let (leases, fences) = (Arc::clone(&store) as _, Arc::clone(&store) as _);
        let (entropy, metrics) = (Entropy::seeded(1), LeaseMetrics::default());
        let parts = ElectorParts { leases, fences, clock: Arc::clone(&clock), entropy, metrics };
        Elector::start(parts, tenure_lease::ElectorConfig { margin, ..config("a", duration) }).unwrap_err()
    };
    let error = refused(Duration::from_secs(24), Duration::from_secs(6));
    assert!(matches!(error, ElectorError::NoSlack { .. }));
    assert_eq!(
        error.to_string(),
        "a lease of 24s with a margin of 6s leaves no room: a renewal goes out after 8s, may take up to as long, and is \
         tried again at 19s at the latest, which must be before 18s (the duration less the margin, which must not \
         be zero)"
    );
    assert!(matches!(refused(DURATION, Duration::ZERO), ElectorError::NoSlack { .. }));
    let error = refused(Duration::from_micros(10), Duration::from_micros(1));
    assert_eq!(error.to_string(), "a lease of 10µs is too short for memory, which needs at least 1ms");
}

#[tokio::test]
async fn one_try_without_an_elector_wins_or_names_the_holder() {
    for store in [fenced(), rig::unfenced()] {
        let won = acquire_fenced(&*store, &*store, &request("a", Takeover::IfFree)).await.unwrap();
        let AcquireOutcome::Granted(won) = won else { panic!("{won:?}") };
        assert_eq!(store.fence(&scope()).await.unwrap(), Some((won.epoch, won.term)));
        let lost = acquire_fenced(&*store, &*store, &request("b", Takeover::IfFree)).await.unwrap();
        let AcquireOutcome::Held(by) = lost else { panic!("{lost:?}") };
        assert_eq!((by.holder.name.as_str(), by.epoch), ("a", won.epoch));
    }
}

fn request(name: &str, takeover: Takeover) -> AcquireRequest {
    let holder = Holder { name: name.into(), instance: name.into(), session: rig::session(), address: None };
    let term = Term(Entropy::from_os().uuid(Timestamp::UNIX_EPOCH));
    AcquireRequest {
        scope: Scope::new("controller/leader"),
        holder,
        term,
        duration: LONG,
        takeover,
        note: String::new(),
    }
}
