//! The document that describes the API.

use serde_json::Value;

use crate::client::Fixture;

#[test]
fn document_names_every_route() {
    let fixture = Fixture::new();
    let answer = fixture.send("GET", "/api/v1/openapi.json", &[], None);
    let document: Value = answer.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let paths = document["paths"].as_object().unwrap();
    for (path, methods) in [
        ("jobs", "get post"),
        ("jobs/{id}", "get"),
        ("jobs/scan-hash/claim", "post"),
        ("jobs/{id}/heartbeat", "post"),
        ("jobs/{id}/finish", "post"),
        ("jobs/{id}/cancel", "post"),
        ("jobs/{id}/reset", "post"),
        ("jobs/recover-stale", "post"),
        ("duplicates/groups", "get"),
        ("duplicates/groups/marks", "get"),
        ("duplicates/groups/{group_key}/files", "get"),
        ("thumbs/request", "post"),
        ("thumbs/{key}", "get"),
        ("thumbs/metrics", "get"),
        ("thumbs/cleanup/group", "post"),
        ("dead-letters/retry", "post"),
        ("dead-letters/discard", "post"),
        ("dead-letters/groups", "get"),
        ("roots/{id}/entries", "get"),
        ("maintenance/wal/checkpoint", "post"),
        ("maintenance/wal/checkpoint/latest", "get"),
        ("maintenance/wal/metrics", "get"),
        ("health", "get"),
        ("events", "get"),
        ("sign-in", "post"),
    ] {
        let found = paths.get(&format!("/api/v1/{path}")).unwrap_or_else(|| panic!("no {path}"));
        for method in methods.split(' ') {
            let operation = &found[method];
            for errors in ["4XX", "5XX"] {
                assert!(operation["responses"][errors]["content"]["application/problem+json"].is_object(), "{path}");
            }
            assert!(operation["summary"].is_string() || operation["description"].is_string(), "{path}");
        }
    }
    let operations = paths.values().flat_map(|methods| methods.as_object().unwrap().values());
    let ids: Vec<&str> = operations.filter_map(|operation| operation["operationId"].as_str()).collect();
    assert!(ids.contains(&"get_jobs_id"), "{ids:?}");
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    // Every reference has its schema.
    let text = answer.text();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "no schema {name}");
    }
}

#[test]
fn document_says_which_values_are_valid() {
    let document: Value = Fixture::new().send("GET", "/api/v1/openapi.json", &[], None).json();
    let operation = |path: &str, method: &str| document["paths"][&format!("/api/v1/{path}")][method].clone();
    let parameter = |path: &str, name: &str| {
        let parameters = operation(path, "get")["parameters"].as_array().unwrap().clone();
        parameters.into_iter().find(|parameter| parameter["name"] == name).unwrap()["schema"].clone()
    };
    for (path, name, known) in
        [("jobs", "status", "retryable"), ("jobs", "kind", "hash"), ("tasks", "status", "failed")]
    {
        let schema = parameter(path, name);
        assert!(schema["enum"].as_array().unwrap().contains(&known.into()), "{path} {name}: {schema}");
    }
    for (path, name) in [("duplicates/groups", "sort"), ("duplicates/groups/{group_key}/files", "group_key")] {
        assert!(parameter(path, name)["pattern"].is_string(), "{path} {name}");
    }
    let types = operation("files/{id}/content", "get")["responses"]["200"]["content"].clone();
    let types: Vec<_> = types.as_object().unwrap().keys().cloned().collect();
    assert_eq!(types, ["application/octet-stream", "audio/*", "image/*", "video/*"]);
}
