//! From a URL to a store: how sessions are set up, and what is said when that fails.

use std::str::FromStr;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tenure_clock::Entropy;
use tenure_store::{BoxError, StoreError};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Config, NoTls};

use crate::session::Session;
use crate::wakes::Wakes;
use crate::{PostgresStore, migrate};

#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// For a database that is new; one that exists keeps the number it was created with.
    pub shards: u16,
    /// Connections besides those reserved for leases (two) and for waking up (one).
    pub pool_size: usize,
    /// Shown by `pg_stat_activity`.
    pub application_name: String,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { shards: 1, pool_size: 8, application_name: "tenure".into() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the database URL cannot be read (it looks like postgres://user:password@host:5432/database)")]
    Url(#[source] BoxError),
    #[error(
        "the database URL asks for TLS (sslmode=require), which this release does not speak: \
         use sslmode=prefer or disable, on a network you trust"
    )]
    Tls,
    #[error("cannot connect to Postgres at {target}")]
    Connect {
        target: String,
        #[source]
        source: BoxError,
    },
    #[error(
        "the schema at {target} has version {found}, and this release knows versions up to {known}: \
         start the release that made it, or a newer one"
    )]
    NewerSchema { target: String, found: i32, known: i32 },
    #[error("migrating the schema at {target} failed")]
    Migrate {
        target: String,
        #[source]
        source: BoxError,
    },
}

/// A renewal must get through, and an acquire may wait for a fence meanwhile.
const LEASE_CONNECTIONS: usize = 2;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A caller that finds every connection lent out gives up after this, and says so.
const BORROW_TIMEOUT: Duration = Duration::from_secs(5);
/// A black-holed peer is noticed after 5 + 3 × 2 s without an answer, unacknowledged data after 10 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// What every session asks for. Locks are never held for long by anybody, so waiting longer than 2 s means
/// that something is wrong; an owner that stops inside a transaction must not hold up its successor for
/// longer; a client that has gone away is noticed even while its statement waits for a lock.
const SESSION: &str = "-c synchronous_commit=on -c statement_timeout=30s -c lock_timeout=2s \
     -c idle_in_transaction_session_timeout=2s -c client_connection_check_interval=1s";

impl PostgresStore {
    /// Connects, brings the schema up to date, and starts to listen for other processes' wakes.
    pub async fn connect(
        url: &str,
        options: PostgresOptions,
        entropy: &Entropy,
    ) -> Result<Self, ConnectError> {
        let config = configure(url, &options)?;
        let target = target(&config);
        let pool = pool(&config, options.pool_size.max(1));
        let leases = pool_of_leases(&config);
        let connected =
            |error: StoreError| ConnectError::Connect { target: target.clone(), source: cause(error) };
        Session::borrow(&pool, "connecting").await.map_err(connected)?.give_back();
        let shards = migrate::run(&pool, &target, options.shards).await?;
        let wakes = Wakes::start(config, entropy);
        Ok(Self { pool, leases, shards, wakes })
    }
}

fn configure(url: &str, options: &PostgresOptions) -> Result<Config, ConnectError> {
    let mut config = Config::from_str(url).map_err(|error| ConnectError::Url(error.into()))?;
    if config.get_ssl_mode() == SslMode::Require {
        return Err(ConnectError::Tls);
    }
    // What the URL sets itself comes last, and wins.
    let session = match config.get_options() {
        Some(own) => format!("{SESSION} {own}"),
        None => SESSION.to_owned(),
    };
    config.options(session);
    if config.get_application_name().is_none() {
        config.application_name(&options.application_name);
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED);
    }
    config.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_INTERVAL);
    config.keepalives_retries(KEEPALIVE_RETRIES);
    // A primary that was demoted must not be mistaken for one: it lives on, read-only.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(config)
}

fn pool(config: &Config, size: usize) -> Pool {
    let ways = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config.clone(), NoTls, ways);
    Pool::builder(manager)
        .max_size(size)
        .wait_timeout(Some(BORROW_TIMEOUT))
        // Beyond the timeout of one address: several hosts may be tried in turn.
        .create_timeout(Some(CONNECT_TIMEOUT * 2))
        .runtime(Runtime::Tokio1)
        .build()
        .expect("a pool with timeouts has its runtime")
}

fn pool_of_leases(config: &Config) -> Pool {
    pool(config, LEASE_CONNECTIONS)
}

/// Where a connection goes, without the password.
fn target(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |number: usize| ports.get(number).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(number, host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(number)),
        Host::Unix(folder) => format!("{}:{}", folder.display(), port(number)),
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("{hosts}, database {}", config.get_dbname().or(config.get_user()).unwrap_or("(default)"))
}

/// The driver's own error: what is wrapped around it says nothing that the outer text does not.
fn cause(error: StoreError) -> BoxError {
    match error {
        StoreError::Unavailable { source, .. } | StoreError::Unknown { source, .. } => source,
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(url: &str) -> Result<Config, ConnectError> {
        configure(url, &PostgresOptions::default())
    }

    #[test]
    fn the_target_names_host_port_and_database_but_not_the_password() {
        let config = configured("postgres://ada:secret@db1:5433,db2:5434/tenure").unwrap();
        assert_eq!(target(&config), "db1:5433,db2:5434, database tenure");
    }

    #[test]
    fn a_url_that_demands_tls_is_refused_with_the_reason() {
        let error = configured("postgres://db/tenure?sslmode=require").unwrap_err().to_string();
        assert!(error.contains("sslmode=require"), "{error}");
    }

    #[test]
    fn nonsense_is_refused_without_repeating_it() {
        let error = configured("postgres://ada:secret@db:port/tenure").unwrap_err();
        let whole = format!("{error} {error:?}");
        assert!(matches!(error, ConnectError::Url(_)) && !whole.contains("secret"), "{whole}");
    }

    #[test]
    fn what_the_url_says_about_the_session_wins() {
        let config = configured("postgres://db/tenure?options=-c%20statement_timeout%3D5s").unwrap();
        let options = config.get_options().unwrap();
        assert!(
            options.ends_with("-c statement_timeout=5s") && options.contains("lock_timeout=2s"),
            "{options}"
        );
    }
}
