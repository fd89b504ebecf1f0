//! The settings file: parses TOML into raw values with their lines, and writes the commented template.
//!
//! Owns the structure of the file and the errors about unknown keys. `resolver` interprets the values.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Raw;
use super::consumers;
use super::keys::{self, ALL, Key};

/// Values by key, each with its line number.
pub(crate) type Values = BTreeMap<&'static str, (Raw, usize)>;

#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) values: Values,
    /// The tables `[[consumers]]`, each with its line number.
    pub(crate) consumers: Vec<(Values, usize)>,
}

impl File {
    /// Returns true if a URL in the file has a password.
    pub(crate) fn has_password(&self) -> bool {
        let consumers = self.consumers.iter().flat_map(|(values, _)| values.values());
        self.values.values().chain(consumers).any(|(raw, _)| match raw {
            Raw::One(text) => has_password(&text.to_string_lossy()),
            Raw::Many(items) => items.iter().any(|item| has_password(item)),
            Raw::Bare(_) => false,
        })
    }
}

fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next());
    let login = authority.and_then(|authority| authority.rsplit_once('@'));
    login.is_some_and(|(login, _)| login.contains(':'))
}

/// Parses the text of a file. Errors name the line, and the key that was probably meant.
pub(crate) fn parse(path: &Path, text: &str) -> Result<File, String> {
    let place = |span: &Range<usize>| format!("{}:{}", path.display(), line(text, span.start));
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or_else(|| path.display().to_string(), |span| place(&span));
        format!("{at}: not TOML: {}", error.message())
    })?;
    let File { mut values, mut consumers } = File::default();
    for (name, value) in table.get_ref() {
        match value.get_ref() {
            DeValue::Array(tables) if name.get_ref() == consumers::SECTION => {
                for one in tables.iter() {
                    let DeValue::Table(table) = one.get_ref() else {
                        return Err(format!("{}: {}", place(&one.span()), consumers::EXPECTED));
                    };
                    let mut declared = Values::new();
                    for (inner, value) in table {
                        let key = consumers::known(inner.get_ref())
                            .map_err(|error| format!("{}: {error}", place(&inner.span())))?;
                        declared.insert(key.name, (raw(text, value), line(text, inner.span().start)));
                    }
                    consumers.push((declared, line(text, one.span().start)));
                }
            }
            _ if name.get_ref() == consumers::SECTION => {
                return Err(format!("{}: {}", place(&name.span()), consumers::EXPECTED));
            }
            DeValue::Table(section) if is_section(name.get_ref()) => {
                for (inner, value) in section {
                    let full = format!("{}.{}", name.get_ref(), inner.get_ref());
                    let key = find_key(&full).map_err(|error| format!("{}: {error}", place(&inner.span())))?;
                    values.insert(key.name, (raw(text, value), line(text, inner.span().start)));
                }
            }
            _ => {
                let key = find_key(name.get_ref()).map_err(|error| format!("{}: {error}", place(&name.span())))?;
                values.insert(key.name, (raw(text, value), line(text, name.span().start)));
            }
        }
    }
    Ok(File { values, consumers })
}

fn is_section(name: &str) -> bool {
    ALL.iter().any(|key| key.name.split_once('.').is_some_and(|(section, _)| section == name))
}

fn find_key(name: &str) -> Result<&'static Key, String> {
    ALL.iter().copied().find(|key| key.name == name).ok_or_else(|| {
        let is_without_section = |key: &Key| key.name.rsplit('.').next() == Some(name);
        let suggestion = ALL.iter().find(|key| is_without_section(key)).map(|key| key.name);
        let suggestion = suggestion.or_else(|| keys::nearest(name, ALL.iter().map(|key| key.name)));
        let hint = suggestion.map_or_else(
            || "`gristmill config show` lists all settings".to_owned(),
            |key| format!("did you mean {key}?"),
        );
        format!("there is no setting {name}; {hint}")
    })
}

/// Converts a value: strings and lists of strings as such, anything else as it is written in the file, because a number
/// may be valid and an error shows the value as its author wrote it.
fn raw(text: &str, value: &Spanned<DeValue<'_>>) -> Raw {
    let written = || Raw::Bare(text.get(value.span()).unwrap_or_default().to_owned());
    match value.get_ref() {
        DeValue::String(text) => Raw::One(text.as_ref().into()),
        DeValue::Array(items) => {
            let strings = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
            strings.collect::<Option<_>>().map_or_else(written, Raw::Many)
        }
        _ => written(),
    }
}

fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// Returns a settings file with every key, commented out at its default.
pub(crate) fn template() -> String {
    let mut text = String::from(
        "# Settings of Gristmill. Flags and GRISTMILL_* variables override this file. Commented-out values are\n\
         # the defaults. `gristmill config show` lists all settings with their values and origins.\n",
    );
    let mut section = None;
    for key in ALL {
        let (of, name) = key.name.split_once('.').map_or((None, key.name), |(of, name)| (Some(of), name));
        if section != of {
            section = of;
            let _ = write!(text, "\n[{}]\n", of.unwrap_or_default());
        }
        text.push('\n');
        for line in wrap(key.description, 100) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "# Expected: {}. Variable: {}", key.expected, key.variable);
        let _ = writeln!(text, "#{name} = {}", default(key));
    }
    for line in consumers::template() {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn default(key: &Key) -> String {
    match key.default {
        None => "\"~/.local/share/gristmill/gristmill.db\"".to_owned(),
        Some(number) if number.parse::<u64>().is_ok() => number.to_owned(),
        Some(queue) if key.name == keys::QUEUES.name => format!("[\"{queue}\"]"),
        Some(text) => format!("\"{text}\""),
    }
}

pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
