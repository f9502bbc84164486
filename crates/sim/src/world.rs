//! Everything that is shared: true time, chance, the network, the one store, and what has happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_clock::Entropy;
use tenure_judge::history::{Effect, End, Fault, Start};
use tenure_lease::{Epoch, Scope, Term};
use tenure_model::AttemptId;
use tenure_store_memory::{Flaw, MemoryStore};
use tokio::sync::mpsc;

use crate::agent::SimAgent;
use crate::dice::Dice;
use crate::gate::Gate;
use crate::machine::Machine;
use crate::network::Network;
use crate::replica::Replica;
use crate::rooms::Rooms;
use crate::scale::Tally;
use crate::silence::Silence;
use crate::time::{SimClock, TrueTime};
use crate::trace::Trace;

pub struct World {
    pub time: TrueTime,
    /// For what the network does.
    pub dice: Dice,
    pub store: Arc<MemoryStore>,
    pub store_clock: SimClock,
    pub leases_apart: bool,
    pub machines: Vec<Arc<Machine>>,
    pub rooms: Rooms,
    network: Mutex<Network>,
    trace: Mutex<Trace>,
    replicas: Mutex<Vec<Option<Arc<Replica>>>>,
    agents: Mutex<Vec<Option<Arc<SimAgent>>>>,
    effects: Mutex<BTreeMap<AttemptId, Effect>>,
    /// Where tasks are counted and not remembered.
    tally: Option<Mutex<Tally>>,
    faults: Mutex<Vec<Fault>>,
    /// Where leases are apart: all that winners have installed.
    fences: Mutex<BTreeSet<(Scope, Epoch, Term)>>,
    silence: Mutex<Silence>,
    trap: Mutex<Option<Trap>>,
    stall: Mutex<Option<Stall>>,
    /// Who has stepped into a trap.
    fallen: mpsc::UnboundedSender<Party>,
}

/// A process of this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    Replica(usize),
    Agent(usize),
}

/// Somebody dies at its next step of this kind, just before it is taken or just after it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    pub who: Party,
    pub step: &'static str,
    pub after: bool,
}

/// A replica freezes in the middle of its next call of this verb, for so long: what it was about to send is sent then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    pub replica: usize,
    pub verb: &'static str,
    pub lasts: Duration,
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub replicas: usize,
    pub agents: usize,
    pub shards: u16,
}

/// What kind of world.
pub struct Design {
    pub size: Size,
    pub rooms: Rooms,
    pub flaw: Option<Flaw>,
    /// Leases are in another database than the work.
    pub leases_apart: bool,
    /// Keeps a story for people.
    pub telling: bool,
    /// Too large to remember everything that happens in it: tasks are counted.
    pub counting: bool,
}

/// The most a clock goes wrong in a million parts: a bad quartz.
const DRIFT: usize = 200;

impl World {
    pub fn new(dice: &Dice, design: Design, fallen: mpsc::UnboundedSender<Party>) -> Arc<Self> {
        let Design { size, rooms, flaw, leases_apart, telling, counting } = design;
        let time = TrueTime::begin();
        let store_clock = SimClock::new(time, SignedDuration::ZERO, 0);
        let mut store = MemoryStore::new(size.shards, Arc::new(store_clock.clone()));
        if leases_apart {
            store = store.with_leases_apart();
        }
        if let Some(flaw) = flaw {
            store = store.flawed(flaw);
        }
        let machine = |number| Arc::new(Machine::new(number, clock_of(time, dice), time));
        Arc::new(Self {
            time,
            store: Arc::new(store),
            store_clock,
            leases_apart,
            machines: (0..size.agents).map(machine).collect(),
            rooms,
            network: Mutex::default(),
            trace: Mutex::new(Trace::new(telling)),
            replicas: Mutex::new(vec![None; size.replicas]),
            agents: Mutex::new(vec![None; size.agents]),
            effects: Mutex::default(),
            tally: counting.then(Mutex::default),
            faults: Mutex::default(),
            fences: Mutex::default(),
            silence: Mutex::new(Silence::new(size.agents)),
            trap: Mutex::default(),
            stall: Mutex::default(),
            fallen,
            dice: dice.child(),
        })
    }

    pub fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().expect("no panic while holding the network")
    }

    pub fn trace(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().expect("no panic while holding the trace")
    }

    pub fn effects(&self) -> MutexGuard<'_, BTreeMap<AttemptId, Effect>> {
        self.effects.lock().expect("no panic while holding the effects")
    }

    /// Only where tasks are counted.
    pub fn tally(&self) -> Option<MutexGuard<'_, Tally>> {
        self.tally.as_ref().map(|tally| tally.lock().expect("no panic while holding the tally"))
    }

    /// A process has started.
    pub fn began(&self, attempt: AttemptId, start: Start) {
        if let Some(mut tally) = self.tally() {
            tally.started += 1;
        }
        let at = start.at;
        let effect = || Effect { attempt: attempt.to_string(), starts: vec![], seen_at: at, end: None };
        self.effects().entry(attempt).or_insert_with(effect).starts.push(start);
    }

    /// It is gone; `end`: by itself.
    pub fn ended(&self, attempt: AttemptId, now: Timestamp, end: Option<End>) {
        let mut effects = self.effects();
        if let Some(mut tally) = self.tally() {
            if let Some(effect) = effects.remove(&attempt) {
                tally.ended(&effect, end.is_some_and(|end| end.code == 0), now);
            }
        } else if let Some(effect) = effects.get_mut(&attempt) {
            (effect.seen_at, effect.end) = (now, end);
        }
    }

    pub fn fences(&self) -> MutexGuard<'_, BTreeSet<(Scope, Epoch, Term)>> {
        self.fences.lock().expect("no panic while holding the fences")
    }

    pub fn faults(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.faults.lock().expect("no panic while holding the faults")
    }

    pub fn event(&self, who: &str, what: &'static str, how: &str) {
        let at = self.time.elapsed();
        let mut trace = self.trace();
        trace.event(at, who, what, how);
        if how != "ok" {
            trace.tell(at, || format!("{who}: {what}: {how}"));
        }
    }

    pub fn tell(&self, text: impl FnOnce() -> String) {
        let at = self.time.elapsed();
        self.trace().tell(at, text);
    }

    pub fn replica(&self, number: usize) -> Option<Arc<Replica>> {
        self.replicas.lock().expect("no panic while holding the replicas")[number].clone()
    }

    pub fn set_replica(&self, number: usize, replica: Option<Arc<Replica>>) {
        self.replicas.lock().expect("no panic while holding the replicas")[number] = replica;
        self.look_for_silence();
    }

    pub fn replicas(&self) -> usize {
        self.replicas.lock().expect("no panic while holding the replicas").len()
    }

    pub fn agent(&self, number: usize) -> Option<Arc<SimAgent>> {
        self.agents.lock().expect("no panic while holding the agents")[number].clone()
    }

    pub fn set_agent(&self, number: usize, agent: Option<Arc<SimAgent>>) {
        self.agents.lock().expect("no panic while holding the agents")[number] = agent;
        self.look_for_silence();
    }

    pub fn set_trap(&self, trap: Option<Trap>) {
        *self.trap.lock().expect("no panic while holding the trap") = trap;
    }

    /// Whether this step is the one that somebody dies of; the trap is spent. What is left of it then is for the caller to
    /// stop.
    pub fn dies(&self, gate: &Gate, who: Party, step: &'static str, after: bool) -> bool {
        let mut trap = self.trap.lock().expect("no panic while holding the trap");
        let hit = *trap == Some(Trap { who, step, after });
        if hit {
            *trap = None;
            self.trace().met(if after { "crash after" } else { "crash before" }, step);
            gate.kill();
            let _ = self.fallen.send(who); // nobody restarts anything at the end of the world
        }
        hit
    }

    /// A step at which somebody may die: then nothing comes after it.
    pub async fn step(&self, gate: &Gate, who: Party, step: &'static str, after: bool) {
        if self.dies(gate, who, step, after) {
            std::future::pending().await
        }
    }

    pub fn set_stall(&self, stall: Option<Stall>) {
        *self.stall.lock().expect("no panic while holding the stall") = stall;
    }

    /// How long this call is held up; spent like a trap.
    pub fn stalls(&self, replica: usize, verb: &'static str) -> Option<Duration> {
        let mut stall = self.stall.lock().expect("no panic while holding the stall");
        let hit = stall.filter(|stall| (stall.replica, stall.verb) == (replica, verb))?;
        *stall = None;
        Some(hit.lasts)
    }

    /// To be called whenever somebody may have become able, or unable, to speak.
    pub fn look_for_silence(&self) {
        if self.tally.is_some() {
            return; // nobody judges such a world, and it has too many pairs to look at
        }
        let mut silence = self.silence.lock().expect("no panic while holding the silence");
        let now = self.time.now();
        for agent in 0..self.machines.len() {
            let ended = silence.look(agent, self.can_speak(agent), now);
            if let Some((since, until)) = ended {
                self.faults().push(crate::silence::fault(&self.machines[agent].node, since, until));
            }
        }
    }

    /// Some replica hears it, and can tell the others.
    fn can_speak(&self, agent: usize) -> bool {
        if !self.agent(agent).is_some_and(|agent| agent.gate.is_up()) {
            return false;
        }
        let network = self.network();
        if network.store_down {
            return false;
        }
        (0..self.replicas()).any(|number| {
            if !self.replica(number).is_some_and(|replica| replica.gate.is_up()) {
                return false;
            }
            let agent_cut = network.cut_between(agent, number);
            let store_cut = network.store_cuts.get(&number).copied().unwrap_or_default();
            agent_cut == Default::default() && store_cut == Default::default()
        })
    }

    /// At the end: whoever is silent still is so until now.
    pub fn end_silence(&self) {
        let mut silence = self.silence.lock().expect("no panic while holding the silence");
        let now = self.time.now();
        for agent in 0..self.machines.len() {
            if let Some((since, until)) = silence.look(agent, true, now) {
                self.faults().push(crate::silence::fault(&self.machines[agent].node, since, until));
            }
        }
    }

    pub fn entropy(&self) -> Entropy {
        self.dice.entropy()
    }
}

/// A machine's clock: some seconds off, and never quite right.
pub fn clock_of(time: TrueTime, dice: &Dice) -> SimClock {
    let off = dice.between(Duration::ZERO, Duration::from_secs(4));
    let off = SignedDuration::try_from(off).expect("seconds") - SignedDuration::from_secs(2);
    let drift = dice.below(2 * DRIFT + 1) as i64 - DRIFT as i64;
    SimClock::new(time, off, drift)
}
