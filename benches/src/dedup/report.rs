//! What the measurements say: tables, ratios, and whether the bars are met.
//!
//! Owns the bars. A participant whose answer was wrong, or who was given up, is nobody's measure.

use super::{
    profile::Profile,
    scene::{BEFORE, OURS, Row, SUMS, Scene, Setting, WALK},
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
        self.trouble.is_none() && self.mistakes.none() && !self.runs.is_empty()
    }

    fn is_peer(&self) -> bool {
        ![OURS, BEFORE, WALK, SUMS].contains(&self.name)
    }
}

impl Scene {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.sound())
    }

    /// The quickest of the peers whose name begins so.
    fn fastest(&self, begin: &str) -> Option<&Row> {
        let peers =
            self.rows.iter().filter(|row| row.is_peer() && row.sound() && row.name.starts_with(begin));
        peers.min_by(|a, b| median(&a.seconds()).total_cmp(&median(&b.seconds())))
    }

    /// Ours in relation to somebody: the middle of the ratios within each repetition.
    fn ours_to(&self, other: Option<&Row>) -> Option<f64> {
        Some(ratio(&self.row(OURS)?.seconds(), &other?.seconds()))
    }

    fn cost_per_file(&self, row: &Row) -> f64 {
        median(&row.seconds()) * 1e6 / self.files as f64
    }

    pub(super) fn print(&self) {
        println!("\n{} ({} files)\n", self.setting, self.files);
        println!("| | median s | least s | × fastest peer | µs a file | peak MiB | answer |");
        println!("|---|---:|---:|---:|---:|---:|---|");
        let fastest = self.fastest("").map(Row::seconds);
        for row in &self.rows {
            let answer = row.trouble.clone().unwrap_or_else(|| row.mistakes.to_string());
            let answer = answer.replace(['\n', '|'], " ");
            if row.runs.is_empty() {
                println!("| {} | | | | | | {answer} |", row.name);
                continue;
            }
            let seconds = row.seconds();
            let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let times =
                fastest.as_ref().map_or(String::new(), |fastest| format!("{:.2}", ratio(&seconds, fastest)));
            println!(
                "| {} | {:.3} | {least:.3} | {times} | {:.1} | {:.0} | {answer} |",
                row.name,
                median(&seconds),
                self.cost_per_file(row),
                row.peak()
            );
        }
    }
}

/// Prints every bar that these scenes tell about.
pub(super) fn print_bars(scenes: &[Scene]) {
    bar::print(scenes.iter().flat_map(bars).chain(growth(scenes)));
}

fn bars(scene: &Scene) -> Vec<Bar> {
    let Setting { profile, again, cold } = scene.setting;
    let bar = |what: &str, value, most| Bar {
        what: format!("{}: {what}", scene.setting),
        value,
        limit: AtMost(most),
    };
    let to = |name: &str| scene.ours_to(scene.row(name));
    let to_fastest = |begin: &str| scene.ours_to(scene.fastest(begin));
    let fastest = scene.fastest("").map_or("fastest peer", |row| row.name);
    match (profile, again, cold) {
        // See `growth`.
        (Profile::Million, _, _) => Vec::new(),
        (_, true, _) => vec![
            bar(&format!("× {fastest}"), to_fastest(""), 0.25),
            bar(&format!("goal, × {WALK}"), to(WALK), 2.0),
        ],
        (Profile::Big | Profile::Photos, false, false) => vec![
            bar("× the faster fclones with blake3", to_fastest("fclones blake3"), 1.0),
            bar(&format!("goal, × {SUMS}"), to(SUMS), 1.2),
        ],
        (_, false, _) => {
            let mut bars = vec![bar(&format!("× {fastest}"), to_fastest(""), 1.0)];
            if profile == Profile::Small {
                let theirs = scene.row("fclones").map(Row::peak);
                let value = scene.row(OURS).zip(theirs).map(|(ours, theirs)| ours.peak() / theirs);
                bars.push(bar("peak memory × fclones", value, 1.5));
            }
            bars
        }
    }
}

/// What a file costs in larger trees in relation to the smallest, and the most memory in the largest. "Flat" leaves half
/// as much again for what the machine does meanwhile.
fn growth(scenes: &[Scene]) -> Vec<Bar> {
    let of = |again| {
        let scenes = scenes.iter().filter(move |scene| scene.setting.profile == Profile::Million);
        scenes.filter(move |scene| scene.setting.again == again && !scene.setting.cold)
    };
    let mut bars = Vec::new();
    for again in [false, true] {
        let Some(first) = of(again).min_by_key(|scene| scene.files) else { continue };
        for scene in of(again).filter(|scene| scene.files > first.files) {
            let cost = |scene: &Scene| scene.row(OURS).map(|row| scene.cost_per_file(row));
            let what = format!("{}: cost of a file, {} × {} files", scene.setting, scene.files, first.files);
            let value = cost(scene).zip(cost(first)).map(|(large, small)| large / small);
            bars.push(Bar { what, value, limit: AtMost(1.5) });
        }
        if let Some(largest) = of(again).max_by_key(|scene| scene.files) {
            let what = format!("{}: peak MiB with {} files", largest.setting, largest.files);
            bars.push(Bar { what, value: largest.row(OURS).map(Row::peak), limit: AtMost(300.0) });
        }
    }
    bars
}

/// Whether an answer of ours was wrong, or none came.
pub(super) fn ours_failed(scenes: &[Scene]) -> bool {
    scenes.iter().any(|scene| scene.row(OURS).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dedup::truth::Mistakes, process::Run};

    fn row(name: &'static str, seconds: f64, missed: usize) -> Row {
        let mistakes = Mistakes { missed, false_ones: 0 };
        let run = Run { seconds, peak_mib: seconds * 10.0, cpu: seconds };
        Row { name, runs: vec![run; 3], mistakes, trouble: None }
    }

    fn scene(profile: Profile, again: bool, cold: bool, files: u64, rows: Vec<Row>) -> Scene {
        Scene { setting: Setting { profile, again, cold }, files, rows }
    }

    #[track_caller]
    fn check(scene: &Scene, expected: &[(f64, &str)]) {
        let bars = bars(scene);
        let told: Vec<_> = bars.iter().map(|bar| (bar.value.unwrap_or(-1.0), bar.verdict())).collect();
        assert_eq!(told, expected, "{}", scene.setting);
    }

    #[test]
    fn wrong_answers_are_nobodys_measure() {
        let rows = || vec![row(OURS, 3.0, 0), row("fclones", 4.0, 0), row("hasty", 1.0, 7)];
        check(&scene(Profile::Small, false, false, 1, rows()), &[(0.75, "met"), (0.75, "met")]);
        let mut rows = rows();
        rows[0].mistakes.missed = 1;
        let wrong = scene(Profile::Small, false, false, 1, rows);
        check(&wrong, &[(-1.0, "not measured"), (-1.0, "not measured")]);
        assert!(ours_failed(&[wrong]));
    }

    #[test]
    fn each_setting_has_its_own_measure() {
        let rows = || {
            let peers =
                [row("yadf", 1.0, 0), row("fclones blake3", 8.0, 0), row("fclones blake3, tuned", 4.0, 0)];
            let mut rows = vec![row(OURS, 2.0, 0), row(SUMS, 1.0, 0), row(WALK, 0.5, 0)];
            rows.extend(peers);
            rows
        };
        check(&scene(Profile::Big, false, true, 1, rows()), &[(2.0, "NOT MET")]);
        check(&scene(Profile::Photos, false, false, 1, rows()), &[(0.5, "met"), (2.0, "NOT MET")]);
        check(&scene(Profile::Small, true, false, 1, rows()), &[(2.0, "NOT MET"), (4.0, "NOT MET")]);
    }

    #[test]
    fn growth_is_told_from_the_smallest_tree() {
        let sizes = [(1_000, 1.0), (10_000, 10.0), (100_000, 200.0)];
        let scenes = sizes.map(|(files, seconds)| {
            scene(Profile::Million, false, false, files, vec![row(OURS, seconds, 0)])
        });
        let verdicts: Vec<_> = growth(&scenes).iter().map(Bar::verdict).collect();
        assert_eq!(verdicts, ["met", "NOT MET", "NOT MET"], "10^4, 10^5, and 2,000 MiB");
    }
}
