//! What is left of a world, in the words of the judge.

use std::time::Duration;

use tenure_judge::history::{
    Entry, Fault, FenceRow, History, Limits, Place, Room, RunName, RunRow, Schedule, TaskRow, TermRow,
    TrailRow, TryRow,
};
use tenure_lease::{Epoch, FenceStore, HISTORY, LeaseStore, PastTerm, Scope};
use tenure_model::{RunType, ShardId, TenantId};
use tenure_store::{AuditEntry, CONTROLLER_SCOPE, Paging, PoolRecord, TiQuery, Views};

use crate::workload::Workload;
use crate::world::World;

/// Claims are waited for anew by each owner that takes over.
const UNCLAIMED: Duration = Duration::from_secs(900);
/// Less than the 90 s after which nodes are given up, by the two heartbeats that an owner may have missed.
const SILENCE: Duration = Duration::from_secs(75);
const TICK_LATENESS: Duration = Duration::from_secs(600);

pub async fn history(world: &World, workload: &Workload, schedule: Schedule, shards: u16) -> History {
    let store = &world.store;
    let rooms = rooms(world).await;
    let runs = store.all_runs();
    let mut tasks = vec![];
    let mut tries = vec![];
    for (run, _, _) in &runs {
        let name = RunName::new(run.dag.as_str(), run.run_id.as_str());
        let tenant = TenantId::default_tenant();
        let mut query = TiQuery::of_run(tenant.clone(), run.dag.clone(), run.run_id.clone());
        query.paging = Paging { limit: u32::MAX, ..Paging::default() };
        for ti in store.list_tis(&query).await.expect("memory answers").items {
            let of_task =
                store.list_tries(&tenant, &run.dag, &run.run_id, &ti.task_id, ti.key.map_index).await;
            for past in of_task.expect("memory answers").into_iter().filter(|past| !past.current) {
                tries.push(TryRow {
                    run: name.clone(),
                    task: ti.task_id.to_string(),
                    try_number: past.instance.try_number,
                    attempt: past.instance.attempt.map(|attempt| attempt.to_string()),
                });
            }
            tasks.push(TaskRow {
                run: name.clone(),
                task: ti.task_id.to_string(),
                state: ti.instance.state.to_string(),
                try_number: ti.instance.try_number,
                attempt: ti.instance.attempt.map(|attempt| attempt.to_string()),
            });
        }
    }
    let (terms, fences) = authority(world, shards).await;
    let faults: Vec<Fault> = world.faults().clone();
    History {
        trail: trail(world),
        runs: runs
            .into_iter()
            .map(|(run, shard, key)| RunRow {
                name: RunName::new(run.dag.as_str(), run.run_id.as_str()),
                shard: shard.0,
                state: run.state.to_string(),
                scheduled: run.run_type == RunType::Scheduled,
                logical_date: run.logical_date,
                idempotency_key: key,
            })
            .collect(),
        tasks,
        tries,
        terms,
        fences,
        schedules: vec![schedule],
        calls: workload.calls(),
        effects: world.effects().values().cloned().collect(),
        faults,
        rooms,
        needs: workload.needs.clone(),
        limits: Limits {
            unclaimed: UNCLAIMED,
            silence: SILENCE,
            tick_lateness: TICK_LATENESS,
            stopping: Duration::from_secs(2),
        },
        ended_at: world.time.now(),
    }
}

async fn rooms(world: &World) -> Vec<Room> {
    let nodes = world.store.list_nodes().await.expect("memory answers");
    let pools = world.store.list_pools().await.expect("memory answers");
    let pool = |pool: PoolRecord| Room { has: pool.resources().0, of: Place::Pool(pool.name.to_string()) };
    let nodes =
        nodes.into_iter().map(|node| Room { of: Place::Node(node.node.to_string()), has: node.capacity.0 });
    nodes.chain(pools.into_iter().map(pool)).collect()
}

fn trail(world: &World) -> Vec<TrailRow> {
    let row = |(committed_at, view): (jiff::Timestamp, tenure_store::AuditView)| TrailRow {
        seq: view.seq,
        committed_at,
        run: view.dag.zip(view.run_id).map(|(dag, run)| RunName::new(dag.as_str(), run.as_str())),
        actor: view.actor,
        scope: view.scope,
        epoch: view.epoch,
        entries: view.entries.into_iter().map(entry).collect(),
    };
    world.store.trail().into_iter().map(row).collect()
}

fn entry(entry: AuditEntry) -> Entry {
    Entry {
        task: entry.task.map(|task| task.to_string()),
        event: entry.event,
        from: entry.from,
        to: entry.to,
        try_number: entry.try_number,
        attempt: entry.attempt.map(|attempt| attempt.to_string()),
        node: entry.node.map(|node| node.to_string()),
        reason: entry.reason,
    }
}

/// Terms only where the store remembers all of them.
async fn authority(world: &World, shards: u16) -> (Vec<TermRow>, Vec<FenceRow>) {
    let (mut terms, mut fences) = (vec![], vec![]);
    let mut complete = true;
    let of_shards = (0..shards).map(|shard| ShardId(shard).scope());
    for scope in of_shards.chain([CONTROLLER_SCOPE.to_owned()]).map(Scope::new) {
        let past = world.store.lease_history(&scope, HISTORY).await.expect("memory answers");
        complete &= past.len() < HISTORY;
        let row = |past: &PastTerm, epoch: Epoch| TermRow {
            scope: past.scope.to_string(),
            epoch: epoch.0,
            term: past.term.to_string(),
            holder: past.holder.name.clone(),
        };
        if world.leases_apart {
            // A term has an epoch once it has installed its fence. Some never come to it, and one whose lease is revoked
            // before it has begun may win it again.
            for (_, epoch, term) in world.fences().iter().filter(|(at, ..)| *at == scope) {
                let winner = past.iter().find(|past| past.term == *term);
                terms.extend(winner.map(|past| row(past, *epoch)));
            }
        } else {
            terms.extend(past.iter().map(|past| row(past, past.epoch)));
        }
        let fence = world.store.fence(&scope).await.expect("memory answers");
        fences.extend(fence.map(|(epoch, _)| FenceRow { scope: scope.to_string(), epoch: epoch.0 }));
    }
    if !complete {
        terms.clear();
    }
    (terms, fences)
}
