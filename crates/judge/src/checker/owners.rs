//! P1 and P2: who wrote what, under which epoch.

use std::collections::{BTreeMap, BTreeSet};

use super::index::Index;
use super::{Promise, Verdict};
use crate::history::TrailRow;

pub(super) fn check(index: &Index<'_>, verdict: &mut Verdict) {
    one_owner(index, verdict);
    terms_are_unique(index, verdict);
    own_shard_only(index, verdict);
    epochs_never_go_back(index, verdict);
    fences_have_kept_up(index, verdict);
}

fn authorised<'a>(index: &Index<'a>) -> impl Iterator<Item = (&'a str, u64, &'a TrailRow)> + use<'a> {
    index.history.trail.iter().filter_map(|row| Some((row.scope.as_deref()?, row.epoch?, row)))
}

fn one_owner(index: &Index<'_>, verdict: &mut Verdict) {
    let mut actors: BTreeMap<(&str, u64), BTreeSet<&str>> = BTreeMap::new();
    for (scope, epoch, row) in authorised(index) {
        actors.entry((scope, epoch)).or_default().insert(&row.actor);
    }
    for ((scope, epoch), actors) in actors {
        if actors.len() > 1 {
            verdict.violated(Promise::P1, None, format!("{scope} has two writers in e{epoch}: {actors:?}"));
        }
    }
}

/// Where the database keeps the terms, every epoch that wrote is one of them, and only one.
fn terms_are_unique(index: &Index<'_>, verdict: &mut Verdict) {
    let mut terms: BTreeMap<(&str, u64), Vec<&str>> = BTreeMap::new();
    for term in &index.history.terms {
        terms.entry((&term.scope, term.epoch)).or_default().push(&term.holder);
    }
    for ((scope, epoch), holders) in terms.iter().filter(|(_, holders)| holders.len() > 1) {
        verdict.violated(Promise::P1, None, format!("{scope} has two terms with e{epoch}: {holders:?}"));
    }
    if terms.is_empty() {
        return;
    }
    let used: BTreeSet<(&str, u64)> = authorised(index).map(|(scope, epoch, _)| (scope, epoch)).collect();
    for (scope, epoch) in used.into_iter().filter(|used| !terms.contains_key(used)) {
        verdict.violated(Promise::P1, None, format!("{scope} was written under e{epoch}, which is no term"));
    }
}

fn own_shard_only(index: &Index<'_>, verdict: &mut Verdict) {
    for (scope, epoch, row) in authorised(index) {
        let Some(run) = &row.run else { continue };
        let (Some(found), Some(shard)) = (index.runs.get(run), shard_of(scope)) else { continue };
        if found.shard != shard {
            let what = format!("{scope} e{epoch} wrote to a run of shard {} (row {})", found.shard, row.seq);
            verdict.violated(Promise::P1, Some(run), what);
        }
    }
}

fn shard_of(scope: &str) -> Option<u16> {
    scope.strip_prefix("scheduler/shard-")?.parse().ok()
}

/// Both by number and by time of commit: a number is drawn while the fence is held, so both orders must agree.
fn epochs_never_go_back(index: &Index<'_>, verdict: &mut Verdict) {
    let mut by_scope: BTreeMap<&str, Vec<(u64, &TrailRow)>> = BTreeMap::new();
    for (scope, epoch, row) in authorised(index) {
        by_scope.entry(scope).or_default().push((epoch, row));
    }
    for (scope, mut rows) in by_scope {
        rows.sort_by_key(|(_, row)| row.seq);
        let stale = first_step_back(&rows).or_else(|| {
            rows.sort_by_key(|(_, row)| (row.committed_at, row.seq));
            first_step_back(&rows)
        });
        if let Some(((newer, before), (older, row))) = stale {
            let what = format!(
                "{scope}: {} wrote under e{older} at {} (row {}) after {} had written under e{newer} at {} (row {})",
                row.actor, row.committed_at, row.seq, before.actor, before.committed_at, before.seq
            );
            verdict.violated(Promise::P2, row.run.as_ref(), what);
        }
    }
}

type Written<'a> = (u64, &'a TrailRow);

fn first_step_back<'a>(rows: &[Written<'a>]) -> Option<(Written<'a>, Written<'a>)> {
    rows.windows(2).find(|pair| pair[1].0 < pair[0].0).map(|pair| (pair[0], pair[1]))
}

fn fences_have_kept_up(index: &Index<'_>, verdict: &mut Verdict) {
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for (scope, epoch, _) in authorised(index) {
        let known = highest.entry(scope).or_default();
        *known = epoch.max(*known);
    }
    for (scope, epoch) in highest {
        let fence = index.history.fences.iter().find(|fence| fence.scope == scope).map(|fence| fence.epoch);
        if fence.is_none_or(|fence| fence < epoch) {
            let fence = fence.map_or("nothing".to_owned(), |fence| format!("e{fence}"));
            verdict.violated(
                Promise::P2,
                None,
                format!("{scope}: e{epoch} has written, and the fence says {fence}"),
            );
        }
    }
}
