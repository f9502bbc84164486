//! The agent itself: takes assignments, knows its attempts, and takes up what an earlier agent left.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tenure_agent_life::{AssignError, Book, ControlPlane, Handle, Taken};
use tenure_clock::{Clock, Entropy};
use tenure_model::{Assignment, AttemptId, Held, NodeId};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::attempt::{Attempt, Shared};
use crate::contact::ContactBook;
use crate::epochs::Epochs;
use crate::folder::{AttemptFolder, DEFAULT_OUTPUT_MOST, Order};
use crate::limits::{Groups, Limits, Wishes};
use crate::log_store::LogStore;
use crate::spawn::Supervisor;
use crate::work::{OF_USER, RunFolders};
use crate::{processes, users};

const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(3600);
/// How long a shutdown waits for logs on their way; the next agent ships what is left.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);
/// A process that was killed in the middle of a spawn leaves a child holding the lock until its exec.
const LOCK_TRIES: u32 = 10;
const LOCK_TRY_EVERY: Duration = Duration::from_millis(30);
/// Between two looks at whether the control plane hears us; a fraction of any sensible fence.
const CONTACT_EVERY: Duration = Duration::from_secs(1);
/// Far below the 90 s after which a silent node's tasks are given up: a task that is stopped then has 20 s for its
/// grace, and 10 s are left for clocks and for the looks of both sides.
const DEFAULT_FENCE_AFTER: Duration = Duration::from_secs(60);
/// A build with many jobs takes hundreds; a fork bomb takes all that there are.
const DEFAULT_PIDS_MOST: u64 = 4096;
/// Where programs are looked for if the agent itself was started without a PATH.
const FALLBACK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub node: NodeId,
    /// `attempts/`, `work/` and `epochs.json` live here.
    pub data_dir: PathBuf,
    /// A program whose `main` calls [`run_hidden_subcommand`](crate::run_hidden_subcommand) first.
    /// `/proc/self/exe` names the running binary, also after its file was replaced by an upgrade.
    pub executable: PathBuf,
    pub logs: Arc<dyn LogStore>,
    /// The largest result a task may return, in bytes.
    pub result_limit: usize,
    pub log_flush_every: Duration,
    /// For how long a run folder is kept after its last use.
    pub work_retention: Duration,
    /// The variables of the agent's own environment that tasks see.
    pub pass_through: Vec<String>,
    /// How much room on disk the output of a task may take while it waits to be stored.
    pub output_most: u64,
    /// Whether tasks are limited to the resources they ask for.
    pub limits: Limits,
    /// Gives tasks groups of their own also where nothing can be limited in them.
    pub bare_groups: bool,
    /// The most processes and threads that a task may have, where that can be limited.
    pub pids_most: u64,
    /// The users as whom tasks may run, besides the agent's own. Only root can do so.
    pub allow_run_as: Vec<String>,
    /// A task with `on_disconnect: stop` is stopped after so long a silence of all replicas.
    pub fence_after: Duration,
}

impl AgentConfig {
    pub fn new(node: NodeId, data_dir: PathBuf, executable: PathBuf, logs: impl LogStore + 'static) -> Self {
        let pass_through = ["PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "TMPDIR"];
        Self {
            node,
            data_dir,
            executable,
            logs: Arc::new(logs),
            result_limit: 64 * 1024,
            log_flush_every: Duration::from_millis(500),
            work_retention: Duration::from_secs(24 * 3600),
            pass_through: pass_through.map(str::to_owned).to_vec(),
            output_most: DEFAULT_OUTPUT_MOST,
            limits: Limits::default(),
            bare_groups: false,
            pids_most: DEFAULT_PIDS_MOST,
            allow_run_as: Vec::new(),
            fence_after: DEFAULT_FENCE_AFTER,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("another agent already works on the data folder {}: stop it, or choose another data folder", .0.display())]
    InUse(PathBuf),
    #[error("the agent's data folder {} cannot be used ({doing}): {source}", at.display())]
    Storage { doing: &'static str, at: PathBuf, source: io::Error },
    #[error(
        "this system cannot watch processes by pidfd (Linux 5.3 or later, and no filter against pidfd_open): {0}"
    )]
    NoPidfd(io::Error),
    #[error("tasks cannot be limited, as --limits require asks for: {0}")]
    NoLimits(String),
    #[error(
        "--allow-run-as needs an agent that is root, and this one is {0}: run it as root, or let all tasks run as {0}"
    )]
    CannotRunAs(String),
}

/// Runs attempts on this machine. Dropping it is a shutdown without waiting.
pub struct Agent {
    shared: Arc<Shared>,
    registry: Arc<Mutex<Book>>,
    epochs: Mutex<Epochs>,
    tasks: TaskTracker,
    unlimited: Option<String>,
}

impl Agent {
    /// Takes the data folder and goes on with what an earlier agent has left in it. Waits for nobody: what is left
    /// runs on, or has ended, whether the control plane can be reached or not.
    pub async fn start(
        mut config: AgentConfig,
        control: Arc<dyn ControlPlane>,
        clock: Arc<dyn Clock>,
        entropy: Entropy,
    ) -> Result<Self, AgentError> {
        Supervisor::check_support().map_err(AgentError::NoPidfd)?;
        let own_user = users::own_name();
        if config.allow_run_as.iter().any(|user| *user != own_user) && !users::is_root() {
            return Err(AgentError::CannotRunAs(own_user));
        }
        config.data_dir = make_folders(&config.data_dir, !config.allow_run_as.is_empty())?;
        let lock = lock_folder(&config.data_dir).await?;
        let storage = |doing| {
            let at = config.data_dir.clone();
            move |source| AgentError::Storage { doing, at, source }
        };
        let epochs =
            Epochs::load(config.data_dir.join("epochs.json")).map_err(storage("reading epochs.json"))?;
        let left = find_attempts(&config.data_dir.join("attempts")).map_err(storage("reading attempts/"))?;

        let boot_id = processes::boot_id().map_err(storage("reading the boot id"))?;
        let (groups, unlimited) = make_groups(&config, &left)?;
        let contact_file = config.data_dir.join("contact");
        let shared = Arc::new(Shared {
            groups,
            own_user,
            contact: ContactBook::open(contact_file, boot_id.clone(), config.fence_after),
            boot_id,
            environment: environment(&config.pass_through),
            work: RunFolders::below(config.data_dir.join("work")),
            shutdown: CancellationToken::new(),
            folder_lock: Mutex::new(Some(lock)),
            config,
            control,
            clock,
            entropy,
        });
        let agent = Self {
            shared,
            registry: Arc::default(),
            epochs: Mutex::new(epochs),
            tasks: TaskTracker::new(),
            unlimited,
        };
        agent.take_up(left);
        agent.tasks.spawn(keep_house(Arc::clone(&agent.shared)));
        agent.tasks.spawn(keep_contact(Arc::clone(&agent.shared), Arc::clone(&agent.registry)));
        Ok(agent)
    }

    /// Returns as soon as the attempt is known. What is known already is not started again.
    pub async fn assign(&self, mut assignment: Assignment) -> Result<(), AssignError> {
        let attempt = assignment.attempt;
        let closing = self.shared.shutdown.is_cancelled();
        let taken = lock(&self.registry).take(
            &self.shared.config.node,
            &assignment,
            closing,
            &mut *lock(&self.epochs),
        )?;
        let Some(Taken { handle, before }) = taken else { return Ok(()) };
        let files = std::mem::take(&mut assignment.files);
        let fresh = Attempt::ordered(Arc::clone(&self.shared), assignment, Arc::clone(&handle));
        self.spawn(attempt, handle, fresh.run(files, before));
        Ok(())
    }

    /// Asks for the end of an attempt: SIGTERM, its grace, SIGKILL. Its end is reported like any other.
    pub async fn stop(&self, attempt: AttemptId) {
        lock(&self.registry).stop(attempt);
    }

    /// Everything this node has: ordered, running, or ended and not yet acknowledged.
    pub fn inventory(&self) -> Vec<Held> {
        lock(&self.registry).inventory()
    }

    /// How many attempts have not ended yet.
    pub fn running(&self) -> usize {
        lock(&self.registry).running()
    }

    /// Why tasks are not limited in all they use, and what to do about it; `None` if they are, or shall not be.
    pub fn unlimited(&self) -> Option<&str> {
        self.unlimited.as_deref()
    }

    /// Stops watching. Tasks go on under their supervisors, for the next agent to take up.
    pub async fn shutdown(&self) {
        self.shared.shutdown.cancel();
        self.tasks.close();
        match tokio::time::timeout(SHUTDOWN_PATIENCE, self.tasks.wait()).await {
            Ok(()) => drop(lock(&self.shared.folder_lock).take()),
            Err(_) => tracing::warn!("the log store is slow; the next agent stores the rest of the logs"),
        }
    }

    fn take_up(&self, left: Vec<(AttemptFolder, Order)>) {
        for (folder, order) in left {
            let id = order.assignment.attempt;
            let handle = lock(&self.registry).add(&order.assignment);
            let found = Attempt::found(Arc::clone(&self.shared), folder, order, Arc::clone(&handle));
            self.spawn(id, handle, found.resume());
        }
    }

    fn spawn(
        &self,
        attempt: AttemptId,
        handle: Arc<Handle>,
        life: impl Future<Output = ()> + Send + 'static,
    ) {
        let (registry, shared) = (Arc::clone(&self.registry), Arc::clone(&self.shared));
        self.tasks.spawn(async move {
            life.await;
            // At a shutdown the life of an attempt goes on without us, and so does the wait of its successors; and
            // whoever asks what this node holds must not hear that it is gone.
            if !shared.shutdown.is_cancelled() {
                handle.ended.cancel();
                lock(&registry).forget(attempt);
            }
        });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.shutdown.cancel();
        // While it holds an attempt, a supervisor may be about to make a group.
        let holds_nothing = self.registry.lock().is_ok_and(|registry| registry.is_empty());
        if let Some(groups) = self.shared.groups.as_ref().filter(|_| holds_nothing) {
            groups.clear_away();
        }
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("config", &self.shared.config)
            .field("running", &self.running())
            .finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while holding the agent's books")
}

/// Makes the folder, closed to other users, and gives its absolute path, which supervisors rely on.
/// Other users whose tasks run here are let through to what is theirs, and see nothing on the way.
fn make_folders(data_dir: &Path, for_others: bool) -> Result<PathBuf, AgentError> {
    let make = || {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        let folders = [data_dir.to_owned(), data_dir.join("attempts"), data_dir.join("work")];
        for folder in &folders {
            builder.create(folder)?;
        }
        if for_others {
            for folder in &folders {
                fs::set_permissions(folder, Permissions::from_mode(0o711))?;
            }
            close_run_folders(&folders[2])?;
        }
        data_dir.canonicalize()
    };
    make().map_err(|source| AgentError::Storage { doing: "making it", at: data_dir.to_owned(), source })
}

/// Those of the agent's own user, which were made when nobody else could come near them.
fn close_run_folders(work: &Path) -> io::Result<()> {
    for entry in fs::read_dir(work)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().contains(OF_USER) {
            fs::set_permissions(entry.path(), Permissions::from_mode(0o700))?;
        }
    }
    Ok(())
}

/// Groups of attempts that ended while no agent was there are removed.
fn make_groups(
    config: &AgentConfig,
    left: &[(AttemptFolder, Order)],
) -> Result<(Option<Groups>, Option<String>), AgentError> {
    let wishes = Wishes {
        limits: config.limits,
        bare: config.bare_groups,
        pids: config.pids_most,
        data_dir: &config.data_dir,
    };
    let (groups, unlimited) =
        Groups::set_up(wishes).map_err(|error| AgentError::NoLimits(error.to_string()))?;
    let held = left.iter().map(|(_, order)| order.assignment.attempt).collect();
    if let Some(Err(error)) = groups.as_ref().map(|groups| groups.sweep(&held)) {
        tracing::warn!(%error, "groups of earlier tasks could not be removed");
    }
    Ok((groups, unlimited.map(|why| why.to_string())))
}

async fn lock_folder(data_dir: &Path) -> Result<File, AgentError> {
    let storage = |source| AgentError::Storage { doing: "locking it", at: data_dir.to_owned(), source };
    let lock = File::create(data_dir.join("agent.lock")).map_err(storage)?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(LOCK_TRY_EVERY).await,
            Err(error) => return Err(storage(error.into())),
        }
    }
    Err(AgentError::InUse(data_dir.to_owned()))
}

/// A folder without a whole order was never claimed under (or a power cut has eaten it); it is not in the
/// inventory, so the control plane does not wait for it.
fn find_attempts(folder: &Path) -> io::Result<Vec<(AttemptFolder, Order)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().and_then(|name| Uuid::parse_str(name.to_str()?).ok()).is_none() {
            continue;
        }
        let folder = AttemptFolder::at(path);
        match folder.order()? {
            Some(order) => found.push((folder, order)),
            None => {
                tracing::warn!(folder = %folder.path().display(), "removing an attempt that was never claimed");
                folder.delete()?;
            }
        }
    }
    found.sort_by_key(|(_, order)| order.assignment.attempt);
    Ok(found)
}

/// Removes old run folders now and every hour.
async fn keep_house(shared: Arc<Shared>) {
    loop {
        let keeper = Arc::clone(&shared);
        let cleaning = tokio::task::spawn_blocking(move || {
            keeper.work.remove_old(keeper.clock.now(), keeper.config.work_retention)
        });
        match cleaning.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "old run folders could not be removed"),
            Err(error) => tracing::error!(%error, "removing old run folders failed"),
        }
        tokio::select! {
            () = tokio::time::sleep(HOUSEKEEPING_EVERY) => {}
            () = shared.shutdown.cancelled() => return,
        }
    }
}

/// Writes down that the control plane hears us, for as long as a task depends on it.
async fn keep_contact(shared: Arc<Shared>, registry: Arc<Mutex<Book>>) {
    loop {
        if lock(&registry).any_fenced()
            && let Some(at) = shared.control.contact(&*shared.clock)
            && let Err(error) = shared.contact.note(at)
        {
            tracing::error!(%error, "contact to the control plane cannot be written down; tasks may be stopped for it");
        }
        tokio::select! {
            () = tokio::time::sleep(CONTACT_EVERY) => {}
            () = shared.shutdown.cancelled() => return,
        }
    }
}

fn environment(names: &[String]) -> std::collections::BTreeMap<String, String> {
    let mut environment: std::collections::BTreeMap<String, String> =
        names.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))).collect();
    environment.entry("PATH".to_owned()).or_insert_with(|| FALLBACK_PATH.to_owned());
    environment
}
