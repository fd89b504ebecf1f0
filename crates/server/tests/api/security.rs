//! Who may send which request: hosts, tokens, sessions, origins, rights.

use serde_json::{Value, json};

use crate::client::{FULL, Fixture, READ};

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn requests_need_a_valid_token() {
    let fixture = Fixture::new();
    let status = |headers: &[(&str, &str)]| {
        let answer = fixture.send("GET", "/api/v1/jobs", headers, None);
        if answer.status != 200 {
            answer.problem();
        }
        answer.status
    };
    assert_eq!(status(&[("Authorization", &bearer(FULL))]), 200);
    assert_eq!(status(&[("authorization", &format!("bearer {READ}"))]), 200);
    let other = Fixture::with(|options| options.full_token = "the token of another server".to_owned());
    let cookie = other.sign_in();
    for wrong in ["", "x", &FULL[1..], &FULL[..FULL.len() - 1], "the token of another server"] {
        assert_eq!(status(&[("Authorization", &bearer(wrong))]), 401, "{wrong:?}");
    }
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("Authorization", FULL)]), 401);
    assert_eq!(status(&[("Authorization", &bearer(FULL)), ("Authorization", &bearer(FULL))]), 401);
    assert_eq!(status(&[("Cookie", &cookie)]), 401);
    assert_eq!(fixture.send("GET", &format!("/api/v1/jobs?token={FULL}"), &[], None).status, 401);
}

#[test]
fn many_wrong_tokens_are_refused_and_right_ones_are_not() {
    let fixture = Fixture::new();
    let get = |token: &str| fixture.send("GET", "/api/v1/jobs", &[("Authorization", &bearer(token))], None);
    for number in 0..20 {
        assert_eq!(get(&format!("wrong {number}")).status, 401);
    }
    let answer = get("wrong");
    assert_eq!(answer.status, 429);
    assert!(answer.problem().contains("wait"));
    assert_eq!(get(FULL).status, 200);
}

#[test]
fn link_signs_in_once() {
    let fixture = Fixture::new();
    let cookie = fixture.sign_in();
    let port = fixture.address.port();
    assert!(cookie.starts_with(&format!("gristmill-{port}=")), "{cookie}");
    let session = fixture.send("GET", "/api/v1/session", &[("Cookie", &cookie)], None);
    assert_eq!(session.json(), json!({ "access": "full", "credential": "session", "can_change": true }));
    let code = fixture.link.split_once("k=").unwrap().1;
    for code in [code, "", "x"] {
        let headers = [("Content-Type", "application/json"), ("Sec-Fetch-Site", "same-origin")];
        let body = json!({ "code": code }).to_string();
        let answer = fixture.send("POST", "/api/v1/sign-in", &headers, Some(&body));
        assert_eq!(answer.status, 401);
        assert!(answer.problem().contains("link"));
    }
    let headers = [("Cookie", cookie.as_str()), ("Sec-Fetch-Site", "same-origin")];
    assert_eq!(fixture.send("DELETE", "/api/v1/session", &headers, None).status, 204);
    assert_eq!(fixture.send("GET", "/api/v1/session", &[("Cookie", &cookie)], None).status, 401);
}

#[test]
fn only_known_hosts_are_answered() {
    let fixture =
        Fixture::with(|options| options.allowed_hosts = vec!["NAS.home".to_owned(), "nas.home:444".to_owned()]);
    let port = fixture.address.port();
    let cookie = fixture.sign_in();
    let get =
        |head: &str| fixture.raw(format!("GET /api/v1/jobs HTTP/1.1\r\n{head}Connection: close\r\n\r\n").as_bytes());
    let auth = format!("Authorization: {}\r\n", bearer(FULL));
    for host in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("LOCALHOST:{port}"),
        format!("[::1]:{port}"),
        format!("nas.home:{port}"),
        "nas.home:444".to_owned(),
        "nas.home".to_owned(),
    ] {
        assert_eq!(get(&format!("Host: {host}\r\n{auth}")).status, 200, "{host}");
    }
    for host in [
        "evil.test".to_owned(),
        format!("evil.test:{port}"),
        format!("localhost.evil.test:{port}"),
        format!("localhost:{}", port ^ 1),
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        String::new(),
    ] {
        let answer = get(&format!("Host: {host}\r\n{auth}"));
        assert_eq!(answer.status, 421, "{host}");
        let detail = answer.problem();
        assert!(detail.contains("--allow-host") && detail.contains(&host.to_lowercase()), "{detail}");
        // DNS rebinding: the browser believes that the page is of this origin, and sends the cookie.
        let rebound =
            format!("Host: {host}\r\nOrigin: http://{host}\r\nSec-Fetch-Site: same-origin\r\nCookie: {cookie}\r\n");
        assert_eq!(get(&rebound).status, 421, "{host}");
    }
    let host = fixture.host();
    assert_eq!(get(&auth).status, 421);
    assert_eq!(get(&format!("Host: {host}\r\nHost: evil.test\r\n{auth}")).status, 421);
    assert_eq!(get(&format!("Host: {host}\r\nHost: {host}\r\n{auth}")).status, 421);
    let absolute = format!("GET http://{host}/api/v1/jobs HTTP/1.1\r\nHost: {host}\r\n{auth}Connection: close\r\n\r\n");
    assert_eq!(fixture.raw(absolute.as_bytes()).status, 421);
    // The check comes before all others.
    assert_eq!(get("Host: evil.test\r\n").status, 421);
}

#[test]
fn session_changes_something_only_from_a_page_of_the_server() {
    let fixture = Fixture::new();
    let cookie = fixture.sign_in();
    let (host, port) = (fixture.host(), fixture.address.port());
    let post = |headers: &[(&str, &str)]| {
        let mut all = vec![("Cookie", cookie.as_str()), ("Content-Type", "application/json")];
        all.extend(headers);
        let answer = fixture.send("POST", "/api/v1/jobs", &all, Some(r#"{"kind": "thumbnail"}"#));
        if answer.status != 201 {
            answer.problem();
        }
        answer.status
    };
    let origin = format!("http://{host}");
    assert_eq!(post(&[("Sec-Fetch-Site", "same-origin")]), 201);
    assert_eq!(post(&[("Sec-Fetch-Site", "same-origin"), ("Origin", &origin)]), 201);
    assert_eq!(post(&[("Origin", &origin)]), 201);
    assert_eq!(post(&[("Origin", &format!("http://localhost:{port}"))]), 201);
    for site in ["same-site", "cross-site", "none", ""] {
        assert_eq!(post(&[("Sec-Fetch-Site", site), ("Origin", &origin)]), 403, "{site}");
    }
    assert_eq!(post(&[("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")]), 403);
    for wrong in
        ["null", "http://evil.test", "https://127.0.0.1", &format!("{origin}.evil.test"), &format!("https://{host}")]
    {
        assert_eq!(post(&[("Origin", wrong)]), 403, "{wrong}");
    }
    assert_eq!(post(&[]), 403);
    // Reading needs neither: other origins cannot read the answer.
    assert_eq!(fixture.send("GET", "/api/v1/jobs", &[("Cookie", &cookie)], None).status, 200);
}

#[test]
fn other_cookies_and_schemes_do_not_hide_a_session() {
    let fixture = Fixture::new();
    let cookie = fixture.sign_in();
    let name = cookie.split('=').next().unwrap();
    let get = |head: String| {
        let head =
            format!("GET /api/v1/session HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{head}\r\n", fixture.host());
        fixture.raw(head.as_bytes()).status
    };
    assert_eq!(get(format!("Cookie: other=\u{e9}; {cookie}\r\n")), 200);
    assert_eq!(get(format!("Cookie: {name}=wrong; {cookie}\r\n")), 200);
    assert_eq!(get(format!("Cookie: {name}=wrong\r\nCookie: {cookie}\r\n")), 200);
    assert_eq!(get(format!("Authorization: Basic eDp5\r\nCookie: {cookie}\r\n")), 200);
    assert_eq!(get(format!("Cookie: x{cookie}; {name}\r\n")), 401);
}

#[test]
fn page_behind_a_proxy_with_another_scheme_is_of_this_server() {
    let fixture = Fixture::with(|options| options.allowed_hosts = vec!["mill.example.org".to_owned()]);
    let cookie = fixture.sign_in();
    let post = |origin: &str| {
        let body = r#"{"kind": "thumbnail"}"#;
        let head = format!(
            "POST /api/v1/jobs HTTP/1.1\r\nHost: mill.example.org\r\nOrigin: {origin}\r\nCookie: {cookie}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        fixture.raw(head.as_bytes()).status
    };
    assert_eq!((post("https://mill.example.org"), post("http://mill.example.org")), (201, 201));
    assert_eq!((post("ftp://mill.example.org"), post(&format!("https://{}", fixture.host()))), (403, 403));
}

#[test]
fn other_origins_get_no_permission() {
    let fixture = Fixture::new();
    let cookie = fixture.sign_in();
    let form = [
        ("Cookie", cookie.as_str()),
        ("Origin", "http://evil.test"),
        ("Content-Type", "application/x-www-form-urlencoded"),
    ];
    assert_eq!(fixture.send("POST", "/api/v1/jobs", &form, Some("kind=scan")).status, 403);
    let bearer = bearer(FULL);
    let text = [("Authorization", bearer.as_str()), ("Content-Type", "text/plain")];
    assert_eq!(fixture.send("POST", "/api/v1/jobs", &text, Some(r#"{"kind": "scan"}"#)).status, 415);
    let preflight = [("Origin", "http://evil.test"), ("Access-Control-Request-Method", "POST")];
    let answer = fixture.send("OPTIONS", "/api/v1/jobs", &preflight, None);
    assert!([401, 403, 405].contains(&answer.status), "{answer:?}");
    assert!(!answer.head.to_lowercase().contains("access-control"), "{}", answer.head);
}

/// Methods and paths of all routes that change something.
fn unsafe_routes() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(&gristmill_server::openapi()).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            // These change nothing in the database.
            let is_about_sessions = ["/api/v1/sign-in", "/api/v1/session"].contains(&path.as_str());
            if !["get", "head", "parameters"].contains(&method.as_str()) && !is_about_sessions {
                let path = path.replace("{group_key}", &format!("blake3:{}", "0".repeat(64)));
                let path = path.replace("{id}", "1").replace("{key}", "k");
                routes.push((method.to_uppercase(), path));
            }
        }
    }
    assert!(routes.len() > 15, "{routes:?}");
    routes
}

#[test]
fn read_token_changes_nothing() {
    let fixture = Fixture::new();
    let bearer = bearer(READ);
    for (method, path) in unsafe_routes() {
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        let answer = fixture.send(&method, &path, &headers, Some("{}"));
        assert_eq!(answer.status, 403, "{method} {path}");
        assert!(answer.problem().contains("read"), "{method} {path}");
    }
}

#[test]
fn read_only_server_changes_nothing() {
    let fixture = Fixture::with(|options| options.read_only = true);
    let bearer = bearer(FULL);
    for (method, path) in unsafe_routes() {
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        let answer = fixture.send(&method, &path, &headers, Some("{}"));
        if path == "/api/v1/sign-in-links" {
            assert_eq!(answer.status, 201, "{answer:?}");
            continue;
        }
        assert_eq!(answer.status, 403, "{method} {path}");
        assert!(answer.problem().contains("--read-only"), "{method} {path}");
    }
    let cookie = fixture.sign_in();
    let headers = [("Cookie", cookie.as_str()), ("Sec-Fetch-Site", "same-origin")];
    assert_eq!(fixture.send("DELETE", "/api/v1/session", &headers, None).status, 204);
}

#[test]
fn every_answer_has_the_headers_of_a_safe_page() {
    let fixture = Fixture::new();
    for path in ["/health", "/api/v1/jobs", "/nothing", "/api/v1/openapi.json"] {
        let answer = fixture.get(path);
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("require-trusted-types-for 'script'"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"));
        assert_eq!(answer.header("cross-origin-opener-policy"), Some("same-origin"));
    }
}

/// Random paths and parameters: no 5xx, and nothing but JSON.
#[test]
fn hostile_paths_are_client_errors() {
    let fixture = Fixture::new();
    let mut random = fastrand::Rng::with_seed(7);
    let parts = [
        "..",
        "%2e%2e",
        "%2f",
        "/",
        "\\",
        "%5c",
        "%00",
        "%ff",
        "%c0%af",
        "etc/passwd",
        "1",
        "-1",
        "99999999999999999999",
        "blake3:",
        "%F0%9F%A6%80",
        "?",
        "cursor=",
        "limit=0",
        "&",
        "=",
        "%",
        "%zz",
        ";",
        ":",
        "*",
        "'",
        "\"",
        "<",
        ">",
        "{id}",
    ];
    let long = "a".repeat(8 << 10);
    let prefixes = [
        "/api/v1/files/",
        "/api/v1/jobs/",
        "/api/v1/tasks/",
        "/api/v1/dead-letters/",
        "/api/v1/duplicates/groups/",
        "/api/v1/roots/",
        "/",
        "/api/v1/duplicates/groups?cursor=",
        "/api/v1/unique?inside=",
    ];
    let bearer = bearer(FULL);
    for _ in 0..10_000 {
        let mut path = random.choice(prefixes).unwrap().to_owned();
        for _ in 0..random.usize(1..6) {
            path.push_str(random.choice(parts).unwrap());
        }
        if random.u8(..50) == 0 {
            path.push_str(&long);
        }
        if random.bool() {
            path.push_str(random.choice(["/content", "/files", "/copies"]).unwrap());
        }
        let path: String = path.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let answer = fixture.send("GET", &path, &[("Authorization", &bearer)], None);
        assert!(answer.status == 200 || (400..500).contains(&answer.status), "{path}: {answer:?}");
        if answer.status != 200 && !answer.body.is_empty() {
            answer.problem();
        }
    }
}
