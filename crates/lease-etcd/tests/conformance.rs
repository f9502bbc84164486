//! Goal: leases in a real etcd do what every backend has to do, wherever their epochs are minted.

use std::sync::Arc;

use tenure_clock::SystemClock;
use tenure_lease::{FenceStore, MemoryLeases};
use tenure_lease_conformance::Fresh;
use tenure_lease_etcd::{EtcdLeases, EtcdOptions};
use tenure_testkit::Etcd;

fn fresh(fences: impl FnOnce(&Arc<EtcdLeases>) -> Arc<dyn FenceStore>) -> Fresh {
    let options: EtcdOptions = Etcd::shared().url().parse().expect("an address");
    let prefix = options.prefix.clone();
    let leases = Arc::new(EtcdLeases::open(options, Arc::new(SystemClock)).expect("good options"));
    Fresh {
        fences: fences(&leases),
        leases,
        forget_leases: Box::new(move || {
            let prefix = prefix.clone();
            let forgetting = tokio::task::spawn_blocking(move || forget_all_but_fences(&prefix));
            Box::pin(async move { forgetting.await.expect("forgotten") })
        }),
        keep: Box::new(()),
    }
}

fn forget_all_but_fences(prefix: &str) {
    // A range ends before its second key, and the character after / is 0.
    let end = format!("{}0", prefix.trim_end_matches('/'));
    Etcd::shared().ctl(&["del", prefix, &format!("{prefix}.fences/")]);
    Etcd::shared().ctl(&["del", &format!("{prefix}.fences0"), &end]);
}

mod epochs_of_etcd {
    async fn etcd() -> super::Fresh {
        super::fresh(|leases| leases.clone())
    }

    tenure_lease_conformance::exercise!(etcd);
}

mod epochs_of_a_state_database {
    async fn etcd() -> super::Fresh {
        super::fresh(|_| super::Arc::new(super::MemoryLeases::new(super::Arc::new(super::SystemClock))))
    }

    tenure_lease_conformance::exercise!(etcd);
}
