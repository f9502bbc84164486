//! How a shard comes by its part of what all shards draw from, and gives it up again.
//!
//! A share is kept in the database and belongs to the shard, not to its owner of the moment. Within it an owner binds
//! without asking anybody. It asks for more when tasks wait for nothing else. When other shards want some, it gives
//! back what it does not use beyond its fair part, and where there is less than one task's worth for each shard, all
//! that its tasks leave, and then stands in line like everybody. So nobody waits for long behind somebody who merely has,
//! and nothing is ever used twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_clock::BootTime;
use tenure_model::{NodeId, Resources};
use tenure_store::{Bid, Common};

use crate::ledger::{Account, Limit};
use crate::owner::ShardOwner;
use crate::pass::PassError;

/// What an owner remembers of its trades.
#[derive(Debug, Default)]
pub(crate) struct Trades {
    /// Others want some of it, until then.
    pressed: BTreeMap<Common, BootTime>,
    /// Not to be asked for before then, unless somebody gives some back.
    patient: BTreeMap<Common, BootTime>,
    /// Somebody has given some back, and this shard is down as one that wants it.
    offered: BTreeSet<Common>,
    /// Since when there is some that nothing uses yet.
    kept: BTreeMap<Common, BootTime>,
    /// Nodes of which this shard has nothing, and until when it remembers what the others had of them.
    heard_of: BTreeMap<NodeId, BootTime>,
}

/// What tasks wait for: all of it, and the least that would let one of them go.
#[derive(Debug, Default)]
struct Want {
    all: Resources,
    one: Resources,
    /// What each of them needs, whatever else it asks for: with less, none can go.
    least: Option<Resources>,
    /// What one of them takes of this, when it waits for something else.
    beside: Resources,
}

/// How long a shard that was asked for something remembers it.
const PRESSED_FOR: Duration = Duration::from_secs(5);
/// How long a shard waits before it asks in vain once more.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long something is kept for a task that waits for something else as well. Without it, two shards with tasks that
/// need a slot and a place on a node would each give up the one while they ask for the other, and none would ever have
/// both. All ask in the same order (pool, quota, node) and keep only what comes before, so nobody waits in a circle.
const KEPT_FOR: Duration = Duration::from_secs(2);
/// How long a shard that has nothing of a node remembers how much of it was to be had. Others come and go.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// How long whoever gave something back leaves it to the others.
const AFTER_YOU: Duration = Duration::from_millis(30);

impl Trades {
    /// Another shard wants some. That is no time to ask again: two that wait would call each other for ever.
    pub fn press(&mut self, of: Common, now: BootTime) {
        self.pressed.insert(of, now + PRESSED_FOR);
    }

    /// Another shard has given some back, and this one is down as one that wants it: the time to ask again.
    pub fn offer(&mut self, of: Common, now: BootTime) {
        self.offered.insert(of.clone());
        self.reconsider(of, now);
    }

    /// There may be less of it than there was, or more.
    pub fn reconsider(&mut self, of: Common, now: BootTime) {
        self.patient.remove(&of);
        self.press(of, now);
    }

    /// When something may be asked for again.
    pub fn next(&self) -> Option<BootTime> {
        self.patient.values().min().copied()
    }

    /// Whether what a waiting task would take is kept for it.
    fn keeps(&mut self, of: &Common, now: BootTime) -> bool {
        let since = *self.kept.entry(of.clone()).or_insert(now);
        now.saturating_since(since) < KEPT_FOR
    }
}

impl ShardOwner {
    /// Brings this shard's shares to what it needs and may keep. True: tasks that waited for it may have room.
    pub async fn trade(&mut self) -> Result<bool, PassError> {
        if self.deps.shards == 1 {
            return Ok(false);
        }
        let now = self.deps.clock.boottime();
        self.trades.pressed.retain(|_, until| *until > now);
        self.trades.patient.retain(|_, until| *until > now);
        let (kept, ledger) = (&mut self.trades.kept, &self.ledger);
        kept.retain(|of, _| {
            let Account { share, used, .. } = ledger.account(of);
            exceeds(&share, &used)
        });
        self.trades.heard_of.retain(|node, until| {
            let remembered = *until > now;
            if !remembered {
                self.ledger.forget_others_on(node);
            }
            remembered
        });
        let bids = self.bids(now);
        // Asked for in this trade or not to be had: they have waited for that, and for no more.
        let settled = self.ready.free_better_nodes();
        if bids.is_empty() {
            return Ok(settled);
        }
        let guard = self.tenure.guard()?;
        let shares = self.deps.store.trade_shares(&guard, &bids).await?;
        let mut gained = false;
        for (bid, share) in bids.iter().zip(&shares) {
            let before = self.ledger.account(&share.of).share;
            self.ledger.set_share(share);
            if let Common::Node(node) = &share.of {
                match share.amount.is_empty() {
                    true => drop(self.trades.heard_of.insert(node.clone(), now + REMEMBERED_FOR)),
                    false => drop(self.trades.heard_of.remove(node)),
                }
            }
            gained |= exceeds(&share.amount, &before);
            let pause = match exceeds(&before, &bid.wish) {
                true => Some(AFTER_YOU),
                false => exceeds(&bid.wish, &share.amount).then_some(PATIENCE),
            };
            self.trades.patient.extend(pause.map(|pause| (share.of.clone(), now + pause)));
        }
        if gained {
            self.ready.free_all();
        }
        Ok(gained || settled)
    }

    fn bids(&mut self, now: BootTime) -> Vec<Bid> {
        let offered = std::mem::take(&mut self.trades.offered);
        // A pressed shard that uses what it has, no less and no more, has nothing to give back and nothing to make good.
        let uneven = self.ledger.uneven().filter(|of| self.trades.pressed.contains_key(of));
        let mut wants: BTreeMap<Common, Want> =
            uneven.chain(offered.iter().cloned()).map(|of| (of, Want::default())).collect();
        for (limit, count) in self.ready.parked() {
            if let Some((of, one)) = self.ledger.demand(limit) {
                wants.entry(of).or_default().add(one, count as u64);
            }
        }
        for (of, beside) in self.needed_beside() {
            if let Some(want) = wants.get_mut(&of).filter(|_| self.trades.keeps(&of, now)) {
                want.beside = beside;
            }
        }
        let bid = |(of, want): (Common, Want)| {
            let account = self.ledger.account(&of);
            let pressed = self.trades.pressed.contains_key(&of);
            let want = want.that_fits(&account);
            let wish = wish(&account, &want, pressed, u64::from(self.deps.shards));
            let asks = exceeds(&wish, &account.share) && !self.trades.patient.contains_key(&of);
            let least = plus(&account.used, &want.least.unwrap_or_default());
            if asks || exceeds(&account.share, &wish) {
                return Some(Bid { of, wish, least });
            }
            // Its tasks have gone elsewhere since it asked: a bid for what it has takes it off the list, or it would be told of
            // everything that anybody ever gives back.
            let as_it_is =
                || Bid { wish: account.share.clone(), least: account.used.clone(), of: of.clone() };
            offered.contains(&of).then(as_it_is)
        };
        wants.into_iter().filter_map(bid).collect()
    }
}

impl ShardOwner {
    /// What those that wait for a node, or for their tenant's quota, take of what comes before that: enough for any one.
    fn needed_beside(&self) -> BTreeMap<Common, Resources> {
        let mut needed: BTreeMap<Common, Resources> = BTreeMap::new();
        let mut need = |(of, one): (Common, Resources)| {
            let most = needed.entry(of).or_default();
            for (name, amount) in one.0 {
                let most = most.0.entry(name).or_default();
                *most = amount.max(*most);
            }
        };
        for (limit, candidate) in self.ready.first_parked() {
            let (Limit::Capacity(_) | Limit::Quota(..)) = limit else { continue };
            let Some(wish) = self.wish(candidate.run, candidate.task) else { continue };
            let before = Limit::Pool(wish.pool.clone(), wish.pool_slots);
            self.ledger.demand(&before).into_iter().for_each(&mut need);
            if let Limit::Capacity(shape) = limit {
                self.ledger.demand(&Limit::Quota(wish.tenant, *shape)).into_iter().for_each(&mut need);
            }
        }
        needed
    }
}

impl Want {
    fn add(&mut self, one: Resources, count: u64) {
        let least = self.least.get_or_insert_with(|| one.clone());
        least.0.retain(|name, _| one.0.contains_key(name));
        least.0.iter_mut().for_each(|(name, least)| *least = one.get(name).min(*least));
        for (name, amount) in one.0 {
            *self.all.0.entry(name.clone()).or_default() += amount * count;
            let least = self.one.0.entry(name).or_insert(amount);
            *least = amount.min(*least);
        }
    }

    /// Beside what this shard's own tasks use: more than there is cannot be had, and they have to end first.
    fn that_fits(self, account: &Account) -> Self {
        let least = plus(&account.used, self.least.as_ref().unwrap_or(&self.one));
        match exceeds(&least, &account.total) {
            true => Self { beside: self.beside, ..Self::default() },
            false => self,
        }
    }
}

/// What the share should be. A shard that nobody presses keeps what it has and wants what its tasks wait for. A pressed
/// one keeps what it uses and its fair part, if that is of any use; when it has nothing left to give, it asks for one
/// task's worth.
fn wish(account: &Account, want: &Want, pressed: bool, shards: u64) -> Resources {
    let Account { total, share, used } = account;
    let each = |amount: &dyn Fn(&str) -> u64| {
        Resources(total.0.keys().map(|name| (name.clone(), amount(name).min(total.get(name)))).collect())
    };
    let enough = |name: &str| used.get(name) + want.all.get(name);
    if !pressed {
        return each(&|name| enough(name).max(share.get(name)));
    }
    let fair_is_of_use = want.one.0.iter().all(|(name, one)| total.get(name) / shards >= *one);
    let fair = |name: &str| if fair_is_of_use { enough(name).min(total.get(name) / shards) } else { 0 };
    let beside = |name: &str| (used.get(name) + want.beside.get(name)).min(share.get(name));
    let kept = each(&|name| used.get(name).max(fair(name)).max(beside(name)));
    if exceeds(share, &kept) {
        return kept;
    }
    each(&|name| kept.get(name).max(used.get(name) + want.one.get(name)))
}

fn plus(one: &Resources, other: &Resources) -> Resources {
    let mut sum = one.clone();
    sum.add(other);
    sum
}

/// In any resource.
fn exceeds(one: &Resources, other: &Resources) -> bool {
    one.0.iter().any(|(name, amount)| *amount > other.get(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(count: u64) -> Resources {
        Resources::default().with("slots", count)
    }

    fn share_of(total: u64, share: u64, used: u64, waiting: u64, pressed: bool) -> u64 {
        with_beside(total, share, used, waiting, 0, pressed)
    }

    fn with_beside(total: u64, share: u64, used: u64, waiting: u64, beside: u64, pressed: bool) -> u64 {
        let account = Account { total: amount(total), share: amount(share), used: amount(used) };
        let mut want = Want { beside: amount(beside), ..Want::default() };
        if waiting > 0 {
            want.add(amount(1), waiting);
        }
        wish(&account, &want, pressed, 4).get("slots")
    }

    #[test]
    fn a_shard_alone_with_its_work_asks_for_all_it_needs_and_keeps_what_it_has() {
        assert_eq!(share_of(100, 0, 0, 7, false), 7);
        assert_eq!(share_of(100, 50, 3, 7, false), 50);
        assert_eq!(share_of(100, 50, 50, 1_000, false), 100);
    }

    #[test]
    fn a_pressed_shard_keeps_what_it_uses_and_its_fair_part_if_it_has_work_for_it() {
        assert_eq!(share_of(100, 100, 80, 1_000, true), 80);
        assert_eq!(share_of(100, 100, 10, 1_000, true), 25);
        assert_eq!(share_of(100, 40, 10, 3, true), 13);
        assert_eq!(share_of(100, 40, 10, 0, true), 10);
    }

    #[test]
    fn a_pressed_shard_with_nothing_to_give_asks_for_its_fair_part_or_for_one_more() {
        assert_eq!(share_of(100, 10, 10, 1_000, true), 25);
        assert_eq!(share_of(100, 30, 30, 1_000, true), 31);
    }

    #[test]
    fn a_pressed_shard_keeps_what_a_task_needs_that_waits_for_something_else() {
        assert_eq!(with_beside(2, 1, 0, 0, 1, true), 1);
        assert_eq!(with_beside(2, 2, 1, 0, 1, true), 2);
        assert_eq!(with_beside(9, 5, 1, 0, 2, true), 3, "and no more than that");
        assert_eq!(with_beside(2, 0, 0, 0, 1, true), 0, "it does not ask for it");
    }

    #[test]
    fn where_there_is_less_than_one_for_each_what_a_task_leaves_goes_to_the_next_in_line() {
        assert_eq!(share_of(2, 2, 1, 9, true), 1);
        assert_eq!(share_of(2, 1, 0, 9, true), 0);
        assert_eq!(share_of(2, 0, 0, 9, true), 1);
    }
}
