//! Columns with JSON are nested in a row's JSON byte for byte.

use gristmill_store::jobs::JobKind;
use gristmill_store::tasks::NewTask;
use gristmill_store::{NestedJson, Store};
use rusqlite::Connection;

#[test]
fn nested_json_keeps_the_stored_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.db");
    let store = Store::open(&path).unwrap();
    // Parsing and printing this would sort the keys, change the numbers and fail on the depth.
    let deep = format!("{}{}", "[".repeat(400), "]".repeat(400));
    let payload = format!(r#"{{ "z": 1.0e2, "a": 12345678901234567890123, "deep": {deep} }}"#);
    let id = store.tasks().enqueue(NewTask::new("k", &payload)).unwrap().id;
    let task = store.tasks().get(id).unwrap();
    let json = serde_json::to_string(&NestedJson(task.clone())).unwrap();
    assert!(json.ends_with(&format!(r#""result":null,"payload":{payload}}}"#)), "{json}");
    assert!(serde_json::to_string(&task).unwrap().contains(r#""payload":"{ \"z\""#), "the row itself is unchanged");

    let job = store.jobs().create(JobKind::Scan, r#"{"b":1,"a":2}"#, true).unwrap();
    assert!(serde_json::to_string(&NestedJson(job)).unwrap().contains(r#""payload":{"b":1,"a":2},"#));

    let foreign = Connection::open(&path).unwrap();
    foreign.execute("UPDATE tasks SET payload = 'no \"JSON\"'", []).unwrap();
    let json = serde_json::to_string(&NestedJson(store.tasks().get(id).unwrap())).unwrap();
    assert!(json.contains(r#""payload":"no \"JSON\""}"#), "{json}");
}
