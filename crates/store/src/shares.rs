//! How what all shards draw from is divided, decided once for every store.
//!
//! Pure: what there is, what the shards have and one shard's wish in, its new share out. Promises: the shares of all
//! shards together never grow beyond what there is; a share never grows beyond its wish nor shrinks below it; what
//! a shard has is never taken from it, not even when there is less than there was.

use std::collections::BTreeSet;

use tenure_model::Resources;

use crate::{Bid, Common, PoolRecord};

/// What a bid comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Traded {
    /// The shard's share from now on, without zeros.
    pub amount: Resources,
    /// In nobody's share afterwards, without zeros.
    pub free: Resources,
    /// Of which there was not enough: whoever holds some should hear of it.
    pub unmet: BTreeSet<String>,
    /// Whoever still wants some should hear of it.
    pub gave_back: bool,
}

/// One shard's bid, when there is `total`, it has `mine` and the other shards together have `others`.
/// `None`: there is no such pool or node, so nobody has a share of it.
pub fn trade(total: Option<&Resources>, mine: &Resources, others: &Resources, bid: &Bid) -> Traded {
    let Some(total) = total else {
        let (amount, free, unmet) = Default::default();
        return Traded { amount, free, unmet, gave_back: false };
    };
    let unused = |name: &str| total.get(name).saturating_sub(others.get(name));
    let mut traded = Traded {
        amount: Resources::default(),
        free: Resources::default(),
        unmet: BTreeSet::new(),
        gave_back: false,
    };
    let Bid { wish, least, .. } = bid;
    let within_reach = |name: &str| mine.get(name).max(unused(name));
    let of_use = least.0.iter().all(|(name, least)| within_reach(name) >= *least);
    let names: BTreeSet<&String> = total.0.keys().chain(mine.0.keys()).chain(wish.0.keys()).collect();
    for name in names {
        let (had, wished) = (mine.get(name), wish.get(name));
        let has = wished.min(if of_use { within_reach(name) } else { had });
        if within_reach(name) < wished {
            traded.unmet.insert(name.clone());
        }
        traded.gave_back |= has < had;
        put(&mut traded.amount, name, has);
        put(&mut traded.free, name, unused(name).saturating_sub(has));
    }
    traded
}

/// What is in nobody's share, without zeros.
pub fn free(total: Option<&Resources>, held: &Resources) -> Resources {
    let mut free = Resources::default();
    for (name, amount) in total.into_iter().flat_map(|total| &total.0) {
        put(&mut free, name, amount.saturating_sub(held.get(name)));
    }
    free
}

fn put(resources: &mut Resources, name: &str, amount: u64) {
    if amount > 0 {
        resources.0.insert(name.to_owned(), amount);
    }
}

impl PoolRecord {
    /// A pool's only resource, in thousandths like every other.
    pub const SLOTS: &'static str = "slots";

    /// What there is to share.
    pub fn resources(&self) -> Resources {
        Resources::default().with(Self::SLOTS, u64::from(self.slots) * 1_000)
    }
}

impl Common {
    /// Its name in a table of shares: `pool/gpu`, `node/n1`, `quota/fraud`.
    pub fn key(&self) -> String {
        match self {
            Self::Pool(name) => format!("pool/{name}"),
            Self::Node(node) => format!("node/{node}"),
            Self::Quota(tenant) => format!("quota/{tenant}"),
        }
    }

    pub fn from_key(key: &str) -> Option<Self> {
        match key.split_once('/')? {
            ("pool", name) => Some(Self::Pool(name.into())),
            ("node", node) => Some(Self::Node(node.into())),
            ("quota", tenant) => Some(Self::Quota(tenant.into())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Resources {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').expect("name=amount"));
        Resources(pairs.map(|(name, amount)| (name.to_owned(), amount.parse().expect("a number"))).collect())
    }

    fn shown(resources: &Resources) -> String {
        resources.0.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    fn bid(wish: &Resources, least: &Resources) -> Bid {
        Bid { of: Common::Node("n".into()), wish: wish.clone(), least: least.clone() }
    }

    /// `total; mine; others; wish`, and perhaps `least` → `amount; free; unmet`, and whether some was given back.
    fn check(given: &str, expected: &str, gave_back: bool) {
        let given: Vec<Resources> = given.split(';').chain(std::iter::once("")).map(of).collect();
        let [total, mine, others, wish, least, ..] = &given[..] else { panic!("four of them") };
        let traded = trade(Some(total), mine, others, &bid(wish, least));
        let unmet = traded.unmet.iter().cloned().collect::<Vec<_>>().join(" ");
        let told = format!("{}; {}; {unmet}", shown(&traded.amount), shown(&traded.free));
        assert_eq!((told.as_str(), traded.gave_back), (expected, gave_back));
        let mut held = others.clone();
        held.add(&traded.amount);
        let left = free(Some(total), &held);
        assert_eq!(traded.free, left, "free is what nobody has");
        for (name, has) in &traded.amount.0 {
            assert!(
                *has <= mine.get(name) || has + others.get(name) <= total.get(name),
                "{name} is overdrawn"
            );
        }
    }

    #[test]
    fn a_bid_is_met_as_far_as_what_is_free_allows() {
        check("cpu=8; ; ; cpu=3", "cpu=3; cpu=5; ", false);
        check("cpu=8; cpu=3; cpu=4; cpu=6", "cpu=4; ; cpu", false);
        check("cpu=8 tasks=10; ; cpu=8; cpu=1 tasks=2", "tasks=2; tasks=8; cpu", false);
        check("cpu=8; ; ; gpu=1", "; cpu=8; gpu", false);
    }

    #[test]
    fn less_than_is_of_use_is_left_to_others() {
        check("cpu=8; ; cpu=7; cpu=4; cpu=2", "; cpu=1; cpu", false);
        check("cpu=8; ; cpu=6; cpu=4; cpu=2", "cpu=2; ; cpu", false);
        check("cpu=8; cpu=1; cpu=6; cpu=4; cpu=3", "cpu=1; cpu=1; cpu", false);
        check("cpu=8 tasks=3; ; tasks=3; cpu=2 tasks=1; cpu=2 tasks=1", "; cpu=8; tasks", false);
        check("cpu=8 tasks=3; cpu=4; tasks=3; cpu=2 tasks=1; tasks=1", "cpu=2; cpu=6; tasks", true);
    }

    #[test]
    fn a_lower_wish_gives_back() {
        check("cpu=8; cpu=6; cpu=2; cpu=1", "cpu=1; cpu=5; ", true);
        check("cpu=8; cpu=6; cpu=2; ", "; cpu=6; ", true);
        check("cpu=8 tasks=9; cpu=6; cpu=2; cpu=1 tasks=1", "cpu=1 tasks=1; cpu=5 tasks=8; ", true);
    }

    #[test]
    fn what_a_shard_has_is_not_taken_when_there_is_less_than_there_was() {
        check("cpu=4; cpu=6; cpu=2; cpu=6", "cpu=6; ; ", false);
        check("cpu=4; cpu=6; cpu=2; cpu=7", "cpu=6; ; cpu", false);
        check("cpu=4; cpu=6; cpu=2; cpu=3", "cpu=3; ; ", true);
    }

    #[test]
    fn of_what_is_not_there_nobody_has_a_share() {
        let traded = trade(None, &of("cpu=1"), &of("cpu=1"), &bid(&of("cpu=5"), &of("")));
        assert_eq!((traded.amount, traded.free, traded.unmet.len()), (of(""), of(""), 0));
    }

    #[test]
    fn a_key_is_read_back_and_a_name_may_hold_a_slash() {
        let all = [Common::Pool("gpu".into()), Common::Node("rack/7".into()), Common::Quota("fraud".into())];
        for common in all {
            assert_eq!(Common::from_key(&common.key()), Some(common));
        }
        assert_eq!(Common::from_key("shelf/1"), None);
    }
}
