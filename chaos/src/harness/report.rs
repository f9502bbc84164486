//! What a run of the harness has shown, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use jiff::SignedDuration;

use tenure_judge::checker::{self, Promise, Verdict};
use tenure_judge::history::{Aftermath, Fault, History};
use tenure_judge::mutations;

/// Enough to see a pattern; the rest is in the saved history.
const VIOLATIONS_SHOWN: usize = 5;
const STORIES_SHOWN: usize = 3;

pub fn print(history: &History, verdict: &Verdict) {
    println!("\n{}\n", faults(history, verdict));
    let counts = &verdict.counts;
    println!(
        "{} runs, {} tasks, {} attempts of which {} started; {} taken back unbegun, {} given up as lost;",
        counts.runs, counts.tasks, counts.attempts, counts.started, counts.withdrawn, counts.given_up
    );
    println!(
        "{} reports were written by a replica that did not own the shard; highest epoch {}; {} clients' calls;",
        counts.reported_elsewhere,
        counts.epochs,
        history.calls.len()
    );
    println!("{} overlaps on nodes that nobody could reach.", counts.excused_overlaps);
    violations(history, verdict);
}

fn faults(history: &History, verdict: &Verdict) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["fault", "times", "shards hit", "went on: p50", "p99", "max", "whole again: max"]);
    let names: BTreeSet<&str> = history.faults.iter().map(|fault| fault.name.as_str()).collect();
    for name in names {
        let of_name: Vec<&Fault> = history.faults.iter().filter(|fault| fault.name == name).collect();
        let mut gaps: Vec<SignedDuration> =
            verdict.gaps.iter().filter(|gap| gap.fault == name).map(|gap| gap.stood_still).collect();
        gaps.sort();
        let whole = of_name.iter().filter_map(|fault| match fault.aftermath {
            Aftermath::Whole { at } => Some(at.duration_since(fault.until)),
            Aftermath::Unwatched | Aftermath::Broken => None,
        });
        let cells = [
            name.to_owned(),
            of_name.len().to_string(),
            gaps.len().to_string(),
            percentile(&gaps, 50),
            percentile(&gaps, 99),
            percentile(&gaps, 100),
            whole.max().map_or("–".into(), seconds),
        ];
        let numbers = |(at, cell): (usize, String)| {
            Cell::new(cell).set_alignment(if at == 0 { CellAlignment::Left } else { CellAlignment::Right })
        };
        table.add_row(cells.into_iter().enumerate().map(numbers));
    }
    table
}

fn violations(history: &History, verdict: &Verdict) {
    let mut by_promise: BTreeMap<Promise, Vec<&checker::Violation>> = BTreeMap::new();
    for violation in &verdict.violations {
        by_promise.entry(violation.promise).or_default().push(violation);
    }
    let mut told = BTreeSet::new();
    for (promise, violations) in by_promise {
        println!("\nBROKEN: {promise} ({} times)", violations.len());
        for violation in violations.iter().take(VIOLATIONS_SHOWN) {
            println!("- {}", violation.what);
        }
        for violation in violations {
            let Some(run) = violation.run.as_ref().filter(|run| !told.contains(run)) else { continue };
            if told.len() < STORIES_SHOWN {
                told.insert(run);
                println!("\nthe story of {run}:\n{}", checker::tell(history, run));
            }
        }
    }
}

/// Breaks the recorded history in every way there is; answers with the ways that nobody noticed.
pub fn blind_spots(history: &History) -> (usize, Vec<&'static str>) {
    let mut tried = 0;
    let mut missed = vec![];
    for mutation in mutations::ALL {
        let mut broken = history.clone();
        if (mutation.apply)(&mut broken).is_none() {
            continue;
        }
        tried += 1;
        let verdict = checker::check(&broken);
        if !verdict.violations.iter().any(|violation| violation.promise == mutation.breaks) {
            missed.push(mutation.name);
        }
    }
    (tried, missed)
}

fn percentile(sorted: &[SignedDuration], percent: usize) -> String {
    let Some(last) = sorted.len().checked_sub(1) else { return "–".into() };
    seconds(sorted[(sorted.len() * percent / 100).min(last)])
}

fn seconds(duration: SignedDuration) -> String {
    let duration = Duration::try_from(duration).unwrap_or_default();
    format!("{:.2} s", duration.as_secs_f64())
}
