//! `gristmill verify`: checks that the rows of the duplicate catalog are consistent.

use gristmill_store::catalog::Check;
use serde_json::json;

use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::Output;
use crate::units::{count_of, thousands};

const HELP: &str = "\
Checks that the catalog's records of files and folders are consistent with each other. Scanned folders are not read \
(`gristmill scan` and `gristmill refresh` do that) and no file is changed. `gristmill doctor` checks the database \
file.

Exit status:
  0    all checks passed, or everything was repaired
  1    a check failed

Examples:
  gristmill verify
  gristmill verify --repair
  gristmill verify --json | jq '.items[] | select(.broken > 0)'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Repair what fails a check
    #[arg(long)]
    repair: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let checks = if args.repair { store.catalog().repair()? } else { store.catalog().verify()? };
    let broken: i64 = checks.iter().map(|check| check.broken).sum();
    let repaired: i64 = checks.iter().map(|check| check.repaired).sum();
    let value = json!({"items": checks, "broken": broken, "repaired": repaired});
    context.output.print(&value, |output| text(output, &context.hints, &checks, args.repair, (broken, repaired)))?;
    Ok(if broken > repaired { Outcome::UserError } else { Outcome::Done })
}

fn text(output: &Output, hints: &Hints, checks: &[Check], repair: bool, (broken, repaired): (i64, i64)) -> String {
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let row = |check: &Check| {
        let mut row = vec![check.name.to_owned(), thousands(number(check.broken))];
        if repair {
            row.push(thousands(number(check.repaired)));
        }
        row.push(if check.broken > 0 { check.repair.to_owned() } else { String::new() });
        row
    };
    let headers: &[&str] =
        if repair { &["CHECK", "BROKEN", "REPAIRED", "REPAIR"] } else { &["CHECK", "BROKEN", "REPAIR"] };
    let mut text = output.uncut_table(headers, checks.iter().map(row));
    text.push_str(&match (number(broken), number(repaired)) {
        (0, _) => "\nall checks passed\n".to_owned(),
        (broken, 0) if !repair => {
            format!("\n{} inconsistent; repair with `{}`\n", count_of(broken, "row"), hints.command("verify --repair"))
        }
        (broken, repaired) if broken == repaired => format!("\n{} repaired\n", count_of(repaired, "row")),
        (broken, repaired) => format!(
            "\n{} of {} repaired; `{}` corrects the rest\n",
            thousands(repaired),
            count_of(broken, "row"),
            hints.command("scan")
        ),
    });
    text
}
