//! `tenure up`: everything in one process. Scheduler, HTTP API, one agent, a database, a folder of dags.
//!
//! Only wiring lives here: each part is built by its own crate and knows the others by trait alone.

mod banner;
mod data;
mod executor;
mod folder;
mod health;
mod node;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use prometheus_client::registry::Registry;
use tenure_agent::{Agent, AgentConfig};
use tenure_api::{ApiState, TokenDigest};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_dispatch::{DispatchMetrics, EnvSecrets, PoolSize};
use tenure_lease::{
    Elector, ElectorConfig, ElectorParts, FenceStore, Holder, LeaseMetrics, LeaseStore, Session,
};
use tenure_model::ShardId;
use tenure_scheduler::{OwnerConfig, ReportInbox, Scheduler, SchedulerMetrics, SchedulerParts};
use tenure_store::SharedStore;
use tenure_store_postgres::{PostgresLeaseOptions, PostgresLeases, PostgresOptions, PostgresStore};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::discovery;
use crate::epochs::Epochs;
use data::DataFolder;
use executor::{LocalControlPlane, LocalExecutor};
use folder::{DagFolder, FolderReport};

/// Long enough for a garbage-collected laptop, short enough to wait for.
const LEASE_DURATION: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Address the HTTP API listens on; port 0 takes any free one
    #[arg(long, env = "TENURE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Folder for the database, logs, the token and the agent's files; made if it is not there
    #[arg(long, env = "TENURE_DATA", value_name = "DIR", default_value = discovery::DEFAULT_DATA_FOLDER)]
    pub data: PathBuf,
    /// Folder of dag files; it is watched [default: ./dags]
    #[arg(long, env = "TENURE_DAGS", value_name = "DIR")]
    pub dags: Option<PathBuf>,
    /// How much is handed to agents at once [default: lite on SQLite, pro on Postgres]
    #[arg(long, env = "TENURE_PROFILE", value_enum, value_name = "PROFILE")]
    pub profile: Option<Profile>,
    /// Keep the state in Postgres (postgres://user:password@host/database) instead of SQLite
    #[arg(long, env = "TENURE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// How epochs grow on Postgres
    #[arg(long, env = "TENURE_EPOCHS", value_enum, value_name = "HOW", default_value_t)]
    pub epochs: Epochs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// One hand-over at a time: for a single machine
    Lite,
    /// 16 at a time and 256 waiting: for agents that take a while to answer
    Pro,
}

impl Profile {
    fn pool(self) -> PoolSize {
        match self {
            Self::Lite => PoolSize::LITE,
            Self::Pro => PoolSize::PRO,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Lite => "lite",
            Self::Pro => "pro",
        }
    }
}

pub fn run(args: UpArgs) -> ExitCode {
    banner::start_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: UpArgs) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy = Entropy::from_os();
    let data = DataFolder::open(&args.data, &entropy)?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("cannot listen on {} (choose another address with --listen)", args.listen)
    })?;
    let address = listener.local_addr()?;
    let url = format!("http://{address}");

    let Database { store, leases, fences, lent, name: database } =
        open_database(&args, &data, &clock, &entropy).await?;
    let profile = args.profile.unwrap_or(match args.database_url {
        Some(_) => Profile::Pro,
        None => Profile::Lite,
    });
    let registration = node::describe(&data.node);
    let node = registration.node.clone();
    store
        .register_node(&registration, clock.now())
        .await
        .context("this machine cannot be registered as a node")?;

    let mut registry = Registry::default();
    let log_store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(data.logs()?)?);
    let holder = Holder {
        name: format!("{}:{}", node::host_name(), std::process::id()),
        instance: data.instance.clone(),
        session: Session(entropy.uuid(clock.now())),
        address: Some(url.clone()),
    };
    let actor = holder.name.clone();
    let lease_metrics = LeaseMetrics::register(&mut registry, Arc::clone(&clock));
    let elector_parts = ElectorParts {
        leases,
        fences,
        clock: Arc::clone(&clock),
        entropy: entropy.clone(),
        metrics: lease_metrics.clone(),
    };
    // Everything that a scheduler does is fenced, so a crash need not be waited out.
    let elector_config = ElectorConfig { crash_hints: true, ..ElectorConfig::new(holder, LEASE_DURATION) };
    let elector = Arc::new(Elector::start(elector_parts, elector_config)?);
    let inbox = ReportInbox::default();
    let executor = Arc::new(LocalExecutor::new(node.clone()));
    let scheduler = Scheduler::start(SchedulerParts {
        store: Arc::clone(&store),
        elector: Arc::clone(&elector),
        shard: ShardId(0),
        inbox: inbox.clone(),
        executor: Arc::clone(&executor) as _,
        secrets: Arc::new(EnvSecrets),
        pool: profile.pool(),
        clock: Arc::clone(&clock),
        entropy: entropy.clone(),
        metrics: SchedulerMetrics::register(&mut registry),
        lease_metrics,
        dispatch_metrics: DispatchMetrics::register(&mut registry),
        config: OwnerConfig::new(actor),
        sole_instance: true,
    });

    let mut dags = DagFolder::new(args.dags.clone(), Arc::clone(&store), Arc::clone(&clock))?;
    let import_errors = Arc::new(RwLock::new(vec![]));
    let shutdown = CancellationToken::new();
    let readiness = Arc::new(health::Health::new(scheduler.handle(), Arc::clone(&clock)));
    let state = ApiState {
        store: Arc::clone(&store),
        leases: lent.leases,
        fences: lent.fences,
        entropy: entropy.clone(),
        clock: Arc::clone(&clock),
        token: TokenDigest::of(&data.token),
        logs: Arc::clone(&log_store),
        parser: Arc::new(folder::parse_pushed),
        import_errors: Arc::clone(&import_errors),
        health: Arc::clone(&readiness) as _,
        metrics: Arc::new(registry),
        changes: scheduler.handle().changes(),
        info: serde_json::json!({
            "data_folder": data.root, "dags_folder": dags.root(), "profile": profile.name(),
            "database": database, "address": url, "node": node.as_str(),
        }),
    };
    let api = tokio::spawn(tenure_api::serve(listener, tenure_api::router(state), shutdown.clone()));

    let agent_config = AgentConfig::new(node, data.agent(), "/proc/self/exe".into(), log_store);
    let control = Arc::new(LocalControlPlane::new(inbox));
    let start_agent = Agent::start(agent_config, control, Arc::clone(&clock), entropy.clone());
    let stopped = stop_signal()?;
    tokio::pin!(stopped);
    let agent = tokio::select! {
        agent = start_agent => agent?,
        signal = &mut stopped => {
            // Somebody else still holds the shard; nothing has been started here.
            tracing::info!(signal, "stopping before the agent was accepted");
            scheduler.stop().await;
            elector.stop().await;
            return Ok(());
        }
    };
    executor.set(agent);
    let found = dags.scan(&import_errors).await;
    readiness.started();
    let _published = discovery::publish(&data.root, &url, &data.token_file())
        .with_context(|| format!("cannot write into {}", data.root.display()))?;
    banner::print(&banner::Facts {
        url: &url,
        data: &data.root,
        database: &database,
        profile: profile.name(),
        found: &found,
    });
    let watching = tokio::spawn(dags.watch(import_errors, shutdown.clone()));

    let signal = stopped.await;
    tracing::info!(signal, "stopping");
    shutdown.cancel();
    if let Err(panic) = watching.await {
        tracing::error!(%panic, "the dags folder's watcher panicked");
    }
    scheduler.stop().await;
    elector.stop().await;
    let left_running = executor.shutdown().await;
    match api.await {
        Ok(served) => served.context("the HTTP server failed")?,
        Err(panic) => tracing::error!(%panic, "the HTTP server panicked"),
    }
    banner::farewell(left_running);
    Ok(())
}

/// Three faces of one database: the state, the leases, and the fences between them.
struct Database {
    store: SharedStore,
    leases: Arc<dyn LeaseStore>,
    fences: Arc<dyn FenceStore>,
    /// For other components, over HTTP.
    lent: Lent,
    name: String,
}

struct Lent {
    leases: Arc<dyn LeaseStore>,
    fences: Arc<dyn FenceStore>,
}

async fn open_database(
    args: &UpArgs,
    data: &DataFolder,
    clock: &Arc<dyn Clock>,
    entropy: &Entropy,
) -> Result<Database> {
    let database = match &args.database_url {
        Some(url) => {
            let epochs = args.epochs.mint();
            let options = PostgresOptions { epochs, ..PostgresOptions::default() };
            let store = Arc::new(PostgresStore::connect(url, options, entropy).await?);
            // On connections of their own: whatever clients do, the scheduler's own renewals get through.
            let options = PostgresLeaseOptions { application_name: "tenure lease API".into(), epochs };
            let lent = Arc::new(PostgresLeases::connect(url, options, entropy).await?);
            let lent = Lent { leases: lent.clone(), fences: lent };
            Database {
                store: store.clone(),
                leases: store.clone(),
                fences: store,
                lent,
                name: "Postgres".into(),
            }
        }
        None => {
            let path = data.root.join("tenure.db");
            let store = Arc::new(SqliteStore::open(&path, SqliteOptions::default(), Arc::clone(clock))?);
            let lent = Lent { leases: store.clone(), fences: store.clone() };
            Database {
                store: store.clone(),
                leases: store.clone(),
                fences: store,
                lent,
                name: "SQLite".into(),
            }
        }
    };
    let shards = database.store.shard_count().await?;
    anyhow::ensure!(
        shards == 1,
        "this database is divided into {shards} shards, and \"tenure up\" owns exactly one: \
         choose a database of its own for it"
    );
    Ok(database)
}

/// Resolves with the name of the first signal that asks the process to end; the second one ends it at once.
fn stop_signal() -> Result<impl Future<Output = &'static str>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            eprintln!("stopped at once; nothing that was acknowledged is lost");
            std::process::exit(130);
        });
        name
    })
}
