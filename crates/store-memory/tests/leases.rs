//! Goal: the store in memory keeps leases as every backend does.

use std::sync::Arc;

use tenure_clock::SystemClock;
use tenure_lease_conformance::Fresh;
use tenure_store_memory::MemoryStore;

async fn in_memory() -> Fresh {
    let store = Arc::new(MemoryStore::new(1, Arc::new(SystemClock)));
    let forgetful = Arc::clone(&store);
    Fresh {
        leases: store.clone(),
        fences: store,
        forget_leases: Box::new(move || {
            let store = Arc::clone(&forgetful);
            Box::pin(async move { store.leases().forget_leases() })
        }),
        keep: Box::new(()),
    }
}

tenure_lease_conformance::exercise!(in_memory);
