//! The commands, each with its arguments, help and implementation.
//!
//! Owns what several commands share: acting on many ids of which some may be refused, and JSON inside rows.

mod amqp_common;
pub(crate) mod backup;
mod completeness;
pub(crate) mod completions;
pub(crate) mod config;
mod confirm;
pub(crate) mod consume;
pub(crate) mod copies;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod dupes;
pub(crate) mod enqueue;
mod environment;
pub(crate) mod export;
pub(crate) mod folders;
pub(crate) mod ignore;
pub(crate) mod import;
pub(crate) mod jobs;
pub(crate) mod list;
mod management;
mod metrics;
mod paging;
pub(crate) mod publish;
pub(crate) mod purge;
pub(crate) mod queues;
pub(crate) mod refresh;
pub(crate) mod report;
mod root_paths;
pub(crate) mod roots;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod unique;
mod value_parsers;
pub(crate) mod verify;
pub(crate) mod worker;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::error::{Error, Outcome};

/// Acts on each of many ids. A refused id is reported, and the others are still handled.
fn for_each_id<T: Serialize>(
    context: &Context,
    ids: &[T],
    mut act: impl FnMut(&T) -> Result<(Value, String), Error>,
) -> Result<Outcome, Error> {
    let mut outcome = Outcome::Done;
    let (mut items, mut lines) = (Vec::new(), Vec::new());
    for id in ids {
        match act(id) {
            Ok((item, line)) => {
                items.push(item);
                lines.push(line);
            }
            Err(error) => {
                outcome = outcome.and(error.outcome());
                let error = error.complete_commands(&context.hints);
                error.report();
                items.push(json!({"id": id, "error": error.to_string()}));
            }
        }
    }
    // Refused ids have been reported on standard error.
    context.output.summary(&paging::whole(&items), Outcome::Done, |_| lines.join("\n"))?;
    Ok(outcome)
}

/// Converts a row to a JSON object. Columns that contain JSON are nested in it.
fn to_object(row: &impl Serialize) -> Result<Map<String, Value>, Error> {
    let failed = |error: serde_json::Error| Error::System(format!("cannot convert a row to JSON: {error}"));
    let mut object: Map<String, Value> =
        serde_json::from_value(serde_json::to_value(row).map_err(failed)?).map_err(failed)?;
    for column in ["payload", "result", "checkpoint", "data"] {
        if let Some(Value::String(text)) = object.get(column)
            && let Ok(inner) = serde_json::from_str(text)
        {
            object.insert(column.to_owned(), inner);
        }
    }
    Ok(object)
}

/// Parses the id of a dead letter.
fn dead_letter_id(text: &str) -> Result<i64, String> {
    let id = text.parse().ok().filter(|id| *id > 0);
    id.ok_or_else(|| "expected: a number such as 12 (`gristmill dead list` shows them)".to_owned())
}
