//! `--drain`: whether nothing is left to do.
//!
//! Owns what is asked of the broker, how long nothing must happen, and how long nothing may happen while messages are left. A
//! message on its way between the broker and a consumer is counted by neither, so that nothing must have happened for a while;
//! one that the broker returns from the queue where it waited for another attempt is in no queue, so that the consumer counts
//! those that it expects back, and the management API those of earlier runs. While the sink fails, consuming is paused and no message is finished.

use std::time::Duration;

use gristmill_amqp::stats::ConsumerStats;
use gristmill_amqp::{Client, ClientStats, Error as Fault, derived_queue_names};
use tokio::time::{Instant, timeout};

use super::returning::Returning;
use super::streams::Streams;
use super::supervisor::ticks;
use crate::output::{count_of, thousands};
use crate::settings::value::show_duration;

/// How long nothing must happen for there to be nothing left.
const STILL: Duration = Duration::from_millis(500);

/// For how long nothing may change while messages are left, unless `--drain-timeout` says otherwise. The broker itself tries
/// again after three minutes to return a message to a queue that was full.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);

/// How long the broker may be away or give no answer at least, whatever `--drain-timeout` says: it may be busy, or restart.
const UNANSWERED: Duration = Duration::from_secs(20);

/// The number with which the broker answers that a queue does not exist.
const NOT_FOUND: u16 = 404;

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    NotYet,
    /// Nothing is left.
    Drained,
    /// The queues are empty, but this number of messages that were postponed has not come back.
    Missing(u64),
    /// These consumers, by their places, are paused and have finished no message for too long; the others are drained.
    Blocked(Vec<usize>),
    /// The broker has not answered for too long, or nothing runs and there has been no connection for too long.
    Unanswered,
}

/// How a drain ended.
pub(super) struct End {
    /// Which messages are left, and why, if it ended early.
    pub(super) unfinished: Option<String>,
    /// Why messages may be left though nothing is counted, if they may.
    pub(super) uncounted: Option<String>,
}

/// Waits until nothing is left, or nothing has changed for `limit` while messages are left.
pub(super) async fn until_drained(
    client: &Client,
    limit: Duration,
    returning: Returning,
) -> Result<End, Fault> {
    let streams = Streams::now(client).await?;
    let mut detector = DrainDetector::new(limit, returning);
    let mut ticks = ticks();
    loop {
        ticks.tick().await;
        let progress = match timeout(limit.max(UNANSWERED), detector.observe(client, &streams)).await {
            Ok(progress) => progress?,
            Err(_) => Progress::Unanswered,
        };
        if progress != Progress::NotYet {
            let unfinished = unfinished(client, &streams, &progress, limit).await?;
            return Ok(End { unfinished, uncounted: detector.uncounted() });
        }
    }
}

/// Sees when nothing is left, or nothing can be done about what is left.
struct DrainDetector {
    /// For how long nothing may change while messages are left.
    timeout: Duration,
    /// Since when nothing has happened, and the counts at that time.
    still: Option<(Instant, Counts)>,
    /// For each consumer that is paused: since when it has finished no message, and how many it had finished before.
    paused: Vec<Option<(Instant, u64)>>,
    /// Since when nothing runs and there is no connection.
    away: Option<Instant>,
    /// Queues where messages of earlier runs may wait for another attempt. The broker logs every question about a queue that
    /// does not exist, so it is asked about them once.
    retry_queues: Option<Vec<String>>,
    returning: Returning,
}

/// What changes when something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    handled: u64,
    postponed: u64,
}

/// A consumer as far as its pause matters.
#[derive(Clone, Copy, Debug)]
struct Activity {
    is_paused: bool,
    /// A handler runs (a probe, or one that was started before the pause), or there is no connection.
    is_busy: bool,
    /// Messages that ended, and attempts that they used.
    finished: u64,
}

impl Activity {
    fn of(one: &ConsumerStats) -> Self {
        Activity {
            is_paused: one.paused.is_some(),
            is_busy: one.in_flight > 0 || !one.consuming,
            finished: one.done + one.retried + one.rejected + one.skipped + one.expired,
        }
    }
}

impl DrainDetector {
    fn new(timeout: Duration, returning: Returning) -> Self {
        DrainDetector { timeout, still: None, paused: Vec::new(), away: None, retry_queues: None, returning }
    }

    fn uncounted(&self) -> Option<String> {
        self.returning.uncounted()
    }

    async fn observe(&mut self, client: &Client, streams: &Streams) -> Result<Progress, Fault> {
        let stats = client.stats();
        let activities: Vec<Activity> = stats.consumers.iter().map(Activity::of).collect();
        let blocked = self.blocked(Instant::now(), &activities);
        let is_away = stats.consumers.iter().any(|one| !one.consuming);
        let runs = stats.consumers.iter().any(|one| one.in_flight > 0);
        if self.is_away_for_too_long(Instant::now(), is_away && !runs) {
            return Ok(Progress::Unanswered);
        }
        let stats = without(stats, &blocked);
        let streams = &streams.without(&blocked);
        if !streams.are_read(&stats) {
            self.still = None;
            return Ok(Progress::NotYet);
        }
        let stats = &streams.queues_only(stats);
        let is_idle = |stats: &ClientStats| {
            stats.consumers.iter().all(|one| one.consuming && one.in_flight + one.waiting == 0)
        };
        let is_empty = is_idle(stats)
            && self.is_empty(client, stats).await?
            && is_idle(&streams.queues_only(without(client.stats(), &blocked)));
        let retry_queues = self.retry_queues.as_deref().unwrap_or_default();
        let returning = if is_empty { self.returning.count(retry_queues).await } else { Some(0) };
        let Some(returning) = returning else {
            self.still = None;
            return Ok(Progress::NotYet);
        };
        let counts = Counts {
            handled: stats.consumers.iter().map(|one| one.received + one.acknowledged).sum(),
            postponed: returning.max(stats.consumers.iter().map(|one| one.postponed + one.overdue).sum()),
        };
        Ok(match self.decide(Instant::now(), is_empty, counts) {
            Progress::Drained if !blocked.is_empty() => Progress::Blocked(blocked),
            progress => progress,
        })
    }

    /// The consumers, by their places, that are paused and have finished no message for too long.
    fn blocked(&mut self, now: Instant, consumers: &[Activity]) -> Vec<usize> {
        self.paused.resize(consumers.len(), None);
        let mut blocked = Vec::new();
        for (at, (since, one)) in self.paused.iter_mut().zip(consumers).enumerate() {
            let before = since.take().filter(|(_, finished)| *finished == one.finished);
            if one.is_paused {
                let (begun, _) = *since.insert(before.unwrap_or((now, one.finished)));
                if !one.is_busy && now.duration_since(begun) >= self.timeout {
                    blocked.push(at);
                }
            }
        }
        blocked
    }

    fn is_away_for_too_long(&mut self, now: Instant, is_away: bool) -> bool {
        let since = self.away.take().unwrap_or(now);
        self.away = is_away.then_some(since);
        is_away && now.duration_since(since) >= self.timeout.max(UNANSWERED)
    }

    fn decide(&mut self, now: Instant, is_empty: bool, counts: Counts) -> Progress {
        let before = self.still.take();
        if !is_empty {
            return Progress::NotYet;
        }
        let (since, _) =
            *self.still.insert(before.filter(|(_, then)| *then == counts).unwrap_or((now, counts)));
        let elapsed = now.duration_since(since);
        match counts.postponed {
            0 if elapsed >= STILL => Progress::Drained,
            missing @ 1.. if elapsed >= self.timeout => Progress::Missing(missing),
            _ => Progress::NotYet,
        }
    }

    /// Whether nothing waits in the queues, nor for another attempt.
    async fn is_empty(&mut self, client: &Client, stats: &ClientStats) -> Result<bool, Fault> {
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
            match depth_if_it_exists(client, queue).await {
                Ok(Some(1..)) => return Ok(false),
                // One that was deleted meanwhile has no messages.
                Ok(Some(0) | None) => {}
                Err(error) if error.is_transient() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The same without the consumers at these places.
fn without(mut stats: ClientStats, places: &[usize]) -> ClientStats {
    let mut at = 0;
    stats.consumers.retain(|_| {
        at += 1;
        !places.contains(&(at - 1))
    });
    stats
}

/// The queues where messages of a queue wait for another attempt, and how many do.
async fn retry_queues(client: &Client, queue: &str) -> Result<Vec<(String, u32)>, Fault> {
    let mut found = Vec::new();
    for (at, queue) in derived_queue_names(queue).skip(1).enumerate() {
        match depth_if_it_exists(client, &queue).await? {
            Some(messages) => found.push((queue, messages)),
            // The first exists whenever another does.
            None if at == 0 => break,
            None => {}
        }
    }
    Ok(found)
}

/// How many messages a queue has; none if it does not exist.
async fn depth_if_it_exists(client: &Client, queue: &str) -> Result<Option<u32>, Fault> {
    match client.queue_depth(queue).await {
        Ok((messages, _)) => Ok(Some(messages)),
        Err(Fault::Channel { code: NOT_FOUND, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is left when a drain ends early, and what to do about it.
async fn unfinished(
    client: &Client,
    streams: &Streams,
    progress: &Progress,
    limit: Duration,
) -> Result<Option<String>, Fault> {
    let timeout = show_duration(limit);
    Ok(match progress {
        Progress::NotYet | Progress::Drained => None,
        Progress::Missing(count) => Some(format!(
            "{} that waited for another attempt did not come back within {timeout}, and the queues are empty: another consumer \
                 has taken what is missing, or the broker cannot return it to its queue",
            count_of(*count, "message")
        )),
        Progress::Unanswered => Some(format!(
            "the broker has not answered for {}: whether messages are left is not known",
            show_duration(limit.max(UNANSWERED))
        )),
        Progress::Blocked(places) => {
            let stats = client.stats();
            let mut left = Vec::new();
            for place in places {
                if let Some(one) = stats.consumers.get(*place) {
                    left.push(unhandled(client, one, streams.end(*place)).await?);
                }
            }
            Some(format!(
                "no message was finished for {timeout}, because consuming is paused: {}. Correct what the error names, then \
                     run the same command again: these messages keep their attempts",
                left.join("; ")
            ))
        }
    })
}

/// What a consumer leaves that cannot go on: how many messages, where they are, and why.
async fn unhandled(client: &Client, one: &ConsumerStats, stream_end: Option<u64>) -> Result<String, Fault> {
    let queue = &one.queue;
    let why = one.paused.as_deref().unwrap_or("the cause is not known");
    if let Some(end) = stream_end {
        let position = one.position.unwrap_or_default();
        let count = count_of((end + 1).saturating_sub(position), "message");
        return Ok(format!("{count} unhandled (in the stream {queue}, from offset {position}): {why}"));
    }
    // Those that are held here go back to their queue.
    let in_queue = u64::from(client.queue_depth(queue).await?.0) + one.waiting + one.in_flight;
    let waiting = retry_queues(client, queue).await?;
    let waiting: Vec<_> = waiting.iter().filter(|(_, messages)| *messages > 0).collect();
    let all = in_queue + waiting.iter().map(|(_, messages)| u64::from(*messages)).sum::<u64>();
    let mut places = vec![format!("{} in {queue}", thousands(in_queue))];
    places.extend(
        waiting.iter().map(|(name, messages)| format!("{} in {name}", thousands((*messages).into()))),
    );
    Ok(format!("{} unhandled ({}): {why}", count_of(all, "message"), places.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_when_nothing_happens_and_every_postponed_message_is_accounted_for() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let counts = |handled, postponed| Counts { handled, postponed };
        let minutes = TIMEOUT.as_millis() as u64;
        for (steps, expected) in [
            (vec![(0, true, counts(1, 0)), (499, true, counts(1, 0))], Progress::NotYet),
            (vec![(0, true, counts(1, 0)), (500, true, counts(1, 0))], Progress::Drained),
            // Something was handled, or waits, meanwhile.
            (vec![(0, true, counts(1, 0)), (500, true, counts(2, 0))], Progress::NotYet),
            (
                vec![(0, true, counts(1, 0)), (400, false, counts(1, 0)), (500, true, counts(1, 0))],
                Progress::NotYet,
            ),
            // A message that was postponed is still to come.
            (vec![(0, true, counts(1, 1)), (minutes - 1, true, counts(1, 1))], Progress::NotYet),
            (vec![(0, true, counts(1, 3)), (minutes, true, counts(1, 3))], Progress::Missing(3)),
            (
                vec![(0, true, counts(1, 3)), (9, true, counts(1, 2)), (minutes, true, counts(1, 2))],
                Progress::NotYet,
            ),
            (
                vec![(0, true, counts(1, 1)), (9, true, counts(2, 0)), (509, true, counts(2, 0))],
                Progress::Drained,
            ),
        ] {
            let mut detector = DrainDetector::new(TIMEOUT, Returning::new(None));
            let last =
                steps.iter().map(|(time, empty, counts)| detector.decide(at(*time), *empty, *counts)).last();
            assert_eq!(last, Some(expected), "{steps:?}");
        }
    }

    #[test]
    fn consumer_that_is_paused_and_finishes_nothing_is_blocked() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let paused = |finished| Activity { is_paused: true, is_busy: false, finished };
        let probing = |finished| Activity { is_busy: true, ..paused(finished) };
        let working = |finished| Activity { is_paused: false, ..paused(finished) };
        for (steps, expected) in [
            (vec![(0, paused(3)), (299, paused(3))], false),
            (vec![(0, paused(3)), (300, paused(3))], true),
            // A probe that runs may end well, and so may what was started before the pause.
            (vec![(0, paused(3)), (300, probing(3))], false),
            (vec![(0, paused(3)), (250, probing(3)), (300, paused(3))], true),
            // Something was finished, or it was not paused, meanwhile.
            (vec![(0, paused(3)), (250, paused(4)), (300, paused(4))], false),
            (vec![(0, paused(3)), (250, working(3)), (251, paused(3)), (300, paused(3))], false),
            (vec![(0, working(3)), (900, working(3))], false),
            (vec![(0, working(3)), (900, paused(3))], false),
        ] {
            let mut detector = DrainDetector::new(TIMEOUT, Returning::new(None));
            let last =
                steps.iter().map(|(time, one)| detector.blocked(at(*time), &[working(0), *one])).last();
            assert_eq!(last, Some(if expected { vec![1] } else { vec![] }), "{steps:?}");
        }
    }

    #[test]
    fn broker_that_stays_away_while_nothing_runs_ends_a_drain() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (steps, expected) in [
            (vec![(0, true), (299, true)], false),
            (vec![(0, true), (300, true)], true),
            (vec![(0, true), (299, false), (300, true)], false),
            (vec![(0, false), (300, false)], false),
            (vec![(0, false), (300, true), (599, true)], false),
        ] {
            let mut detector = DrainDetector::new(TIMEOUT, Returning::new(None));
            let is_away_for_too_long =
                |(time, is_away): &(u64, bool)| detector.is_away_for_too_long(at(*time), *is_away);
            assert_eq!(steps.iter().map(is_away_for_too_long).last(), Some(expected), "{steps:?}");
        }
    }
}
