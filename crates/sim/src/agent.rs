//! One life of an agent: the real decisions (`tenure-agent-life`), with a simulated disk, processes and links.

mod links;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure_agent_life::{
    AssignError, Book, Claim, ControlPlane, Ending, Handle, Taken, Witness, claim, submit_until_heard,
    unwatched,
};
use tenure_clock::{BootTime, Clock, Entropy};
use tenure_model::{Ack, Assignment, AttemptId, FailReason, Held, Outcome, Report, ReportBody};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;
use crate::machine::{Machine, Order, Verdict};
use crate::plants::Plant;
use crate::replica::Replica;
use crate::world::{Party, World};

/// When an agent asks elsewhere.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const NOBODY_THERE: Duration = Duration::from_millis(200);

pub struct SimAgent {
    world: Arc<World>,
    pub machine: Arc<Machine>,
    pub gate: Gate,
    book: Mutex<Book>,
    shutdown: CancellationToken,
    entropy: Entropy,
    /// Replicas that can be spoken to.
    up: Mutex<BTreeMap<usize, Arc<Replica>>>,
    /// Which replica has handed out work of a scope, and under which epoch.
    owners: Mutex<BTreeMap<String, (u64, usize)>>,
    contact: Mutex<Option<BootTime>>,
    plant: Option<Plant>,
}

impl SimAgent {
    /// Goes on with what an earlier agent has left on the machine.
    pub fn start(world: &Arc<World>, number: usize, plant: Option<Plant>) -> Arc<Self> {
        let agent = Arc::new(Self {
            world: Arc::clone(world),
            machine: Arc::clone(&world.machines[number]),
            gate: Gate::open(),
            book: Mutex::default(),
            shutdown: CancellationToken::new(),
            entropy: world.entropy(),
            up: Mutex::default(),
            owners: Mutex::default(),
            contact: Mutex::default(),
            plant,
        });
        let left: Vec<Assignment> =
            agent.machine.disk().orders.values().map(|order| order.assignment.clone()).collect();
        for assignment in left {
            let handle = agent.book().add(&assignment);
            let taking_up = Arc::clone(&agent);
            tokio::spawn(async move { taking_up.resume(assignment, handle).await });
        }
        for replica in 0..world.replicas() {
            let keeper = Arc::clone(&agent);
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = keeper.gate.died() => {}
                    () = keeper.keep_link(replica) => {}
                }
            });
        }
        agent
    }

    /// kill -9.
    pub fn kill(&self) {
        self.gate.kill();
        self.shutdown.cancel();
    }

    /// Between two things that an agent does: a pause holds it up here, and it may die here.
    async fn step(&self, step: &'static str) {
        self.gate.pass().await;
        if self.world.dies(&self.gate, Party::Agent(self.machine.number), step, false) {
            self.shutdown.cancel();
            std::future::pending().await
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no panic while holding the book")
    }

    pub fn inventory(&self) -> Vec<Held> {
        self.book().inventory()
    }

    pub fn stop(&self, attempt: AttemptId) {
        self.book().stop(attempt);
    }

    /// An assignment has arrived.
    pub fn assign(self: &Arc<Self>, assignment: Assignment, from: usize) {
        let (scope, epoch) = (assignment.scope.clone(), assignment.epoch);
        let mut owners = self.owners.lock().expect("no panic while holding the owners");
        let known = owners.entry(scope).or_insert((epoch, from));
        if known.0 <= epoch {
            *known = (epoch, from);
        }
        drop(owners);
        let taken = self.book().take(&self.machine.node, &assignment, false, &mut *self.machine.disk());
        let how = match &taken {
            Ok(Some(_)) => "ok",
            Ok(None) => "known",
            Err(AssignError::StaleEpoch { .. }) => "stale epoch",
            Err(_) => "refused",
        };
        self.world.event(self.machine.node.as_str(), "assigned", how);
        if let Ok(Some(taken)) = taken {
            let agent = Arc::clone(self);
            tokio::spawn(async move { agent.live(assignment, taken).await });
        }
    }

    async fn live(self: Arc<Self>, assignment: Assignment, taken: Taken) {
        let Taken { handle, before } = taken;
        let attempt = assignment.attempt;
        let boot = self.machine.disk().boot;
        let order = Order { assignment: assignment.clone(), boot, process: None, verdict: None };
        self.machine.disk().orders.insert(attempt, order);
        self.step("claim").await;
        let asked = self.say(&assignment, ReportBody::Claim { attempt, ti: assignment.ti });
        let granted = match self.plant {
            // A bug on purpose: the answer is not waited for.
            Some(Plant::StartUnclaimed) => Claim::Granted,
            _ => claim(&handle, before, asked).await,
        };
        match granted {
            Claim::Granted => {
                self.step("start").await;
                if let Some(at) = self.contact(&self.machine.clock).filter(|_| handle.fenced) {
                    self.machine.note_contact(at);
                }
                self.machine.begin(&self.world, attempt);
                self.follow(&assignment, &handle, Witness::Eye).await;
            }
            Claim::Refused => drop(self.machine.disk().orders.remove(&attempt)),
            Claim::Stopped => self.settle(&assignment, &handle, self.verdict(Outcome::NeverStarted)).await,
            Claim::Interrupted => {}
        }
        self.let_go(attempt, &handle);
    }

    async fn resume(self: Arc<Self>, assignment: Assignment, handle: Arc<Handle>) {
        self.follow(&assignment, &handle, Witness::Lock).await;
        self.let_go(assignment.attempt, &handle);
    }

    fn let_go(&self, attempt: AttemptId, handle: &Handle) {
        if !self.shutdown.is_cancelled() {
            handle.ended.cancel();
            self.book().forget(attempt);
        }
    }

    /// Watches a process to its end, if there is one, and says how it ended.
    async fn follow(&self, assignment: &Assignment, handle: &Handle, witness: Witness) {
        let attempt = assignment.attempt;
        let order = self.machine.disk().orders.get(&attempt).cloned();
        let Some(order) = order else { return };
        let same_boot = order.boot == self.machine.disk().boot;
        if let Some(process) = order.process.as_ref().filter(|_| same_boot) {
            let watching = async {
                tokio::select! {
                    biased;
                    () = process.ended.cancelled() => return,
                    () = handle.stop.cancelled() => process.stop.cancel(),
                }
                process.ended.cancelled().await;
            };
            if self.shutdown.run_until_cancelled(watching).await.is_none() {
                return;
            }
        }
        self.step("spool").await;
        let written = self.machine.disk().orders.get(&attempt).and_then(|order| order.verdict.clone());
        let verdict = written.unwrap_or_else(|| {
            let stopped = handle.stop.is_cancelled();
            self.verdict(match unwatched(order.process.is_some(), same_boot, stopped, witness) {
                Ending::NeverStarted => Outcome::NeverStarted,
                Ending::Stopped => failed(FailReason::Stopped),
                Ending::CannotStart | Ending::Lost => failed(FailReason::Lost),
            })
        });
        self.settle(assignment, handle, verdict).await;
    }

    /// Spools the verdict, says it until it is heard, and forgets the attempt.
    async fn settle(&self, assignment: &Assignment, handle: &Handle, verdict: Verdict) {
        let attempt = assignment.attempt;
        if let Some(order) = self.machine.disk().orders.get_mut(&attempt) {
            order.verdict = Some(verdict.clone());
        }
        handle.ended.cancel();
        self.step("end").await;
        let Verdict { outcome, ended_at } = verdict;
        let end = ReportBody::End { attempt, ti: assignment.ti, outcome, ended_at, result: None };
        if self.say(assignment, end).await.is_some() {
            self.step("forget").await;
            self.machine.disk().orders.remove(&attempt);
        }
    }

    fn verdict(&self, outcome: Outcome) -> Verdict {
        Verdict { outcome, ended_at: self.machine.clock.now() }
    }

    async fn say(&self, assignment: &Assignment, body: ReportBody) -> Option<Ack> {
        let report = Report { node: self.machine.node.clone(), scope: assignment.scope.clone(), body };
        submit_until_heard(self, report, &self.entropy, &self.shutdown).await
    }

    /// The owner, as far as the last assignment tells, or anybody.
    fn choose(&self, scope: &str) -> Option<(usize, Arc<Replica>)> {
        let up = self.up.lock().expect("no panic while holding the links");
        let owner = self.owners.lock().expect("no panic while holding the owners").get(scope).copied();
        if let Some((_, owner)) = owner
            && let Some(replica) = up.get(&owner)
        {
            return Some((owner, Arc::clone(replica)));
        }
        let all: Vec<_> = up.iter().map(|(number, replica)| (*number, Arc::clone(replica))).collect();
        (!all.is_empty()).then(|| self.world.dice.pick(&all).clone())
    }
}

fn failed(reason: FailReason) -> Outcome {
    Outcome::Failed { reason }
}

#[async_trait]
impl ControlPlane for SimAgent {
    async fn submit(&self, report: Report) -> Ack {
        self.gate.pass().await;
        let boundary = match report.body {
            ReportBody::Claim { .. } => "claim",
            ReportBody::End { .. } | ReportBody::Undelivered { .. } => "end",
        };
        let Some((number, replica)) = self.choose(&report.scope) else {
            tokio::time::sleep(NOBODY_THERE).await;
            return Ack::Retry;
        };
        let (copies, fault) = self.world.network().copies(&self.world.dice);
        if let Some(fault) = fault {
            self.world.trace().met(fault, boundary);
        }
        let (answer, heard) = oneshot::channel();
        let answer = Arc::new(Mutex::new(Some(answer)));
        for delay in copies {
            let way = links::Way { world: Arc::clone(&self.world), agent: self.machine.number, number };
            let (replica, report, answer) = (Arc::clone(&replica), report.clone(), Arc::clone(&answer));
            tokio::spawn(async move {
                let Some(ack) = way.report(&replica, report, boundary, delay).await else { return };
                let waiting = answer.lock().expect("no panic while answering").take();
                // The agent may have given up waiting.
                let _ = waiting.map(|waiting| waiting.send(ack));
            });
        }
        drop(answer);
        let ack = tokio::select! {
            biased;
            ack = heard => ack.ok(),
            () = tokio::time::sleep(ANSWER_WITHIN) => None,
            () = replica.gate.died() => None, // the connection is reset
        };
        self.gate.pass().await;
        if ack.is_none() {
            self.owners.lock().expect("no panic while holding the owners").remove(&report.scope);
        }
        ack.unwrap_or(Ack::Retry)
    }

    fn contact(&self, _clock: &dyn Clock) -> Option<BootTime> {
        *self.contact.lock().expect("no panic while holding the contact")
    }
}
