//! How a shard comes by its part of what all shards draw from, and gives it up again.
//!
//! A share is kept in the database and belongs to the shard, not to its owner of the moment. Within it an owner binds
//! without asking anybody. It asks for more when tasks wait for nothing else; when another shard wants some, it gives
//! back what it does not use, and while it has more than its fair part, also what its tasks leave. So nobody
//! waits for long behind somebody who merely has, and nothing is ever used twice.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_clock::BootTime;
use tenure_model::Resources;
use tenure_store::{Bid, Common};

use crate::ledger::Account;
use crate::owner::ShardOwner;
use crate::pass::PassError;

/// What an owner remembers of its trades.
#[derive(Debug, Default)]
pub(crate) struct Trades {
    /// Others want some of it, until then.
    pressed: BTreeMap<Common, BootTime>,
    /// Asked for in vain: not again before then, unless somebody gives some back.
    patient: BTreeMap<Common, BootTime>,
}

/// How long a shard that was asked for something remembers it.
const PRESSED_FOR: Duration = Duration::from_secs(5);
/// How long a shard waits before it asks in vain once more.
const PATIENCE: Duration = Duration::from_secs(2);

impl Trades {
    /// Another shard wants some, or has given some back: either way, look at it anew.
    pub fn called(&mut self, of: Common, now: BootTime) {
        self.patient.remove(&of);
        self.pressed.insert(of, now + PRESSED_FOR);
    }

    fn is_pressed(&self, of: &Common, now: BootTime) -> bool {
        self.pressed.get(of).is_some_and(|until| *until > now)
    }
}

impl ShardOwner {
    /// Brings this shard's shares to what it needs and may keep. True: tasks that waited for it may have room.
    pub async fn trade(&mut self) -> Result<bool, PassError> {
        if self.deps.shards == 1 {
            return Ok(false);
        }
        let now = self.deps.clock.boottime();
        let bids = self.bids(now);
        if bids.is_empty() {
            return Ok(false);
        }
        let guard = self.tenure.guard()?;
        let shares = self.deps.store.trade_shares(&guard, &bids).await?;
        let mut gained = false;
        for (bid, share) in bids.iter().zip(&shares) {
            let before = self.ledger.account(&share.of).share;
            self.ledger.set_share(share);
            gained |= exceeds(&share.amount, &before);
            if exceeds(&bid.wish, &share.amount) {
                self.trades.patient.insert(share.of.clone(), now + PATIENCE);
            }
        }
        if gained {
            self.ready.free_all();
        }
        Ok(gained)
    }

    fn bids(&mut self, now: BootTime) -> Vec<Bid> {
        self.trades.pressed.retain(|_, until| *until > now);
        self.trades.patient.retain(|_, until| *until > now);
        let mut wanted: BTreeMap<Common, Resources> = BTreeMap::new();
        for (limit, count) in self.ready.parked() {
            if let Some((of, one)) = self.ledger.demand(limit) {
                let all = Resources(
                    one.0.iter().map(|(name, amount)| (name.clone(), amount * count as u64)).collect(),
                );
                wanted.entry(of).or_default().add(&all);
            }
        }
        let pressed = self.trades.pressed.keys().filter(|of| !wanted.contains_key(of)).cloned();
        let pressed: Vec<Common> = pressed.collect();
        let mut bids = vec![];
        for of in pressed {
            let account = self.ledger.account(&of);
            if exceeds(&account.share, &account.used) {
                bids.push(Bid { of, wish: account.used });
            }
        }
        for (of, want) in wanted {
            let account = self.ledger.account(&of);
            let pressed = self.trades.is_pressed(&of, now);
            let wish = wish(&account, &want, pressed, u64::from(self.deps.shards));
            let less = exceeds(&account.share, &wish);
            if less || (exceeds(&wish, &account.share) && !self.trades.patient.contains_key(&of)) {
                bids.push(Bid { of, wish });
            }
        }
        bids
    }
}

/// What the share should be: enough for what waits, as far as there is any. While others wait too, a shard keeps what
/// it uses and asks for no more than its fair part.
fn wish(account: &Account, want: &Resources, pressed: bool, shards: u64) -> Resources {
    let names = account.total.0.keys();
    let of = |name: &String| {
        let (total, used) = (account.total.get(name), account.used.get(name));
        let enough = (used + want.get(name)).min(total);
        if pressed {
            used.max(enough.min(total / shards))
        } else {
            enough.max(account.share.get(name)).min(total)
        }
    };
    Resources(names.map(|name| (name.clone(), of(name))).collect())
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

    fn share_of(total: u64, share: u64, used: u64, want: u64, pressed: bool) -> u64 {
        let account = Account { total: amount(total), share: amount(share), used: amount(used) };
        wish(&account, &amount(want), pressed, 4).get("slots")
    }

    #[test]
    fn a_shard_alone_with_its_work_asks_for_all_it_needs_and_keeps_what_it_has() {
        assert_eq!(share_of(100, 0, 0, 7, false), 7);
        assert_eq!(share_of(100, 50, 3, 7, false), 50);
        assert_eq!(share_of(100, 50, 50, 1_000, false), 100);
    }

    #[test]
    fn a_pressed_shard_keeps_what_it_uses_and_asks_for_its_fair_part_at_most() {
        assert_eq!(share_of(100, 100, 80, 1_000, true), 80);
        assert_eq!(share_of(100, 100, 10, 1_000, true), 25);
        assert_eq!(share_of(100, 10, 10, 3, true), 13);
        assert_eq!(share_of(2, 2, 1, 9, true), 1, "fewer than there are shards: each gives way to the next");
    }
}
