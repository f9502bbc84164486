//! Real electors on leases in memory, with trouble on the way to the store when a test asks for it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Campaign, Candidacy, Capabilities, Claim, Elector, ElectorConfig,
    ElectorParts, Epoch, FenceStore, Hint, Holder, LeaseError, LeaseMetrics, LeaseRecord, LeaseStore,
    Lifeline, MemoryLeases, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Tenure, Term,
};
use tokio::sync::broadcast;

/// Long enough for a busy machine, short enough to wait for it to run out.
pub const DURATION: Duration = Duration::from_secs(1);
/// So long that nothing which is awaited in a test can be due to a lease running out.
pub const LONG: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Acquire,
    Renew,
    Release,
    Attach,
    Look,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Unavailable,
    /// It is not applied, and nobody can tell.
    LostBefore,
    /// It is applied, and nobody can tell.
    LostAfter,
    Panic,
    /// It is applied at once, and the answer takes this long.
    Slow(Duration),
}

/// Leases in memory with trouble on the way to them.
#[derive(Debug)]
pub struct Troubled {
    pub leases: MemoryLeases,
    faults: Mutex<BTreeMap<Verb, (Fault, usize)>>,
    /// How many leases each renewal has covered.
    pub renewals: Mutex<Vec<usize>>,
}

impl Troubled {
    pub fn new(leases: MemoryLeases) -> Arc<Self> {
        Arc::new(Self { leases, faults: Mutex::default(), renewals: Mutex::default() })
    }

    /// The next so many calls of this kind end like this.
    pub fn fail(&self, verb: Verb, fault: Fault, times: usize) {
        self.faults.lock().unwrap().insert(verb, (fault, times));
    }

    pub fn heal(&self) {
        self.faults.lock().unwrap().clear();
    }

    /// Nothing gets through.
    pub fn cut(&self) {
        for verb in [Verb::Acquire, Verb::Renew, Verb::Release, Verb::Look] {
            self.fail(verb, Fault::Unavailable, usize::MAX);
        }
    }

    fn next_fault(&self, verb: Verb) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let (fault, left) = faults.get_mut(&verb).filter(|(_, left)| *left > 0)?;
        *left -= 1;
        Some(*fault)
    }

    async fn through<T>(
        &self,
        verb: Verb,
        work: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        match self.next_fault(verb) {
            None => work.await,
            Some(Fault::Unavailable) => Err(LeaseError::Unavailable("cut".into())),
            Some(Fault::LostBefore) => Err(LeaseError::Ambiguous("lost on the way there".into())),
            Some(Fault::LostAfter) => {
                work.await?;
                Err(LeaseError::Ambiguous("lost on the way back".into()))
            }
            Some(Fault::Panic) => panic!("a mistake in the backend"),
            Some(Fault::Slow(time)) => {
                let outcome = work.await;
                tokio::time::sleep(time).await;
                outcome
            }
        }
    }
}

#[async_trait]
impl LeaseStore for Troubled {
    fn capabilities(&self) -> Capabilities {
        self.leases.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        // Members' seats are not what these tests are about.
        match request.scope.as_member() {
            Some(_) => self.leases.acquire(request).await,
            None => self.through(Verb::Acquire, self.leases.acquire(request)).await,
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.renewals.lock().unwrap().push(claims.len());
        self.through(Verb::Renew, self.leases.renew(claims)).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        match claim.scope.as_member() {
            Some(_) => self.leases.release(claim).await,
            None => self.through(Verb::Release, self.leases.release(claim)).await,
        }
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.through(Verb::Look, self.leases.list_leases(under)).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.through(Verb::Look, self.leases.find_lease(scope)).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.leases.lease_history(scope, limit).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.leases.watch()
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        self.through(Verb::Attach, self.leases.attach(session)).await
    }
}

#[async_trait]
impl FenceStore for Troubled {
    async fn install_fence(&self, scope: &Scope, term: Term, floor: Epoch) -> Result<Epoch, LeaseError> {
        self.leases.install_fence(scope, term, floor).await
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        self.leases.fence(scope).await
    }
}

pub fn fenced() -> Arc<Troubled> {
    Troubled::new(MemoryLeases::new(Arc::new(SystemClock)))
}

pub fn unfenced() -> Arc<Troubled> {
    Troubled::new(MemoryLeases::unfenced(Arc::new(SystemClock)))
}

pub fn scope() -> Scope {
    Scope::new("controller/leader")
}

pub fn session() -> Session {
    Session(Entropy::from_os().uuid(Timestamp::UNIX_EPOCH))
}

pub fn config(name: &str, duration: Duration) -> ElectorConfig {
    let (name, instance) = (name.to_owned(), name.to_owned());
    let holder = Holder { name, instance, session: session(), address: None };
    ElectorConfig::new(holder, duration)
}

pub fn start(store: &Arc<Troubled>, config: ElectorConfig) -> Elector {
    start_with(store, config, Arc::new(SystemClock), LeaseMetrics::default())
}

pub fn start_with(
    store: &Arc<Troubled>,
    config: ElectorConfig,
    clock: Arc<dyn Clock>,
    metrics: LeaseMetrics,
) -> Elector {
    let (leases, fences) =
        (Arc::clone(store) as Arc<dyn LeaseStore>, Arc::clone(store) as Arc<dyn FenceStore>);
    let parts = ElectorParts { leases, fences, clock, entropy: Entropy::from_os(), metrics };
    Elector::start(parts, config).unwrap()
}

pub fn campaign(scopes: Vec<Scope>) -> Campaign {
    Campaign { component: "controller".into(), scopes, note: "test".into(), sole_instance: false }
}

pub fn stand(elector: &Elector) -> Candidacy {
    elector.campaign(campaign(vec![scope()]))
}

/// The next election, which must come.
pub async fn elected(candidacy: &mut Candidacy) -> Tenure {
    in_time("an election", candidacy.elected()).await.expect("the elector runs")
}

pub async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let work = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(what, work).await;
}

/// As the store has it, past all trouble.
pub async fn record(store: &Troubled) -> LeaseRecord {
    store.leases.find_lease(&scope()).await.unwrap().expect("it was taken once")
}

/// Nobody is elected in a while. Only says so after some real time.
pub async fn nobody(candidacy: &mut Candidacy, for_: Duration) {
    let elected = tokio::time::timeout(for_, candidacy.elected()).await;
    assert!(elected.is_err(), "elected: {elected:?}");
}
