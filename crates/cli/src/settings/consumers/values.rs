//! Parsers of the values of consumer settings. They return none for text that is not allowed; `consumers` reports it.

use std::time::Duration;

use gristmill_amqp::{Offset, OrderBy};

use super::super::{MILLISECOND, value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Quorum,
    Classic,
    Stream,
}

/// HTTP statuses: single ones such as `404`, or classes such as `5xx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpStatuses(Vec<std::ops::RangeInclusive<u16>>);

impl Default for HttpStatuses {
    fn default() -> Self {
        Self(vec![408..=408, 425..=425, 429..=429, 500..=599])
    }
}

impl HttpStatuses {
    pub(super) fn read(text: &str) -> Option<Self> {
        let one = |text: &str| match text.trim() {
            "3xx" => Some(300..=399),
            "4xx" => Some(400..=499),
            "5xx" => Some(500..=599),
            status => status.parse().ok().filter(|status| (300..=599).contains(status)).map(|one| one..=one),
        };
        text.split(',').map(one).collect::<Option<Vec<_>>>().map(Self)
    }

    pub(crate) fn has(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

pub(super) fn name(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|name| (1..=255).contains(&name.len()) && !name.contains('\0'))
}

pub(super) fn positive_duration(text: &str) -> Option<Duration> {
    value::duration(text).filter(|duration| *duration >= MILLISECOND)
}

pub(super) fn order_by(text: &str) -> Option<OrderBy> {
    match text.split_once(':') {
        None if text == "routing-key" => Some(OrderBy::RoutingKey),
        Some(("header", name)) if !name.is_empty() => Some(OrderBy::Header(name.to_owned())),
        _ => None,
    }
}

pub(crate) fn queue_kind(text: &str) -> Option<QueueKind> {
    match text {
        "quorum" => Some(QueueKind::Quorum),
        "classic" => Some(QueueKind::Classic),
        "stream" => Some(QueueKind::Stream),
        _ => None,
    }
}

pub(super) fn offset(text: &str) -> Option<Offset> {
    Some(match text {
        "first" => Offset::First,
        "last" => Offset::Last,
        "next" => Offset::Next,
        number => Offset::Number(number.parse().ok()?),
    })
}

pub(super) fn dead_letter_target(text: &str) -> Option<(String, String)> {
    let (exchange, key) = text.split_once(':').unwrap_or((text, ""));
    match exchange {
        // The default exchange, whose routing keys are names of queues.
        "" => Some((String::new(), name(key)?)),
        exchange => Some((name(exchange)?, key.to_owned())),
    }
}

pub(super) fn binding(text: &str) -> Option<(String, String)> {
    let (exchange, key) = text.split_once(':')?;
    Some((name(exchange)?, key.to_owned()))
}

pub(crate) fn url(text: &str) -> Option<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let clean = text.bytes().all(|byte| byte.is_ascii_graphic());
    (clean && !host.is_empty() && !host.ends_with('@')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_or_classes() {
        let statuses = HttpStatuses::read("401, 404,5xx").unwrap();
        for (status, expected) in [(401, true), (404, true), (403, false), (500, true), (599, true), (429, false)] {
            assert_eq!(statuses.has(status), expected, "{status}");
        }
        for bad in ["", "200", "2xx", "6xx", "404;405", "600", "-1", "404,"] {
            assert_eq!(HttpStatuses::read(bad), None, "{bad}");
        }
        for (status, expected) in [(408, true), (425, true), (429, true), (503, true), (401, false), (302, false)] {
            assert_eq!(HttpStatuses::default().has(status), expected, "{status}");
        }
    }

    #[test]
    fn urls_require_http_and_a_host() {
        for good in ["http://a", "https://u:p@a:1/b?c", "http://[::1]:80/"] {
            assert_eq!(url(good).as_deref(), Some(good));
        }
        for bad in ["", "ftp://a", "http://", "http:///x", "a", "http://a b", "http://u:p@"] {
            assert_eq!(url(bad), None, "{bad}");
        }
    }
}
