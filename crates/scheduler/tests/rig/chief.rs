//! A replica that leads the controller and owns no shard.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tenure_clock::Entropy;
use tenure_lease::{Elector, ElectorConfig, ElectorParts, Holder, LeaseMetrics, Session};
use tenure_scheduler::{Controller, ControllerMetrics, ControllerParts, Retention, Signalling};

use super::{PATIENCE, Rig, metric};

pub struct Chief {
    controller: Controller,
    elector: Arc<Elector>,
    pub registry: Registry,
}

impl Chief {
    pub fn start(rig: &Rig, name: &str) -> Self {
        Self::signalling(rig, name, Signalling::default())
    }

    pub fn signalling(rig: &Rig, name: &str, signals: Signalling) -> Self {
        let entropy = Entropy::from_os();
        let session = Session(entropy.uuid(rig.clock.now()));
        let holder = Holder { name: name.into(), instance: name.into(), session, address: None };
        let parts = ElectorParts {
            leases: rig.store.clone(),
            fences: rig.store.clone(),
            clock: Arc::clone(&rig.clock),
            entropy: entropy.clone(),
            metrics: LeaseMetrics::default(),
        };
        let config = ElectorConfig::new(holder, Duration::from_secs(5));
        let elector = Arc::new(Elector::start(parts, config).unwrap());
        let mut registry = Registry::default();
        let controller = Controller::start(ControllerParts {
            store: rig.store.clone(),
            elector: Arc::clone(&elector),
            clock: Arc::clone(&rig.clock),
            entropy,
            metrics: ControllerMetrics::register(&mut registry),
            retention: Retention { runs: None, audit: None, members: None, every: PATIENCE },
            signals,
            sole_instance: false,
        });
        Self { controller, elector, registry }
    }

    pub fn metric(&self, name: &str) -> f64 {
        metric(&self.registry, name)
    }

    pub async fn stop(self) {
        self.controller.stop().await;
        self.elector.stop().await;
    }
}
