//! What can go wrong, in words that name what, where and what would be right.

use std::{fmt, io, time::Duration};

/// Why something with a broker did not work.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A URI that names no broker. (It is not repeated here: it may hold a password.)
    Uri {
        /// What is wrong with it.
        why: String,
    },
    /// What was declared makes no sense; nothing was connected to.
    Declaration(String),
    /// Certificates or keys.
    Tls(String),
    /// The network.
    Io {
        /// Which broker.
        to: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing came for too long, not even a heartbeat.
    HeartbeatTimeout {
        /// Which broker.
        to: String,
        /// For how long.
        after: Duration,
    },
    /// The broker closed the connection, or did not open it.
    ConnectionRefused {
        /// Which broker.
        to: String,
        /// The protocol's number of the reason: 403 is access, 530 a virtual host that is not there.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The broker closed a channel: something was asked for that it does not do.
    Channel {
        /// The protocol's number of the reason: 404 is not there, 406 is there but different.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The broker ended the consumer: its queue was deleted, or its node went away.
    Cancelled {
        /// Which queue.
        queue: String,
    },
    /// The other side does not speak AMQP 0-9-1.
    Protocol {
        /// Which broker.
        to: String,
        /// What it said.
        what: String,
    },
    /// No queue took the message.
    Unroutable {
        /// The exchange it was published to.
        exchange: String,
        /// Its routing key.
        key: String,
        /// The broker's words.
        text: String,
    },
    /// The broker did not take the message on: a queue is full, or its node fails.
    Nacked,
    /// The broker said nothing within the time allowed. The message may be there or not.
    Unconfirmed(Duration),
    /// A message that the protocol cannot carry.
    Message(String),
    /// It was told to end.
    Closed,
    /// A consumer has ended by itself: its task panicked. The broker delivers its messages again.
    ConsumerPanicked {
        /// The name of the consumer.
        consumer: String,
    },
    /// The user lacks rights at the broker.
    MissingPermissions(Box<crate::permissions::MissingPermissions>),
    /// The store.
    Store(gristmill_store::Error),
    /// The pool.
    Pool(gristmill_pool::error::BuildError),
}

impl Error {
    /// Whether the same might work later: a network, a broker that restarts. What is not, a person must put right.
    pub fn is_transient(&self) -> bool {
        match self {
            // A certificate that is not trusted today is not tomorrow.
            Self::Io { source, .. } => source.kind() != io::ErrorKind::InvalidData,
            Self::HeartbeatTimeout { .. } | Self::Cancelled { .. } => true,
            Self::Nacked | Self::Unconfirmed(_) => true,
            // 320: an operator closed it; 541: the broker failed inside. 405, 506: a resource is in use or short.
            Self::ConnectionRefused { code, .. } => matches!(code, 320 | 541 | 506),
            Self::Channel { code, .. } => matches!(code, 405 | 506 | 541 | 311),
            _ => false,
        }
    }
}

impl Error {
    /// The same once more: a connection ends once, and everybody who used it is told why.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Io { to, source } => {
                let source = io::Error::new(source.kind(), source.to_string());
                Self::Io { to: to.clone(), source }
            }
            Self::HeartbeatTimeout { to, after } => Self::HeartbeatTimeout { to: to.clone(), after: *after },
            Self::ConnectionRefused { to, code, text } => {
                Self::ConnectionRefused { to: to.clone(), code: *code, text: text.clone() }
            }
            Self::Protocol { to, what } => Self::Protocol { to: to.clone(), what: what.clone() },
            Self::Channel { code, text } => Self::Channel { code: *code, text: text.clone() },
            Self::Cancelled { queue } => Self::Cancelled { queue: queue.clone() },
            Self::Closed => Self::Closed,
            other => Self::Message(other.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri { why } => {
                write!(f, "the broker's URI: {why}; like amqp://user:password@host:5672/vhost")
            }
            Self::Declaration(what) => f.write_str(what),
            Self::Tls(what) => write!(f, "TLS: {what}"),
            Self::Io { to, source } => write!(f, "{to}: {source}"),
            Self::HeartbeatTimeout { to, after } => {
                write!(f, "{to}: not a sign of life for {} s", after.as_secs())
            }
            Self::ConnectionRefused { to, code, text } => {
                write!(f, "{to}: {text}")?;
                if !text.starts_with(char::is_uppercase) {
                    write!(f, " ({code})")?;
                }
                Ok(())
            }
            Self::Channel { text, .. } => f.write_str(text),
            Self::Cancelled { queue } => write!(f, "the broker ended the consumer of queue {queue}"),
            Self::Protocol { to, what } => write!(f, "{to}: {what}; is this an AMQP 0-9-1 broker?"),
            Self::Unroutable { exchange, key, text } => write!(
                f,
                "no queue takes messages of exchange `{exchange}` with routing key `{key}` ({text})"
            ),
            Self::Nacked => f.write_str("the broker did not take the message: is a queue full?"),
            Self::Unconfirmed(after) => {
                write!(f, "the broker did not confirm the message within {} s", after.as_secs())
            }
            Self::Message(what) => f.write_str(what),
            Self::Closed => f.write_str("it was told to end"),
            Self::ConsumerPanicked { consumer } => write!(
                f,
                "consumer {consumer} has ended by a panic, and its messages go back to the queue. This is a defect: please report \
                 it, with what was logged"
            ),
            Self::MissingPermissions(rights) => rights.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Pool(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Store(error) => Some(error),
            Self::Pool(error) => Some(error),
            _ => None,
        }
    }
}

impl From<gristmill_store::Error> for Error {
    fn from(error: gristmill_store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<gristmill_pool::error::BuildError> for Error {
    fn from(error: gristmill_pool::error::BuildError) -> Self {
        Self::Pool(error)
    }
}
