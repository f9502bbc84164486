//! Who should hold what, when several members stand for the same scopes.
//!
//! Pure, and deliberately modest: every member decides for itself from what it sees, nobody commands. A member
//! never has a *right* to a scope, so two members with different views can only make each other wait, never
//! both hold. Balanced means that every member holds between ⌊n/m⌋ and ⌈n/m⌉ of n scopes; a balanced state is
//! left alone, whoever holds what.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use tenure_clock::BootTime;

use crate::{Scope, Session};

/// Where a scope stands, as far as this member knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Held by this member, or about to be.
    Mine,
    /// This member is giving it back.
    Leaving,
    Other(Session),
    /// Nobody's.
    Free {
        since: BootTime,
    },
    /// Nobody's, as far as is known, and not to be taken yet: others come first.
    GivenBack,
    /// Not known yet.
    Unknown,
}

/// What one member should do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub take: Vec<Scope>,
    /// One at a time: the next one is planned when this one is gone.
    pub hand_over: Option<Scope>,
}

/// How all scopes of a campaign stand, counted. Lists are in this member's own order (see [`preference`]).
#[derive(Clone, Debug, Default)]
pub struct Tally<'a> {
    pub scopes: usize,
    pub mine: usize,
    /// The last of mine.
    pub least_preferred: Option<&'a Scope>,
    pub leaving: usize,
    pub given_back: usize,
    /// By others.
    pub held: Cow<'a, BTreeMap<Session, usize>>,
    pub free: Vec<&'a Scope>,
    /// Free, and nobody has taken it for longer than anybody should need.
    pub overdue: Vec<&'a Scope>,
}

/// `members` holds all that are alive, this one included or not.
pub fn plan(own: Session, members: &BTreeSet<Session>, tally: &Tally<'_>) -> Plan {
    let Tally { scopes, mine, least_preferred, leaving, given_back, held, free, overdue } = tally;
    let members_count = members.len() + usize::from(!members.contains(&own));
    let (least, most) = (scopes / members_count, scopes.div_ceil(members_count));
    // What the others still need before anybody may have one more than the least. What is being given back, or has
    // just been, will soon serve one of them.
    let others = members.iter().filter(|member| **member != own);
    let wanting = others.map(|member| least.saturating_sub(held.get(member).copied().unwrap_or(0)));
    let needed: usize = wanting.sum::<usize>().saturating_sub(leaving + given_back);
    let to_least = least.saturating_sub(*mine);
    let spare = free.len().saturating_sub(needed + to_least);
    let to_most = most.saturating_sub(*mine).min(to_least + spare);
    let mut take: Vec<Scope> = free.iter().take(to_most).map(|scope| (*scope).clone()).collect();
    take.extend(overdue.iter().map(|scope| (*scope).clone()));
    let too_many = *mine > most || (*mine > least && needed > free.len());
    let hand_over = least_preferred.filter(|_| too_many && *leaving == 0).cloned();
    Plan { take, hand_over }
}

/// A member's own order of the scopes (rendezvous hashing): different members prefer different ones, so they
/// seldom reach for the same, and a member that comes back prefers what it had before.
pub fn preference(member: &str, scopes: &[Scope]) -> Vec<Scope> {
    let mut ordered: Vec<(u64, Scope)> =
        scopes.iter().map(|scope| (weight(member, scope), scope.clone())).collect();
    ordered.sort_by(|a, b| b.cmp(a));
    ordered.into_iter().map(|(_, scope)| scope).collect()
}

/// How much a member prefers a scope. FNV-1a with a final mix: the same on every machine and in every release.
pub fn weight(member: &str, scope: &Scope) -> u64 {
    let scope = scope.as_str();
    let bytes = member.bytes().chain([0]).chain(scope.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests;
