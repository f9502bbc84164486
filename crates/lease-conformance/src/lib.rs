//! One behaviour for every lease backend: facts about the contract, each an async function over fresh leases.
//!
//! A backend's crate calls [`exercise!`] in a test file with its own constructor and gets one test per fact.
//! The facts use nothing but the public traits and real time. They go through
//! [`acquire_fenced`](tenure_lease::acquire_fenced), so a backend that mints its own epochs and one that leaves
//! that to the state database are held to the same. Leases are as short as the backend's capabilities allow,
//! and an expiry is waited for by looking, because some backends are late.

mod harness;

pub mod acquiring;
pub mod epochs;
pub mod fences;
pub mod hints;
pub mod history;
pub mod listing;
pub mod races;
pub mod releasing;
pub mod renewing;
pub mod takeovers;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::{FenceStore, LeaseStore};

/// A backend without a lease in it, and the state database that mints its epochs.
pub struct Fresh {
    pub leases: Arc<dyn LeaseStore>,
    pub fences: Arc<dyn FenceStore>,
    /// Deletes every lease record behind the store's back, as an operator might. Fences stay.
    pub forget_leases: Deed,
    /// Whatever must live as long as the backend: a temporary folder, a server.
    pub keep: Box<dyn Any + Send + Sync>,
}

pub type Deed = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl std::fmt::Debug for Fresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fresh")
    }
}

/// A fact that takes longer than this on a busy machine hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs one fact with an end to the wait.
#[doc(hidden)]
pub async fn settle<T, F: Future<Output = ()>>(fresh: impl Future<Output = T>, fact: impl FnOnce(T) -> F) {
    let done = async { fact(fresh.await).await };
    tokio::time::timeout(PATIENCE, done).await.expect("the fact settles in time");
}

/// One `#[tokio::test]` per fact. `$fresh` is `async fn() -> Fresh`.
#[macro_export]
macro_rules! exercise {
    ($fresh:ident) => {
        $crate::facts! { $crate, $fresh();
            acquiring: [
                an_absent_lease_is_granted_with_all_it_says,
                what_a_holder_says_of_itself_is_kept_to_the_letter,
                a_held_lease_is_refused_and_its_holder_named,
                the_same_holder_with_another_term_is_another_candidate,
                asking_twice_with_one_term_is_asking_once,
                a_lost_answer_is_repaired_by_asking_again,
                a_lease_below_the_minimum_is_refused,
                scopes_do_not_meet,
            ],
            renewing: [
                renewing_keeps_a_lease_beyond_its_first_duration,
                an_expired_term_is_never_revived,
                a_renewal_must_name_term_and_epoch,
                a_released_term_cannot_be_renewed,
                a_superseded_holder_learns_by_whom,
                a_deleted_record_is_gone,
                a_thousand_scopes_are_renewed_in_one_batch_each_with_its_own_answer,
            ],
            releasing: [
                a_released_lease_is_free_at_once,
                a_release_must_name_term_and_epoch,
                a_second_release_changes_nothing,
                a_late_release_cannot_blank_a_successor,
                what_has_run_out_cannot_be_given_back,
            ],
            takeovers: [
                a_dead_term_is_taken_over_at_once,
                another_term_than_the_dead_one_is_not_taken_over,
                a_hint_about_a_lease_that_is_free_does_no_harm,
                a_stalled_term_is_taken_at_the_very_version_that_was_seen,
                a_renewal_in_between_saves_a_stalled_term,
                another_term_than_the_stalled_one_is_not_taken_over,
                a_holder_paused_past_its_expiry_is_fenced_out,
            ],
            epochs: [
                epochs_grow_over_a_release,
                epochs_grow_over_an_expiry,
                epochs_grow_over_a_crash,
                epochs_grow_over_the_deletion_of_all_records,
                epochs_grow_when_the_same_holder_comes_back,
                an_epoch_belongs_to_one_term_only,
            ],
            fences: [
                an_acquire_leaves_the_fence_as_the_capabilities_say,
                the_same_term_gets_the_same_epoch_again,
                an_epoch_is_above_its_floor_and_above_all_before,
                a_superseded_term_never_gets_its_old_epoch_back,
                a_scope_that_nobody_held_has_no_fence,
                sixteen_terms_that_race_for_a_fence_get_sixteen_epochs,
            ],
            races: [
                thirty_two_racers_have_one_winner_round_after_round,
                thirty_two_racers_that_take_turns_never_meet,
                identical_holders_at_once_are_two_candidates,
            ],
            listing: [
                a_listing_is_exact_about_what_scopes_begin_with,
                a_lease_is_found_by_its_scope_alone,
                what_is_held_can_be_told_from_what_is_not,
            ],
            history: [
                a_history_says_how_each_term_began_and_ended,
                a_history_is_as_long_as_asked_and_no_longer_than_promised,
                a_scope_without_a_past_has_no_history,
            ],
            hints: [
                watchers_hear_of_an_acquire_and_of_a_release,
                only_a_backend_with_crash_hints_has_lifelines,
            ],
        }
    };
}

/// One test function for each name in a list like the one above. For suites, not for their callers.
#[doc(hidden)]
#[macro_export]
macro_rules! facts {
    ($suite:tt, $fresh:ident $with:tt; $($module:ident: [$($fact:ident),* $(,)?]),* $(,)?) => {$(
        mod $module {
            use super::$fresh;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $fact() {
                    $crate::settle($fresh $with, $suite::$module::$fact).await;
                }
            )*
        }
    )*};
}

#[cfg(test)]
mod tests {
    //! Goal: no fact is written and then forgotten in the list above.

    #[test]
    fn every_fact_is_in_the_list() {
        let list = include_str!("lib.rs");
        let modules = [
            include_str!("acquiring.rs"),
            include_str!("epochs.rs"),
            include_str!("fences.rs"),
            include_str!("hints.rs"),
            include_str!("history.rs"),
            include_str!("listing.rs"),
            include_str!("races.rs"),
            include_str!("releasing.rs"),
            include_str!("renewing.rs"),
            include_str!("takeovers.rs"),
        ];
        let names = modules.iter().flat_map(|text| text.split("pub async fn ").skip(1));
        for name in names.map(|rest| rest.split('(').next().expect("a name")) {
            assert!(list.contains(&format!(" {name},")), "{name} is missing from exercise!");
        }
    }
}
