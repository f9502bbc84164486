//! A server process with a guard: a tiny shell that starts it, and stops it once nobody uses it any more.
//!
//! A user is whoever holds a shared lock on the `users` file. Locks end with their process, however it
//! ends, so no crash of a test can keep a server alive. The guard takes `lock` before it stops the server,
//! and users take `lock` before they look for a running one: the two never miss each other.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;

/// `$1` folder, `$2` seconds without users, `$3` signal that stops the server, the rest its command line.
const GUARD: &str = r#"
cd "$1" || exit 1
linger=$2; signal=$3; shift 3
"$@" </dev/null >server.log 2>&1 &
server=$!
idle=0
while kill -0 "$server" 2>/dev/null; do
    sleep 1
    # Whoever stopped the server may be removing the folder: nothing is made in it any more.
    kill -0 "$server" 2>/dev/null && [ -e users ] || break
    if flock -n users true; then idle=$((idle + 1)); else idle=0; fi
    if [ "$idle" -ge "$linger" ]; then
        exec 9>lock
        flock 9
        if flock -n users true; then
            kill -"$signal" "$server"
            wait "$server"
            rm -rf data
            exit 0
        fi
        exec 9>&-
        idle=0
    fi
done
"#;

const LOCK: &str = "lock";
const USERS: &str = "users";

/// The account that servers run under. Database servers refuse to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Account {
    Own,
    Other { uid: u32, gid: u32 },
}

impl Account {
    /// Our own, unless we are root: then the server's own account, or nobody.
    pub(crate) fn for_servers(preferred: &str) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Own);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        let entry = |name: &str| {
            let fields: Vec<&str> = passwd
                .lines()
                .map(|line| line.split(':'))
                .find_map(|mut line| (line.next() == Some(name)).then(|| line.collect()))?;
            Some(Self::Other { uid: fields.get(1)?.parse().ok()?, gid: fields.get(2)?.parse().ok()? })
        };
        entry(preferred).or_else(|| entry("nobody")).context("root needs an account to run servers under")
    }

    pub(crate) fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// A folder that the account may write to.
    pub(crate) fn own_folder(self, path: &Path) -> Result<()> {
        std::fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))?;
        if let Self::Other { uid, gid } = self {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
        }
        Ok(())
    }
}

/// The folder of one guarded server, and this process's part in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    account: Account,
}

impl Place {
    pub(crate) fn at(folder: PathBuf, account: Account) -> Result<Self> {
        account.own_folder(&folder)?;
        Ok(Self { folder, account })
    }

    /// Keeps others from starting or stopping the server while the answer lives.
    pub(crate) fn lock(&self) -> Result<File> {
        self.locked(LOCK, FlockOperation::LockExclusive)
    }

    /// Keeps the server running while the answer lives.
    pub(crate) fn use_it(&self) -> Result<File> {
        self.locked(USERS, FlockOperation::LockShared)
    }

    /// Removes what a server that is gone has left, whichever account it ran under.
    pub(crate) fn clear(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            if name == LOCK || name == USERS {
                continue; // others may be waiting for them
            }
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.with_context(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn start(&self, linger_seconds: u32, stop_signal: &str, server: &[String]) -> Result<Child> {
        self.account
            .command("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&self.folder)
            .args([linger_seconds.to_string(), stop_signal.to_owned()])
            .args(server)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // a test runner ends the group of a test that hangs; the guard has its own rules
            .spawn()
            .context("starting the guard of a test server with `sh`")
    }

    pub(crate) fn server_log(&self) -> String {
        std::fs::read_to_string(self.folder.join("server.log")).unwrap_or_default()
    }

    fn locked(&self, name: &str, operation: FlockOperation) -> Result<File> {
        let path = self.folder.join(name);
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o666).open(&path)?;
        // The umask may have narrowed it, and the guard runs under another account.
        if file.metadata()?.permissions().mode() & 0o777 != 0o666 {
            file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        }
        rustix::fs::flock(&file, operation).with_context(|| format!("locking {}", path.display()))?;
        Ok(file)
    }
}
