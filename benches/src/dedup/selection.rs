//! Names of trees on the command line: `--only small,real`.

use clap::{ValueEnum, builder::PossibleValue};

use super::{profile::Profile, real::RealTree};

/// A tree to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeKind {
    Generated(Profile),
    Real(RealTree),
}

impl TreeKind {
    fn possible_value(self) -> Option<PossibleValue> {
        match self {
            TreeKind::Generated(profile) => profile.to_possible_value(),
            TreeKind::Real(tree) => tree.to_possible_value(),
        }
    }

    pub(super) fn name(self) -> String {
        self.possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(super) fn is_real(self) -> bool {
        matches!(self, TreeKind::Real(_))
    }
}

/// A value of `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    One(TreeKind),
    /// All real trees.
    Real,
}

const SELECTIONS: [Selection; 9] = [
    Selection::One(TreeKind::Generated(Profile::Small)),
    Selection::One(TreeKind::Generated(Profile::Big)),
    Selection::One(TreeKind::Generated(Profile::Photos)),
    Selection::One(TreeKind::Generated(Profile::Million)),
    Selection::One(TreeKind::Real(RealTree::Node)),
    Selection::One(TreeKind::Real(RealTree::Wheels)),
    Selection::One(TreeKind::Real(RealTree::Crates)),
    Selection::One(TreeKind::Real(RealTree::Usr)),
    Selection::Real,
];

impl ValueEnum for Selection {
    fn value_variants<'a>() -> &'a [Self] {
        &SELECTIONS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Selection::One(kind) => kind.possible_value(),
            Selection::Real => Some(PossibleValue::new("real").help("All trees that are not generated")),
        }
    }
}

/// Returns each selected tree once: generated ones in the given order, then real ones.
pub(super) fn trees(selections: &[Selection]) -> Vec<TreeKind> {
    let all = SELECTIONS.iter().filter_map(|selection| match selection {
        Selection::One(kind) => Some(*kind),
        Selection::Real => None,
    });
    let mut trees: Vec<TreeKind> = Vec::new();
    for selection in selections {
        let selected: Vec<TreeKind> = match selection {
            Selection::One(kind) => vec![*kind],
            Selection::Real => all.clone().filter(|kind| kind.is_real()).collect(),
        };
        for kind in selected {
            if !trees.contains(&kind) {
                trees.push(kind);
            }
        }
    }
    trees.sort_by_key(|kind| kind.is_real());
    trees
}

/// Returns all trees, or only the generated ones.
pub(super) fn all(real: bool) -> Vec<TreeKind> {
    trees(&SELECTIONS).into_iter().filter(|kind| real || !kind.is_real()).collect()
}
