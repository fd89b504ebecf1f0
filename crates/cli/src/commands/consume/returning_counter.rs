//! Counts messages that the broker is returning from retry queues to their queue, whichever process postponed them.
//!
//! Asks the management API, because AMQP counts such a message in no queue: while its queue is full, the broker keeps
//! the message and tries again later. A consumer itself counts only the messages that it postponed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::management::Management;
use crate::error::Error;

/// Time until the API counts a message that was just postponed: queues report their counts every 5 s.
const REPORT_DELAY: Duration = Duration::from_secs(6);

/// Minimum time between two requests to the API.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct ReturningCounter {
    management: Option<Arc<Management>>,
    created_at: Instant,
    /// Time and result of the last request.
    last: Option<(Instant, u64)>,
    /// Reason why the messages cannot be counted.
    count_error: Option<String>,
}

impl ReturningCounter {
    pub(super) fn new(management: Option<Management>) -> Self {
        ReturningCounter {
            management: management.map(Arc::new),
            created_at: Instant::now(),
            last: None,
            count_error: None,
        }
    }

    /// Number of messages in these retry queues and returning from them. None if not known yet. If they cannot be
    /// counted, returns 0, and [`uncounted`](Self::uncounted) returns the reason.
    pub(super) async fn count(&mut self, retry_queues: &[String]) -> Option<u64> {
        if retry_queues.is_empty() {
            return Some(0);
        }
        let Some(management) = self.management.clone() else {
            self.count_error = Some("cannot be counted without the setting amqp.management".to_owned());
            return Some(0);
        };
        // An earlier run may have postponed messages right before it ended.
        if self.created_at.elapsed() < REPORT_DELAY {
            return None;
        }
        if let Some((asked, count)) = self.last
            && asked.elapsed() < POLL_INTERVAL
        {
            return Some(count);
        }
        let queues = retry_queues.to_vec();
        let asked = tokio::task::spawn_blocking(move || count(&management, &queues)).await;
        self.count_error = None;
        let count = match asked {
            Ok(Ok(Some(count))) => count,
            Ok(Ok(None)) => {
                self.count_error = Some("are not counted by the management API (amqp.management)".to_owned());
                0
            }
            Ok(Err(error)) => {
                self.count_error = Some(format!("cannot be counted: {error}"));
                0
            }
            Err(_) => return None,
        };
        self.last = Some((Instant::now(), count));
        Some(count)
    }

    /// Describes why returning messages are not counted, if they are not.
    pub(super) fn uncounted(&self) -> Option<String> {
        let why = self.count_error.as_ref()?;
        Some(format!("messages that the broker is returning from retry queues {why}"))
    }
}

/// Sums the messages of these queues; none if one has no count. A queue that does not exist has no messages.
fn count(management: &Management, queues: &[String]) -> Result<Option<u64>, Error> {
    let mut all = Some(0);
    for queue in queues {
        if let Some(counts) = management.counts(queue)? {
            all = all.zip(counts.all()).map(|(sum, count)| sum + count);
        }
    }
    Ok(all)
}
