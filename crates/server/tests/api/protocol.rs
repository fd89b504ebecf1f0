//! The routes of the shared protocol: status codes and JSON, field by field.

use serde_json::{Value, json};

use crate::client::{FULL, Fixture};

/// Replaces values that differ in each run.
fn fixed(mut value: Value, fields: &[&str]) -> Value {
    for field in fields {
        if let Some(found) = value.get_mut(*field).filter(|found| !found.is_null()) {
            *found = json!("…");
        }
    }
    value
}

const VARYING: [&str; 6] = ["id", "created_at", "updated_at", "started_at", "worker_heartbeat_at", "lease_expires_at"];

#[test]
fn job_lives_through_its_states() {
    let fixture = Fixture::new();
    // Numbers and the order of keys are those of the request.
    let payload = r#"{"z": 1.50, "a": 18446744073709551616}"#;
    let body = format!(r#"{{"kind": "scan", "payload": {payload}}}"#);
    let auth = format!("Bearer {FULL}");
    let headers = [("Authorization", auth.as_str()), ("Content-Type", "application/json; charset=utf-8")];
    let created = fixture.send("POST", "/api/v1/jobs", &headers, Some(&body));
    assert_eq!(created.status, 201, "{created:?}");
    assert!(created.text().contains(&format!(r#""payload":{payload},"#)), "{}", created.text());
    let job = created.json();
    let keys: Vec<&String> = job.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 17);
    let order = [
        "id",
        "kind",
        "status",
        "dry_run",
        "worker_id",
        "worker_heartbeat_at",
        "lease_expires_at",
        "progress",
        "total_items",
        "processed_items",
        "payload",
        "error_code",
        "error_message",
        "created_at",
        "updated_at",
        "started_at",
        "finished_at",
    ];
    let text = created.text();
    let positions: Vec<usize> = order.iter().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
    assert!(positions.is_sorted(), "{text}");
    let id = job["id"].as_str().unwrap();
    assert!(job["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!((&job["status"], &job["dry_run"], &job["progress"]), (&json!("pending"), &json!(true), &json!(0.0)));

    let second = fixture.post("/api/v1/jobs", &json!({ "kind": "hash" }));
    assert_eq!(second.status, 409);
    assert!(second.problem().contains(id));

    let claimed = fixture.post("/api/v1/jobs/scan-hash/claim", &json!({ "worker_id": "w" }));
    assert_eq!(
        (claimed.status, &claimed.json()["status"], &claimed.json()["worker_id"]),
        (200, &json!("running"), &json!("w"))
    );
    assert_eq!(fixture.post("/api/v1/jobs/scan-hash/claim", &json!({ "worker_id": "w" })).status, 404);

    let path = |action: &str| format!("/api/v1/jobs/{id}/{action}");
    let beat = fixture.post(&path("heartbeat"), &json!({ "worker_id": "w", "progress": 0.5, "processed_items": 7 }));
    assert_eq!((&beat.json()["progress"], &beat.json()["processed_items"]), (&json!(0.5), &json!(7)));
    assert_eq!(fixture.post(&path("heartbeat"), &json!({ "worker_id": "other" })).status, 409);
    assert_eq!(fixture.post(&path("heartbeat"), &json!({ "worker_id": "w", "progress": 2 })).status, 422);
    assert_eq!(fixture.post(&path("finish"), &json!({ "worker_id": "other", "success": true })).status, 409);
    let failed =
        fixture.post(&path("finish"), &json!({ "worker_id": "w", "success": false, "error_message": "no disk" }));
    let expected = json!({
        "id": "…", "kind": "scan", "status": "failed", "dry_run": true, "worker_id": "w", "worker_heartbeat_at": "…",
        "lease_expires_at": null, "progress": 0.5, "total_items": null, "processed_items": 7,
        "payload": { "z": 1.5, "a": 18446744073709551616.0 }, "error_code": "WORKER_FAILURE",
        "error_message": "no disk", "created_at": "…", "updated_at": "…", "started_at": "…", "finished_at": "…",
    });
    assert_eq!(fixed(fixed(failed.json(), &VARYING), &["finished_at"]), expected);
    assert_eq!(fixture.post(&path("cancel"), &json!({})).status, 409);
    assert_eq!(fixture.post(&path("reset"), &json!({})).status, 409);
    assert_eq!(fixture.post("/api/v1/jobs/none/cancel", &json!({})).status, 404);

    let third = fixture.post("/api/v1/jobs", &json!({ "kind": "scan" })).json();
    let cancel = format!("/api/v1/jobs/{}/cancel", third["id"].as_str().unwrap());
    let cancelled = fixture.post(&cancel, &json!({ "error_message": "not now" }));
    assert_eq!(
        (&cancelled.json()["status"], &cancelled.json()["error_message"]),
        (&json!("cancelled"), &json!("not now"))
    );
    // As the document and the Python control plane have it, the body is optional, and may be null.
    for body in [None, Some("null"), Some("{}")] {
        let job = fixture.post("/api/v1/jobs", &json!({ "kind": "scan" })).json();
        let auth = format!("Bearer {FULL}");
        let headers = [("Authorization", auth.as_str()), ("Content-Type", "application/json")];
        let headers = if body.is_some() { &headers[..] } else { &headers[..1] };
        let cancel = format!("/api/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
        let cancelled = fixture.send("POST", &cancel, headers, body);
        assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelled")), "{body:?}");
    }
    assert_eq!(fixture.post("/api/v1/jobs/recover-stale", &json!({})).json(), json!({ "recovered": 0 }));
}

#[test]
fn policy_and_invalid_jobs_are_refused() {
    let fixture = Fixture::new();
    let create = |body: Value| fixture.post("/api/v1/jobs", &body);
    assert_eq!(create(json!({ "kind": "scan", "dry_run": false })).status, 409);
    for body in [
        json!({ "kind": "dance" }),
        json!({}),
        json!({ "kind": "scan", "payload": [1] }),
        json!({ "kind": "scan", "unknown": 1 }),
        json!([]),
        json!(["scan", null, null]),
    ] {
        let answer = create(body.clone());
        assert_eq!(answer.status, 422, "{body}");
        assert!(!answer.problem().is_empty());
    }
    let real = Fixture::with(|options| options.dry_run = false);
    assert_eq!(real.post("/api/v1/jobs", &json!({ "kind": "delete", "dry_run": false })).status, 409);
    assert_eq!(real.post("/api/v1/jobs", &json!({ "kind": "scan" })).json()["dry_run"], false);
}

#[test]
fn jobs_are_paged_newest_first() {
    let fixture = Fixture::new();
    let ids: Vec<String> = (0..5)
        .map(|_| {
            fixture.post("/api/v1/jobs", &json!({ "kind": "thumbnail" })).json()["id"].as_str().unwrap().to_owned()
        })
        .collect();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = fixture.get(&format!("/api/v1/jobs?limit=2{cursor}")).json();
        seen.extend(page["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    seen.reverse();
    assert_eq!(seen, ids);
    for path in ["limit=0", "limit=201", "limit=x", "cursor=none", "status=odd", "typo=1"] {
        assert_eq!(fixture.get(&format!("/api/v1/jobs?{path}")).status, 422, "{path}");
    }
}

#[test]
fn groups_and_their_files_are_those_of_the_catalog() {
    let fixture = Fixture::new();
    let root = fixture.path("root");
    std::fs::create_dir(&root).unwrap();
    for (name, content) in [("a", "same"), ("b", "same"), ("c", "other"), ("d 1.png", "pixels"), ("e.png", "pixels")] {
        std::fs::write(root.join(name), content.repeat(10)).unwrap();
    }
    fixture.scan(&root);
    let page = fixture.get("/api/v1/duplicates/groups").json();
    assert_eq!(page["next_cursor"], Value::Null);
    assert_eq!(page["state"]["current"], true);
    let first = &page["items"][0];
    let keys: Vec<&str> = first.as_object().unwrap().keys().map(String::as_str).collect();
    for key in [
        "group_key",
        "hash_algorithm",
        "content_hash_hex",
        "file_count",
        "total_size_bytes",
        "duplicate_waste_bytes",
        "sample_file_id",
    ] {
        assert!(keys.contains(&key), "{first}");
    }
    assert_eq!(
        (&first["file_count"], &first["total_size_bytes"], &first["duplicate_waste_bytes"]),
        (&json!(2), &json!(120), &json!(60))
    );
    let key = first["group_key"].as_str().unwrap();
    let files = fixture.get(&format!("/api/v1/duplicates/groups/{key}/files?limit=1")).json();
    let file = &files["items"][0];
    assert_eq!(
        (&file["relative_path"], &file["library_name"], &file["size_bytes"]),
        (&json!("d 1.png"), &json!("root"), &json!(60))
    );
    assert!(file["mtime_ns"].as_i64().unwrap() > 0 && file["modified_at"].as_str().unwrap().ends_with('Z'));
    let next = files["next_cursor"].as_str().unwrap();
    let rest = fixture
        .get(&format!(
            "/api/v1/duplicates/groups/{}/files?cursor={next}",
            key.to_uppercase().replace("BLAKE3", "blake3")
        ))
        .json();
    assert_eq!(rest["items"][0]["relative_path"], "e.png");

    // One group after the other, through the cursor; and through marks.
    let one = fixture.get("/api/v1/duplicates/groups?limit=1").json();
    let cursor = one["next_cursor"].as_str().unwrap();
    for cursor in [cursor.to_owned(), format!("{cursor}==")] {
        let answer = fixture.get(&format!("/api/v1/duplicates/groups?limit=1&cursor={cursor}"));
        assert_eq!(answer.json()["items"][0]["total_size_bytes"], 80, "{answer:?}");
    }
    let marks = fixture.get("/api/v1/duplicates/groups/marks?every=500").json();
    assert_eq!((&marks["total"], &marks["cursors"]), (&json!(2), &json!([])));
    for (query, count) in
        [("type=image", 1), ("path=ROOT/A", 1), ("min_size=50", 1), ("across_roots=true", 0), ("library_id=99", 0)]
    {
        let answer = fixture.get(&format!("/api/v1/duplicates/groups?{query}")).json();
        assert_eq!(answer["items"].as_array().unwrap().len(), count, "{query}");
        assert_eq!(fixture.get(&format!("/api/v1/duplicates/groups/marks?{query}")).json()["total"], count, "{query}");
    }
    for path in [
        "groups?cursor=x",
        "groups?limit=1001",
        "groups?sort=odd",
        "groups/marks?every=0",
        "groups/x/files",
        "groups/blake3:00/files",
    ] {
        let answer = fixture.get(&format!("/api/v1/duplicates/{path}"));
        assert_eq!(answer.status, 422, "{path}");
        answer.problem();
    }
    // Ignored, and listed again.
    let auth = format!("Bearer {FULL}");
    let headers = [("Authorization", auth.as_str()), ("Content-Type", "application/json")];
    let ignore = |ignored: bool| {
        let path = format!("/api/v1/duplicates/groups/{key}/ignored");
        fixture.send("PUT", &path, &headers, Some(&json!({ "ignored": ignored }).to_string())).json()
    };
    assert_eq!((ignore(true), ignore(true)), (json!({ "changed": 1 }), json!({ "changed": 0 })));
    assert_eq!(fixture.get("/api/v1/duplicates/groups").json()["items"].as_array().unwrap().len(), 1);
    assert_eq!(fixture.get("/api/v1/duplicates/groups?ignored=only").json()["items"][0]["group_key"], key);
    assert_eq!(ignore(false), json!({ "changed": 1 }));
}

#[test]
fn checkpoints_are_requested_once() {
    let fixture = Fixture::new();
    assert_eq!(fixture.get("/api/v1/maintenance/wal/checkpoint/latest").status, 404);
    let request = |body: Value| fixture.post("/api/v1/maintenance/wal/checkpoint", &body);
    let first = request(json!({ "reason": "tidy" }));
    assert_eq!(first.status, 202);
    assert_eq!((&first.json()["requested_mode"], &first.json()["status"]), (&json!("passive"), &json!("pending")));
    // An unfinished one is returned.
    assert_eq!(request(json!({ "mode": "restart" })).json()["id"], first.json()["id"]);
    assert_eq!(request(json!({ "mode": "truncate" })).status, 409);
    assert_eq!(request(json!({ "mode": "everything" })).status, 422);
    assert_eq!(request(json!([null, null])).status, 422);
    assert_eq!(request(json!({ "reason": "x".repeat(2_049) })).status, 422);
    assert_eq!(fixture.get("/api/v1/maintenance/wal/checkpoint/latest").json()["reason"], "tidy");
    fixture.sql("UPDATE wal_maintenance_jobs SET status = 'completed', finished_at = datetime('now')");
    assert_eq!(request(json!({})).status, 429);
    assert_eq!(request(json!({ "force": true, "mode": "truncate" })).status, 202);
    let metrics = fixture.get("/api/v1/maintenance/wal/metrics").json();
    let counts =
        ["pending", "running", "retryable", "failed", "completed"].map(|status| metrics[status].as_i64().unwrap());
    assert_eq!(counts, [1, 0, 0, 0, 1]);
    assert!(metrics["generated_at"].is_string() && metrics["latest_completed_at"].is_string());
}

#[test]
fn health_needs_no_token_and_metrics_do() {
    let fixture = Fixture::new();
    for path in ["/health", "/api/v1/health"] {
        let health = fixture.send("GET", path, &[], None).json();
        assert_eq!((&health["status"], &health["dry_run"]), (&json!("ok"), &json!(true)));
        assert!(health["timestamp"].as_str().unwrap().ends_with('Z') && health["service"].is_string());
    }
    assert_eq!(fixture.send("GET", "/ready", &[], None).text(), "ready\n");
    assert_eq!(fixture.send("GET", "/metrics", &[], None).status, 401);
    let metrics = fixture.get("/metrics");
    assert!(
        metrics.text().contains("# TYPE gristmill_dead_letters gauge\ngristmill_dead_letters 0\n"),
        "{}",
        metrics.text()
    );
    assert_eq!(fixture.get("/api/v1/overview").json()["dead_letters"], 0);
}

#[test]
fn unknown_paths_and_methods_are_problems() {
    let fixture = Fixture::new();
    assert_eq!(fixture.get("/api/v1/nothing").status, 404);
    fixture.get("/api/v1/nothing").problem();
    let auth = format!("Bearer {FULL}");
    let answer = fixture.send("DELETE", "/api/v1/jobs", &[("Authorization", &auth)], None);
    assert_eq!(answer.status, 405);
    answer.problem();
    let long = format!(r#"{{"kind": "scan", "payload": {{"x": "{}"}}}}"#, "y".repeat(1 << 20));
    let headers = [("Authorization", auth.as_str()), ("Content-Type", "application/json")];
    let answer = fixture.send("POST", "/api/v1/jobs", &headers, Some(&long));
    assert_eq!(answer.status, 413);
    answer.problem();
}

#[test]
fn everything_is_below_the_base_path() {
    let fixture = Fixture::with(|options| options.base_path = "/mill".to_owned());
    assert_eq!(fixture.get("/mill/health").status, 200);
    assert_eq!(fixture.get("/mill/api/v1/jobs").status, 200);
    assert_eq!(fixture.get("/health").status, 404);
    fixture.get("/health").problem();
    assert!(fixture.link.starts_with("/mill/#k="));
}

#[test]
fn thumbnails_are_requested_by_file() {
    let fixture = Fixture::new();
    let root = fixture.path("root");
    std::fs::create_dir(&root).unwrap();
    for name in ["a.JPG", "b.jpg", "c.mkv", "d.txt"] {
        std::fs::write(root.join(name), if name.ends_with("txt") { "text" } else { "pixels" }).unwrap();
    }
    fixture.scan(&root);
    let entries = fixture.get("/api/v1/roots/1/entries").json();
    let names: Vec<&str> =
        entries["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a.JPG", "b.jpg", "c.mkv", "d.txt"]);
    let id = |at: usize| entries["items"][at]["id"].as_i64().unwrap();
    let request = |body: Value| fixture.post("/api/v1/thumbs/request", &body);
    let first = request(json!({ "file_id": id(0) }));
    assert_eq!(first.status, 202);
    let thumbnail = first.json();
    let key = thumbnail["thumb_key"].as_str().unwrap();
    // As the original computes it.
    let group = entries["items"][0]["group_key"].as_str().unwrap();
    let text = format!("{}:{group}:256:jpeg:thumb-v2", id(0));
    assert_eq!(key, sha256(&text));
    assert_eq!(thumbnail["output_relpath"], format!("{}/{}/{key}.jpg", &key[..2], &key[2..4]));
    let order = [
        "id",
        "thumb_key",
        "file_id",
        "group_key",
        "status",
        "media_type",
        "format",
        "max_dimension",
        "version",
        "source_size_bytes",
        "source_mtime_ns",
        "output_relpath",
        "width",
        "height",
        "bytes_size",
        "error_code",
        "error_message",
        "error_count",
        "retry_after",
        "worker_id",
        "worker_heartbeat_at",
        "lease_expires_at",
        "created_at",
        "updated_at",
        "started_at",
        "finished_at",
        "content_url",
    ];
    let text = first.text();
    let positions: Vec<usize> = order.iter().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
    assert!(positions.is_sorted(), "{text}");
    assert_eq!(
        (&thumbnail["status"], &thumbnail["version"], &thumbnail["content_url"]),
        (&json!("pending"), &json!(2), &Value::Null)
    );
    assert_eq!(request(json!({ "file_id": id(0) })).json()["id"], thumbnail["id"]);
    let video = request(json!({ "file_id": id(2), "max_dimension": 64, "output_format": "webp" })).json();
    assert_eq!((&video["media_type"], &video["format"]), (&json!("video"), &json!("webp")));
    assert_eq!(request(json!({ "file_id": id(3) })).status, 409);
    assert_eq!(request(json!({ "file_id": 999 })).status, 404);
    for body in [
        json!({ "file_id": 0 }),
        json!({ "file_id": id(0), "max_dimension": 4_097 }),
        json!({ "file_id": id(0), "output_format": "gif" }),
        json!({ "file_id": id(0), "x": 1 }),
    ] {
        assert_eq!(request(body.clone()).status, 422, "{body}");
    }
    assert_eq!(fixture.get(&format!("/api/v1/thumbs/{key}")).json()["file_id"], id(0));
    assert_eq!(fixture.get("/api/v1/thumbs/none").status, 404);
    fixture.sql("UPDATE thumbnails SET status = 'ready' WHERE media_type = 'image'");
    let ready = fixture.get(&format!("/api/v1/thumbs/{key}")).json();
    assert_eq!(ready["content_url"], format!("/api/v1/thumbs/{key}/content"));
    let metrics = fixture.get("/api/v1/thumbs/metrics").json();
    assert_eq!((&metrics["queue_depth"], &metrics["queue_pending"]), (&json!(1), &json!(1)), "{metrics}");
    let cleanup = fixture.post("/api/v1/thumbs/cleanup/group", &json!({ "group_key": group, "delay_seconds": 60 }));
    assert_eq!((cleanup.status, &cleanup.json()["status"]), (200, &json!("pending")));
    for body in [json!({ "group_key": "" }), json!({ "group_key": "x", "delay_seconds": 86_401 })] {
        assert_eq!(fixture.post("/api/v1/thumbs/cleanup/group", &body).status, 422, "{body}");
    }
    assert_eq!(fixture.get("/api/v1/roots/1/entries?path=none").status, 404);
    let scans = fixture.get("/api/v1/scans").json();
    assert_eq!((&scans["items"][0]["status"], &scans["items"][0]["files_seen"]), (&json!("succeeded"), &json!(4)));
    assert_eq!(fixture.get("/api/v1/scans/99").status, 404);
    assert_eq!(fixture.get("/api/v1/workers").json()["items"], json!([]));
    assert_eq!(fixture.get("/api/v1/workers/own").json()["worker"], Value::Null);
    assert!(fixture.get("/api/v1/maintenance/wal").json()["database_size_bytes"].as_u64().unwrap() > 0);
}

fn sha256(text: &str) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
