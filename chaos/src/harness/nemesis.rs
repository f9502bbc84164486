//! Faults, by name. Each is done to the cluster, healed, and written down with what it hit and what should go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use rustix::process::Signal;
use tenure_clock::{Clock, Entropy, SystemClock};

use super::cluster::{Cluster, LEASE, SILENCE, Wiring};
use super::proxy::Wire;
use super::{below, wait_until};
use tenure_judge::history::{Aftermath, Fault, Hit};

/// From a fault that the others can see at once. The stated bound is half a second; this machine has two cores for
/// a dozen busy processes.
const SOON: Duration = Duration::from_secs(10);
/// From a fault that only shows when a lease runs out.
const AFTER_EXPIRY: Duration = Duration::from_secs(LEASE.as_secs() + SOON.as_secs());
/// The stated bound for a restart of the database.
const DATABASE_BACK: Duration = Duration::from_secs(30);
/// Longer than a lease: whoever is away for so long is replaced.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(LEASE.as_secs() + 2);
/// An owner that reaches no agent keeps its shards, and they wait until it does.
const AFTER_HIDING: Duration = Duration::from_secs(HIDDEN.as_secs() + SOON.as_secs());
/// Longer than it takes to give an agent up.
const HIDDEN: Duration = Duration::from_secs(SILENCE.as_secs() + 4);
const WHOLE_WITHIN: Duration = Duration::from_secs(45);
const STOP_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// kill -9 of a replica that owns shards, and a restart
    KillOwner,
    /// SIGSTOP of an owner for longer than its leases, then SIGCONT
    FreezeOwner,
    /// SIGTERM and restart of all replicas, one after the other
    RollingRestart,
    /// kill -9 of an agent: its tasks live on
    KillAgent,
    /// kill -9 of an agent and of everything it runs
    CrashNode,
    /// SIGSTOP of an agent for less than its tasks are given up after
    FreezeAgent,
    /// SIGSTOP of an agent for longer than that
    LoseAgent,
    /// One replica hears from no agent, and the others do
    HideAgents,
    /// Postgres ends without a goodbye and starts again
    RestartPostgres,
    /// An owner's connections to Postgres end, and no new ones are made
    CutDatabase,
    /// Nothing passes between an owner and Postgres, and nothing ends
    SilenceDatabase,
    /// Postgres hears an owner, which hears no answers
    SwallowReplies,
    /// Every answer of Postgres is late
    SlowDatabase,
    /// A second replica with the name and address of another
    SameName,
    /// An owner's connections to etcd end, and no new ones are made
    CutEtcd,
    /// Nothing passes between an owner and etcd
    SilenceEtcd,
    /// etcd is killed and starts again
    RestartEtcd,
}

impl Scenario {
    pub fn name(self) -> &'static str {
        match self {
            Self::KillOwner => "kill-owner",
            Self::FreezeOwner => "freeze-owner",
            Self::RollingRestart => "rolling-restart",
            Self::KillAgent => "kill-agent",
            Self::CrashNode => "crash-node",
            Self::FreezeAgent => "freeze-agent",
            Self::LoseAgent => "lose-agent",
            Self::HideAgents => "hide-agents",
            Self::RestartPostgres => "restart-postgres",
            Self::CutDatabase => "cut-database",
            Self::SilenceDatabase => "silence-database",
            Self::SwallowReplies => "swallow-replies",
            Self::SlowDatabase => "slow-database",
            Self::SameName => "same-name",
            Self::CutEtcd => "cut-etcd",
            Self::SilenceEtcd => "silence-etcd",
            Self::RestartEtcd => "restart-etcd",
        }
    }

    /// Everything that makes sense in this wiring, quick ones more than once.
    pub fn deck(wiring: Wiring) -> Vec<Self> {
        let mut deck = vec![
            Self::KillOwner,
            Self::KillOwner,
            Self::FreezeOwner,
            Self::RollingRestart,
            Self::KillAgent,
            Self::CrashNode,
            Self::FreezeAgent,
            Self::LoseAgent,
            Self::HideAgents,
            Self::RestartPostgres,
            Self::CutDatabase,
            Self::SilenceDatabase,
            Self::SwallowReplies,
            Self::SlowDatabase,
            Self::SameName,
        ];
        if wiring == Wiring::Etcd {
            deck.extend([Self::CutEtcd, Self::SilenceEtcd, Self::RestartEtcd]);
        }
        deck
    }
}

/// Draws faults and does them.
#[derive(Debug)]
pub struct Nemesis<'a> {
    pub cluster: &'a mut Cluster,
    pub chance: Entropy,
    pub interrupted: &'a AtomicBool,
    pub faults: Vec<Fault>,
    /// Processes that ended and were not told to.
    pub surprises: Vec<String>,
}

/// What a scenario has done, before it is known how it ended.
struct Wound {
    target: String,
    at: Timestamp,
    silenced: Vec<String>,
    hit: Vec<Hit>,
    bound: Duration,
}

impl Nemesis<'_> {
    /// Goes through the scenarios in random order, again and again, until the time is over.
    pub fn rage(&mut self, scenarios: &[Scenario], for_: Duration) -> Result<()> {
        let over = SystemClock.boottime() + for_;
        let mut deck: Vec<Scenario> = vec![];
        while SystemClock.boottime() < over && !self.interrupted() {
            if deck.is_empty() {
                deck = scenarios.to_vec();
                shuffle(&mut deck, &self.chance);
            }
            let scenario = deck.pop().expect("a scenario is left");
            self.rest(Duration::from_millis(1_500) + self.chance.jitter(Duration::from_millis(2_000)));
            self.strike(scenario)?;
            self.look_for_the_dead()?;
        }
        Ok(())
    }

    pub fn strike(&mut self, scenario: Scenario) -> Result<()> {
        let name = scenario.name();
        println!("  {:.0}  {name}", SystemClock.now());
        let first = self.faults.len();
        match scenario {
            Scenario::KillOwner => self.kill_owner()?,
            Scenario::FreezeOwner => self.freeze_owner(),
            Scenario::RollingRestart => self.rolling_restart()?,
            Scenario::KillAgent => self.kill_agent()?,
            Scenario::CrashNode => self.crash_node()?,
            Scenario::FreezeAgent => self.freeze_agent(name, SILENCE / 3),
            Scenario::LoseAgent => self.freeze_agent(name, HIDDEN),
            Scenario::HideAgents => self.hide_agents(),
            Scenario::RestartPostgres => self.restart_postgres(),
            Scenario::CutDatabase => self.break_database(name, Wire::Cut, self.cut_off()),
            Scenario::SilenceDatabase => self.break_database(name, Wire::Silent, self.cut_off()),
            Scenario::SwallowReplies => self.break_database(name, Wire::Mute, LEASE / 2),
            Scenario::SlowDatabase => {
                self.break_database(name, Wire::Slow(Duration::from_millis(150)), LEASE)
            }
            Scenario::SameName => self.same_name()?,
            Scenario::CutEtcd => self.break_etcd(name, Wire::Cut),
            Scenario::SilenceEtcd => self.break_etcd(name, Wire::Silent),
            Scenario::RestartEtcd => self.restart_etcd()?,
        }
        // Now and then the next fault does not wait.
        if below(&self.chance, 4) > 0 && !self.interrupted() {
            let aftermath = self.wait_whole();
            self.faults[first..].iter_mut().for_each(|fault| fault.aftermath = aftermath);
        }
        Ok(())
    }

    /// Everybody runs, every wire is open.
    pub fn heal(&mut self) -> Result<()> {
        for replica in &self.cluster.replicas {
            replica.process.signal(Signal::CONT);
            replica.database.set(Wire::Open);
            replica.front.set(Wire::Open);
            replica.leases.iter().for_each(|wire| wire.set(Wire::Open));
        }
        self.cluster.nodes.iter().for_each(|node| node.process.signal(Signal::CONT));
        self.look_for_the_dead()
    }

    fn wait_whole(&self) -> Aftermath {
        match self.cluster.wait_whole(WHOLE_WITHIN) {
            Ok(()) => Aftermath::Whole { at: SystemClock.now() },
            Err(error) => {
                println!("{error:#}");
                Aftermath::Broken
            }
        }
    }

    /// Nobody ends who was not told to; who did is started again, so that the rest can be seen.
    fn look_for_the_dead(&mut self) -> Result<()> {
        let replicas = self.cluster.replicas.iter_mut().map(|replica| &mut replica.process);
        let nodes = self.cluster.nodes.iter_mut().map(|node| &mut node.process);
        for process in replicas.chain(nodes) {
            if let Some(status) = process.has_ended() {
                let what = format!("{} ended by itself ({status}):\n{}", process.name, process.log_tail(20));
                println!("{what}");
                self.surprises.push(what);
                process.start_again()?;
            }
        }
        Ok(())
    }

    fn kill_owner(&mut self) -> Result<()> {
        let (at, hit) = self.an_owner(true);
        let wound = self.wound(self.name_of(at), vec![], hit, SOON);
        self.cluster.replicas[at].process.kill();
        self.rest(Duration::from_millis(300) + self.chance.jitter(Duration::from_secs(2)));
        self.cluster.replicas[at].process.start_again()?;
        self.over(Scenario::KillOwner.name(), wound);
        Ok(())
    }

    fn freeze_owner(&mut self) {
        let (at, hit) = self.an_owner(true);
        let wound = self.wound(self.name_of(at), vec![], hit, AFTER_EXPIRY);
        self.cluster.replicas[at].process.signal(Signal::STOP);
        self.rest(LONGER_THAN_A_LEASE);
        self.cluster.replicas[at].process.signal(Signal::CONT);
        self.over(Scenario::FreezeOwner.name(), wound);
    }

    fn rolling_restart(&mut self) -> Result<()> {
        for at in 0..self.cluster.replicas.len() {
            let hit = self.led_by(at, true);
            let wound = self.wound(self.name_of(at), vec![], hit, SOON);
            if self.cluster.replicas[at].process.stop(STOP_WITHIN).is_none() {
                self.surprises
                    .push(format!("{} did not end within {STOP_WITHIN:?} of SIGTERM", wound.target));
            }
            self.cluster.replicas[at].process.start_again()?;
            self.over(Scenario::RollingRestart.name(), wound);
            self.cluster.wait_ready(at, WHOLE_WITHIN).context("a replica that was restarted in order")?;
        }
        Ok(())
    }

    fn kill_agent(&mut self) -> Result<()> {
        let (at, name) = self.a_node();
        let wound = self.wound(name.clone(), vec![name], vec![], SOON);
        self.cluster.nodes[at].process.kill();
        self.rest(self.chance.jitter(Duration::from_secs(2)));
        self.cluster.nodes[at].process.start_again()?;
        self.over(Scenario::KillAgent.name(), wound);
        Ok(())
    }

    fn crash_node(&mut self) -> Result<()> {
        let (at, name) = self.a_node();
        let wound = self.wound(name.clone(), vec![name], vec![], SOON);
        self.cluster.crash_node(at);
        self.rest(self.chance.jitter(Duration::from_secs(3)));
        self.cluster.nodes[at].process.start_again()?;
        self.over(Scenario::CrashNode.name(), wound);
        Ok(())
    }

    fn freeze_agent(&mut self, scenario: &str, for_: Duration) {
        let (at, name) = self.a_node();
        let wound = self.wound(name.clone(), vec![name], vec![], SOON);
        self.cluster.nodes[at].process.signal(Signal::STOP);
        self.rest(for_);
        self.cluster.nodes[at].process.signal(Signal::CONT);
        self.over(scenario, wound);
    }

    fn hide_agents(&mut self) {
        let (at, hit) = self.an_owner(false);
        // Agents speak to the other replicas: nothing that runs is given up.
        let wound = self.wound(self.name_of(at), vec![], hit, AFTER_HIDING);
        self.cluster.replicas[at].front.set(Wire::Silent);
        self.rest(HIDDEN);
        self.cluster.replicas[at].front.set(Wire::Open);
        self.over(Scenario::HideAgents.name(), wound);
    }

    fn restart_postgres(&mut self) {
        let hit = self.cluster.led_by_all();
        let wound = self.wound("postgres".into(), vec![], hit, DATABASE_BACK);
        self.cluster.postgres.restart_immediately();
        self.over(Scenario::RestartPostgres.name(), wound);
    }

    /// Leases that are kept elsewhere live on while their holder cannot work: it has to give them up by itself, which
    /// only shows when there is time for it.
    fn cut_off(&self) -> Duration {
        if self.cluster.etcd.is_some() { AFTER_EXPIRY + LEASE } else { LONGER_THAN_A_LEASE }
    }

    fn break_database(&mut self, scenario: &str, wire: Wire, for_: Duration) {
        let (at, hit) = self.an_owner(false);
        let wound = self.wound(self.name_of(at), vec![], hit, AFTER_EXPIRY);
        self.cluster.replicas[at].database.set(wire);
        self.rest(for_);
        self.cluster.replicas[at].database.set(Wire::Open);
        self.over(scenario, wound);
    }

    fn break_etcd(&mut self, scenario: &str, wire: Wire) {
        let (at, hit) = self.an_owner(true);
        let wound = self.wound(self.name_of(at), vec![], hit, AFTER_EXPIRY);
        let set =
            |cluster: &Cluster, wire| cluster.replicas[at].leases.iter().for_each(|proxy| proxy.set(wire));
        set(self.cluster, wire);
        self.rest(LONGER_THAN_A_LEASE);
        set(self.cluster, Wire::Open);
        self.over(scenario, wound);
    }

    fn restart_etcd(&mut self) -> Result<()> {
        let hit = self.cluster.led_by_all();
        let wound = self.wound("etcd".into(), vec![], hit, DATABASE_BACK);
        let etcd = self.cluster.etcd.as_ref().context("this wiring has no etcd")?;
        etcd.kill();
        etcd.start();
        self.over(Scenario::RestartEtcd.name(), wound);
        Ok(())
    }

    fn same_name(&mut self) -> Result<()> {
        // Agents know the twin's address as another's, so what it owns waits until it is gone.
        let (at, hit) = self.an_owner(false);
        let wound = self.wound(self.name_of(at), vec![], hit, AFTER_HIDING);
        let mut twin = self.cluster.start_twin(at)?;
        self.rest(LONGER_THAN_A_LEASE);
        // It may refuse to start beside its namesake, and then it has ended.
        if below(&self.chance, 2) == 0 {
            twin.stop(STOP_WITHIN);
        }
        drop(twin);
        self.over(Scenario::SameName.name(), wound);
        Ok(())
    }

    fn wound(&self, target: String, silenced: Vec<String>, hit: Vec<Hit>, bound: Duration) -> Wound {
        Wound { target, at: SystemClock.now(), silenced, hit, bound }
    }

    fn over(&mut self, scenario: &str, wound: Wound) {
        let Wound { target, at, silenced, hit, bound } = wound;
        let until = SystemClock.now();
        let aftermath = Aftermath::Unwatched;
        self.faults.push(Fault { name: scenario.into(), target, at, until, silenced, hit, bound, aftermath });
    }

    /// A replica that owns shards now, and which. If nobody does for a while, any.
    fn an_owner(&self, deposed: bool) -> (usize, Vec<Hit>) {
        let first = below(&self.chance, self.cluster.replicas.len());
        let around = |offset: usize| (first + offset) % self.cluster.replicas.len();
        let found = wait_until(LEASE, || {
            let mut owners = (0..self.cluster.replicas.len()).map(around);
            owners.find_map(|at| Some((at, self.led_by(at, deposed))).filter(|(_, led)| !led.is_empty()))
        });
        found.unwrap_or((first, vec![]))
    }

    fn led_by(&self, at: usize, deposed: bool) -> Vec<Hit> {
        self.cluster.led_by(at).into_iter().map(|hit| Hit { deposed, ..hit }).collect()
    }

    fn name_of(&self, at: usize) -> String {
        self.cluster.replicas[at].process.name.clone()
    }

    fn a_node(&self) -> (usize, String) {
        let at = below(&self.chance, self.cluster.nodes.len());
        (at, self.cluster.nodes[at].process.name.clone())
    }

    fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    fn rest(&self, for_: Duration) {
        wait_until(for_, || self.interrupted().then_some(()));
    }
}

fn shuffle<T>(items: &mut [T], chance: &Entropy) {
    for at in (1..items.len()).rev() {
        items.swap(at, below(chance, at + 1));
    }
}
