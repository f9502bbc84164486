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
    let rows = tables.shares.entry(bid.of.key()).or_default();
    let mine = rows.get(&shard).map(|row| row.amount.clone()).unwrap_or_default();
    let theirs: Vec<(ShardId, ShareRow)> =
        rows.iter().filter(|(other, _)| **other != shard).map(|(other, row)| (*other, row.clone())).collect();
    let others = sum(theirs.iter().map(|(_, row)| row));
    let traded = shares::trade(total.as_ref(), &mine, &others, bid);
    put(tables, shard, &bid.of, &traded);
    let holds_some = |row: &ShareRow| traded.unmet.iter().any(|name| row.amount.get(name) > 0);
    for (other, row) in &theirs {
        let given_back = traded.gave_back && row.wanted;
        if given_back || holds_some(row) {
            tables.attend(*other, Attention::Shares { of: bid.of.clone(), given_back });
        }
    }
    Share { of: bid.of.clone(), amount: traded.amount, free: traded.free }
}

/// A share of nothing that nobody waits for needs no row.
fn put(tables: &mut Tables, shard: ShardId, of: &Common, traded: &Traded) {
    let rows = tables.shares.entry(of.key()).or_default();
    let wanted = !traded.unmet.is_empty();
    if traded.amount.is_empty() && !wanted {
        rows.remove(&shard);
    } else {
        rows.insert(shard, ShareRow { amount: traded.amount.clone(), wanted });
    }
    if rows.is_empty() {
        tables.shares.remove(&of.key());
    }
}

/// What a shard has, and what is free of it.
pub(crate) fn of_shard(tables: &Tables, shard: ShardId) -> Vec<Share> {
    let mut held = vec![];
    for (key, rows) in &tables.shares {
        let (Some(of), Some(mine)) = (Common::from_key(key), rows.get(&shard)) else { continue };
        let free = shares::free(total(tables, &of).as_ref(), &sum(rows.values()));
        held.push(Share { of, amount: mine.amount.clone(), free });
    }
    held
}

/// `None`: there is no such thing.
fn total(tables: &Tables, of: &Common) -> Option<Resources> {
    match of {
        Common::Pool(name) => tables.pools.get(name).map(PoolRecord::resources),
        Common::Quota(tenant) => tables.quotas.get(tenant).cloned(),
        Common::Node(node) => tables.nodes.get(node).map(|record| record.capacity.clone()),
    }
}

fn sum<'a>(rows: impl Iterator<Item = &'a ShareRow>) -> Resources {
    rows.fold(Resources::default(), |mut sum, row| {
        sum.add(&row.amount);
        sum
    })
}
