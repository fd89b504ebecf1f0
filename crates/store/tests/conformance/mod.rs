//! The conformance suite: the behaviour that every backend of the store must have.
//!
//! It uses only the public API. A test is a function over a [`Fixture`]; [`conformance!`] generates the tests of one
//! backend, and a function that it does not name is dead code. The clock is manual.

pub(crate) mod checkpoints;
pub(crate) mod clock;
pub(crate) mod dead_letters;
pub(crate) mod dispositions;
pub(crate) mod leases;
pub(crate) mod message_runs;
pub(crate) mod pages;
pub(crate) mod positions;
pub(crate) mod processed;
pub(crate) mod sharing;
pub(crate) mod tasks;

use std::time::Duration;

use gristmill_pool::clock::ManualClock;
use gristmill_store::dead_letters::{DeadLetter, DeadLetterFilter};
use gristmill_store::lease::{HeartbeatResult, WorkerId};
use gristmill_store::tasks::{
    CancelOutcome, ClaimBatch, ClaimRequest, ClaimedTask, Disposition, NewTask, TaskFailure, TaskFilter, TaskRow,
    TaskStatus, TaskUpdate, UpdateResult,
};
use gristmill_store::{Error, Store, UtcTime};

/// Opens stores on one database, which is empty at first.
pub(crate) trait Backend {
    /// Opens the database; each call returns an independent store.
    fn open(&self, clock: ManualClock) -> Store;
}

/// Generates the tests of a backend from an expression that makes a new one.
macro_rules! conformance {
    ($backend:expr) => {
        conformance! { @ $backend;
            tasks:
                task_ids_increase_in_enqueue_order,
                payload_is_stored_byte_for_byte,
                task_row_has_every_field_of_the_new_task,
                invalid_task_is_refused_with_the_expected_values,
                task_at_every_limit_is_accepted,
                text_that_is_not_acceptable_json_is_refused_with_the_reason,
                enqueue_many_inserts_all_tasks_or_none,
                enqueue_returns_the_unfinished_task_with_the_same_unique_key,
                unique_key_is_free_after_its_task_finished,
                unique_key_is_scoped_to_one_kind,
                claims_are_ordered_by_priority_then_id,
                claim_returns_only_its_queue_and_kind,
                claim_returns_at_most_its_limit,
                claim_respects_max_running_across_queues,
                claim_requests_with_one_token_share_their_limit,
                scheduled_task_is_not_claimed_before_run_after,
                task_with_a_past_run_after_is_pending_at_once,
                next_due_is_returned_when_fewer_tasks_than_the_limit_are_due,
                run_now_makes_a_scheduled_task_pending,
                run_now_is_refused_unless_the_task_is_scheduled,
                waiting_task_is_cancelled_at_once_and_only_once,
                cancel_deletes_the_checkpoints,
                running_task_is_cancelled_when_its_run_ends,
                unknown_ids_return_not_found,
                finished_task_is_never_overwritten;
            dispositions:
                completed_stores_the_result,
                tasks_completed_in_one_batch_have_their_own_results,
                retry_counts_the_attempt_and_schedules_the_task,
                dead_lettered_task_has_a_dead_letter,
                released_task_is_as_if_never_claimed,
                postponed_task_is_scheduled_without_counting_an_attempt,
                first_failure_time_is_kept_across_retries,
                end_of_the_output_of_a_failed_attempt_is_kept,
                settle_and_claim_can_claim_what_it_releases,
                update_results_are_in_the_order_of_the_updates,
                empty_batch_claims_nothing,
                result_that_is_not_json_is_refused,
                update_with_a_wrong_token_is_lost,
                update_after_release_is_lost;
            leases:
                claim_stores_its_token_and_lease,
                claim_tokens_are_unique,
                claimed_task_is_not_claimed_again_before_recovery,
                heartbeat_renews_the_lease,
                heartbeat_renews_an_expired_lease_before_recovery,
                heartbeat_with_a_wrong_token_is_lost,
                heartbeat_results_are_in_the_order_of_the_tasks,
                lease_expires_exactly_at_its_end,
                lease_of_maximal_duration_does_not_expire,
                recover_frees_only_expired_leases,
                previous_owner_is_refused_after_recovery_and_another_claim,
                update_after_expiry_is_accepted_before_recovery,
                poison_pill_is_dead_lettered_after_max_crashes,
                crashes_and_attempts_are_counted_separately,
                abandoned_claims_do_not_make_a_poison_pill,
                crashed_tasks_are_claimed_before_others_of_equal_priority,
                start_is_counted_once_for_every_disposition,
                start_is_refused_after_the_claim_is_lost,
                replacement_claims_only_tasks_of_higher_priority,
                release_does_not_count_as_a_crash,
                heartbeat_keeps_the_lease_until_a_cancelled_run_ends;
            dead_letters:
                dead_letter_has_every_field_of_its_task,
                dead_letter_of_a_plain_task_has_empty_optional_fields,
                released_starts_are_not_counted_as_attempts,
                dead_letter_of_a_poison_pill_has_times_and_checkpoints,
                dead_letter_returns_its_original_task,
                retry_enqueues_the_task_and_deletes_the_dead_letter,
                retry_restores_checkpoints_byte_for_byte,
                retry_is_refused_while_the_unique_key_is_taken,
                invalid_retry_keeps_the_dead_letter,
                discard_deletes_the_dead_letter,
                cleanup_pending_is_listed_until_marked_cleaned_up,
                dead_letter_of_a_message_has_every_field,
                second_dead_letter_of_a_message_updates_the_first,
                messages_without_an_id_have_separate_dead_letters,
                retry_of_a_message_as_a_task_is_refused,
                filter_by_task_id_excludes_messages_with_that_id,
                invalid_dead_letter_of_a_message_is_refused;
            message_runs:
                starts_are_counted_up_to_the_limit_per_scope_and_copy,
                failed_attempt_clears_starts_and_undone_start_deletes_the_run,
                prune_deletes_old_runs_up_to_the_limit,
                age_counts_from_the_last_failure;
            checkpoints:
                checkpoints_are_ordered_by_first_save_and_replaced,
                checkpoint_with_a_wrong_token_is_refused,
                checkpoint_that_is_not_json_is_refused,
                completion_deletes_the_checkpoints,
                list_for_claim_is_refused_to_a_previous_owner,
                checkpoints_survive_every_disposition_except_completion,
                delete_orphans_keeps_recent_checkpoints_and_those_of_unfinished_tasks;
            pages:
                task_pages_neither_repeat_nor_skip_a_row,
                tasks_are_filtered_by_status_kind_and_queue,
                tasks_are_filtered_by_text_of_payload_or_error,
                dead_letter_pages_neither_repeat_nor_skip_a_row,
                dead_letters_are_filtered_by_kind_document_reason_and_task,
                counts_group_tasks_by_status,
                prune_deletes_only_old_finished_tasks;
            positions:
                position_is_stored_per_stream_and_consumer;
            processed:
                ids_are_claimed_and_released_together,
                id_is_contained_until_its_window_ends,
                recording_an_id_again_restarts_its_window,
                scopes_are_independent,
                ids_are_compared_byte_for_byte,
                prune_deletes_only_ids_outside_the_window,
                clock_set_back_keeps_recorded_ids,
                empty_id_or_scope_is_refused,
                claimed_message_is_in_progress_until_it_is_recorded_or_released,
                recorded_ids_survive_closing_the_store;
            sharing:
                two_stores_see_the_same_tasks,
                two_stores_never_claim_the_same_task,
                unique_key_holds_across_stores,
                watcher_wakes_on_a_write_of_its_own_store,
                watcher_wakes_on_a_write_of_another_store,
                watcher_wakes_when_wake_is_called,
                watcher_does_not_wake_without_a_write,
                closed_store_refuses_every_write,
                acknowledged_write_survives_closing_the_store;
            clock:
                clock_set_back_keeps_a_lease,
                clock_set_back_does_not_run_a_task_early,
                clock_set_back_loses_no_waiting_task,
                next_due_includes_a_task_that_is_not_due_again_after_clock_set_back,
                settle_succeeds_after_clock_set_back;
        }
    };
    (@ $backend:expr; $($module:ident: $($name:ident),+;)+) => {
        $(mod $module {
            $(#[test] fn $name() { crate::conformance::$module::$name(&crate::conformance::Fixture::new($backend)); })+
        })+
    };
}

pub(crate) const SEC: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// Duration of leases in these tests.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// More crashes than any test has.
pub(crate) const NEVER: u32 = 1_000;
/// Kind of tasks in tests that do not depend on it.
pub(crate) const KIND: &str = "convert";

/// Start time of the clock.
pub(crate) fn noon() -> UtcTime {
    UtcTime::parse("2026-01-19 12:00:00").unwrap()
}

/// Returns the time `by` after the start.
pub(crate) fn after(by: Duration) -> UtcTime {
    noon().plus(by)
}

pub(crate) fn plain_task() -> NewTask {
    NewTask::new(KIND, "{}")
}

pub(crate) fn task_with_key(key: &str) -> NewTask {
    NewTask { unique_key: Some(key.to_owned()), ..plain_task() }
}

pub(crate) fn failure(reason: &str) -> TaskFailure {
    TaskFailure {
        reason: reason.to_owned(),
        step: Some("upload".to_owned()),
        details: Some(format!("details of {reason}")),
        output: None,
    }
}

/// Returns one of each disposition.
pub(crate) fn all_dispositions() -> [Disposition; 5] {
    [
        Disposition::Completed(Some("1".to_owned())),
        Disposition::Retry(after(HOUR), failure("again")),
        Disposition::DeadLettered(failure("for good")),
        Disposition::Released,
        Disposition::Postponed(after(HOUR)),
    ]
}

/// A database with an open store, a clock and a worker.
pub(crate) struct Fixture {
    // Dropped before the backend, which deletes its database.
    pub(crate) store: Store,
    pub(crate) clock: ManualClock,
    pub(crate) worker: WorkerId,
    backend: Box<dyn Backend>,
}

impl Fixture {
    pub(crate) fn new(backend: impl Backend + 'static) -> Self {
        let clock = ManualClock::at(noon().micros());
        let store = backend.open(clock.clone());
        Fixture { store, clock, worker: WorkerId::new("worker"), backend: Box::new(backend) }
    }

    /// Opens an independent store on the same database.
    pub(crate) fn open_again(&self) -> Store {
        self.backend.open(self.clock.clone())
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub(crate) fn set_back(&self, by: Duration) {
        self.clock.set_unix_micros(UtcTime::of(&self.clock).minus(by).micros());
    }

    pub(crate) fn enqueue_plain(&self) -> i64 {
        self.enqueue(plain_task())
    }

    pub(crate) fn enqueue(&self, task: NewTask) -> i64 {
        let enqueued = self.store.tasks().enqueue(task).unwrap();
        assert!(enqueued.created);
        enqueued.id
    }

    pub(crate) fn row(&self, id: i64) -> TaskRow {
        self.store.tasks().get(id).unwrap()
    }

    pub(crate) fn status(&self, id: i64) -> TaskStatus {
        self.row(id).status
    }

    pub(crate) fn claim_request(&self, limit: usize) -> ClaimRequest {
        ClaimRequest {
            queue: "default".to_owned(),
            kind: KIND.to_owned(),
            limit,
            max_running: None,
            max_crashed_once: usize::MAX,
            max_crashed_often: usize::MAX,
            lease: LEASE,
            token: self.worker.token(),
        }
    }

    pub(crate) fn claim_batch(&self, limit: usize) -> ClaimBatch {
        self.store.tasks().settle_and_claim(vec![], vec![self.claim_request(limit)]).unwrap()
    }

    /// Claims all tasks that are due.
    pub(crate) fn claim(&self) -> Vec<ClaimedTask> {
        self.claim_batch(1_000).claimed
    }

    /// Claims the only task that is due.
    pub(crate) fn claim_one(&self) -> ClaimedTask {
        let mut claimed = self.claim();
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.remove(0)
    }

    /// Claims all tasks that are due and returns their ids.
    pub(crate) fn claim_ids(&self) -> Vec<i64> {
        self.claim().iter().map(|task| task.id).collect()
    }

    /// Enqueues and claims a task. No other may be due.
    pub(crate) fn enqueue_and_claim(&self) -> ClaimedTask {
        let id = self.enqueue_plain();
        let task = self.claim_one();
        assert_eq!(task.id, id);
        task
    }

    /// Records the start of a task.
    pub(crate) fn start(&self, task: &ClaimedTask) -> bool {
        self.store.tasks().start(task.id, &task.token).unwrap()
    }

    /// Claims and starts the only task that is due.
    pub(crate) fn start_one(&self) -> ClaimedTask {
        let task = self.claim_one();
        assert!(self.start(&task));
        task
    }

    pub(crate) fn settle(&self, task: &ClaimedTask, disposition: Disposition) -> UpdateResult {
        let results =
            self.store.tasks().settle_and_claim(vec![task_update(task, disposition)], vec![]).unwrap().results;
        assert_eq!(results.len(), 1);
        results[0]
    }

    /// Cancels a task, and ends its run if it has one.
    pub(crate) fn cancel(&self, id: i64) {
        if self.store.tasks().cancel(id).unwrap() == CancelOutcome::Requested {
            let requests = self.store.tasks().cancel_requests().unwrap();
            let token = requests.into_iter().find(|(found, _)| *found == id).unwrap().1;
            let disposition = Disposition::Released;
            let ended = TaskUpdate { id, token, disposition, checkpointed: false };
            assert_eq!(
                self.store.tasks().settle_and_claim(vec![ended], vec![]).unwrap().results,
                [UpdateResult::Cancelled]
            );
        }
    }

    pub(crate) fn dead_letter(&self, task: &ClaimedTask, reason: &str) -> i64 {
        match self.settle(task, Disposition::DeadLettered(failure(reason))) {
            UpdateResult::DeadLettered(dead_letter) => dead_letter,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn heartbeat(&self, task: &ClaimedTask) -> HeartbeatResult {
        let results = self.store.tasks().heartbeat(vec![(task.id, task.token.clone())], LEASE).unwrap();
        assert_eq!(results.len(), 1);
        results[0]
    }

    pub(crate) fn save_checkpoint(&self, task: &ClaimedTask, step: &str, data: &str) -> Result<(), Error> {
        self.store.checkpoints().save(task.id, &task.token, step, data)
    }

    /// Returns the steps and data of a task's checkpoints.
    pub(crate) fn checkpoints(&self, task: i64) -> Vec<(String, String)> {
        let saved = self.store.checkpoints().list(task).unwrap();
        saved.into_iter().map(|checkpoint| (checkpoint.step, checkpoint.data)).collect()
    }

    /// Returns every task, newest first.
    pub(crate) fn rows(&self) -> Vec<TaskRow> {
        self.store.tasks().list(&TaskFilter::default(), None, 10_000).unwrap().items
    }

    /// Returns every dead letter, newest first.
    pub(crate) fn dead_letters(&self) -> Vec<DeadLetter> {
        self.store.dead_letters().list(&DeadLetterFilter::default(), None, 10_000).unwrap().items
    }
}

pub(crate) fn task_update(task: &ClaimedTask, disposition: Disposition) -> TaskUpdate {
    TaskUpdate { id: task.id, token: task.token.clone(), disposition, checkpointed: true }
}

/// Asserts that a call failed as `refusal` checks, and that the text contains all `parts`.
#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    result: Result<T, Error>,
    refusal: fn(&Error) -> bool,
    parts: &[&str],
) {
    let error = result.expect_err("should be refused");
    assert!(refusal(&error), "{error:?}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
}

pub(crate) fn invalid(error: &Error) -> bool {
    matches!(error, Error::Invalid(_))
}

pub(crate) fn conflict(error: &Error) -> bool {
    matches!(error, Error::Conflict(_))
}

pub(crate) fn not_found(error: &Error) -> bool {
    matches!(error, Error::NotFound(_))
}
