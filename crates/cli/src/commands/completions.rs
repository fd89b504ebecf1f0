//! `gristmill completions` and `gristmill man`: scripts for shells and manual pages, generated from the declared
//! arguments.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use serde_json::json;

use crate::args::Args;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::files;
use crate::units::plural;

pub(crate) const COMPLETIONS: &str = "\
Prints the script to standard output. Where to save it depends on the shell.

Examples:
  gristmill completions bash > ~/.local/share/bash-completion/completions/gristmill
  gristmill completions zsh > ~/.zfunc/_gristmill
  gristmill completions fish > ~/.config/fish/completions/gristmill.fish";

const MAN: &str = "\
Examples:
  gristmill man | man -l -
  gristmill man --out ~/.local/share/man/man1";

#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub(crate) struct ManArgs {
    /// Write a page for every command into this folder and replace existing ones [default: print the page of the
    /// program to standard output]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(shell: Shell, context: &Context) -> Result<Outcome, Error> {
    let script = script(shell)?;
    context.output.print(&json!({"shell": shell.to_string(), "script": script}), |_| script.clone())
}

fn script(shell: Shell) -> Result<String, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut built_command(), "gristmill", &mut script);
    text(script)
}

pub(crate) fn man(args: &ManArgs, context: &Context) -> Result<Outcome, Error> {
    let Some(folder) = &args.out else {
        let (_, page) = page(built_command())?;
        return context.output.print(&json!({"page": page}), |_| page.clone());
    };
    let failed =
        |path: &Path, error: std::io::Error| Error::cannot_write(path, &error, "choose another folder with --out");
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let mut files = Vec::new();
    for command in with_subcommands(built_command()) {
        let (name, page) = page(command)?;
        let file = folder.join(name);
        files::replace(&file, page.as_bytes()).map_err(|error| failed(&file, error))?;
        files.push(file.to_string_lossy().into_owned());
    }
    let shown = crate::output::path(folder);
    context.output.summary(&json!({"files": files}), Outcome::Done, |_| {
        format!("wrote {} to {shown}", plural(files.len() as u64, "page"))
    })
}

/// Returns the declared command line with full names of subcommands, such as `gristmill-roots-remove`.
fn built_command() -> clap::Command {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    command
}

/// Returns a command and all its subcommands, recursively.
fn with_subcommands(command: clap::Command) -> Vec<clap::Command> {
    let mut all: Vec<clap::Command> =
        command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned().flat_map(with_subcommands).collect();
    all.insert(0, command);
    all
}

fn page(command: clap::Command) -> Result<(String, String), Error> {
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render(&mut page).map_err(|error| Error::System(error.to_string()))?;
    Ok((man.get_filename(), text(page)?))
}

fn text(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| Error::System(error.to_string()))
}
