//! Formats of values: how the value of a setting is read, and how `config show` shows it.
//!
//! Owns the syntax that several settings share. `keys` and `consumers` choose a format for each setting.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::Raw;
use crate::units;

/// Why a value is not allowed.
pub(crate) enum Invalid {
    /// It is not what the setting expects.
    Value,
    /// For this reason, which says more than what the setting expects.
    Because(String),
}

type Reader<T> = Box<dyn Fn(&Raw) -> Result<T, Invalid>>;

pub(crate) struct Format<T> {
    read: Reader<T>,
    show: Box<dyn Fn(&T) -> String>,
}

impl<T: 'static> Format<T> {
    pub(crate) fn new(
        read: impl Fn(&Raw) -> Result<T, Invalid> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Format { read: Box::new(read), show: Box::new(show) }
    }

    pub(crate) fn read(&self, raw: &Raw) -> Result<T, Invalid> {
        (self.read)(raw)
    }

    pub(crate) fn show(&self, value: &T) -> String {
        (self.show)(value)
    }

    /// Returns the format that also accepts a word, which means none.
    pub(crate) fn or(self, word: &'static str) -> Format<Option<T>> {
        let Format { read, show } = self;
        Format::new(
            move |raw| match raw {
                Raw::One(text) if text == word => Ok(None),
                raw => read(raw).map(Some),
            },
            move |value| value.as_ref().map_or_else(|| word.to_owned(), &show),
        )
    }

    /// Returns the format without the values that `is_allowed` refuses.
    pub(crate) fn filter(self, is_allowed: impl Fn(&T) -> bool + 'static) -> Self {
        let Format { read, show } = self;
        Format::new(
            move |raw| read(raw).and_then(|value| if is_allowed(&value) { Ok(value) } else { Err(Invalid::Value) }),
            show,
        )
    }
}

/// A single text or number.
pub(crate) fn text<T: 'static>(
    read: impl Fn(&str) -> Option<T> + 'static,
    show: impl Fn(&T) -> String + 'static,
) -> Format<T> {
    let read = move |raw: &Raw| match raw {
        Raw::One(text) => text.to_str().and_then(&read),
        Raw::Bare(text) => read(text),
        Raw::Many(_) => None,
    };
    Format::new(move |raw| read(raw).ok_or(Invalid::Value), show)
}

/// Anything that the standard library parses and prints, such as `true`.
pub(crate) fn parsed<T: FromStr + Display + 'static>() -> Format<T> {
    text(|text| text.parse().ok(), T::to_string)
}

pub(crate) fn number<T: FromStr + Display + PartialOrd + 'static>(range: RangeInclusive<T>) -> Format<T> {
    parsed().filter(move |number| range.contains(number))
}

pub(crate) fn duration(range: RangeInclusive<Duration>) -> Format<Duration> {
    text(units::duration, |duration| units::show_duration(*duration)).filter(move |value| range.contains(value))
}

pub(crate) fn size(range: RangeInclusive<u64>) -> Format<u64> {
    text(units::size, |size| units::show_size(*size)).filter(move |size| range.contains(size))
}

/// One of these words.
pub(crate) fn choice<T: Copy + PartialEq + 'static>(choices: &'static [(&'static str, T)]) -> Format<T> {
    let word_of = move |value: &T| choices.iter().find(|(_, one)| one == value).map(|(word, _)| (*word).to_owned());
    let value_of = move |text: &str| choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    text(value_of, move |value| word_of(value).unwrap_or_default())
}

/// A list with at least one item, each of which `read` accepts.
pub(crate) fn list<T: 'static>(read: impl Fn(&str) -> Result<T, Invalid> + 'static) -> Format<Vec<T>> {
    let read = move |raw: &Raw| match raw {
        Raw::Many(items) if !items.is_empty() => items.iter().map(|item| read(item)).collect(),
        _ => Err(Invalid::Value),
    };
    Format::new(read, |items: &Vec<T>| items.len().to_string())
}
