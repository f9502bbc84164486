//! Many seeds, and what they have shown together.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use tenure_clock::{Clock, SystemClock};
use tenure_judge::checker;

use crate::boundaries::possible;
use crate::regressions::REGRESSIONS;
use crate::run::{Options, Seen, run_seed};
use crate::trace::Met;

/// Enough to see a pattern.
const SHOWN: usize = 5;
const STORIES: usize = 2;
/// Pairs that were not reached, by name.
const NAMED: usize = 12;

#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    pub first: u64,
    /// Seeds that have broken a promise before come before those.
    pub regressions: bool,
    /// At most so many; `None`: as many as there is time for.
    pub seeds: Option<u64>,
    /// At most so long, in real time.
    pub time: Option<Duration>,
    /// Every so many seeds one is run twice, to see that it is the same.
    pub twice_every: u64,
    pub threads: usize,
    /// Ends with the first that fails.
    pub stop_at_failure: bool,
}

#[derive(Debug, Default)]
pub struct Report {
    pub seeds: u64,
    /// How many there should have been, if the time was up before.
    pub cut_short: Option<u64>,
    pub repeated: u64,
    pub events: u64,
    pub attempts: usize,
    pub runs: usize,
    pub given_up: usize,
    pub withdrawn: usize,
    pub gaps: usize,
    pub longest_gap: Duration,
    pub matrix: BTreeMap<Met, u64>,
    pub strikes: BTreeMap<&'static str, u64>,
    /// Virtual time of all worlds together.
    pub lived: Duration,
    /// Attempts that overlapped because their node could not be told to stop.
    pub excused_overlaps: usize,
    /// Placements that took the last of what a node or a pool had.
    pub filled: usize,
    /// Seeds that broke a promise, with the first words about it.
    pub failed: BTreeMap<u64, String>,
    /// Seeds that were not the same twice.
    pub unstable: Vec<u64>,
    pub took: Duration,
}

pub fn run_campaign(campaign: &Campaign) -> Report {
    let begun = SystemClock.boottime();
    let known: Vec<u64> =
        REGRESSIONS.iter().map(|(seed, _)| *seed).filter(|_| campaign.regressions).collect();
    let fresh = campaign.first..campaign.seeds.map_or(u64::MAX, |seeds| campaign.first.saturating_add(seeds));
    let fresh = fresh.filter(|seed| !known.contains(seed));
    let seeds = Mutex::new(known.iter().copied().chain(fresh));
    let stop = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    let work = || {
        loop {
            let late =
                campaign.time.is_some_and(|time| SystemClock.boottime().saturating_since(begun) >= time);
            if late || stop.load(Ordering::Relaxed) {
                return;
            }
            let Some(seed) = seeds.lock().expect("no thread panics with it").next() else { return };
            let options = Options { seed, telling: false, plant: None };
            let seen = run_seed(options);
            let again = (seed % campaign.twice_every == 1).then(|| run_seed(options).hash);
            let mut report = report.lock().expect("no thread panics with it");
            report.add(&seen, again);
            if campaign.stop_at_failure && !report.failed.is_empty() {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().expect("no thread has panicked");
    let is_left = seeds.into_inner().expect("no thread has panicked").next().is_some();
    report.cut_short = campaign.seeds.filter(|_| is_left && !stop.into_inner());
    report.took = SystemClock.boottime().saturating_since(begun);
    report
}

impl Report {
    fn add(&mut self, seen: &Seen, again: Option<u64>) {
        self.seeds += 1;
        self.events += seen.events;
        self.attempts += seen.counts.attempts;
        self.runs += seen.counts.runs;
        self.given_up += seen.counts.given_up;
        self.withdrawn += seen.counts.withdrawn;
        self.gaps += seen.gaps.len();
        let longest = seen.gaps.iter().filter_map(|gap| Duration::try_from(gap.stood_still).ok()).max();
        self.longest_gap = self.longest_gap.max(longest.unwrap_or_default());
        for (met, count) in &seen.matrix {
            *self.matrix.entry(*met).or_default() += count;
        }
        for (fault, count) in &seen.strikes {
            *self.strikes.entry(fault).or_default() += count;
        }
        self.lived += seen.lived;
        self.excused_overlaps += seen.counts.excused_overlaps;
        self.filled += seen.counts.filled;
        if let Some(violation) = seen.violations.first() {
            let text = format!(
                "{} violations, first: {}: {}",
                seen.violations.len(),
                violation.promise,
                violation.what
            );
            self.failed.insert(seen.seed, text);
        }
        if let Some(hash) = again {
            self.repeated += 1;
            if hash != seen.hash {
                self.unstable.push(seen.seed);
            }
        }
    }

    /// Every promise was kept, in worlds in which something went wrong.
    pub fn is_good(&self) -> bool {
        self.failed.is_empty() && self.unstable.is_empty() && self.attempts > 0 && !self.strikes.is_empty()
    }

    pub fn print(&self) {
        println!("{}", matrix(&self.matrix));
        let (reached, missed): (Vec<Met>, Vec<Met>) =
            possible().partition(|met| self.matrix.contains_key(met));
        println!(
            "{} of {} pairs of fault and boundary were reached",
            reached.len(),
            reached.len() + missed.len()
        );
        if !missed.is_empty() {
            let named: Vec<String> =
                missed.iter().take(NAMED).map(|(fault, step)| format!("{fault} at {step}")).collect();
            let more = missed.len().saturating_sub(NAMED);
            println!(
                "not reached: {}{}",
                named.join(", "),
                if more > 0 { format!(" and {more} more") } else { String::new() }
            );
        }
        let struck: Vec<String> =
            self.strikes.iter().map(|(fault, count)| format!("{fault} {count}")).collect();
        println!("brought about: {}", struck.join(", "));
        let rate = self.seeds as f64 / self.took.as_secs_f64();
        println!(
            "{} seeds, {:.0} virtual hours in {:.1} s ({rate:.1} seeds each second): {} runs, {} attempts, {} of them taken \
             back unbegun and {} given up as lost; {} events at boundaries",
            self.seeds,
            self.lived.as_secs_f64() / 3600.0,
            self.took.as_secs_f64(),
            self.runs,
            self.attempts,
            self.withdrawn,
            self.given_up,
            self.events
        );
        println!(
            "{} takeovers were timed, the longest took {:.1} s; {} overlaps that nobody could prevent; {} \
             seeds were run twice, {} of them differed",
            self.gaps,
            self.longest_gap.as_secs_f64(),
            self.excused_overlaps,
            self.repeated,
            self.unstable.len()
        );
        println!("{} placements took the last of what a node or a pool had", self.filled);
        if let Some(asked) = self.cut_short {
            println!("SHORT: the time was up before all of {asked} seeds had been run");
        }
        for seed in &self.unstable {
            println!("UNSTABLE: seed {seed} is not the same twice");
        }
        for (seed, text) in self.failed.iter().take(SHOWN) {
            println!("BROKEN: seed {seed}: {text}\n        replay it with: cargo xtask sim --seed {seed}");
        }
        let total = self.failed.len();
        println!(
            "verdict: {}",
            match total {
                0 if self.is_good() => "every promise was kept".into(),
                0 => "nothing happened, or not the same twice".into(),
                _ => format!("{total} seeds failed"),
            }
        );
    }
}

/// Which fault met which boundary, how often.
fn matrix(met: &BTreeMap<Met, u64>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let mut faults: Vec<&str> = met.keys().map(|(fault, _)| *fault).collect();
    faults.dedup();
    let mut boundaries: Vec<&str> = met.keys().map(|(_, boundary)| *boundary).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    table.set_header(["boundary"].into_iter().chain(faults.iter().copied()));
    for boundary in boundaries {
        let count = |fault: &&str| {
            let count = met
                .iter()
                .find(|((of, at), _)| of == fault && *at == boundary)
                .map_or(0, |(_, count)| *count);
            if count == 0 { String::new() } else { count.to_string() }
        };
        table.add_row([boundary.to_owned()].into_iter().chain(faults.iter().map(count)));
    }
    table
}

/// One seed with its story and those of some runs (`dag/run`). True: it has kept every promise.
pub fn replay(seed: u64, whole: bool, runs: &[String]) -> bool {
    let seen = run_seed(Options { seed, telling: true, plant: None });
    let again = run_seed(Options { seed, telling: false, plant: None });
    if whole || !seen.violations.is_empty() {
        for (at, text) in &seen.story {
            println!("  {:>10.3} s  {text}", at.as_secs_f64());
        }
    }
    let mut told = vec![];
    for violation in &seen.violations {
        println!("\nBROKEN: {}\n  {}", violation.promise, violation.what);
        if let Some(run) = violation.run.as_ref().filter(|run| !told.contains(*run))
            && told.len() < STORIES
        {
            println!("\nthe story of {run}:\n{}", checker::tell(&seen.history, run));
            told.push(run.clone());
        }
    }
    for row in seen.history.runs.iter().filter(|row| runs.contains(&row.name.to_string())) {
        println!("\nthe story of {}:\n{}", row.name, checker::tell(&seen.history, &row.name));
    }
    println!(
        "seed {seed}: {} events, trace {:016x}, {} runs, {} attempts, {} violations",
        seen.events,
        seen.hash,
        seen.counts.runs,
        seen.counts.attempts,
        seen.violations.len()
    );
    if again.hash != seen.hash {
        println!("UNSTABLE: the same seed gave another trace, {:016x}", again.hash);
    }
    seen.violations.is_empty() && again.hash == seen.hash
}
