//! From a URL to a store: how sessions are set up, and what is said when that fails.

use std::str::FromStr;
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Pool, PoolBuilder, QueueMode, RecyclingMethod, Runtime,
};
use futures::future::try_join_all;
use tenure_clock::Entropy;
use tenure_store::{BoxError, SpecCache, StoreError};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Config, NoTls};

use crate::migrate::Found;
use crate::session::Session;
use crate::wakes::Wakes;
use crate::{EpochMint, PostgresLeases, PostgresStore, migrate, pass};

#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// For a database that is new; one that exists keeps the number it was created with.
    pub shards: u16,
    /// Connections besides those for leases (two to four, one that listens, two once crash hints are wanted) and
    /// for waking up (one).
    pub pool_size: usize,
    /// Shown by `pg_stat_activity`.
    pub application_name: String,
    pub epochs: EpochMint,
    /// When the server gives up on a statement. Longer than [`LONGEST_STATEMENT`] is not waited for.
    pub statement_timeout: Duration,
}

/// Nothing that is asked takes that long, except for what is wrong.
pub const LONGEST_STATEMENT: Duration = Duration::from_secs(30);

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            shards: 1,
            pool_size: 8,
            application_name: "tenure".into(),
            epochs: EpochMint::default(),
            statement_timeout: LONGEST_STATEMENT,
        }
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
    #[error(
        "a change of the number of shards at {target} has begun and was not finished: \
         run the same command again before starting a server"
    )]
    Resharding { target: String },
    #[error("migrating the schema at {target} failed")]
    Migrate {
        target: String,
        #[source]
        source: BoxError,
    },
}

impl ConnectError {
    /// The server is there and says no: a wrong password, a database that does not exist, a right that is missing.
    pub fn is_refusal(&self) -> bool {
        let first: &(dyn std::error::Error + 'static) = self;
        let causes = std::iter::successors(Some(first), |error| error.source());
        let mut codes = causes.filter_map(|cause| cause.downcast_ref::<tokio_postgres::Error>()?.code());
        let no_such = [SqlState::INVALID_CATALOG_NAME, SqlState::INSUFFICIENT_PRIVILEGE];
        let says_no = |code: &SqlState| code.code().starts_with("28") || no_such.contains(code);
        matches!(self, Self::Url(_) | Self::Tls) || codes.any(says_no)
    }
}

/// In each of the two pools: one in use, one more where its answer is late.
const LEASE_CONNECTIONS: usize = 2;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Leases are short: a host that says nothing must leave time for the next one.
const LEASE_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For a lease connection as a whole, handshake included, and once more for its plans.
const LEASE_READY_TIMEOUT: Duration = Duration::from_secs(5);
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
/// Every lookup is by key, a few rows at a time, so a nested loop over an index is right whatever the statistics
/// say. Otherwise a plan that was made while the tables were small reads all of them later, until the next analyze.
/// For the same reason one plan serves all parameters, and compiling it is never worth its time: what a scan that is
/// switched off is said to cost would have every such plan compiled.
const SESSION: &str = "-c synchronous_commit=on -c lock_timeout=2s \
     -c idle_in_transaction_session_timeout=2s -c client_connection_check_interval=1s \
     -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
     -c plan_cache_mode=force_generic_plan -c jit=off";

/// Each statement of a lease has to see what was committed while it waited for a lock, whatever the database or
/// the URL says of isolation.
const LEASE_SESSION: &str = "-c default_transaction_isolation=read\\ committed";

impl PostgresStore {
    /// Connects, brings the schema up to date, and starts to listen for other processes' wakes.
    pub async fn connect(
        url: &str,
        options: PostgresOptions,
        entropy: &Entropy,
    ) -> Result<Self, ConnectError> {
        let config = configure_within(url, &options.application_name, options.statement_timeout)?;
        let for_leases = configure_leases(url, &options.application_name)?;
        let target = target(&config);
        let pool = pool(&config, options.pool_size.max(1));
        reach(&pool, &target).await?;
        let Found { shards, resharding } = migrate::run(&pool, &target, options.shards).await?;
        if resharding {
            return Err(ConnectError::Resharding { target });
        }
        let prepared = pass::prepare_ahead(&pool).await;
        prepared.map_err(|error| ConnectError::Connect { target: target.clone(), source: cause(error) })?;
        let leases = PostgresLeases::over(for_leases, options.epochs, entropy).await?;
        let wakes = Wakes::start(config, shards, entropy);
        Ok(Self { pool, leases, shards, specs: SpecCache::default(), wakes })
    }
}

/// Says now, and in words for people, what every later verb would say.
pub(crate) async fn reach(pool: &Pool, target: &str) -> Result<(), ConnectError> {
    Session::borrow(pool, "connecting").await.map_err(|error| failed(target, error))?.give_back();
    Ok(())
}

pub(crate) fn failed(target: &str, error: StoreError) -> ConnectError {
    ConnectError::Connect { target: target.to_owned(), source: cause(error) }
}

/// As for everything, and a little stricter.
pub(crate) fn configure_leases(url: &str, application_name: &str) -> Result<Config, ConnectError> {
    let own_timeout = Config::from_str(url).is_ok_and(|config| config.get_connect_timeout().is_some());
    let mut config = configure(url, application_name)?;
    let session = format!("{} {LEASE_SESSION}", config.get_options().unwrap_or_default());
    config.options(session);
    if !own_timeout {
        config.connect_timeout(LEASE_CONNECT_TIMEOUT);
    }
    Ok(config)
}

pub(crate) fn configure(url: &str, application_name: &str) -> Result<Config, ConnectError> {
    configure_within(url, application_name, LONGEST_STATEMENT)
}

fn configure_within(
    url: &str,
    application_name: &str,
    statement_timeout: Duration,
) -> Result<Config, ConnectError> {
    let mut config = Config::from_str(url).map_err(|error| ConnectError::Url(error.into()))?;
    if config.get_ssl_mode() == SslMode::Require {
        return Err(ConnectError::Tls);
    }
    // What the URL sets itself comes last, and wins.
    let session = format!("{SESSION} -c statement_timeout={}", statement_timeout.as_millis());
    let session = match config.get_options() {
        Some(own) => format!("{session} {own}"),
        None => session,
    };
    config.options(session);
    if config.get_application_name().is_none() {
        config.application_name(application_name);
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

pub(crate) fn pool(config: &Config, size: usize) -> Pool {
    // Beyond the timeout of one address: several hosts may be tried in turn.
    let builder = pool_builder(config, size).create_timeout(Some(CONNECT_TIMEOUT * 2));
    builder.build().expect("a pool with timeouts has its runtime")
}

/// Its connections come with their statements prepared: no takeover has to wait for a plan.
pub(crate) fn lease_pool(config: &Config, statements: &'static [&'static str]) -> Pool {
    let prepare = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
        Box::pin(async move {
            let preparing = try_join_all(statements.iter().map(|sql| client.prepare_cached(sql)));
            match tokio::time::timeout(LEASE_READY_TIMEOUT, preparing).await {
                Ok(prepared) => prepared.map(drop).map_err(HookError::Backend),
                Err(_) => Err(HookError::message("the server did not answer in time")),
            }
        })
    });
    let builder = pool_builder(config, LEASE_CONNECTIONS).create_timeout(Some(LEASE_READY_TIMEOUT));
    builder.post_create(prepare).build().expect("a pool with timeouts has its runtime")
}

fn pool_builder(config: &Config, size: usize) -> PoolBuilder {
    let ways = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config.clone(), NoTls, ways);
    // The connection that was used last has its plans, and its tables, at hand.
    let builder = Pool::builder(manager).max_size(size).queue_mode(QueueMode::Lifo);
    builder.wait_timeout(Some(BORROW_TIMEOUT)).runtime(Runtime::Tokio1)
}

/// Where a connection goes, without the password.
pub(crate) fn target(config: &Config) -> String {
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
    use tenure_testkit::Postgres;

    use super::*;

    fn configured(url: &str) -> Result<Config, ConnectError> {
        configure(url, "tests")
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
    fn a_statements_time_is_what_the_options_say() {
        let within = |time| configure_within("postgres://db/tenure", "tests", time).unwrap();
        let options = within(Duration::from_millis(1500));
        assert!(options.get_options().unwrap().contains("-c statement_timeout=1500"), "{options:?}");
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

    #[test]
    fn a_peer_that_has_vanished_is_found_out() {
        let config = configured("postgres://db/tenure").unwrap();
        assert!(config.get_keepalives());
        assert_eq!(config.get_keepalives_idle(), KEEPALIVE_IDLE);
        assert_eq!(config.get_keepalives_interval(), Some(KEEPALIVE_INTERVAL));
        assert_eq!(config.get_keepalives_retries(), Some(KEEPALIVE_RETRIES));
        assert_eq!(config.get_tcp_user_timeout(), Some(&UNACKNOWLEDGED));
        assert_eq!(config.get_connect_timeout(), Some(&CONNECT_TIMEOUT));
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    /// What the server itself says of a session, for verbs and for leases.
    #[tokio::test]
    async fn every_session_is_bounded_and_durable() {
        let database = Postgres::shared().database().await;
        let shown = async |config: Config| {
            let session = Session::borrow(&pool(&config, 1), "looking").await.unwrap();
            let mut shown = vec![];
            for sql in [
                "SHOW synchronous_commit",
                "SHOW statement_timeout",
                "SHOW lock_timeout",
                "SHOW idle_in_transaction_session_timeout",
                "SHOW client_connection_check_interval",
                "SHOW application_name",
            ] {
                let row = session.row(sql, &[]).await.unwrap().unwrap();
                shown.push(row.get::<_, String>(0));
            }
            shown
        };
        let expected = ["on", "30s", "2s", "2s", "1s", "tests"];
        assert_eq!(shown(configured(&database.url).unwrap()).await, expected);
        assert_eq!(shown(configure_leases(&database.url, "tests").unwrap()).await, expected);
    }

    #[tokio::test]
    async fn a_server_that_may_only_be_read_is_no_server_for_us() {
        let database = Postgres::shared().database().await;
        let name = database.url.rsplit('/').next().unwrap();
        let (admin, connection) = tokio_postgres::connect(&database.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
        admin.batch_execute(&sql).await.unwrap();
        let refused =
            PostgresStore::connect(&database.url, PostgresOptions::default(), &Entropy::from_os()).await;
        assert!(matches!(refused, Err(ConnectError::Connect { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn a_pool_lends_no_more_than_it_has_and_says_so() {
        let database = Postgres::shared().database().await;
        let pool = pool(&configured(&database.url).unwrap(), 2);
        let lent =
            [Session::borrow(&pool, "one").await.unwrap(), Session::borrow(&pool, "two").await.unwrap()];
        let refused = Session::borrow(&pool, "three").await.map(drop);
        assert!(matches!(refused, Err(StoreError::Unavailable { doing: "three", .. })), "{refused:?}");
        let row = lent[0]
            .row(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND application_name = 'tests'",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(row.unwrap().get::<_, i64>(0), 2);
        let [one, two] = lent;
        one.give_back();
        Session::borrow(&pool, "four").await.expect("one came back").give_back();
        two.give_back();
    }
}
