//! A real PgBouncer in front of a test's database: what shares sessions among clients breaks whatever relies on
//! having one.

use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::guarded::{Account, Place};
use crate::{TempDir, free_port};

const LINGER_SECONDS: u32 = 2;
const START_POLLS: u32 = 1_200;
const POLL: Duration = Duration::from_millis(25);

/// A pooler that belongs to one test.
#[derive(Debug)]
pub struct PgBouncer {
    /// Of the same database, through the pooler.
    pub url: String,
    place: Place,
    _user: File,
    _folder: TempDir,
}

impl PgBouncer {
    /// `pool_mode` is `session`, `transaction` or `statement`; `pool_size` how many sessions there are to share.
    ///
    /// # Panics
    /// When there is no PgBouncer on this machine, or it does not start; the message says what to do.
    pub fn in_front_of(url: &str, pool_mode: &str, pool_size: usize) -> Self {
        match Self::start(url, pool_mode, pool_size) {
            Ok(bouncer) => bouncer,
            Err(error) => panic!("no PgBouncer for a test: {error:#}"),
        }
    }

    fn start(url: &str, pool_mode: &str, pool_size: usize) -> Result<Self> {
        let (login, database) = url.rsplit_once('/').context("the URL names a database")?;
        let (head, server_port) = login.rsplit_once(':').context("the URL names a port")?;
        let user = head.trim_start_matches("postgres://").split_once('@').context("the URL names a user")?.0;
        let account = Account::for_servers("postgres")?;
        let folder = crate::temp_dir();
        let place = Place::at(folder.path().to_owned(), account)?;
        let user_lock = place.use_it()?;
        let port = free_port();
        let (ini, pid) = (place.folder.join("pgbouncer.ini"), place.folder.join("pid"));
        let settings = format!(
            "[databases]\n\
             {database} = host=127.0.0.1 port={server_port} user={user}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\npidfile = {}\n\
             auth_type = any\npool_mode = {pool_mode}\ndefault_pool_size = {pool_size}\n\
             ignore_startup_parameters = options,extra_float_digits\n",
            pid.display()
        );
        std::fs::write(&ini, settings).with_context(|| format!("writing {}", ini.display()))?;
        let server = [binary()?, ini].map(|path| path.to_string_lossy().into_owned());
        let mut guard = place.start(LINGER_SECONDS, "TERM", &server)?;
        for _ in 0..START_POLLS {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                let url = format!("{head}:{port}/{database}");
                return Ok(Self { url, place, _user: user_lock, _folder: folder });
            }
            if guard.try_wait()?.is_some() {
                break; // the guard ends with its server
            }
            std::thread::sleep(POLL);
        }
        bail!("it did not start on port {port}; its log says:\n{}", place.server_log());
    }
}

impl Drop for PgBouncer {
    /// At once. The guard does the same a little later, should this process be killed before it gets here.
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.place.folder.join("pid"));
        let pid = pid.ok().and_then(|text| rustix::process::Pid::from_raw(text.trim().parse().ok()?));
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

/// In PATH, or where Debian keeps it away from plain users.
fn binary() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join("pgbouncer")).find(|file| file.is_file());
    found.context(
        "pgbouncer is not installed: `cargo xtask test` installs it, or run `apt-get install pgbouncer`",
    )
}
