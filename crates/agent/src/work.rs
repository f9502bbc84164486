//! The run folders: `work/<tenant>/<dag>/<run>`, where the tasks of one run find each other's files.
//!
//! Promises: a run folder outlives its run by the retention at least, and is never removed while an attempt
//! uses it; an embedded file is whole whenever it is visible.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, FileTimes, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use tenure_model::{Assignment, AttemptId, EmbeddedFile};
use uuid::Uuid;

use crate::users::RunAs;

const LONGEST_NAME: usize = 120;
/// Between a tenant and the user whose run folders these are.
pub(crate) const OF_USER: char = '~';

#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkError {
    #[error("the run folder {} could not be made: {source}", at.display())]
    Folder { at: PathBuf, source: io::Error },
    #[error("the file {name:?} would lie outside the run folder: use a relative path without \"..\"")]
    Outside { name: String },
    #[error("the file {name:?} could not be written into the run folder: {source}")]
    File { name: String, source: io::Error },
}

#[derive(Debug)]
pub(crate) struct RunFolders {
    root: PathBuf,
    /// How many attempts use each folder. Held while one is chosen for removal, so that none is removed
    /// under an attempt that just moves in.
    in_use: Mutex<HashMap<PathBuf, usize>>,
}

impl RunFolders {
    pub fn below(root: PathBuf) -> Self {
        Self { root, in_use: Mutex::default() }
    }

    /// Tasks of a run that run as different users share no folder: nobody writes where somebody else might have put a
    /// link.
    pub fn path_of(&self, assignment: &Assignment, user: Option<&str>) -> PathBuf {
        let mut tenant = file_name(assignment.tenant.as_str());
        if let Some(user) = user {
            // No plain name has this sign.
            tenant = format!("{tenant}{OF_USER}{}", file_name(user));
        }
        let dag = file_name(assignment.dag.as_str());
        self.root.join(tenant).join(dag).join(file_name(assignment.run_id.as_str()))
    }

    pub fn enter(&self, run_dir: &Path) {
        *self.in_use().entry(run_dir.to_owned()).or_default() += 1;
    }

    pub fn leave(&self, run_dir: &Path, now: Timestamp) {
        // A folder that cannot be touched is gone, or only looks older than it is.
        let _ = touch(run_dir, now);
        let mut in_use = self.in_use();
        if let Some(count) = in_use.get_mut(run_dir) {
            *count -= 1;
            if *count == 0 {
                in_use.remove(run_dir);
            }
        }
    }

    /// Makes the folder, or marks it as used just now.
    pub fn make(&self, run_dir: &Path, user: Option<&RunAs>, now: Timestamp) -> Result<(), WorkError> {
        let made = match touch(run_dir, now) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_folder(run_dir, user),
            touched => touched,
        };
        let made = made.and_then(|()| match user {
            Some(user) => give(run_dir, user),
            None => Ok(()),
        });
        made.map_err(|source| WorkError::Folder { at: run_dir.to_owned(), source })
    }

    /// Removes run folders that nobody has used for the retention.
    pub fn remove_old(&self, now: Timestamp, retention: Duration) -> io::Result<()> {
        for tenant in folders_in(&self.root)? {
            for dag in folders_in(&tenant)? {
                for run in folders_in(&dag)? {
                    // One folder that resists must not keep the others from being removed.
                    if let Err(error) = self.remove_if_old(&run, now, retention) {
                        tracing::warn!(folder = %run.display(), %error, "an old run folder could not be removed");
                    }
                }
            }
        }
        Ok(())
    }

    fn remove_if_old(&self, run: &Path, now: Timestamp, retention: Duration) -> io::Result<()> {
        match self.condemn(run, now, retention)? {
            Some(condemned) => fs::remove_dir_all(condemned),
            None => Ok(()),
        }
    }

    /// Takes an old folder out of reach, so that the slow removal needs no lock. One that a crash left
    /// condemned is old again next time.
    fn condemn(&self, run: &Path, now: Timestamp, retention: Duration) -> io::Result<Option<PathBuf>> {
        let in_use = self.in_use();
        if in_use.contains_key(run) {
            return Ok(None);
        }
        let modified = Timestamp::try_from(fs::metadata(run)?.modified()?).map_err(io::Error::other)?;
        if Duration::try_from(now.duration_since(modified)).unwrap_or_default() < retention {
            return Ok(None);
        }
        let condemned = run.with_file_name(format!(".old-{}", run.file_name().unwrap_or_default().display()));
        fs::rename(run, &condemned)?;
        Ok(Some(condemned))
    }

    fn in_use(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, usize>> {
        self.in_use.lock().expect("no panic while holding the run folders")
    }
}

fn touch(folder: &Path, now: Timestamp) -> io::Result<()> {
    File::open(folder)?.set_times(FileTimes::new().set_modified(now.into()))
}

fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

/// A name that shells, PATH lists and file systems take without quoting. What had to be changed gets a hash,
/// so two runs never share a folder.
fn file_name(id: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '@' | '=');
    if id.chars().all(plain) && !id.starts_with('.') && !id.is_empty() && id.len() <= LONGEST_NAME {
        return id.to_owned();
    }
    let readable: String = id.chars().map(|c| if plain(c) { c } else { '_' }).take(LONGEST_NAME).collect();
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, id.as_bytes()).simple().to_string();
    format!("{}-{}", readable.trim_start_matches('.'), &hash[..12])
}

fn inside(run_dir: &Path, name: &str) -> Option<PathBuf> {
    let relative = Path::new(name);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    (plain && relative.file_name().is_some()).then(|| run_dir.join(relative))
}

/// Puts embedded files into a run folder.
pub(crate) fn write_files(
    run_dir: &Path,
    files: &BTreeMap<String, EmbeddedFile>,
    attempt: AttemptId,
) -> Result<(), WorkError> {
    for (name, file) in files {
        let path = inside(run_dir, name).ok_or_else(|| WorkError::Outside { name: name.clone() })?;
        write_file(&path, file, attempt).map_err(|source| WorkError::File { name: name.clone(), source })?;
    }
    Ok(())
}

/// Closed to other users. The folders above one that belongs to another user let that user through, and show nothing.
fn make_folder(run_dir: &Path, user: Option<&RunAs>) -> io::Result<()> {
    let folder = |mode| {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(mode);
        builder
    };
    if user.is_none() {
        return folder(0o700).create(run_dir);
    }
    folder(0o711).create(run_dir.parent().expect("a run folder lies in the folder of its dag"))?;
    folder(0o700).create(run_dir)
}

/// Also when an earlier agent was killed before it had done so. Only the agent can put anything in this place.
fn give(run_dir: &Path, user: &RunAs) -> io::Result<()> {
    if fs::symlink_metadata(run_dir)?.uid() == user.uid {
        return Ok(());
    }
    std::os::unix::fs::lchown(run_dir, Some(user.uid), Some(user.gid))
}

fn write_file(path: &Path, file: &EmbeddedFile, attempt: AttemptId) -> io::Result<()> {
    let mode = if file.executable { 0o755 } else { 0o644 };
    if fs::read(path).is_ok_and(|content| content == file.content.as_bytes()) {
        if fs::metadata(path)?.permissions().mode() & 0o777 != mode {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        return Ok(());
    }
    let folder = path.parent().expect("the file lies in the run folder");
    fs::create_dir_all(folder)?;
    // Another task of the run may be reading or writing the same file at this moment.
    let temporary = folder.join(format!(".{attempt}.new"));
    fs::write(&temporary, &file.content)?;
    fs::set_permissions(&temporary, Permissions::from_mode(mode))?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_runs_never_share_a_folder_name() {
        assert_eq!(file_name("manual_1"), "manual_1");
        let names: Vec<String> =
            ["a:b", "a_b", "a/b", "..", ".", "", "a:b ", &"é".repeat(300)].map(file_name).into();
        for name in &names {
            assert!(!name.starts_with('.') && !name.contains(['/', ':']) && name.len() < 200, "{name}");
        }
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn files_cannot_be_written_outside() {
        let run = Path::new("/run");
        for name in ["/etc/passwd", "../x", "a/../../x", "", "."] {
            assert_eq!(inside(run, name), None, "{name}");
        }
        assert_eq!(inside(run, "./lib/x.py"), Some("/run/./lib/x.py".into()));
    }

    #[test]
    fn only_old_folders_that_nobody_uses_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let folders = RunFolders::below(root.path().to_owned());
        let [old, used, fresh] =
            ["old", "used", "fresh"].map(|name| root.path().join("t").join("d").join(name));
        let start = Timestamp::UNIX_EPOCH;
        let day = Duration::from_secs(86_400);
        for folder in [&old, &used, &fresh] {
            fs::create_dir_all(folder.join("sub")).unwrap();
            touch(folder, start).unwrap();
        }
        folders.enter(&used);
        touch(&fresh, start + day).unwrap();
        folders.remove_old(start + day, day).unwrap();
        assert_eq!((old.exists(), used.exists(), fresh.exists()), (false, true, true));
        folders.leave(&used, start + day);
        folders.remove_old(start + day + day, day).unwrap();
        assert_eq!(fs::read_dir(root.path().join("t").join("d")).unwrap().count(), 0);
    }
}
