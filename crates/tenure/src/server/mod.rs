//! `tenure server`: one replica of a cluster. The state is in Postgres, agents are elsewhere and connected to every
//! replica, and whoever owns a shard hands its work out.

mod banner;
mod token;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use async_trait::async_trait;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use prometheus_client::registry::Registry;
use serde_json::json;
use tenure_dispatch::Executor;
use tenure_fleet::{Fleet, FleetMetrics, FleetParts, Gate, Identities, ReportSink};
use tenure_model::{Ack, Report};
use tenure_scheduler::ReportDesk;
use tenure_store::IdentityStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::data::DataFolder;
use crate::discovery;
use crate::replica::{
    self, DagFolder, Database, Frontage, Ground, ImportErrors, Porch, Replica, ReplicaParts, Watching,
};
use crate::settings::{Edition, Given};

pub fn run(given: &Given) -> ExitCode {
    replica::run(Edition::Server, given, |ground| async move {
        let mut stopped = std::pin::pin!(replica::stop_signal()?);
        // A database that is away is waited for, which must not keep a process that was told to end.
        let started = tokio::select! {
            started = start(&ground) => started?,
            signal = &mut stopped => {
                tracing::info!(signal, "stopping before everything was there");
                return Ok(());
            }
        };
        let signal = stopped.await;
        tracing::info!(signal, "stopping");
        started.stop().await
    })
}

/// A replica at work, with everything that has to be ended in order.
struct Server {
    replica: Replica,
    fleet: Fleet,
    front: replica::Front,
    watching: Option<Watching>,
    peers: CancellationToken,
    /// Unlocked, and no longer found, when everything has ended.
    _published: discovery::Published,
    _data: DataFolder,
}

async fn start(ground: &Ground) -> Result<Server> {
    let Ground { settings, clock, entropy } = ground;
    let database_url = settings.database_url.as_ref().ok_or_else(|| anyhow!("a server needs a database"))?;
    let data = DataFolder::open(&settings.data, entropy)?;
    let (door, address) = replica::listen(settings).await?;
    let url = replica::address_of(settings, address);
    let porch = Porch::open(door)?;
    token::must_be_there(database_url, entropy, &porch).await?;
    let database = Database::postgres(database_url, ground, &porch).await?;
    let token = token::settle(&database.store).await?;
    let dags = settings.dags.as_ref().map(|folder| DagFolder::existing(folder, &database.store, clock));
    let mut dags = dags.transpose()?;

    let mut registry = Registry::default();
    let logs: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(data.logs(settings.logs.as_deref())?)?);
    let holder = replica::holder(ground, &data.instance, &url);
    let (found, known_peers) = watch::channel(vec![]);
    let peers = CancellationToken::new();
    tokio::spawn(replica::watch_peers(Arc::clone(&database.leases), url.clone(), found, peers.clone()));
    let fleet = Fleet::start(FleetParts {
        replica: holder.name.clone(),
        roster: Arc::new(Arc::clone(&database.store)),
        identities: Some(Identities {
            store: Arc::clone(&database.store) as Arc<dyn IdentityStore>,
            lifetime: settings.identity_lifetime,
        }),
        logs: Arc::clone(&logs),
        peers: known_peers,
        clock: Arc::clone(clock),
        entropy: entropy.clone(),
        metrics: FleetMetrics::register(&mut registry),
    });
    let mut replica = Replica::start(ReplicaParts {
        ground,
        database: &database,
        holder,
        executor: Arc::new(fleet.clone()) as Arc<dyn Executor>,
        registry,
        edition: Edition::Server,
    })?;
    let import_errors = ImportErrors::default();
    let gate =
        Gate { sink: Arc::new(Desk(replica.desk())), admits: Arc::new(move |shown| token.matches(shown)) };
    let dags_folder = dags.as_ref().map(|dags| dags.root().to_owned());
    let front = replica.serve(Frontage {
        door: porch.close().await?,
        ground,
        database: &database,
        token,
        logs,
        import_errors: Arc::clone(&import_errors),
        info: json!({
            "data_folder": data.root, "dags_folder": dags_folder, "profile": settings.profile.name(),
            "database": database.name, "address": url, "shards": database.shards,
        }),
        more: fleet.router(gate),
    });
    let found = match &mut dags {
        Some(dags) => Some(dags.scan(&import_errors).await),
        None => None,
    };
    replica.health.started();
    let published = discovery::publish(&data.root, &url, &data.token_file())
        .with_context(|| format!("cannot write into {}", data.root.display()))?;
    banner::print(&banner::Facts { url: &url, listen: address, shards: database.shards, settings, found });
    let watching = dags.map(|dags| Watching::start(dags, import_errors));
    Ok(Server { replica, fleet, front, watching, peers, _published: published, _data: data })
}

impl Server {
    /// Shards go first, while the API still answers and agents are still heard; then the doors close.
    async fn stop(self) -> Result<()> {
        let Self { replica, fleet, front, watching, peers, .. } = self;
        peers.cancel();
        if let Some(watching) = watching {
            watching.end().await;
        }
        replica.hand_over().await;
        fleet.close().await;
        front.close().await?;
        banner::farewell();
        Ok(())
    }
}

/// Agents' reports, on their way to whoever owns the run.
struct Desk(ReportDesk);

#[async_trait]
impl ReportSink for Desk {
    async fn submit(&self, report: Report) -> Ack {
        self.0.submit(report).await
    }
}
