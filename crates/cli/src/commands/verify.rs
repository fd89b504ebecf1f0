//! `gristmill verify`: whether the rows of the catalog agree with each other.

use gristmill_store::catalog::Check;
use serde_json::json;

use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::hints::Hints;
use crate::output::{Output, count_of, thousands};

const EXAMPLES: &str = "\
This is about what the database says of files and folders; no disk is read (`gristmill scan` and `gristmill refresh` do \
that), and no file is touched. `gristmill doctor` looks after the database itself.

Exit codes: 0 all of it holds, or was put right; 1 something does not hold.

Examples:
  gristmill verify
  gristmill verify --repair
  gristmill verify --json | jq '.items[] | select(.broken > 0)'";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Put right what does not hold
    #[arg(long)]
    repair: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let (store, _) = context.open_catalog()?;
    let checks = if args.repair { store.catalog().repair()? } else { store.catalog().verify()? };
    let broken: i64 = checks.iter().map(|check| check.broken).sum();
    let repaired: i64 = checks.iter().map(|check| check.repaired).sum();
    let value = json!({"items": checks, "broken": broken, "repaired": repaired});
    context
        .output
        .print(&value, |output| text(output, &context.hints, &checks, args.repair, (broken, repaired)))?;
    Ok(if broken > repaired { Outcome::UserError } else { Outcome::Done })
}

fn text(
    output: &Output,
    hints: &Hints,
    checks: &[Check],
    repair: bool,
    (broken, repaired): (i64, i64),
) -> String {
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let row = |check: &Check| {
        let mut row = vec![check.name.to_owned(), thousands(number(check.broken))];
        if repair {
            row.push(thousands(number(check.repaired)));
        }
        row.push(if check.broken > 0 { check.repair.to_owned() } else { String::new() });
        row
    };
    let headers: &[&str] = if repair {
        &["WHAT HOLDS", "BROKEN", "REPAIRED", "HOW"]
    } else {
        &["WHAT HOLDS", "BROKEN", "HOW IT IS REPAIRED"]
    };
    let rows: Vec<_> = checks.iter().map(row).collect();
    let mut text = output.table(headers, &rows);
    text.push_str(&match (number(broken), number(repaired)) {
        (0, _) => "\nall of it holds\n".to_owned(),
        (broken, 0) if !repair => {
            format!(
                "\n{} not as it should be; `{}` puts it right\n",
                count_of(broken, "row"),
                hints.command("verify --repair")
            )
        }
        (broken, repaired) if broken == repaired => format!("\n{} repaired\n", count_of(repaired, "row")),
        (broken, repaired) => format!(
            "\n{} of {} repaired; `{}` sees what is there and puts the rest right\n",
            thousands(repaired),
            count_of(broken, "row"),
            hints.command("scan")
        ),
    });
    text
}
