//! States that nothing can tell apart any more count once.
//!
//! Three ways to see that two states are one: replicas are alike, so their order does not matter; terms are only compared
//! with each other, so their names do not matter; and what no step will ever read does not matter. A test
//! (`tests/canonical.rs`) holds every state against its stand-in: both can go on to the same places.

use crate::model::{Backend, Protocol};
use crate::state::{
    Attempt, Call, Deed, Fence, Lease, Life, NodeNo, Outcome, Seat, State, Task, Term, bit, index,
};

impl Protocol {
    /// The one that stands for all that cannot be told from this one.
    pub fn canonical(&self, state: &State) -> State {
        let mut state = *state;
        self.forget_what_is_over(&mut state);
        forget_doomed(&mut state);
        self.forget_records(&mut state);
        rename_terms(&mut state);
        state.replicas[..usize::from(self.size.replicas)].sort_unstable();
        state
    }

    fn forget_what_is_over(&self, state: &mut State) {
        let bound = matches!(state.db.task, Task::Queued | Task::Running);
        let mut claiming = 0;
        for node in 0..state.nodes.len() as NodeNo {
            for attempt in 1..=state.nodes[0].lives.len() as Attempt {
                let superseded = attempt != state.db.attempt || !bound;
                let life = state.life_mut(node, attempt);
                if superseded && matches!(life, Life::Ended(_)) {
                    *life = Life::Ended(Outcome::Failed); // it counts for nothing, whichever it was
                }
                match life {
                    Life::Claiming => claiming |= bit(attempt),
                    Life::Unknown | Life::Running | Life::Ended(_) | Life::Refused => {}
                }
            }
        }
        // Only whoever waits for an answer is moved by one.
        state.granted &= claiming;
        for attempt in 1..=state.db.attempt {
            let home = state.home(attempt);
            let settled = state.life(home, attempt) != Life::Unknown;
            if settled {
                state.db.bound_under[index(attempt)] = 0;
            }
            if settled && claiming & bit(attempt) == 0 {
                state.ghosts.claimed &= !bit(attempt);
            }
            let superseded = attempt != state.db.attempt || !bound;
            let life = state.life(home, attempt);
            if superseded && matches!(life, Life::Refused | Life::Ended(_)) {
                // Nobody asks any more where it was.
                state.db.homes[index(attempt)] = 0;
                if home != 0 {
                    *state.life_mut(home, attempt) = Life::Unknown;
                    *state.life_mut(0, attempt) = life;
                }
            }
        }
        self.forget_epochs(state);
    }

    /// A node that will get no order any more need not know whose orders it has taken.
    fn forget_epochs(&self, state: &mut State) {
        let (task, latest) = (state.db.task, state.db.attempt);
        let more_to_come = latest < self.size.attempts && !task.is_terminal();
        for node in 0..state.nodes.len() as NodeNo {
            let on_its_way =
                |attempt: Attempt| state.home(attempt) == node && state.life(node, attempt) == Life::Unknown;
            if !more_to_come && !(1..=latest).any(on_its_way) {
                state.nodes[usize::from(node)].seen = 0;
            }
        }
    }

    /// What a record says that nobody holds: its term is nobody's, and its epoch is below the fence.
    fn forget_records(&self, state: &mut State) {
        let plain = |lease: &mut Lease| {
            if !lease.held {
                (lease.term, lease.epoch) = (0, 0);
            }
        };
        if self.backend == Backend::Together {
            plain(&mut state.db.lease);
            if let Some((lease, _)) = &mut state.db.before {
                plain(lease);
            }
        }
        let writer = &mut state.ghosts.last_write;
        if writer.epoch < state.db.fence.epoch && state.db.before.is_none() {
            *writer = Default::default();
        }
    }
}

/// Transactions and releases that will be refused whatever happens.
fn forget_doomed(state: &mut State) {
    let (fence, lease) = (state.db.fence, state.db.lease);
    let may_return = state.db.before.map(|(_, fence)| fence);
    // After a failover a term that asks again may get the epoch again that was lost.
    let mut asking = 0u32;
    for replica in state.replicas.iter().filter(|_| state.trouble.forgot) {
        if let Call::Acquire { term }
        | Call::Acquired { term, .. }
        | Call::Install { term, .. }
        | Call::Installed { term, .. } = replica.call
        {
            asking |= 1 << term;
        }
    }
    for replica in &mut state.replicas {
        if let Some(write) = &mut replica.write {
            let under = |fence: Fence| (fence.epoch, fence.term) == (write.epoch, write.term);
            if !under(fence) && !may_return.is_some_and(under) && asking & (1 << write.term) == 0 {
                write.deed = Deed::Withdraw { attempt: 0 };
                if replica.seat.term() != Some(write.term) {
                    (write.epoch, write.term) = (0, 0);
                }
            }
        }
        if let Call::Release { term, epoch } = &mut replica.call {
            let ours = |lease: Lease| lease.held && (lease.term, lease.epoch) == (*term, *epoch);
            if !ours(lease) && !state.db.before.is_some_and(|(lease, _)| ours(lease)) {
                (*term, *epoch) = (0, 0);
            }
        }
    }
}

/// 1, 2, …, in their order, for those that somebody still knows.
pub(crate) fn rename_terms(state: &mut State) {
    let mut known = 0u32;
    each_term(state, &mut |term| known |= 1 << *term);
    known &= !1;
    each_term(state, &mut |term| {
        if *term > 0 {
            *term = (known & ((1 << *term) | ((1 << *term) - 1))).count_ones() as Term;
        }
    });
    state.db.terms = known.count_ones() as u8;
}

fn each_term(state: &mut State, visit: &mut impl FnMut(&mut Term)) {
    visit(&mut state.db.lease.term);
    visit(&mut state.db.fence.term);
    if let Some((lease, fence)) = &mut state.db.before {
        visit(&mut lease.term);
        visit(&mut fence.term);
    }
    visit(&mut state.ghosts.last_write.term);
    for replica in &mut state.replicas {
        match &mut replica.seat {
            Seat::Follows => {}
            Seat::Installs { term } | Seat::Confirms { term, .. } | Seat::Leads { term, .. } => visit(term),
        }
        match &mut replica.call {
            Call::None => {}
            Call::Acquire { term }
            | Call::Acquired { term, .. }
            | Call::Install { term, .. }
            | Call::Installed { term, .. }
            | Call::Confirm { term, .. }
            | Call::Confirmed { term, .. }
            | Call::Release { term, .. } => visit(term),
        }
        if let Some(write) = &mut replica.write {
            visit(&mut write.term);
        }
    }
}
