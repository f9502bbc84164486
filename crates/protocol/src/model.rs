//! The steps of the model, and what must hold after each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::canonical::rename_terms;
use crate::mutant::Mutant;
use crate::state::{
    Attempt, Deed, Epoch, Life, MOST_ATTEMPTS, MOST_REPLICAS, NODES, Node, NodeNo, Outcome, Seat, State,
    Task, Trouble,
};

/// How much of everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub replicas: u8,
    pub epochs: u8,
    pub attempts: u8,
    /// Which troubles there may be, …
    pub trouble: Trouble,
    /// … and how many different ones in one history.
    pub troubles_at_once: u8,
}

/// Where the leases are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// In the state database: an acquire raises the fence in its own transaction.
    Together,
    /// Elsewhere (etcd, a file): the winner installs its fence, then makes sure that it still holds the lease.
    Apart,
}

#[derive(Clone, Debug)]
pub struct Protocol {
    pub size: Size,
    pub backend: Backend,
    pub mutant: Option<Mutant>,
    /// Replicas are alike: states that differ only in who is who count once. Switched off for stories that people read.
    pub symmetry: bool,
    pub(crate) counts: Arc<Counts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    // Leases: see lease.rs.
    Campaign(u8),
    ExecuteCall(u8),
    /// The store is told that the holder is dead, which it may not be.
    TakeFromDead(u8),
    AnswerArrives(u8),
    AnswerLost(u8),
    CallLost(u8),
    LeaseRunsOut,
    StepDown(u8),
    Resign(u8),
    DeleteLease,
    ForgetAcquire,
    // Work: see work.rs.
    Plan(u8, Deed),
    Hear(u8, Deed),
    WriteArrives(u8),
    WriteLost(u8),
    Record(Deed),
    RefuseClaim(NodeNo, Attempt),
    Order(NodeNo, Attempt, Epoch),
    Start(NodeNo, Attempt),
    GrantLost(Attempt),
    Finish(NodeNo, Attempt, Outcome),
    AgentRestarts(NodeNo),
    LoseContact(NodeNo),
    RegainContact(NodeNo),
}

/// What a step turned out to be. Counted, so that a rule that never mattered is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Takeover,
    AcquireRepeated,
    WriteFenced,
    WriteConflict,
    ReleaseTooLate,
    LateGrantGivenBack,
    InstalledTooLate,
    StaleOrderRefused,
    ClaimRepeated,
    ClaimSuperseded,
    EndRepeated,
    Withdrawn,
    Reaped,
    SelfFenced,
    EpochMintedTwice,
}

impl Event {
    pub const ALL: [Self; 15] = [
        Self::Takeover,
        Self::AcquireRepeated,
        Self::WriteFenced,
        Self::WriteConflict,
        Self::ReleaseTooLate,
        Self::LateGrantGivenBack,
        Self::InstalledTooLate,
        Self::StaleOrderRefused,
        Self::ClaimRepeated,
        Self::ClaimSuperseded,
        Self::EndRepeated,
        Self::Withdrawn,
        Self::Reaped,
        Self::SelfFenced,
        Self::EpochMintedTwice,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Takeover => "a lease is taken over",
            Self::AcquireRepeated => "an acquire is asked for again, and answered alike",
            Self::WriteFenced => "a deposed owner's write is refused",
            Self::WriteConflict => "a plan from an older revision is refused",
            Self::ReleaseTooLate => "a late release changes nothing",
            Self::LateGrantGivenBack => "a grant that ran out on its way is given back",
            Self::InstalledTooLate => "a fence is installed by somebody who lost the lease meanwhile",
            Self::StaleOrderRefused => "a node refuses the order of a deposed owner",
            Self::ClaimRepeated => "a claim arrives twice",
            Self::ClaimSuperseded => "a claim is refused",
            Self::EndRepeated => "an end arrives twice, or too late",
            Self::Withdrawn => "an attempt is withdrawn",
            Self::Reaped => "an attempt is reaped",
            Self::SelfFenced => "a node stops its task for want of contact",
            Self::EpochMintedTwice => {
                "an epoch that a failover lost is minted again, and somebody still has it"
            }
        }
    }

    /// Not every world has such days.
    pub fn can_happen(self, protocol: &Protocol) -> bool {
        match self {
            Self::InstalledTooLate => protocol.backend == Backend::Apart,
            Self::EpochMintedTwice => protocol.size.trouble.forgot,
            // The only attempt is never one too many.
            Self::StaleOrderRefused => protocol.size.attempts > 1,
            _ => true,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; Event::ALL.len()]);

impl Counts {
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}

impl Protocol {
    pub fn new(size: Size, backend: Backend, mutant: Option<Mutant>) -> Self {
        assert!(usize::from(size.replicas) <= MOST_REPLICAS);
        assert!(usize::from(size.attempts) <= MOST_ATTEMPTS);
        Self { size, backend, mutant, symmetry: mutant.is_none(), counts: Arc::default() }
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) fn note(&self, event: Event) {
        self.counts.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Campaign(_)
            | Action::ExecuteCall(_)
            | Action::TakeFromDead(_)
            | Action::AnswerArrives(_)
            | Action::AnswerLost(_)
            | Action::CallLost(_)
            | Action::LeaseRunsOut
            | Action::StepDown(_)
            | Action::Resign(_)
            | Action::DeleteLease
            | Action::ForgetAcquire => self.apply_lease(state, action),
            Action::Plan(..)
            | Action::Hear(..)
            | Action::WriteArrives(_)
            | Action::WriteLost(_)
            | Action::Record(_)
            | Action::RefuseClaim(..)
            | Action::Order(..)
            | Action::Start(..)
            | Action::GrantLost(_)
            | Action::Finish(..)
            | Action::AgentRestarts(_)
            | Action::LoseContact(_)
            | Action::RegainContact(_) => self.apply_work(state, action),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.lease_actions(state, actions);
        self.work_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        self.apply(&mut next, action);
        follow_contact(&mut next);
        if self.symmetry {
            next = self.canonical(&next);
        } else if self.backend == Backend::Apart {
            rename_terms(&mut next); // terms without an epoch of their own would go on without end
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("P1 one writer for an epoch", |_, state: &State| !state.ghosts.broken.p1),
            Property::always("P1 one holder while the lease store keeps its word", |_, state: &State| {
                state.trouble.count() > 0 || state.leaders() <= 1
            }),
            Property::always("P2 nothing older commits", |_, state: &State| !state.ghosts.broken.p2),
            Property::always("P3 one start, after its claim", |_, state: &State| !state.ghosts.broken.p3),
            Property::always("P5 terminal is final", |_, state: &State| !state.ghosts.broken.p5),
            Property::always("P6 nothing that lives is reaped", |_, state: &State| !state.ghosts.broken.p6),
            Property::always("P7 two attempts never overlap", |_, state: &State| {
                state.lives().filter(|(.., life)| *life == Life::Running).count() <= 1
            }),
        ];
        if self.mutant.is_none() {
            properties.extend(sometimes(self.size));
        }
        properties
    }
}

/// What a model in which nothing happens could not show.
fn sometimes(size: Size) -> Vec<Property<Protocol>> {
    let mut properties = vec![
        Property::sometimes("the last epoch has an owner", |model: &Protocol, state: &State| {
            let last = model.size.epochs;
            let leads = |seat| matches!(seat, Seat::Leads { epoch, .. } if epoch == last);
            state.replicas.iter().any(|replica| leads(replica.seat))
        }),
        Property::sometimes("two epochs write at the same time", |_, state: &State| {
            let writes = state.replicas.iter().filter_map(|replica| replica.write);
            let mut epochs = writes.map(|write| write.epoch);
            epochs.next().is_some_and(|first| epochs.any(|other| other != first))
        }),
        Property::sometimes("every try is used up", |model: &Protocol, state: &State| {
            state.db.task == Task::Failed && state.db.attempt == model.size.attempts
        }),
    ];
    if size.trouble.count() > 0 {
        properties.push(Property::sometimes("two believe to lead", |_, state: &State| state.leaders() == 2));
    }
    if size.attempts > 1 {
        properties.push(Property::sometimes(
            "one attempt is lost, the next succeeds",
            |model, state: &State| {
                let first = state.life(state.home(1), 1);
                let last = state.db.attempt == model.size.attempts;
                state.db.task == Task::Success && last && first == Life::Ended(Outcome::Failed)
            },
        ));
        properties.push(Property::sometimes(
            "one is withdrawn, the next runs elsewhere",
            |_, state: &State| {
                let moved = state.db.attempt == 2 && state.home(2) != state.home(1);
                let refused = moved && state.life(state.home(1), 1) == Life::Refused;
                refused && state.life(state.home(2), 2) == Life::Running
            },
        ));
    }
    properties
}

/// Contact is followed only where something hangs on it: where an attempt asks or runs, and where the task is bound to.
fn follow_contact(state: &mut State) {
    let bound = matches!(state.db.task, Task::Queued | Task::Running);
    let bound_to = bound.then(|| state.home(state.db.attempt));
    for (node, on) in (0..).zip(&mut state.nodes) {
        on.cut_off &= bound_to == Some(node) || is_busy(on);
    }
}

pub(crate) fn is_busy(on: &Node) -> bool {
    on.lives.iter().any(|life| matches!(life, Life::Claiming | Life::Running))
}

/// Every node.
pub(crate) fn nodes() -> impl Iterator<Item = NodeNo> {
    0..NODES as NodeNo
}
