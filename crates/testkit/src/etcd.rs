//! Real etcd servers: one that all tests share, with a prefix for each of them, and private ones for tests
//! that stop, kill, restart and wipe theirs.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::guarded::{Account, Place};
use crate::{TempDir, free_port};

/// Long enough to bridge the gap between two test binaries of one run.
const SHARED_LINGER_SECONDS: u32 = 30;
const OWN_LINGER_SECONDS: u32 = 2;
/// Starting takes most of a second; a loaded machine gets forty times that.
const START_POLLS: u32 = 1_600;
const POLL: Duration = Duration::from_millis(25);
const STOP: Duration = Duration::from_secs(30);

/// The process id is written by the process that becomes the server, so it is right before there is one.
const LAUNCH: &str = r#"echo $$ >server.pid; exec "$@""#;

/// The way to a running server that tests of all processes share.
#[derive(Clone, Debug)]
pub struct Etcd {
    endpoint: String,
    _user: Arc<File>,
}

impl Etcd {
    /// The shared server, started by the first test that asks, stopped when nobody has used it for a while.
    ///
    /// # Panics
    /// When there is no etcd on this machine, or it does not start; the message says what to do.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(|| match Self::find_or_start() {
            Ok(server) => server,
            Err(error) => panic!("no shared etcd for tests: {error:#}"),
        })
    }

    /// A private server.
    ///
    /// # Panics
    /// As [`Etcd::shared`].
    pub fn start() -> OwnEtcd {
        match OwnEtcd::new() {
            Ok(server) => server,
            Err(error) => panic!("no private etcd for a test: {error:#}"),
        }
    }

    /// `host:port` for clients.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Under a prefix that no other test uses.
    pub fn url(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // The id of a process comes round again; the time since boot does not.
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        format!("etcd://{}/test-{}-{}-{number}/", self.endpoint, boot.tv_sec, std::process::id())
    }

    /// What `etcdctl` prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        ctl(&self.endpoint, arguments)
    }

    fn find_or_start() -> Result<Self> {
        let account = Account::for_servers("etcd")?;
        let uid = rustix::process::geteuid().as_raw();
        let place = Place::at(std::env::temp_dir().join(format!("tenure-test-{uid}")).join("etcd"), account)?;
        let lock = place.lock()?;
        let user = Arc::new(place.use_it()?);
        let port = match running_port(&place.folder) {
            Some(port) => port,
            None => create_and_start(&place, SHARED_LINGER_SECONDS)?.client,
        };
        drop(lock);
        Ok(Self { endpoint: endpoint(port), _user: user })
    }
}

/// A server that belongs to one test.
#[derive(Debug)]
pub struct OwnEtcd {
    place: Place,
    ports: Ports,
    _user: File,
    _folder: TempDir,
}

/// For clients, and for other members, of which there are none.
#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    peer: u16,
}

impl OwnEtcd {
    fn new() -> Result<Self> {
        let account = Account::for_servers("etcd")?;
        let folder = crate::temp_dir();
        account.own_folder(folder.path())?;
        let place = Place::at(folder.path().to_owned(), account)?;
        let user = place.use_it()?;
        let ports = create_and_start(&place, OWN_LINGER_SECONDS)?;
        Ok(Self { place, ports, _user: user, _folder: folder })
    }

    /// `host:port` for clients.
    pub fn endpoint(&self) -> String {
        endpoint(self.ports.client)
    }

    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoint())
    }

    /// What `etcdctl` prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        ctl(&self.endpoint(), arguments)
    }

    /// Shuts down in order.
    pub fn stop(&self) {
        self.signal_and_wait(Signal::TERM);
    }

    pub fn kill(&self) {
        self.signal_and_wait(Signal::KILL);
    }

    /// The same data on the same port, after a stop or a kill.
    pub fn start(&self) {
        launch(&self.place, self.ports, OWN_LINGER_SECONDS)
            .expect("a server that has run before starts again");
    }

    /// Everything it knew, after a stop or a kill.
    pub fn wipe_data(&self) {
        std::fs::remove_dir_all(self.place.folder.join("data")).expect("the data of a stopped server");
    }

    fn signal_and_wait(&self, signal: Signal) {
        let Some(pid) = server_pid(&self.place.folder) else { return };
        let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
        if rustix::process::pidfd_send_signal(&process, signal).is_err() {
            return; // it has ended already
        }
        let mut ended = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        let limit = STOP.try_into().expect("half a minute is a time");
        let count = rustix::event::poll(&mut ended, Some(&limit)).expect("a process can be waited for");
        assert!(count > 0, "etcd (process {}) does not end", pid.as_raw_nonzero());
    }
}

impl Drop for OwnEtcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn endpoint(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn create_and_start(place: &Place, linger: u32) -> Result<Ports> {
    place.clear()?;
    // Somebody may take a port between our look and the server's start.
    let mut failure = None;
    for _ in 0..3 {
        let ports = Ports { client: free_port(), peer: free_port() };
        match launch(place, ports, linger) {
            Ok(()) => return Ok(ports),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.expect("three starts were tried"))
}

fn launch(place: &Place, ports: Ports, linger: u32) -> Result<()> {
    let (client, peer) =
        (format!("http://{}", endpoint(ports.client)), format!("http://{}", endpoint(ports.peer)));
    let cluster = format!("test={peer}");
    let arguments = [
        ("name", "test"),
        ("data-dir", "data"),
        ("listen-client-urls", &client),
        ("advertise-client-urls", &client),
        ("listen-peer-urls", &peer),
        ("initial-advertise-peer-urls", &peer),
        ("initial-cluster", &cluster),
        ("logger", "zap"),
        ("log-level", "warn"),
    ];
    let mut server = vec!["sh".into(), "-c".into(), LAUNCH.into(), "launch".into()];
    server.push(binary("etcd", "etcd-server")?.to_string_lossy().into_owned());
    server.extend(arguments.iter().map(|(name, value)| format!("--{name}={value}")));
    // What the folder says about a server is about this one from here on.
    std::fs::write(place.folder.join("client.port"), ports.client.to_string())?;
    let mut guard = place.start(linger, "TERM", &server)?;
    for _ in 0..START_POLLS {
        if is_healthy(ports.client) {
            return Ok(());
        }
        if guard.try_wait()?.is_some() {
            break; // the guard ends with its server
        }
        std::thread::sleep(POLL);
    }
    bail!("etcd did not start on port {}; its log says:\n{}", ports.client, place.server_log());
}

/// The port of a server that answers in this folder.
fn running_port(folder: &Path) -> Option<u16> {
    let port = std::fs::read_to_string(folder.join("client.port")).ok()?.trim().parse().ok()?;
    rustix::process::test_kill_process(server_pid(folder)?).ok()?;
    is_healthy(port).then_some(port)
}

fn server_pid(folder: &Path) -> Option<Pid> {
    Pid::from_raw(std::fs::read_to_string(folder.join("server.pid")).ok()?.trim().parse().ok()?)
}

/// As etcd says itself: it has a leader and can write.
fn is_healthy(port: u16) -> bool {
    let asking = || -> std::io::Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    asking().is_ok_and(|answer| answer.contains(r#""health":"true""#))
}

fn ctl(endpoint: &str, arguments: &[&str]) -> String {
    let program = binary("etcdctl", "etcd-client").unwrap_or_else(|error| panic!("{error:#}"));
    let done = Command::new(program)
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", endpoint])
        .args(arguments)
        .output()
        .expect("etcdctl runs");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "etcdctl {} failed: {errors}", arguments.join(" "));
    String::from_utf8(done.stdout).expect("etcdctl prints text")
}

fn binary(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file()).with_context(
        || {
            format!(
                "{name} is not installed: `cargo xtask test` installs it, or run `apt-get install {package}`"
            )
        },
    )
}
