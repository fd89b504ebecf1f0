//! The published messages and the expected outcome of each.

use std::collections::BTreeMap;

use clap::ValueEnum;
use gristmill_check::Rng;
use serde_json::json;

/// Action of the consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Action {
    Into,
    Enqueue,
    Exec,
}

/// Expected outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done by its first attempt.
    Done,
    /// Done by its second attempt.
    SecondAttempt,
    /// Dead-lettered after its first attempt.
    Rejected,
    /// Dead-lettered after its last attempt.
    Exhausted,
    /// Done by its first attempt, which takes longer than the broker's acknowledgement timeout.
    Slow,
}

impl Outcome {
    pub(crate) fn is_done(self) -> bool {
        matches!(self, Outcome::Done | Outcome::SecondAttempt | Outcome::Slow)
    }

    /// Returns the number of attempts in a round without faults.
    pub(crate) fn attempts(self, max: u32) -> u32 {
        match self {
            Outcome::Done | Outcome::Rejected | Outcome::Slow => 1,
            Outcome::SecondAttempt => 2,
            Outcome::Exhausted => max,
        }
    }

    /// Returns the reason in the header of its dead letter.
    pub(crate) fn reason(self) -> &'static str {
        if self == Outcome::Exhausted { "attempts" } else { "permanent" }
    }

    /// Returns the character in the message's body that selects the behaviour of the script.
    fn code(self) -> char {
        match self {
            Outcome::Done => 'd',
            Outcome::SecondAttempt => 'l',
            Outcome::Rejected => 'r',
            Outcome::Exhausted => 'f',
            Outcome::Slow => 's',
        }
    }
}

/// Script that `--exec` runs for each message: logs the message and its attempt in one write, then exits as the message
/// requires. Only shell built-ins, so that many can run. If it cannot write, or a file marks it as unavailable, it
/// exits with code 69 before it has begun.
pub(crate) const SCRIPT: &str = r#"read -r body
[ -e "$0.unavailable" ] && exit 69
printf '%s %s %s\n' "$GRISTMILL_MESSAGE_ID" "$GRISTMILL_ATTEMPT" "$body" 2>/dev/null >> "$0" || exit 69
case "$body$GRISTMILL_ATTEMPT" in *-r*) exit 65;; *-f* | *-l1) exit 1;; *-s*) sleep 5;; esac"#;

#[derive(Clone, Debug)]
pub(crate) struct TestMessage {
    pub(crate) id: String,
    pub(crate) outcome: Outcome,
    pub(crate) body: String,
}

/// Creates `count` messages; `bad` is the percentage of bad ones.
pub(crate) fn random_messages(action: Action, count: u64, bad: usize, rng: &mut Rng) -> Vec<TestMessage> {
    let message = |number| {
        let outcome = match rng.percent(bad) {
            false => Outcome::Done,
            true if action == Action::Exec => {
                [Outcome::SecondAttempt, Outcome::SecondAttempt, Outcome::Rejected, Outcome::Exhausted][rng.usize(..4)]
            }
            true => Outcome::Rejected,
        };
        build(action, format!("m{number}"), number, outcome, rng)
    };
    (0..count).map(message).collect()
}

/// Creates one message of each outcome that the action allows, except slow ones.
pub(crate) fn one_of_each(action: Action, rng: &mut Rng) -> Vec<TestMessage> {
    let outcomes = [Outcome::Done, Outcome::Rejected, Outcome::SecondAttempt, Outcome::Exhausted];
    let possible = if action == Action::Exec { &outcomes[..] } else { &outcomes[..2] };
    (0..).zip(possible).map(|(number, outcome)| build(action, format!("s{number}"), number, *outcome, rng)).collect()
}

pub(crate) fn slow_messages(count: u64, rng: &mut Rng) -> Vec<TestMessage> {
    (0..count).map(|number| build(Action::Exec, format!("slow{number}"), number, Outcome::Slow, rng)).collect()
}

fn build(action: Action, id: String, number: u64, outcome: Outcome, rng: &mut Rng) -> TestMessage {
    let body = match (action, outcome) {
        (Action::Exec, outcome) => format!("{id}-{}", outcome.code()),
        (Action::Into, Outcome::Rejected) if number.is_multiple_of(2) => format!("[\"{id}\"]"),
        (_, Outcome::Rejected) => format!("{{\"id\": \"{id}\", \"cut"),
        _ => object(&id, number, rng),
    };
    TestMessage { id, outcome, body }
}

/// Creates an object with a column of two types, and columns that appear late.
fn object(id: &str, number: u64, rng: &mut Rng) -> String {
    let mut object = json!({ "id": id, "number": number, "text": "x".repeat(rng.usize(..200)) });
    object["mixed"] = if rng.percent(50) { json!(number) } else { json!(format!("it's {number}")) };
    if rng.percent(2) {
        object[format!("late{}", number / 200 % 8)] = json!(0.5 + number as f64);
    }
    object.to_string()
}

pub(crate) struct Published {
    pub(crate) messages: BTreeMap<String, TestMessage>,
    /// Ids of the messages that the broker has confirmed.
    pub(crate) confirmed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn script_exits_as_the_message_requires() {
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
    fn percentage_of_bad_messages_is_as_requested() {
        for &action in Action::value_variants() {
            let messages = random_messages(action, 1_000, 10, &mut Rng::new(7));
            let bad = messages.iter().filter(|message| message.outcome != Outcome::Done).count();
            assert!((50..150).contains(&bad), "{action:?}: {bad}");
            let is_json = |message: &TestMessage| serde_json::from_str::<serde_json::Value>(&message.body).is_ok();
            let json = messages.iter().filter(|message| message.outcome == Outcome::Done).all(is_json);
            assert_eq!(json, action != Action::Exec, "{action:?}");
        }
    }
}
