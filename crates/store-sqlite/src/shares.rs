//! What shards draw from together, divided between them: `tenure_store::shares` decides, this keeps the rows.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};
use tenure_model::{NodeId, PoolName, Resources, ShardId};
use tenure_store::shares::{self, Traded};
use tenure_store::{Attention, Bid, Common, PoolRecord, Share};

use crate::Office;
use crate::errors::Fail;
use crate::leases::{Authority, check_fence};
use crate::limits;
use crate::rows::{Cells, all, one};
use crate::trail;
use crate::writer::Tx;

/// One shard's part of one thing.
struct Row {
    shard: ShardId,
    amount: Resources,
    wanted: bool,
}

pub(crate) fn trade(
    tx: &Tx<'_>,
    office: &Office,
    authority: &Authority,
    bids: &[Bid],
) -> Result<Vec<Share>, Fail> {
    let scope = authority.scope.as_str();
    let Some(shard) = ShardId::of_scope(scope).filter(|shard| shard.0 < office.shards) else {
        return Err(Fail::conflict(format!("{scope} guards no shard, and only shards have shares")));
    };
    check_fence(tx, authority)?;
    bids.iter().map(|bid| trade_one(tx, shard, bid)).collect()
}

fn trade_one(tx: &Tx<'_>, shard: ShardId, bid: &Bid) -> Result<Share, Fail> {
    let (total, rows) = (total(tx, &bid.of)?, rows_of(tx, &bid.of)?);
    let (mine, theirs): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.shard == shard);
    let mine = mine.into_iter().next().map(|row| row.amount).unwrap_or_default();
    let traded = shares::trade(total.as_ref(), &mine, &sum(&theirs), bid);
    put(tx, shard, &bid.of, &traded)?;
    let holds_some = |row: &Row| traded.unmet.iter().any(|name| row.amount.get(name) > 0);
    for row in &theirs {
        let given_back = traded.gave_back && row.wanted;
        if given_back || holds_some(row) {
            trail::attention(tx, row.shard, &Attention::Shares { of: bid.of.clone(), given_back })?;
        }
    }
    Ok(Share { of: bid.of.clone(), amount: traded.amount, free: traded.free })
}

/// A share of nothing that nobody waits for needs no row.
fn put(conn: &Connection, shard: ShardId, of: &Common, traded: &Traded) -> Result<(), Fail> {
    let (key, wanted) = (of.key(), !traded.unmet.is_empty());
    if traded.amount.is_empty() && !wanted {
        let mut delete = conn.prepare_cached("DELETE FROM shares WHERE what = ?1 AND shard = ?2")?;
        delete.execute((key, shard.0))?;
        return Ok(());
    }
    let mut put = conn.prepare_cached(
        "INSERT INTO shares (what, shard, amount, wanted) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (what, shard) DO UPDATE SET amount = excluded.amount, wanted = excluded.wanted",
    )?;
    let amount = serde_json::to_string(&traded.amount).expect("amounts are plain data");
    put.execute(params![key, shard.0, amount, wanted])?;
    Ok(())
}

/// What a shard has, and what is free of it.
pub(crate) fn of_shard(conn: &Connection, shard: ShardId) -> Result<Vec<Share>, Fail> {
    let mut select = conn.prepare_cached(OF_SHARD)?;
    let held = all(&mut select, [shard.0], |cells| {
        let key = cells.take::<String>()?;
        let of = Common::from_key(&key)
            .ok_or_else(|| Fail::corrupt("a share", format!("{key:?} is unknown to this release")))?;
        Ok((of, amount(cells)?))
    })?;
    let share = |(of, amount): (Common, Resources)| {
        let free = shares::free(total(conn, &of)?.as_ref(), &sum(&rows_of(conn, &of)?));
        Ok(Share { of, amount, free })
    };
    held.into_iter().map(share).collect()
}

pub(crate) const OF_SHARD: &str = "SELECT what, amount FROM shares WHERE shard = ?1 ORDER BY what";
pub(crate) const OF_ONE: &str = "SELECT shard, amount, wanted FROM shares WHERE what = ?1 ORDER BY shard";

fn rows_of(conn: &Connection, of: &Common) -> Result<Vec<Row>, Fail> {
    all(&mut conn.prepare_cached(OF_ONE)?, [of.key()], |cells| {
        Ok(Row { shard: ShardId(cells.take()?), amount: amount(cells)?, wanted: cells.take()? })
    })
}

/// `None`: there is no such thing.
fn total(conn: &Connection, of: &Common) -> Result<Option<Resources>, Fail> {
    match of {
        Common::Pool(name) => slots(conn, name),
        Common::Node(node) => capacity(conn, node),
        Common::Quota(tenant) => Ok(limits::quota_of(conn, tenant)?.map(|quota| quota.most)),
    }
}

fn slots(conn: &Connection, name: &PoolName) -> Result<Option<Resources>, Fail> {
    let mut select = conn.prepare_cached("SELECT name, slots, description FROM pools WHERE name = ?1")?;
    let pool: Option<PoolRecord> = one(&mut select, [name.as_str()], crate::rows::pool)?;
    Ok(pool.map(|pool| pool.resources()))
}

fn capacity(conn: &Connection, node: &NodeId) -> Result<Option<Resources>, Fail> {
    let mut select = conn.prepare_cached("SELECT capacity FROM nodes WHERE node = ?1")?;
    one(&mut select, [node.as_str()], |cells| cells.json("the capacity of a node"))
}

fn amount(cells: &mut Cells<'_>) -> Result<Resources, Fail> {
    Ok(Resources(cells.json::<BTreeMap<String, u64>>("a share")?))
}

fn sum(rows: &[Row]) -> Resources {
    rows.iter().fold(Resources::default(), |mut sum, row| {
        sum.add(&row.amount);
        sum
    })
}
