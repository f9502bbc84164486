//! Leases for any component, over HTTP: acquire, renew, release, look, watch.
//!
//! Promises: the three verbs are the lease store's own, compare-and-swap on scope, term and epoch; an acquire
//! that is granted has its fence installed; a lost answer is told as such (504), never as a failure. The
//! scopes of the server itself cannot be touched from here.

mod check;
mod shapes;
mod verbs;
mod views;
mod watch;

use std::fmt;
use std::sync::Arc;

use axum::extract::FromRef;
use tenure_clock::{Clock, Entropy};
use tenure_lease::{FenceStore, LeaseStore};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::ApiState;

pub use watch::Watchers;

/// What a client has to know to be safe; stands over the routes in the document.
pub const RULES: &str = "\
Leader election for any component. A lease is permission to *try*; the epoch that comes with it is what makes it \
safe.

- **Validity.** Count it from the moment you *sent* the request that was granted or renewed, never from when the \
answer came, and keep a margin: `valid_until = sent_at + duration − margin`. Past it, start no privileged work, \
whatever the server has said since. Renew after a third of the duration.
- **Ambiguity.** A timeout, a broken connection or a 504 says that it may or may not have been done. It never \
extends validity. Repeat the request: an acquire with the same `term` gets the same answer, so make the term \
yourself, fresh for every campaign.
- **Loss.** `renewed: false`, or a 409 that names somebody else, is final for that term: stop at once.
- **Fencing.** Pass the epoch with every write in the scope, and let whatever is written to refuse an epoch below \
the highest it has seen. A holder that was paused still believes that it leads; the epoch is what stops it. Reads \
need no fence.
- **Members.** A process that stands for scopes holds a seat `members/COMPONENT/NAME` by the same verbs, and sends \
one `session` with everything it takes.";

/// What the lease routes work with.
#[derive(Clone)]
pub struct LeaseApi {
    pub leases: Arc<dyn LeaseStore>,
    pub fences: Arc<dyn FenceStore>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
}

impl fmt::Debug for LeaseApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseApi").field("backend", &self.leases.capabilities().name).finish_non_exhaustive()
    }
}

impl FromRef<ApiState> for LeaseApi {
    fn from_ref(state: &ApiState) -> Self {
        Self {
            leases: Arc::clone(&state.leases),
            fences: Arc::clone(&state.fences),
            clock: Arc::clone(&state.clock),
            entropy: state.entropy.clone(),
        }
    }
}

pub fn routes<S>() -> OpenApiRouter<S>
where
    S: Clone + Send + Sync + 'static,
    LeaseApi: FromRef<S>,
{
    OpenApiRouter::new()
        .routes(routes!(views::list))
        .routes(routes!(views::record))
        .routes(routes!(views::history))
        .routes(routes!(views::fence))
        .routes(routes!(views::members))
        .routes(routes!(watch::watch))
        .routes(routes!(verbs::acquire))
        .routes(routes!(verbs::renew))
        .routes(routes!(verbs::release))
}
