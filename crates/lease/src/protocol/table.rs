//! The scopes of one campaign, and the members it shares them with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::BootTime;

use super::seat::SaidDead;
use super::words::Campaign;
use crate::{LeaseRecord, Scope, Session};

#[derive(Debug)]
pub(super) struct Share {
    pub(super) campaign: Campaign,
    /// In this member's own order.
    pub(super) preferred: Arc<[Scope]>,
    pub(super) common_prefix: String,
    /// Scopes that another campaign of this process stands for.
    pub(super) taken: Vec<Scope>,
    /// How many seats had been removed when `taken` was last gone through.
    pub(super) removals_seen: u64,
    /// What the names of its members' seats begin with.
    pub(super) members_under: String,
    pub(super) member_seat: Scope,
    /// Which seat of its instance's that is: living processes of one name sit side by side.
    pub(super) seat_number: u32,
    pub(super) members: BTreeSet<Session>,
    /// Members that are said to have crashed, until their seat moves.
    pub(super) crashed: BTreeMap<Session, SaidDead>,
    pub(super) list_at: Option<BootTime>,
    pub(super) list_in_flight: bool,
    /// Known once, so that the first plan does not take everything.
    pub(super) listed: bool,
    /// The next listing includes the leases: nobody else will look at them.
    pub(super) list_leases: bool,
    /// Has sat among the members once.
    pub(super) seated: bool,
    pub(super) withdrawn: bool,
    /// This member has less than its share, and looks out for what others give back.
    pub(super) short: bool,
    /// Since when this member has seemed to hold more than its share.
    pub(super) surplus_since: Option<BootTime>,
    pub(super) dirty: bool,
    /// Dirty from then on.
    pub(super) plan_at: Option<BootTime>,
    /// No plan before then: where there are thousands of scopes there is as much news of them, and a plan goes through
    /// all that is free.
    pub(super) rest_until: Option<BootTime>,
}

impl Share {
    pub(super) fn may_plan(&self, stopping: bool) -> bool {
        self.listed && !self.withdrawn && !stopping
    }

    /// What is to be handed over, if it has been too much for a while. The next one follows without a pause.
    pub(super) fn once_settled(
        &mut self,
        hand_over: Option<Scope>,
        leaving: bool,
        now: BootTime,
        settling: Duration,
    ) -> Option<Scope> {
        let surplus = hand_over.is_some() || (leaving && self.surplus_since.is_some());
        self.surplus_since = surplus.then(|| self.surplus_since.unwrap_or(now));
        self.plan_at = self.surplus_since.map(|since| since + settling).filter(|at| *at > now);
        hand_over.filter(|_| self.plan_at.is_none())
    }

    /// True if they are others than before.
    pub(super) fn observe_members(&mut self, listed: &[LeaseRecord], own: Session) -> bool {
        let mut members = BTreeSet::from([own]);
        // `a` also lists the members of `a/b`.
        let component = &self.campaign.component;
        let of_component =
            |record: &&LeaseRecord| record.scope.as_member().is_some_and(|(of, _)| of == component);
        let listed = || listed.iter().filter(of_component);
        for record in listed().filter(|record| record.is_held()) {
            let session = record.holder.session;
            match self.crashed.remove(&session).and_then(|dead| dead.after_seeing(record)) {
                Some(dead) => drop(self.crashed.insert(session, dead)),
                None => drop(members.insert(session)),
            }
        }
        self.crashed.retain(|session, _| listed().any(|record| record.holder.session == *session));
        let others = members != self.members;
        self.dirty |= others;
        self.members = members;
        others
    }
}

pub(super) fn common_prefix(scopes: &[Scope]) -> String {
    let mut scopes = scopes.iter().map(Scope::as_str);
    let first = scopes.next().unwrap_or_default();
    let length = scopes.fold(first.len(), |length, other| {
        let same = first.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        length.min(same)
    });
    first.get(..length).unwrap_or_default().to_owned()
}
