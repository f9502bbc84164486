//! The promises, checked against what a step has asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt;
use tenure_clock::{BootTime, Clock};
use tenure_lease::{Effect, Epoch, FenceStore, LeaseStore, Scope, Session, Term};

use super::world::World;

/// What has been seen of all terms.
#[derive(Debug, Default)]
pub struct Ledger {
    highest: BTreeMap<Scope, Epoch>,
    /// Terms that others may have been told to be over while they were not: their records were removed.
    pub removed: BTreeSet<Term>,
    /// Processes that others were told to be dead while they lived.
    pub slandered: BTreeSet<Session>,
}

impl World {
    /// Before the effects of a step are carried out.
    pub fn check_effects(&self, index: usize, effects: &[Effect]) {
        let node = self.node(index);
        for effect in effects {
            match effect {
                Effect::Acquire(request) => {
                    let contested = request.scope.as_member().is_none();
                    if contested
                        && !node.campaign.is_some_and(|id| node.listed.contains(&id))
                        && node.stands()
                    {
                        self.fail(format!(
                            "node {index} takes {} without having looked around",
                            request.scope
                        ));
                    }
                }
                Effect::Renew(claims) => {
                    if node.calls.renewing.is_some() {
                        self.fail(format!("node {index} has two renewals in flight"));
                    }
                    let covered = |scope: &Scope| claims.iter().any(|claim| claim.scope == *scope);
                    let working = node.work.iter().filter(|(_, work)| !work.resigned);
                    let forgotten = working.map(|(scope, _)| scope).find(|scope| !covered(scope));
                    let ended = |scope: &Scope| effects.iter().any(|e| ends(e, scope));
                    if let Some(scope) = forgotten.filter(|scope| !ended(scope)) {
                        self.fail(format!(
                            "node {index} does not renew {scope}, which is being worked under"
                        ));
                    }
                }
                Effect::Release(claim) => {
                    if node.calls.renewing.as_ref().is_some_and(|r| r.get(&claim.scope) == Some(&claim.term))
                    {
                        self.fail(format!("node {index} releases {} during its renewal", claim.scope));
                    }
                    let worked = node.work.get(&claim.scope).is_some_and(|work| work.term == claim.term);
                    if worked && !effects.iter().any(|e| ends(e, &claim.scope)) {
                        self.fail(format!("node {index} releases {} before its authority ends", claim.scope));
                    }
                }
                Effect::Elect { campaign, record, .. } => {
                    let scope = &record.scope;
                    if node.stop.is_some() || node.withdrawn.contains(campaign) {
                        self.fail(format!("node {index} is elected for {scope} after it has withdrawn"));
                    }
                    if node.work.contains_key(scope) {
                        self.fail(format!("node {index} is elected for {scope} while it leads it"));
                    }
                }
                _ => {}
            }
        }
    }

    /// A step has settled everything that was due: being woken at once again would be spinning.
    pub fn check_wake(&self, index: usize, wake: Option<BootTime>) {
        let now = self.clock.boottime();
        if wake.is_some_and(|at| at <= now) {
            self.fail(format!("node {index} wants to be woken in the past: it would spin"));
        }
        let node = self.node(index);
        let held = !node.work.is_empty() || (node.stands() && node.stood);
        if held && wake.is_none() && !node.is_stopped() && node.calls.is_idle() {
            self.fail(format!("node {index} sleeps for ever"));
        }
    }

    pub fn check_elected(&mut self, index: usize, scope: &Scope, term: Term, epoch: Epoch) {
        let highest = self.ledger.highest.get(scope).copied();
        match highest {
            // The answer that made it leader was late, and its lease was taken away meanwhile.
            Some(highest) if highest > epoch && self.is_excused(index, term) => {
                self.check_fenced(scope, epoch, term);
            }
            Some(highest) if highest >= epoch => {
                self.fail(format!("{scope} is led at {epoch}, after {highest}"));
            }
            _ => drop(self.ledger.highest.insert(scope.clone(), epoch)),
        }
        let fence = self.store.fence(scope).now_or_never().expect("at once").expect("memory does not fail");
        let (fenced, by) = fence.unwrap_or_else(|| self.fail(format!("{scope} is led without a fence")));
        if (fenced, by) != (epoch, term) && !self.is_excused(index, term) {
            self.fail(format!("{scope} is led at {epoch}, and its fence is at {fenced}"));
        }
        if fenced < epoch {
            self.fail(format!("{scope} is led at {epoch}, above its fence at {fenced}"));
        }
    }

    /// Whose validity moved must hold the lease for a margin longer, and be alone.
    pub fn check_validity(&self, index: usize, scope: &Scope) {
        let now = self.clock.boottime();
        let Some(work) = self.node(index).leads(scope, now) else { return };
        if !self.is_excused(index, work.term) {
            let record = self.store.find_lease(scope).now_or_never().expect("at once").expect("no failure");
            let record = record.unwrap_or_else(|| self.fail(format!("{scope} is led without a lease")));
            if record.term != work.term || record.released {
                self.fail(format!(
                    "node {index} leads {scope} at {}, and {} has it",
                    work.epoch, record.epoch
                ));
            }
            let margin = self.node(index).rules.margin;
            if now + record.remaining < work.valid_until + margin {
                let trusted = work.valid_until.saturating_since(now);
                let left = record.remaining;
                self.fail(format!(
                    "node {index} trusts {scope} for {trusted:?}; others see it end in {left:?}"
                ));
            }
        }
        self.check_alone(scope);
    }

    /// Of several valid terms all but the newest must have been taken away by mistake, and be fenced.
    pub fn check_alone(&self, scope: &Scope) {
        let now = self.clock.boottime();
        let nodes = self.nodes.iter().enumerate().filter_map(|(index, node)| Some((index, node.as_ref()?)));
        let mut valid: Vec<(Epoch, usize, Term)> = nodes
            .filter_map(|(index, node)| node.leads(scope, now).map(|w| (w.epoch, index, w.term)))
            .collect();
        valid.sort();
        valid.pop();
        for (epoch, index, term) in valid {
            if !self.is_excused(index, term) {
                self.fail(format!("{scope} has two owners; node {index} has not lost {epoch}"));
            }
            self.check_fenced(scope, epoch, term);
        }
    }

    fn check_fenced(&self, scope: &Scope, epoch: Epoch, term: Term) {
        let fence = self.store.fence(scope).now_or_never().expect("at once").expect("no failure");
        if fence.is_none_or(|(current, by)| current <= epoch || by == term) {
            self.fail(format!("{scope} has two owners, and {epoch} may still write"));
        }
    }

    /// A fence has moved: nobody who holds the lease may be shut out by it.
    pub fn check_shut_out(&self, scope: &Scope, by: Term) {
        let now = self.clock.boottime();
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(work) = node.as_ref().and_then(|node| node.leads(scope, now)) else { continue };
            if work.term != by && !self.is_excused(index, work.term) {
                self.fail(format!("node {index} leads {scope}, and a stranger's fence shuts it out"));
            }
        }
    }

    pub fn is_excused(&self, index: usize, term: Term) -> bool {
        let session = self.node(index).session();
        self.ledger.removed.contains(&term) || self.ledger.slandered.contains(&session)
    }

    /// Nothing is ownerless, and nobody has more than the share.
    pub fn check_even(&self, after: Duration) {
        let now = self.clock.boottime();
        let standing: Vec<usize> =
            (0..self.nodes.len()).filter(|i| self.nodes[*i].as_ref().is_some_and(|n| n.stands())).collect();
        let held = |index: usize, scope: &Scope| self.node(index).leads(scope, now).is_some();
        if let Some(orphan) = self.scopes.iter().find(|s| !standing.iter().any(|i| held(*i, s))) {
            self.fail(format!("{orphan} has no owner {after:?} after the trouble"));
        }
        let (n, m) = (self.scopes.len(), standing.len());
        let counts: Vec<usize> =
            standing.iter().map(|i| self.scopes.iter().filter(|s| held(*i, s)).count()).collect();
        if !counts.iter().all(|count| (n / m..=n.div_ceil(m)).contains(count)) {
            self.fail(format!("{n} scopes are shared out as {counts:?} {after:?} after the trouble"));
        }
    }

    pub fn fail(&self, why: String) -> ! {
        let (kind, seed) = (self.kind.name, self.seed);
        let at = self.clock.boottime().saturating_since(BootTime::since_boot(Duration::ZERO));
        panic!(
            "seed {seed} at {at:?}: {why}\nreplay: TENURE_SIM_SEED={seed} cargo nextest run -p tenure-lease \
             --test simulation --no-capture {kind}"
        )
    }
}

fn ends(effect: &Effect, scope: &Scope) -> bool {
    matches!(effect, Effect::End(s) | Effect::Trip { scope: s, .. } | Effect::Settle { scope: s, .. } if s == scope)
}

impl super::node::InFlight {
    fn is_idle(&self) -> bool {
        let quiet = self.changing.is_empty() && self.looking.is_empty() && self.listing.is_empty();
        quiet && self.renewing.is_none()
    }
}
