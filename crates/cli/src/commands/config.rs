//! `gristmill config`: shows every setting with its origin, and writes a commented settings file.

use gristmill_store::private;
use serde_json::{Value, json};

use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::files;
use crate::output::path as path_text;
use crate::settings::{self, Origin, ResolvedSetting};

const SHOW: &str = "\
Flags go over GRISTMILL_* variables, these over the settings file, and that over the defaults.

Examples:
  gristmill config show
  gristmill config show --json | jq -r '.items[] | select(.origin != \"default\") | .key'
  GRISTMILL_WORKER_LEASE=30s gristmill config show";

const INIT: &str = "\
Every setting is in the file, commented out at its default. Only its owner may read the file, which may hold passwords. A file \
that exists is not changed.

Examples:
  gristmill config init
  gristmill config init --config ./gristmill.toml";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Every setting, its value and where it comes from
    #[command(after_help = SHOW)]
    Show,
    /// Where the settings file is, or would be
    #[command(after_help = "Examples:\n  gristmill config path\n  $EDITOR \"$(gristmill config path)\"")]
    Path,
    /// Write a commented settings file
    #[command(after_help = INIT)]
    Init,
}

pub(crate) fn run(command: &Command, context: &Context) -> Result<Outcome, Error> {
    match command {
        Command::Show => show(context)?,
        Command::Path => {
            let path = context.config_path()?;
            let mut value = with_path(&path);
            value.insert("exists".to_owned(), json!(path.exists()));
            context.output.print(&value, |_| path_text(&path))?;
        }
        Command::Init => init(context)?,
    }
    Ok(Outcome::Done)
}

fn show(context: &Context) -> Result<(), Error> {
    let shown = context.settings()?.resolved;
    let items: Vec<Value> = shown.iter().map(as_value).collect();
    context.output.print(&json!({"items": items, "next_cursor": null}), |output| {
        let row = |shown: &ResolvedSetting| {
            vec![shown.key.name.to_owned(), shown.value.clone(), shown.origin.to_string()]
        };
        output.table(&["KEY", "VALUE", "FROM"], &shown.iter().map(row).collect::<Vec<_>>())
    })
}

fn as_value(shown: &ResolvedSetting) -> Value {
    let (origin, place) = match &shown.origin {
        Origin::Default => ("default", None),
        Origin::File(..) => ("file", Some(shown.origin.to_string())),
        Origin::Variable(name) => ("variable", Some((*name).to_owned())),
        Origin::Flag(name) => ("flag", Some((*name).to_owned())),
    };
    json!({"key": shown.key.name, "value": shown.value, "origin": origin, "where": place})
}

fn init(context: &Context) -> Result<(), Error> {
    let path = context.config_path()?;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::Setting(format!("{} exists already, and was not changed", path_text(&path)))
        }
        _ => Error::cannot_write(&path, &error, "--config names another file"),
    };
    if let Some(folder) = path.parent() {
        private::create_folder(folder).map_err(failed)?;
    }
    files::create_private(&path, settings::template().as_bytes()).map_err(failed)?;
    context.output.summary(&with_path(&path), Outcome::Done, |_| format!("wrote {}", path_text(&path)))
}
