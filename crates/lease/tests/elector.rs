//! Goal: a tenure never outlives its authority, whatever the store and the clock do.
//! Method: validity runs on a clock that moves only when told; renewals are paced by real milliseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_clock::{Clock, Entropy, ManualClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Claim, Elector, ElectorConfig, ElectorError, Epoch, Holder, LeaseError,
    LeaseRecord, LeaseStore, MemoryLeases, ReleaseOutcome, RenewOutcome, Scope, Takeover, Tenure, Term,
};

const DURATION: Duration = Duration::from_millis(60);
const MARGIN: Duration = Duration::from_millis(6);
const PATIENCE: Duration = Duration::from_secs(10);

/// Leases in memory with trouble on the way to them.
struct Troubled {
    leases: MemoryLeases,
    clock: ManualClock,
    /// How long each renewal takes, on the holder's clock.
    renewal_takes: Duration,
    renewals: AtomicU32,
    acquires: AtomicU32,
    trouble: Trouble,
}

#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    /// Renewals do not get through.
    Cut,
    /// The first acquire is granted, and nobody hears of it.
    AnswerLost,
}

#[async_trait]
impl LeaseStore for Troubled {
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        let outcome = self.leases.acquire(request).await;
        let first = self.acquires.fetch_add(1, Ordering::SeqCst) == 0;
        if first && self.trouble == Trouble::AnswerLost {
            return Err(LeaseError::Ambiguous("the answer was lost".into()));
        }
        outcome
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        let outcome = self.leases.renew(claims).await;
        self.clock.advance(self.renewal_takes);
        if self.trouble == Trouble::Cut { Err(LeaseError::Unavailable("cut".into())) } else { outcome }
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.leases.release(claim).await
    }

    async fn list_leases(&self) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.leases.list_leases().await
    }
}

struct Rig {
    store: Arc<Troubled>,
    clock: ManualClock,
    elector: Elector,
}

fn scope() -> Scope {
    Scope::new("scheduler/shard-00")
}

fn holder(name: &str) -> Holder {
    Holder { name: name.into(), instance: name.into(), address: None }
}

fn rig(trouble: Trouble, renewal_takes: Duration, duration: Duration) -> Rig {
    let clock = ManualClock::starting_at(Timestamp::UNIX_EPOCH);
    let store = Arc::new(Troubled {
        leases: MemoryLeases::new(Arc::new(clock.clone())),
        clock: clock.clone(),
        renewal_takes,
        renewals: AtomicU32::new(0),
        acquires: AtomicU32::new(0),
        trouble,
    });
    let config = ElectorConfig { holder: holder("a"), duration, margin: MARGIN };
    let elector =
        Elector::start(store.clone(), config, Arc::new(clock.clone()) as Arc<dyn Clock>, Entropy::seeded(1))
            .unwrap();
    Rig { store, clock, elector }
}

impl Rig {
    async fn lead(&self) -> Tenure {
        self.elector.acquire(&scope(), Takeover::IfFree, "test").await.unwrap()
    }

    async fn renewed(&self, times: u32) {
        let done = async {
            while self.store.renewals.load(Ordering::SeqCst) < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, done).await.expect("renewals go out");
    }

    /// Somebody else, with a term of its own.
    async fn rival(&self, takeover: Takeover) -> AcquireOutcome {
        let request = AcquireRequest {
            scope: scope(),
            holder: holder("b"),
            term: Term(Entropy::seeded(2).uuid(Timestamp::UNIX_EPOCH)),
            duration: DURATION,
            takeover,
            note: String::new(),
        };
        self.store.leases.acquire(&request).await.unwrap()
    }
}

#[tokio::test]
async fn authority_ends_by_itself_a_margin_before_others_see_the_lease_expire() {
    // A duration so long that no renewal goes out during the test.
    let rig = rig(Trouble::None, Duration::ZERO, Duration::from_secs(600));
    let tenure = rig.lead().await;
    rig.clock.advance(Duration::from_secs(600) - MARGIN - Duration::from_millis(1));
    assert!(tenure.guard().is_ok());
    rig.clock.advance(Duration::from_millis(1));
    assert!(tenure.guard().is_err());
    assert!(matches!(rig.rival(Takeover::IfFree).await, AcquireOutcome::Held(_)), "for others it still runs");
}

#[tokio::test]
async fn a_slow_renewal_counts_from_when_it_was_sent() {
    let rig = rig(Trouble::None, Duration::from_millis(20), DURATION);
    let tenure = rig.lead().await;
    rig.renewed(1).await;
    let settled = async {
        while tenure.valid_for() != DURATION - MARGIN - Duration::from_millis(20) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("20 ms of the answer's way are not trusted");
}

#[tokio::test]
async fn a_superseded_holder_learns_it_with_the_next_renewal() {
    let rig = rig(Trouble::None, Duration::ZERO, DURATION);
    let tenure = rig.lead().await;
    assert!(
        matches!(rig.rival(Takeover::OfDead(tenure.term())).await, AcquireOutcome::Granted(record) if record.epoch == Epoch(2))
    );
    tokio::time::timeout(PATIENCE, tenure.lost().cancelled()).await.expect("the loss is noticed");
    assert!(tenure.guard().is_err());
}

#[tokio::test]
async fn a_holder_that_is_cut_off_stops_at_its_deadline_and_says_that_renewals_fail() {
    let rig = rig(Trouble::Cut, Duration::from_millis(10), DURATION);
    let tenure = rig.lead().await;
    rig.renewed(1).await;
    tokio::time::timeout(PATIENCE, tenure.lost().cancelled()).await.expect("it steps down");
    assert!(tenure.guard().is_err());
    assert!(!tenure.renewal_status().last_renewal_succeeded);
    // 54 ms of trust, 10 ms for every failed call: it tried, and it stopped trying.
    let renewals = rig.store.renewals.load(Ordering::SeqCst);
    assert!((2..=8).contains(&renewals), "{renewals} renewals");
}

#[tokio::test]
async fn a_lost_answer_to_an_acquire_is_repaired_without_a_second_epoch() {
    let rig = rig(Trouble::AnswerLost, Duration::ZERO, DURATION);
    assert_eq!(rig.lead().await.epoch(), Epoch(1));
}

#[tokio::test]
async fn a_released_lease_is_free_at_once_and_a_late_release_blanks_nobody() {
    let rig = rig(Trouble::None, Duration::ZERO, DURATION);
    let tenure = rig.lead().await;
    let claim = Claim { scope: scope(), term: tenure.term(), epoch: tenure.epoch(), duration: DURATION };
    rig.elector.release(&scope()).await;
    assert!(tenure.guard().is_err());
    assert!(
        matches!(rig.rival(Takeover::IfFree).await, AcquireOutcome::Granted(record) if record.epoch == Epoch(2))
    );
    assert_eq!(rig.store.release(&claim).await.unwrap(), ReleaseOutcome::NotApplied);
    assert!(!rig.store.list_leases().await.unwrap()[0].released);
}

#[tokio::test]
async fn the_loser_learns_who_holds_it_and_for_how_long() {
    let rig = rig(Trouble::None, Duration::ZERO, DURATION);
    rig.rival(Takeover::IfFree).await;
    let error = rig.elector.acquire(&scope(), Takeover::IfFree, "test").await.unwrap_err();
    assert_eq!(error.to_string(), "b holds scheduler/shard-00 at e1 for another 60ms");
}

#[tokio::test]
async fn a_configuration_without_slack_is_refused_with_its_arithmetic() {
    let leases = Arc::new(MemoryLeases::new(Arc::new(ManualClock::starting_at(Timestamp::UNIX_EPOCH))));
    let config = ElectorConfig { holder: holder("a"), duration: DURATION, margin: DURATION / 3 };
    let clock = Arc::new(ManualClock::starting_at(Timestamp::UNIX_EPOCH));
    let error = Elector::start(leases, config, clock, Entropy::seeded(1)).unwrap_err();
    assert!(matches!(&error, ElectorError::NoSlack { .. }));
    assert!(error.to_string().contains("the margin must be below a third"), "{error}");
}
