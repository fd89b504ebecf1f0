//! Formats the table at the end of a run and its summary.

use std::fmt::Write;

use crate::step::{FinishedStep, Outcome};

pub(crate) fn render(done: &[FinishedStep]) -> String {
    let name_width = widest(done.iter().map(|step| step.name), "step");
    let status_width = widest(done.iter().map(status), "result");
    let mut text = format!("{:name_width$}  {:status_width$}  {:>7}\n", "step", "result", "seconds");
    for step in done {
        let seconds = step.duration.as_secs_f64();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:name_width$}  {:status_width$}  {seconds:>7.1}", step.name, status(step));
    }
    text.push('\n');
    for line in done.iter().filter_map(note) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(&summary(done));
    text.push('\n');
    text
}

pub(crate) fn status(step: &FinishedStep) -> &'static str {
    match &step.result {
        Ok(Outcome::Passed | Outcome::PassedBut(_)) => "passed",
        Ok(Outcome::Failed(_)) => "FAILED",
        Ok(Outcome::NotDone(status, _)) => status,
        Err(_) => "BROKEN",
    }
}

fn note(step: &FinishedStep) -> Option<String> {
    let why = match &step.result {
        Ok(Outcome::Passed) => return None,
        Ok(Outcome::PassedBut(why) | Outcome::Failed(why) | Outcome::NotDone(_, why)) => why.clone(),
        Err(error) => error.to_string(),
    };
    Some(format!("{}: {}, {why}", step.name, status(step)))
}

/// The summary, such as `9 passed, 0 failed`; steps that were not done are added if there are any.
fn summary(done: &[FinishedStep]) -> String {
    let count = |matches: fn(&FinishedStep) -> bool| done.iter().filter(|step| matches(step)).count();
    let failed = count(FinishedStep::failed);
    let not_done = count(|step| matches!(step.result, Ok(Outcome::NotDone(..))));
    let passed = done.len() - failed - not_done;
    match not_done {
        0 => format!("{passed} passed, {failed} failed"),
        _ => format!("{passed} passed, {failed} failed, {not_done} not done"),
    }
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>, heading: &str) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).max(heading.len())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Error;

    fn done(name: &'static str, result: Result<Outcome, Error>, millis: u64) -> FinishedStep {
        FinishedStep { name, result, duration: Duration::from_millis(millis) }
    }

    #[test]
    fn table_shows_every_status_and_its_note() {
        let steps = [
            done("format", Ok(Outcome::Passed), 412),
            done("tests", Ok(Outcome::PassedBut("without nextest".to_owned())), 61_250),
            done("docs", Ok(Outcome::Failed("`cargo doc`".to_owned())), 3_000),
            done("set-up", Err(Error::System("cannot start `x`".to_owned())), 0),
            done("advisories", Ok(Outcome::NotDone("NOT CHECKED", "database unreachable".to_owned())), 90),
        ];
        let expected = "\
step        result       seconds
format      passed           0.4
tests       passed          61.2
docs        FAILED           3.0
set-up      BROKEN           0.0
advisories  NOT CHECKED      0.1

tests: passed, without nextest
docs: FAILED, `cargo doc`
set-up: BROKEN, cannot start `x`
advisories: NOT CHECKED, database unreachable
2 passed, 2 failed, 1 not done
";
        assert_eq!(render(&steps), expected);
    }

    #[test]
    fn summary_omits_not_done_when_all_was_done() {
        let steps = [done("format", Ok(Outcome::Passed), 0), done("tests", Ok(Outcome::Passed), 0)];
        assert_eq!(summary(&steps), "2 passed, 0 failed");
    }
}
