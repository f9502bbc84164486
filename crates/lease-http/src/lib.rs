//! Leases kept by a Tenure server, over its HTTP API: for programs that have a server and no database.
//!
//! Promises: what the server grants is fenced, because the server installs the fence with the lease. Of every
//! request that failed it is known whether it may have been carried out: one that was certainly not sent is
//! [`Unavailable`](LeaseError::Unavailable), one whose answer was lost is [`Ambiguous`](LeaseError::Ambiguous). Every
//! call ends by itself, also one that nobody waits for any more. Several servers over one database are tried in turn.
//!
//! Not promised: crash hints. The server sees a request end, not a process; expiry is what frees a crashed holder's
//! lease.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tenure_clock::{Entropy, SystemClock};
//! use tenure_lease::LeaseStore;
//! use tenure_lease_http::HttpLeases;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = "http://tenure-1:8080,http://tenure-2:8080";
//! let leases = HttpLeases::new(servers, Some("the token"), Arc::new(SystemClock), Entropy::from_os())?;
//! for lease in leases.list_leases("controller/").await? {
//!     println!("{} is held by {} at {}", lease.scope, lease.holder, lease.epoch);
//! }
//! # Ok(())
//! # }
//! ```

mod calls;
mod watch;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{Clock, Entropy};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Epoch, ExpiryClock, FenceStore, Hint, LeaseError,
    LeaseRecord, LeaseStore, Lifeline, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session, Term,
};
use tokio::sync::broadcast;

use calls::{Call, Servers};
use watch::Watching;

pub use calls::BadAddress;

/// How many hints a slow listener may lag behind; then it looks at everything.
const HINTS: usize = 256;
/// As the server has it.
const SHORTEST: Duration = Duration::from_millis(100);

/// A Tenure server, or several over one database, as a lease store.
#[derive(Debug)]
pub struct HttpLeases {
    servers: Arc<Servers>,
    entropy: Entropy,
    hints: broadcast::Sender<Hint>,
    /// Begins with the first listener: who does not listen costs the server no connection.
    watching: Mutex<Option<Watching>>,
}

impl HttpLeases {
    /// `addresses` is one or several, with commas between: `http://a:8080,http://b:8080`.
    pub fn new(
        addresses: &str,
        token: Option<&str>,
        clock: Arc<dyn Clock>,
        entropy: Entropy,
    ) -> Result<Self, BadAddress> {
        Ok(Self::over(Servers::new(addresses, token, None, clock)?, entropy))
    }

    /// The same, for servers whose certificates come from these authorities (DER) and from no others.
    pub fn trusting(
        authorities: &[&[u8]],
        addresses: &str,
        token: Option<&str>,
        clock: Arc<dyn Clock>,
        entropy: Entropy,
    ) -> Result<Self, BadAddress> {
        Ok(Self::over(Servers::new(addresses, token, Some(authorities), clock)?, entropy))
    }

    fn over(servers: Servers, entropy: Entropy) -> Self {
        let servers = Arc::new(servers);
        Self { servers, entropy, hints: broadcast::Sender::new(HINTS), watching: Mutex::default() }
    }
}

#[async_trait]
impl LeaseStore for HttpLeases {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "http",
            minimum_duration: SHORTEST,
            // The server ignores the word «stalled» where its own store counts elapsed time.
            clock: ExpiryClock::Store,
            fenced_transactions: true,
            crash_hints: false,
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        let call =
            Call::write("/api/leases/acquire", &wire::AcquireBody::of(request), Some(request.duration));
        let reply = self.servers.ask(call).await?;
        match reply.status {
            409 => Ok(AcquireOutcome::Held(reply.read::<wire::Held>()?.held_by.try_into()?)),
            _ => Ok(AcquireOutcome::Granted(reply.granted::<wire::Acquired>()?.lease.try_into()?)),
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        let Some(shortest) = claims.iter().map(|claim| claim.duration).min() else {
            return Ok(vec![]);
        };
        let call = Call::write("/api/leases/renew", &wire::RenewBody::of(claims), Some(shortest));
        let answer: wire::Renewals = self.servers.ask(call).await?.granted()?;
        answer.of(claims)
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        let call = Call::write("/api/leases/release", &wire::ReleaseBody::of(claim), None);
        let reply = self.servers.ask(call).await?;
        match reply.granted::<wire::Release>()?.released {
            true => Ok(ReleaseOutcome::Released),
            // An earlier try of this call may have done it.
            false => reply.settled(ReleaseOutcome::NotApplied),
        }
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        let reply = self.servers.ask(Call::read("/api/leases", &[("under", under)])).await?;
        let leases = reply.granted::<wire::Leases>()?.leases;
        leases.into_iter().map(LeaseRecord::try_from).collect()
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        let call = Call::read("/api/leases/record", &[("scope", scope.as_str())]);
        let lease: Option<wire::Lease> = self.servers.ask(call).await?.found()?;
        lease.map(LeaseRecord::try_from).transpose()
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        if limit == 0 {
            return Ok(vec![]);
        }
        let limit = limit.min(1000).to_string();
        let query = [("scope", scope.as_str()), ("limit", limit.as_str())];
        let reply = self.servers.ask(Call::read("/api/leases/history", &query)).await?;
        let history = reply.granted::<wire::History>()?.history;
        history.into_iter().map(PastTerm::try_from).collect()
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        let hints = self.hints.subscribe();
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.get_or_insert_with(|| {
            Watching::start(Arc::clone(&self.servers), self.hints.clone(), self.entropy.clone())
        });
        hints
    }

    async fn attach(&self, _: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        Ok(None)
    }
}

#[async_trait]
impl FenceStore for HttpLeases {
    /// The server installs the fence with the lease, so nobody who was granted one needs this.
    async fn install_fence(&self, scope: &Scope, _: Term, _: Epoch) -> Result<Epoch, LeaseError> {
        Err(LeaseError::Refused(format!(
            "a Tenure server installs the fence of {scope} itself, with the lease; nobody else can"
        )))
    }

    async fn fence(&self, scope: &Scope) -> Result<Option<(Epoch, Term)>, LeaseError> {
        let call = Call::read("/api/leases/fence", &[("scope", scope.as_str())]);
        let fence: Option<wire::Fence> = self.servers.ask(call).await?.found()?;
        Ok(fence.map(|fence| (Epoch(fence.epoch), Term(fence.term))))
    }
}
