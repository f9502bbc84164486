//! What shards draw from together, divided between them: `tenure_store::shares` decides, this keeps the rows.

use tenure_model::{Resources, ShardId};
use tenure_store::shares::{self, Traded};
use tenure_store::{Attention, Bid, Common, PoolRecord, Share, StoreError};

use crate::Authority;
use crate::tables::{ShareRow, Tables};

/// Whose shares a guard may trade.
pub(crate) fn trader(authority: &Authority, shards: u16) -> Result<ShardId, StoreError> {
    let scope = authority.scope.as_str();
    let shard = ShardId::of_scope(scope).filter(|shard| shard.0 < shards);
    shard.ok_or_else(|| StoreError::Conflict(format!("{scope} guards no shard, and only shards have shares")))
}

pub(crate) fn trade(tables: &mut Tables, shard: ShardId, bid: &Bid) -> Share {
    let total = total(tables, &bid.of);
    let held = tables.shares.entry(bid.of.key()).or_default();
    let mine = held.rows.get(&shard).map(|row| row.amount.clone()).unwrap_or_default();
    let mut others = held.sum.clone();
    others.subtract(&mine);
    let traded = shares::trade(total.as_ref(), &mine, &others, bid);
    let given_back = |row: &ShareRow| traded.gave_back && row.wanted;
    let holds_some = |row: &ShareRow| traded.unmet.iter().any(|name| row.amount.get(name) > 0);
    let told: Vec<(ShardId, bool)> = match traded.gave_back || !traded.unmet.is_empty() {
        false => vec![],
        true => held
            .rows
            .iter()
            .filter(|(other, row)| **other != shard && (given_back(row) || holds_some(row)))
            .map(|(other, row)| (*other, given_back(row)))
            .collect(),
    };
    put(tables, shard, &bid.of, &mine, &traded);
    for (other, given_back) in told {
        tables.attend(other, Attention::Shares { of: bid.of.clone(), given_back });
    }
    Share { of: bid.of.clone(), amount: traded.amount, free: traded.free }
}

/// A share of nothing that nobody waits for needs no row.
fn put(tables: &mut Tables, shard: ShardId, of: &Common, mine: &Resources, traded: &Traded) {
    let held = tables.shares.entry(of.key()).or_default();
    held.sum.subtract(mine);
    held.sum.add(&traded.amount);
    held.sum.0.retain(|_, amount| *amount > 0);
    let wanted = !traded.unmet.is_empty();
    if traded.amount.is_empty() && !wanted {
        held.rows.remove(&shard);
    } else {
        held.rows.insert(shard, ShareRow { amount: traded.amount.clone(), wanted });
    }
    if held.rows.is_empty() {
        tables.shares.remove(&of.key());
    }
}

/// What a shard has, and what is free of it.
pub(crate) fn of_shard(tables: &Tables, shard: ShardId) -> Vec<Share> {
    let mut shares = vec![];
    for (key, held) in &tables.shares {
        let (Some(mine), Some(of)) = (held.rows.get(&shard), Common::from_key(key)) else { continue };
        let free = shares::free(total(tables, &of).as_ref(), &held.sum);
        shares.push(Share { of, amount: mine.amount.clone(), free });
    }
    shares
}

/// `None`: there is no such thing.
fn total(tables: &Tables, of: &Common) -> Option<Resources> {
    match of {
        Common::Pool(name) => tables.pools.get(name).map(PoolRecord::resources),
        Common::Quota(tenant) => tables.quotas.get(tenant).cloned(),
        Common::Node(node) => tables.nodes.get(node).map(|record| record.capacity.clone()),
    }
}
