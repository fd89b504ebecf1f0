//! Random sequences of imports, compared with a model in memory of what the tables must hold.
//!
//! The model is written from the documentation, not from the code. `cargo test` runs a few rounds with fixed seeds;
//! `cargo xtask check import` runs many. A failing round prints its operations as commands, reduced to those that the
//! failure needs.

mod case;
mod columns;
mod generate;
mod json;
mod load;
mod model;
mod rows;
mod table;
mod workspace;

use gristmill_check::{Rng, reduce};

use crate::case::{Import, Operation};
use crate::model::Model;
use crate::workspace::Workspace;

/// Rounds in `cargo test`.
const ROUNDS: u64 = 300;

#[test]
fn imports_match_the_model() {
    gristmill_check::run("import", ROUNDS, |seed| {
        let operations = generate::case(&mut Rng::new(seed));
        match check(&operations) {
            Ok(()) => Ok(()),
            Err(error) => Err(reduced(&operations, &error)),
        }
    });
}

/// Runs the operations, and compares after each.
fn check(operations: &[Operation]) -> Result<(), String> {
    let (workspace, mut model) = (Workspace::new(), Model::default());
    for (operation, number) in operations.iter().zip(1..) {
        match operation {
            Operation::Import(import) => {
                let observed = workspace.import(import);
                let compared = observed.and_then(|observed| model.check(import, &observed));
                compared.map_err(|error| format!("operation {number}: {error}"))?;
            }
            _ if model.by_user(operation) => workspace.execute(&operation.sql()),
            _ => {}
        }
    }
    Ok(())
}

/// Reduces a failure to the operations, files, lines and members that it needs.
fn reduced(operations: &[Operation], error: &str) -> String {
    let fails_the_same = |operations: &[Operation]| check(operations).is_err_and(|other| kind(&other) == kind(error));
    let mut operations = reduce(operations, fails_the_same);
    for index in 0..operations.len() {
        let Operation::Import(import) = &operations[index] else { continue };
        let mut import = import.clone();
        let fails = |import: &Import| {
            let mut candidate = operations.clone();
            candidate[index] = Operation::Import(import.clone());
            fails_the_same(&candidate)
        };
        import.files = reduce(&import.files, |files| {
            !files.is_empty() && fails(&Import { files: files.to_vec(), ..import.clone() })
        });
        for file in 0..import.files.len() {
            let lines = reduce(&import.files[file].lines, |lines| {
                let mut candidate = import.clone();
                candidate.files[file].lines = lines.to_vec();
                fails(&candidate)
            });
            import.files[file].lines = lines;
            for line in 0..import.files[file].lines.len() {
                let case::Line::Object(members) = &import.files[file].lines[line] else { continue };
                let members = reduce(members, |members| {
                    let mut candidate = import.clone();
                    candidate.files[file].lines[line] = case::Line::Object(members.to_vec());
                    fails(&candidate)
                });
                import.files[file].lines[line] = case::Line::Object(members);
            }
        }
        operations[index] = Operation::Import(import);
    }
    let error = check(&operations).err().unwrap_or_else(|| format!("{error}\n(not in every run)"));
    let commands: Vec<String> =
        operations.iter().zip(1..).map(|(operation, number)| format!("# {number}\n{operation}")).collect();
    format!("{error}\n\n{}", commands.join("\n"))
}

/// Returns an error up to the first name or number, which a smaller case may change.
fn kind(error: &str) -> &str {
    let error = error.trim_start_matches(|c: char| c != ':');
    error.split(['"', '{', '[', '(']).next().unwrap_or(error)
}
