//! Goal: the checker finds each rule that is left out, for the reason that the rule is there for. Method: one hunt for each
//! mutant, in the smallest world that has room for it.

use tenure_protocol::{Backend, Mutant, Protocol, Size, Trouble, explore, hunt};

const SIZE: Size = Size { replicas: 2, epochs: 3, attempts: 2, trouble: Trouble::ANY, troubles_at_once: 1 };

#[track_caller]
fn check(mutant: Mutant, promise: &str) {
    let found = hunt(Protocol::new(SIZE, Backend::Together, Some(mutant))).expect("found");
    assert!(found.property.starts_with(promise), "{} in {:#?}", found.property, found.story);
}

macro_rules! dies_by {
    ($($name:ident: $mutant:ident breaks $promise:literal,)*) => {
        $(#[test]
        fn $name() {
            check(Mutant::$mutant, $promise);
        })*

        #[test]
        fn every_mutant_is_hunted() {
            let hunted = [$(Mutant::$mutant),*];
            assert!(Mutant::ALL.iter().all(|mutant| hunted.contains(mutant)));
        }
    };
}

dies_by! {
    without_a_fence_an_old_owner_writes: NoFence breaks "P2",
    a_fence_without_term_lets_two_write_under_one_epoch: FenceWithoutTerm breaks "P1 one writer",
    an_attempt_id_that_is_used_again_is_started_twice: SameAttemptAgain breaks "P3",
    a_claim_that_ignores_the_attempt_starts_what_nobody_wants: ClaimIgnoresAttempt breaks "P3",
    reaping_because_a_lease_ran_out_does_harm: ReapOnLeaseExpiry breaks "P6",
    a_deadline_from_the_answer_makes_two_holders: DeadlineFromAnswer breaks "P1 one holder",
    a_release_without_compare_makes_two_holders: ReleaseWithoutCompare breaks "P1 one holder",
    an_epoch_that_starts_over_has_two_writers: EpochResetOnDeletion breaks "P1 one writer",
    a_start_before_the_answer_is_a_start_without_a_claim: StartBeforeAnswer breaks "P3",
    a_pass_without_revision_undoes_what_it_has_not_seen: NoRevision breaks "P5",
    a_repeated_claim_that_leaves_no_trace_is_reaped_alive: RepeatedClaimUnrecorded breaks "P6",
    an_end_that_ignores_the_state_changes_what_is_final: EndIgnoresState breaks "P5",
    a_task_that_runs_on_without_contact_is_reaped_alive: NoSelfFence breaks "P6",
    an_answer_that_crosses_a_loss_of_contact_starts_what_was_given_up: AnswerCrossesGap breaks "P6",
    a_recovered_attempt_that_starts_overlaps_its_successor: RecoveredStarts breaks "P7",
}

#[test]
fn the_protocol_itself_keeps_its_promises_in_a_small_world() {
    let size = Size { replicas: 3, epochs: 2, trouble: Trouble::HINTS, ..SIZE };
    let found = explore(Protocol::new(size, Backend::Together, None));
    assert!(found.is_fine(), "{:?} {:?} {:?}", found.broken, found.unreached, found.events);
    assert!(found.states > 100_000, "{} states", found.states);
}
