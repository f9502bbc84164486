//! No node and no pool ever holds more than it has, as the trail tells it: an attempt takes up room from the step that
//! places it to the step that ends it or takes it back.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::index::{Index, TaskName};
use super::{Promise, Verdict};
use crate::history::{Need, Place, TrailRow};

/// States in which an agent may hold the attempt.
const OCCUPYING: [&str; 3] = ["queued", "running", "restarting"];

/// One attempt on one node. The numbers are those of transactions, in their order.
struct Stay<'a> {
    task: TaskName<'a>,
    attempt: &'a str,
    node: &'a str,
    from: usize,
    until: usize,
}

/// A change of what is taken up; ends come before placings of the same transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Leaves,
    Comes,
}

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    let history = index.history;
    let rooms: BTreeMap<&Place, &BTreeMap<String, u64>> =
        history.rooms.iter().map(|room| (&room.of, &room.has)).collect();
    let needs: BTreeMap<(&str, &str), &Need> =
        history.needs.iter().map(|need| ((need.dag.as_str(), need.task.as_str()), need)).collect();
    if rooms.is_empty() || needs.is_empty() {
        return;
    }
    let stays = stays(index);
    let mut changes: Vec<(usize, Change, &Stay<'_>)> = vec![];
    for stay in stays.iter().filter(|stay| stay.from < stay.until) {
        changes.push((stay.from, Change::Comes, stay));
        changes.push((stay.until, Change::Leaves, stay));
    }
    changes.sort_by_key(|(at, change, _)| (*at, *change));
    let mut taken: BTreeMap<(Place, &str), u64> = BTreeMap::new();
    let mut here: BTreeMap<Place, Vec<&Stay<'_>>> = BTreeMap::new();
    for (_, change, stay) in changes {
        let Some(need) = needs.get(&(stay.task.run.dag.as_str(), stay.task.task)) else { continue };
        let mut fills = false;
        for place in [Place::Node(stay.node.to_owned()), Place::Pool(need.pool.clone())] {
            let here = here.entry(place).or_default();
            match change {
                Change::Leaves => here.retain(|other| !std::ptr::eq(*other, stay)),
                Change::Comes => here.push(stay),
            }
        }
        for (place, name, amount) in takes_up(need, stay.node) {
            let taken = taken.entry((place.clone(), name)).or_default();
            if change == Change::Leaves {
                *taken -= amount;
                continue;
            }
            *taken += amount;
            let Some(has) = rooms.get(&place).map(|has| has.get(name).copied().unwrap_or(0)) else {
                continue;
            };
            fills |= *taken == has;
            // Who comes to what is too full already adds nothing to the story.
            if *taken > has && *taken - amount <= has {
                let Stay { task, attempt, .. } = stay;
                let others = here[&place].iter().map(|stay| stay.task.to_string()).collect::<Vec<_>>();
                let what = format!(
                    "{task}: attempt {attempt} was placed where there was no room: {place} has {has} of {name}, \
                     and {taken} are taken by {}",
                    others.join(", ")
                );
                verdict.violated(Promise::Room, Some(task.run), what);
            }
        }
        verdict.counts.filled += usize::from(fills);
    }
}

fn takes_up<'a>(need: &'a Need, node: &str) -> impl Iterator<Item = (Place, &'a str, u64)> {
    let (node, pool) = (Place::Node(node.to_owned()), Place::Pool(need.pool.clone()));
    let of_node = need.of_node.iter().map(move |(name, amount)| (node.clone(), name.as_str(), *amount));
    let of_pool = need.of_pool.iter().map(move |(name, amount)| (pool.clone(), name.as_str(), *amount));
    of_node.chain(of_pool).filter(|(.., amount)| *amount > 0)
}

/// Every attempt that was placed, from when to when.
fn stays<'a>(index: &Index<'a>) -> Vec<Stay<'a>> {
    let numbers = transactions(&index.history.trail);
    let mut stays = vec![];
    for (task, steps) in &index.task_steps {
        let mut here: Option<Stay<'a>> = None;
        for step in steps {
            let at = numbers[&step.row.seq];
            let placed = step.entry.event == "bound";
            if placed || !OCCUPYING.contains(&step.entry.to.as_str()) {
                stays.extend(here.take().map(|stay| Stay { until: at, ..stay }));
            }
            if let (true, Some(attempt), Some(node)) = (placed, &step.entry.attempt, &step.entry.node) {
                here = Some(Stay { task: *task, attempt, node, from: at, until: usize::MAX });
            }
        }
        stays.extend(here);
    }
    stays
}

/// A transaction writes a row for each run that it touches, in any order, and whatever it gives back it may give away
/// at once. Rows of one follow each other among those of their writer, and have the same date.
fn transactions(trail: &[TrailRow]) -> BTreeMap<i64, usize> {
    let mut latest: BTreeMap<_, (Timestamp, usize)> = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for (at, row) in trail.iter().enumerate() {
        let of_writer = latest.entry((&row.actor, &row.scope, row.epoch)).or_insert((row.committed_at, at));
        if of_writer.0 != row.committed_at {
            *of_writer = (row.committed_at, at);
        }
        numbers.insert(row.seq, of_writer.1);
    }
    numbers
}
