//! The dags folder: what is in it is registered, now and whenever a file is saved.
//!
//! A broken file is reported and leaves the last good version in force. A file that disappears leaves its
//! dag registered: runs may be in progress, and deleting history is a decision for a person.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use notify::{RecursiveMode, Watcher};
use tenure_api::{Diagnostic, ImportError};
use tenure_clock::Clock;
use tenure_dagfile::{Attached, Diagnostics, Folder};
use tenure_model::{DagId, DagSpec, EmbeddedFile, TenantId, VersionHash};
use tenure_store::{DagRegistration, SharedStore, StoreError, Trigger};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// An editor writes a file in several steps; what arrives within this is one change.
const SETTLE: Duration = Duration::from_millis(100);
/// Events can be lost, and a folder can appear later: look anyway.
const RESCAN_EVERY: Duration = Duration::from_secs(10);
/// What the database could not take is offered again after so long.
const OFFER_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub struct DagFolder {
    root: PathBuf,
    store: SharedStore,
    clock: Arc<dyn Clock>,
    /// The folder as it was when it was last read without trouble: nothing new, nothing to do.
    seen: Option<Listing>,
    /// What this process has registered already, by file.
    known: BTreeMap<PathBuf, VersionHash>,
}

/// Every file below the folder with its size and when it was changed.
type Listing = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// What a scan has found.
#[derive(Debug)]
pub struct FolderReport {
    root: PathBuf,
    exists: bool,
    dags: Vec<DagId>,
    broken: usize,
}

type Shared<T> = Arc<RwLock<T>>;

impl DagFolder {
    pub fn new(root: PathBuf, store: &SharedStore, clock: &Arc<dyn Clock>) -> Self {
        let (store, clock) = (Arc::clone(store), Arc::clone(clock));
        Self { root, store, clock, seen: None, known: BTreeMap::new() }
    }

    /// One that must be there.
    pub fn existing(root: &Path, store: &SharedStore, clock: &Arc<dyn Clock>) -> Result<Self> {
        if !root.is_dir() {
            bail!("the dags folder {} is not there", root.display());
        }
        Ok(Self::new(root.to_owned(), store, clock))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Scans again after every change, until it is told to stop.
    pub async fn watch(mut self, errors: Shared<Vec<ImportError>>, stop: CancellationToken) {
        let (changed, mut changes) = mpsc::channel(1);
        let mut watcher = None;
        loop {
            if watcher.is_none() && self.root.is_dir() {
                watcher = self.start_watcher(changed.clone());
            }
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changes.recv() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(if self.seen.is_some() { RESCAN_EVERY } else { OFFER_AGAIN_AFTER }) => {}
            }
            while changes.try_recv().is_ok() {}
            let root = self.root.clone();
            // Off the async threads: a slow disk must not hold up a renewal.
            let listing = tokio::task::spawn_blocking(move || list_folder(&root)).await.ok();
            if self.seen.is_none() || self.seen != listing {
                self.scan(&errors).await;
            }
        }
    }

    fn start_watcher(&self, changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
        let tell = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                let _ = changed.try_send(()); // full: a scan is due anyway
            }
        };
        let config = notify::Config::default().with_follow_symlinks(false);
        let watcher = notify::RecommendedWatcher::new(tell, config).and_then(|mut watcher| {
            watcher.watch(&self.root, RecursiveMode::Recursive)?;
            Ok(watcher)
        });
        match watcher {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(folder = %self.root.display(), %error, every = ?RESCAN_EVERY, "cannot watch; looking now and then");
                None
            }
        }
    }

    /// Registers what is new or changed in the folder.
    pub async fn scan(&mut self, errors: &Shared<Vec<ImportError>>) -> FolderReport {
        let root = self.root.clone();
        let read = tokio::task::spawn_blocking(move || {
            let listing = list_folder(&root);
            let files: Vec<DagFile> =
                listing.keys().filter(|path| is_dag_file(path)).map(|path| read_file(path)).collect();
            (listing, files)
        });
        let (listing, files) = match read.await {
            Ok(read) => read,
            Err(panic) => {
                tracing::error!(%panic, "reading the dags folder panicked");
                Default::default()
            }
        };
        let mut refused = false;
        let mut broken: Vec<ImportError> = vec![];
        let mut owners: BTreeMap<DagId, PathBuf> = BTreeMap::new();
        for file in files {
            let outcome = match file.parsed {
                Ok(spec) => match owners.get(&spec.id) {
                    Some(owner) => Err(vec![duplicate(&file.path, &spec.id, owner)]),
                    None => {
                        owners.insert(spec.id.clone(), file.path.clone());
                        let registered = self.register(&file.path, spec, file.text).await;
                        refused |= registered.is_err();
                        registered
                    }
                },
                Err(diagnostics) => Err(diagnostics),
            };
            if let Err(diagnostics) = outcome {
                let file = file.path.display().to_string();
                broken.push(ImportError { file, at: self.clock.now(), diagnostics });
            }
        }
        let gone: Vec<PathBuf> =
            self.known.keys().filter(|path| !listing.contains_key(*path)).cloned().collect();
        for path in gone {
            self.known.remove(&path);
            tracing::warn!(file = %path.display(), "a dag file is gone; its dag stays registered and scheduled until it is paused or deleted");
        }
        report_news(&errors.read().expect("no panic while holding the errors"), &broken);
        let report = FolderReport {
            root: self.root.clone(),
            exists: self.root.is_dir(),
            dags: owners.into_keys().collect(),
            broken: broken.len(),
        };
        *errors.write().expect("no panic while holding the errors") = broken;
        // What the database refused is tried again, also when nothing changes here.
        self.seen = (!refused).then_some(listing);
        report
    }

    async fn register(&mut self, path: &Path, spec: DagSpec, source: String) -> Result<(), Vec<Diagnostic>> {
        let hash = spec.hash();
        if self.known.get(path) == Some(&hash) {
            return Ok(());
        }
        let registration = DagRegistration {
            trigger: Trigger {
                tenant: TenantId::default_tenant(),
                actor: "dags folder".into(),
                at: self.clock.now(),
            },
            spec,
            source,
            origin: path.display().to_string(),
            paused_if_new: false,
        };
        let mut registered = self.store.register_dag(&registration).await;
        if let Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }) = registered {
            // A stumble should not make a server begin without one of its dags. Registering twice changes nothing.
            tokio::time::sleep(OFFER_AGAIN_AFTER).await;
            registered = self.store.register_dag(&registration).await;
        }
        match registered {
            Ok(registered) => {
                if registered.changed {
                    let version = registered.version.version;
                    tracing::info!(dag = %registration.spec.id, version, file = %path.display(), "registered");
                }
                self.known.insert(path.to_owned(), hash);
                Ok(())
            }
            // Not the file's fault: the next scan tries again.
            Err(error) => Err(vec![whole_file(path, format!("could not be registered: {error}"))]),
        }
    }
}

/// Parses a dag that came over the network, with the files that were sent along.
pub fn parse_pushed(
    name: &str,
    text: &str,
    files: BTreeMap<String, EmbeddedFile>,
) -> Result<DagSpec, Vec<Diagnostic>> {
    tenure_dagfile::parse(name, text, &Attached(files)).map_err(diagnostics)
}

struct DagFile {
    path: PathBuf,
    text: String,
    parsed: Result<DagSpec, Vec<Diagnostic>>,
}

/// Every file below `root`, in order. Hidden files and folders are left out, and so are links to folders: they
/// may lead in circles.
fn list_folder(root: &Path) -> Listing {
    let mut listing = Listing::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue }; // gone between two looks
        for entry in entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if let Ok(facts) = std::fs::metadata(&path)
                && facts.is_file()
            {
                listing.insert(path, (facts.len(), facts.modified().ok()));
            }
        }
    }
    listing
}

fn is_dag_file(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

fn read_file(path: &Path) -> DagFile {
    let path = path.to_owned();
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let parsed = tenure_dagfile::parse(&path.display().to_string(), &text, &Folder::of(&path));
            DagFile { parsed: parsed.map_err(diagnostics), path, text }
        }
        Err(error) => {
            let parsed = Err(vec![whole_file(&path, format!("cannot be read: {error}"))]);
            DagFile { path, text: String::new(), parsed }
        }
    }
}

fn diagnostics(found: Diagnostics) -> Vec<Diagnostic> {
    let convert = |d: tenure_dagfile::Diagnostic| Diagnostic {
        file: d.file,
        line: d.line,
        column: d.column,
        field: d.field,
        message: d.message,
    };
    found.list.into_iter().map(convert).collect()
}

fn duplicate(path: &Path, dag: &DagId, owner: &Path) -> Diagnostic {
    let message =
        format!("dag {dag:?} is defined in {} already; give one of them another id", owner.display());
    Diagnostic { field: "id".into(), ..whole_file(path, message) }
}

fn whole_file(path: &Path, message: String) -> Diagnostic {
    Diagnostic { file: path.display().to_string(), line: 1, column: 1, field: String::new(), message }
}

/// Says what has become broken or whole since the last scan, once.
fn report_news(before: &[ImportError], now: &[ImportError]) {
    let same = |list: &[ImportError], error: &ImportError| {
        list.iter().any(|other| other.file == error.file && other.diagnostics == error.diagnostics)
    };
    for error in now.iter().filter(|error| !same(before, error)) {
        for diagnostic in &error.diagnostics {
            tracing::warn!("{diagnostic}");
        }
    }
    for error in before.iter().filter(|error| now.iter().all(|other| other.file != error.file)) {
        tracing::info!(file = %error.file, "no longer broken");
    }
}

impl FolderReport {
    /// A dag to try first.
    pub fn example(&self) -> Option<&DagId> {
        self.dags.iter().find(|dag| dag.as_str() == "hello").or(self.dags.first())
    }
}

impl fmt::Display for FolderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.root.display();
        if !self.exists {
            return write!(f, "{root} is not there yet; dag files put into it will be picked up");
        }
        let plural = if self.dags.len() == 1 { "" } else { "s" };
        write!(f, "{root}: {} dag{plural}", self.dags.len())?;
        if self.broken > 0 {
            write!(f, ", {} broken (see \"tenure dag errors\")", self.broken)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_circles_hidden_files_and_links_to_nowhere_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("deep")).unwrap();
        for file in ["a.yaml", "deep/b.yaml", "deep/script.py", ".hidden.yaml"] {
            std::fs::write(root.join(file), "x").unwrap();
        }
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        link(root, "self");
        link(root, "deep/up");
        link(&root.join("nowhere"), "gone.yaml");
        link(&root.join("a.yaml"), "linked.yaml");
        let listing = list_folder(root);
        let found: Vec<_> =
            listing.keys().map(|path| path.strip_prefix(root).unwrap().to_str().unwrap()).collect();
        assert_eq!(found, ["a.yaml", "deep/b.yaml", "deep/script.py", "linked.yaml"]);
    }
}
