//! What agents say about runs that this process does not own: `tenure_store::edit` decides, this writes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tenure_model::{Ack, Report, RunKey, ShardId};
use tenure_store::{Attention, edit};

use crate::edits;
use crate::errors::Fail;
use crate::snapshot;
use crate::trail::{self, By};
use crate::writer::Tx;

/// One answer for each, in order. What happens to one of them happens to no other.
pub(crate) fn record(tx: &Tx<'_>, reports: &[Report], at: Timestamp) -> Result<Vec<Ack>, Fail> {
    let mut touched = BTreeMap::new();
    let mut acks = Vec::with_capacity(reports.len());
    for report in reports {
        acks.push(record_alone(tx, report, at, &mut touched)?);
    }
    for (run, shard) in touched {
        trail::attention(tx, shard, &Attention::Run { run })?;
    }
    Ok(acks)
}

fn record_alone(
    tx: &Tx<'_>,
    report: &Report,
    at: Timestamp,
    touched: &mut BTreeMap<RunKey, ShardId>,
) -> Result<Ack, Fail> {
    tx.prepare_cached("SAVEPOINT report")?.execute([])?;
    let recorded = record_one(tx, report, at, touched);
    if recorded.is_err() {
        tx.prepare_cached("ROLLBACK TO report")?.execute([])?;
    }
    tx.prepare_cached("RELEASE report")?.execute([])?;
    recorded.or_else(|fail| {
        let ti = report.body.ti();
        let why = fail.unreadable()?;
        // Nobody can say whether this attempt is current: the agent keeps what it knows until somebody can.
        tracing::warn!(run = ti.run.0, task = ti.task.0, why, "a report is about a row that cannot be read");
        Ok(Ack::Retry)
    })
}

fn record_one(
    tx: &Tx<'_>,
    report: &Report,
    at: Timestamp,
    touched: &mut BTreeMap<RunKey, ShardId>,
) -> Result<Ack, Fail> {
    let ti = report.body.ti();
    let Some(header) = snapshot::header(tx, ti.run)? else { return Ok(Ack::Superseded) };
    let cached = snapshot::task(tx, ti)?;
    let (edit, ack) = edit::report(&header, cached.as_ref(), report, at);
    if !edit.is_empty() {
        let actor = edit::reporter(report);
        let by = By { tenant: &header.tenant, actor: &actor, at, authority: None };
        edits::write(tx, by, &header, &edit)?;
        touched.insert(ti.run, header.shard);
    }
    Ok(ack)
}
