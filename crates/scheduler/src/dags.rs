//! The dags of a shard: their schedules, which of their runs wait and which are active.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tenure_model::timetable::{DueRun, Timetable};
use tenure_model::{DagId, RunKey, Schedule, TenantId};
use tenure_store::DagSchedule;

use crate::isolation::{Trap, Work, isolated};

/// A dag's number inside one owner: cheaper to sort by than its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DagNo(pub u32);

/// A tenant's number inside one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantNo(pub u32);

#[derive(Debug, Default)]
pub(crate) struct DagBook {
    dags: Vec<Dag>,
    by_name: BTreeMap<(TenantId, DagId), DagNo>,
    tenants: BTreeMap<TenantId, TenantNo>,
    /// When each dag next wants to be looked at.
    agenda: BTreeSet<(Timestamp, DagNo)>,
}

#[derive(Debug)]
pub(crate) struct Dag {
    pub tenant: TenantId,
    pub tenant_no: TenantNo,
    pub dag: DagId,
    /// Absent: deleted, or not read yet; its runs can still end.
    pub plan: Option<SchedulePlan>,
    pub queued: QueuedRuns,
    pub active: BTreeSet<RunKey>,
    on_agenda: Option<Timestamp>,
}

/// Runs that wait for their moment or for room. There may be very many.
#[derive(Debug, Default)]
pub(crate) struct QueuedRuns {
    in_order: BTreeSet<(Timestamp, RunKey)>,
    moments: BTreeMap<RunKey, Timestamp>,
}

impl QueuedRuns {
    pub fn insert(&mut self, run_after: Timestamp, run: RunKey) {
        self.remove(run);
        self.in_order.insert((run_after, run));
        self.moments.insert(run, run_after);
    }

    fn remove(&mut self, run: RunKey) {
        if let Some(run_after) = self.moments.remove(&run) {
            self.in_order.remove(&(run_after, run));
        }
    }

    /// Those whose moment has come, oldest first.
    fn due(&self, now: Timestamp) -> impl Iterator<Item = RunKey> + '_ {
        self.in_order.iter().take_while(move |(run_after, _)| *run_after <= now).map(|(_, run)| *run)
    }

    fn next(&self) -> Option<Timestamp> {
        self.in_order.first().map(|(run_after, _)| *run_after)
    }
}

/// A dag's schedule and where it stands.
#[derive(Debug)]
pub(crate) struct SchedulePlan {
    pub schedule: DagSchedule,
    /// Absent: it has panicked. The dag's other runs go on.
    pub timetable: Option<Timetable>,
    pub trap: Trap,
    pub panics: Counter,
    pub continuous: bool,
    pub max_active_runs: u32,
}

impl SchedulePlan {
    /// The next run the timetable calls for; absent while the dag is paused. A timetable that panics is not asked again
    /// before the dag is read anew.
    pub fn next_due(&mut self, now: Timestamp) -> Option<DueRun> {
        if self.schedule.paused {
            return None;
        }
        let (timetable, schedule) = (self.timetable.as_ref()?, &self.schedule);
        let due = isolated(|| {
            (self.trap)(&Work::Tick(schedule));
            timetable.next(schedule.progress, now)
        });
        due.unwrap_or_else(|panic| {
            tracing::error!(dag = %schedule.dag, panic, "its timetable panicked; it makes no more runs");
            self.panics.inc();
            self.timetable = None;
            None
        })
    }

    pub fn is_continuous(schedule: &Schedule) -> bool {
        matches!(schedule, Schedule::Continuous)
    }
}

impl Dag {
    pub fn is_paused(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.schedule.paused)
    }

    /// How many more queued runs may start.
    pub fn room_to_start(&self) -> usize {
        match &self.plan {
            Some(plan) if !plan.schedule.paused => {
                (plan.max_active_runs as usize).saturating_sub(self.active.len())
            }
            _ => 0,
        }
    }

    /// How many more runs the timetable may create. Missed ticks wait in the timetable, not in the table
    /// of runs, so a catch-up of thousands stays a handful of rows at a time.
    /// A run that is queued for later is not in the way.
    pub fn room_to_create(&self, now: Timestamp) -> usize {
        let most = match &self.plan {
            Some(plan) if plan.continuous => 1,
            Some(plan) => plan.max_active_runs as usize,
            None => return 0,
        };
        let room = most.saturating_sub(self.active.len());
        room - self.queued.due(now).take(room).count()
    }

    /// Queued runs that may start now, oldest first.
    pub fn startable(&self, now: Timestamp) -> Vec<RunKey> {
        self.queued.due(now).take(self.room_to_start()).collect()
    }
}

impl DagBook {
    /// The dag's number, known from now on.
    pub fn number(&mut self, tenant: &TenantId, dag: &DagId) -> DagNo {
        let key = (tenant.clone(), dag.clone());
        if let Some(known) = self.by_name.get(&key) {
            return *known;
        }
        let number = DagNo(self.dags.len() as u32);
        let next = TenantNo(self.tenants.len() as u32);
        let tenant_no = *self.tenants.entry(tenant.clone()).or_insert(next);
        self.dags.push(Dag {
            tenant: tenant.clone(),
            tenant_no,
            dag: dag.clone(),
            plan: None,
            queued: QueuedRuns::default(),
            active: BTreeSet::new(),
            on_agenda: None,
        });
        self.by_name.insert(key, number);
        number
    }

    pub fn get(&self, dag: DagNo) -> &Dag {
        &self.dags[dag.0 as usize]
    }

    pub fn get_mut(&mut self, dag: DagNo) -> &mut Dag {
        &mut self.dags[dag.0 as usize]
    }

    /// Forgets a run wherever it stands; true if it was active.
    pub fn forget_run(&mut self, dag: DagNo, run: RunKey) -> bool {
        let dag = self.get_mut(dag);
        dag.queued.remove(run);
        dag.active.remove(&run)
    }

    /// Forgets a run that is gone, whatever dag it belonged to.
    pub fn forget_everywhere(&mut self, run: RunKey) {
        for dag in self.numbers() {
            self.forget_run(dag, run);
        }
    }

    /// Puts the dag on the agenda for its next tick or its next queued run, whichever comes first.
    pub fn reschedule(&mut self, number: DagNo, now: Timestamp) {
        let dag = self.get_mut(number);
        let room = dag.room_to_create(now) > 0;
        let due = dag.plan.as_mut().filter(|_| room).and_then(|plan| plan.next_due(now));
        let start = if dag.room_to_start() > 0 { dag.queued.next() } else { None };
        let next = due.map(|due| due.run_after).into_iter().chain(start).min();
        if let Some(before) = std::mem::replace(&mut dag.on_agenda, next) {
            self.agenda.remove(&(before, number));
        }
        if let Some(at) = next {
            self.agenda.insert((at, number));
        }
    }

    /// Takes the dags off the agenda whose time has come.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<DagNo> {
        let mut due = vec![];
        while let Some((at, number)) = self.agenda.first().copied().filter(|(at, _)| *at <= now) {
            self.agenda.remove(&(at, number));
            self.dags[number.0 as usize].on_agenda = None;
            due.push(number);
        }
        due
    }

    pub fn next_agenda(&self) -> Option<Timestamp> {
        self.agenda.first().map(|(at, _)| *at)
    }

    pub fn numbers(&self) -> impl Iterator<Item = DagNo> + use<> {
        (0..self.dags.len() as u32).map(DagNo)
    }
}
