//! What the measurements say: tables, ratios, and whether the bars are met.
//!
//! Owns the bars. A participant whose answer was wrong, or who was given up, is nobody's measure.

use super::{
    contender::{Acks, BEFORE, Contender, OURS},
    recovery::Outcome,
    scene::{Row, Sample, Scene, WORK},
};
use crate::{
    bar::{self, Bar, Limit::AtLeast},
    table::{median, ratio},
};

impl Row {
    fn each(&self, value: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(value).collect()
    }

    fn rates(&self) -> Vec<f64> {
        self.each(|sample| sample.rate)
    }

    /// Whether it did what was asked, every time.
    fn sound(&self) -> bool {
        self.trouble.is_none() && self.mistakes.is_none() && !self.samples.is_empty()
    }

    fn answer(&self) -> String {
        let mistakes = self.mistakes.as_ref().map(|mistakes| format!("WRONG: {mistakes}"));
        let answer = self.trouble.clone().or(mistakes).unwrap_or_else(|| "right".into());
        answer.replace(['\n', '|'], " ")
    }
}

impl Scene {
    fn ours(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.contender.name == OURS.name && row.sound())
    }

    /// The fastest peer of those that acknowledge so.
    fn fastest(&self, acks: Acks) -> Option<&Row> {
        let those = self.rows.iter().filter(|row| row.contender.acks == acks && row.sound());
        those.max_by(|a, b| median(&a.rates()).total_cmp(&median(&b.rates())))
    }

    fn name(&self) -> String {
        format!("{}, prefetch {}", self.kind.name(), self.prefetch)
    }

    /// What so many workers can do in a second, at most.
    fn possible(&self) -> f64 {
        self.workers as f64 * 1e3 / WORK as f64
    }
}

pub(super) fn print_rate(scene: &Scene) {
    println!("\n{}: {} messages, handlers that do nothing\n", scene.name(), scene.messages);
    println!(
        "| | messages/s | least | most | gristmill × | CPU s for 100,000 | the broker's | peak MiB | answer |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---|");
    let ours = scene.ours().map(Row::rates);
    for row in &scene.rows {
        if row.samples.is_empty() {
            println!("| {} | | | | | | | | {} |", row.contender.name, row.answer());
            continue;
        }
        let rates = row.rates();
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {} | {:.2} | {:.2} | {:.0} | {} |",
            row.contender.name,
            median(&rates),
            rates.iter().copied().fold(f64::INFINITY, f64::min),
            rates.iter().copied().fold(0.0, f64::max),
            ours.as_ref().map_or(String::new(), |ours| format!("{:.2}", ratio(ours, &rates))),
            median(&row.each(|sample| sample.cpu)),
            median(&row.each(|sample| sample.broker_cpu)),
            row.each(|sample| sample.peak_mib).into_iter().fold(0.0, f64::max),
            row.answer(),
        );
    }
}

/// All workers in one table: messages a second, and their part of what is possible.
pub(super) fn print_work(scenes: &[Scene]) {
    println!("\nhandlers of {WORK} ms: messages/s, and their part of what the workers can do\n");
    let heads = scenes.iter().map(|scene| match scene.workers {
        1 => " 1 worker |".to_owned(),
        workers => format!(" {workers} workers |"),
    });
    println!("| |{}\n|---|{}", heads.collect::<String>(), "---:|".repeat(scenes.len()));
    let mut names: Vec<&str> = Vec::new();
    for row in scenes.iter().flat_map(|scene| &scene.rows) {
        if !names.contains(&row.contender.name) {
            names.push(row.contender.name);
        }
    }
    for name in names {
        let cells = scenes.iter().map(|scene| {
            let row = scene.rows.iter().find(|row| row.contender.name == name);
            row.map_or_else(|| "  |".to_owned(), |row| format!(" {} |", worked(scene, row)))
        });
        println!("| {name} |{}", cells.collect::<String>());
    }
}

fn worked(scene: &Scene, row: &Row) -> String {
    if !row.sound() {
        return row.answer();
    }
    let rate = median(&row.rates());
    format!("{rate:.1} ({:.3})", rate / scene.possible())
}

pub(super) fn print_recovery(outcomes: &[Outcome]) {
    println!("\na broker that is killed: the next message is handled after its return\n");
    println!("| | |\n|---|---|");
    for Outcome { name, told } in outcomes {
        println!("| {name} | {} |", told.replace('|', " "));
    }
}

/// Prints every bar that these scenes tell about.
pub(super) fn print_bars(rates: &[Scene], works: &[Scene]) {
    let compared = rates.iter().chain(works).flat_map(before_bars);
    let bars: Vec<Bar> =
        rates.iter().flat_map(rate_bars).chain(works.iter().map(work_bar)).chain(compared).collect();
    if !bars.is_empty() {
        bar::print(bars.into_iter());
    }
}

/// One message at a time has no bar: what it takes is the way to the broker and back.
fn rate_bars(scene: &Scene) -> Vec<Bar> {
    if scene.prefetch == 1 {
        return Vec::new();
    }
    let bar = |what: &str, acks, least| {
        let fastest = scene.fastest(acks);
        let value = scene.ours().zip(fastest).map(|(ours, peer)| ratio(&ours.rates(), &peer.rates()));
        let who = fastest.map_or("nobody", |peer| peer.contender.name);
        Bar { what: format!("{}: × {what} ({who})", scene.name()), value, limit: AtLeast(least) }
    };
    vec![
        bar("the fastest that acknowledges each", Acks::Each, 1.0),
        bar("the fastest in batches", Acks::Batch, 0.8),
    ]
}

fn work_bar(scene: &Scene) -> Bar {
    let value = scene.ours().map(|row| median(&row.rates()) / scene.possible());
    let what = format!("{WORK} ms, workers {}: × what they can do", scene.workers);
    Bar { what, value, limit: AtLeast(0.95) }
}

/// Each rate of ours against the rate of the earlier build: at most 3 % slower.
fn before_bars(scene: &Scene) -> Vec<Bar> {
    let row = |name: &str| scene.rows.iter().find(|row| row.contender.name == name && row.sound());
    let compared =
        BEFORE.iter().filter_map(|(ours, before)| Some((ours, row(ours.name)?, row(before.name)?)));
    let bar = |(ours, now, before): (&&Contender, &Row, &Row)| Bar {
        what: format!("{}, workers {}: {} × before", scene.name(), scene.workers, ours.name),
        value: Some(ratio(&now.rates(), &before.rates())),
        limit: AtLeast(0.97),
    };
    compared.map(bar).collect()
}

/// Why the benchmark has failed, if it has: a wrong answer of anybody's, or none of ours.
pub(super) fn failure<'a>(scenes: impl Iterator<Item = &'a Scene>) -> Option<String> {
    let rows: Vec<&Row> = scenes.flat_map(|scene| &scene.rows).collect();
    if let Some(row) = rows.iter().find(|row| row.mistakes.is_some()) {
        return Some(format!("{}'s answer was wrong", row.contender.name));
    }
    let row = rows.iter().find(|row| row.contender.acks == Acks::ByItself && !row.sound())?;
    Some(format!("{} gave no answer: {}", row.contender.name, row.answer()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::{contender::PEERS, stage::Kind};

    fn row(name: &str, rate: f64) -> Row {
        let contender = std::iter::once(&OURS)
            .chain(&PEERS)
            .chain([&BEFORE[0].1])
            .find(|contender| contender.name == name)
            .unwrap();
        let sample = Sample { rate, cpu: 1.0, broker_cpu: 1.0, peak_mib: 9.0 };
        Row { contender, samples: vec![sample; 3], mistakes: None, trouble: None }
    }

    fn scene(prefetch: u16, workers: usize, rows: Vec<Row>) -> Scene {
        Scene { kind: Kind::Quorum, prefetch, workers, messages: 9, rows }
    }

    fn rows() -> Vec<Row> {
        vec![
            row("gristmill", 900.0),
            row("lapin, each", 800.0),
            row("amqprs, each", 1_000.0),
            row("lapin, by fifties", 1_000.0),
            row("lapin, never", 9_000.0),
        ]
    }

    fn verdicts(bars: &[Bar]) -> Vec<(f64, &'static str)> {
        bars.iter().map(|bar| (bar.value.unwrap_or(-1.0), bar.verdict())).collect()
    }

    #[test]
    fn bars_are_measured_by_the_fastest_of_each_way() {
        assert_eq!(verdicts(&rate_bars(&scene(80, 0, rows()))), [(0.9, "NOT MET"), (0.9, "met")]);
        assert!(rate_bars(&scene(1, 0, rows())).is_empty());
        let one = |rate| work_bar(&scene(80, 8, vec![row("gristmill", rate)])).verdict();
        assert_eq!((one(76.0), one(75.0)), ("met", "NOT MET"));
    }

    #[test]
    fn each_rate_is_compared_with_the_earlier_build() {
        let mut both = rows();
        assert!(before_bars(&scene(80, 0, rows())).is_empty());
        both.push(row("gristmill, before", 1_000.0));
        assert_eq!(verdicts(&before_bars(&scene(80, 0, both))), [(0.9, "NOT MET")]);
    }

    #[test]
    fn wrong_answers_are_nobodys_measure_and_fail_the_run() {
        let mut wrong = rows();
        wrong[2].mistakes = Some("99 handled".into());
        let wrong = scene(80, 0, wrong);
        assert_eq!(verdicts(&rate_bars(&wrong))[0], (1.125, "met"));
        assert!(failure([&wrong].into_iter()).unwrap().contains("amqprs"));
        let mut troubled = rows();
        troubled[2].trouble = Some("it is not well".into());
        assert_eq!(failure([&scene(80, 0, troubled)].into_iter()), None, "a peer's trouble is its own");
        let mut troubled = rows();
        troubled[0].trouble = Some("it is not well".into());
        assert!(failure([&scene(80, 0, troubled)].into_iter()).unwrap().contains("gristmill"));
    }
}
