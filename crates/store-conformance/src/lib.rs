//! One behaviour for every store: facts about the contract, each an async function over a fresh database.
//!
//! A store crate calls [`exercise!`] in a test file with its own constructor and gets one test per fact.
//! The facts use nothing but the public traits and real time; they say nothing about SQL. That a store also keeps
//! leases as every lease backend does is for `tenure-lease-conformance` to say.

mod harness;

pub mod alone;
pub mod attention;
pub mod chores;
pub mod drains;
pub mod edits;
pub mod identities;
pub mod limits;
pub mod orphans;
pub mod passes;
pub mod presence;
pub mod races;
pub mod registration;
pub mod reports;
pub mod runs;
pub mod scale;
pub mod shares;
pub mod snapshots;
pub mod views;

use std::any::Any;
use std::pin::Pin;

#[doc(hidden)]
pub use tenure_lease_conformance::facts;
use tenure_model::{RunKey, TiKey};
use tenure_store::SharedStore;

/// A fresh, empty database with as many shards as were asked for.
pub struct Fresh {
    pub store: SharedStore,
    pub spoil: Spoil,
    /// Whatever must live as long as the database: a temporary folder, a server.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Fresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fresh")
    }
}

/// Puts a value that this release does not know into a stored row, behind the store's back: a run type, or the
/// state of a task instance.
pub type Spoil = Box<dyn Fn(Spoiled) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[derive(Clone, Copy, Debug)]
pub enum Spoiled {
    /// The `run_type` of this run.
    Run(RunKey),
    /// The `state` of this task instance.
    Task(TiKey),
}

/// More than one, so that what belongs to another shard can be told apart.
pub const SHARDS: u16 = 4;

/// One `#[tokio::test]` per fact. `$fresh` is `async fn(shards: u16) -> Fresh`.
#[macro_export]
macro_rules! exercise {
    ($fresh:ident) => {
        $crate::facts! { $crate, $fresh($crate::SHARDS);
            passes: [
                a_pass_writes_rows_results_tries_and_audit,
                a_stale_revision_leaves_that_run_alone_and_commits_the_others,
                who_takes_what_a_conflicting_run_would_have_given_back_falls_with_it,
                a_row_that_is_not_as_expected_is_a_conflict_of_its_whole_run,
                a_run_that_is_gone_is_a_conflict,
                a_deposed_owner_is_fenced_and_writes_nothing,
                the_write_at_1842_is_refused_after_1843_has_taken_over,
                a_guard_covers_only_its_own_shard,
                a_due_run_is_made_exactly_once,
                a_due_run_of_a_dag_that_is_gone_is_not_made,
                a_run_that_starts_and_ends_keeps_its_times,
                a_run_that_starts_and_ends_in_one_pass_has_both_times,
                schedule_progress_is_remembered,
                attended_items_vanish_with_the_pass_and_only_then,
                an_empty_pass_is_legal,
            ],
            registration: [
                the_same_content_changes_nothing,
                new_content_is_the_next_version_and_the_old_one_stays_readable,
                going_back_to_old_content_is_a_new_version,
                a_dag_that_exists_keeps_what_its_users_chose,
                a_new_dag_has_its_shard_anchor_and_next_tick,
                pausing_is_remembered_and_audited,
                an_unknown_dag_is_not_found,
                a_deleted_dag_is_gone_with_all_it_had_but_its_audit,
                a_dag_with_an_active_run_is_not_deleted,
                pools_come_and_go_but_the_default_stays,
                quotas_come_and_go_and_every_shard_hears_of_it,
                nodes_reappear_with_what_they_have,
                the_first_admin_token_that_is_offered_is_kept,
            ],
            runs: [
                a_created_run_is_queued_with_untouched_tasks,
                an_answer_says_what_was_kept,
                the_same_key_with_the_same_request_is_replayed,
                a_retry_with_another_clock_is_the_same_request,
                the_same_key_with_another_request_is_a_conflict,
                the_same_run_id_is_a_conflict,
                the_same_logical_date_is_a_conflict,
                runs_without_a_logical_date_do_not_collide,
                a_run_of_an_unknown_dag_is_not_found,
                a_run_keeps_the_version_it_was_created_from,
                run_keys_are_never_reused,
                only_a_finished_run_is_deleted,
                a_note_changes_nothing_else,
            ],
            edits: [
                a_clear_sends_a_finished_run_round_again,
                a_clear_stops_what_runs_and_keeps_its_attempt,
                a_clear_forgets_what_the_task_returned,
                a_dry_run_says_what_it_would_do_and_does_nothing,
                a_clear_can_follow_the_latest_version,
                a_clear_reaches_into_past_and_future_runs,
                a_clear_of_nothing_changes_nothing,
                a_mark_is_the_users_word,
                a_mark_in_a_failed_run_lets_it_go_on_from_there,
                a_mark_reaches_into_past_and_future_runs,
                an_ended_run_stops_what_runs_and_skips_what_waits,
                a_queued_again_run_starts_over,
                what_is_not_there_is_not_found,
                an_owner_that_missed_an_edit_conflicts,
            ],
            attention: [
                every_intent_leaves_its_row_in_the_shard_it_concerns,
                what_changes_nothing_leaves_no_row,
                rows_come_in_order_and_stay_until_attended,
                a_stop_names_node_and_attempt,
                wakes_fire_for_every_intent,
                a_change_wakes_its_own_shard_only,
            ],
            limits: [
                every_change_of_the_limits_is_the_next_version_for_every_shard,
                what_changes_no_limit_is_no_new_version,
                a_node_without_news_is_no_new_version,
                a_change_of_the_limits_wakes_every_shard,
                a_version_is_never_newer_than_what_comes_with_it,
            ],
            snapshots: [
                a_shard_sees_its_own_dags_and_unfinished_runs_only,
                a_loaded_run_is_what_was_written,
                missing_runs_are_left_out,
                a_row_that_makes_no_sense_costs_its_own_run_and_no_other,
                the_past_run_is_the_latest_one_before,
                a_version_can_be_read_and_a_missing_one_is_not_found,
                the_default_pool_is_there_from_the_start,
            ],
            views: [
                dags_are_filtered_ordered_and_paged,
                versions_are_listed_newest_first,
                runs_are_filtered,
                runs_are_ordered_and_paged,
                task_instances_are_filtered_ordered_and_paged,
                tries_are_listed_oldest_first,
                audit_is_read_in_order_and_from_a_point_on,
                an_unknown_order_is_refused_by_name,
                what_is_missing_is_none,
                the_database_answers_a_ping,
                another_tenant_sees_nothing,
            ],
            races: [
                an_owner_and_a_user_on_one_run_leave_a_trail_that_replays_to_the_rows,
                concurrent_triggers_with_one_key_make_one_run,
                concurrent_registrations_of_one_content_make_one_version,
                concurrent_offers_of_a_token_keep_one,
            ],
            scale: [
                a_run_of_ten_thousand_tasks_is_created_loaded_and_finished,
                a_deep_page_of_a_long_history_is_right,
            ],
            reports: [
                a_claim_moves_a_queued_task_to_running_once,
                a_repeated_claim_makes_a_plan_that_has_not_seen_it_a_conflict,
                another_attempt_is_superseded_and_changes_nothing,
                an_end_does_what_the_owner_would,
                the_last_try_fails_for_good,
                an_end_is_never_later_than_it_was_heard,
                what_a_task_returned_is_kept_when_it_succeeded,
                the_end_of_a_cleared_task_sends_it_to_history,
                an_owner_that_missed_a_report_conflicts,
                a_report_leaves_attention_and_an_audit_row_of_its_node,
                reports_are_answered_in_order_and_one_bad_one_spoils_none,
                reports_about_what_has_finished_or_gone_are_superseded,
                a_claim_and_a_withdrawal_that_meet_have_one_winner,
                one_claim_told_to_many_replicas_happens_once,
            ],
            orphans: [
                only_a_running_run_in_which_nothing_goes_on_is_an_orphan,
                orphans_come_oldest_first_and_no_more_than_asked,
                a_shard_hears_of_its_own_orphans_only,
            ],
            shares: [
                a_bid_takes_from_what_is_free_and_a_lower_one_gives_back,
                several_bids_are_answered_in_order,
                an_owner_that_takes_over_finds_its_shares,
                a_deposed_owner_trades_nothing,
                only_an_owner_of_a_shard_trades,
                an_unmet_bid_tells_those_that_hold_some,
                what_is_given_back_is_told_to_those_that_want_it,
                of_what_is_not_there_nobody_has_a_share,
                what_a_shard_has_is_not_taken_when_there_is_less,
                shares_never_exceed_what_there_is_whoever_bids,
            ],
            presence: [
                a_node_is_present_while_some_replica_hears_it,
                a_replica_says_anew_whom_it_hears,
                what_was_heard_long_ago_does_not_count,
            ],
            identities: [
                a_join_token_gives_an_identity_and_is_used_up,
                a_join_whose_answer_was_lost_is_repeated_for_free,
                a_token_that_does_not_fit_lets_nobody_in,
                a_name_that_is_taken_needs_a_token_of_its_own,
                a_valid_identity_is_renewed_and_no_other,
                a_removed_node_is_refused_with_all_its_identities,
                a_removed_node_is_listed_while_it_holds_something,
            ],
            drains: [
                a_drain_is_kept_and_asking_again_moves_its_deadline,
                drains_concern_every_shard_and_are_audited,
                only_the_holder_of_its_scope_moves_a_drain_on,
                what_is_bound_is_counted_by_node_task_and_state,
                how_busy_dags_are_is_told_for_those_that_exist,
                who_hears_whom_is_listed,
            ],
            chores: [
                only_the_leader_of_the_controller_does_chores,
                an_old_run_goes_with_all_it_had_but_its_audit,
                unfinished_and_young_runs_stay_and_so_does_the_newest_of_each_dag,
                the_run_that_the_next_may_depend_on_stays,
                runs_go_in_batches_the_oldest_first,
                old_audit_rows_go_in_batches_the_oldest_first,
                seats_of_members_that_are_gone_are_forgotten_and_their_epochs_go_on,
                replicas_that_no_longer_report_are_forgotten_in_batches,
                signals_are_told_under_the_controllers_fence_and_remembered,
            ],
        }
        $crate::facts! { $crate, $fresh(1);
            alone: [
                a_single_shard_has_everything_and_no_shares,
            ],
        }
    };
}

#[cfg(test)]
mod tests {
    //! Goal: no fact is written and then forgotten in the list above.

    #[test]
    fn every_fact_is_in_the_list() {
        let list = include_str!("lib.rs");
        let modules = [
            include_str!("alone.rs"),
            include_str!("attention.rs"),
            include_str!("chores.rs"),
            include_str!("drains.rs"),
            include_str!("edits.rs"),
            include_str!("identities.rs"),
            include_str!("limits.rs"),
            include_str!("orphans.rs"),
            include_str!("passes.rs"),
            include_str!("presence.rs"),
            include_str!("races.rs"),
            include_str!("registration.rs"),
            include_str!("reports.rs"),
            include_str!("runs.rs"),
            include_str!("scale.rs"),
            include_str!("shares.rs"),
            include_str!("snapshots.rs"),
            include_str!("views.rs"),
        ];
        let names = modules.iter().flat_map(|text| text.split("pub async fn ").skip(1));
        for name in names.map(|rest| rest.split('(').next().expect("a name")) {
            assert!(list.contains(&format!(" {name},")), "{name} is missing from exercise!");
        }
    }
}
