//! Why nothing can take a request, in one sentence for people.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tenure_model::Resources;

use crate::explain::Rejected;
use crate::filter::Rejection;

/// No node can take it now, and this is what speaks against each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaceable {
    pub rejected: Vec<Rejected>,
}

/// `no node has gpu ≥ 1: 3 nodes too small (the largest has 0), 1 draining`. Each node is counted once, under what
/// speaks against it for longest.
impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rejected.is_empty() {
            return f.write_str("no node is registered");
        }
        let mut groups: BTreeMap<Kind<'_>, Vec<&Rejection>> = BTreeMap::new();
        for reason in self.rejected.iter().filter_map(|rejected| rejected.reasons.first()) {
            groups.entry(Kind::of(reason)).or_default().push(reason);
        }
        let about = headline(&groups);
        match &about {
            Some((Kind::TooSmall(resource), needed)) => write!(f, "no node has {resource} ≥ {needed}: ")?,
            Some((Kind::Busy(resource), needed)) => write!(f, "no node has {resource} ≥ {needed} free: ")?,
            _ => f.write_str("no node can take it: ")?,
        }
        for (number, (kind, reasons)) in groups.iter().enumerate() {
            let count = reasons.len();
            match number {
                0 => write!(f, "{count} node{} ", if count == 1 { "" } else { "s" })?,
                _ => write!(f, ", {count} ")?,
            }
            let known =
                |resource: &str| about.as_ref().is_some_and(|(about, _)| about.resource() == Some(resource));
            match kind {
                Kind::TooSmall(resource) if known(resource) => f.write_str("too small")?,
                Kind::Busy(resource) if known(resource) => f.write_str("busy")?,
                _ => write!(f, "{}", reasons[0])?,
            }
            tell_most(f, reasons)?;
        }
        Ok(())
    }
}

impl Rejection {
    /// With the amounts, for whoever asks about one node.
    pub fn in_full(&self) -> String {
        match self {
            Self::TooSmall { resource, needed, capacity } => {
                let (needed, has) = (text(resource, *needed), text(resource, *capacity));
                format!("too small: it has {resource} {has}, and {needed} is asked for")
            }
            Self::Busy { resource, needed, free } => {
                let (needed, free) = (text(resource, *needed), text(resource, *free));
                format!("busy: {resource} {free} is free, and {needed} is asked for")
            }
            other => other.to_string(),
        }
    }
}

/// What reasons are counted under, in the order in which they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind<'a> {
    TooSmall(&'a str),
    Busy(&'a str),
    /// Told apart by what they say.
    Other(&'a Rejection),
}

impl<'a> Kind<'a> {
    fn of(reason: &'a Rejection) -> Self {
        match reason {
            Rejection::TooSmall { resource, .. } => Self::TooSmall(resource),
            Rejection::Busy { resource, .. } => Self::Busy(resource),
            other => Self::Other(other),
        }
    }

    fn resource(&self) -> Option<&'a str> {
        match self {
            Self::TooSmall(resource) | Self::Busy(resource) => Some(resource),
            Self::Other(_) => None,
        }
    }
}

/// The resource that most nodes lack, and how much of it is needed. Where a node has it and is busy, that is the news;
/// where more nodes are out of the question for something else, no resource is.
fn headline<'a>(groups: &BTreeMap<Kind<'a>, Vec<&Rejection>>) -> Option<(Kind<'a>, String)> {
    let needed = |reason: &Rejection| match reason {
        Rejection::TooSmall { resource, needed, .. } | Rejection::Busy { resource, needed, .. } => {
            Some(text(resource, *needed))
        }
        _ => None,
    };
    let most = |wanted: fn(&Kind<'_>) -> bool| {
        // `rev`, because the last of several largest is taken.
        let fitting = groups.iter().rev().filter(|(kind, _)| wanted(kind));
        fitting.max_by_key(|(_, reasons)| reasons.len())
    };
    let (kind, reasons) = most(|kind| matches!(kind, Kind::Busy(_)))
        .or_else(|| most(|_| true).filter(|(kind, _)| kind.resource().is_some()))?;
    Some((*kind, needed(reasons[0])?))
}

/// How close the closest of them comes.
fn tell_most(f: &mut fmt::Formatter<'_>, reasons: &[&Rejection]) -> fmt::Result {
    let has = |reason: &&Rejection| match reason {
        Rejection::TooSmall { capacity, .. } => Some(*capacity),
        Rejection::Busy { free, .. } => Some(*free),
        _ => None,
    };
    let most = reasons.iter().filter_map(has).max();
    match (reasons[0], most) {
        (Rejection::TooSmall { resource, .. }, Some(most)) => {
            write!(f, " (the largest has {})", text(resource, most))
        }
        (Rejection::Busy { resource, .. }, Some(most)) => {
            write!(f, " (the most that is free is {})", text(resource, most))
        }
        _ => Ok(()),
    }
}

/// An amount as people write it: `1`, `0.5`, `16Gi`.
fn text(resource: &str, thousandths: u64) -> String {
    let units: &[(u64, &str)] = match resource {
        Resources::MEMORY => &[(1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"), (1, "")],
        _ => &[(1, "")],
    };
    let fitting = |(size, _): &&(u64, &str)| thousandths >= size.saturating_mul(1_000);
    let (size, unit) = units.iter().find(fitting).unwrap_or(&(1, ""));
    let one = size * 1_000;
    match (size, thousandths / one, thousandths % one) {
        (_, whole, 0) => format!("{whole}{unit}"),
        (1, whole, rest) => format!("{whole}.{rest:03}").trim_end_matches('0').to_owned() + unit,
        (_, whole, rest) => format!("{whole}.{}{unit}", rest * 10 / one),
    }
}
