//! `--drain`: decides when no message is left.
//!
//! A message in transit between the broker and a consumer is counted by neither, so nothing must happen for
//! `IDLE_PERIOD`. A message that the broker returns from a retry queue is in no queue: the consumer counts those that
//! it postponed itself, and the management API those of earlier runs. While the action fails, consuming is paused and
//! no message is finished.

use std::time::Duration;

use gristmill_amqp::stats::ConsumerStats;
use gristmill_amqp::{Client, ClientStats, Error as AmqpError, derived_queue_names};
use tokio::time::{Instant, timeout};

use super::end::poll_ticks;
use super::returning_counter::ReturningCounter;
use super::streams::StreamEnds;
use crate::units::{count_of, show_duration, thousands};

/// Queues count as drained after nothing has happened for this long.
const IDLE_PERIOD: Duration = Duration::from_millis(500);

/// Default of `--drain-timeout`: how long nothing may change while messages are left. The broker itself retries after
/// three minutes to return a message to a queue that was full.
pub(super) const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Lower bound of the time that the broker may be disconnected or silent: it may restart.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// AMQP reply code for a queue that does not exist.
const NOT_FOUND: u16 = 404;

#[derive(Clone, Debug, PartialEq, Eq)]
enum DrainState {
    Pending,
    Drained,
    /// The queues are empty, but this many postponed messages have not come back.
    Missing(u64),
    /// The consumers at these indexes are paused and finished no message within the timeout; the others are drained.
    Blocked(Vec<usize>),
    /// The broker did not answer within the timeout, or was disconnected that long while no action ran.
    Unanswered,
}

pub(super) struct DrainOutcome {
    /// Messages that are left, and the reason, if the drain ended early.
    pub(super) unfinished: Option<String>,
    /// Reason why uncounted messages may be left, if that is possible.
    pub(super) uncounted: Option<String>,
}

/// Waits until no message is left, or until nothing has changed for `limit` while messages are left.
pub(super) async fn until_drained(
    client: &Client,
    limit: Duration,
    returning: ReturningCounter,
) -> Result<DrainOutcome, AmqpError> {
    let streams = StreamEnds::fetch(client).await?;
    let mut detector = DrainDetector::new(limit, returning);
    let mut ticks = poll_ticks();
    loop {
        ticks.tick().await;
        let state = match timeout(limit.max(MIN_ANSWER_TIMEOUT), detector.observe(client, &streams)).await {
            Ok(progress) => progress?,
            Err(_) => DrainState::Unanswered,
        };
        if state != DrainState::Pending {
            let unfinished = describe_unfinished(client, &streams, &state, limit).await?;
            return Ok(DrainOutcome { unfinished, uncounted: detector.uncounted() });
        }
    }
}

/// Detects that no message is left, or that the remaining ones cannot be finished.
struct DrainDetector {
    timeout: Duration,
    /// Time since which nothing has happened, and the counts at that time.
    idle: Option<(Instant, ProgressCounts)>,
    /// State of each consumer that is paused.
    paused: Vec<Option<PausedConsumer>>,
    /// Time since which no action runs and there is no connection.
    disconnected: Option<Instant>,
    /// Existing retry queues, looked up once: the broker logs an error for each lookup of a missing queue.
    retry_queues: Option<Vec<String>>,
    returning: ReturningCounter,
}

/// Counts that change with every event of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProgressCounts {
    handled: u64,
    postponed: u64,
}

/// A paused consumer that finishes no message.
#[derive(Clone, Copy, Debug)]
struct PausedConsumer {
    /// Time since which it finished no message.
    since: Instant,
    /// Number of messages that it had finished before.
    finished: u64,
    /// Time since which at least one handler has run without a gap.
    handling_since: Option<Instant>,
}

/// Part of a consumer's state that shows whether it is blocked.
#[derive(Clone, Copy, Debug)]
struct ConsumerActivity {
    is_paused: bool,
    /// A handler runs: a probe, or one started before the pause.
    is_handling: bool,
    is_connected: bool,
    /// Number of finished messages and failed attempts.
    finished: u64,
}

impl ConsumerActivity {
    fn of(one: &ConsumerStats) -> Self {
        ConsumerActivity {
            is_paused: one.paused.is_some(),
            is_handling: one.in_flight > 0,
            is_connected: one.consuming,
            finished: one.handled + one.retried + one.dead_lettered + one.skipped + one.expired,
        }
    }
}

impl DrainDetector {
    fn new(timeout: Duration, returning: ReturningCounter) -> Self {
        DrainDetector { timeout, idle: None, paused: Vec::new(), disconnected: None, retry_queues: None, returning }
    }

    fn uncounted(&self) -> Option<String> {
        self.returning.uncounted()
    }

    async fn observe(&mut self, client: &Client, streams: &StreamEnds) -> Result<DrainState, AmqpError> {
        let stats = client.stats();
        let activities: Vec<ConsumerActivity> = stats.consumers.iter().map(ConsumerActivity::of).collect();
        let blocked = self.blocked(Instant::now(), &activities);
        let is_disconnected = stats.consumers.iter().any(|one| !one.consuming);
        let is_handling = stats.consumers.iter().any(|one| one.in_flight > 0);
        if self.is_disconnected_too_long(Instant::now(), is_disconnected && !is_handling) {
            return Ok(DrainState::Unanswered);
        }
        let stats = without(stats, &blocked);
        let streams = &streams.without(&blocked);
        if !streams.are_read(&stats) {
            self.idle = None;
            return Ok(DrainState::Pending);
        }
        let stats = &streams.queues_only(stats);
        let is_idle =
            |stats: &ClientStats| stats.consumers.iter().all(|one| one.consuming && one.in_flight + one.waiting == 0);
        let is_empty = is_idle(stats)
            && self.are_queues_empty(client, stats).await?
            && is_idle(&streams.queues_only(without(client.stats(), &blocked)));
        let retry_queues = self.retry_queues.as_deref().unwrap_or_default();
        let returning = if is_empty { self.returning.count(retry_queues).await } else { Some(0) };
        let Some(returning) = returning else {
            self.idle = None;
            return Ok(DrainState::Pending);
        };
        let counts = ProgressCounts {
            handled: stats.consumers.iter().map(|one| one.received + one.acknowledged).sum(),
            postponed: returning.max(stats.consumers.iter().map(|one| one.postponed + one.overdue).sum()),
        };
        Ok(match self.decide(Instant::now(), is_empty, counts) {
            DrainState::Drained if !blocked.is_empty() => DrainState::Blocked(blocked),
            state => state,
        })
    }

    /// Returns the indexes of consumers that are paused and finished no message within the timeout. A handler that runs
    /// may finish one, unless it has run for as long.
    fn blocked(&mut self, now: Instant, consumers: &[ConsumerActivity]) -> Vec<usize> {
        self.paused.resize(consumers.len(), None);
        let is_over = |since: Instant| now.duration_since(since) >= self.timeout;
        let mut blocked = Vec::new();
        for (at, (paused, one)) in self.paused.iter_mut().zip(consumers).enumerate() {
            let before = paused.take().filter(|before| before.finished == one.finished);
            if one.is_paused {
                let mut state =
                    before.unwrap_or(PausedConsumer { since: now, finished: one.finished, handling_since: None });
                state.handling_since = one.is_handling.then(|| state.handling_since.unwrap_or(now));
                if one.is_connected && is_over(state.since) && state.handling_since.is_none_or(is_over) {
                    blocked.push(at);
                }
                *paused = Some(state);
            }
        }
        blocked
    }

    fn is_disconnected_too_long(&mut self, now: Instant, is_disconnected: bool) -> bool {
        let since = self.disconnected.take().unwrap_or(now);
        self.disconnected = is_disconnected.then_some(since);
        is_disconnected && now.duration_since(since) >= self.timeout.max(MIN_ANSWER_TIMEOUT)
    }

    fn decide(&mut self, now: Instant, is_empty: bool, counts: ProgressCounts) -> DrainState {
        let before = self.idle.take();
        if !is_empty {
            return DrainState::Pending;
        }
        let (since, _) = *self.idle.insert(before.filter(|(_, then)| *then == counts).unwrap_or((now, counts)));
        let elapsed = now.duration_since(since);
        match counts.postponed {
            0 if elapsed >= IDLE_PERIOD => DrainState::Drained,
            missing @ 1.. if elapsed >= self.timeout => DrainState::Missing(missing),
            _ => DrainState::Pending,
        }
    }

    /// Whether the queues and their retry queues are empty.
    async fn are_queues_empty(&mut self, client: &Client, stats: &ClientStats) -> Result<bool, AmqpError> {
        for one in &stats.consumers {
            match client.queue_depth(&one.queue).await {
                Ok((0, _)) => {}
                Ok(_) => return Ok(false),
                Err(error) if error.is_transient() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if self.retry_queues.is_none() {
            let mut found = Vec::new();
            for one in &stats.consumers {
                match retry_queues(client, &one.queue).await {
                    Ok(queues) => found.extend(queues.into_iter().map(|(queue, _)| queue)),
                    Err(error) if error.is_transient() => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            self.retry_queues = Some(found);
        }
        for queue in self.retry_queues.iter().flatten() {
            match depth_if_exists(client, queue).await {
                Ok(Some(1..)) => return Ok(false),
                // A queue that was deleted meanwhile has no messages.
                Ok(Some(0) | None) => {}
                Err(error) if error.is_transient() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Removes the consumers at these indexes.
fn without(mut stats: ClientStats, indexes: &[usize]) -> ClientStats {
    let mut at = 0;
    stats.consumers.retain(|_| {
        at += 1;
        !indexes.contains(&(at - 1))
    });
    stats
}

/// Returns the existing retry queues of a queue with their numbers of messages.
async fn retry_queues(client: &Client, queue: &str) -> Result<Vec<(String, u32)>, AmqpError> {
    let mut found = Vec::new();
    for (at, queue) in derived_queue_names(queue).skip(1).enumerate() {
        match depth_if_exists(client, &queue).await? {
            Some(messages) => found.push((queue, messages)),
            // The first retry queue exists whenever another one does.
            None if at == 0 => break,
            None => {}
        }
    }
    Ok(found)
}

/// Number of messages in a queue; none if it does not exist.
async fn depth_if_exists(client: &Client, queue: &str) -> Result<Option<u32>, AmqpError> {
    match client.queue_depth(queue).await {
        Ok((messages, _)) => Ok(Some(messages)),
        Err(AmqpError::Channel { code: NOT_FOUND, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Describes which messages are left when a drain ends early, and what to do about it.
async fn describe_unfinished(
    client: &Client,
    streams: &StreamEnds,
    state: &DrainState,
    limit: Duration,
) -> Result<Option<String>, AmqpError> {
    let timeout = show_duration(limit);
    Ok(match state {
        DrainState::Pending | DrainState::Drained => None,
        DrainState::Missing(count) => Some(format!(
            "{} that waited for a retry did not come back within {timeout}, and the queues are empty: another consumer has \
                 received them, or the broker cannot return them to their queue",
            count_of(*count, "message")
        )),
        DrainState::Unanswered => Some(format!(
            "the broker has not answered for {}: unknown whether messages are left",
            show_duration(limit.max(MIN_ANSWER_TIMEOUT))
        )),
        DrainState::Blocked(indexes) => {
            let stats = client.stats();
            let mut left = Vec::new();
            for index in indexes {
                if let Some(one) = stats.consumers.get(*index) {
                    left.push(describe_unhandled(client, one, streams.end(*index)).await?);
                }
            }
            Some(format!(
                "no message was finished for {timeout}, because consuming is paused: {}. Fix the cause, then run the same \
                     command again: these messages keep their attempts",
                left.join("; ")
            ))
        }
    })
}

/// Describes what a blocked consumer leaves: the number of messages, where they are, and why.
async fn describe_unhandled(
    client: &Client,
    one: &ConsumerStats,
    stream_end: Option<u64>,
) -> Result<String, AmqpError> {
    let queue = &one.queue;
    let why = one.paused.as_deref().unwrap_or("unknown cause");
    if let Some(end) = stream_end {
        let position = one.position.unwrap_or_default();
        let count = count_of((end + 1).saturating_sub(position), "message");
        return Ok(format!("{count} unhandled (in the stream {queue}, from offset {position}): {why}"));
    }
    // Messages held by this process return to their queue.
    let in_queue = u64::from(client.queue_depth(queue).await?.0) + one.waiting + one.in_flight;
    let waiting = retry_queues(client, queue).await?;
    let waiting: Vec<_> = waiting.iter().filter(|(_, messages)| *messages > 0).collect();
    let all = in_queue + waiting.iter().map(|(_, messages)| u64::from(*messages)).sum::<u64>();
    let mut depths = vec![format!("{} in {queue}", thousands(in_queue))];
    depths.extend(waiting.iter().map(|(name, messages)| format!("{} in {name}", thousands((*messages).into()))));
    Ok(format!("{} unhandled ({}): {why}", count_of(all, "message"), depths.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_when_idle_and_no_postponed_message_is_missing() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let counts = |handled, postponed| ProgressCounts { handled, postponed };
        let minutes = DEFAULT_DRAIN_TIMEOUT.as_millis() as u64;
        for (steps, expected) in [
            (vec![(0, true, counts(1, 0)), (499, true, counts(1, 0))], DrainState::Pending),
            (vec![(0, true, counts(1, 0)), (500, true, counts(1, 0))], DrainState::Drained),
            // A message was handled, or waits, meanwhile.
            (vec![(0, true, counts(1, 0)), (500, true, counts(2, 0))], DrainState::Pending),
            (vec![(0, true, counts(1, 0)), (400, false, counts(1, 0)), (500, true, counts(1, 0))], DrainState::Pending),
            // A postponed message has not come back.
            (vec![(0, true, counts(1, 1)), (minutes - 1, true, counts(1, 1))], DrainState::Pending),
            (vec![(0, true, counts(1, 3)), (minutes, true, counts(1, 3))], DrainState::Missing(3)),
            (
                vec![(0, true, counts(1, 3)), (9, true, counts(1, 2)), (minutes, true, counts(1, 2))],
                DrainState::Pending,
            ),
            (vec![(0, true, counts(1, 1)), (9, true, counts(2, 0)), (509, true, counts(2, 0))], DrainState::Drained),
        ] {
            let mut detector = DrainDetector::new(DEFAULT_DRAIN_TIMEOUT, ReturningCounter::new(None));
            let last = steps.iter().map(|(time, empty, counts)| detector.decide(at(*time), *empty, *counts)).last();
            assert_eq!(last, Some(expected), "{steps:?}");
        }
    }

    #[test]
    fn paused_consumer_without_progress_is_blocked_after_timeout() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let paused = |finished| ConsumerActivity { is_paused: true, is_handling: false, is_connected: true, finished };
        let probing = |finished| ConsumerActivity { is_handling: true, ..paused(finished) };
        let disconnected = |finished| ConsumerActivity { is_connected: false, ..paused(finished) };
        let working = |finished| ConsumerActivity { is_paused: false, ..paused(finished) };
        for (steps, expected) in [
            (vec![(0, paused(3)), (299, paused(3))], false),
            (vec![(0, paused(3)), (300, paused(3))], true),
            // A running probe may succeed, and so may a handler started before the pause.
            (vec![(0, paused(3)), (300, probing(3))], false),
            (vec![(0, paused(3)), (250, probing(3)), (300, paused(3))], true),
            (vec![(0, probing(3)), (299, probing(3))], false),
            // A handler hangs.
            (vec![(0, probing(3)), (300, probing(3))], true),
            (vec![(0, paused(3)), (250, probing(3)), (549, probing(3))], false),
            (vec![(0, paused(3)), (250, probing(3)), (550, probing(3))], true),
            (vec![(0, probing(3)), (250, probing(4)), (300, probing(4))], false),
            (vec![(0, probing(3)), (250, paused(3)), (251, probing(3)), (300, probing(3))], false),
            (vec![(0, paused(3)), (900, disconnected(3))], false),
            // A message was finished, or the consumer was not paused, meanwhile.
            (vec![(0, paused(3)), (250, paused(4)), (300, paused(4))], false),
            (vec![(0, paused(3)), (250, working(3)), (251, paused(3)), (300, paused(3))], false),
            (vec![(0, working(3)), (900, working(3))], false),
            (vec![(0, working(3)), (900, paused(3))], false),
        ] {
            let mut detector = DrainDetector::new(DEFAULT_DRAIN_TIMEOUT, ReturningCounter::new(None));
            let last = steps.iter().map(|(time, one)| detector.blocked(at(*time), &[working(0), *one])).last();
            assert_eq!(last, Some(if expected { vec![1] } else { vec![] }), "{steps:?}");
        }
    }

    #[test]
    fn drain_ends_when_broker_stays_disconnected() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (steps, expected) in [
            (vec![(0, true), (299, true)], false),
            (vec![(0, true), (300, true)], true),
            (vec![(0, true), (299, false), (300, true)], false),
            (vec![(0, false), (300, false)], false),
            (vec![(0, false), (300, true), (599, true)], false),
        ] {
            let mut detector = DrainDetector::new(DEFAULT_DRAIN_TIMEOUT, ReturningCounter::new(None));
            let is_too_long =
                |(time, is_disconnected): &(u64, bool)| detector.is_disconnected_too_long(at(*time), *is_disconnected);
            assert_eq!(steps.iter().map(is_too_long).last(), Some(expected), "{steps:?}");
        }
    }
}
