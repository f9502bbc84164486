//! Nodes and pools that hold more than they have.

use std::collections::BTreeMap;

use super::{could_speak, entries, speaks_of};
use crate::history::{Entry, History, Need, Place, TrailRow};

pub(super) fn placed_on_a_full_node(history: &mut History) -> Option<()> {
    let (attempt, node) = history.trail.iter().enumerate().find_map(|(at, row)| {
        row.entries.iter().filter(|entry| entry.event == "bound").find_map(|entry| {
            let full = full_node(history, at, row, entry)?;
            Some((entry.attempt.clone()?, full))
        })
    })?;
    let of_attempt = entries(history).filter(|entry| entry.attempt.as_ref() == Some(&attempt));
    of_attempt.for_each(|entry| entry.node = Some(node.clone()));
    Some(())
}

pub(super) fn node_smaller_than_its_task(history: &mut History) -> Option<()> {
    let placed = history.trail.iter().find_map(|row| {
        let bound = row.entries.iter().find(|entry| entry.event == "bound")?;
        let need = need_of(history, row, bound)?;
        let (name, amount) = need.of_node.iter().find(|(_, amount)| **amount > 0)?;
        Some((bound.node.clone()?, name.clone(), *amount))
    });
    let (node, name, amount) = placed?;
    shrink(history, &Place::Node(node), &name, amount - 1)
}

pub(super) fn pool_lends_what_it_has_not(history: &mut History) -> Option<()> {
    let placed = history.trail.iter().find_map(|row| {
        let bound = row.entries.iter().find(|entry| entry.event == "bound")?;
        let need = need_of(history, row, bound)?;
        let (name, amount) = need.of_pool.iter().find(|(_, amount)| **amount > 0)?;
        Some((need.pool.clone(), name.clone(), *amount))
    });
    let (pool, name, amount) = placed?;
    shrink(history, &Place::Pool(pool), &name, amount - 1)
}

/// A node that an attempt which was claimed before the row, and ended well after it, leaves no room on.
fn full_node(history: &History, at: usize, row: &TrailRow, entry: &Entry) -> Option<String> {
    let need = need_of(history, row, entry)?;
    let claimed =
        history.trail[..at].iter().flat_map(|row| row.entries.iter().map(move |entry| (row, entry)));
    let mut claimed = claimed.filter(|(_, entry)| entry.event == "claimed");
    claimed.find_map(|(earlier, other)| {
        let (attempt, node) = (other.attempt.as_deref()?, other.node.clone()?);
        let ends_later = history.trail[at + 1..].iter().any(|row| speaks_of(row, "succeeded", attempt));
        let theirs = &need_of(history, earlier, other)?.of_node;
        let has = &history.rooms.iter().find(|room| room.of == Place::Node(node.clone()))?.has;
        let together = |name: &String| amount(theirs, name) + amount(&need.of_node, name);
        let full = theirs.keys().any(|name| together(name) > amount(has, name));
        let unharmed = could_speak(history, &node, earlier.committed_at, history.ended_at);
        (ends_later && full && unharmed && entry.node.as_ref() != Some(&node)).then_some(node)
    })
}

fn need_of<'a>(history: &'a History, row: &TrailRow, entry: &Entry) -> Option<&'a Need> {
    let (run, task) = (row.run.as_ref()?, entry.task.as_deref()?);
    history.needs.iter().find(|need| need.dag == run.dag && need.task == task)
}

fn shrink(history: &mut History, place: &Place, name: &str, to: u64) -> Option<()> {
    let room = history.rooms.iter_mut().find(|room| room.of == *place)?;
    room.has.insert(name.to_owned(), to);
    Some(())
}

fn amount(of: &BTreeMap<String, u64>, name: &str) -> u64 {
    of.get(name).copied().unwrap_or(0)
}
