//! Formats of the values that only consumers have.

use gristmill_amqp::{Offset, OrderBy};

use super::super::format::{Format, Invalid, list, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Quorum,
    Classic,
    Stream,
}

pub(crate) const QUEUE_KINDS: &[(&str, QueueKind)] =
    &[("quorum", QueueKind::Quorum), ("classic", QueueKind::Classic), ("stream", QueueKind::Stream)];

/// HTTP statuses: single ones such as `404`, or classes such as `5xx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpStatuses(Vec<std::ops::RangeInclusive<u16>>);

impl Default for HttpStatuses {
    fn default() -> Self {
        Self(vec![408..=408, 425..=425, 429..=429, 500..=599])
    }
}

impl HttpStatuses {
    pub(super) fn format() -> Format<Self> {
        read_only(Self::read)
    }

    fn read(text: &str) -> Option<Self> {
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

/// Texts that are only read, and never shown as a setting.
fn read_only<T: 'static>(read: impl Fn(&str) -> Option<T> + 'static) -> Format<T> {
    text(read, |_| String::new())
}

pub(super) fn name() -> Format<String> {
    read_only(read_name)
}

fn read_name(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|name| (1..=255).contains(&name.len()) && !name.contains('\0'))
}

/// A program and its arguments.
pub(super) fn command() -> Format<Vec<String>> {
    let word = |word: &str| if word.contains('\0') { Err(Invalid::Value) } else { Ok(word.to_owned()) };
    list(word).filter(|words| words.first().is_some_and(|program| !program.is_empty()))
}

pub(super) fn order_by() -> Format<OrderBy> {
    read_only(|text| match text.split_once(':') {
        None if text == "routing-key" => Some(OrderBy::RoutingKey),
        Some(("header", name)) if !name.is_empty() => Some(OrderBy::Header(name.to_owned())),
        _ => None,
    })
}

pub(super) fn offset() -> Format<Offset> {
    read_only(|text| {
        Some(match text {
            "first" => Offset::First,
            "last" => Offset::Last,
            "next" => Offset::Next,
            number => Offset::Number(number.parse().ok()?),
        })
    })
}

/// Exchange and routing key.
pub(super) fn dead_letter_target() -> Format<(String, String)> {
    read_only(|text| {
        let (exchange, key) = text.split_once(':').unwrap_or((text, ""));
        match exchange {
            // The default exchange, whose routing keys are names of queues.
            "" => Some((String::new(), read_name(key)?)),
            exchange => Some((read_name(exchange)?, key.to_owned())),
        }
    })
}

pub(super) fn binding(text: &str) -> Option<(String, String)> {
    let (exchange, key) = text.split_once(':')?;
    Some((read_name(exchange)?, key.to_owned()))
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
        for (status, expected) in [(408, true), (425, true), (429, true), (503, true), (401, false), (302, false)] {
            assert_eq!(HttpStatuses::default().has(status), expected, "{status}");
        }
    }
}
