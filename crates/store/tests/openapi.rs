//! The schemas of the feature `openapi` describe the JSON that the types are written as.
#![cfg(feature = "openapi")]

use gristmill_store::catalog::GroupQuery;
use gristmill_store::dead_letters::DeadLetter;
use gristmill_store::jobs::{JobKind, JobRow};
use gristmill_store::tasks::{NewTask, TaskRow, TaskStatus};
use gristmill_store::{JsonRow, NestedJson, Page, Store, UtcTime};
use serde::Serialize;
use serde_json::Value;
use utoipa::{PartialSchema, ToSchema};

fn schema<T: PartialSchema>() -> Value {
    serde_json::to_value(T::schema()).unwrap()
}

/// Checks that the schema has the fields of `value`, all of them required.
fn check<T: PartialSchema + Serialize>(value: &T) {
    let (schema, value) = (schema::<T>(), serde_json::to_value(value).unwrap());
    let fields: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(schema["properties"].as_object().unwrap().keys().collect::<Vec<_>>(), fields);
    let mut required: Vec<&str> =
        schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    required.sort_unstable();
    assert_eq!(required, fields);
}

fn nested<T: JsonRow + Clone>(row: &T) -> String {
    serde_json::to_string(&NestedJson(row.clone())).unwrap()
}

#[test]
fn schemas_of_rows_have_the_fields_of_their_json() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("t.db")).unwrap();
    let job = store.jobs().create(JobKind::Scan, "{}", true).unwrap();
    let task = store.tasks().enqueue(NewTask::new("k", "[1]")).unwrap().id;
    let task = store.tasks().get(task).unwrap();
    check(&job);
    check(&NestedJson(job));
    check(&task);
    check(&store.wal().metrics().unwrap());
    check(&store.roots().register(folder.path()).unwrap());
    let connection = rusqlite::Connection::open(store.path()).unwrap();
    let rows = "INSERT INTO folders (id, library_id, relative_path) VALUES (1, 1, '');
        INSERT INTO library_files (library_id, folder_id, relative_path, size_bytes, mtime_ns, inode, device, is_missing,
            needs_hash, hash_algorithm, content_hash, hashed_at)
        SELECT 1, 1, value, 10, 5, value, 1, 0, 0, 'blake3', zeroblob(32), '2026-01-19 07:08:09' FROM json_each('[1, 2]')";
    connection.execute_batch(rows).unwrap();
    store.catalog().refresh_groups().unwrap();
    let groups = store.catalog().group_page(&GroupQuery::default(), None).unwrap().page.items;
    check(&groups[0]);
    check(&store.catalog().group_files(&groups[0].key, None, 1).unwrap().items[0]);
    assert!(nested(&task).contains(r#""payload":[1]"#));
    let page = store.tasks().list(&Default::default(), None, 1).unwrap().map(NestedJson);
    let value = serde_json::to_value(&page).unwrap();
    assert_eq!(schema::<Page<NestedJson<TaskRow>>>()["properties"]["items"]["type"], "array");
    assert_eq!(value["items"][0]["payload"][0], 1);
}

#[test]
fn schemas_have_the_types_of_values() {
    assert_eq!(schema::<UtcTime>()["format"], "date-time");
    let job = schema::<JobRow>();
    assert_eq!(job["properties"]["payload"]["type"], "object");
    let statuses: Vec<&str> = TaskStatus::ALL.iter().map(|status| status.as_str()).collect();
    assert_eq!(schema::<TaskStatus>()["enum"], serde_json::json!(statuses));
    assert_eq!(NestedJson::<DeadLetter>::name(), "DeadLetter");
}
