//! Messages that are published, and what is to become of each.

use std::collections::BTreeMap;

use serde_json::json;

use crate::chance::Chance;

/// What consumers do with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Into,
    Enqueue,
    Exec,
}

impl Action {
    pub(crate) const ALL: [Action; 3] = [Action::Into, Action::Enqueue, Action::Exec];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Action::Into => "into",
            Action::Enqueue => "enqueue",
            Action::Exec => "exec",
        }
    }
}

/// What is to become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Done with its first attempt.
    Done,
    /// Done with its second.
    Later,
    /// Given up with its first.
    Refused,
    /// Given up after the last.
    Failing,
    /// Done with its first attempt, which takes longer than the broker waits for an acknowledgement.
    Slow,
}

impl Fate {
    pub(crate) fn is_done(self) -> bool {
        matches!(self, Fate::Done | Fate::Later | Fate::Slow)
    }

    /// How often it is tried where nobody disturbs anything.
    pub(crate) fn attempts(self, most: u32) -> u32 {
        match self {
            Fate::Done | Fate::Refused | Fate::Slow => 1,
            Fate::Later => 2,
            Fate::Failing => most,
        }
    }

    /// Why it is a dead letter, as its header says.
    pub(crate) fn reason(self) -> &'static str {
        if self == Fate::Failing { "attempts" } else { "permanent" }
    }

    /// By which the script knows it.
    fn letter(self) -> char {
        match self {
            Fate::Done => 'd',
            Fate::Later => 'l',
            Fate::Refused => 'r',
            Fate::Failing => 'f',
            Fate::Slow => 's',
        }
    }
}

/// What is run for each message of `exec`: says in one write which it was and how often it was tried, and ends as the
/// message wants it. Nothing but what the shell does by itself, so that there are many of them. Where it cannot write, or
/// a file says that it must not, it is unavailable (exit code 69), and has not begun.
pub(crate) const SCRIPT: &str = r#"read -r body
[ -e "$0.unavailable" ] && exit 69
printf '%s %s %s\n' "$GRISTMILL_MESSAGE_ID" "$GRISTMILL_ATTEMPT" "$body" 2>/dev/null >> "$0" || exit 69
case "$body$GRISTMILL_ATTEMPT" in *-r*) exit 65;; *-f* | *-l1) exit 1;; *-s*) sleep 5;; esac"#;

#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) id: String,
    pub(crate) fate: Fate,
    pub(crate) body: String,
}

/// So many messages, so many of a hundred of them bad.
pub(crate) fn parcels(action: Action, count: u64, bad: u64, chance: &mut Chance) -> Vec<Parcel> {
    (0..count).map(|number| parcel(action, number, bad, chance)).collect()
}

/// A message of each fate.
pub(crate) fn samples(action: Action, chance: &mut Chance) -> Vec<Parcel> {
    let fates = [Fate::Done, Fate::Refused, Fate::Later, Fate::Failing];
    let possible = if action == Action::Exec { &fates[..] } else { &fates[..2] };
    (0..)
        .zip(possible)
        .map(|(number, fate)| made(action, format!("s{number}"), number, *fate, chance))
        .collect()
}

/// Messages whose handlers are slow.
pub(crate) fn slow_ones(count: u64, chance: &mut Chance) -> Vec<Parcel> {
    (0..count).map(|number| made(Action::Exec, format!("slow{number}"), number, Fate::Slow, chance)).collect()
}

fn parcel(action: Action, number: u64, bad: u64, chance: &mut Chance) -> Parcel {
    let fate = match chance.percent(bad) {
        false => Fate::Done,
        true if action == Action::Exec => {
            [Fate::Later, Fate::Later, Fate::Refused, Fate::Failing][chance.index(4)]
        }
        true => Fate::Refused,
    };
    made(action, format!("m{number}"), number, fate, chance)
}

fn made(action: Action, id: String, number: u64, fate: Fate, chance: &mut Chance) -> Parcel {
    let body = match (action, fate) {
        (Action::Exec, fate) => format!("{id}-{}", fate.letter()),
        (Action::Into, Fate::Refused) if number.is_multiple_of(2) => format!("[\"{id}\"]"),
        (_, Fate::Refused) => format!("{{\"id\": \"{id}\", \"cut"),
        _ => object(&id, number, chance),
    };
    Parcel { id, fate, body }
}

/// Columns that come later, and of more than one type.
fn object(id: &str, number: u64, chance: &mut Chance) -> String {
    let mut object = json!({ "id": id, "number": number, "text": "x".repeat(chance.index(200)) });
    object["mixed"] = if chance.percent(50) { json!(number) } else { json!(format!("it's {number}")) };
    if chance.percent(2) {
        object[format!("late{}", number / 200 % 8)] = json!(0.5 + number as f64);
    }
    object.to_string()
}

/// What is known of all that was published.
pub(crate) struct Mail {
    pub(crate) parcels: BTreeMap<String, Parcel>,
    /// Which of them the broker has confirmed.
    pub(crate) confirmed: Vec<String>,
}

impl Mail {
    /// Those that were confirmed.
    pub(crate) fn sure(&self) -> impl Iterator<Item = &Parcel> {
        self.confirmed.iter().filter_map(|id| self.parcels.get(id))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The script and what is expected of it are two halves of one thing.
    #[test]
    fn the_script_does_what_a_message_wants() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let run = |body: &str, attempt: &str| {
            std::fs::write(folder.path().join("body"), body).unwrap();
            let mut sh = Command::new("sh");
            sh.args(["-c", SCRIPT]).arg(&log).env("GRISTMILL_ATTEMPT", attempt);
            sh.env("GRISTMILL_MESSAGE_ID", "m7").stderr(Stdio::null());
            sh.stdin(std::fs::File::open(folder.path().join("body")).unwrap());
            sh.status().unwrap().code().unwrap()
        };
        for (body, attempt, code) in [
            ("m7-d", "1", 0),
            ("m7-d", "3", 0),
            ("m7-l", "1", 1),
            ("m7-l", "2", 0),
            ("m7-l", "11", 0),
            ("m7-r", "1", 65),
            ("m7-f", "1", 1),
            ("m7-f", "3", 1),
        ] {
            assert_eq!(run(body, attempt), code, "{body} {attempt}");
        }
        std::fs::write(folder.path().join("log.unavailable"), "").unwrap();
        assert_eq!(run("m7-x", "1"), 69);
        let log = std::fs::read_to_string(log).unwrap();
        assert!(!log.contains("m7-x"), "{log}");
        assert!(log.starts_with("m7 1 m7-d\nm7 3 m7-d\nm7 1 m7-l\n"), "{log}");
    }

    #[test]
    fn so_many_of_a_hundred_are_bad() {
        for action in Action::ALL {
            let made = parcels(action, 1_000, 10, &mut Chance::new(7));
            let bad = made.iter().filter(|parcel| parcel.fate != Fate::Done).count();
            assert!((50..150).contains(&bad), "{action:?}: {bad}");
            let is_json = |parcel: &Parcel| serde_json::from_str::<serde_json::Value>(&parcel.body).is_ok();
            let json = made.iter().filter(|parcel| parcel.fate == Fate::Done).all(is_json);
            assert_eq!(json, action != Action::Exec, "{action:?}");
        }
    }
}
