//! What a database of work must do, whatever is behind it: one suite, run over each backend.
//!
//! Written against the public API alone. A test is a function over a [`Mill`]; [`conformance!`] makes the tests of
//! one backend, and a function that it does not name is dead code. Time stands still unless a test moves it.

pub(crate) mod checkpoints;
pub(crate) mod clock;
pub(crate) mod leases;
pub(crate) mod letters;
pub(crate) mod pages;
pub(crate) mod positions;
pub(crate) mod seen;
pub(crate) mod sharing;
pub(crate) mod tasks;
pub(crate) mod verdicts;

use std::time::Duration;

use gristmill_store::dead_letters::{DeadLetter, DeadLetterFilter};
use gristmill_store::lease::{HeartbeatResult, WorkerId};
use gristmill_store::tasks::{
    CancelOutcome, ClaimBatch, ClaimRequest, ClaimedTask, Disposition, NewTask, TaskFailure, TaskFilter,
    TaskRow, TaskStatus, TaskUpdate, UpdateResult,
};
use gristmill_store::{Error, Store, UtcTime, WallClock};

/// Where a store comes from. One value is one database, empty at first.
pub(crate) trait Backend {
    /// Opens the database; each call is another, independent opening of the same one.
    fn open(&self, clock: WallClock) -> Store;
}

/// Makes the tests of a backend, from an expression for a new and empty one.
macro_rules! conformance {
    ($backend:expr) => {
        conformance! { @ $backend;
            tasks:
                ids_grow_in_the_order_of_enqueueing,
                a_payload_is_kept_byte_for_byte,
                a_task_is_kept_as_it_was_asked_for,
                what_is_not_legal_is_refused_with_what_is,
                what_is_just_legal_is_taken,
                many_tasks_go_in_all_or_none,
                a_second_task_with_a_key_is_the_first,
                a_key_is_free_again_when_its_task_is_finished,
                a_key_is_for_one_kind,
                urgent_tasks_come_first_and_equal_ones_in_order,
                queues_and_kinds_are_kept_apart,
                a_claim_takes_no_more_than_its_limit,
                a_claim_does_not_bring_more_than_so_many_to_run,
                wants_under_one_token_share_their_limit,
                a_scheduled_task_waits_for_its_time,
                a_time_that_has_come_is_no_reason_to_wait,
                the_next_due_time_is_told_when_something_is_missing,
                a_scheduled_task_can_be_hurried,
                only_a_scheduled_task_can_be_hurried,
                a_task_can_be_cancelled_until_it_is_finished,
                cancelling_forgets_the_checkpoints,
                a_running_task_is_cancelled_when_its_run_has_ended,
                what_does_not_exist_is_not_found,
                nothing_overwrites_a_finished_task;
            verdicts:
                completed_keeps_the_result,
                tasks_completed_together_are_settled_each_by_itself,
                retry_counts_the_attempt_and_waits,
                buried_leaves_a_letter,
                released_is_as_if_never_claimed,
                postponed_waits_and_counts_nothing,
                the_first_failure_is_remembered,
                one_turn_settles_and_claims,
                one_turn_answers_each_settlement_in_order,
                a_turn_that_wants_nothing_claims_nothing,
                a_result_that_is_not_json_is_refused_with_what_is_legal,
                a_stranger_can_settle_nothing,
                a_released_task_is_not_its_old_owners;
            leases:
                a_claim_is_written_with_its_token,
                every_claim_has_a_token_of_its_own,
                a_claimed_task_is_nobody_elses,
                a_heartbeat_prolongs_the_lease,
                a_heartbeat_on_an_expired_lease_keeps_a_task_that_nobody_took,
                a_heartbeat_of_a_stranger_is_lost,
                heartbeats_are_answered_in_order,
                a_lease_ends_at_its_very_moment,
                a_lease_for_ever_does_not_expire,
                recovery_frees_what_has_expired_and_nothing_else,
                a_rescued_and_reclaimed_task_is_not_its_old_owners,
                a_late_verdict_counts_while_nobody_took_the_task,
                the_worker_of_a_poison_pill_dies_so_often_and_no_more,
                crashes_and_attempts_are_counted_apart,
                claims_that_were_never_started_make_no_poison_pill,
                tasks_whose_worker_died_are_not_passed_over_for_others_of_their_urgency,
                starts_are_counted_once_whichever_way_they_end,
                a_lost_claim_cannot_be_started,
                an_exchange_claims_only_what_is_more_urgent,
                releasing_is_no_crash,
                a_worker_keeps_its_lease_until_the_run_of_a_cancelled_task_has_ended;
            letters:
                a_letter_says_all_there_is_to_know,
                a_letter_of_a_plain_task_says_so,
                starts_that_were_given_back_are_no_attempts,
                a_poison_pill_has_its_times_and_checkpoints_too,
                a_letter_gives_its_task_back,
                retrying_puts_the_task_back_and_takes_the_letter_away,
                restored_checkpoints_mean_what_they_meant,
                a_retry_against_a_living_key_leaves_the_letter,
                a_retry_that_is_not_legal_leaves_the_letter,
                a_discarded_letter_is_gone,
                what_was_not_cleaned_up_is_told_until_it_is,
                a_message_can_be_given_up_too,
                a_message_that_is_given_up_again_is_one_letter,
                messages_without_an_id_are_letters_of_their_own,
                a_message_is_not_made_a_task,
                a_message_is_not_taken_for_a_task_of_its_number,
                a_letter_of_a_message_that_is_not_legal_is_refused;
            checkpoints:
                steps_are_kept_in_order_and_replaced,
                only_the_owner_may_note_a_step,
                what_is_not_json_is_refused,
                completion_forgets_them,
                only_the_owner_finds_the_steps_of_its_claim,
                they_outlive_every_other_verdict,
                cleaning_spares_unfinished_tasks_and_young_checkpoints;
            pages:
                pages_neither_repeat_nor_skip_a_task,
                tasks_are_filtered,
                pages_neither_repeat_nor_skip_a_letter,
                letters_are_filtered,
                counts_are_by_status,
                pruning_forgets_old_finished_tasks_only;
            positions:
                a_position_is_that_of_its_stream_and_consumer;
            seen:
                a_message_is_known_until_its_window_is_over,
                what_is_recorded_again_counts_from_then_on,
                scopes_do_not_see_each_other,
                ids_are_told_apart_to_the_byte,
                pruning_forgets_what_is_not_known_any_more_and_nothing_else,
                a_clock_set_back_forgets_nothing,
                what_cannot_be_known_again_is_refused,
                claimed_message_is_in_progress_until_it_is_recorded_or_released, what_was_seen_outlives_the_store;
            sharing:
                two_stores_see_each_others_work,
                two_stores_never_claim_the_same_task,
                a_key_holds_across_stores,
                a_watch_wakes_for_our_own_write,
                a_watch_wakes_for_another_stores_write,
                a_watch_wakes_when_called,
                a_watch_rests_when_nothing_happens,
                a_closed_store_refuses_every_write,
                what_was_written_outlives_the_store;
            clock:
                a_clock_set_back_keeps_a_lease,
                a_clock_set_back_makes_nobody_early,
                a_clock_set_back_loses_no_waiting_task,
                the_next_due_time_counts_a_task_that_is_early_again,
                a_clock_set_back_while_settling_is_harmless;
        }
    };
    (@ $backend:expr; $($module:ident: $($name:ident),+;)+) => {
        $(mod $module {
            $(#[test] fn $name() { crate::conformance::$module::$name(&crate::conformance::Mill::new($backend)); })+
        })+
    };
}

pub(crate) const SEC: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// How long tasks are leased here.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// More crashes than any test has.
pub(crate) const NEVER: u32 = 1_000;
/// The kind of task that is not about its kind.
pub(crate) const KIND: &str = "grind";

/// A moment to begin at.
pub(crate) fn noon() -> UtcTime {
    UtcTime::parse("2026-01-19 12:00:00").unwrap()
}

/// So long after the beginning.
pub(crate) fn after(by: Duration) -> UtcTime {
    noon().plus(by)
}

pub(crate) fn plain() -> NewTask {
    NewTask::new(KIND, "{}")
}

pub(crate) fn keyed(key: &str) -> NewTask {
    NewTask { unique_key: Some(key.to_owned()), ..plain() }
}

pub(crate) fn failure(reason: &str) -> TaskFailure {
    TaskFailure {
        reason: reason.to_owned(),
        step: Some("sieve".to_owned()),
        details: Some(format!("all about {reason}")),
        output: None,
    }
}

/// One of each.
pub(crate) fn verdicts() -> [Disposition; 5] {
    [
        Disposition::Completed(Some("1".to_owned())),
        Disposition::Retry(after(HOUR), failure("again")),
        Disposition::DeadLettered(failure("for good")),
        Disposition::Released,
        Disposition::Postponed(after(HOUR)),
    ]
}

/// A database with one store open, a clock and a worker.
pub(crate) struct Mill {
    // Closed before the backend takes its database away.
    pub(crate) store: Store,
    pub(crate) clock: WallClock,
    pub(crate) worker: WorkerId,
    backend: Box<dyn Backend>,
}

impl Mill {
    pub(crate) fn new(backend: impl Backend + 'static) -> Self {
        let clock = WallClock::manual(noon());
        let store = backend.open(clock.clone());
        Mill { store, clock, worker: WorkerId::new("miller"), backend: Box::new(backend) }
    }

    /// A second, independent opening of the same database.
    pub(crate) fn again(&self) -> Store {
        self.backend.open(self.clock.clone())
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.set(self.clock.now().plus(by));
    }

    pub(crate) fn set_back(&self, by: Duration) {
        self.clock.set(self.clock.now().minus(by));
    }

    pub(crate) fn put(&self) -> i64 {
        self.add(plain())
    }

    pub(crate) fn add(&self, task: NewTask) -> i64 {
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

    pub(crate) fn wanted(&self, limit: usize) -> ClaimRequest {
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

    pub(crate) fn turn(&self, limit: usize) -> ClaimBatch {
        self.store.tasks().settle_and_claim(vec![], vec![self.wanted(limit)]).unwrap()
    }

    /// All that is due.
    pub(crate) fn claim(&self) -> Vec<ClaimedTask> {
        self.turn(1_000).claimed
    }

    /// The one task that is due.
    pub(crate) fn claim_one(&self) -> ClaimedTask {
        let mut claimed = self.claim();
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.remove(0)
    }

    /// The ids of all that is due, which are claimed.
    pub(crate) fn claim_ids(&self) -> Vec<i64> {
        self.claim().iter().map(|task| task.id).collect()
    }

    /// A new task, claimed. Nothing else may be due.
    pub(crate) fn put_and_claim(&self) -> ClaimedTask {
        let id = self.put();
        let task = self.claim_one();
        assert_eq!(task.id, id);
        task
    }

    /// Records a start.
    pub(crate) fn start(&self, task: &ClaimedTask) -> bool {
        self.store.tasks().start(task.id, &task.token).unwrap()
    }

    /// Claims and starts the one task that is due.
    pub(crate) fn start_one(&self) -> ClaimedTask {
        let task = self.claim_one();
        assert!(self.start(&task));
        task
    }

    pub(crate) fn settle(&self, task: &ClaimedTask, verdict: Disposition) -> UpdateResult {
        let settled =
            self.store.tasks().settle_and_claim(vec![settlement(task, verdict)], vec![]).unwrap().results;
        assert_eq!(settled.len(), 1);
        settled[0]
    }

    /// Cancels a task, and ends its run if it has one.
    pub(crate) fn cancel(&self, id: i64) {
        if self.store.tasks().cancel(id).unwrap() == CancelOutcome::Requested {
            let requests = self.store.tasks().cancel_requests().unwrap();
            let token = requests.into_iter().find(|(found, _)| *found == id).unwrap().1;
            let verdict = Disposition::Released;
            let ended = TaskUpdate { id, token, disposition: verdict, checkpointed: false };
            assert_eq!(
                self.store.tasks().settle_and_claim(vec![ended], vec![]).unwrap().results,
                [UpdateResult::Cancelled]
            );
        }
    }

    pub(crate) fn bury(&self, task: &ClaimedTask, reason: &str) -> i64 {
        match self.settle(task, Disposition::DeadLettered(failure(reason))) {
            UpdateResult::DeadLettered(letter) => letter,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn beat(&self, task: &ClaimedTask) -> HeartbeatResult {
        let beats = self.store.tasks().heartbeat(vec![(task.id, task.token.clone())], LEASE).unwrap();
        assert_eq!(beats.len(), 1);
        beats[0]
    }

    pub(crate) fn note(&self, task: &ClaimedTask, step: &str, data: &str) -> Result<(), Error> {
        self.store.checkpoints().save(task.id, &task.token, step, data)
    }

    /// Steps and what was noted.
    pub(crate) fn notes(&self, task: i64) -> Vec<(String, String)> {
        let kept = self.store.checkpoints().list(task).unwrap();
        kept.into_iter().map(|checkpoint| (checkpoint.step, checkpoint.data)).collect()
    }

    /// Every task, newest first.
    pub(crate) fn rows(&self) -> Vec<TaskRow> {
        self.store.tasks().list(&TaskFilter::default(), None, 10_000).unwrap().items
    }

    /// Every letter, newest first.
    pub(crate) fn letters(&self) -> Vec<DeadLetter> {
        self.store.dead_letters().list(&DeadLetterFilter::default(), None, 10_000).unwrap().items
    }
}

pub(crate) fn settlement(task: &ClaimedTask, verdict: Disposition) -> TaskUpdate {
    TaskUpdate { id: task.id, token: task.token.clone(), disposition: verdict, checkpointed: true }
}

/// Refused as `refusal` says, with every one of `parts` in its text.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(
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
