//! One seed, from the beginning of its world to the verdict.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_judge::checker::{self, Promise, Violation};
use tenure_judge::history::History;
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::dice::Dice;
use crate::nemesis::Nemesis;
use crate::operator::Operator;
use crate::panics;
use crate::plants::Plant;
use crate::record;
use crate::regressions::REGRESSIONS;
use crate::rooms::Rooms;
use crate::trace::Met;
use crate::workload::Workload;
use crate::world::{Design, Size, World, clock_of};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    /// Keeps a story for people.
    pub telling: bool,
    pub plant: Option<Plant>,
}

/// What a seed has come to.
#[derive(Debug, Default)]
pub struct Seen {
    pub seed: u64,
    pub hash: u64,
    pub events: u64,
    pub violations: Vec<Violation>,
    pub history: History,
    pub story: Vec<(Duration, String)>,
    pub matrix: BTreeMap<Met, u64>,
    pub strikes: BTreeMap<&'static str, u64>,
    /// Virtual time from beginning to end.
    pub lived: Duration,
    pub counts: checker::Counts,
    pub gaps: Vec<checker::Gap>,
}

/// An hour: faults for the most of it, and then time for everything to come to its end.
const RAGE: Duration = Duration::from_secs(48 * 60);
const WORK: Duration = Duration::from_secs(50 * 60);
const HOUR: Duration = Duration::from_secs(3600);
/// Most worlds have come to their end after an hour. Long chains of long tasks with many retries take longer.
const LATEST: Duration = Duration::from_secs(4 * 3600);
/// Looks whether everything has ended.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Longer than the pause between the end of the last run and that of the last process.
const SETTLE: Duration = Duration::from_secs(10);

pub fn run_seed(options: Options) -> Seen {
    panics::begin();
    let world = catch_unwind(AssertUnwindSafe(|| live_through(options)));
    // Of a world that has broken down nothing is left to be judged.
    let mut seen = world.unwrap_or_else(|_| Seen { seed: options.seed, ..Seen::default() });
    seen.violations.extend(panics::end().into_iter().map(|what| Violation {
        promise: Promise::Story,
        run: None,
        what: format!("something panicked: {what}"),
    }));
    seen
}

fn live_through(options: Options) -> Seen {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads");
    runtime.block_on(live(options))
}

async fn live(options: Options) -> Seen {
    let Options { seed, telling, plant } = options;
    let dice = Dice::seeded(seed);
    let size =
        Size { replicas: 2 + dice.below(2), agents: 2 + dice.below(2), shards: *dice.pick(&[1, 2, 4]) };
    let (falling, fallen) = mpsc::unbounded_channel();
    let design = Design {
        size,
        rooms: Rooms::of(seed, size.agents),
        flaw: plant.and_then(Plant::of_store),
        leases_apart: has_leases_apart(seed),
        telling,
        counting: false,
    };
    let world = World::new(&dice, design, falling);
    let workload = Arc::new(Workload::set_up(&world, &dice, WORK).await);
    let clocks = (0..size.replicas).map(|_| clock_of(world.time, &dice)).collect();
    let operator = Arc::new(Operator::new(&world, &dice, size.shards, plant, clocks));
    tokio::spawn(Arc::clone(&operator).bury(fallen));
    (0..size.replicas).for_each(|number| operator.start_replica(number));
    (0..size.agents).for_each(|number| operator.start_agent(number));

    let working = tokio::spawn(Arc::clone(&workload).go_on(WORK));
    let nemesis =
        Nemesis { world: Arc::clone(&world), operator, dice: dice.child(), calm: dice.chance(40.0) };
    nemesis.rage(RAGE).await;
    working.await.expect("clients do not panic");
    while world.time.elapsed() < LATEST && unfinished(&world) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    tokio::time::sleep(SETTLE.max(HOUR.saturating_sub(world.time.elapsed()))).await;
    world.end_silence();
    let schedule = workload.schedule(WORK);
    let history = record::history(&world, &workload, schedule, size.shards).await;
    let verdict = checker::check(&history);
    let mut violations = verdict.violations;
    violations.extend(fenced_overlaps(&history, &workload));
    for number in 0..size.replicas {
        if let Some(replica) = world.replica(number) {
            replica.kill();
        }
        world.set_replica(number, None);
    }
    for number in 0..size.agents {
        if let Some(agent) = world.agent(number) {
            agent.kill();
        }
        world.set_agent(number, None);
    }
    let mut trace = world.trace();
    Seen {
        seed,
        hash: trace.hash(),
        events: trace.events,
        violations,
        history,
        story: trace.story.take().unwrap_or_default(),
        matrix: std::mem::take(&mut trace.matrix),
        strikes: std::mem::take(&mut trace.strikes),
        lived: world.time.elapsed(),
        counts: verdict.counts,
        gaps: verdict.gaps,
    }
}

/// One world in four keeps its leases apart from its work, as with etcd; but seeds that have shown something keep the world
/// that they showed it in.
fn has_leases_apart(seed: u64) -> bool {
    let known = REGRESSIONS.iter().any(|(known, _)| *known == seed);
    !known && Dice::seeded(seed.rotate_left(32)).chance(25.0)
}

fn unfinished(world: &World) -> bool {
    world.store.all_runs().iter().any(|(run, ..)| !run.state.is_finished())
}

/// Tasks that fence themselves do not overlap even when their node was cut off: no silence excuses that.
fn fenced_overlaps(history: &History, workload: &Workload) -> Vec<Violation> {
    let fenced = |run: &tenure_judge::history::RunName, task: &str| {
        workload.fenced.iter().any(|(dag, of)| *dag == run.dag && of == task)
    };
    let effects = history
        .effects
        .iter()
        .filter(|effect| effect.starts.first().is_some_and(|start| fenced(&start.run, &start.task)));
    let strict =
        History { effects: effects.cloned().collect(), trail: history.trail.clone(), ..History::default() };
    let verdict = checker::check(&strict);
    verdict.violations.into_iter().filter(|violation| violation.promise == Promise::P7).collect()
}
