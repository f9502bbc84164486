//! The agent itself: takes assignments, knows its attempts, and takes up what an earlier agent left.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tenure_clock::{Clock, Entropy};
use tenure_model::{Assignment, AttemptId, Held, NodeId, TiKey};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::attempt::{Attempt, Handle, Shared};
use crate::control::ControlPlane;
use crate::epochs::Epochs;
use crate::folder::{AttemptFolder, Order};
use crate::log_store::LogStore;
use crate::processes;
use crate::spawn::Supervisor;
use crate::work::RunFolders;

const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(3600);
/// How long a shutdown waits for logs on their way; the next agent ships what is left.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);
/// Ended attempts that are remembered so that a late duplicate does not even ask for its claim.
const REMEMBERED: usize = 4096;
/// A process that was killed in the middle of a spawn leaves a child holding the lock until its exec.
const LOCK_TRIES: u32 = 10;
const LOCK_TRY_EVERY: Duration = Duration::from_millis(30);
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
}

#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    #[error(
        "attempt {attempt} was bound under epoch e{offered} of {scope}, but e{highest} has been seen: its owner was deposed"
    )]
    StaleEpoch { attempt: AttemptId, scope: String, offered: u64, highest: u64 },
    #[error("attempt {attempt} is for node {wanted}, and this is {here}")]
    WrongNode { attempt: AttemptId, wanted: NodeId, here: NodeId },
    #[error("the epoch of {scope} could not be remembered: {source}")]
    Storage { scope: String, source: io::Error },
    #[error("the agent is shutting down")]
    ShuttingDown,
}

/// Runs attempts on this machine. Dropping it is a shutdown without waiting.
pub struct Agent {
    shared: Arc<Shared>,
    registry: Arc<Mutex<Registry>>,
    epochs: Mutex<Epochs>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Registry {
    attempts: HashMap<AttemptId, Arc<Handle>>,
    forgotten: HashSet<AttemptId>,
    forgotten_in_order: VecDeque<AttemptId>,
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
        config.data_dir = make_folders(&config.data_dir)?;
        let lock = lock_folder(&config.data_dir).await?;
        let storage = |doing| {
            let at = config.data_dir.clone();
            move |source| AgentError::Storage { doing, at, source }
        };
        let epochs =
            Epochs::load(config.data_dir.join("epochs.json")).map_err(storage("reading epochs.json"))?;
        let left = find_attempts(&config.data_dir.join("attempts")).map_err(storage("reading attempts/"))?;

        let shared = Arc::new(Shared {
            boot_id: processes::boot_id().map_err(storage("reading the boot id"))?,
            environment: environment(&config.pass_through),
            work: RunFolders::below(config.data_dir.join("work")),
            shutdown: CancellationToken::new(),
            folder_lock: Mutex::new(Some(lock)),
            config,
            control,
            clock,
            entropy,
        });
        let agent =
            Self { shared, registry: Arc::default(), epochs: Mutex::new(epochs), tasks: TaskTracker::new() };
        agent.take_up(left);
        agent.tasks.spawn(keep_house(Arc::clone(&agent.shared)));
        Ok(agent)
    }

    /// Returns as soon as the attempt is known. What is known already is not started again.
    pub async fn assign(&self, mut assignment: Assignment) -> Result<(), AssignError> {
        let attempt = assignment.attempt;
        if assignment.node != self.shared.config.node {
            let here = self.shared.config.node.clone();
            return Err(AssignError::WrongNode { attempt, wanted: assignment.node, here });
        }
        let mut registry = lock(&self.registry);
        // Before anything is refused: an attempt that runs here must never be called «not taken».
        if registry.knows(attempt) {
            return Ok(());
        }
        if self.shared.shutdown.is_cancelled() {
            return Err(AssignError::ShuttingDown);
        }
        self.admit(&assignment)?;
        let before = registry.unended(assignment.ti);
        let handle = registry.add(attempt, assignment.ti, &assignment.scope);
        drop(registry);
        let files = std::mem::take(&mut assignment.files);
        let fresh = Attempt::ordered(Arc::clone(&self.shared), assignment, Arc::clone(&handle));
        self.spawn(attempt, handle, fresh.run(files, before));
        Ok(())
    }

    /// Asks for the end of an attempt: SIGTERM, its grace, SIGKILL. Its end is reported like any other.
    pub async fn stop(&self, attempt: AttemptId) {
        if let Some(handle) = lock(&self.registry).attempts.get(&attempt) {
            handle.stop.cancel();
        }
    }

    /// Everything this node has: ordered, running, or ended and not yet acknowledged.
    pub fn inventory(&self) -> Vec<Held> {
        let registry = lock(&self.registry);
        let held = registry.attempts.iter().map(|(attempt, handle)| Held {
            attempt: *attempt,
            ti: handle.ti,
            scope: handle.scope.clone(),
        });
        held.collect()
    }

    /// How many attempts have not ended yet.
    pub fn running(&self) -> usize {
        lock(&self.registry).attempts.values().filter(|handle| !handle.ended.is_cancelled()).count()
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

    fn admit(&self, assignment: &Assignment) -> Result<(), AssignError> {
        let Assignment { attempt, scope, epoch, .. } = assignment;
        match lock(&self.epochs).admit(scope, *epoch) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(highest)) => Err(AssignError::StaleEpoch {
                attempt: *attempt,
                scope: scope.clone(),
                offered: *epoch,
                highest,
            }),
            Err(source) => Err(AssignError::Storage { scope: scope.clone(), source }),
        }
    }

    fn take_up(&self, left: Vec<(AttemptFolder, Order)>) {
        for (folder, order) in left {
            let id = order.assignment.attempt;
            let handle = lock(&self.registry).add(id, order.assignment.ti, &order.assignment.scope);
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

impl Registry {
    fn knows(&self, attempt: AttemptId) -> bool {
        self.attempts.contains_key(&attempt) || self.forgotten.contains(&attempt)
    }

    fn add(&mut self, attempt: AttemptId, ti: TiKey, scope: &str) -> Arc<Handle> {
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let handle = || Arc::new(Handle { ti, scope: scope.to_owned(), stop, ended });
        Arc::clone(self.attempts.entry(attempt).or_insert_with(handle))
    }

    /// Attempts of one task instance of which something may still run.
    fn unended(&self, ti: TiKey) -> Vec<Arc<Handle>> {
        let attempts = self.attempts.values();
        attempts.filter(|handle| handle.ti == ti && !handle.ended.is_cancelled()).cloned().collect()
    }

    fn forget(&mut self, attempt: AttemptId) {
        self.attempts.remove(&attempt);
        if self.forgotten.insert(attempt) {
            self.forgotten_in_order.push_back(attempt);
        }
        if self.forgotten_in_order.len() > REMEMBERED
            && let Some(oldest) = self.forgotten_in_order.pop_front()
        {
            self.forgotten.remove(&oldest);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while holding the agent's books")
}

/// Makes the folder, closed to other users, and gives its absolute path, which supervisors rely on.
fn make_folders(data_dir: &Path) -> Result<PathBuf, AgentError> {
    let make = || {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(data_dir.join("attempts"))?;
        builder.create(data_dir.join("work"))?;
        data_dir.canonicalize()
    };
    make().map_err(|source| AgentError::Storage { doing: "making it", at: data_dir.to_owned(), source })
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

fn environment(names: &[String]) -> std::collections::BTreeMap<String, String> {
    let mut environment: std::collections::BTreeMap<String, String> =
        names.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))).collect();
    environment.entry("PATH".to_owned()).or_insert_with(|| FALLBACK_PATH.to_owned());
    environment
}
