//! A machine with an agent on it: its disk and its processes, which outlive the agent.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use tenure_agent_life::{Admission, Contact, EpochMemory, Highest};
use tenure_clock::{BootTime, Clock};
use tenure_judge::history::{End, RunName, Start};
use tenure_model::{Assignment, AttemptId, FailReason, NodeId, OnDisconnect, Outcome, Program};
use tokio_util::sync::CancellationToken;

use crate::time::{SimClock, TrueTime};
use crate::world::World;

/// As in a real agent.
pub const FENCE_AFTER: Duration = Duration::from_secs(60);
/// What a task takes at most to end when it is asked to.
const STOPPING: Duration = Duration::from_millis(1_500);

pub struct Machine {
    pub number: usize,
    pub node: NodeId,
    pub clock: SimClock,
    time: TrueTime,
    disk: Mutex<Disk>,
}

#[derive(Debug, Default)]
pub struct Disk {
    /// Grows when the machine itself restarts.
    pub boot: u64,
    pub epochs: Highest,
    pub orders: BTreeMap<AttemptId, Order>,
    pub contact: Option<Contact>,
}

#[derive(Clone, Debug)]
pub struct Order {
    pub assignment: Assignment,
    pub boot: u64,
    /// Its process, once it has begun.
    pub process: Option<Process>,
    /// How it ended, by the word of its supervisor or of its agent.
    pub verdict: Option<Verdict>,
}

#[derive(Clone, Debug)]
pub struct Verdict {
    pub outcome: Outcome,
    pub ended_at: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct Process {
    pub stop: CancellationToken,
    kill: CancellationToken,
    pub ended: CancellationToken,
}

/// The machine that a node's name stands for.
pub fn number_of(node: &NodeId) -> Option<usize> {
    node.as_str().strip_prefix('n')?.parse().ok()
}

impl EpochMemory for Disk {
    fn admit(&mut self, scope: &str, epoch: u64) -> io::Result<Result<(), u64>> {
        match self.epochs.admit(scope, epoch) {
            Admission::Known => Ok(Ok(())),
            Admission::Stale(highest) => Ok(Err(highest)),
            Admission::Newer(grown) => {
                self.epochs = grown;
                Ok(Ok(()))
            }
        }
    }
}

impl Machine {
    pub fn new(number: usize, clock: SimClock, time: TrueTime) -> Self {
        Self { number, node: NodeId::new(format!("n{number}")), clock, time, disk: Mutex::default() }
    }

    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("no panic while holding the disk")
    }

    /// The power is gone: nothing runs any more, and what was running has left nothing.
    pub fn lose_power(&self) {
        let mut disk = self.disk();
        disk.boot += 1;
        disk.contact = None;
        for order in disk.orders.values() {
            if let Some(process) = &order.process {
                process.kill.cancel();
            }
        }
    }

    /// The control plane has heard what was said then.
    pub fn note_contact(&self, at: BootTime) {
        let mut disk = self.disk();
        disk.contact = Some(Contact::extended(disk.contact, at, FENCE_AFTER));
    }

    /// Starts the process of an attempt; its supervisor writes down how it ends.
    pub fn begin(self: &Arc<Self>, world: &Arc<World>, attempt: AttemptId) {
        let (assignment, process) = {
            let mut disk = self.disk();
            let Some(order) = disk.orders.get_mut(&attempt) else { return };
            let process = Process::default();
            order.process = Some(process.clone());
            (order.assignment.clone(), process)
        };
        let at = self.time.now();
        let run = RunName::new(assignment.dag.as_str(), assignment.run_id.as_str());
        let start = Start { at, run, task: assignment.task.to_string() };
        world.began(attempt, start);
        world.event(self.node.as_str(), "start", "ok");
        let (machine, world) = (Arc::clone(self), Arc::clone(world));
        tokio::spawn(async move { machine.supervise(&world, &assignment, process).await });
    }

    async fn supervise(&self, world: &World, assignment: &Assignment, process: Process) {
        let work = Work::of(assignment);
        let outcome = tokio::select! {
            biased;
            () = process.kill.cancelled() => None,
            outcome = self.life(world, assignment, &process, work) => Some(outcome),
        };
        let now = self.time.now();
        let end = match &outcome {
            Some(Outcome::Success) => Some(End { at: now, code: 0 }),
            Some(Outcome::Failed { reason: FailReason::Exit { code } }) => Some(End { at: now, code: *code }),
            _ => None,
        };
        world.ended(assignment.attempt, now, end);
        if let Some(outcome) = outcome {
            let verdict = Verdict { outcome, ended_at: self.clock.now() };
            if let Some(order) = self.disk().orders.get_mut(&assignment.attempt) {
                order.verdict = Some(verdict);
            }
        }
        world.event(self.node.as_str(), "exit", "ok");
        process.ended.cancel();
    }

    async fn life(&self, world: &World, assignment: &Assignment, process: &Process, work: Work) -> Outcome {
        let cut_off = async {
            match assignment.on_disconnect {
                OnDisconnect::Stop => self.fence().await,
                OnDisconnect::Continue => std::future::pending().await,
            }
        };
        let reason = tokio::select! {
            biased;
            () = process.stop.cancelled() => FailReason::Stopped,
            () = tokio::time::sleep(work.takes) => {
                return match assignment.try_number <= work.fails {
                    true => Outcome::Failed { reason: FailReason::Exit { code: 1 } },
                    false => Outcome::Success,
                };
            }
            () = cut_off => FailReason::CutOff { silent_ms: FENCE_AFTER.as_millis() as u64 },
        };
        tokio::time::sleep(world.dice.between(Duration::ZERO, STOPPING)).await;
        Outcome::Failed { reason }
    }

    /// Until the node has been without contact for too long.
    async fn fence(&self) {
        let Some(mut held) = self.disk().contact else { return };
        loop {
            if let Some(latest) = self.disk().contact {
                held.follow(latest);
            }
            let left = (held.until + FENCE_AFTER).saturating_since(self.clock.boottime());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// What a task does: `work MILLISECONDS FAILING-TRIES`.
#[derive(Clone, Copy, Debug)]
struct Work {
    takes: Duration,
    fails: u32,
}

impl Work {
    fn of(assignment: &Assignment) -> Self {
        let Program::Process { argv } = &assignment.program else {
            panic!("the workload has processes only")
        };
        let number = |at: usize| argv.get(at).and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { takes: Duration::from_millis(number(1)), fails: number(2) as u32 }
    }
}
