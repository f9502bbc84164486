//! What is done with a task: the owner's pass, what any replica records, and what agents do.

use crate::model::{Action, Event, Protocol, nodes};
use crate::mutant::Mutant;
use crate::state::{
    Attempt, Deed, Epoch, Fence, Life, NodeNo, Outcome, Seat, State, Task, Term, Write, bit, index,
};

impl Protocol {
    pub(crate) fn work_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for r in 0..self.size.replicas {
            let replica = &state.replicas[usize::from(r)];
            match (replica.write, replica.seat) {
                (Some(_), _) => actions.extend([Action::WriteArrives(r), Action::WriteLost(r)]),
                (None, Seat::Leads { epoch, .. }) => self.plans(state, r, epoch, actions),
                (None, Seat::Follows | Seat::Installs { .. } | Seat::Confirms { .. }) => {}
            }
        }
        for (node, attempt, life) in state.lives() {
            match life {
                Life::Unknown => self.orders(state, node, attempt, actions),
                Life::Claiming => {
                    actions.push(Action::RefuseClaim(node, attempt));
                    if self.may_start(state, attempt) {
                        actions.push(Action::Start(node, attempt));
                    }
                }
                Life::Running => {
                    actions.push(Action::Finish(node, attempt, Outcome::Success));
                    actions.push(Action::Finish(node, attempt, Outcome::Failed));
                }
                Life::Ended(outcome) => {
                    actions.push(Action::Record(Deed::End { attempt, outcome }));
                    let recovered = outcome == Outcome::NeverStarted && self.is(Mutant::RecoveredStarts);
                    if recovered && state.granted & bit(attempt) > 0 {
                        actions.push(Action::Start(node, attempt));
                    }
                }
                Life::Refused => {}
            }
            if life != Life::Unknown {
                actions.push(Action::Record(Deed::Claim { attempt }));
            }
        }
        for attempt in 1..=state.db.attempt {
            if state.granted & bit(attempt) > 0 {
                actions.push(Action::GrantLost(attempt));
            }
        }
        for node in nodes() {
            let on = &state.nodes[usize::from(node)];
            if on.cut_off {
                actions.push(Action::RegainContact(node));
            } else {
                actions.push(Action::LoseContact(node));
            }
            if on.lives.contains(&Life::Claiming) {
                actions.push(Action::AgentRestarts(node));
            }
        }
    }

    /// What an owner may decide, and what it may hear. A plan from a cache that is out of date would be refused for
    /// its revision, so only those from a fresh one are made.
    fn plans(&self, state: &State, r: u8, epoch: Epoch, actions: &mut Vec<Action>) {
        let attempt = state.db.attempt;
        match state.db.task {
            Task::Scheduled if attempt < self.size.attempts => {
                // Nodes are alike before the first attempt.
                let choice = nodes().filter(|node| attempt > 0 || *node == 0);
                actions.extend(choice.map(|node| Action::Plan(r, Deed::Bind { node })));
            }
            Task::Queued => actions.push(Action::Plan(r, Deed::Withdraw { attempt })),
            Task::Running => {
                let silent = state.nodes[usize::from(state.home(attempt))].cut_off;
                if silent || (self.is(Mutant::ReapOnLeaseExpiry) && epoch > 1) {
                    actions.push(Action::Plan(r, Deed::Reap { attempt }));
                }
            }
            Task::Scheduled | Task::Success | Task::Failed => {}
        }
        for (_, attempt, life) in state.lives() {
            if life != Life::Unknown {
                actions.push(Action::Hear(r, Deed::Claim { attempt }));
            }
            if let Life::Ended(outcome) = life {
                actions.push(Action::Hear(r, Deed::End { attempt, outcome }));
            }
        }
    }

    /// Whoever has led since it was bound may have sent it there, and it may arrive at any time.
    fn orders(&self, state: &State, node: NodeNo, attempt: Attempt, actions: &mut Vec<Action>) {
        if attempt > state.db.attempt || state.home(attempt) != node {
            return;
        }
        let epochs = state.db.bound_under[index(attempt)]..=state.db.fence.epoch;
        actions.extend(epochs.map(|epoch| Action::Order(node, attempt, epoch)));
    }

    fn may_start(&self, state: &State, attempt: Attempt) -> bool {
        state.granted & bit(attempt) > 0 || self.is(Mutant::StartBeforeAnswer)
    }

    pub(crate) fn apply_work(&self, state: &mut State, action: Action) {
        match action {
            // scheduler/src/pass.rs: `bind_ready`, watch.rs `reap_silent`, reports.rs `withdraw_unclaimed`, up to
            // `commit`, where `Tenure::guard` is the last look at the own deadline.
            Action::Plan(r, deed) => begin(state, r, deed),
            Action::Hear(r, deed) => self.hear(state, r, deed),
            Action::WriteArrives(r) => self.commit(state, r),
            Action::WriteLost(r) => state.replicas[usize::from(r)].write = None,
            // desk.rs `record` → store `record_reports` → edit/report.rs: any replica that does not lead, at any time.
            Action::Record(deed) => self.record(state, deed),
            // agent/src/attempt.rs `claim`: superseded.
            Action::RefuseClaim(node, attempt) => {
                if !self.claim_counts(state, attempt) {
                    self.note(Event::ClaimSuperseded);
                    *state.life_mut(node, attempt) = Life::Refused;
                }
            }
            // agent/src/agent.rs `assign`, epochs.rs `admit`. What is known already is not ordered again.
            Action::Order(node, attempt, epoch) => {
                let on = &mut state.nodes[usize::from(node)];
                if epoch < on.seen {
                    return self.note(Event::StaleOrderRefused);
                }
                on.seen = epoch;
                *state.life_mut(node, attempt) = Life::Claiming;
            }
            // agent/src/attempt.rs `claim` → `start`.
            Action::Start(node, attempt) => start(state, node, attempt),
            Action::GrantLost(attempt) => state.granted &= !bit(attempt),
            Action::Finish(node, attempt, outcome) => *state.life_mut(node, attempt) = Life::Ended(outcome),
            // agent/src/attempt.rs `resume`, `conclude`: tasks run on under their supervisors, and what had not started
            // never will.
            Action::AgentRestarts(node) => {
                for life in &mut state.nodes[usize::from(node)].lives {
                    if *life == Life::Claiming {
                        *life = Life::Ended(Outcome::NeverStarted);
                    }
                }
            }
            Action::LoseContact(node) => self.lose_contact(state, node),
            Action::RegainContact(node) => state.nodes[usize::from(node)].cut_off = false,
            _ => unreachable!("the others are about leases"),
        }
    }

    /// scheduler/src/reports.rs `apply_report`: the owner's next pass takes it in.
    fn hear(&self, state: &mut State, r: u8, deed: Deed) {
        match deed {
            Deed::Claim { attempt }
                if self.is(Mutant::RepeatedClaimUnrecorded) && was_claimed(state, attempt) =>
            {
                // Its memory says so, and nothing is written.
                self.note(Event::ClaimRepeated);
                self.grant(state, attempt);
            }
            Deed::Claim { attempt } if self.claim_counts(state, attempt) => begin(state, r, deed),
            Deed::End { attempt, outcome } if self.end_counts(state, attempt, outcome) => {
                begin(state, r, deed)
            }
            // `Superseded` only after the database was asked (`doubted`), so that answer is that of `Record`.
            _ => {}
        }
    }

    fn record(&self, state: &mut State, deed: Deed) {
        match deed {
            Deed::Claim { attempt } if self.claim_counts(state, attempt) => self.claim(state, attempt),
            Deed::End { attempt, outcome } if self.end_counts(state, attempt, outcome) => {
                self.end(state, attempt, outcome);
            }
            Deed::End { .. } => self.note(Event::EndRepeated),
            _ => {}
        }
    }

    /// store-postgres/src/pass.rs `write_pass`, store-sqlite/src/commit_pass.rs: fence first, then revision.
    fn commit(&self, state: &mut State, r: u8) {
        let Some(write) = state.replicas[usize::from(r)].write.take() else { return };
        if !self.passes_fence(state, write) {
            self.note(Event::WriteFenced);
            // scheduler/src/office.rs: `tenure.fenced()`.
            let replica = &mut state.replicas[usize::from(r)];
            if replica.seat.term() == Some(write.term) {
                replica.seat = Seat::Follows;
            }
            return;
        }
        self.judge_authority(state, write.epoch, write.term);
        match write.deed {
            Deed::Bind { node } => self.bind(state, node, write.epoch),
            Deed::Withdraw { .. } => {
                self.note(Event::Withdrawn);
                self.move_to(state, Task::Scheduled);
            }
            Deed::Reap { attempt } => {
                self.note(Event::Reaped);
                let alive = nodes().any(|node| state.life(node, attempt) == Life::Running);
                state.ghosts.broken.p6 |= alive;
                self.move_to(state, self.after_failure(attempt));
            }
            Deed::Claim { attempt } => self.claim(state, attempt),
            Deed::End { attempt, outcome } => self.end(state, attempt, outcome),
        }
    }

    fn passes_fence(&self, state: &State, write: Write) -> bool {
        let fence = state.db.fence;
        if self.is(Mutant::NoFence) {
            return true;
        }
        // No row, no authority.
        fence.term > 0
            && write.epoch == fence.epoch
            && (write.term == fence.term || self.is(Mutant::FenceWithoutTerm))
    }

    fn judge_authority(&self, state: &mut State, epoch: Epoch, term: Term) {
        let last = &mut state.ghosts.last_write;
        state.ghosts.broken.p1 |= last.epoch == epoch && last.term != term;
        state.ghosts.broken.p2 |= epoch < last.epoch || epoch < state.db.fence.epoch;
        *last = Fence { epoch, term };
        state.db.before = None;
    }

    /// scheduler/src/pass.rs `bind`: a fresh attempt id, every time.
    fn bind(&self, state: &mut State, node: NodeNo, epoch: Epoch) {
        let again = state.db.attempt > 0 && self.is(Mutant::SameAttemptAgain);
        let attempt = state.db.attempt + u8::from(!again);
        if usize::from(attempt) > state.db.homes.len() {
            return;
        }
        state.db.attempt = attempt;
        state.db.homes[index(attempt)] = node;
        state.db.bound_under[index(attempt)] = epoch;
        self.move_to(state, Task::Queued);
    }

    /// model/src/instance.rs `TaskInstance::claim`: whether it is answered with «accepted».
    fn claim_counts(&self, state: &State, attempt: Attempt) -> bool {
        let current = state.db.attempt == attempt || self.is(Mutant::ClaimIgnoresAttempt);
        current && matches!(state.db.task, Task::Queued | Task::Running)
    }

    fn claim(&self, state: &mut State, attempt: Attempt) {
        if state.db.task == Task::Running {
            self.note(Event::ClaimRepeated);
            if !self.is(Mutant::RepeatedClaimUnrecorded) {
                // Whoever has planned to give the attempt up must look again: its node is back, and is about to start it.
                self.touch(state);
            }
        } else {
            state.ghosts.claimed |= bit(attempt);
            self.move_to(state, Task::Running);
        }
        self.grant(state, attempt);
    }

    /// The answer leaves after the commit. It is heard on the link that asked, or not at all (agent/src/link/wire.rs):
    /// a node that is cut off has none.
    fn grant(&self, state: &mut State, attempt: Attempt) {
        let heard = nodes().any(|node| {
            let on = &state.nodes[usize::from(node)];
            on.lives[index(attempt)] != Life::Unknown && !on.cut_off
        });
        if heard || self.is(Mutant::AnswerCrossesGap) {
            state.granted |= bit(attempt);
        }
    }

    /// `TaskInstance::end`: only of the current attempt, and only while that is bound.
    fn end_counts(&self, state: &State, attempt: Attempt, outcome: Outcome) -> bool {
        let current = state.db.attempt == attempt;
        let bound = match state.db.task {
            Task::Running => true,
            Task::Queued => outcome != Outcome::Success,
            Task::Scheduled | Task::Success | Task::Failed => false,
        };
        (current && bound) || (self.is(Mutant::EndIgnoresState) && state.db.task != Task::Success)
    }

    fn end(&self, state: &mut State, attempt: Attempt, outcome: Outcome) {
        let next = match outcome {
            Outcome::Success => Task::Success,
            Outcome::Failed => self.after_failure(attempt),
            Outcome::NeverStarted => Task::Scheduled,
        };
        self.move_to(state, next);
    }

    /// Each attempt that fails is a try here.
    fn after_failure(&self, attempt: Attempt) -> Task {
        if attempt < self.size.attempts { Task::Scheduled } else { Task::Failed }
    }

    fn move_to(&self, state: &mut State, next: Task) {
        let task = &mut state.db.task;
        state.ghosts.broken.p5 |= task.is_terminal() && *task != next;
        *task = next;
        self.touch(state);
    }

    /// The run's revision moves: every plan that was made from the one before is refused when it arrives. Then it may as
    /// well be dropped now.
    fn touch(&self, state: &mut State) {
        state.db.before = None;
        for replica in &mut state.replicas {
            if replica.write.is_some() && !self.is(Mutant::NoRevision) {
                self.note(Event::WriteConflict);
                replica.write = None;
            }
        }
    }

    /// agent/src/contact.rs, supervisor.rs: tasks with `on_disconnect: stop` are gone before anybody takes the node for
    /// silent. Its links are dead by then, and with them all answers that were on their way.
    fn lose_contact(&self, state: &mut State, node: NodeNo) {
        let on = &mut state.nodes[usize::from(node)];
        on.cut_off = true;
        let mut here = 0;
        for (attempt, life) in (1u8..).zip(&mut on.lives) {
            if *life != Life::Unknown {
                here |= bit(attempt);
            }
            if *life == Life::Running && !self.is(Mutant::NoSelfFence) {
                self.note(Event::SelfFenced);
                *life = Life::Ended(Outcome::Failed);
            }
        }
        if !self.is(Mutant::AnswerCrossesGap) {
            state.granted &= !here;
        }
    }
}

fn begin(state: &mut State, r: u8, deed: Deed) {
    let replica = &mut state.replicas[usize::from(r)];
    if let Seat::Leads { term, epoch } = replica.seat {
        replica.write = Some(Write { term, epoch, deed });
    }
}

fn was_claimed(state: &State, attempt: Attempt) -> bool {
    state.ghosts.claimed & bit(attempt) > 0
}

fn start(state: &mut State, node: NodeNo, attempt: Attempt) {
    let elsewhere = nodes().filter(|other| *other != node).any(|other| {
        let life = state.life(other, attempt);
        life == Life::Running || matches!(life, Life::Ended(outcome) if outcome != Outcome::NeverStarted)
    });
    state.ghosts.broken.p3 |= elsewhere || !was_claimed(state, attempt);
    state.granted &= !bit(attempt);
    *state.life_mut(node, attempt) = Life::Running;
}
