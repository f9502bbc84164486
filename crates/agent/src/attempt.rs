//! The life of one attempt on this node: prepared, claimed, running under its supervisor, settled.
//!
//! Nothing is started before the claim is accepted, and nothing is started by a recovered attempt at all.
//! The final report and the rest of the log travel side by side, so a slow log store delays no successor;
//! the folder goes when both have arrived.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use tenure_agent_life::{Backoff, Claim, Ending, Handle, Witness, submit_until_heard, unwatched};
use tenure_clock::{Clock, Entropy};
use tenure_model::{
    Ack, Assignment, AttemptId, EmbeddedFile, FailReason, OnDisconnect, Outcome, Program, Report, ReportBody,
    TiKey,
};
use tokio_util::sync::CancellationToken;

use crate::contact::ContactBook;
use crate::folder::{AttemptFolder, Exit, FenceOrder, Order, Started, StartedTask, Verdict};
use crate::limits::{Group, Groups};
use crate::log_store::LogStore;
use crate::output::{ShipError, Shipper};
use crate::redact::Redactor;
use crate::spawn::Supervisor;
use crate::work::RunFolders;
use crate::{AgentConfig, ControlPlane, HTTP, processes, users, verdict, work};

/// Between two looks at a supervisor that has not yet said who it is, or a lock that a fork still shares.
const LOOK_AGAIN_EVERY: Duration = Duration::from_millis(5);
/// How much longer than the grace a supervisor may take to stop its task: its own patience with SIGKILL,
/// doubled.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// What all attempts of an agent use.
pub(crate) struct Shared {
    pub config: AgentConfig,
    pub control: Arc<dyn ControlPlane>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Entropy,
    pub boot_id: String,
    /// The variables that tasks take over from the agent.
    pub environment: BTreeMap<String, String>,
    /// `None`: tasks are not limited.
    pub groups: Option<Groups>,
    pub own_user: String,
    pub contact: ContactBook,
    pub work: RunFolders,
    pub shutdown: CancellationToken,
    /// Keeps other agents out of the data folder until the last attempt is let go.
    pub folder_lock: Mutex<Option<File>>,
}

impl Shared {
    pub fn folder_of(&self, attempt: AttemptId) -> AttemptFolder {
        AttemptFolder::at(self.config.data_dir.join("attempts").join(attempt.to_string()))
    }
}

pub(crate) struct Attempt {
    shared: Arc<Shared>,
    folder: AttemptFolder,
    order: Order,
    handle: Arc<Handle>,
}

enum NotPrepared {
    Occupied,
    Failed(String),
}

/// The latest that an attempt's folder tells.
enum Left {
    Verdict(Verdict),
    Exit(Exit),
    Started(Option<Started>),
}

impl Attempt {
    /// A fresh attempt; writes nothing yet.
    pub fn ordered(shared: Arc<Shared>, assignment: Assignment, handle: Arc<Handle>) -> Self {
        let folder = shared.folder_of(assignment.attempt);
        let order = order(&shared, &folder, assignment);
        Self::new(shared, folder, order, handle)
    }

    /// An attempt that an earlier agent has left.
    pub fn found(shared: Arc<Shared>, folder: AttemptFolder, order: Order, handle: Arc<Handle>) -> Self {
        Self::new(shared, folder, order, handle)
    }

    fn new(shared: Arc<Shared>, folder: AttemptFolder, order: Order, handle: Arc<Handle>) -> Self {
        shared.work.enter(&order.run_dir);
        Self { shared, folder, order, handle }
    }

    /// `before`: attempts of the same task instance that may still be on their way out.
    pub async fn run(mut self, files: BTreeMap<String, EmbeddedFile>, before: Vec<Arc<Handle>>) {
        if let Err(error) = self.find_user().await {
            return self.settle(self.cannot_start(error)).await;
        }
        let lock = match self.prepare(files) {
            Ok(lock) => lock,
            Err(NotPrepared::Occupied) => {
                // Whoever made the folder answers for the attempt; the control plane withdraws what is not claimed.
                tracing::error!(attempt = %self.id(), "its folder exists already; it is not started");
                return;
            }
            Err(NotPrepared::Failed(error)) => return self.settle(self.cannot_start(error)).await,
        };
        match self.claim(before).await {
            Claim::Granted => self.start(lock).await,
            Claim::Refused => self.delete_folder(),
            // The claim may have been committed unheard, so the control plane has to learn this.
            Claim::Stopped => self.settle(self.verdict(Outcome::NeverStarted)).await,
            Claim::Interrupted => {}
        }
    }

    /// Takes up an attempt where the last agent left it.
    pub async fn resume(self) {
        let shipper = self.shipper(Shipper::resuming);
        match self.shared.shutdown.run_until_cancelled(self.find_supervisor_at_last()).await {
            Some(Some(supervisor)) => self.follow(supervisor, Witness::Lock, shipper).await,
            Some(None) => self.report_and_ship(self.conclude(Witness::Lock).await, shipper).await,
            None => {}
        }
    }

    /// Nothing is done for a task whose user this node does not let in.
    async fn find_user(&mut self) -> Result<(), String> {
        let Some(wanted) = other_user(&self.shared, &self.order.assignment).map(str::to_owned) else {
            return Ok(());
        };
        let allowed = self.shared.config.allow_run_as.clone();
        let found = tokio::task::spawn_blocking(move || users::look_up(&wanted, &allowed)).await;
        let user = found.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let own =
            [("HOME", &user.home), ("USER", &user.name), ("LOGNAME", &user.name), ("SHELL", &user.shell)];
        for (name, value) in own {
            self.order.env.insert(name.to_owned(), value.clone());
        }
        self.order.user = Some(user);
        Ok(())
    }

    fn prepare(&mut self, files: BTreeMap<String, EmbeddedFile>) -> Result<File, NotPrepared> {
        let (shared, run_dir) = (&self.shared, &self.order.run_dir);
        let user = self.order.user.as_ref();
        let mut made = shared.work.make(run_dir, user, shared.clock.now());
        match user {
            // By its own process.
            Some(_) => self.order.assignment.files = files,
            None => made = made.and_then(|()| work::write_files(run_dir, &files, self.id())),
        }
        made.map_err(|error| NotPrepared::Failed(error.to_string()))?;
        self.folder.create(&self.order).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => NotPrepared::Occupied,
            _ => {
                let at = self.folder.path().display();
                NotPrepared::Failed(format!("the attempt's folder {at} could not be made: {error}"))
            }
        })
    }

    async fn claim(&self, before: Vec<Arc<Handle>>) -> Claim {
        let claim = self.report(ReportBody::Claim { attempt: self.id(), ti: self.ti() });
        tenure_agent_life::claim(&self.handle, before, self.submit(claim)).await
    }

    async fn start(&self, lock: File) {
        if let Err(error) = self.note_contact() {
            let error = format!("its contact to the control plane could not be written down: {error}");
            return self.settle(self.cannot_start(error)).await;
        }
        match Supervisor::spawn(&self.shared.config.executable, &self.folder, lock) {
            Ok(supervisor) => self.follow(supervisor, Witness::Eye, self.shipper(Shipper::fresh)).await,
            Err(error) => {
                let executable = self.shared.config.executable.display();
                self.settle(
                    self.cannot_start(format!("its supervisor ({executable}) could not be started: {error}")),
                )
                .await;
            }
        }
    }

    /// Its supervisor counts from the contact that it finds written down.
    fn note_contact(&self) -> io::Result<()> {
        match (&self.order.fence, self.shared.control.contact(&*self.shared.clock)) {
            (Some(_), Some(at)) => self.shared.contact.note(at),
            _ => Ok(()),
        }
    }

    /// While its folder cannot be read nothing is known of the attempt, so it stays one that this node holds.
    async fn find_supervisor_at_last(&self) -> Option<Supervisor> {
        let mut backoff = Backoff::new(&self.shared.entropy);
        loop {
            match self.find_supervisor().await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::error!(attempt = %self.id(), %error, "its folder cannot be read; trying again");
                }
            }
            backoff.pause().await;
        }
    }

    /// `None` once nobody runs this attempt any more.
    async fn find_supervisor(&self) -> io::Result<Option<Supervisor>> {
        loop {
            if self.order.boot_id != self.shared.boot_id || self.folder.try_lock()?.is_some() {
                return Ok(None);
            }
            if let Some(supervisor) = Supervisor::adopt(&self.folder)? {
                return Ok(Some(supervisor));
            }
            tokio::time::sleep(LOOK_AGAIN_EVERY).await;
        }
    }

    /// Watches a living supervisor to its end, shipping the log all the while.
    async fn follow(&self, supervisor: Supervisor, witness: Witness, mut shipper: Shipper) {
        let ended = CancellationToken::new();
        let reporting = async {
            if !self.watch(&supervisor).await {
                return false;
            }
            ended.cancel();
            drop(supervisor);
            self.report_end(self.conclude(witness).await).await
        };
        let shipping = async {
            self.ship_while_running(&mut shipper, &ended).await;
            self.ship_rest(&mut shipper).await
        };
        if let (true, true) = tokio::join!(reporting, shipping) {
            self.delete_folder();
        }
    }

    /// Waits for the end of the supervisor; false when the agent shuts down first.
    async fn watch(&self, supervisor: &Supervisor) -> bool {
        let patience = self.order.assignment.grace + STOP_PATIENCE;
        let stopping = async {
            self.handle.stop.cancelled().await;
            supervisor.signal(Signal::TERM);
            tokio::time::sleep(patience).await;
            tracing::error!(attempt = %self.id(), "its supervisor does not answer; killing it");
            supervisor.signal(Signal::KILL);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = supervisor.ended() => {
                ended.expect("a pidfd can be polled");
                true
            }
            () = self.shared.shutdown.cancelled() => false,
            () = stopping => unreachable!("stopping has no end of its own"),
        }
    }

    /// Says how an attempt ended that nobody runs any more.
    async fn conclude(&self, witness: Witness) -> Verdict {
        let left = match self.what_is_left() {
            Ok(Left::Verdict(verdict)) => return verdict,
            Ok(Left::Exit(exit)) => return verdict::of_exit(exit, &self.order, &self.folder),
            Ok(Left::Started(started)) => started,
            Err(error) => {
                // It may have begun: only that can be said, and it is the careful thing to say.
                tracing::error!(attempt = %self.id(), %error, "its folder cannot be read");
                Some(Started::default())
            }
        };
        let same_boot = self.order.boot_id == self.shared.boot_id;
        let stopped = self.handle.stop.is_cancelled();
        let begun = left.is_some();
        if same_boot && let Some(started) = left {
            self.kill_leftovers(started.task).await;
        }
        let outcome = match unwatched(begun, same_boot, stopped, witness) {
            Ending::NeverStarted => Outcome::NeverStarted,
            Ending::CannotStart => failed(FailReason::CannotStart { error: self.supervisor_failed() }),
            Ending::Stopped => failed(FailReason::Stopped),
            Ending::Lost => failed(FailReason::Lost),
        };
        self.spooled(self.verdict(outcome))
    }

    fn what_is_left(&self) -> io::Result<Left> {
        if let Some(verdict) = self.folder.report()? {
            return Ok(Left::Verdict(verdict));
        }
        match self.folder.exit()? {
            Some(exit) => Ok(Left::Exit(exit)),
            None => Ok(Left::Started(self.folder.started()?)),
        }
    }

    async fn kill_leftovers(&self, task: Option<StartedTask>) {
        let attempt = self.id();
        let group = self.order.group.as_ref().map(|group| Group::at(group.path.clone()));
        let killing = tokio::task::spawn_blocking(move || {
            if let Some(group) = group {
                group.end();
            }
            processes::kill_leftovers(attempt, task.as_ref())
        });
        match killing.await {
            Ok(0) => {}
            Ok(left) => tracing::error!(%attempt, left, "processes of a lost attempt do not die"),
            Err(error) => tracing::error!(%attempt, %error, "looking for leftovers failed"),
        }
    }

    /// A verdict that needs no log of its own: what there is, is shipped with it.
    async fn settle(&self, verdict: Verdict) {
        self.report_and_ship(self.spooled(verdict), self.shipper(Shipper::fresh)).await;
    }

    async fn report_and_ship(&self, verdict: Verdict, mut shipper: Shipper) {
        if let (true, true) = tokio::join!(self.report_end(verdict), self.ship_rest(&mut shipper)) {
            self.delete_folder();
        }
    }

    /// True when the control plane has heard it; both answers mean that it may be forgotten.
    async fn report_end(&self, verdict: Verdict) -> bool {
        self.handle.ended.cancel();
        let Verdict { outcome, ended_at, result } = verdict;
        let end = ReportBody::End { attempt: self.id(), ti: self.ti(), outcome, ended_at, result };
        self.submit(self.report(end)).await.is_some()
    }

    async fn ship_while_running(&self, shipper: &mut Shipper, ended: &CancellationToken) {
        loop {
            let pause = shipper.pause(self.shared.config.log_flush_every);
            tokio::select! {
                () = ended.cancelled() => return,
                () = self.shared.shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            // Never dropped half-way: a part that lands after its successor would be read twice.
            if let Err(error) = shipper.ship_lines().await {
                self.warn_about_logs(&error);
            }
        }
    }

    /// Insists until the whole log is stored. At a shutdown whole lines go once more, and the answer is false.
    async fn ship_rest(&self, shipper: &mut Shipper) -> bool {
        let shutdown = &self.shared.shutdown;
        let mut backoff = Backoff::new(&self.shared.entropy);
        while !shutdown.is_cancelled() {
            match shipper.ship_rest().await {
                Ok(()) => return true,
                Err(error) => self.warn_about_logs(&error),
            }
            shutdown.run_until_cancelled(backoff.pause()).await;
        }
        if let Err(error) = shipper.ship_lines().await {
            self.warn_about_logs(&error);
        }
        false
    }

    fn warn_about_logs(&self, error: &ShipError) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(attempt = %self.id(), %error, cause, "its output is not stored yet; trying again");
    }

    async fn submit(&self, report: Report) -> Option<Ack> {
        submit_until_heard(&*self.shared.control, report, &self.shared.entropy, &self.shared.shutdown).await
    }

    fn report(&self, body: ReportBody) -> Report {
        let scope = self.order.assignment.scope.clone();
        Report { node: self.shared.config.node.clone(), scope, body }
    }

    fn shipper(&self, kind: fn(Arc<dyn LogStore>, &Assignment, PathBuf) -> Shipper) -> Shipper {
        kind(Arc::clone(&self.shared.config.logs), &self.order.assignment, self.folder.output_path())
    }

    fn verdict(&self, outcome: Outcome) -> Verdict {
        let now: Timestamp = self.shared.clock.now();
        Verdict { outcome, ended_at: now, result: None }
    }

    fn cannot_start(&self, error: String) -> Verdict {
        let error = Redactor::new(&self.order.assignment.secrets).redact_text(&error);
        self.verdict(failed(FailReason::CannotStart { error }))
    }

    /// Keeps a verdict of our own for the next agent, who could not come to it again.
    fn spooled(&self, verdict: Verdict) -> Verdict {
        if let Err(error) = self.folder.write_report(&verdict) {
            tracing::warn!(attempt = %self.id(), %error, "its verdict could not be spooled");
        }
        verdict
    }

    /// The supervisor's last words are at the end of `output`.
    fn supervisor_failed(&self) -> String {
        let last_words = || -> io::Result<String> {
            let output = File::open(self.folder.output_path())?;
            let mut end = [0; 512];
            let read = output.read_at(&mut end, output.metadata()?.len().saturating_sub(512))?;
            Ok(String::from_utf8_lossy(&end[..read]).trim().to_owned())
        };
        let words = last_words().unwrap_or_default();
        format!("its supervisor ended before it could start the task: {words}")
    }

    fn delete_folder(&self) {
        if let Err(error) = self.folder.delete() {
            tracing::warn!(attempt = %self.id(), %error, "its folder could not be deleted");
        }
    }

    fn id(&self) -> AttemptId {
        self.order.assignment.attempt
    }

    fn ti(&self) -> TiKey {
        self.order.assignment.ti
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.shared.work.leave(&self.order.run_dir, self.shared.clock.now());
    }
}

fn failed(reason: FailReason) -> Outcome {
    Outcome::Failed { reason }
}

/// The user that the task asks for, if it is not the agent's own.
fn other_user<'a>(shared: &Shared, assignment: &'a Assignment) -> Option<&'a str> {
    assignment.run_as.as_deref().filter(|user| *user != shared.own_user)
}

fn order(shared: &Shared, folder: &AttemptFolder, mut assignment: Assignment) -> Order {
    assignment.files.clear();
    let run_dir = shared.work.path_of(&assignment, other_user(shared, &assignment));
    let argv = match &assignment.program {
        Program::Process { argv } => argv.clone(),
        Program::Http { .. } => {
            let executable = shared.config.executable.display().to_string();
            vec![executable, HTTP.to_owned(), folder.path().display().to_string()]
        }
    };
    let mut env = shared.environment.clone();
    env.append(&mut assignment.env);
    let own = [
        ("TENURE_DAG_ID", assignment.dag.to_string()),
        ("TENURE_RUN_ID", assignment.run_id.to_string()),
        ("TENURE_TASK_ID", assignment.task.to_string()),
        ("TENURE_MAP_INDEX", assignment.ti.map_index.to_string()),
        ("TENURE_TRY_NUMBER", assignment.try_number.to_string()),
        ("TENURE_ATTEMPT_ID", assignment.attempt.to_string()),
        ("TENURE_RESULT", folder.result_path().display().to_string()),
        ("TENURE_RUN_DIR", run_dir.display().to_string()),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    let fence = || FenceOrder { contact: shared.contact.path().to_owned(), after: shared.config.fence_after };
    Order {
        boot_id: shared.boot_id.clone(),
        argv,
        env,
        run_dir,
        result_limit: shared.config.result_limit,
        output_most: shared.config.output_most,
        group: shared.groups.as_ref().map(|groups| groups.order(assignment.attempt, &assignment.resources)),
        user: None,
        fence: (assignment.on_disconnect == OnDisconnect::Stop).then(fence),
        assignment,
    }
}
