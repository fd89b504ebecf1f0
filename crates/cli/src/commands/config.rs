//! `gristmill config`: shows every setting with its origin, and writes a commented settings file.

use gristmill_store::private;
use serde_json::{Value, json};

use super::paging;
use super::root_paths::with_path;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::files;
use crate::output::path as path_text;
use crate::settings::{self, Origin, ResolvedSetting};

pub(crate) const EXAMPLES: &str = "\
Examples:
  gristmill config show
  gristmill config init";

const SHOW: &str = "\
Flags override GRISTMILL_* environment variables, which override the settings file, which overrides the defaults. \
`gristmill config init` writes a file that describes every setting.

Examples:
  gristmill config show
  gristmill config show --json | jq -r '.items[] | select(.origin != \"default\") | .key'
  GRISTMILL_WORKER_LEASE=30s gristmill config show";

const INIT: &str = "\
The file describes every setting, commented out at its default. Only its owner may read it, because it may contain \
passwords. An existing file is not changed.

Examples:
  gristmill config init
  gristmill config init --config ./gristmill.toml";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List all settings with their values and origins
    #[command(after_help = SHOW)]
    Show,
    /// Print the path of the settings file
    #[command(after_help = "Examples:\n  gristmill config path\n  $EDITOR \"$(gristmill config path)\"")]
    Path,
    /// Write a commented settings file
    #[command(after_help = INIT)]
    Init,
}

pub(crate) fn run(command: &Command, context: &Context) -> Result<Outcome, Error> {
    match command {
        Command::Show => show(context),
        Command::Path => {
            let path = context.config_path()?;
            let mut value = with_path(&path);
            value.insert("exists".to_owned(), json!(path.exists()));
            context.output.print(&value, |_| path_text(&path))
        }
        Command::Init => init(context),
    }
}

fn show(context: &Context) -> Result<Outcome, Error> {
    let settings = context.settings()?.resolved;
    let items: Vec<Value> = settings.iter().map(as_value).collect();
    context.output.print(&paging::whole(&items), |output| {
        let row = |setting: &ResolvedSetting| {
            vec![setting.key.name.to_owned(), setting.value.clone(), setting.origin.to_string()]
        };
        output.uncut_table(&["KEY", "VALUE", "ORIGIN"], settings.iter().map(row))
    })
}

fn as_value(setting: &ResolvedSetting) -> Value {
    let (origin, place) = match &setting.origin {
        Origin::Default => ("default", None),
        Origin::File(..) => ("file", Some(setting.origin.to_string())),
        Origin::Variable(name) => ("variable", Some((*name).to_owned())),
        Origin::Flag(name) => ("flag", Some((*name).to_owned())),
    };
    json!({"key": setting.key.name, "value": setting.value, "origin": origin, "where": place})
}

fn init(context: &Context) -> Result<Outcome, Error> {
    let path = context.config_path()?;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::Setting(format!(
            "{} exists and was not changed; edit it, or write another with --config FILE",
            path_text(&path)
        )),
        _ => Error::cannot_write(&path, &error, "choose another file with --config"),
    };
    if let Some(folder) = path.parent() {
        private::create_folder(folder).map_err(failed)?;
    }
    files::create_private(&path, settings::template().as_bytes()).map_err(failed)?;
    context.output.summary(&with_path(&path), Outcome::Done, |_| format!("wrote {}", path_text(&path)))
}
