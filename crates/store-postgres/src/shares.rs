//! Shares of pools, quotas and nodes, traded under the fence.
//!
//! The rows of what is traded are locked in order of their names, so that two owners that bid for the same see each
//! other, and none waits in a circle. A change of what there is (a pool's slots, a node's capacity) waits too.

use std::collections::BTreeMap;

use futures::try_join;
use tenure_lease::EpochGuard;
use tenure_model::{Resources, ShardId};
use tenure_store::{Attention, Bid, Common, NodeRecord, PoolRecord, Quota, Share, StoreError, shares};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::deed::{self, Deed};
use crate::fence::FENCE;
use crate::rows::{self, Cells};
use crate::session::{READ_COMMITTED, Session};

const LOCK_POOLS: &str = "SELECT name, slots, description FROM pools WHERE name = ANY($1)
    ORDER BY name FOR NO KEY UPDATE";
const LOCK_NODES: &str = concat!(
    "SELECT ",
    rows::node_columns!(),
    " FROM nodes WHERE node = ANY($1) ORDER BY node FOR NO KEY UPDATE"
);
const LOCK_QUOTAS: &str = "SELECT tenant, most FROM quotas WHERE tenant = ANY($1)
    ORDER BY tenant FOR NO KEY UPDATE";
pub(crate) const HELD: &str = "SELECT what, shard, amount, wanted FROM shares WHERE what = ANY($1)";
const PUT: &str = "INSERT INTO shares (what, shard, amount, wanted)
    SELECT c.what, $1, c.amount, c.wanted FROM unnest($2::text[], $3::text[], $4::text[]) AS c(what, amount, wanted)
    ON CONFLICT (what, shard) DO UPDATE SET amount = excluded.amount, wanted = excluded.wanted";
const FORGET: &str = "DELETE FROM shares WHERE shard = $1 AND what = ANY($2)";
/// Everybody's, of what the shard has some of.
pub(crate) const OF_SHARD: &str =
    "SELECT s.what, s.shard, s.amount, s.wanted FROM shares o JOIN shares s USING (what)
    WHERE o.shard = $1 ORDER BY s.what, s.shard";
/// These three: what there is of what the shard has some of. A name follows `pool/`, `quota/` or `node/`.
pub(crate) const POOLS_OF_SHARD: &str = "SELECT p.name, p.slots, p.description
    FROM shares o JOIN pools p ON p.name = substr(o.what, 6)
    WHERE o.shard = $1 AND o.what LIKE 'pool/%' ORDER BY p.name";
pub(crate) const QUOTAS_OF_SHARD: &str = "SELECT q.tenant, q.most
    FROM shares o JOIN quotas q ON q.tenant = substr(o.what, 7) COLLATE \"default\"
    WHERE o.shard = $1 AND o.what LIKE 'quota/%' ORDER BY q.tenant";
pub(crate) const NODES_OF_SHARD: &str = concat!(
    "SELECT ",
    rows::node_columns!(),
    " FROM shares o JOIN nodes n ON n.node = substr(o.what, 6)
    WHERE o.shard = $1 AND o.what LIKE 'node/%' AND (",
    rows::listed!(),
    ") ORDER BY n.node"
);

pub(crate) async fn trade(
    store: &PostgresStore,
    guard: &EpochGuard<'_>,
    bids: &[Bid],
) -> Result<Vec<Share>, StoreError> {
    let shard = store.guarded_shard(guard)?;
    let deed = store.deed_on(Session::borrow(&store.pool, "trading shares").await?);
    let outcome = write(&deed, guard, shard, bids).await;
    store.done(deed, outcome).await
}

async fn write(
    deed: &Deed<'_>,
    guard: &EpochGuard<'_>,
    shard: ShardId,
    bids: &[Bid],
) -> Result<Vec<Share>, StoreError> {
    let mut market = lock(deed, guard, bids).await?;
    let mut noticed = vec![];
    let answers = bids.iter().map(|bid| market.trade(shard, bid, &mut noticed)).collect();
    market.save(&deed.session, shard).await?;
    noticed.sort_by_key(|Noticed { shard, of, given_back }| (of.key(), *shard, *given_back));
    noticed.dedup();
    let told = |Noticed { shard, of, given_back }| (shard, Attention::Shares { of, given_back });
    let noticed: Vec<_> = noticed.into_iter().map(told).collect();
    deed.attention(&noticed).await?;
    Ok(answers)
}

async fn lock(deed: &Deed<'_>, guard: &EpochGuard<'_>, bids: &[Bid]) -> Result<Market, StoreError> {
    let session = &deed.session;
    let locks = [LOCK_POOLS, LOCK_QUOTAS, LOCK_NODES];
    session.prepare(&[FENCE, HELD, PUT, deed::LEAVE_ATTENTION, deed::NOTIFY]).await?;
    session.prepare(&locks).await?;
    let (mut pools, mut quotas, mut nodes) = (vec![], vec![], vec![]);
    for bid in bids {
        match &bid.of {
            Common::Pool(name) => pools.push(name.as_str()),
            Common::Quota(tenant) => quotas.push(tenant.as_str()),
            Common::Node(node) => nodes.push(node.as_str()),
        }
    }
    let keys: Vec<String> = bids.iter().map(|bid| bid.of.key()).collect();
    let scope: [&(dyn ToSql + Sync); 1] = [&guard.scope().as_str()];
    let pools: [&(dyn ToSql + Sync); 1] = [&pools];
    let quotas: [&(dyn ToSql + Sync); 1] = [&quotas];
    let nodes: [&(dyn ToSql + Sync); 1] = [&nodes];
    let keys: [&(dyn ToSql + Sync); 1] = [&keys];
    // The order of sending: `try_join!` polls from top to bottom.
    let (_, fence, pools, quotas, nodes, held) = try_join!(
        session.batch(READ_COMMITTED),
        session.rows(FENCE, &scope),
        session.rows(LOCK_POOLS, &pools),
        session.rows(LOCK_QUOTAS, &quotas),
        session.rows(LOCK_NODES, &nodes),
        session.rows(HELD, &keys),
    )?;
    deed.store.check_fence(&fence, guard)?;
    let (pools, quotas) = (rows::all(&pools, rows::pool)?, rows::all(&quotas, rows::quota)?);
    let totals = totals(&pools, &quotas, &rows::all(&nodes, rows::node)?);
    let mut market = Market { totals, held: BTreeMap::new(), changed: BTreeMap::new() };
    for (key, shard, share) in rows::all(&held, stored)? {
        market.held.entry(key).or_default().insert(shard, share);
    }
    Ok(market)
}

/// What is traded, while it is locked.
struct Market {
    totals: BTreeMap<String, Resources>,
    held: BTreeMap<String, BTreeMap<ShardId, Stored>>,
    /// By the shard that trades; `false`: nothing is left to be kept.
    changed: BTreeMap<String, bool>,
}

impl Market {
    fn trade(&mut self, shard: ShardId, bid: &Bid, noticed: &mut Vec<Noticed>) -> Share {
        let key = bid.of.key();
        let held = self.held.entry(key.clone()).or_default();
        let mine = held.remove(&shard).unwrap_or_default();
        let total = self.totals.get(&key);
        let traded = shares::trade(total, &mine.amount, &sum(held), bid);
        let holds = |other: &Stored| traded.unmet.iter().any(|name| other.amount.get(name) > 0);
        let lacks =
            |other: &Stored| other.wanted.0.iter().any(|(name, wanted)| *wanted > other.amount.get(name));
        for (shard, other) in held.iter() {
            let given_back = traded.gave_back && lacks(other);
            if given_back || holds(other) {
                noticed.push(Noticed { shard: *shard, of: bid.of.clone(), given_back });
            }
        }
        let kept = total.is_some() && !(traded.amount.is_empty() && bid.wish.is_empty());
        if kept {
            let stored = Stored { amount: traded.amount.clone(), wanted: bid.wish.clone() };
            held.insert(shard, stored);
        }
        self.changed.insert(key, kept);
        Share { of: bid.of.clone(), amount: traded.amount, free: traded.free }
    }

    async fn save(&self, session: &Session, shard: ShardId) -> Result<(), StoreError> {
        let number = i32::from(shard.0);
        let text = |amount: &Resources| serde_json::to_string(amount).expect("amounts are plain data");
        let (mut keys, mut amounts, mut wanted, mut forgotten) = (vec![], vec![], vec![], vec![]);
        for (key, kept) in &self.changed {
            if !kept {
                forgotten.push(key.as_str());
                continue;
            }
            let stored = &self.held[key][&shard];
            keys.push(key.as_str());
            amounts.push(text(&stored.amount));
            wanted.push(text(&stored.wanted));
        }
        if !keys.is_empty() {
            session.execute(PUT, &[&number, &keys, &amounts, &wanted]).await?;
        }
        if !forgotten.is_empty() {
            session.execute(FORGET, &[&number, &forgotten]).await?;
        }
        Ok(())
    }
}

/// Whom a trade concerns.
#[derive(Debug, PartialEq, Eq)]
struct Noticed {
    shard: ShardId,
    of: Common,
    given_back: bool,
}

#[derive(Clone, Debug, Default)]
struct Stored {
    amount: Resources,
    wanted: Resources,
}

fn stored(cells: &mut Cells<'_>) -> Result<(String, ShardId, Stored), StoreError> {
    let (key, shard) = (cells.take()?, ShardId(cells.number()?));
    Ok((key, shard, Stored { amount: cells.json("a share")?, wanted: cells.json("a bid")? }))
}

fn sum(held: &BTreeMap<ShardId, Stored>) -> Resources {
    held.values().fold(Resources::default(), |mut sum, stored| {
        sum.add(&stored.amount);
        sum
    })
}

/// What there is to share, by key.
pub(crate) fn totals(
    pools: &[PoolRecord],
    quotas: &[Quota],
    nodes: &[NodeRecord],
) -> BTreeMap<String, Resources> {
    let pools = pools.iter().map(|pool| (Common::Pool(pool.name.clone()).key(), pool.resources()));
    let nodes = nodes.iter().map(|node| (Common::Node(node.node.clone()).key(), node.capacity.clone()));
    let quotas = quotas.iter().map(|quota| (Common::Quota(quota.tenant.clone()).key(), quota.most.clone()));
    pools.chain(quotas).chain(nodes).collect()
}

/// A shard's shares from the rows of [`OF_SHARD`]. Of what is gone nobody has any.
pub(crate) fn of_shard(rows: &[Row], shard: ShardId, totals: BTreeMap<String, Resources>) -> Vec<Share> {
    let mut held: BTreeMap<String, BTreeMap<ShardId, Stored>> = BTreeMap::new();
    for (key, holder, share) in rows::readable(rows, "a share", stored) {
        held.entry(key).or_default().insert(holder, share);
    }
    let share = |(key, held): (String, BTreeMap<ShardId, Stored>)| {
        let (of, total) = (Common::from_key(&key)?, totals.get(&key)?);
        let free = shares::free(Some(total), &sum(&held));
        Some(Share { of, amount: held.get(&shard)?.amount.clone(), free })
    };
    held.into_iter().filter_map(share).collect()
}
