//! The data folder: who may use it, who it is, and the token that opens its server.
//! Whoever holds its lock is the only process of that name.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use tenure_clock::Entropy;

use crate::discovery::TOKEN_FILE;
use crate::elect::host_name;

const LOCK_TRIES: u32 = 20;
const LOCK_TRY_EVERY: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub struct DataFolder {
    pub root: PathBuf,
    /// Names this installation across restarts. While we hold the folder's lock, whoever else carried this
    /// name is gone.
    pub instance: String,
    _lock: File,
}

impl DataFolder {
    pub fn open(root: &Path, entropy: &Entropy) -> Result<Self> {
        let at = || format!("cannot use the data folder {} (choose another with --data)", root.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root).with_context(at)?;
        let root = root.canonicalize().with_context(at)?;
        let lock = lock(&root).with_context(at)?;
        let instance =
            read_or_create(&root.join("instance"), || hex(&entropy.bytes::<16>())).with_context(at)?;
        Ok(Self { root, instance, _lock: lock })
    }

    /// The token of this folder's server, made with its first use.
    pub fn admin_token(&self, entropy: &Entropy) -> Result<String> {
        read_or_create(&self.token_file(), || hex(&entropy.bytes::<32>()))
    }

    /// What the agent of this installation is called: the host it was made on, and a few signs of its own.
    pub fn node(&self) -> Result<String> {
        read_or_create(&self.root.join("node"), || format!("{}-{}", host_name(), &self.instance[..4]))
    }

    pub fn token_file(&self) -> PathBuf {
        self.root.join(TOKEN_FILE)
    }

    pub fn agent(&self) -> PathBuf {
        self.root.join("agent")
    }

    /// Where the logs of tasks are kept, unless somebody wants them elsewhere.
    pub fn logs(&self, elsewhere: Option<&Path>) -> Result<PathBuf> {
        let logs = elsewhere.map_or_else(|| self.root.join("logs"), Path::to_owned);
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        Ok(logs)
    }
}

/// Held for the life of the process, and released by the kernel however it ends.
fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let mut file =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path)?;
    if !taken(&file) {
        let holder = fs::read_to_string(&path).unwrap_or_default();
        let holder = holder.trim();
        bail!(
            "it is in use by another Tenure{}",
            if holder.is_empty() { String::new() } else { format!(" (process {holder})") }
        );
    }
    file.set_len(0)?;
    write!(file, "{}", std::process::id())?;
    Ok(file)
}

/// A server that was killed while it started a process leaves the lock to that process for the moment until it has
/// become another program: a lock that is held now may be free in an instant.
fn taken(file: &File) -> bool {
    (0..LOCK_TRIES).any(|already| {
        if already > 0 {
            std::thread::sleep(LOCK_TRY_EVERY);
        }
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// A small file that is written once, whole, readable by its owner alone.
fn read_or_create(path: &Path, make: impl FnOnce() -> String) -> Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let text = make();
    let at = || format!("cannot write {}", path.display());
    let unfinished = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&unfinished)
        .with_context(at)?;
    writeln!(file, "{text}").and_then(|()| file.sync_all()).with_context(at)?;
    fs::rename(&unfinished, path).with_context(at)?;
    Ok(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn token_and_instance_outlive_the_process_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("data");
        let first = DataFolder::open(&root, &Entropy::seeded(1)).unwrap();
        let (token, instance) = (first.admin_token(&Entropy::seeded(1)).unwrap(), first.instance.clone());
        drop(first);
        let second = DataFolder::open(&root, &Entropy::seeded(2)).unwrap();
        assert_eq!(second.admin_token(&Entropy::seeded(3)).unwrap(), token);
        assert_eq!(second.instance, instance);
        assert_eq!(token.len(), 64);
        let mode = fs::metadata(second.token_file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_lock_that_is_let_go_in_an_instant_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataFolder::open(folder.path(), &Entropy::seeded(1)).unwrap();
        let letting_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(first);
        });
        assert!(DataFolder::open(folder.path(), &Entropy::seeded(2)).is_ok());
        letting_go.join().unwrap();
    }

    #[test]
    fn a_second_user_of_the_folder_is_refused_and_told_who_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let _first = DataFolder::open(folder.path(), &Entropy::seeded(1)).unwrap();
        let error = format!("{:#}", DataFolder::open(folder.path(), &Entropy::seeded(2)).unwrap_err());
        assert!(
            error.contains(&format!("in use by another Tenure (process {})", std::process::id())),
            "{error}"
        );
    }
}
