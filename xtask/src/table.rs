//! The table at the end of a run, and its last line.
//!
//! Owns how results look. It decides nothing: exit codes belong to `step`.

use std::fmt::Write;

use crate::step::{Done, Outcome};

/// The table, the remarks under it and the summary, ready to print.
pub(crate) fn drawn(done: &[Done]) -> String {
    let name_width = widest(done.iter().map(|step| step.name), "step");
    let verdict_width = widest(done.iter().map(verdict), "result");
    let mut text = format!("{:name_width$}  {:verdict_width$}  {:>7}\n", "step", "result", "seconds");
    for step in done {
        let seconds = step.took.as_secs_f64();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:name_width$}  {:verdict_width$}  {seconds:>7.1}", step.name, verdict(step));
    }
    text.push('\n');
    for line in done.iter().filter_map(remark) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(&summary(done));
    text.push('\n');
    text
}

/// The result of a step in a word or two.
pub(crate) fn verdict(step: &Done) -> &'static str {
    match &step.result {
        Ok(Outcome::Passed | Outcome::PassedBut(_)) => "passed",
        Ok(Outcome::Failed(_)) => "FAILED",
        Ok(Outcome::NotDone(verdict, _)) => verdict,
        Err(_) => "BROKEN",
    }
}

fn remark(step: &Done) -> Option<String> {
    let why = match &step.result {
        Ok(Outcome::Passed) => return None,
        Ok(Outcome::PassedBut(why) | Outcome::Failed(why) | Outcome::NotDone(_, why)) => why.clone(),
        Err(fault) => fault.to_string(),
    };
    Some(format!("{}: {}, {why}", step.name, verdict(step)))
}

/// Such as `9 passed, 0 failed`; steps that were not done are added when there are any.
fn summary(done: &[Done]) -> String {
    let count = |wanted: fn(&Done) -> bool| done.iter().filter(|step| wanted(step)).count();
    let failed = count(Done::failed);
    let not_done = count(|step| matches!(step.result, Ok(Outcome::NotDone(..))));
    let passed = done.len() - failed - not_done;
    match not_done {
        0 => format!("{passed} passed, {failed} failed"),
        _ => format!("{passed} passed, {failed} failed, {not_done} not done"),
    }
}

fn widest<'a>(words: impl Iterator<Item = &'a str>, heading: &str) -> usize {
    words.map(|word| word.chars().count()).max().unwrap_or(0).max(heading.len())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fault::Fault;

    fn done(name: &'static str, result: Result<Outcome, Fault>, millis: u64) -> Done {
        Done { name, result, took: Duration::from_millis(millis) }
    }

    #[test]
    fn every_kind_of_result() {
        let steps = [
            done("format", Ok(Outcome::Passed), 412),
            done("tests", Ok(Outcome::PassedBut("without nextest".to_owned())), 61_250),
            done("docs", Ok(Outcome::Failed("`cargo doc`".to_owned())), 3_000),
            done("set-up", Err(Fault::System("cannot start `x`".to_owned())), 0),
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
        assert_eq!(drawn(&steps), expected);
    }

    #[test]
    fn the_summary_is_short_when_all_was_done() {
        let steps = [done("format", Ok(Outcome::Passed), 0), done("tests", Ok(Outcome::Passed), 0)];
        assert_eq!(summary(&steps), "2 passed, 0 failed");
    }
}
