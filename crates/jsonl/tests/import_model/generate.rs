//! Random cases.
//!
//! A case has few names, few values and small files, so that keys repeat, types change and names differ only in case.

use gristmill_check::Rng;

use crate::case::{File, Fixed, Import, Line, Mode, OWN, OWN_COLUMNS, Operation, Schema};
use crate::json::Json;

/// What the operations of a case have in common.
struct Profile {
    /// The key columns, if lines have any.
    key: &'static [&'static str],
    /// Whether the key is named on the command line, not chosen by rule.
    names_key: bool,
    text_keys: bool,
    /// Percent of values whose type is not the usual one of their column.
    drift: usize,
    /// Percent of keys that are written in another case.
    other_case: usize,
    /// Percent of lines without the primary key.
    keyless: usize,
    /// Percent of lines that are not JSON objects.
    bad: usize,
    /// Percent of files all of whose objects are `{}`.
    without_keys: usize,
    flatten: usize,
    schema: Option<Schema>,
    /// Percent of imports with exact numbers.
    exact: usize,
    has_own: bool,
    /// All imports write their rejects to one file.
    shares_rejects: bool,
}

/// Lines that every table rejects. The first three do not look like the beginning of a JSON document.
const BAD: [&str; 7] = ["nope", "\"text\"", "17", "{\"n\":1", "{\"n\":01}", "{\"n\":1,\"n\":2}", "{\"n\":\"\\ud83d\"}"];

const PATHS: [&str; 7] =
    ["t.jsonl", "u.ndjson", "more/t.jsonl", "t.jsonl.gz", "u.jsonl.zst", "own.jsonl", "own.jsonl.gz"];

pub(crate) fn case(rng: &mut Rng) -> Vec<Operation> {
    let profile = profile(rng);
    let mut operations: Vec<Operation> = Vec::new();
    let mut written: Vec<File> = Vec::new();
    for _ in 0..rng.within(1..7) {
        let table = *rng.pick(&["t", "t", "u", OWN]);
        let is_changed = matches!(operations.last(), Some(Operation::Drop(_) | Operation::Empty(_)));
        operations.push(match rng.within(0..100) {
            0..6 => Operation::Drop(table),
            6..10 => Operation::Empty(table),
            10..16 if profile.has_own => Operation::Own { has_key: rng.percent(50) },
            choice if imports(&operations).count() > 0 && choice < if is_changed { 70 } else { 28 } => {
                Operation::Import(repeat(rng, &operations))
            }
            _ => {
                let number = operations.len() + 1;
                Operation::Import(import(rng, &profile, &mut written, number))
            }
        });
    }
    operations
}

fn imports(operations: &[Operation]) -> impl Iterator<Item = &Import> {
    operations.iter().filter_map(|operation| match operation {
        Operation::Import(import) => Some(import),
        _ => None,
    })
}

/// The same command again, with `--resume`, and sometimes without one of its files.
fn repeat(rng: &mut Rng, operations: &[Operation]) -> Import {
    let earlier: Vec<&Import> = imports(operations).collect();
    let mode = *rng.pick(&[Mode::Create, Mode::Append, Mode::Upsert, Mode::Replace]);
    let mut import = (*rng.pick(&earlier)).clone();
    if import.files.len() > 1 && rng.percent(30) {
        import.files.remove(rng.within(0..import.files.len()));
    }
    Import { resume: true, mode, rejects: operations.len() + 1, ..import }
}

fn profile(rng: &mut Rng) -> Profile {
    let key = *rng.pick::<&[&str]>(&[&[], &["id"], &["id"], &["_key"], &["k"], &["k", "l"]]);
    let schema = if rng.percent(25) { Some(schema(rng, key)) } else { None };
    Profile {
        key,
        names_key: key.first() == Some(&"k") || rng.percent(30),
        text_keys: rng.percent(40),
        drift: *rng.pick(&[0, 3, 10, 25]),
        other_case: *rng.pick(&[0, 0, 10, 30]),
        keyless: *rng.pick(&[0, 0, 5, 20]),
        bad: *rng.pick(&[0, 0, 5, 15]),
        without_keys: *rng.pick(&[0, 0, 5, 30]),
        flatten: *rng.pick(&[0, 0, 1, 2]),
        exact: if schema.is_none() { *rng.pick(&[0, 0, 50]) } else { 0 },
        has_own: rng.percent(30),
        schema,
        shares_rejects: rng.percent(20),
    }
}

fn schema(rng: &mut Rng, key: &[&str]) -> Schema {
    let mut columns = Vec::new();
    if rng.percent(60) {
        columns.push(("n", Fixed::Type(rng.pick::<&str>(&["integer", "real", "numeric", "text", "any"]))));
    }
    if rng.percent(50) {
        columns.push(("r", Fixed::Type(rng.pick::<&str>(&["real", "text"]))));
    }
    if rng.percent(40) {
        columns.push(("x", Fixed::Name("renamed")));
    }
    if rng.percent(30) {
        columns.push(("name", Fixed::Skip));
    }
    let others = if key.is_empty() && rng.percent(40) { *rng.pick(&["skip", "reject"]) } else { "infer" };
    Schema { others, columns }
}

fn import(rng: &mut Rng, profile: &Profile, written: &mut Vec<File>, number: usize) -> Import {
    let mut files: Vec<File> = Vec::new();
    let table = rng.percent(15).then(|| *rng.pick(&["t", "u"]));
    for _ in 0..*rng.pick(&[1, 1, 1, 2, 3]) {
        let path = *rng.pick(if profile.has_own { &PATHS } else { &PATHS[..5] });
        let earlier = written.iter().rev().find(|file| file.path == path);
        let file = match earlier {
            Some(earlier) if rng.percent(35) => earlier.clone(),
            _ => {
                let is_array = rng.percent(6);
                File { path, is_array, lines: lines(rng, profile, is_array) }
            }
        };
        let is_known = |other: &File| match table {
            Some(_) => other.path == file.path,
            None => other.table() == file.table(),
        };
        if !files.iter().any(is_known) {
            written.push(file.clone());
            files.push(file);
        }
    }
    let mode = match rng.within(0..100) {
        0..40 if number == 1 => Mode::Create,
        0..5 => Mode::Create,
        5..40 => Mode::Append,
        40..85 if !profile.key.is_empty() => Mode::Upsert,
        40..60 => Mode::Append,
        _ => Mode::Replace,
    };
    let primary_key = match profile.key {
        [_, ..] if profile.names_key && !rng.percent(8) => profile.key.to_vec(),
        _ if profile.schema.is_none() && profile.drift == 0 && rng.percent(3) => {
            vec![*rng.pick(&["n", "gone"])]
        }
        _ => Vec::new(),
    };
    let max_errors = (files.len() == 1 && rng.percent(6)).then(|| rng.within(0..3) as u64);
    Import {
        files,
        table,
        mode,
        resume: rng.percent(25),
        flatten: if rng.percent(95) { profile.flatten } else { rng.within(0..3) },
        primary_key,
        schema: profile.schema.clone(),
        exact: rng.percent(profile.exact),
        max_errors,
        rejects: if profile.shares_rejects { 0 } else { number },
        block: *rng.pick(&[1, 24, 64, 512 << 10]),
    }
}

fn lines(rng: &mut Rng, profile: &Profile, is_array: bool) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut number = rng.within(0..4);
    let has_keys = !rng.percent(profile.without_keys);
    for _ in 0..rng.within(0..9) {
        // Detected as something other than lines: one of the first bytes of a file.
        let is_first = lines.iter().all(|line| *line == Line::Blank);
        let bad = match (is_array, is_first) {
            (true, _) => &BAD[1..3],
            (false, true) => &BAD[..3],
            // Values that a schema skips are not checked.
            (false, false) if profile.schema.is_some() => &BAD[..5],
            (false, false) => &BAD[..],
        };
        lines.push(if rng.percent(profile.bad) {
            Line::Bad(rng.pick::<&str>(bad))
        } else if !is_array && rng.percent(3) {
            Line::Blank
        } else {
            Line::Object(if has_keys { members(rng, profile, &mut number) } else { Vec::new() })
        });
    }
    lines
}

fn members(rng: &mut Rng, profile: &Profile, number: &mut usize) -> Vec<(String, Json)> {
    let mut members: Vec<(String, Json)> = Vec::new();
    *number = if rng.percent(70) { *number + 1 } else { rng.within(0..9) };
    for (part, name) in profile.key.iter().enumerate() {
        if rng.percent(profile.keyless) {
            continue;
        }
        // The first part of two is often the same.
        let value = if part + 1 < profile.key.len() { *number / 4 } else { *number };
        let value = match rng.within(0..100) {
            0..2 => Json::Null,
            chance => match profile.text_keys != (chance < 2 + profile.drift / 4) {
                true => Json::Text(format!("k{value}")),
                false if rng.percent(profile.drift / 4) => Json::Number(format!("{value}.5")),
                false => Json::Number(value.to_string()),
            },
        };
        members.push(((*name).to_owned(), value));
    }
    for name in ["n", "r", "name", "x", "b", "p"] {
        if rng.percent(55) {
            let value = if rng.percent(profile.drift) { other(rng, profile) } else { usual_value(rng, profile, name) };
            members.push((any_case(rng, profile, name), value));
            if rng.percent(50) && any_case(rng, profile, name) != name {
                let second = if name == "name" { "Name".to_owned() } else { name.to_uppercase() };
                members.push((second, usual_value(rng, profile, name)));
            }
        }
    }
    // Names of columns whose names collided, or whose objects were flattened.
    if !profile.has_own && rng.percent(8) {
        // With `p` and `P`, `p_x` would be a third spelling of a name. Which one gets which number is not documented.
        let names: &[&str] =
            if profile.other_case == 0 { &["Name_2", "p_x", "renamed"] } else { &["Name_2", "renamed"] };
        members.push(((*rng.pick(names)).to_owned(), usual_value(rng, profile, "x")));
    }
    let mut known: Vec<String> = Vec::new();
    members.retain(|(key, _)| !known.contains(key) && (known.push(key.clone()), true).1);
    if rng.percent(20) {
        members.reverse();
    }
    members
}

fn any_case(rng: &mut Rng, profile: &Profile, name: &str) -> String {
    // A key may have a column of the user until a key with the exact name is found. Which of two others gets which
    // number then is not documented.
    let is_user_column = OWN_COLUMNS.iter().any(|(column, _)| column.eq_ignore_ascii_case(name));
    if !rng.percent(profile.other_case) || (profile.has_own && !is_user_column) {
        return name.to_owned();
    }
    // With a third spelling next to a column of the user, which of the two gets which number is not documented.
    let is_second = name == "name" && (profile.has_own || rng.percent(60));
    if is_second { "Name".to_owned() } else { name.to_uppercase() }
}

/// A value of the type that most lines have under this name.
fn usual_value(rng: &mut Rng, profile: &Profile, name: &str) -> Json {
    let number = |text: &&str| Json::Number((*text).to_owned());
    match name {
        "n" => number(rng.pick(&["0", "1", "-7", "42", "1000000"])),
        "r" => number(rng.pick(&["0.5", "1.50", "-2.25", "1e3", "3", "0.1"])),
        "name" => Json::Text((*rng.pick(&["", "Ore", "Größe", "a\"b", "7", "line\nend", "true"])).to_owned()),
        "b" => Json::Bool(rng.percent(50)),
        "p" => {
            let mut inner = Vec::new();
            for name in ["x", "y", "deep"] {
                if rng.percent(60) {
                    let value = match name {
                        "deep" => Json::Object(vec![("z".to_owned(), Json::int(rng.within(0..9) as i64))]),
                        _ => number(rng.pick(&["1", "2.5", "-3"])),
                    };
                    let name = if profile.has_own { name.to_owned() } else { any_case(rng, profile, name) };
                    inner.push((name, value));
                }
            }
            Json::Object(inner)
        }
        _ => Json::int(rng.within(0..100) as i64),
    }
}

/// A value of any type.
fn other(rng: &mut Rng, profile: &Profile) -> Json {
    let number = |text: &&str| Json::Number((*text).to_owned());
    match rng.within(0..12) {
        0 => Json::Null,
        1 => Json::Bool(true),
        2 => number(&"9007199254740993"),
        3 => number(&"-9223372036854775807"),
        4 => number(&"3.14159265358979323846"),
        5 => number(&"12345678901234567.25"),
        6 => number(&"0.1000"),
        7 => Json::Text("text".to_owned()),
        8 => Json::Array("[1, {\"a\": 2}]".to_owned()),
        // Whether an object matches a type of the schema depends on the flatten depth.
        9 if profile.schema.is_none() => Json::Object(vec![("y".to_owned(), Json::int(1))]),
        10 => number(&"7"),
        _ => number(&"2.5"),
    }
}
