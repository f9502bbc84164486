//! Goal: the reference implementation does what every backend has to do, whoever installs the fence.

use std::sync::Arc;

use tenure_clock::SystemClock;
use tenure_lease::MemoryLeases;
use tenure_lease_conformance::Fresh;

fn fresh(leases: MemoryLeases) -> Fresh {
    let leases = Arc::new(leases);
    let forgetful = Arc::clone(&leases);
    Fresh {
        leases: leases.clone(),
        fences: leases,
        forget_leases: Box::new(move || {
            let leases = Arc::clone(&forgetful);
            Box::pin(async move { leases.forget_leases() })
        }),
        keep: Box::new(()),
    }
}

mod fenced {
    async fn memory() -> super::Fresh {
        super::fresh(super::MemoryLeases::new(super::Arc::new(super::SystemClock)))
    }

    tenure_lease_conformance::exercise!(memory);
}

mod unfenced {
    async fn memory() -> super::Fresh {
        super::fresh(super::MemoryLeases::unfenced(super::Arc::new(super::SystemClock)))
    }

    tenure_lease_conformance::exercise!(memory);
}
