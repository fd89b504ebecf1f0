//! Messages that the broker returns from the queues where they waited for another attempt, whichever process postponed them.
//!
//! Owns when the management API is asked. AMQP counts such a message in no queue: while its queue is full, the broker keeps it
//! and tries again later. A consumer expects back only what it postponed itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::management::Management;
use crate::error::Error;

/// How long it takes until the API counts a message that was postponed: queues report every 5 s.
const REPORTED_WITHIN: Duration = Duration::from_secs(6);

/// How often the API is asked.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Returning {
    management: Option<Arc<Management>>,
    begun: Instant,
    /// When the API was asked last, and what it counted.
    last: Option<(Instant, u64)>,
    /// Why messages may be left that nothing counts.
    uncounted: Option<String>,
}

impl Returning {
    pub(super) fn new(management: Option<Management>) -> Self {
        Returning { management: management.map(Arc::new), begun: Instant::now(), last: None, uncounted: None }
    }

    /// How many messages are in these retry queues, or on their way back from them. None is not known yet. Where it cannot be
    /// known, [`uncounted`](Self::uncounted) says why.
    pub(super) async fn count(&mut self, retry_queues: &[String]) -> Option<u64> {
        if retry_queues.is_empty() {
            return Some(0);
        }
        let Some(management) = self.management.clone() else {
            self.uncounted = Some("cannot be counted without the setting amqp.management".to_owned());
            return Some(0);
        };
        // Messages that an earlier run postponed right before its end.
        if self.begun.elapsed() < REPORTED_WITHIN {
            return None;
        }
        if let Some((asked, count)) = self.last
            && asked.elapsed() < INTERVAL
        {
            return Some(count);
        }
        let queues = retry_queues.to_vec();
        let asked = tokio::task::spawn_blocking(move || count(&management, &queues)).await;
        self.uncounted = None;
        let count = match asked {
            Ok(Ok(Some(count))) => count,
            Ok(Ok(None)) => {
                self.uncounted = Some("are not counted by the management API (amqp.management)".to_owned());
                0
            }
            Ok(Err(error)) => {
                self.uncounted = Some(format!("cannot be counted: {error}"));
                0
            }
            Err(_) => return None,
        };
        self.last = Some((Instant::now(), count));
        Some(count)
    }

    /// Why messages that the broker returns are not counted, if they are not.
    pub(super) fn uncounted(&self) -> Option<String> {
        let why = self.uncounted.as_ref()?;
        Some(format!(
            "messages that the broker returns to their queue after a wait for another attempt {why}"
        ))
    }
}

/// All messages of these queues; none where one is not counted. A queue that does not exist has none.
fn count(management: &Management, queues: &[String]) -> Result<Option<u64>, Error> {
    let mut all = Some(0);
    for queue in queues {
        if let Some(counts) = management.counts(queue)? {
            all = all.zip(counts.all()).map(|(sum, count)| sum + count);
        }
    }
    Ok(all)
}
