//! One process of a control plane, whatever stands around it: a database, an elector, the scheduler, the chores, the
//! HTTP API with its health, and the order in which all that stops.
//!
//! `tenure up` and `tenure server` are this with different things at the edges: an agent of its own and a folder, or
//! a fleet of agents elsewhere and other replicas. Only wiring lives here: each part is built by its own crate and
//! knows the others by trait alone.

mod database;
mod folder;
mod health;
mod logging;
mod peers;
mod porch;
mod signals;
mod webhook;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use object_store::ObjectStore;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tenure_api::{ApiState, Door, ImportError, ServeLimits, TokenDigest};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_dispatch::{DispatchMetrics, EnvSecrets, Executor, PoolSize};
use tenure_lease::{Elector, ElectorConfig, ElectorParts, Holder, LeaseMetrics, Session};
use tenure_scheduler::{
    Controller, ControllerMetrics, ControllerParts, OwnerConfig, ReportDesk, Retention, Scheduler,
    SchedulerMetrics, SchedulerParts, SignalListener, Signalling,
};
use tenure_store::SharedStore;
use tenure_tls::ServerTls;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::elect::{host_name, own_name};
use crate::settings::{Edition, Given, Settings, TlsFiles};
use health::{Health, Vitals};
use webhook::Webhook;

pub use database::{Database, waiting};
pub use folder::{DagFolder, FolderReport};
pub use logging::start_logging;
pub use peers::watch as watch_peers;
pub use porch::Porch;
pub use signals::stop_signal;

/// Handing everything over takes a pass and a few round trips. A database that is away must not keep a process that
/// was told to end.
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// An agent keeps one open for as long as it lives, and clients need some as well.
const CONNECTIONS: usize = 4096;
/// Wrong usage, as everywhere on the command line.
const USAGE: u8 = 2;

/// What every process stands on.
#[derive(Clone)]
pub struct Ground {
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
}

/// Settles the settings, starts a runtime, and runs a command in it to its end.
pub fn run<F>(edition: Edition, given: &Given, serve: impl FnOnce(Ground) -> F) -> ExitCode
where
    F: Future<Output = Result<()>>,
{
    start_logging();
    let settings = match Settings::load(edition, given) {
        Ok(settings) => settings,
        Err(problems) => {
            problems.0.iter().for_each(|problem| eprintln!("error: {problem}"));
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ground = Ground { settings, clock: Arc::new(SystemClock), entropy: Entropy::from_os() };
    match runtime.block_on(serve(ground)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is shown to clients, if TLS is spoken here.
pub fn tls(settings: &Settings) -> Result<Option<ServerTls>> {
    let Some(TlsFiles { certificate, key }) = &settings.tls else { return Ok(None) };
    let tls = ServerTls::load(certificate, key).context("TLS cannot be served (--tls-cert, --tls-key)")?;
    Ok(Some(tls))
}

/// Opens the port, and takes up renewed certificates from then on. Also says where it really listens, should the port
/// have been left open.
pub async fn listen(settings: &Settings) -> Result<(Door, SocketAddr)> {
    let tls = tls(settings)?;
    let listener = TcpListener::bind(settings.listen).await.with_context(|| {
        format!("cannot listen on {} (choose another address with --listen)", settings.listen)
    })?;
    let address = listener.local_addr()?;
    if let Some(tls) = &tls {
        tokio::spawn(tls.clone().keep_fresh());
    }
    Ok((Door { listener, tls: tls.as_ref().map(ServerTls::config) }, address))
}

/// How others reach this process: as somebody has said, or where it listens; the host's name stands in for a wildcard.
pub fn address_of(settings: &Settings, listening: SocketAddr) -> String {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    settings.advertise.clone().unwrap_or_else(|| match listening.ip().is_unspecified() {
        true => format!("{scheme}://{}:{}", host_name(), listening.port()),
        false => format!("{scheme}://{listening}"),
    })
}

/// Who this process is in the lease records and in the audit trail.
pub fn holder(ground: &Ground, instance: &str, address: &str) -> Holder {
    Holder {
        name: own_name(),
        instance: instance.to_owned(),
        session: Session(ground.entropy.uuid(ground.clock.now())),
        address: Some(address.to_owned()),
    }
}

/// What a replica is built from.
pub struct ReplicaParts<'a> {
    pub ground: &'a Ground,
    pub database: &'a Database,
    pub holder: Holder,
    pub executor: Arc<dyn Executor>,
    pub registry: Registry,
    pub edition: Edition,
}

/// The scheduling half, at work.
pub struct Replica {
    store: SharedStore,
    elector: Arc<Elector>,
    scheduler: Scheduler,
    controller: Controller,
    pub health: Arc<Health>,
    registry: Registry,
}

impl Replica {
    pub fn start(parts: ReplicaParts<'_>) -> Result<Self> {
        let ReplicaParts { ground, database, holder, executor, mut registry, edition } = parts;
        let Ground { settings, clock, entropy } = ground;
        let store = Arc::clone(&database.store);
        let (actor, replica_name) = (holder.name.clone(), holder.name.clone());
        let lease_metrics = LeaseMetrics::register(&mut registry, Arc::clone(clock));
        let elector_parts = ElectorParts {
            leases: Arc::clone(&database.leases),
            fences: Arc::clone(&database.fences),
            clock: Arc::clone(clock),
            entropy: entropy.clone(),
            metrics: lease_metrics.clone(),
        };
        let elector_config = ElectorConfig {
            // Everything that a scheduler does is fenced, so a crash need not be waited out.
            crash_hints: true,
            on_loss: settings.on_loss,
            ..ElectorConfig::new(holder, settings.lease_duration)
        };
        let elector = Arc::new(Elector::start(elector_parts, elector_config)?);
        // The data folder is locked: whoever else carried its name is gone.
        let sole_instance = true;
        let scheduler = Scheduler::start(SchedulerParts {
            store: Arc::clone(&store),
            elector: Arc::clone(&elector),
            shards: database.shards,
            executor,
            secrets: Arc::new(EnvSecrets),
            pool: PoolSize { workers: settings.dispatch_workers, queue: settings.dispatch_queue },
            clock: Arc::clone(clock),
            entropy: entropy.clone(),
            metrics: SchedulerMetrics::register(&mut registry),
            lease_metrics,
            dispatch_metrics: DispatchMetrics::register(&mut registry),
            config: OwnerConfig {
                tick: settings.tick,
                claim_timeout: settings.claim_timeout,
                heartbeat_threshold: settings.heartbeat_threshold,
                orphan_threshold: settings.orphan_threshold,
                placement: settings.placement,
                preemption: settings.preemption,
                ..OwnerConfig::new(actor)
            },
            sole_instance,
        });
        let listener = match &settings.webhook {
            Some(url) => {
                let webhook = Webhook::start(url, &replica_name, entropy, &mut registry)?;
                Some(Arc::new(webhook) as Arc<dyn SignalListener>)
            }
            None => None,
        };
        let controller = Controller::start(ControllerParts {
            store: Arc::clone(&store),
            elector: Arc::clone(&elector),
            clock: Arc::clone(clock),
            entropy: entropy.clone(),
            metrics: ControllerMetrics::register(&mut registry),
            retention: Retention {
                runs: settings.keep_runs,
                audit: settings.keep_audit,
                ..Retention::default()
            },
            signals: Signalling { rules: settings.signals.clone(), listener },
            sole_instance,
        });
        let health = Arc::new(Health::new(Vitals {
            scheduler: scheduler.handle(),
            elector: Arc::clone(&elector),
            clock: Arc::clone(clock),
            tick: settings.tick,
            needs_a_shard: edition == Edition::Up,
        }));
        Ok(Self { store, elector, scheduler, controller, health, registry })
    }

    /// Where agents' reports come in.
    pub fn desk(&self) -> ReportDesk {
        self.scheduler.desk()
    }

    /// Opens the door. Its own metrics are shown from here on; whoever has more registers them before.
    pub fn serve(&mut self, frontage: Frontage<'_>) -> Front {
        let Frontage { door, database, ground, token, logs, import_errors, info, more } = frontage;
        let state = ApiState {
            store: Arc::clone(&self.store),
            leases: Arc::clone(&database.lent.leases),
            fences: Arc::clone(&database.lent.fences),
            entropy: ground.entropy.clone(),
            clock: Arc::clone(&ground.clock),
            token,
            logs,
            parser: Arc::new(folder::parse_pushed),
            placement: ground.settings.placement,
            import_errors,
            health: Arc::clone(&self.health) as _,
            metrics: Arc::new(std::mem::take(&mut self.registry)),
            changes: self.scheduler.handle().changes(),
            info,
        };
        let shutdown = CancellationToken::new();
        let router = tenure_api::router(state).merge(more);
        let limits = ServeLimits { connections: CONNECTIONS, ..ServeLimits::default() };
        let serving = tenure_api::serve_within(limits, door, router, shutdown.clone());
        Front { task: tokio::spawn(serving), shutdown }
    }

    /// Gives every shard to others, while everything else goes on. Bounded: what cannot be given back in time runs out.
    pub async fn hand_over(self) {
        self.health.stopping();
        let Self { elector, scheduler, controller, .. } = self;
        let orderly = async {
            tokio::join!(scheduler.stop(), controller.stop());
            elector.stop().await;
        };
        if tokio::time::timeout(STOP_WITHIN, orderly).await.is_err() {
            tracing::warn!(within = ?STOP_WITHIN, "handing over took too long; what is held runs out by itself");
        }
    }
}

pub type ImportErrors = Arc<RwLock<Vec<ImportError>>>;

/// What the API is served with.
pub struct Frontage<'a> {
    pub door: Door,
    pub ground: &'a Ground,
    pub database: &'a Database,
    pub token: TokenDigest,
    pub logs: Arc<dyn ObjectStore>,
    pub import_errors: ImportErrors,
    /// For `GET /api/tenure/info`.
    pub info: Value,
    /// What else is served at the same address, outside of the API's limits.
    pub more: Router,
}

/// The API, being served.
pub struct Front {
    task: JoinHandle<std::io::Result<()>>,
    shutdown: CancellationToken,
}

impl Front {
    /// Finishes what is being answered.
    pub async fn close(self) -> Result<()> {
        self.shutdown.cancel();
        match self.task.await {
            Ok(served) => served.context("the HTTP server failed"),
            Err(panic) => {
                tracing::error!(%panic, "the HTTP server panicked");
                Ok(())
            }
        }
    }
}

/// A folder of dags that is looked at until it is told to stop.
pub struct Watching {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Watching {
    pub fn start(folder: DagFolder, errors: ImportErrors) -> Self {
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(folder.watch(errors, stop.clone())), stop }
    }

    pub async fn end(self) {
        self.stop.cancel();
        if let Err(panic) = self.task.await {
            tracing::error!(%panic, "the dags folder's watcher panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_reached_where_it_listens_and_a_wildcard_by_the_hosts_name() {
        let plain = Settings::load(Edition::Up, &Given::default()).unwrap();
        let at = |settings: &Settings, text: &str| address_of(settings, text.parse().unwrap());
        assert_eq!(at(&plain, "10.0.0.7:8080"), "http://10.0.0.7:8080");
        assert_eq!(at(&plain, "[::1]:80"), "http://[::1]:80");
        assert_eq!(at(&plain, "0.0.0.0:8080"), format!("http://{}:8080", host_name()));
        assert_eq!(at(&plain, "[::]:8080"), format!("http://{}:8080", host_name()));
        let files = TlsFiles { certificate: "c".into(), key: "k".into() };
        let mut secure = Settings { tls: Some(files), ..plain };
        assert_eq!(at(&secure, "10.0.0.7:8080"), "https://10.0.0.7:8080");
        secure.advertise = Some("https://tenure.example".into());
        assert_eq!(at(&secure, "10.0.0.7:8080"), "https://tenure.example");
    }
}
