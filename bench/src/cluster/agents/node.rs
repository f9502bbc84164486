//! What one node holds, and what it says of it to whom.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tenure_agent_proto::AgentItem;
use tenure_agent_proto::wire::numbered_report::Body;
use tenure_agent_proto::wire::{
    self, Assignment, Id, InventoryAnswer, NumberedReport, Refusal, TaskInstance, ToAgent, end, refusal,
};
use tenure_model::{Ack, ShardId};
use tokio::sync::mpsc::UnboundedSender;

use super::{Seen, Start};
use crate::lease::boottime;

/// Before a report that nobody could take is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

pub(crate) struct Node {
    name: String,
    hold: Duration,
    seen: Arc<Seen>,
    /// By replica. Absent: not connected.
    lines: Vec<Option<Line>>,
    held: HashMap<Id, Attempt>,
    /// The highest epoch that was seen of each scope.
    epochs: HashMap<String, u64>,
    /// When to end a task, or to repeat a report.
    timers: BTreeSet<(Instant, (u64, u64))>,
}

/// A way to a replica.
struct Line {
    queue: UnboundedSender<AgentItem>,
    last_report: u64,
    /// Reports that are not answered yet, by number.
    open: HashMap<u64, Id>,
}

struct Attempt {
    ti: TaskInstance,
    scope: String,
    epoch: u64,
    phase: Phase,
    /// Who assigned it, and is asked first.
    home: usize,
    /// Where, and under which number, its report was sent. Absent: nowhere yet.
    asked: Option<(usize, u64)>,
}

enum Phase {
    /// May it start?
    Claiming,
    Running,
    Ended(end::Outcome),
}

impl Node {
    pub fn new(name: &str, replicas: usize, hold: Duration, seen: Arc<Seen>) -> Self {
        Self {
            name: name.into(),
            hold,
            seen,
            lines: (0..replicas).map(|_| None).collect(),
            held: HashMap::new(),
            epochs: HashMap::new(),
            timers: BTreeSet::new(),
        }
    }

    pub fn is_everywhere(&self) -> bool {
        self.lines.iter().all(Option::is_some)
    }

    pub fn connected(&mut self, replica: usize, queue: UnboundedSender<AgentItem>) {
        self.lines[replica] = Some(Line { queue, last_report: 0, open: HashMap::new() });
        self.ask_open();
    }

    /// What was asked there is asked elsewhere.
    pub fn lost(&mut self, replica: usize) {
        let Some(line) = self.lines[replica].take() else { return };
        for attempt in line.open.into_values() {
            let asked_there = |held: &&mut Attempt| held.asked.is_some_and(|(asked, _)| asked == replica);
            if let Some(held) = self.held.get_mut(&attempt).filter(asked_there) {
                held.asked = None;
            }
        }
        self.ask_open();
    }

    fn ask_open(&mut self) {
        let open = |held: &Attempt| held.asked.is_none() && !matches!(held.phase, Phase::Running);
        let open: Vec<Id> =
            self.held.iter().filter(|(_, held)| open(held)).map(|(attempt, _)| *attempt).collect();
        self.seen.repeated.fetch_add(open.len() as u64, Ordering::Relaxed);
        open.into_iter().for_each(|attempt| self.ask(attempt));
    }

    pub fn hear(&mut self, replica: usize, message: ToAgent) {
        let acks: Vec<(u64, Ack)> = message.acks().collect();
        for assignment in message.assignments {
            self.take(replica, assignment);
        }
        message.stops.into_iter().for_each(|attempt| self.stop(attempt));
        for (number, ack) in acks {
            self.answered(replica, number, ack);
        }
        for request in message.inventory_requests {
            self.list(replica, request);
        }
    }

    fn take(&mut self, replica: usize, assignment: Assignment) {
        let (Some(attempt), Some(ti)) = (assignment.attempt, assignment.ti) else {
            panic!("{}: an assignment without its ids: {assignment:?}", self.name);
        };
        let Assignment { scope, epoch, .. } = assignment;
        match self.epochs.get_mut(&scope) {
            Some(highest) if *highest > epoch => {
                self.seen.refused.fetch_add(1, Ordering::Relaxed);
                let why = Some(refusal::Why::StaleEpoch(*highest));
                let refusal = Refusal { attempt: Some(attempt), ti: Some(ti), scope, why };
                return self.say(replica, AgentItem::Refusal(refusal));
            }
            Some(highest) => *highest = epoch,
            None => {
                self.epochs.insert(scope.clone(), epoch);
            }
        }
        if self.held.contains_key(&attempt) {
            return; // delivered again
        }
        let held = Attempt { ti, scope, epoch, phase: Phase::Claiming, home: replica, asked: None };
        self.held.insert(attempt, held);
        self.ask(attempt);
    }

    fn stop(&mut self, attempt: Id) {
        let Some(held) = self.held.get_mut(&attempt) else { return };
        held.phase = match held.phase {
            Phase::Claiming => Phase::Ended(end::Outcome::NeverStarted(wire::Nothing {})),
            Phase::Running => Phase::Ended(end::Outcome::Stopped(wire::Nothing {})),
            Phase::Ended(_) => return,
        };
        self.ask(attempt);
    }

    fn answered(&mut self, replica: usize, number: u64, ack: Ack) {
        let Some(attempt) = self.lines[replica].as_mut().and_then(|line| line.open.remove(&number)) else {
            return;
        };
        let Some(held) = self.held.get_mut(&attempt).filter(|held| held.asked == Some((replica, number)))
        else {
            return; // an answer to what was asked before
        };
        held.asked = None;
        match (ack, &held.phase) {
            (Ack::Accepted, Phase::Claiming) => {
                let start = Start {
                    at: boottime(),
                    shard: ShardId::of_scope(&held.scope).expect("assignments come from shards"),
                    epoch: held.epoch,
                    run: held.ti.run,
                    task: held.ti.task,
                    replica,
                };
                self.seen.start(start);
                if self.hold.is_zero() {
                    held.phase = Phase::Ended(end::Outcome::Success(wire::Nothing {}));
                    self.ask(attempt);
                } else {
                    held.phase = Phase::Running;
                    self.timers.insert((Instant::now() + self.hold, (attempt.high, attempt.low)));
                }
            }
            (Ack::Accepted, Phase::Ended(_)) => {
                self.held.remove(&attempt);
                self.seen.ended.fetch_add(1, Ordering::Relaxed);
            }
            // An end that was taken in before, by a replica that died with its answer; or a claim that came too late.
            (Ack::Superseded, phase) => {
                let ended = u64::from(matches!(phase, Phase::Ended(_)));
                self.seen.ended.fetch_add(ended, Ordering::Relaxed);
                self.held.remove(&attempt);
                self.seen.superseded.fetch_add(1, Ordering::Relaxed);
            }
            (Ack::Retry, _) => {
                self.seen.repeated.fetch_add(1, Ordering::Relaxed);
                self.timers.insert((Instant::now() + AGAIN_AFTER, (attempt.high, attempt.low)));
            }
            (Ack::Accepted, Phase::Running) => unreachable!("a running attempt asks nothing"),
        }
    }

    pub fn pass_time(&mut self, now: Instant) {
        while let Some((_, (high, low))) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.pop_first();
            let attempt = Id { high, low };
            let Some(held) = self.held.get_mut(&attempt) else { continue };
            if matches!(held.phase, Phase::Running) {
                held.phase = Phase::Ended(end::Outcome::Success(wire::Nothing {}));
            }
            if held.asked.is_none() {
                self.ask(attempt);
            }
        }
    }

    /// Sends the report of an attempt's phase to who assigned it, or else to anybody.
    fn ask(&mut self, attempt: Id) {
        let held = self.held.get_mut(&attempt).expect("only what is held is asked for");
        let there = |replica: &usize| self.lines[*replica].is_some();
        let replicas = std::iter::once(held.home).chain(0..self.lines.len());
        let Some(replica) = replicas.into_iter().find(there) else { return };
        let line = self.lines[replica].as_mut().expect("it was just found");
        line.last_report += 1;
        let number = line.last_report;
        line.open.insert(number, attempt);
        held.asked = Some((replica, number));
        let body = match &held.phase {
            Phase::Claiming | Phase::Running => Body::Claim(wire::Claim {}),
            Phase::Ended(outcome) => {
                let ended_at = Some(Timestamp::now().into());
                Body::End(wire::End { ended_at, outcome: Some(outcome.clone()), result_json: None })
            }
        };
        let report = NumberedReport {
            number,
            attempt: Some(attempt),
            ti: Some(held.ti),
            scope: held.scope.clone(),
            body: Some(body),
        };
        self.say(replica, AgentItem::Report(report));
    }

    fn list(&mut self, replica: usize, request: u64) {
        let held = |(attempt, held): (&Id, &Attempt)| wire::Held {
            attempt: Some(*attempt),
            ti: Some(held.ti),
            scope: held.scope.clone(),
        };
        let held = self.held.iter().map(held).collect();
        self.say(replica, AgentItem::Inventory(InventoryAnswer { request, held }));
    }

    fn say(&self, replica: usize, item: AgentItem) {
        if let Some(line) = &self.lines[replica] {
            let _ = line.queue.send(item); // a line that has just broken: its loss is on the way
        }
    }
}
