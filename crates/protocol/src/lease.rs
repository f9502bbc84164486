//! Who leads: `tenure_lease::Protocol` on one side, `LeaseStore` and `FenceStore` on the other.

use crate::model::{Action, Backend, Event, Protocol};
use crate::mutant::Mutant;
use crate::state::{Call, Epoch, Fence, Lease, Replica, Seat, State, Term};

impl Protocol {
    pub(crate) fn lease_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for r in 0..self.size.replicas {
            let replica = &state.replicas[usize::from(r)];
            match replica.call {
                Call::None => match replica.seat {
                    Seat::Follows => actions.push(Action::Campaign(r)),
                    Seat::Leads { .. } => actions.push(Action::Resign(r)),
                    Seat::Installs { .. } | Seat::Confirms { .. } => {}
                },
                Call::Acquire { .. } => {
                    actions.push(Action::ExecuteCall(r));
                    actions.push(Action::CallLost(r));
                    let may_hint = self.size.trouble.hinted && !state.trouble.hinted;
                    if state.db.lease.held && may_hint && self.room_for_trouble(state) {
                        actions.push(Action::TakeFromDead(r));
                    }
                }
                Call::Install { .. } | Call::Confirm { .. } | Call::Release { .. } => {
                    actions.push(Action::ExecuteCall(r));
                    actions.push(Action::CallLost(r));
                }
                Call::Acquired { .. } | Call::Installed { .. } | Call::Confirmed { .. } => {
                    actions.push(Action::AnswerArrives(r));
                    actions.push(Action::AnswerLost(r));
                }
            }
            if replica.seat != Seat::Follows {
                actions.push(Action::StepDown(r));
            }
        }
        if state.db.lease.held {
            actions.push(Action::LeaseRunsOut);
        }
        let may_delete = self.size.trouble.deleted && !state.trouble.deleted && self.room_for_trouble(state);
        if state.db.lease.on_record && may_delete {
            actions.push(Action::DeleteLease);
        }
        if state.db.before.is_some() && self.may_forget(state) {
            actions.push(Action::ForgetAcquire);
        }
    }

    fn room_for_trouble(&self, state: &State) -> bool {
        state.trouble.count() < self.size.troubles_at_once
    }

    fn may_forget(&self, state: &State) -> bool {
        self.size.trouble.forgot && !state.trouble.forgot && self.room_for_trouble(state)
    }

    pub(crate) fn apply_lease(&self, state: &mut State, action: Action) {
        match action {
            // protocol/duties.rs `share_out` → `acquire`. Whether the lease is free is the store's to say: what was seen
            // of it may be out of date.
            Action::Campaign(r) => replica(state, r).call = Call::Acquire { term: 0 },
            Action::ExecuteCall(r) => self.execute(state, r, false),
            // protocol/sight.rs `crashed` → `Takeover::OfDead`, on the word of a lifeline that was cut.
            Action::TakeFromDead(r) => self.execute(state, r, true),
            Action::AnswerArrives(r) => self.answered(state, r),
            // protocol/answers.rs, `Failure::Ambiguous`: the same term asks again. A crash forgets that it has asked.
            Action::AnswerLost(r) => {
                let replica = replica(state, r);
                replica.call = match (replica.call, replica.seat) {
                    (Call::Acquired { term, .. }, Seat::Follows) => Call::Acquire { term },
                    (Call::Installed { term, .. }, Seat::Installs { .. }) => Call::Install { term, floor: 0 },
                    (Call::Confirmed { term, epoch, .. }, Seat::Confirms { .. }) => {
                        Call::Confirm { term, epoch }
                    }
                    _ => Call::None,
                };
            }
            // `Failure::Unavailable`. What was installing or confirming is given up when its deadline passes.
            Action::CallLost(r) => {
                let replica = replica(state, r);
                replica.call = Call::None;
                if !matches!(replica.seat, Seat::Leads { .. }) {
                    replica.seat = Seat::Follows;
                }
            }
            Action::LeaseRunsOut => run_out(state),
            // Crashed, frozen beyond its deadline (protocol/duties.rs `pass_deadline`, watchdog.rs), told that somebody
            // else leads (sight.rs `observe`), or fenced (tenure.rs `fenced`). Its transaction stays on its way.
            Action::StepDown(r) => replica(state, r).seat = Seat::Follows,
            // protocol.rs `resign`, duties.rs `release_the_unwanted`: the authority has ended before the release goes out.
            Action::Resign(r) => {
                let replica = replica(state, r);
                if let Seat::Leads { term, epoch } = replica.seat {
                    *replica =
                        Replica { seat: Seat::Follows, call: Call::Release { term, epoch }, ..*replica };
                }
            }
            // Somebody deletes rows, wipes a prefix, restores etcd from a backup.
            Action::DeleteLease => {
                state.trouble.deleted = true;
                state.db.lease = Lease::default();
                state.db.before = None;
                if self.is(Mutant::EpochResetOnDeletion) {
                    state.db.fence = Fence::default();
                }
            }
            // A failover to a replica of the database that had not yet received the latest acquire (ADR 8).
            Action::ForgetAcquire => {
                if let Some((lease, fence)) = state.db.before.take() {
                    state.trouble.forgot = true;
                    (state.db.lease, state.db.fence) = (lease, fence);
                }
            }
            _ => unreachable!("the others are work"),
        }
    }

    /// The store carries a call out. Where its answer finds nobody waiting, it is lost by [`Action::AnswerLost`].
    fn execute(&self, state: &mut State, r: u8, dead: bool) {
        let call = replica(state, r).call;
        replica(state, r).call = match call {
            Call::Acquire { term } => self.acquire(state, term, dead),
            Call::Install { term, floor } => self.install(state, term, floor),
            Call::Confirm { term, epoch } => {
                let lease = &mut state.db.lease;
                if lease.held && lease.term == term {
                    lease.epoch = epoch;
                    state.db.before = None;
                    Call::Confirmed { term, epoch, aged: false }
                } else {
                    // `RenewOutcome::Lost`. A lost answer leaves it to the deadline.
                    replica(state, r).seat = Seat::Follows;
                    self.note(Event::InstalledTooLate);
                    Call::None
                }
            }
            Call::Release { term, epoch } => {
                let lease = &mut state.db.lease;
                if (lease.term == term && lease.epoch == epoch) || self.is(Mutant::ReleaseWithoutCompare) {
                    if lease.held {
                        lease.held = false;
                        state.db.before = None;
                    }
                } else {
                    self.note(Event::ReleaseTooLate);
                }
                Call::None
            }
            answer => answer,
        };
    }

    /// store-sqlite/src/leases.rs `acquire`, store-postgres/src/leases/verbs.rs, lease-etcd.
    fn acquire(&self, state: &mut State, asked: Term, dead: bool) -> Call {
        let lease = state.db.lease;
        if lease.held && lease.term == asked {
            self.note(Event::AcquireRepeated);
            return Call::Acquired { term: asked, epoch: lease.epoch, aged: false };
        }
        if lease.held && !dead {
            return Call::None; // `AcquireOutcome::Held`
        }
        let together = self.backend == Backend::Together;
        let fresh_term = asked == 0;
        if state.db.fence.epoch == self.size.epochs {
            return Call::Acquire { term: asked }; // where exploring ends
        }
        if lease.held {
            state.trouble.hinted = true;
        }
        if lease.on_record {
            self.note(Event::Takeover);
        }
        // The candidate chooses its term, and nobody else ever has it: numbered here, when somebody first hears of it.
        let term = if fresh_term { state.db.terms + 1 } else { asked };
        state.db.terms = state.db.terms.max(term);
        let before = (lease, state.db.fence);
        let mut epoch = lease.epoch;
        if together {
            // `raise_fence`: also for a term that asks again after it was lost.
            epoch = state.db.fence.epoch.max(lease.epoch) + 1;
            if self.is(Mutant::EpochResetOnDeletion) {
                epoch = lease.epoch + 1;
            }
            self.note_minted(state, epoch);
            state.db.fence = Fence { epoch, term };
        }
        state.db.lease = Lease { on_record: true, term, epoch, held: true };
        state.db.before = (together && self.may_forget(state)).then_some(before);
        Call::Acquired { term, epoch, aged: false }
    }

    /// store-sqlite/src/leases.rs `install_fence`: the same term asking again gets the same epoch.
    fn install(&self, state: &mut State, term: Term, floor: u8) -> Call {
        let fence = state.db.fence;
        if fence.term == term {
            return Call::Installed { term, epoch: fence.epoch };
        }
        let epoch = fence.epoch.max(floor) + 1;
        if epoch > self.size.epochs {
            return Call::Install { term, floor };
        }
        state.db.before = self.may_forget(state).then_some((state.db.lease, fence));
        self.note_minted(state, epoch);
        state.db.fence = Fence { epoch, term };
        Call::Installed { term, epoch }
    }

    fn note_minted(&self, state: &State, epoch: Epoch) {
        if state.replicas.iter().any(|replica| replica.has(epoch)) {
            self.note(Event::EpochMintedTwice);
        }
    }

    /// protocol/answers.rs.
    fn answered(&self, state: &mut State, r: u8) {
        let replica = replica(state, r);
        let too_late = |aged: bool| aged && !self.is(Mutant::DeadlineFromAnswer);
        match (replica.call, replica.seat) {
            // `acquired`: the deadline counts from when the call was sent, so a grant that has run out on its way is none.
            (Call::Acquired { term, epoch, aged }, Seat::Follows) if too_late(aged) => {
                self.note(Event::LateGrantGivenBack);
                replica.call = Call::Release { term, epoch };
            }
            (Call::Acquired { term, epoch, .. }, Seat::Follows) => match self.backend {
                Backend::Together => (replica.seat, replica.call) = (Seat::Leads { term, epoch }, Call::None),
                Backend::Apart => {
                    (replica.seat, replica.call) =
                        (Seat::Installs { term }, Call::Install { term, floor: epoch });
                }
            },
            // `installed`: the first renewal follows, which writes the epoch down and proves that the lease lives.
            (Call::Installed { term, epoch }, Seat::Installs { term: ours }) if term == ours => {
                (replica.seat, replica.call) =
                    (Seat::Confirms { term, epoch }, Call::Confirm { term, epoch });
            }
            // `prolong`.
            (Call::Confirmed { term, epoch, aged }, Seat::Confirms { term: ours, .. }) if term == ours => {
                if too_late(aged) {
                    self.note(Event::LateGrantGivenBack);
                    (replica.seat, replica.call) = (Seat::Follows, Call::Release { term, epoch });
                } else {
                    (replica.seat, replica.call) = (Seat::Leads { term, epoch }, Call::None);
                }
            }
            // Nobody waits for it any more.
            _ => replica.call = Call::None,
        }
    }
}

/// The lease runs out in its store. Whoever holds it has counted from when its calls were sent, and so has stopped by
/// now; what its store had answered before is worth nothing any more.
fn run_out(state: &mut State) {
    let over = state.db.lease.term;
    state.db.lease.held = false;
    state.db.before = None;
    for replica in &mut state.replicas {
        if replica.seat.term() == Some(over) {
            replica.seat = Seat::Follows;
        }
        match &mut replica.call {
            Call::Acquired { term, aged, .. } | Call::Confirmed { term, aged, .. } if *term == over => {
                *aged = true
            }
            _ => {}
        }
    }
}

fn replica(state: &mut State, r: u8) -> &mut Replica {
    &mut state.replicas[usize::from(r)]
}

#[cfg(test)]
mod tests {
    //! Goal: an event is counted when it happens, and only then. Method: a story, step by step.

    use stateright::Model;

    use super::*;
    use crate::model::Size;
    use crate::state::Trouble;

    #[test]
    fn an_epoch_is_minted_twice_while_somebody_still_has_it_from_before_the_failover() {
        let size = Size { replicas: 2, epochs: 3, attempts: 1, trouble: Trouble::ANY, troubles_at_once: 1 };
        let mut protocol = Protocol::new(size, Backend::Together, None);
        protocol.symmetry = false;
        let (mut state, mut minted_twice) = (State::new(), vec![]);
        let acquired = |r| [Action::Campaign(r), Action::ExecuteCall(r), Action::AnswerArrives(r)];
        let story = [
            &acquired(0)[..],
            &[Action::ForgetAcquire],
            &acquired(1),
            &[Action::LeaseRunsOut, Action::StepDown(0)],
            &acquired(0),
        ];
        for steps in story {
            for step in steps {
                state = protocol.next_state(&state, *step).expect("a step that changes something");
            }
            minted_twice.push((state.db.fence.epoch, protocol.counts.of(Event::EpochMintedTwice)));
        }
        assert_eq!(minted_twice, [(1, 0), (0, 0), (1, 1), (1, 1), (2, 1)]);
    }
}
