//! Reports of agents, for whoever owns the runs: any replica takes them, guarded by the attempt id.
//!
//! A whole batch is one transaction of three round trips. What somebody else has locked at that moment follows in a
//! second one, which waits; where the first fails for a reason that lies in one of the rows, each run is tried by
//! itself. So a report costs the others at most some time, and one that could not be taken is answered with «again».

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::try_join;
use jiff::Timestamp;
use tenure_lease::with_causes;
use tenure_model::{Ack, Report, RunKey, TiKey};
use tenure_store::{
    Attention, AuditEntry, CachedTi, RunEdit, RunHeader, StoreError, TiChange, TryRecord, edit,
};
use tokio_postgres::types::ToSql;

use super::Deed;
use crate::batch::{self, ResultColumns, TiColumns, TiKeys, TryColumns};
use crate::rows;
use crate::session::{READ_WRITE, Session};
use crate::{PostgresStore, errors};

macro_rules! lock_runs {
    ($wait:literal) => {
        concat!(
            "SELECT ",
            rows::run_columns!(),
            " FROM runs r WHERE r.key = ANY($1) ORDER BY r.key FOR NO KEY UPDATE",
            $wait
        )
    };
}
const LOCK_RUNS: &str = lock_runs!("");
const LOCK_FREE_RUNS: &str = lock_runs!(" SKIP LOCKED");
/// What is not there was deleted; what is there and was not locked is busy.
const THERE: &str = "SELECT r.key FROM runs r WHERE r.key = ANY($1)";
const NAMED_TIS: &str = concat!(
    "SELECT ",
    rows::ti_columns!(),
    " FROM unnest($1::bigint[], $2::integer[], $3::integer[]) AS c(run, task_no, map_index)
    JOIN task_instances t ON t.run = c.run AND t.task_no = c.task_no AND t.map_index = c.map_index"
);
/// A revision for each report that has changed something, or that somebody's plan may have overlooked.
const ADVANCE: &str = "UPDATE runs r SET revision = r.revision + c.steps, updated_at = $3
    FROM unnest($1::bigint[], $2::bigint[]) AS c(key, steps) WHERE r.key = c.key";
const LEAVE_TRAILS: &str = "INSERT INTO audit (at, tenant, dag_id, run_id, actor, entries)
    SELECT $1, r.tenant, r.dag_id, r.run_id, c.actor, c.entries
    FROM unnest($2::bigint[], $3::text[], $4::text[]) WITH ORDINALITY AS c(run, actor, entries, position)
    JOIN runs r ON r.key = c.run ORDER BY c.position";

pub(super) async fn record(
    store: &PostgresStore,
    reports: &[Report],
    at: Timestamp,
) -> Result<Vec<Ack>, StoreError> {
    let all: Vec<&Report> = reports.iter().collect();
    let mut acks: Vec<Option<Ack>> = vec![];
    // What is left for a second look, in groups that do not depend on each other.
    let rest = match round(store, &all, at, Locked::LeftAlone).await {
        Ok(answered) => {
            acks.extend(answered);
            vec![(0..all.len()).filter(|place| acks[*place].is_none()).collect()]
        }
        Err(error) if !errors::is_about_a_row(&error) => return Err(error),
        Err(error) => {
            tracing::warn!("reports are recorded one run at a time: {}", with_causes(&error));
            acks.resize(all.len(), None);
            by_run(&all)
        }
    };
    for places in rest.iter().filter(|places| !places.is_empty()) {
        let group: Vec<&Report> = places.iter().map(|place| all[*place]).collect();
        match round(store, &group, at, Locked::WaitedFor).await {
            Ok(answered) => places.iter().zip(answered).for_each(|(place, ack)| acks[*place] = ack),
            // Even if it was committed after all: the repetition will be found to be one.
            Err(error) => {
                tracing::warn!("{} reports are asked for again: {}", group.len(), with_causes(&error))
            }
        }
    }
    Ok(acks.into_iter().map(|ack| ack.unwrap_or(Ack::Retry)).collect())
}

fn by_run(reports: &[&Report]) -> Vec<Vec<usize>> {
    let mut places: BTreeMap<RunKey, Vec<usize>> = BTreeMap::new();
    for (place, report) in reports.iter().enumerate() {
        places.entry(report.body.ti().run).or_default().push(place);
    }
    places.into_values().collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Locked {
    LeftAlone,
    WaitedFor,
}

/// One transaction. `None`: somebody else has locked the run.
async fn round(
    store: &PostgresStore,
    reports: &[&Report],
    at: Timestamp,
    locked: Locked,
) -> Result<Vec<Option<Ack>>, StoreError> {
    if reports.is_empty() {
        return Ok(vec![]);
    }
    let deed = store.deed_on(Session::borrow(&store.pool, "recording reports").await?);
    let outcome = take(&deed, reports, at, locked).await;
    store.done(deed, outcome).await
}

async fn take(
    deed: &Deed<'_>,
    reports: &[&Report],
    at: Timestamp,
    locked: Locked,
) -> Result<Vec<Option<Ack>>, StoreError> {
    let mut desk = read(&deed.session, reports, locked).await?;
    let acks = reports.iter().map(|report| desk.hear(report, at)).collect();
    desk.write(deed, at).await?;
    Ok(acks)
}

async fn read(session: &Session, reports: &[&Report], locked: Locked) -> Result<Desk, StoreError> {
    let lock = match locked {
        Locked::LeftAlone => LOCK_FREE_RUNS,
        Locked::WaitedFor => LOCK_RUNS,
    };
    session.prepare(&[lock, THERE, NAMED_TIS]).await?;
    let named: BTreeSet<TiKey> = reports.iter().map(|report| report.body.ti()).collect();
    let keys: BTreeSet<i64> = named.iter().map(|ti| ti.run.0).collect();
    let keys: Vec<i64> = keys.into_iter().collect();
    let mut tis = TiKeys::default();
    named.into_iter().for_each(|ti| tis.push(ti));
    let runs: [&(dyn ToSql + Sync); 1] = [&keys];
    let tis: [&(dyn ToSql + Sync); 3] = [&tis.runs, &tis.tasks, &tis.map_indexes];
    // Each statement sees what was committed before it began: the last ones are younger than the locks.
    let (_, locked, there, tis) = try_join!(
        session.batch(READ_WRITE),
        session.rows(lock, &runs),
        session.rows(THERE, &runs),
        session.rows(NAMED_TIS, &tis),
    )?;
    let (headers, mut unreadable) = rows::readable_of_runs(&locked, rows::run_header)?;
    let (tis, bad) = rows::readable_of_runs(&tis, rows::ti)?;
    unreadable.extend(bad);
    for (run, why) in &unreadable {
        tracing::error!("reports of {run} cannot be recorded: {why}");
    }
    let key = |ti: &rows::TiRow| TiKey { run: ti.run, task: ti.cached.task, map_index: ti.cached.map_index };
    Ok(Desk {
        runs: headers.into_iter().map(|header| (header.key, header)).collect(),
        there: rows::all(&there, |cells| cells.take().map(RunKey))?.into_iter().collect(),
        unreadable: unreadable.into_keys().collect(),
        tis: tis.into_iter().map(|ti| (key(&ti), ti.cached)).collect(),
        changes: BTreeMap::new(),
        past_tries: vec![],
        results: vec![],
        trails: vec![],
    })
}

/// The rows that a batch of reports is about, and what becomes of them.
struct Desk {
    /// Those that are locked.
    runs: BTreeMap<RunKey, RunHeader>,
    there: BTreeSet<RunKey>,
    unreadable: BTreeSet<RunKey>,
    tis: HashMap<TiKey, CachedTi>,
    changes: BTreeMap<TiKey, TiChange>,
    past_tries: Vec<TryRecord>,
    results: Vec<(TiKey, serde_json::Value)>,
    /// Who said it, and what came of it: one for each report, as if each had come by itself.
    trails: Vec<(RunKey, String, Vec<AuditEntry>)>,
}

impl Desk {
    fn hear(&mut self, report: &Report, at: Timestamp) -> Option<Ack> {
        let ti = report.body.ti();
        if self.unreadable.contains(&ti.run) {
            return Some(Ack::Retry);
        }
        let Some(header) = self.runs.get(&ti.run) else {
            return (!self.there.contains(&ti.run)).then_some(Ack::Superseded);
        };
        let (edit, ack) = edit::report(header, self.tis.get(&ti), report, at);
        if !edit.is_empty() {
            self.take(edit, edit::reporter(report));
        }
        Some(ack)
    }

    /// Later reports of the batch are heard as if this one were written.
    fn take(&mut self, edit: RunEdit, actor: String) {
        for change in edit.tis {
            let cached = self.tis.get_mut(&change.ti).expect("it was heard of this row");
            cached.ti = change.to.clone();
            self.changes
                .entry(change.ti)
                .and_modify(|earlier| earlier.to = change.to.clone())
                .or_insert(change);
        }
        self.past_tries.extend(edit.past_tries);
        self.results.extend(edit.results);
        self.trails.push((edit.run, actor, edit.audit));
    }

    async fn write(&self, deed: &Deed<'_>, at: Timestamp) -> Result<(), StoreError> {
        if self.trails.is_empty() {
            return Ok(());
        }
        let mut steps: BTreeMap<RunKey, i64> = BTreeMap::new();
        self.trails.iter().for_each(|(run, ..)| *steps.entry(*run).or_default() += 1);
        let attention: Vec<_> =
            steps.keys().map(|run| (self.runs[run].shard, Attention::Run { run: *run })).collect();
        let mut tis = TiColumns::default();
        self.changes.values().for_each(|change| tis.push(change));
        let (tries, results) = (TryColumns::of(&self.past_tries), ResultColumns::of(&self.results));
        let session = &deed.session;
        let (written, moved, ..) = try_join!(
            advance(session, &steps, at),
            tis.update(session),
            tries.insert(session),
            results.put(session),
            self.leave_trails(session, at),
            deed.attention(&attention),
        )?;
        assert_eq!(written, steps.len() as u64, "runs are locked, nobody else deletes them");
        assert_eq!(moved, self.changes.len(), "task instances change only with their run locked");
        Ok(())
    }

    async fn leave_trails(&self, session: &Session, at: Timestamp) -> Result<(), StoreError> {
        let told = || self.trails.iter().filter(|(.., entries)| !entries.is_empty());
        let runs: Vec<i64> = told().map(|(run, ..)| run.0).collect();
        let actors: Vec<String> = told().map(|(_, actor, _)| rows::storable(actor)).collect();
        let entries: Vec<String> = told().map(|(.., entries)| batch::entries_text(entries)).collect();
        session.execute(LEAVE_TRAILS, &[&at, &runs, &actors, &entries]).await.map(drop)
    }
}

async fn advance(session: &Session, steps: &BTreeMap<RunKey, i64>, at: Timestamp) -> Result<u64, StoreError> {
    let keys: Vec<i64> = steps.keys().map(|run| run.0).collect();
    let steps: Vec<i64> = steps.values().copied().collect();
    session.execute(ADVANCE, &[&keys, &steps, &at]).await
}
