//! Tasks and dead letters.

use gristmill_store::tasks::NewTask;
use serde_json::json;

use crate::client::{FULL, Fixture};

#[test]
fn task_is_enqueued_shown_and_cancelled() {
    let fixture = Fixture::new();
    let body = json!({ "kind": "mail", "queue": "urgent", "payload": { "to": "Ada" }, "unique_key": "k" });
    let created = fixture.post("/api/v1/tasks", &body);
    assert_eq!((created.status, &created.json()["created"]), (201, &json!(true)));
    let id = created.json()["id"].as_i64().unwrap();
    assert_eq!(fixture.post("/api/v1/tasks", &body).json(), json!({ "id": id, "created": false }));
    let shown = fixture.get(&format!("/api/v1/tasks/{id}")).json();
    assert_eq!((&shown["task"]["payload"], &shown["task"]["queue"]), (&json!({ "to": "Ada" }), &json!("urgent")));
    assert_eq!((&shown["failures"], &shown["checkpoints"]), (&json!([]), &json!([])));
    let cancelled = fixture.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({}));
    assert_eq!(cancelled.json(), json!({ "outcome": "cancelled" }));
    assert_eq!(fixture.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).status, 409);
    assert_eq!(fixture.post("/api/v1/tasks/999/cancel", &json!({})).status, 404);
    for (query, count) in
        [("status=cancelled", 1), ("kind=mail&queue=urgent", 1), ("kind=other", 0), ("status=pending", 0)]
    {
        let list = fixture.get(&format!("/api/v1/tasks?{query}")).json();
        assert_eq!(list["items"].as_array().unwrap().len(), count, "{query}");
    }
    for path in ["status=odd", "cursor=x", "cursor=-1", "limit=0"] {
        assert_eq!(fixture.get(&format!("/api/v1/tasks?{path}")).status, 422, "{path}");
    }
}

#[test]
fn commands_are_enqueued_only_if_allowed() {
    let command = json!({ "kind": "exec", "payload": { "command": ["true"] } });
    let fixture = Fixture::new();
    let refused = fixture.post("/api/v1/tasks", &command);
    assert_eq!(refused.status, 403);
    assert!(refused.problem().contains("serve.allow_exec"));
    let allowed = Fixture::with(|options| options.allow_exec = true);
    assert_eq!(allowed.post("/api/v1/tasks", &command).status, 201);
    // Neither is a command that failed run again.
    fixture.store.tasks().enqueue(NewTask::new("exec", "{}")).unwrap();
    fixture.sql(
        "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count, first_failure,
        last_failure, created_at, queue, payload) VALUES ('1', 'exec', '', 'no', 1, '2026-01-01 00:00:00',
        '2026-01-01 00:00:00', '2026-01-01 00:00:00', 'default', '{}')",
    );
    assert_eq!(fixture.post("/api/v1/dead-letters/1/retry", &json!({})).status, 403);
    assert_eq!(fixture.get("/api/v1/dead-letters/1").status, 200);
}

#[test]
fn dead_letter_is_retried_or_discarded() {
    let fixture = Fixture::new();
    for id in 1..4 {
        fixture.sql(&format!(
            "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count, first_failure,
                last_failure, created_at, queue, payload) VALUES ('{id}', 'mail', 'd{id}', 'no route {id}', 3,
                '2026-01-01 00:00:00', '2026-01-01 00:00:00.5', '2026-01-01 00:00:00', 'default', '{{\"n\": {id}}}')"
        ));
    }
    let list = fixture.get("/api/v1/dead-letters?reason=route&limit=2").json();
    assert_eq!((&list["items"][0]["id"], &list["next_cursor"]), (&json!(3), &json!("2")));
    assert_eq!(list["items"][0]["payload"], json!({ "n": 3 }));
    let retried = fixture.post("/api/v1/dead-letters/1/retry", &json!({}));
    assert_eq!(retried.status, 201);
    let task = fixture.get(&format!("/api/v1/tasks/{}", retried.json()["id"])).json();
    assert_eq!((&task["task"]["kind"], &task["task"]["document_id"]), (&json!("mail"), &json!("d1")));
    assert_eq!(fixture.post("/api/v1/dead-letters/1/retry", &json!({})).status, 404);
    let auth = format!("Bearer {FULL}");
    let discard = || fixture.send("DELETE", "/api/v1/dead-letters/2", &[("Authorization", &auth)], None);
    assert_eq!(discard().json(), json!({ "changed": 1 }));
    assert_eq!(discard().status, 404);
    assert_eq!(fixture.get("/api/v1/overview").json()["dead_letters"], 1);
}

#[test]
fn many_dead_letters_are_grouped_retried_and_discarded() {
    let fixture = Fixture::new();
    for id in 1..=6 {
        let (kind, reason) = if id <= 4 { ("mail", "no route to host") } else { ("exec", "exit status") };
        fixture.sql(&format!(
            "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count, first_failure,
                last_failure, created_at, queue, payload) VALUES ('{id}', '{kind}', '', '{reason} {id}', 3,
                '2026-01-01 00:00:00', '2026-01-01 00:00:00', '2026-01-01 00:00:00', 'default', '{{}}')"
        ));
    }
    let groups = fixture.get("/api/v1/dead-letters/groups").json();
    assert_eq!((&groups["items"][0]["kind"], &groups["items"][0]["count"]), (&json!("mail"), &json!(4)), "{groups}");
    let group = groups["items"][0]["reason_group"].as_str().unwrap();
    let act = |action: &str, body: serde_json::Value| fixture.post(&format!("/api/v1/dead-letters/{action}"), &body);
    // The number has changed since the caller has seen it.
    let stale = act("retry", json!({ "filter": { "kind": "mail" }, "expected_count": 3 }));
    assert_eq!(stale.status, 409);
    assert!(stale.problem().contains('4') && stale.problem().contains('3'), "{stale:?}");
    let retried = act("retry", json!({ "ids": [1, 2], "expected_count": 2 }));
    assert_eq!(retried.json(), json!({ "done": 2, "skipped": [], "failed": [] }));
    let gone = act("discard", json!({ "ids": [1, 3], "expected_count": 2 })).json();
    assert_eq!((&gone["done"], &gone["skipped"][0]["id"]), (&json!(1), &json!(1)), "{gone}");
    let rest = act("retry", json!({ "filter": { "reason_group": group, "kind": "mail" }, "expected_count": 1 }));
    assert_eq!(rest.json()["done"], 1, "{rest:?}");
    // Commands are not retried, neither by a filter nor by ids.
    for body in [
        json!({ "filter": {}, "expected_count": 2 }),
        json!({ "filter": { "kind": "exec" }, "expected_count": 2 }),
        json!({ "ids": [5], "expected_count": 1 }),
    ] {
        assert_eq!(act("retry", body.clone()).status, 403, "{body}");
    }
    assert_eq!(act("discard", json!({ "filter": {}, "expected_count": 2 })).json()["done"], 2);
    for body in [
        json!({ "expected_count": 0 }),
        json!({ "ids": [], "filter": {}, "expected_count": 0 }),
        json!({ "ids": [1] }),
        json!({ "filter": [null, null, null, null], "expected_count": 0 }),
    ] {
        assert_eq!(act("discard", body.clone()).status, 422, "{body}");
    }
    let counts = fixture.get("/api/v1/tasks/counts").json();
    assert_eq!(counts["items"], json!([{ "queue": "default", "kind": "mail", "status": "pending", "count": 3 }]));
}
