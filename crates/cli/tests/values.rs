//! Values of arguments: what is accepted, how it is understood, and errors about the rest.

mod common;

use common::{Home, RunOutput};
use serde_json::Value;

/// Returns how `config show` shows the value of a setting that a variable gives; none if it is refused.
fn shown(home: &Home, key: &str, value: &str) -> Option<String> {
    let variable = format!("GRISTMILL_{}", key.to_uppercase().replace('.', "_"));
    let mut command = home.command(&["config", "show", "--json"]);
    let output = RunOutput::of(&command.env(variable, value).output().unwrap());
    if output.code == Some(1) {
        let expected = format!("{key} is {value:?} (");
        assert!(output.err.contains(&expected) && output.err.contains("\n\nexpected: a"), "{value}: {output:?}");
        return None;
    }
    let items = output.json()["items"].as_array().unwrap().clone();
    let item = items.iter().find(|item| item["key"] == key).unwrap();
    Some(item["value"].as_str().unwrap().to_owned())
}

#[test]
fn durations_have_whole_numbers_with_units() {
    let home = Home::new();
    for (text, expected) in [
        ("30s", Some("30s")),
        ("90s", Some("90s")),
        ("120s", Some("2m")),
        ("1h30m", Some("90m")),
        ("7d", Some("7d")),
        ("250ms", Some("250ms")),
        ("0s", Some("0s")),
        ("30", None),
        ("s", None),
        ("-5s", None),
        ("1.5h", None),
        ("5 m", None),
        ("5x", None),
        ("99999999999999999999s", None),
        ("5m-", None),
        ("five", None),
    ] {
        assert_eq!(shown(&home, "worker.keep_finished", text).as_deref(), expected, "{text:?}");
    }
}

#[test]
fn sizes_have_binary_and_decimal_units() {
    let home = Home::new();
    for (text, expected) in [
        ("64KiB", Some("64KiB/s")),
        ("65536B", Some("64KiB/s")),
        ("1 MiB", Some("1MiB/s")),
        ("3072GiB", Some("3TiB/s")),
        ("16383PiB", Some("16383PiB/s")),
        ("64k", Some("64KiB/s")),
        ("64K", Some("64KiB/s")),
        ("64kib", Some("64KiB/s")),
        ("10 M", Some("10MiB/s")),
        ("1.5GiB", Some("1536MiB/s")),
        ("0.5G", Some("512MiB/s")),
        ("1.1KiB", Some("1126B/s")),
        ("1kb", Some("1000B/s")),
        ("10 MB", Some("10000000B/s")),
        ("1.5TB", Some("1464843750KiB/s")),
        ("64", None),
        ("KiB", None),
        ("K", None),
        ("-1B", None),
        ("1.5B", None),
        ("1.G", None),
        (".5G", None),
        ("1..5G", None),
        ("1,5G", None),
        ("4ki", None),
        ("4 x", None),
        ("1e3K", None),
        ("16384PiB", None),
        ("99999999999GiB", None),
        ("1.0000000000000000000G", None),
    ] {
        assert_eq!(shown(&home, "scan.io_limit", text).as_deref(), expected, "{text:?}");
    }
    assert_eq!(shown(&home, "exec.max_output", "0B").as_deref(), Some("0B"));
    for text in ["", "10x", "1.5", "-1", "K"] {
        home.check(&["dupes", &format!("--min-size={text}")], 1, "", "such as 10MiB, 1.5G or 200kB");
    }
    for text in ["10", "2KiB", "10k", "1TiB"] {
        home.check(&["dupes", "--min-size", text], 1, "", "there is no database");
    }
}

#[test]
fn dates_are_days_times_or_durations_ago() {
    let home = Home::new();
    drop(home.store());
    for (text, expected) in [
        ("2026-01-31", "2026-01-31 00:00:00 UTC"),
        ("2026-01-31T12:00:00Z", "2026-01-31 12:00:00 UTC"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31 10:00:00 UTC"),
        ("30d", " UTC"),
    ] {
        home.check(&["purge", "all", "--before", text], 0, expected, "");
    }
    for text in ["", "yesterday", "2026-02-30", "30", "99999999999d"] {
        home.check(&["purge", "all", "--before", text], 1, "", "expected: a date such as");
    }
}

#[test]
fn run_after_is_a_time_or_a_duration_from_now() {
    let home = Home::new();
    let enqueued = |when: &str| {
        let id = home.json(&["enqueue", "k", "--payload", "1", "--run-after", when])["id"].to_string();
        home.json(&["jobs", "show", &id])
    };
    for (text, expected) in [
        ("2030-01-01 06:00:00", "2030-01-01T06:00:00"),
        ("2030-01-01", "2030-01-01T00:00:00"),
        ("2030-01-01T06:00:00Z", "2030-01-01T06:00:00"),
        ("2030-01-01T06:00:00+02:00", "2030-01-01T04:00:00"),
    ] {
        let task = enqueued(text);
        assert!(task["run_after"].as_str().unwrap().starts_with(expected), "{text}: {task}");
    }
    for text in ["in 5m", "2h"] {
        let task = enqueued(text);
        assert!(task["status"] == "scheduled" && task["run_after"].as_str() > task["created_at"].as_str(), "{task}");
    }
    for text in ["", "tomorrow", "in five minutes", "2030-13-01", "5"] {
        home.check(&["enqueue", "k", "--payload", "1", "--run-after", text], 1, "", "expected: a UTC time such as");
    }
}

#[test]
fn ids_and_cursors_have_their_forms() {
    let home = Home::new();
    drop(home.store());
    let uuid = "0b7a3c52-52fb-4a55-9d5e-6d6f0a3f5c11";
    home.check(&["jobs", "show", "12"], 1, "", "12");
    home.check(&["jobs", "show", uuid], 1, "", uuid);
    for text in ["", "0", "x", "0b7a3c52"] {
        home.check(&["jobs", "show", text], 1, "", "expected: the number of a task");
    }
    for text in ["41~-", &format!("-~{uuid}"), "-~-", "7~x"] {
        let output = home.run(&["jobs", "list", "--after", text]);
        assert!(!output.err.contains("expected: next_cursor"), "{text}: {output:?}");
    }
    for text in ["", "41", "x~-"] {
        home.check(&["jobs", "list", "--after", text], 1, "", "expected: next_cursor");
    }
}

#[test]
fn conditions_headers_and_arguments_of_messages_name_what_is_expected() {
    let home = Home::new();
    for text in ["reason", "colour=red", "header:=1", "=1", ""] {
        let expected = "reason, error, consumer, queue, id, type, correlation-id, routing-key or header:NAME";
        home.check(&["queues", "move", "a", "b", "--where", text], 1, "", expected);
    }
    for text in ["a", "=b", "a:int=x", "a:uint8=256", "a:bytes=f", "a:bool=1", "a:void=x", ":int=1"] {
        home.check(&["publish", "--queue", "q", "--header", text], 1, "", "NAME:TYPE=VALUE");
    }
    for (text, expected) in [
        ("max-length=many", "max-length is \"many\"; expected: a whole number"),
        ("max-lenght=1", "NAME is one of max-length"),
        ("single-active-consumer=1", "true or false"),
        ("x-queue-type=stream", "--declare"),
        ("x-other:int=a", "x-NAME:TYPE=VALUE"),
    ] {
        home.check(&["publish", "--queue", "q", "--declare", "quorum", "--argument", text], 1, "", expected);
    }
}

#[test]
fn suggested_commands_quote_paths_for_a_shell() {
    let home = Home::new();
    for (path, expected) in [("a/b.db", "a/b.db"), ("it's.db", "'it'\\''s.db'"), ("a\nb", "$'a\\x0Ab'")] {
        home.check(&["--db", path, "dupes"], 1, "", &format!("`gristmill --db {expected} scan FOLDER`"));
    }
    home.write("my y", "");
    let words = ["--db", "x", "--config", "my y", "dupes"];
    home.check(&words, 1, "", "`gristmill --db x --config 'my y' scan FOLDER`");
}

#[test]
fn work_of_a_task_is_its_command_or_its_payload() {
    let home = Home::new();
    let store = home.store();
    for (kind, payload, expected) in [
        ("exec", r#"{"argv": ["sh", "-c", "echo 'x y'"]}"#, r"sh -c 'echo '\''x y'\'''"),
        ("exec", r#"{"argv": ["true"], "cwd": "/"}"#, "true"),
        ("exec", r#"{"words": 1}"#, r#"{"words": 1}"#),
        ("resize", r#"{"width":80}"#, r#"{"width":80}"#),
        ("k", &format!("\"{}\"", "é".repeat(100)), &format!("\"{}…", "é".repeat(58))),
    ] {
        store.tasks().enqueue(gristmill_store::tasks::NewTask::new(kind, payload)).unwrap();
        let listed = home.run(&["jobs", "list", "--limit", "1"]).out;
        assert!(listed.lines().nth(1).unwrap().ends_with(&format!(" {expected}")), "{expected} in {listed}");
    }
}

#[test]
fn csv_cells_are_quoted_if_needed() {
    let home = Home::new();
    home.files(&[(b"c/plain", b"same"), (b"c/a,b", b"same"), (b"c/say \"x\"", b"same"), (b"c/two\nlines", b"same")]);
    home.scan(&["c"]);
    let rows = home.run(&["dupes", "--csv"]).out;
    let folder = home.real("c");
    for cell in [
        format!(",{folder}/plain,"),
        format!(",\"{folder}/a,b\","),
        format!(",\"{folder}/say \"\"x\"\"\","),
        format!(",\"{folder}/two\nlines\","),
    ] {
        assert!(rows.contains(&cell), "{cell} in {rows}");
    }
}

/// Consumers that are refused before anything connects.
#[test]
fn invalid_consumer_flags_are_reported_with_what_is_expected() {
    let home = Home::new();
    let check = |queue: &str, flags: &[&str], expected: &str| {
        let words = [&["consume", queue], flags, &["--exec", "true"]].concat();
        home.check(&words, 1, "", expected);
    };
    for (flag, value, expected) in [
        ("--workers", "201", "--workers is \"201\", which is not allowed\n\nexpected: a whole number from 0 to 200"),
        ("--workers", "-1", "from 0 to 200"),
        ("--prefetch", "1001", "from 0 to 1000"),
        ("--order-by", "header:", "header:NAME or routing-key"),
        ("--timeout", "0s", "at least 1ms"),
        ("--timeout=-1s", "", "at least 1ms"),
        ("--attempts", "0", "from 1 to 1000"),
        ("--declare", "lazy", "quorum, classic or stream"),
        ("--bind", "shop", "a list of EXCHANGE:KEY"),
        ("--dead-letters", ":", "or :QUEUE"),
        ("--dead-letters", ":q", "of another queue"),
        ("--argument", "max-length=1", "--argument requires --declare (the command line)"),
        ("--batch", "201", "from 1 to 200"),
        ("--linger", "1s", "--linger requires --batch"),
        ("--offset", "-1", "first, last, next or the offset"),
        ("--http", "http://x", "a consumer has --exec and --http (the command line)"),
        ("--table", "t", "--table requires --into"),
        ("--http-retry-status", "404", "--http-retry-status requires --http"),
        ("--retry-for", "0s", "at least 1ms"),
    ] {
        let flags: Vec<&str> = [flag, value].into_iter().filter(|word| !word.is_empty()).collect();
        check("q", &flags, expected);
    }
    check("", &[], "QUEUE is \"\", which is not allowed\n\nexpected: a name");
    check("q", &["--declare", "quorum", "--argument", "max-length=x"], "expected: a whole number");
    home.check(&["consume", "--exec", "true"], 1, "", "QUEUE is missing (the command line)");
    home.check(&["consume", "q", "--into", "x.db"], 1, "", "--table is missing (the command line)");
    for url in ["", "ftp://me:secret@a", "http://", "http:///x", "a", "http://a b", "http://u:p@"] {
        let output = home.run(&["consume", "q", "--http", url]);
        output.check(url, 1, "", "--http is not a URL with http:// or https://");
        assert!(!output.err.contains("secret"), "{output:?}");
    }
    for statuses in ["", "200", "2xx", "6xx", "404;405", "600", "-1", "404,"] {
        let flag = format!("--http-retry-status={statuses}");
        home.check(&["consume", "q", "--http", "http://a", &flag], 1, "", "statuses from 300 to 599");
    }
    home.write(".config/gristmill/config.toml", "[[consumers]]\nqueue = 'q'\nexec = ['ship', \"a\\u0000b\"]\n");
    home.check(&["consume"], 1, "", "a list: the program and its arguments");
}

#[test]
fn valid_urls_of_actions_are_accepted() {
    let home = Home::new();
    for url in ["http://a", "https://u:p@a:1/b?c", "http://[::1]:80/"] {
        let text = format!("[[consumers]]\nqueue = 'q'\nhttp = '{url}'\nhttp_retry_status = '401, 404,5xx'\n");
        home.write(".config/gristmill/config.toml", &text);
        assert_eq!(home.json(&["config", "show"])["next_cursor"], Value::Null, "{url}");
    }
}

#[test]
fn pages_of_the_store_are_joined_up_to_the_limit() {
    let home = Home::new();
    let tasks = (0..410).map(|_| gristmill_store::tasks::NewTask::new("k", "{}")).collect();
    home.store().tasks().enqueue_many(tasks).unwrap();
    for (limit, count, next) in [(None, 50, Some("361~-")), (Some("201"), 201, Some("210~-")), (Some("all"), 410, None)]
    {
        let mut words = vec!["jobs", "list"];
        words.extend(limit.iter().flat_map(|limit| ["--limit", limit]));
        let page = home.json(&words);
        assert_eq!((page["items"].as_array().unwrap().len(), page["next_cursor"].as_str()), (count, next), "{limit:?}");
    }
}
