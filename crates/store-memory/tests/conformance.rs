//! Goal: the store in memory behaves as every store does, so that what the simulator finds on it is about the others
//! too.

use std::sync::Arc;

use tenure_clock::SystemClock;
use tenure_store_conformance::{Fresh, Spoil, Spoiled};
use tenure_store_memory::MemoryStore;

async fn in_memory(shards: u16) -> Fresh {
    let store = Arc::new(MemoryStore::new(shards, Arc::new(SystemClock)));
    let spoiled = Arc::clone(&store);
    let spoil: Spoil = Box::new(move |what| {
        let store = Arc::clone(&spoiled);
        Box::pin(async move {
            match what {
                Spoiled::Run(run) => store.spoil_run(run),
                Spoiled::Task(ti) => store.spoil_task(ti),
            }
        })
    });
    Fresh { store, spoil, keep: Box::new(()) }
}

tenure_store_conformance::exercise!(in_memory);
