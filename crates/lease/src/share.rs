//! Who should hold what, when several members stand for the same scopes.
//!
//! Pure, and deliberately modest: every member decides for itself from what it sees, nobody commands. A member
//! never has a *right* to a scope, so two members with different views can only make each other wait, never
//! both hold. Balanced means that every member holds between ⌊n/m⌋ and ⌈n/m⌉ of n scopes; a balanced state is
//! left alone, whoever holds what.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Scope, Session};

/// Where a scope stands, as far as this member knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Held by this member, or about to be.
    Mine,
    /// This member is giving it back.
    Leaving,
    Other(Session),
    /// Nobody's; `overdue` when nobody has taken it for longer than anybody should need.
    Free {
        overdue: bool,
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

/// `preferred` lists the scopes in this member's own order (see [`preference`]); `members` holds all that are
/// alive, this one included or not.
pub fn plan(
    own: Session,
    members: &BTreeSet<Session>,
    preferred: &[Scope],
    standing: impl Fn(&Scope) -> Standing,
) -> Plan {
    let members_count = members.len() + usize::from(!members.contains(&own));
    let (least, most) = (preferred.len() / members_count, preferred.len().div_ceil(members_count));
    let (mut mine, mut leaving, mut given_back) = (vec![], 0, 0);
    let (mut free, mut overdue) = (vec![], vec![]);
    let mut held: BTreeMap<Session, usize> = BTreeMap::new();
    for scope in preferred {
        match standing(scope) {
            Standing::Mine => mine.push(scope),
            Standing::Leaving => leaving += 1,
            Standing::GivenBack => given_back += 1,
            Standing::Other(session) => *held.entry(session).or_default() += 1,
            Standing::Free { overdue: true } => overdue.push(scope),
            Standing::Free { overdue: false } => free.push(scope),
            Standing::Unknown => {}
        }
    }
    // What the others still need before anybody may have one more than the least. What is being given back, or has
    // just been, will soon serve one of them.
    let wanting: Vec<usize> = members
        .iter()
        .filter(|member| **member != own)
        .map(|member| least.saturating_sub(held.get(member).copied().unwrap_or(0)))
        .collect();
    let needed: usize = wanting.iter().sum::<usize>().saturating_sub(leaving + given_back);
    let to_least = least.saturating_sub(mine.len());
    let spare = free.len().saturating_sub(needed + to_least);
    let to_most = most.saturating_sub(mine.len()).min(to_least + spare);
    let mut take: Vec<Scope> = free.iter().take(to_most).map(|scope| (*scope).clone()).collect();
    take.extend(overdue.into_iter().cloned());
    let too_many = mine.len() > most || (mine.len() > least && needed > free.len());
    let hand_over = mine.last().filter(|_| too_many && leaving == 0).map(|scope| (*scope).clone());
    Plan { take, hand_over }
}

/// A member's own order of the scopes (rendezvous hashing): different members prefer different ones, so they
/// seldom reach for the same, and a member that comes back prefers what it had before.
pub fn preference(member: &str, scopes: &[Scope]) -> Vec<Scope> {
    let mut ordered: Vec<(u64, Scope)> =
        scopes.iter().map(|scope| (weight(member, scope.as_str()), scope.clone())).collect();
    ordered.sort_by(|a, b| b.cmp(a));
    ordered.into_iter().map(|(_, scope)| scope).collect()
}

/// FNV-1a with a final mix: the same on every machine and in every release.
fn weight(member: &str, scope: &str) -> u64 {
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
