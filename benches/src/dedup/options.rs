//! Command-line options of `cargo xtask bench dedup`.

use clap::Args;

use super::selection::{self, Selection, TreeKind};
use crate::options::{CompareOptions, DataOptions, scale};

const NOTES: &str = "\
The generated trees (small, big, photos, million) have 14 GB and a million files at scale 1, and with --quick the scale
0.02. The real trees have no scale: node, wheels and crates (4 GB) are downloaded by package name with npm, pip and
cargo, usr is the system's /usr, which is only read. A tree that cannot be had is reported as not measured. With
--quick, real trees are measured only if --only names them.

Missing peers are installed, unless --quick or --peers is given: fclones, yadf, czkawka_cli and b3sum with cargo
into the folder for tools, jdupes, rmlint and rdfind with apt-get.

Examples:
  cargo xtask bench dedup
  cargo xtask bench dedup --only real
  cargo xtask bench dedup --only small --peers fclones,yadf --warm";

#[derive(Clone, Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct Options {
    /// Trees, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_enum)]
    only: Option<Vec<Selection>>,
    /// Scale of the generated trees, 0.001 or more [default: 1]
    #[arg(long, value_name = "X", value_parser = scale)]
    scale: Option<f64>,
    /// Measure only with cold file caches (needs root)
    #[arg(long, overrides_with = "warm")]
    cold: bool,
    /// Measure only with warm file caches
    #[arg(long)]
    warm: bool,
    #[command(flatten)]
    pub(super) data: DataOptions,
    #[command(flatten)]
    pub(super) compare: CompareOptions,
}

impl Options {
    pub(super) fn trees(&self) -> Vec<TreeKind> {
        self.only.as_deref().map_or_else(|| selection::all(!self.compare.quick), selection::trees)
    }

    pub(super) fn scale(&self) -> f64 {
        self.scale.unwrap_or(if self.compare.quick { 0.02 } else { 1.0 })
    }

    /// Returns whether to measure with warm, and with cold file caches.
    pub(super) fn warm_and_cold(&self) -> (bool, bool) {
        match (self.warm, self.cold) {
            (false, false) => (true, !self.compare.quick),
            selected => selected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parse;

    #[test]
    fn defaults_depend_on_quick_and_given_values_win() {
        let all: Options = parse("").unwrap();
        assert_eq!((all.trees().len(), all.scale(), all.warm_and_cold()), (8, 1.0, (true, true)));
        let quick: Options = parse("--quick").unwrap();
        assert_eq!((quick.trees().len(), quick.scale(), quick.warm_and_cold()), (4, 0.02, (true, false)));
        let cold: Options = parse("--quick --warm --cold --scale 2 --only big,small").unwrap();
        assert_eq!((cold.scale(), cold.warm_and_cold()), (2.0, (false, true)));
        for (line, expected) in [("--only large", "photos"), ("--scale 0", "0.001 or more")] {
            assert!(parse::<Options>(line).unwrap_err().contains(expected), "{line}");
        }
    }

    #[test]
    fn real_selects_all_real_trees_once() {
        let names = |line| {
            let options: Options = parse(line).unwrap();
            options.trees().into_iter().map(TreeKind::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("--only real"), "node wheels crates usr");
        assert_eq!(names("--quick --only real"), "node wheels crates usr");
        assert_eq!(names("--only usr,real,small"), "small usr node wheels crates");
        assert_eq!(names("--only big,small,big"), "big small");
    }
}
