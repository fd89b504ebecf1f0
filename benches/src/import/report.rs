//! What the measurements say: tables, ratios, and whether the bars are met.
//!
//! Owns the bars. A participant whose database was wrong, or who was given up, is nobody's measure.

use super::{
    contender::{DUCKDB, FLOOR, OURS},
    scene::{Row, Scene},
};
use crate::{
    bar::{self, Bar, Limit::AtMost},
    table::{median, ratio},
};

impl Row {
    fn seconds(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.seconds).collect()
    }

    fn peak(&self) -> f64 {
        self.runs.iter().map(|run| run.peak_mib).fold(0.0, f64::max)
    }

    /// Whether it did what was asked, every time.
    fn sound(&self) -> bool {
        self.trouble.is_none() && self.mistakes.is_none() && !self.runs.is_empty()
    }

    fn answer(&self) -> String {
        let mistakes = self.mistakes.as_ref().map(|mistakes| format!("WRONG: {mistakes}"));
        let answer = self.trouble.clone().or(mistakes).unwrap_or_else(|| "right".into());
        answer.replace(['\n', '|'], " ")
    }
}

impl Scene {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.sound())
    }

    /// Ours in relation to somebody: the middle of the ratios within each repetition.
    fn ours_to(&self, name: &str) -> Option<f64> {
        Some(ratio(&self.row(OURS.name)?.seconds(), &self.row(name)?.seconds()))
    }

    pub(super) fn print(&self) {
        println!("\nscale {} ({:.0} MB, {} lines)\n", self.scale, self.megabytes, self.lines);
        println!("| | median s | least s | MB/s | × floor | × gristmill | peak MiB | answer |");
        println!("|---|---:|---:|---:|---:|---:|---:|---|");
        for row in &self.rows {
            if row.runs.is_empty() {
                println!("| {} | | | | | | | {} |", row.name, row.answer());
                continue;
            }
            let seconds = row.seconds();
            let times = |base: &str| {
                let base = self.row(base).map(Row::seconds);
                base.map_or(String::new(), |base| format!("{:.2}", ratio(&seconds, &base)))
            };
            let middle = median(&seconds);
            println!(
                "| {} | {middle:.3} | {:.3} | {:.0} | {} | {} | {:.0} | {} |",
                row.name,
                seconds.iter().copied().fold(f64::INFINITY, f64::min),
                self.megabytes / middle,
                times(FLOOR.name),
                times(OURS.name),
                row.peak(),
                row.answer()
            );
        }
    }
}

/// Prints every bar that these scenes tell about.
pub(super) fn print_bars(scenes: &[Scene]) {
    bar::print(scenes.iter().flat_map(bars).chain(flat(scenes)));
}

fn bars(scene: &Scene) -> Vec<Bar> {
    let bar = |what: &str, value, most| Bar {
        what: format!("scale {}: {what}", scene.scale),
        value,
        limit: AtMost(most),
    };
    vec![
        bar("× floor", scene.ours_to(FLOOR.name), 1.6),
        bar("goal, × floor", scene.ours_to(FLOOR.name), 1.2),
        // Three times as fast.
        bar("× duckdb", scene.ours_to(DUCKDB), 0.33),
        bar("peak MiB", scene.row(OURS.name).map(Row::peak), 200.0),
    ]
}

/// What a megabyte costs in the largest folder in relation to the smallest. Nine tenths of the throughput are flat.
fn flat(scenes: &[Scene]) -> Option<Bar> {
    let by_size = |a: &&Scene, b: &&Scene| a.megabytes.total_cmp(&b.megabytes);
    let (small, large) = (scenes.iter().min_by(by_size)?, scenes.iter().max_by(by_size)?);
    let cost = |scene: &Scene| scene.row(OURS.name).map(|row| median(&row.seconds()) / scene.megabytes);
    let what = format!("flat: time for a megabyte, scale {} × scale {}", large.scale, small.scale);
    let value = cost(large).zip(cost(small)).map(|(large, small)| large / small);
    (large.megabytes > small.megabytes).then_some(Bar { what, value, limit: AtMost(1.11) })
}

/// Why the benchmark has failed, if it has: a wrong database of anybody's, or none of ours or the floor's.
pub(super) fn failure(scenes: &[Scene]) -> Option<String> {
    let rows = || scenes.iter().flat_map(|scene| &scene.rows);
    if let Some(row) = rows().find(|row| row.mistakes.is_some()) {
        return Some(format!("{}'s database was wrong", row.name));
    }
    let row = rows().find(|row| [OURS.name, FLOOR.name].contains(&row.name) && !row.sound())?;
    Some(format!("{} made no database", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Run;

    fn row(name: &'static str, seconds: f64) -> Row {
        let run = Run { seconds, peak_mib: seconds * 100.0, cpu: seconds };
        Row { name, runs: vec![run; 3], mistakes: None, trouble: None }
    }

    fn scene(scale: f64, rows: Vec<Row>) -> Scene {
        Scene { scale, megabytes: scale * 1_500.0, lines: 1, rows }
    }

    fn verdicts(bars: &[Bar]) -> Vec<(f64, &'static str)> {
        bars.iter().map(|bar| (bar.value.unwrap_or(-1.0), bar.verdict())).collect()
    }

    #[test]
    fn bars_are_measured_by_the_floor_and_duckdb() {
        let scene = scene(0.1, vec![row(OURS.name, 1.5), row(FLOOR.name, 1.0), row(DUCKDB, 6.0)]);
        let expected = [(1.5, "met"), (1.5, "NOT MET"), (0.25, "met"), (150.0, "met")];
        assert_eq!(verdicts(&bars(&scene)), expected);
        assert_eq!(failure(&[scene]), None);
    }

    #[test]
    fn wrong_answers_are_nobodys_measure_and_fail_the_run() {
        let mut rows = vec![row(OURS.name, 3.0), row(FLOOR.name, 1.0), row(DUCKDB, 6.0)];
        rows[1].mistakes = Some("types: other values in radius".into());
        let wrong = scene(0.1, rows);
        assert_eq!(verdicts(&bars(&wrong))[0], (-1.0, "not measured"));
        assert!(failure(&[wrong]).unwrap().contains("floor"));
        let mut rows = vec![row(OURS.name, 3.0), row(FLOOR.name, 1.0), row(DUCKDB, 6.0)];
        rows[2].trouble = Some("it is not well".into());
        assert_eq!(failure(&[scene(0.1, rows)]), None, "a peer's trouble is its own");
    }

    #[test]
    fn flat_is_told_between_the_smallest_and_the_largest() {
        let scenes = |largest| {
            [(0.1, 1.0), (0.3, 9.0), (1.0, largest)]
                .map(|(scale, seconds)| scene(scale, vec![row(OURS.name, seconds)]))
        };
        assert_eq!(flat(&scenes(10.5)).unwrap().verdict(), "met");
        assert_eq!(flat(&scenes(11.5)).unwrap().verdict(), "NOT MET");
        assert!(flat(&scenes(1.0)[..1]).is_none());
    }
}
