//! The state database and the leases beside it, opened as the settings say.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_clock::{Clock, Entropy};
use tenure_lease::{FenceStore, LeaseStore};
use tenure_lease_etcd::{EtcdLeases, EtcdOptions};
use tenure_store::SharedStore;
use tenure_store_postgres::{
    ConnectError, PostgresLeaseOptions, PostgresLeases, PostgresOptions, PostgresStore,
};
use tenure_store_sqlite::{SqliteOptions, SqliteStore};

use super::{Ground, Porch};
use crate::settings::{LeaseBackend, Settings};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Three faces of one database: the state, the leases, and the fences between them.
pub struct Database {
    pub store: SharedStore,
    pub leases: Arc<dyn LeaseStore>,
    pub fences: Arc<dyn FenceStore>,
    /// For other components, over HTTP, on connections of their own: whatever clients do, the scheduler's own
    /// renewals get through.
    pub lent: Lent,
    pub shards: u16,
    /// For people.
    pub name: &'static str,
}

pub struct Lent {
    pub leases: Arc<dyn LeaseStore>,
    pub fences: Arc<dyn FenceStore>,
}

impl Database {
    /// A folder's own.
    pub async fn sqlite(file: &std::path::Path, ground: &Ground) -> Result<Self> {
        let store = Arc::new(SqliteStore::open(file, SqliteOptions::default(), Arc::clone(&ground.clock))?);
        let lent = Lent { leases: store.clone(), fences: store.clone() };
        let (store, leases, fences) = (store.clone() as SharedStore, store.clone() as _, store as _);
        let shards = store.shard_count().await?;
        Ok(Self { store, leases, fences, lent, shards, name: "SQLite" })
    }

    /// Waits for a database that is away, and says so. One that says no is an error at once.
    pub async fn postgres(url: &str, ground: &Ground, porch: &Porch) -> Result<Self> {
        let Ground { settings, clock, entropy } = ground;
        let store = Arc::new(waiting(entropy, porch, || connect(url, settings, entropy)).await?);
        let shards = tenure_store::SchedulingStore::shard_count(&*store).await?;
        check_shards(settings, shards)?;
        let options = || PostgresLeaseOptions {
            application_name: "tenure lease API".into(),
            epochs: settings.epochs.mint(),
        };
        let lent = waiting(entropy, porch, || PostgresLeases::connect(url, options(), entropy)).await?;
        let lent = Arc::new(lent);
        let (leases, lent): (Arc<dyn LeaseStore>, Lent) = match &settings.leases {
            LeaseBackend::Database => (store.clone(), Lent { leases: lent.clone(), fences: lent }),
            LeaseBackend::Etcd(options) => {
                let (own, lent_leases) = (etcd(options, clock)?, etcd(options, clock)?);
                (own, Lent { leases: lent_leases, fences: lent })
            }
        };
        let (store, fences) = (store.clone() as SharedStore, store as _);
        Ok(Self { store, leases, fences, lent, shards, name: "Postgres" })
    }
}

async fn connect(url: &str, settings: &Settings, entropy: &Entropy) -> Result<PostgresStore, ConnectError> {
    let options = PostgresOptions {
        shards: settings.shards,
        pool_size: settings.database_connections,
        epochs: settings.epochs.mint(),
        statement_timeout: settings.statement_timeout,
        ..PostgresOptions::default()
    };
    PostgresStore::connect(url, options, entropy).await
}

fn etcd(options: &EtcdOptions, clock: &Arc<dyn Clock>) -> Result<Arc<EtcdLeases>> {
    let leases = EtcdLeases::open(options.clone(), Arc::clone(clock));
    Ok(Arc::new(leases.context("the leases' etcd cannot be used")?))
}

/// The number is part of the database: dags are where their hash says.
fn check_shards(settings: &Settings, found: u16) -> Result<()> {
    let asked = settings.shards;
    if settings.shards_asked && asked != found {
        bail!(
            "this database is divided into {found} shards, and {asked} were asked for: the number is fixed when a \
             database is made. Leave it out, or stop all servers and run: tenure database reshard --shards {asked}"
        );
    }
    Ok(())
}

/// Again and again, until it is there or says no.
pub async fn waiting<T, F: Future<Output = Result<T, ConnectError>>>(
    entropy: &Entropy,
    porch: &Porch,
    connect: impl Fn() -> F,
) -> Result<T> {
    let mut pause = FIRST_PAUSE;
    let mut waited = false;
    loop {
        match connect().await {
            Ok(opened) => {
                if waited {
                    tracing::info!("the database is there");
                }
                return Ok(opened);
            }
            Err(error) if !matches!(error, ConnectError::Connect { .. }) || error.is_refusal() => {
                return Err(error.into());
            }
            Err(error) => {
                let error = tenure_lease::with_causes(&error);
                tracing::warn!(error, "waiting for the database");
                porch.say(format!("waiting for the database: {error}"));
                waited = true;
                tokio::time::sleep(pause + entropy.jitter(pause / 4)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
