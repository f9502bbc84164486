//! Real Postgres servers: one that all tests share, with a database for each of them, and private ones
//! for tests that stop, kill and restart theirs.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio_postgres::NoTls;

use crate::guarded::{Account, Place};
use crate::{TempDir, free_port};

const USER: &str = "tenure";
/// Long enough to bridge the gap between two test binaries of one run.
const SHARED_LINGER_SECONDS: u32 = 30;
const OWN_LINGER_SECONDS: u32 = 2;
/// Starting takes a fraction of a second; a loaded machine gets a hundred times that.
const START_POLLS: u32 = 1_200;
const POLL: Duration = Duration::from_millis(25);

/// How a server is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Off is fast and fine, unless a test is about what survives a power cut.
    pub fsync: bool,
    /// `name=value`, as for `postgres -c`.
    pub extra: Vec<String>,
}

/// The way to a running server that tests of all processes share.
#[derive(Clone, Debug)]
pub struct Postgres {
    port: u16,
    _user: Arc<File>,
}

impl Postgres {
    /// The shared server, started by the first test that asks, stopped when nobody has used it for a while.
    ///
    /// # Panics
    /// When there is no Postgres on this machine, or it does not start; the message says what to do.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| match Self::find_or_start() {
            Ok(server) => server,
            Err(error) => panic!("no shared Postgres for tests: {error:#}"),
        })
    }

    /// A private server.
    ///
    /// # Panics
    /// As [`Postgres::shared`].
    pub fn own(settings: Settings) -> OwnPostgres {
        match OwnPostgres::new(settings) {
            Ok(server) => server,
            Err(error) => panic!("no private Postgres for a test: {error:#}"),
        }
    }

    /// A fresh, empty database. It is dropped with its handle.
    pub async fn database(&self) -> TestDatabase {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        // The id of a process comes round again; a leftover of its predecessor may still be there.
        admin(self.port, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        admin(self.port, &format!("CREATE DATABASE {name} TEMPLATE template0")).await;
        TestDatabase { url: url(self.port, &name), name, port: self.port }
    }

    fn find_or_start() -> Result<Self> {
        let account = Account::for_servers("postgres")?;
        let uid = rustix::process::geteuid().as_raw();
        let place =
            Place::at(std::env::temp_dir().join(format!("tenure-test-{uid}")).join("postgres"), account)?;
        let lock = place.lock()?;
        let user = Arc::new(place.use_it()?);
        let port = match running_port(&place.folder) {
            Some(port) => port,
            None => create_and_start(&place, account, &Settings::default(), SHARED_LINGER_SECONDS)?,
        };
        drop(lock);
        Ok(Self { port, _user: user })
    }
}

/// A database of one test.
#[derive(Debug)]
pub struct TestDatabase {
    pub url: String,
    name: String,
    port: u16,
}

impl Drop for TestDatabase {
    /// Best effort: the server itself goes away soon.
    fn drop(&mut self) {
        let (port, sql) = (self.port, format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        // A thread of its own, because a runtime must not block inside another one.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime
                .block_on(async { tokio::time::timeout(Duration::from_secs(10), execute(port, &sql)).await? })
        });
        match dropping.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("the database {} stays behind: {error:#}", self.name),
            Err(_) => eprintln!("the database {} stays behind: dropping it panicked", self.name),
        }
    }
}

/// A server that belongs to one test.
#[derive(Debug)]
pub struct OwnPostgres {
    place: Place,
    account: Account,
    settings: Settings,
    port: u16,
    _user: File,
    _folder: TempDir,
}

impl OwnPostgres {
    fn new(settings: Settings) -> Result<Self> {
        let account = Account::for_servers("postgres")?;
        let folder = crate::temp_dir();
        account.own_folder(folder.path())?;
        let place = Place::at(folder.path().to_owned(), account)?;
        let user = place.use_it()?;
        let port = create_and_start(&place, account, &settings, OWN_LINGER_SECONDS)?;
        Ok(Self { place, account, settings, port, _user: user, _folder: folder })
    }

    /// Of its database `postgres`, which is empty.
    pub fn url(&self) -> String {
        url(self.port, "postgres")
    }

    /// Of the same database on whichever of the two may be written to.
    pub fn url_with(&self, other: &Self) -> String {
        format!("postgres://{USER}@127.0.0.1:{},127.0.0.1:{}/postgres", self.port, other.port)
    }

    /// A copy that follows this one, and can be read.
    ///
    /// # Panics
    /// When it cannot be made or started.
    pub fn standby(&self) -> Self {
        match self.copied() {
            Ok(server) => server,
            Err(error) => panic!("no standby for a test: {error:#}"),
        }
    }

    fn copied(&self) -> Result<Self> {
        let (folder, account, settings) = (crate::temp_dir(), self.account, self.settings.clone());
        account.own_folder(folder.path())?;
        let place = Place::at(folder.path().to_owned(), account)?;
        let user = place.use_it()?;
        let mut copy = account.command(binary("pg_basebackup")?);
        copy.args(["--host", "127.0.0.1", "--port", &self.port.to_string(), "--username", USER])
            .args(["--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-sync"])
            .arg("--pgdata")
            .arg(place.folder.join("data"));
        succeed(&mut copy)?;
        let port = start_somewhere(&place, account, &settings, OWN_LINGER_SECONDS)?;
        Ok(Self { place, account, settings, port, _user: user, _folder: folder })
    }

    /// A standby becomes a primary of its own.
    ///
    /// # Panics
    /// When it does not.
    pub fn promote(&self) {
        let mut promote = self.account.command(binary("pg_ctl").expect("it comes with the server"));
        promote.args(["promote", "--wait", "--pgdata"]).arg(self.place.folder.join("data"));
        succeed(&mut promote).expect("a standby is promoted");
    }

    /// Disconnects everybody and shuts down in order.
    pub fn stop(&self) {
        self.signal_and_wait(rustix::process::Signal::INT);
    }

    /// Ends at once, without a checkpoint: the next start recovers from the log.
    pub fn kill(&self) {
        self.signal_and_wait(rustix::process::Signal::QUIT);
    }

    /// The same data on the same port, after a stop or a kill.
    pub fn start(&self) {
        start(&self.place, self.account, &self.settings, self.port, OWN_LINGER_SECONDS)
            .expect("a server that has run before starts again");
    }

    pub fn restart_immediately(&self) {
        self.kill();
        self.start();
    }

    fn signal_and_wait(&self, signal: rustix::process::Signal) {
        let Some(pid) = postmaster(&self.place.folder) else { return };
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id is positive");
        if rustix::process::kill_process(pid, signal).is_err() {
            return; // it has ended already
        }
        for _ in 0..START_POLLS {
            // The file goes last; the process may stay for a moment until the guard has noticed.
            if postmaster(&self.place.folder).is_none() {
                return;
            }
            std::thread::sleep(POLL);
        }
        panic!("Postgres (process {}) does not end", pid.as_raw_nonzero());
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        self.kill();
    }
}

fn url(port: u16, database: &str) -> String {
    format!("postgres://{USER}@127.0.0.1:{port}/{database}")
}

fn create_and_start(place: &Place, account: Account, settings: &Settings, linger: u32) -> Result<u16> {
    place.clear()?;
    let mut create = account.command(binary("initdb")?);
    create
        .args(["--username", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"])
        .arg("--pgdata")
        .arg(place.folder.join("data"));
    succeed(&mut create)?;
    start_somewhere(place, account, settings, linger)
}

fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done =
        command.current_dir("/").stdin(Stdio::null()).output().with_context(|| format!("running {name}"))?;
    if !done.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}

fn start_somewhere(place: &Place, account: Account, settings: &Settings, linger: u32) -> Result<u16> {
    // Somebody may take the port between our look and the server's start.
    let mut failure = None;
    for _ in 0..3 {
        let port = free_port();
        match start(place, account, settings, port, linger) {
            Ok(()) => return Ok(port),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.expect("three starts were tried"))
}

fn start(place: &Place, account: Account, settings: &Settings, port: u16, linger: u32) -> Result<()> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut server = vec![text(binary("postgres")?), "-D".into(), text(place.folder.join("data"))];
    let mut set = |setting: String| server.extend(["-c".into(), setting]);
    set(format!("port={port}"));
    set("listen_addresses=127.0.0.1".into());
    set(format!("unix_socket_directories={}", place.folder.display()));
    set(format!("fsync={}", if settings.fsync { "on" } else { "off" }));
    set("max_connections=200".into());
    set("shared_buffers=32MB".into());
    settings.extra.iter().cloned().for_each(set);
    account.own_folder(&place.folder)?;
    let mut guard = place.start(linger, "INT", &server)?;
    for _ in 0..START_POLLS {
        if postmaster_file(&place.folder)
            .is_some_and(|lines| lines.get(7).is_some_and(|line| line == "ready" || line == "standby"))
        {
            return Ok(());
        }
        if guard.try_wait()?.is_some() {
            break; // the guard ends with its server
        }
        std::thread::sleep(POLL);
    }
    bail!("Postgres did not start on port {port}; its log says:\n{}", place.server_log());
}

/// The port of a server that answers in this folder.
fn running_port(folder: &Path) -> Option<u16> {
    let lines = postmaster_file(folder)?;
    let port: u16 = lines.get(3)?.parse().ok()?;
    let pid = rustix::process::Pid::from_raw(lines.first()?.parse().ok()?)?;
    rustix::process::test_kill_process(pid).ok()?;
    TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(port)
}

fn postmaster(folder: &Path) -> Option<i32> {
    postmaster_file(folder)?.first()?.parse().ok()
}

/// pid, data folder, start time, port, socket folder, address, shared memory, status.
fn postmaster_file(folder: &Path) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(folder.join("data/postmaster.pid")).ok()?;
    Some(text.lines().map(|line| line.trim().to_owned()).collect())
}

/// In PATH, or where Debian and others hide it.
fn binary(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut versions: Vec<PathBuf> = ["/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt"]
        .iter()
        .filter_map(|parent| std::fs::read_dir(parent).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path().join("bin")))
        .collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    if let Ok(config) = std::process::Command::new("pg_config").arg("--bindir").output() {
        folders.push(PathBuf::from(String::from_utf8_lossy(&config.stdout).trim()));
    }
    folders.into_iter().map(|folder| folder.join(name)).find(|file| file.is_file()).with_context(|| {
        format!(
            "{name} is not installed: `cargo xtask test` installs Postgres, or run `apt-get install postgresql`"
        )
    })
}

async fn admin(port: u16, sql: &str) {
    if let Err(error) = execute(port, sql).await {
        panic!("the test server refused {sql:?}: {error:#}");
    }
}

async fn execute(port: u16, sql: &str) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(&url(port, "postgres"), NoTls).await?;
    let connection = tokio::spawn(connection);
    let done = client.batch_execute(sql).await;
    connection.abort();
    Ok(done?)
}
