//! The process above one attempt: starts the task, waits, ends it when time or the agent says so, leaves
//! nothing of it behind, and writes down how it ended.
//!
//! Single-threaded and without a runtime, because every attempt pays for its start. It lives in a session of
//! its own, so neither Ctrl-C nor the end of the agent reaches it, and it is the subreaper of everything the
//! task starts: a process whose parent dies becomes its child, wherever it has put itself. «No children
//! left» therefore means that nothing of the attempt is alive.
//!
//! SIGTERM asks it to stop the task.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions};
use tenure_clock::{BootTime, Clock, SystemClock};
use tenure_model::duration;

use crate::bounded::BoundedOutput;
use crate::contact::Fence;
use crate::folder::{AttemptFolder, Cut, End, Exit, Order, StartedTask};
use crate::launch;
use crate::limits::{Group, GroupOrder};
use crate::processes::{self, own_children};
use crate::waking::Waking;

/// How long SIGKILL may take to empty the attempt. Only a process stuck in the kernel needs longer.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// A killed process may fork a last child that appears only after its death.
const KILL_AGAIN_EVERY: Duration = Duration::from_millis(20);
/// While the disk is full there is nothing to do but wait: the exit code must not be lost.
const WRITE_AGAIN_EVERY: Duration = Duration::from_secs(1);
/// A task that is cut off gets no longer grace: by default it is stopped after 60 s of silence and given up by the
/// control plane after 90 s, and by then it must be gone.
const LONGEST_GRACE_CUT_OFF: Duration = Duration::from_secs(20);

pub(crate) fn supervise(folder: &Path) -> ExitCode {
    match try_supervise(AttemptFolder::at(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: the supervisor failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_supervise(folder: AttemptFolder) -> io::Result<()> {
    // Refused only to the leader of a process group, which is alone in its group already.
    let _ = rustix::process::setsid();
    // Before `started` exists: from then on a SIGTERM must not end this process.
    let waking = Waking::install()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let order = folder.order()?.ok_or_else(|| io::Error::other("its order is missing"))?;
    let mut started = folder.begin(std::process::id())?;

    let exit = match start(&order, &folder) {
        Err(error) => Exit::new(End::CannotStart { error }, None, SystemClock.now()),
        Ok((task, group)) => {
            let start_time = processes::start_time(task.as_raw_pid()).unwrap_or(0);
            let noted = StartedTask { pid: task.as_raw_pid(), start_time };
            if let Err(error) = AttemptFolder::note_task(&mut started, &noted) {
                eprintln!("tenure: could not note the task's process: {error}");
            }
            let fence = order
                .fence
                .as_ref()
                .map(|fence| Fence::new(fence.contact.clone(), order.boot_id.clone(), fence.after));
            let (path, cuts) = (folder.output_path(), folder.cuts_path());
            let output = BoundedOutput::new(path, cuts, order.output_most, SystemClock.boottime());
            let mut exit = Supervision { task, waking, group, fence, output }.run(&order);
            // What could not become the task's program has said why.
            if let Some(error) = folder.refusal()? {
                exit.end = End::CannotStart { error };
            }
            exit
        }
    };
    write_exit(&folder, &exit)
}

/// The task is born in its group, because this process is in it at that moment.
fn start(order: &Order, folder: &AttemptFolder) -> Result<(Pid, Option<Group>), String> {
    let Some(wanted) = &order.group else { return Ok((launch::spawn(order, folder)?, None)) };
    let group = match Group::make(wanted).and_then(|group| group.enter().map(|()| group)) {
        Ok(group) => group,
        Err(error) if wanted.required => return Err(format!("its limits could not be set: {error}")),
        Err(error) => {
            eprintln!("tenure: the task runs without limits, which could not be set: {error}");
            return Ok((launch::spawn(order, folder)?, None));
        }
    };
    let spawned = launch::spawn(order, folder);
    let group = leave(group, wanted);
    match spawned {
        Ok(task) => Ok((task, group)),
        Err(error) => {
            if let Some(group) = group {
                group.end();
            }
            Err(error)
        }
    }
}

/// A supervisor that cannot get out of the group must not end the group: it would end itself.
fn leave(group: Group, wanted: &GroupOrder) -> Option<Group> {
    match Group::leave(&wanted.outside) {
        Ok(()) => Some(group),
        Err(error) => {
            eprintln!("tenure: the supervisor shares the task's limits, which it could not leave: {error}");
            None
        }
    }
}

struct Supervision {
    task: Pid,
    waking: Waking,
    group: Option<Group>,
    fence: Option<Fence>,
    output: BoundedOutput,
}

impl Supervision {
    fn run(mut self, order: &Order) -> Exit {
        let cut = self.wait_for_end_or_cut(order.assignment.timeout);
        if let Some(cut) = cut {
            let grace = match cut {
                Cut::Silence { .. } => order.assignment.grace.min(LONGEST_GRACE_CUT_OFF),
                Cut::TimedOut | Cut::Stopped => order.assignment.grace,
            };
            announce(cut, order, grace);
            self.terminate(grace);
        }
        let ended_at = SystemClock.now();
        let end = self.bury();
        let out_of_memory = self.group.as_ref().is_some_and(Group::ran_out_of_memory);
        if let Some(group) = &self.group {
            group.end();
        }
        Exit { out_of_memory, ..Exit::new(end, cut, ended_at) }
    }

    fn wait_for_end_or_cut(&mut self, timeout: Option<Duration>) -> Option<Cut> {
        let time_is_up = timeout.map(|timeout| SystemClock.boottime() + timeout);
        loop {
            if self.task_ended() {
                return None;
            }
            if self.waking.stop_requested() {
                return Some(Cut::Stopped);
            }
            let now = SystemClock.boottime();
            if time_is_up.is_some_and(|deadline| now >= deadline) {
                return Some(Cut::TimedOut);
            }
            let fenced_at = self.fence.as_mut().map(Fence::deadline);
            if let (Some(deadline), Some(fence)) = (fenced_at, &self.fence)
                && now >= deadline
            {
                return Some(Cut::Silence { silent_ms: fence.silent(now).as_millis() as u64 });
            }
            let deadline = time_is_up.into_iter().chain(fenced_at).min();
            if self.wait_until(deadline) && !self.task_ended() {
                self.reap_adopted();
            }
        }
    }

    /// Looks after the output on the way; true if a signal came.
    fn wait_until(&mut self, deadline: Option<BootTime>) -> bool {
        self.output.look(SystemClock.boottime());
        let look = self.output.next_look();
        self.waking.wait_until(Some(deadline.map_or(look, |deadline| deadline.min(look))))
    }

    /// SIGTERM to all that can be reached, until everything is gone or the grace is over.
    fn terminate(&mut self, grace: Duration) {
        let deadline = SystemClock.boottime() + grace;
        self.signal_group(Signal::TERM);
        let mut told = BTreeSet::new();
        loop {
            let adopted = self.reap_adopted();
            if self.task_ended() && adopted.is_empty() {
                return;
            }
            for pid in adopted {
                if told.insert(pid) {
                    processes::kill(pid, Signal::TERM);
                }
            }
            if SystemClock.boottime() >= deadline {
                return;
            }
            self.wait_until(Some(deadline));
        }
    }

    /// Kills whatever is left and says how the task ended.
    fn bury(&self) -> End {
        // Until it is reaped the task keeps its number, so the group that is killed is its own.
        self.signal_group(Signal::KILL);
        if let Some(group) = &self.group {
            group.kill();
        }
        let status = self.wait_for_task(WaitIdOptions::EXITED);
        let deadline = SystemClock.boottime() + KILL_PATIENCE;
        while !(nothing_left() && self.group.as_ref().is_none_or(Group::is_empty)) {
            let children = own_children();
            if let Some(group) = &self.group {
                group.kill();
            }
            if SystemClock.boottime() >= deadline {
                eprintln!("tenure: these processes of the task do not die: {children:?}");
                break;
            }
            for pid in children {
                processes::kill(pid, Signal::KILL);
            }
            self.waking.wait_until(Some(SystemClock.boottime() + KILL_AGAIN_EVERY));
        }
        status.map_or_else(
            || unreachable!("a child that is waited for without NOHANG has ended"),
            |status| end_of(&status),
        )
    }

    fn task_ended(&self) -> bool {
        self.wait_for_task(WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).is_some()
    }

    fn wait_for_task(&self, options: WaitIdOptions) -> Option<WaitIdStatus> {
        loop {
            match rustix::process::waitid(WaitId::Pid(self.task), options) {
                Err(rustix::io::Errno::INTR) => {}
                answer => return answer.expect("the task is our child until we reap it"),
            }
        }
    }

    /// The adopted children that live; the dead among them are reaped on the way.
    fn reap_adopted(&self) -> BTreeSet<i32> {
        let mut children = own_children();
        children.remove(&self.task.as_raw_pid());
        children.retain(|pid| {
            let pid = Pid::from_raw(*pid).expect("/proc lists no process 0");
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(None))
        });
        children
    }

    fn signal_group(&self, signal: Signal) {
        // Fails only when the group is empty already.
        let _ = rustix::process::kill_process_group(self.task, signal);
    }
}

fn nothing_left() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

fn end_of(status: &WaitIdStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => End::Code { code },
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal);
            End::Signal { name: name.map_or_else(|| format!("signal {signal}"), str::to_owned) }
        }
        (None, None) => unreachable!("only exits were waited for"),
    }
}

fn announce(cut: Cut, order: &Order, grace: Duration) {
    let why = match (cut, order.assignment.timeout) {
        (Cut::TimedOut, Some(timeout)) => format!("timed out after {}", duration::format(timeout)),
        (Cut::Silence { silent_ms }, _) => {
            let silent = duration::format(Duration::from_millis(silent_ms));
            format!("stopped, because no replica was heard for {silent}")
        }
        _ => "stopped on request".to_owned(),
    };
    eprintln!("tenure: {why}: SIGTERM, and SIGKILL in {}", duration::format(grace));
}

fn write_exit(folder: &AttemptFolder, exit: &Exit) -> io::Result<()> {
    loop {
        match folder.write_exit(exit) {
            // Without its folder nobody will ever ask.
            Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(WRITE_AGAIN_EVERY),
            answer => return answer,
        }
    }
}
