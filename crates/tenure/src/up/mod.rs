//! `tenure up`: everything in one process. A replica with an agent of its own, a database in a folder (or in Postgres),
//! a folder of dags, and a token that it makes itself.

mod banner;
mod executor;
mod presence;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use clap::Args;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use prometheus_client::registry::Registry;
use serde_json::json;
use tenure_agent::{Agent, AgentConfig};
use tenure_api::TokenDigest;
use tenure_dispatch::Executor;
use tokio_util::sync::CancellationToken;

use crate::data::DataFolder;
use crate::discovery;
use crate::node;
use crate::node_args::NodeArgs;
use crate::replica::{self, DagFolder, Database, Frontage, Ground, Porch, Replica, ReplicaParts, Watching};
use crate::settings::{Edition, UpSettings};
use executor::{LocalControlPlane, LocalExecutor};

const DEFAULT_DAGS: &str = "dags";

#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    settings: UpSettings,
    #[command(flatten)]
    node: NodeArgs,
}

pub fn run(args: UpArgs) -> ExitCode {
    let UpArgs { settings, node } = args;
    replica::run(Edition::Up, &settings.0, |ground| serve(ground, node))
}

async fn serve(ground: Ground, node_args: NodeArgs) -> Result<()> {
    let Ground { settings, clock, entropy } = &ground;
    let stopped = replica::stop_signal()?;
    let data = DataFolder::open(&settings.data, entropy)?;
    let token = data.admin_token(entropy)?;
    let (door, address) = replica::listen(settings).await?;
    let url = replica::address_of(settings, address);
    let porch = Porch::open(door)?;

    let database = match &settings.database_url {
        Some(url) => Database::postgres(url, &ground, &porch).await?,
        None => Database::sqlite(&data.root.join("tenure.db"), &ground).await?,
    };
    // A folder that was asked for must be there; the default one may come later.
    let mut dags = match &settings.dags {
        Some(folder) => DagFolder::existing(folder, &database.store, clock)?,
        None => DagFolder::new(DEFAULT_DAGS.into(), &database.store, clock),
    };
    let registration = node_args.over(node::describe(&data.node()?));
    let node = registration.node.clone();
    database
        .store
        .register_node(&registration, clock.now())
        .await
        .context("this machine cannot be registered as a node")?;

    let logs: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(data.logs(settings.logs.as_deref())?)?);
    let holder = replica::holder(&ground, &data.instance, &url);
    let name = holder.name.clone();
    let executor = Arc::new(LocalExecutor::new(node.clone(), Arc::clone(clock)));
    let mut replica = Replica::start(ReplicaParts {
        ground: &ground,
        database: &database,
        holder,
        executor: Arc::clone(&executor) as Arc<dyn Executor>,
        registry: Registry::default(),
        edition: Edition::Up,
    })?;
    let import_errors = replica::ImportErrors::default();
    let front = replica.serve(Frontage {
        door: porch.close().await?,
        ground: &ground,
        database: &database,
        token: TokenDigest::of(&token),
        logs: Arc::clone(&logs),
        import_errors: Arc::clone(&import_errors),
        info: json!({
            "data_folder": data.root, "dags_folder": dags.root(), "profile": settings.profile.name(),
            "database": database.name, "address": url, "node": node.as_str(), "shards": database.shards,
        }),
        more: Router::new(),
    });

    let agent = AgentConfig::new(node.clone(), data.agent(), "/proc/self/exe".into(), logs);
    let control = Arc::new(LocalControlPlane::new(replica.desk()));
    let agent = Agent::start(agent, control, Arc::clone(clock), entropy.clone()).await?;
    if let Some(why) = agent.unlimited() {
        tracing::debug!("tasks are not held to the resources they ask for: {why}");
    }
    executor.set(agent);
    let leaving = CancellationToken::new();
    let here = presence::tell(Arc::clone(&database.store), name, node, leaving.clone());
    let here = tokio::spawn(here);
    let found = dags.scan(&import_errors).await;
    replica.health.started();
    let published = discovery::publish(&data.root, &url, &data.token_file())
        .with_context(|| format!("cannot write into {}", data.root.display()))?;
    banner::print(&banner::Facts {
        url: &url,
        data: &data.root,
        database: database.name,
        profile: settings.profile.name(),
        found: &found,
    });
    let watching = Watching::start(dags, import_errors);

    let signal = stopped.await;
    tracing::info!(signal, "stopping");
    watching.end().await;
    leaving.cancel();
    replica.hand_over().await;
    let left_running = executor.shutdown().await;
    if let Err(panic) = here.await {
        tracing::error!(%panic, "telling others of this node panicked");
    }
    front.close().await?;
    drop(published);
    banner::farewell(left_running);
    Ok(())
}
