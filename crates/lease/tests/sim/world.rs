//! The store, the network and the order of events, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use tenure_clock::{BootTime, Clock, Entropy, ManualClock};
use tenure_lease::{
    AcquireOutcome, Campaign, CampaignId, Effect, Event, Failure, FenceStore, Hint, LeaseStore, Listing,
    MemoryLeases, Now, Rules, Scope, Session, Term,
};
use tokio::sync::broadcast;

use super::check::Ledger;
use super::dice::Dice;
use super::node::{Life, Node, Stop, Work, holder, stop_takes};

#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The test, for the command that replays it.
    pub name: &'static str,
    /// The store installs fences itself.
    pub fenced: bool,
    /// Living processes are said to be dead, and records vanish.
    pub lies: bool,
}

/// How well hints get through.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hints {
    Reliable,
    Lossy,
    Lost,
}

#[derive(Debug)]
pub struct World {
    pub kind: Kind,
    pub seed: u64,
    pub clock: ManualClock,
    pub store: MemoryLeases,
    pub nodes: Vec<Option<Node>>,
    pub scopes: Vec<Scope>,
    pub ledger: Ledger,
    instances: Vec<String>,
    template: Template,
    dice: Dice,
    entropy: Entropy,
    queue: BTreeMap<(BootTime, u64), Item>,
    numbers: u64,
    calls: BTreeMap<u64, Call>,
    heard: broadcast::Receiver<Hint>,
    hints: Hints,
    /// Nothing goes wrong from here on.
    calm_at: BootTime,
    outage_until: Option<BootTime>,
    hash: u64,
    loud: bool,
}

/// What all nodes go by.
#[derive(Debug)]
struct Template {
    duration: Duration,
    drain_for: Duration,
    crash_hints: bool,
    sole_instance: bool,
}

#[derive(Debug)]
enum Item {
    Deliver(Life, Box<Event>),
    Reach(u64),
    Answer(u64),
    OutOfBudget(u64),
    Wake(Life, u64),
    Watchdog(Life, Scope, Term),
    /// A worker's write is refused, if there is such a worker.
    Fenced(Life, Scope, Term),
    Fault,
    Start(usize),
}

/// One request to the store, on its way there, or back.
#[derive(Debug)]
struct Call {
    from: Life,
    effect: Effect,
    sent: BootTime,
    answer_lost: bool,
    answer: Option<Event>,
}

const MS: Duration = Duration::from_millis(1);

impl World {
    pub fn new(kind: Kind, seed: u64, loud: bool) -> Self {
        let mut dice = Dice::new(seed);
        let clock = ManualClock::starting_at(Timestamp::from_second(1_700_000_000).expect("a time"));
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let store = if kind.fenced { MemoryLeases::new(shared) } else { MemoryLeases::unfenced(shared) };
        let duration = Duration::from_secs(dice.one_of(&[1, 3, 15]));
        let nodes = 2 + dice.below(3);
        let twins = dice.percent(20);
        let name = |index: usize| if twins && index == 1 { "node-0".into() } else { format!("node-{index}") };
        let template = Template {
            duration,
            drain_for: dice.one_of(&[duration / 2, duration, duration * 2]),
            crash_hints: dice.percent(60),
            sole_instance: !twins && dice.percent(30),
        };
        let scopes = dice.one_of(&[1, 1, 2, 3, 5, 8, 13, 20]);
        let mut world = Self {
            kind,
            seed,
            heard: store.watch(),
            store,
            nodes: (0..nodes).map(|_| None).collect(),
            scopes: (0..scopes).map(|number| Scope::new(format!("shards/{number:02}"))).collect(),
            ledger: Ledger::default(),
            instances: (0..nodes).map(name).collect(),
            entropy: Entropy::seeded(seed),
            queue: BTreeMap::new(),
            numbers: 0,
            calls: BTreeMap::new(),
            hints: dice.one_of(&[Hints::Reliable, Hints::Lossy, Hints::Lost]),
            calm_at: clock.boottime() + dice.between(duration, duration * 8),
            outage_until: None,
            hash: 0xcbf2_9ce4_8422_2325,
            loud,
            template,
            dice,
            clock,
        };
        for index in 0..nodes {
            let at = world.now() + world.dice.between(Duration::ZERO, duration);
            world.put(at, Item::Start(index));
        }
        world.put(world.now(), Item::Fault);
        world
    }

    /// Trouble, calm, a clean stop; the hash of all that happened.
    pub fn run(mut self) -> u64 {
        let duration = self.template.duration;
        self.run_until(self.calm_at);
        self.calm_down();
        // Two durations, and a moment for the calls themselves.
        let soon = duration * 2 + Duration::from_millis(100);
        self.run_until(self.calm_at + soon);
        self.check_even(soon);
        self.stop_one();
        // Everybody is told to stop, and does.
        for index in 0..self.nodes.len() {
            self.stop(index);
        }
        self.run_until(self.now() + self.template.drain_for + duration * 2);
        let node = |index: &usize| self.nodes[*index].as_ref().is_some_and(|node| !node.is_stopped());
        if let Some(index) = (0..self.nodes.len()).find(node) {
            self.fail(format!("node {index} never stops"));
        }
        self.hash
    }

    /// What a node gives back is somebody else's in a moment, or after its lease would have run out.
    fn stop_one(&mut self) {
        let standing: Vec<usize> = (0..self.nodes.len()).filter(|i| self.stands(*i)).collect();
        if standing.len() < 2 {
            return;
        }
        let leaver = self.dice.one_of(&standing);
        self.stop(leaver);
        let within = match self.hints {
            Hints::Lost => self.template.duration + self.spread() + Duration::from_millis(50),
            Hints::Reliable | Hints::Lossy => Duration::from_millis(100),
        };
        self.run_until(self.now() + within);
        let now = self.now();
        let led = |scope: &&Scope| {
            (0..self.nodes.len()).any(|i| self.stands(i) && self.node(i).leads(scope, now).is_some())
        };
        if let Some(orphan) = self.scopes.iter().find(|scope| !led(scope)) {
            self.fail(format!("{orphan} has no owner {within:?} after node {leaver} was told to stop"));
        }
        self.run_until(now + self.template.duration);
        self.check_even(self.template.duration);
    }

    fn spread(&self) -> Duration {
        (self.template.duration / 50).min(Duration::from_millis(100))
    }

    fn stands(&self, index: usize) -> bool {
        self.nodes[index].as_ref().is_some_and(Node::stands)
    }

    pub fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().expect("a living node")
    }

    pub fn now(&self) -> BootTime {
        self.clock.boottime()
    }

    fn now_both(&self) -> Now {
        Now { boot: self.clock.boottime(), wall: self.clock.now() }
    }

    fn is_calm(&self) -> bool {
        self.now() >= self.calm_at
    }

    fn put(&mut self, at: BootTime, item: Item) {
        self.numbers += 1;
        self.queue.insert((at.max(self.now()), self.numbers), item);
    }

    fn run_until(&mut self, end: BootTime) {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 < end) {
            let ((at, _), item) = entry.remove_entry();
            self.clock.advance(at.saturating_since(self.now()));
            self.happen(item);
        }
        self.clock.advance(end.saturating_since(self.now()));
    }

    fn happen(&mut self, item: Item) {
        match item {
            Item::Deliver(life, event) => {
                if let Some(event) = self.unless_frozen(life, event, Item::Deliver) {
                    self.step(life, *event);
                }
            }
            Item::Wake(life, wakes) => {
                let current = self.living(life).is_some_and(|node| node.wakes == wakes);
                if current && self.unless_frozen(life, wakes, Item::Wake).is_some() {
                    self.step(life, Event::Tick);
                }
            }
            Item::Reach(number) => self.reach(number),
            Item::Answer(number) | Item::OutOfBudget(number) => {
                let Some(life) = self.calls.get(&number).map(|call| call.from) else { return };
                if self.frozen(life).is_some() {
                    let answered = matches!(item, Item::Answer(_));
                    let again = if answered { Item::Answer } else { Item::OutOfBudget };
                    self.put(self.frozen(life).expect("just seen"), again(number));
                    return;
                }
                let call = self.calls.get_mut(&number).expect("just seen");
                let event = match item {
                    Item::Answer(_) => call.answer.clone().expect("it has been there"),
                    _ => call.failed(Failure::Ambiguous("no answer in time".into())),
                };
                // Whichever comes first is the answer; the request itself may still be on its way.
                let effect = call.effect.clone();
                call.from = Life::NOBODY;
                self.answered(life, &effect, event);
            }
            Item::Watchdog(life, scope, term) => {
                let Some(()) =
                    self.unless_frozen(life, (), |life, ()| Item::Watchdog(life, scope.clone(), term))
                else {
                    return;
                };
                let Some(work) = self.living(life).and_then(|node| node.work.get(&scope)) else { return };
                let (same, valid_until) = (work.term == term, work.valid_until);
                if same && valid_until > self.now() {
                    self.put(valid_until, Item::Watchdog(life, scope, term));
                } else if same {
                    self.nodes[life.node].as_mut().expect("alive").work.remove(&scope);
                    self.put(self.now(), Item::Deliver(life, Box::new(Event::Tripped { scope, term })));
                }
            }
            Item::Fenced(life, scope, term) => {
                let work = self.living(life).and_then(|node| node.work.get(&scope));
                let confirming = self.living(life).is_some() && work.is_none();
                if work.is_some_and(|work| work.term == term) {
                    self.resign_at(self.now(), life, &scope);
                } else if confirming && !self.is_calm() {
                    // It may be about to lead.
                    let at = self.now() + self.template.duration / 10;
                    self.put(at, Item::Fenced(life, scope, term));
                }
            }
            Item::Fault => self.fault(),
            Item::Start(index) => self.start(index),
        }
    }

    fn living(&self, life: Life) -> Option<&Node> {
        self.nodes.get(life.node)?.as_ref().filter(|node| node.life == life)
    }

    fn frozen(&self, life: Life) -> Option<BootTime> {
        self.living(life)?.frozen_until.filter(|until| *until > self.now())
    }

    fn unless_frozen<T>(&mut self, life: Life, what: T, item: impl Fn(Life, T) -> Item) -> Option<T> {
        match self.frozen(life) {
            Some(until) => {
                self.put(until, item(life, what));
                None
            }
            None => Some(what),
        }
    }

    fn note(&mut self, what: impl Fn() -> String) {
        let text = what();
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.loud {
            let at = self.now().saturating_since(BootTime::since_boot(Duration::ZERO));
            eprintln!("{:>12.6} {text}", at.as_secs_f64());
        }
    }

    // ── Nodes ───────────────────────────────────────────────────────────────────────────────────────────

    fn start(&mut self, index: usize) {
        if self.nodes[index].as_ref().is_some_and(|node| !node.is_stopped()) {
            return;
        }
        self.numbers += 1;
        let life = Life { node: index, number: self.numbers };
        let session = Session(self.entropy.uuid(self.clock.now()));
        let Template { duration, drain_for, crash_hints, .. } = self.template;
        let rules = Rules {
            holder: holder(format!("node-{index}:{}", life.number), self.instances[index].clone(), session),
            duration,
            margin: duration / 10,
            drain_for,
            crash_hints,
            clock_may_step: true,
        };
        self.note(|| format!("node {index} starts as {session}"));
        let mut node = Node::new(life, rules, self.entropy.clone(), self.now_both());
        node.lifeline = self.store.attach(session).now_or_never().expect("at once").expect("no failure");
        self.nodes[index] = Some(node);
        self.stand(index);
    }

    fn stand(&mut self, index: usize) {
        let Some(node) = self.nodes[index].as_mut().filter(|node| node.stop.is_none()) else { return };
        if node.campaign.is_some() {
            return;
        }
        let id = CampaignId(node.campaigns);
        node.campaigns += 1;
        node.campaign = Some(id);
        node.stood = false;
        let campaign = Campaign {
            component: "shards".into(),
            scopes: self.scopes.clone(),
            note: String::new(),
            sole_instance: self.template.sole_instance,
        };
        let life = node.life;
        self.put(self.now(), Item::Deliver(life, Box::new(Event::Stand(id, campaign))));
    }

    fn withdraw(&mut self, index: usize) {
        let now = self.now();
        let Some(node) = &mut self.nodes[index] else { return };
        let frozen = node.frozen_until.is_some_and(|until| until > now);
        let Some(id) = node.campaign.take_if(|_| !frozen) else { return };
        node.withdrawn.insert(id);
        let life = node.life;
        self.note(|| format!("node {index} withdraws"));
        self.step(life, Event::Withdraw(id));
    }

    fn stop(&mut self, index: usize) {
        let now = self.now();
        let Some(node) = &mut self.nodes[index] else { return };
        if node.stop.is_some() || node.frozen_until.is_some_and(|until| until > now) {
            return;
        }
        node.stop = Some(Stop { due: now + stop_takes(&node.rules), done: false });
        node.withdrawn.extend(node.campaign.take());
        let life = node.life;
        self.note(|| format!("node {index} is told to stop"));
        self.step(life, Event::Stop);
    }

    fn crash(&mut self, index: usize, told: bool) {
        let Some(node) = self.nodes[index].take() else { return };
        self.note(|| format!("node {index} crashes, {}", if told { "and others see it" } else { "unseen" }));
        if told {
            self.store.crash(node.session());
        }
        drop(node);
        self.pass_hints_on();
        let at = self.now() + self.dice.between(Duration::ZERO, self.template.duration * 2);
        self.put(at.min(self.calm_at), Item::Start(index));
    }

    fn step(&mut self, life: Life, event: Event) {
        // Nobody listens any more once it has stopped.
        if self.living(life).is_none_or(Node::is_stopped) {
            return;
        }
        let index = life.node;
        let (now, name) = (self.now_both(), event_name(&event));
        if let Event::Listed { campaign, outcome: Ok(listing) } = &event
            && listing.leases.is_some()
        {
            let campaign = *campaign;
            self.nodes[index].as_mut().expect("alive").listed.insert(campaign);
        }
        let node = self.nodes[index].as_mut().expect("alive");
        node.stood |= matches!(event, Event::Stand(..));
        if let Event::Resign { scope, term } = &event
            && let Some(work) = node.work.get_mut(scope).filter(|work| work.term == *term)
        {
            work.resigned = true;
        }
        let effects = node.protocol.step(now, event);
        let loud = self.loud;
        self.note(|| match loud {
            true => format!("node {index}: {name} → {}", brief(&effects).join(", ")),
            false => format!("{index}{name}{}", effects.len()),
        });
        self.check_effects(index, &effects);
        for effect in effects {
            self.carry_out(index, effect);
        }
        let now = self.now();
        let node = self.nodes[index].as_mut().expect("alive");
        node.protocol.tell_changes(|_, _| {});
        let wake = node.protocol.wake_at(now);
        node.wakes += 1;
        let wakes = node.wakes;
        if node.stop.is_some_and(|stop| !stop.done && stop.due < now) {
            self.fail(format!("node {index} takes too long to stop"));
        }
        self.check_wake(index, wake);
        if let Some(at) = wake {
            self.put(at, Item::Wake(life, wakes));
        }
    }

    fn carry_out(&mut self, index: usize, effect: Effect) {
        let now = self.now();
        let node = self.nodes[index].as_mut().expect("alive");
        let life = node.life;
        match effect {
            Effect::Acquire(_)
            | Effect::Install { .. }
            | Effect::Renew(_)
            | Effect::Release(_)
            | Effect::Look(_)
            | Effect::List { .. } => self.send(index, effect),
            Effect::Elect { record, valid_until, .. } => {
                let (scope, term, epoch) = (record.scope, record.term, record.epoch);
                let work = Work { term, epoch, valid_until, asked_back: false, resigned: false };
                node.work.insert(scope.clone(), work);
                self.note(|| format!("node {index} leads {scope} at {epoch}"));
                self.check_elected(index, &scope, term, epoch);
                self.check_validity(index, &scope);
                // The watchdog's turn, should the step be late.
                self.put(valid_until, Item::Watchdog(life, scope.clone(), term));
                if !self.is_calm() && self.dice.percent(10) {
                    let at = now + self.dice.between(Duration::ZERO, self.template.duration * 2);
                    self.resign_at(at, life, &scope);
                }
            }
            Effect::Extend { scope, valid_until } => {
                if let Some(work) = node.work.get_mut(&scope) {
                    work.valid_until = work.valid_until.max(valid_until);
                }
                self.check_validity(index, &scope);
            }
            Effect::AskBack(scope) => {
                if let Some(work) = node.work.get_mut(&scope) {
                    work.asked_back = true;
                }
                let never = !self.is_calm() && self.dice.percent(15);
                let most = if self.is_calm() { 5 * MS } else { self.template.drain_for * 3 / 2 };
                let takes = self.dice.between(Duration::ZERO, most);
                if !never {
                    self.resign_at(now + takes, life, &scope);
                }
            }
            Effect::Trip { scope, .. } | Effect::End(scope) | Effect::Settle { scope, .. } => {
                node.work.remove(&scope);
            }
            Effect::WatchPeers(peers) => {
                if let Some(lifeline) = &node.lifeline {
                    lifeline.watch_peers(&peers);
                }
            }
            Effect::Stopped => node.stop.as_mut().expect("it was told to").done = true,
            Effect::RenewalFailed { .. } | Effect::Withdrawn(_) => {}
        }
    }

    /// The worker stops, whenever that is; it may be too late for anything.
    fn resign_at(&mut self, at: BootTime, life: Life, scope: &Scope) {
        let Some(work) = self.living(life).and_then(|node| node.work.get(scope)) else { return };
        let event = Event::Resign { scope: scope.clone(), term: work.term };
        let at = if self.is_calm() { at } else { at.min(self.calm_at) };
        self.put(at, Item::Deliver(life, Box::new(event)));
    }

    // ── The way to the store and back ───────────────────────────────────────────────────────────────────

    fn send(&mut self, index: usize, effect: Effect) {
        let now = self.now();
        let node = self.nodes[index].as_mut().expect("alive");
        let (life, budget) = (node.life, node.rules.call_budget());
        let calls = &mut node.calls;
        let twice = match &effect {
            Effect::Acquire(request) => !calls.changing.insert(request.scope.clone()),
            Effect::Install { scope, .. } => !calls.changing.insert(scope.clone()),
            Effect::Release(claim) => !calls.changing.insert(claim.scope.clone()),
            // A new campaign does not know what an old one has asked.
            Effect::Look(scope) => !calls.looking.insert(scope.clone()) && node.withdrawn.is_empty(),
            Effect::List { campaign, .. } => !calls.listing.insert(*campaign),
            Effect::Renew(claims) => {
                let scopes = claims.iter().map(|claim| (claim.scope.clone(), claim.term)).collect();
                calls.renewing.replace(scopes).is_some()
            }
            _ => false,
        };
        if twice {
            self.fail(format!("node {index} has two calls of a kind in flight: {effect:?}"));
        }
        let calm = self.is_calm();
        let lost = !calm && self.dice.percent(4);
        let answer_lost = !calm && self.dice.percent(4);
        let way = self.way();
        self.numbers += 1;
        let number = self.numbers;
        let call = Call { from: life, effect, sent: now, answer_lost, answer: None };
        self.calls.insert(number, call);
        self.put(now + budget, Item::OutOfBudget(number));
        if !lost {
            self.put(self.arrives(way), Item::Reach(number));
        }
    }

    /// What was sent in trouble has arrived when the calm begins.
    fn arrives(&self, way: Duration) -> BootTime {
        let at = self.now() + way;
        if self.is_calm() { at } else { at.min(self.calm_at) }
    }

    /// How long a message takes.
    fn way(&mut self) -> Duration {
        let duration = self.template.duration;
        let slow = if self.is_calm() { 100 } else { self.dice.below(100) };
        match slow {
            0 => self.dice.between(Duration::ZERO, duration * 2),
            1..4 => self.dice.between(Duration::ZERO, duration / 2),
            4..15 => self.dice.between(MS, duration / 20),
            _ => self.dice.between(MS / 5, MS),
        }
    }

    /// A request has arrived: it is applied, and its answer goes back.
    fn reach(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        let (effect, sent, answer_lost) = (call.effect.clone(), call.sent, call.answer_lost);
        let event = match self.outage_until.is_some_and(|until| until > self.now()) {
            true => call.failed(Failure::Unavailable("away".into())),
            false => self.apply(effect, sent),
        };
        self.pass_hints_on();
        self.calls.get_mut(&number).expect("just seen").answer = Some(event);
        if !answer_lost {
            let way = self.way();
            self.put(self.arrives(way), Item::Answer(number));
        }
    }

    fn apply(&mut self, effect: Effect, sent: BootTime) -> Event {
        let store = &self.store;
        const AT_ONCE: &str = "memory answers at once";
        const NO_FAILURE: &str = "memory does not fail";
        match effect {
            Effect::Acquire(request) => {
                let outcome = store.acquire(&request).now_or_never().expect(AT_ONCE).expect(NO_FAILURE);
                let (scope, term) = (request.scope, request.term);
                if matches!(&outcome, AcquireOutcome::Granted(record) if record.term == term) {
                    self.check_shut_out(&scope, term);
                }
                Event::Acquired { scope, term, sent, outcome: Ok(outcome) }
            }
            Effect::Install { scope, term, floor } => {
                let epoch = store.install_fence(&scope, term, floor).now_or_never().expect(AT_ONCE);
                let record = store.find_lease(&scope).now_or_never().expect(AT_ONCE).expect(NO_FAILURE);
                match record.filter(|record| record.term != term) {
                    Some(record) => self.shut_out(&scope, record.term),
                    None => self.check_shut_out(&scope, term),
                }
                Event::Installed { scope, term, outcome: Ok(epoch.expect(NO_FAILURE)) }
            }
            Effect::Renew(claims) => {
                let outcome = store.renew(&claims).now_or_never().expect(AT_ONCE).expect(NO_FAILURE);
                Event::Renewed { sent, outcome: Ok(outcome) }
            }
            Effect::Release(claim) => {
                store.release(&claim).now_or_never().expect(AT_ONCE).expect(NO_FAILURE);
                Event::Released { scope: claim.scope, term: claim.term }
            }
            Effect::Look(scope) => {
                let outcome = store.find_lease(&scope).now_or_never().expect(AT_ONCE).expect(NO_FAILURE);
                Event::Looked { scope, outcome: Ok(outcome) }
            }
            Effect::List { campaign, members_under, leases_under } => {
                let list =
                    |under: &str| store.list_leases(under).now_or_never().expect(AT_ONCE).expect(NO_FAILURE);
                let (members, leases) = (list(&members_under), leases_under.map(|under| list(&under)));
                Event::Listed { campaign, outcome: Ok(Listing { members, leases }) }
            }
            other => unreachable!("{other:?} does not go to the store"),
        }
    }

    /// A fence was installed for a term that has been succeeded since. It costs the successor its term: its next write
    /// is refused, and it resigns.
    fn shut_out(&mut self, scope: &Scope, term: Term) {
        self.note(|| format!("a late fence shuts the holder of {scope} out"));
        self.ledger.removed.insert(term);
        let lives = self.nodes.iter().flatten().map(|node| node.life).collect::<Vec<_>>();
        for life in lives {
            self.put(self.now() + MS, Item::Fenced(life, scope.clone(), term));
        }
    }

    /// The caller hears of it, be it an answer or its absence.
    fn answered(&mut self, life: Life, effect: &Effect, event: Event) {
        if self.living(life).is_none() {
            return;
        }
        let calls = &mut self.nodes[life.node].as_mut().expect("alive").calls;
        match effect {
            Effect::Acquire(request) => drop(calls.changing.remove(&request.scope)),
            Effect::Install { scope, .. } => drop(calls.changing.remove(scope)),
            Effect::Release(claim) => drop(calls.changing.remove(&claim.scope)),
            Effect::Look(scope) => drop(calls.looking.remove(scope)),
            Effect::List { campaign, .. } => drop(calls.listing.remove(campaign)),
            Effect::Renew(_) => drop(calls.renewing.take()),
            _ => {}
        }
        self.step(life, event);
    }

    fn pass_hints_on(&mut self) {
        while let Ok(hint) = self.heard.try_recv() {
            for index in 0..self.nodes.len() {
                self.hint(index, &hint);
            }
        }
    }

    fn hint(&mut self, index: usize, hint: &Hint) {
        let Some(life) = self.nodes[index].as_ref().map(|node| node.life) else { return };
        let lost = match self.hints {
            Hints::Reliable => false,
            Hints::Lossy => !self.is_calm() && self.dice.percent(30),
            Hints::Lost => true,
        };
        if lost {
            return;
        }
        let copies = if self.dice.percent(5) { 2 } else { 1 };
        for _ in 0..copies {
            let way = self.way();
            self.put(self.arrives(way), Item::Deliver(life, Box::new(Event::Hint(hint.clone()))));
        }
    }

    // ── Trouble ─────────────────────────────────────────────────────────────────────────────────────────

    fn fault(&mut self) {
        if self.is_calm() {
            return;
        }
        let duration = self.template.duration;
        let index = self.dice.below(self.nodes.len());
        let scope = self.scopes[self.dice.below(self.scopes.len())].clone();
        match self.dice.below(if self.kind.lies { 15 } else { 11 }) {
            0 => self.crash(index, true),
            1 => self.crash(index, false),
            2 | 3 => {
                let until = self.now() + self.dice.between(Duration::ZERO, duration * 2);
                let until = until.min(self.calm_at);
                self.note(|| format!("node {index} is frozen"));
                if let Some(node) = &mut self.nodes[index] {
                    node.frozen_until = Some(until);
                    if let Some(stop) = &mut node.stop {
                        stop.due = stop.due + duration * 2;
                    }
                }
            }
            4 => {
                let until = self.now() + self.dice.between(Duration::ZERO, duration);
                self.note(|| "the store is away".into());
                self.outage_until = Some(until.min(self.calm_at));
            }
            5 => self.withdraw(index),
            6 => self.stand(index),
            7 => self.stop(index),
            8 => {
                let at = self.now() + self.dice.between(Duration::ZERO, duration);
                self.put(at.min(self.calm_at), Item::Start(index));
            }
            // The watchdog saw the machine asleep.
            9 => {
                let Some(node) = &mut self.nodes[index] else { return self.next_fault() };
                let life = node.life;
                if let Some(work) = node.work.remove(&scope) {
                    self.note(|| format!("node {index} is tripped in {scope}"));
                    self.put(
                        self.now(),
                        Item::Deliver(life, Box::new(Event::Tripped { scope, term: work.term })),
                    );
                }
            }
            // Hints that say nothing new, or nothing true that matters.
            10 => {
                let hint = match self.dice.below(3) {
                    0 => Hint::Resync,
                    1 => Hint::Changed(scope),
                    _ => Hint::Crashed(Session(self.entropy.uuid(self.clock.now()))),
                };
                self.hint(index, &hint);
            }
            11 | 12 => self.slander(index),
            13 => self.forget(&scope),
            _ => {
                for scope in self.scopes.clone() {
                    self.forget(&scope);
                }
                self.store.forget_leases();
            }
        }
        self.next_fault();
    }

    fn next_fault(&mut self) {
        let at = self.now() + self.dice.between(Duration::ZERO, self.template.duration);
        self.put(at, Item::Fault);
    }

    /// A living process is said to be dead.
    fn slander(&mut self, index: usize) {
        let Some(node) = &self.nodes[index] else { return };
        let (life, session) = (node.life, node.session());
        self.ledger.slandered.insert(session);
        self.note(|| format!("node {index} is said to be dead"));
        self.store.crash(session);
        self.pass_hints_on();
        let cut = self.node(index).lifeline.as_ref().is_some_and(|line| line.cut().is_cancelled());
        if cut {
            let tied = self.store.attach(session).now_or_never().expect("at once").expect("no failure");
            // The old end is dropped first: its drop would cut the new one.
            self.nodes[index].as_mut().expect("alive").lifeline = None;
            let again = self.store.attach(session).now_or_never().expect("at once").expect("no failure");
            drop(tied);
            self.nodes[index].as_mut().expect("alive").lifeline = again;
            self.put(self.now(), Item::Deliver(life, Box::new(Event::Cut)));
        }
    }

    /// A record is removed: by an operator, or because the store thinks that it has run out.
    fn forget(&mut self, scope: &Scope) {
        let record = self.store.find_lease(scope).now_or_never().expect("at once").expect("no failure");
        if let Some(record) = record {
            self.ledger.removed.insert(record.term);
            self.note(|| format!("the lease of {scope} vanishes"));
            self.store.forget_lease(scope);
            self.pass_hints_on();
        }
    }

    /// The trouble is over: everybody runs, and stands.
    fn calm_down(&mut self) {
        self.note(|| "calm".into());
        for index in 0..self.nodes.len() {
            let up = self.nodes[index].as_ref().is_some_and(|node| node.stop.is_none());
            if up {
                self.stand(index);
            }
        }
        if !(0..self.nodes.len()).any(|index| self.stands(index)) {
            self.nodes[0] = None;
            self.start(0);
        }
        // Workers that would never have stopped do so now.
        for index in 0..self.nodes.len() {
            let Some(node) = &self.nodes[index] else { continue };
            let asked_back = node.work.iter().filter(|(_, work)| work.asked_back);
            let (life, scopes) = (node.life, asked_back.map(|(scope, _)| scope.clone()).collect::<Vec<_>>());
            for scope in scopes {
                self.resign_at(self.now() + MS, life, &scope);
            }
        }
    }
}

impl Call {
    fn failed(&self, why: Failure) -> Event {
        let sent = self.sent;
        match self.effect.clone() {
            Effect::Acquire(request) => {
                Event::Acquired { scope: request.scope, term: request.term, sent, outcome: Err(why) }
            }
            Effect::Install { scope, term, .. } => Event::Installed { scope, term, outcome: Err(why) },
            Effect::Renew(_) => Event::Renewed { sent, outcome: Err(why) },
            Effect::Release(claim) => Event::Released { scope: claim.scope, term: claim.term },
            Effect::Look(scope) => Event::Looked { scope, outcome: Err(why) },
            Effect::List { campaign, .. } => Event::Listed { campaign, outcome: Err(why) },
            other => unreachable!("{other:?} does not go to the store"),
        }
    }
}

fn event_name(event: &Event) -> String {
    match event {
        Event::Tick => "tick".into(),
        Event::Stand(..) => "stand".into(),
        Event::Withdraw(_) => "withdraw".into(),
        Event::Resign { scope, .. } => format!("resign {scope}"),
        Event::Stop => "stop".into(),
        Event::Acquired { scope, outcome, .. } => match outcome {
            Ok(AcquireOutcome::Granted(_)) => format!("granted {scope}"),
            Ok(AcquireOutcome::Won(_)) => format!("won {scope}"),
            Ok(AcquireOutcome::Held(_)) => format!("held {scope}"),
            Err(why) => format!("no answer for {scope}: {}", why.text()),
        },
        Event::Installed { scope, outcome, .. } => format!("installed {scope} {}", outcome.is_ok()),
        Event::Renewed { outcome, .. } => format!("renewed {}", outcome.is_ok()),
        Event::Released { scope, .. } => format!("released {scope}"),
        Event::Looked { scope, outcome } => format!("looked {scope} {}", outcome.is_ok()),
        Event::Listed { outcome, .. } => format!("listed {}", outcome.is_ok()),
        Event::Hint(Hint::Changed(scope)) => format!("hint {scope}"),
        Event::Hint(Hint::Crashed(session)) => format!("hint {session} is dead"),
        Event::Hint(Hint::Resync) => "hint resync".into(),
        Event::Tripped { scope, .. } => format!("tripped {scope}"),
        Event::Cut => "cut".into(),
    }
}

fn brief(effects: &[Effect]) -> Vec<String> {
    let one = |effect: &Effect| match effect {
        Effect::Acquire(request) => format!("acquire {} {:?}", request.scope, request.takeover),
        Effect::Renew(claims) => format!("renew {}", claims.len()),
        Effect::Release(claim) => format!("release {}", claim.scope),
        Effect::Elect { record, .. } => format!("elect {}", record.scope),
        Effect::List { leases_under, .. } => {
            format!("list{}", if leases_under.is_some() { " all" } else { "" })
        }
        Effect::WatchPeers(peers) => format!("watch {} peers", peers.len()),
        other => format!("{other:?}"),
    };
    effects.iter().map(one).collect()
}
