//! The files of one database: who may read them, and which process may open them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Only the owner reads it: it holds what tasks return, and their configuration.
const PRIVATE: u32 = 0o600;

/// Held for as long as the file is open; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

pub(crate) enum LockFailure {
    Taken { holder: Option<u32> },
    Io(std::io::Error),
}

impl From<std::io::Error> for LockFailure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// SQLite's own locks would let a second process in between two transactions, with a scheduler that believes to
/// be alone. This one is beside the database, because SQLite drops its locks when any handle on the file closes.
pub(crate) fn lock(database: &Path) -> Result<FileLock, LockFailure> {
    let mut file = open_private(&lock_path(database))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(LockFailure::Taken { holder: written_pid(&mut file) });
        }
        Err(error) => return Err(LockFailure::Io(error.into())),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(FileLock { _file: file })
}

/// Made private before SQLite writes the first byte; its WAL and index files take over these permissions.
///
/// The file itself is never opened here: closing it would take away the locks that SQLite may hold on it in this
/// very process.
pub(crate) fn make_private(database: &Path) -> std::io::Result<()> {
    if !database.exists() {
        let mut unnamed = tempfile::Builder::new();
        unnamed.permissions(Permissions::from_mode(PRIVATE));
        let folder = database.parent().filter(|parent| !parent.as_os_str().is_empty());
        let made = unnamed.tempfile_in(folder.unwrap_or(Path::new(".")))?.into_temp_path();
        match made.persist_noclobber(database) {
            // Somebody else was quicker, which is as good.
            Err(failed) if failed.error.kind() == std::io::ErrorKind::AlreadyExists => {}
            settled => settled?,
        }
    }
    std::fs::set_permissions(database, Permissions::from_mode(PRIVATE))
}

pub(crate) fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn open_private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(PRIVATE).open(path)
}

fn written_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
