//! Who breaks things: a script of faults that the seed draws, one after another or several at once.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tenure_judge::history::{Aftermath, Fault, Hit};
use tenure_lease::{Hint, LeaseStore};
use tenure_model::ShardId;

use crate::boundaries::{AGENT_STEPS, DISPATCH_STEPS, FENCED_VERBS, STORE_VERBS as VERBS};
use crate::dice::Dice;
use crate::network::Cut;
use crate::operator::Operator;
use crate::plants::Plant;
use crate::replica::{LEASE, name};
use crate::world::{Party, Stall, Trap, World};

/// From a fault that stands alone until scheduling goes on: the lease runs out, a candidate's pause, a look at the
/// database, and the nodes that the new owner meets.
const GOES_ON_WITHIN: Duration = Duration::from_secs(60);
/// The same for a fault that deposes nobody, from its end: what was handed out meanwhile may have to wait for its claim's
/// deadline, and is placed again.
const SETTLES_WITHIN: Duration = Duration::from_secs(150);
/// Faults of a calm world keep this distance, so that each can answer for itself.
const CALM: Duration = Duration::from_secs(100);

/// Everything that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    PauseReplica,
    FreezeAtVerb,
    KillReplica,
    KillAtStep,
    RestartReplica,
    SlowStore,
    ForgetfulStore,
    StoreDown,
    CutFromStore,
    Deaf,
    CutAgent,
    CutAllAgents,
    Messages,
    PauseAgent,
    KillAgent,
    LoseMachine,
    JumpClock,
    StepStoreClock,
    RevokeLease,
    FalseHint,
}

const KINDS: [Kind; 20] = [
    Kind::PauseReplica,
    Kind::FreezeAtVerb,
    Kind::KillReplica,
    Kind::KillAtStep,
    Kind::RestartReplica,
    Kind::SlowStore,
    Kind::ForgetfulStore,
    Kind::StoreDown,
    Kind::CutFromStore,
    Kind::Deaf,
    Kind::CutAgent,
    Kind::CutAllAgents,
    Kind::Messages,
    Kind::PauseAgent,
    Kind::KillAgent,
    Kind::LoseMachine,
    Kind::JumpClock,
    Kind::StepStoreClock,
    Kind::RevokeLease,
    Kind::FalseHint,
];

pub struct Nemesis {
    pub world: Arc<World>,
    pub operator: Arc<Operator>,
    pub dice: Dice,
    /// One fault at a time, with time to recover in between.
    pub calm: bool,
}

impl Nemesis {
    /// Breaks things for so long, and mends them all.
    pub async fn rage(&self, time: Duration) {
        let end = self.world.time.elapsed() + time;
        loop {
            let pause = match self.calm {
                true => CALM + self.dice.between(Duration::ZERO, CALM),
                false => self.dice.spread(Duration::from_secs(5), Duration::from_secs(240)),
            };
            if self.world.time.elapsed() + pause >= end {
                break;
            }
            tokio::time::sleep(pause).await;
            let kind = *self.dice.pick(&KINDS);
            let most = if self.calm { Duration::from_secs(40) } else { Duration::from_secs(300) };
            let lasts = self.dice.spread(Duration::from_secs(1), most);
            match self.calm {
                true => self.strike(kind, lasts).await,
                false => {
                    let nemesis = Self {
                        world: Arc::clone(&self.world),
                        operator: Arc::clone(&self.operator),
                        dice: self.dice.child(),
                        calm: false,
                    };
                    tokio::spawn(async move { nemesis.strike(kind, lasts).await });
                }
            }
        }
        let left = end.saturating_sub(self.world.time.elapsed());
        tokio::time::sleep(left).await;
        self.heal();
    }

    fn heal(&self) {
        *self.world.network() = Default::default();
        self.world.set_trap(None);
        self.world.set_stall(None);
        for number in 0..self.world.replicas() {
            if let Some(replica) = self.world.replica(number) {
                replica.resume();
            }
        }
        for number in 0..self.world.machines.len() {
            if let Some(agent) = self.world.agent(number) {
                agent.gate.resume();
            }
        }
        self.world.look_for_silence();
        self.world.event("nemesis", "heal", "ok");
    }

    fn a_replica(&self) -> usize {
        self.dice.below(self.world.replicas())
    }

    fn an_agent(&self) -> usize {
        self.dice.below(self.world.machines.len())
    }

    /// What is asked of the store, the most important more often.
    fn a_verb(&self) -> &'static str {
        const MOST: [&str; 5] = ["commit_pass", "commit_pass", "record_reports", "renew", "acquire"];
        if let Some(verb) = self.operator.plant.and_then(Plant::weak_spot) {
            return verb;
        }
        let verbs = match self.dice.chance(50.0) {
            true => &MOST[..],
            false if self.world.leases_apart => &VERBS[..],
            false => &VERBS[..FENCED_VERBS],
        };
        verbs[self.dice.below(verbs.len())]
    }

    /// Replicas that hold shards, more often than not.
    async fn an_owner(&self) -> usize {
        let leases = self.world.store.list_leases("scheduler/").await.unwrap_or_default();
        let owner = |number: &usize| {
            self.world.replica(*number).is_some_and(|replica| {
                leases.iter().any(|lease| lease.is_held() && lease.holder.session == replica.session)
            })
        };
        let owners: Vec<usize> = (0..self.world.replicas()).filter(owner).collect();
        match owners.is_empty() || self.dice.chance(20.0) {
            true => self.a_replica(),
            false => *self.dice.pick(&owners),
        }
    }

    /// What a replica holds now.
    async fn held_by(&self, number: usize) -> Vec<Hit> {
        let Some(replica) = self.world.replica(number) else { return vec![] };
        let leases = self.world.store.list_leases("scheduler/").await.unwrap_or_default();
        let held = leases.iter().filter(|lease| lease.is_held() && lease.holder.session == replica.session);
        held.map(|lease| Hit { scope: lease.scope.to_string(), epoch: lease.epoch.0, deposed: true })
            .collect()
    }

    /// All shards: what deposes nobody may still hold everybody up.
    fn everybody(&self) -> Vec<Hit> {
        let scopes = (0..self.operator.shards).map(|shard| ShardId(shard).scope());
        scopes.map(|scope| Hit { scope, epoch: 0, deposed: false }).collect()
    }

    async fn strike(&self, kind: Kind, lasts: Duration) {
        let at = self.world.time.now();
        self.world.event("nemesis", "strike", kind_name(kind));
        self.world.trace().struck(kind_name(kind));
        let (target, hit) = self.carry_out(kind, lasts).await;
        let until = self.world.time.now();
        self.world.look_for_silence();
        self.world.tell(|| format!("nemesis: {} of {target} is over", kind_name(kind)));
        // Where room is short, a task that waits may wait for that.
        let (hit, bound) = match (self.calm && !self.world.rooms.short, hit.is_empty()) {
            (false, _) => (vec![], GOES_ON_WITHIN),
            (true, false) => (hit, GOES_ON_WITHIN),
            (true, true) => {
                let lasted = Duration::try_from(until.duration_since(at)).unwrap_or_default();
                (self.everybody(), lasted + SETTLES_WITHIN)
            }
        };
        let name = kind_name(kind).to_owned();
        let silenced = vec![];
        self.world.faults().push(Fault {
            name,
            target,
            at,
            until,
            silenced,
            hit,
            bound,
            aftermath: Aftermath::Unwatched,
        });
    }

    /// Answers with what it hit when it is over.
    async fn carry_out(&self, kind: Kind, lasts: Duration) -> (String, Vec<Hit>) {
        let world = &self.world;
        match kind {
            Kind::PauseReplica => {
                let number = self.an_owner().await;
                let hit = self.held_by(number).await;
                let long = lasts > LEASE * 2;
                if let Some(replica) = world.replica(number) {
                    replica.pause();
                    world.look_for_silence();
                    tokio::time::sleep(lasts).await;
                    replica.resume();
                }
                (name(number).into(), if long { hit } else { vec![] })
            }
            Kind::FreezeAtVerb => {
                let (replica, verb) = (self.an_owner().await, self.a_verb());
                // Mostly long enough for somebody else to take over.
                let frozen = self.dice.between(Duration::from_secs(5), LEASE * 4);
                world.set_stall(Some(Stall { replica, verb, lasts: frozen }));
                tokio::time::sleep(lasts).await;
                world.set_stall(None);
                (format!("{} in {verb}", name(replica)), vec![])
            }
            Kind::KillReplica => {
                let number = self.an_owner().await;
                let hit = self.held_by(number).await;
                self.operator.kill_replica(number, lasts);
                (name(number).into(), hit)
            }
            Kind::KillAtStep => {
                let after = self.dice.chance(50.0);
                let trap = match self.dice.below(10) {
                    0..3 => {
                        let who = Party::Agent(self.an_agent());
                        Trap { who, step: AGENT_STEPS[self.dice.below(AGENT_STEPS.len())], after: false }
                    }
                    3..5 => {
                        let who = Party::Replica(self.an_owner().await);
                        Trap { who, step: DISPATCH_STEPS[self.dice.below(DISPATCH_STEPS.len())], after }
                    }
                    _ => Trap { who: Party::Replica(self.an_owner().await), step: self.a_verb(), after },
                };
                world.set_trap(Some(trap));
                tokio::time::sleep(lasts).await;
                world.set_trap(None);
                (format!("{trap:?}"), vec![])
            }
            Kind::RestartReplica => {
                let number = self.an_owner().await;
                if let Some(replica) = world.replica(number) {
                    replica.stop().await;
                    // Somebody else may have killed it meanwhile, and will restart it.
                    if world.replica(number).is_some_and(|current| Arc::ptr_eq(&current, &replica)) {
                        world.set_replica(number, None);
                        tokio::time::sleep(lasts.min(Duration::from_secs(20))).await;
                        self.operator.start_replica(number);
                    }
                }
                (name(number).into(), vec![])
            }
            Kind::SlowStore => {
                let most = self.dice.spread(Duration::from_millis(20), Duration::from_secs(3));
                world.network().store_slow = Some(most);
                tokio::time::sleep(lasts).await;
                world.network().store_slow = None;
                ("store".into(), vec![])
            }
            Kind::ForgetfulStore => {
                world.network().store_forgets = *self.dice.pick(&[2.0, 10.0, 30.0]);
                tokio::time::sleep(lasts).await;
                world.network().store_forgets = 0.0;
                ("store".into(), vec![])
            }
            Kind::StoreDown => {
                world.network().store_down = true;
                world.look_for_silence();
                tokio::time::sleep(lasts).await;
                world.network().store_down = false;
                ("store".into(), vec![])
            }
            Kind::CutFromStore => {
                let number = self.an_owner().await;
                let cut = self.cut();
                // Where leases are apart: the one, the other, or both.
                let which = if world.leases_apart { self.dice.below(3) } else { 2 };
                if which != 0 {
                    world.network().store_cuts.insert(number, cut);
                }
                if which != 1 {
                    world.network().lease_cuts.insert(number, cut);
                }
                world.look_for_silence();
                tokio::time::sleep(lasts).await;
                world.network().store_cuts.remove(&number);
                world.network().lease_cuts.remove(&number);
                (name(number).into(), vec![])
            }
            Kind::Deaf => {
                let number = self.a_replica();
                world.network().deaf.insert(number);
                tokio::time::sleep(lasts).await;
                world.network().deaf.remove(&number);
                (name(number).into(), vec![])
            }
            Kind::CutAgent => {
                let (agent, number) = (self.an_agent(), self.an_owner().await);
                let cut = self.cut();
                world.network().agent_cuts.insert((agent, number), cut);
                world.look_for_silence();
                tokio::time::sleep(lasts).await;
                world.network().agent_cuts.remove(&(agent, number));
                (format!("n{agent} from {}", name(number)), vec![])
            }
            Kind::CutAllAgents => {
                let agent = self.an_agent();
                let cut = self.cut();
                for number in 0..world.replicas() {
                    world.network().agent_cuts.insert((agent, number), cut);
                }
                world.look_for_silence();
                tokio::time::sleep(lasts).await;
                for number in 0..world.replicas() {
                    world.network().agent_cuts.remove(&(agent, number));
                }
                (format!("n{agent}"), vec![])
            }
            Kind::Messages => {
                {
                    let mut network = world.network();
                    network.lossy = *self.dice.pick(&[0.0, 5.0, 25.0]);
                    network.doubling = *self.dice.pick(&[0.0, 20.0, 50.0]);
                    let most = self.dice.spread(Duration::from_millis(10), Duration::from_secs(20));
                    network.shuffling = self.dice.chance(60.0).then_some(most);
                }
                tokio::time::sleep(lasts).await;
                let mut network = world.network();
                (network.lossy, network.doubling, network.shuffling) = (0.0, 0.0, None);
                ("messages".into(), vec![])
            }
            Kind::PauseAgent => {
                let number = self.an_agent();
                if let Some(agent) = world.agent(number) {
                    agent.gate.pause();
                    world.look_for_silence();
                    tokio::time::sleep(lasts).await;
                    agent.gate.resume();
                }
                (format!("n{number}"), vec![])
            }
            Kind::KillAgent | Kind::LoseMachine => {
                let number = self.an_agent();
                self.operator.kill_agent(number, lasts, kind == Kind::LoseMachine);
                (format!("n{number}"), vec![])
            }
            Kind::JumpClock => {
                let by = SignedDuration::from_secs(*self.dice.pick(&[-3_600, -90, -30, 30, 90, 3_600]));
                let (clock, whose) = match self.dice.chance(70.0) {
                    true => {
                        let number = self.a_replica();
                        (self.operator.clocks[number].clone(), name(number).to_owned())
                    }
                    false => {
                        let number = self.an_agent();
                        (world.machines[number].clock.clone(), format!("n{number}"))
                    }
                };
                clock.jump_wall(by);
                tokio::time::sleep(lasts).await;
                clock.jump_wall(-by);
                (whose, vec![])
            }
            Kind::StepStoreClock => {
                // Forward, leases end early; back, they end late.
                let by = SignedDuration::from_secs(*self.dice.pick(&[-60, -20, 5, 20]));
                world.store_clock.jump_boot(by);
                tokio::time::sleep(lasts).await;
                world.store_clock.jump_boot(-by);
                ("store".into(), vec![])
            }
            Kind::RevokeLease => {
                let leases = world.store.list_leases("").await.unwrap_or_default();
                if !leases.is_empty() {
                    let scope = self.dice.pick(&leases).scope.clone();
                    world.store.leases().forget_lease(&scope);
                    if self.operator.plant == Some(Plant::EpochsStartOver) {
                        world.store.leases().forget_fence(&scope);
                    }
                    return (scope.to_string(), vec![]);
                }
                ("nothing".into(), vec![])
            }
            Kind::FalseHint => {
                let number = self.an_owner().await;
                if let Some(replica) = world.replica(number) {
                    world.store.leases().tell(Hint::Crashed(replica.session));
                }
                (name(number).into(), vec![])
            }
        }
    }

    /// One way, the other, or both.
    fn cut(&self) -> Cut {
        *self.dice.pick(&[
            Cut { there: true, back: false },
            Cut { there: false, back: true },
            Cut { there: true, back: true },
        ])
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::PauseReplica => "pause replica",
        Kind::FreezeAtVerb => "freeze at a boundary",
        Kind::KillReplica => "kill replica",
        Kind::KillAtStep => "kill at a boundary",
        Kind::RestartReplica => "restart replica",
        Kind::SlowStore => "slow store",
        Kind::ForgetfulStore => "lost answers",
        Kind::StoreDown => "store down",
        Kind::CutFromStore => "cut from store",
        Kind::Deaf => "lost wakes",
        Kind::CutAgent => "cut agent from a replica",
        Kind::CutAllAgents => "cut agent",
        Kind::Messages => "bad messages",
        Kind::PauseAgent => "pause agent",
        Kind::KillAgent => "kill agent",
        Kind::LoseMachine => "lose machine",
        Kind::JumpClock => "wall clock jumps",
        Kind::StepStoreClock => "store's clock steps",
        Kind::RevokeLease => "revoke lease",
        Kind::FalseHint => "false crash hint",
    }
}
