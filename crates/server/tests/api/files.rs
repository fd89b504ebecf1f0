//! Contents of files: what is sent, and how.

use std::fs;

use serde_json::json;

use crate::client::{FULL, Fixture};

/// A scanned folder with these files.
fn library(files: &[(&str, &[u8])]) -> Fixture {
    let fixture = Fixture::new();
    let root = fixture.path("root");
    fs::create_dir(&root).unwrap();
    for (name, content) in files {
        fs::write(root.join(name), content).unwrap();
    }
    fixture.scan(&root);
    fixture
}

fn id(fixture: &Fixture, name: &str) -> i64 {
    let conn = rusqlite::Connection::open(fixture.path("g.db")).unwrap();
    let sql = "SELECT id FROM library_files WHERE relative_path = ?1";
    conn.query_row(sql, [name], |row| row.get(0)).unwrap()
}

fn content(fixture: &Fixture, id: i64, headers: &[(&str, &str)]) -> crate::client::Answer {
    let auth = format!("Bearer {FULL}");
    let mut all = vec![("Authorization", auth.as_str())];
    all.extend(headers);
    fixture.send("GET", &format!("/api/v1/files/{id}/content"), &all, None)
}

#[test]
fn images_are_shown_and_other_types_downloaded() {
    let script = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>".as_slice();
    let fixture = library(&[
        ("a.png", b"pixels"),
        ("b.svg", script),
        ("c.html", script),
        ("d.pdf", b"%PDF"),
        ("e", b"x"),
        ("f \"\u{e9}\r\n.JPG", b"y"),
    ]);
    let image = content(&fixture, id(&fixture, "a.png"), &[]);
    assert_eq!((image.status, image.text().as_str()), (200, "pixels"));
    assert_eq!(image.header("content-type"), Some("image/png"));
    assert_eq!(image.header("content-disposition"), Some("inline; filename*=UTF-8''a.png"));
    for name in ["b.svg", "c.html", "d.pdf", "e"] {
        let answer = content(&fixture, id(&fixture, name), &[]);
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"), "{name}");
        assert!(answer.header("content-disposition").unwrap().starts_with("attachment"), "{name}");
        assert!(answer.header("content-security-policy").unwrap().contains("sandbox"), "{name}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{name}");
    }
    let odd = content(&fixture, id(&fixture, "f \"\u{e9}\r\n.JPG"), &[]);
    assert_eq!(odd.header("content-disposition"), Some("inline; filename*=UTF-8''f%20%22%C3%A9%0D%0A.JPG"));
    assert_eq!(content(&fixture, 999, &[]).status, 404);
}

#[test]
fn one_range_is_sent() {
    let fixture = library(&[("a.mp4", b"0123456789")]);
    let id = id(&fixture, "a.mp4");
    for (range, text, header) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=3-5", "345", "bytes 3-5/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=5-500", "56789", "bytes 5-9/10"),
        ("bytes=-500", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = content(&fixture, id, &[("Range", range)]);
        assert_eq!((answer.status, answer.text().as_str()), (206, text), "{range}");
        assert_eq!(answer.header("content-range"), Some(header), "{range}");
    }
    for range in
        ["bytes=10-", "bytes=5-4", "bytes=0-1,3-4", "bytes=x-", "bytes=-", "lines=1-2", "bytes=-0", "bytes=+1-2"]
    {
        let answer = content(&fixture, id, &[("Range", range)]);
        assert_eq!(answer.status, 416, "{range}");
        answer.problem();
        assert_eq!(answer.header("content-range"), Some("bytes */10"), "{range}");
    }
    let etag = content(&fixture, id, &[]).header("etag").unwrap().to_owned();
    assert_eq!(content(&fixture, id, &[("If-None-Match", &etag)]).status, 304);
    assert_eq!(content(&fixture, id, &[("Range", "bytes=1-2"), ("If-Range", &etag)]).status, 206);
    assert_eq!(content(&fixture, id, &[("Range", "bytes=1-2"), ("If-Range", "\"old\"")]).status, 200);
    let auth = format!("Bearer {FULL}");
    let head = fixture.send("HEAD", &format!("/api/v1/files/{id}/content"), &[("Authorization", &auth)], None);
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("10"), 0));
}

#[test]
fn replaced_file_is_refused() {
    let fixture = library(&[("a.png", b"a"), ("b.png", b"bb"), ("c.png", b"ccc"), ("d.png", b"dddd")]);
    let root = fixture.path("root");
    fs::write(fixture.path("secret"), "secret").unwrap();
    let ids = ["a.png", "b.png", "c.png", "d.png"].map(|name| id(&fixture, name));
    for name in ["a.png", "b.png", "c.png"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(fixture.path("secret"), root.join("a.png")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(root.join("b.png")).status().unwrap();
    assert!(fifo.success());
    fs::write(root.join("d.png"), "changed").unwrap();
    for id in ids {
        let answer = content(&fixture, id, &[]);
        assert_eq!(answer.status, 409, "{answer:?}");
        assert!(answer.problem().contains("scan its root again"));
    }
    // A folder above is replaced by a link.
    fs::rename(&root, fixture.path("moved")).unwrap();
    std::os::unix::fs::symlink(fixture.path("moved"), &root).unwrap();
    assert_eq!(content(&fixture, ids[3], &[]).status, 409);
}

#[test]
fn own_files_are_never_sent() {
    let fixture = Fixture::with(|options| {
        let folder = options.protected_files[0].parent().unwrap().to_owned();
        options.protected_files = vec![folder.join("key.pem")];
    });
    fs::write(fixture.path("g.db.token"), "token").unwrap();
    fs::write(fixture.path("g.db-starts-1"), "claims").unwrap();
    fs::write(fixture.path("key.pem"), "key").unwrap();
    fs::hard_link(fixture.path("g.db.token"), fixture.path("harmless.png")).unwrap();
    fs::write(fixture.path("other.txt"), "other").unwrap();
    let folder = fixture.folder.path().to_owned();
    fixture.scan(&folder);
    for name in ["g.db.token", "g.db-starts-1", "key.pem", "harmless.png"] {
        assert_eq!(content(&fixture, id(&fixture, name), &[]).status, 404, "{name}");
    }
    // The database changes all the time.
    assert!([404, 409].contains(&content(&fixture, id(&fixture, "g.db"), &[]).status));
    assert_eq!(content(&fixture, id(&fixture, "other.txt"), &[]).text(), "other");
}

#[test]
fn questions_are_answered_with_their_completeness() {
    let fixture = library(&[("a", b"same"), ("b", b"same"), ("c", b"alone"), ("empty", b"")]);
    let root = fixture.path("root").canonicalize().unwrap();
    fs::create_dir(root.join("void")).unwrap();
    std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
    fixture.scan(&root);
    let unique = fixture.get(&format!("/api/v1/unique?inside={}", root.display())).json();
    assert_eq!((&unique["total"], &unique["summary"]["complete"]), (&json!(3), &json!(true)), "{unique}");
    let list = |path: &str| fixture.get(path).json();
    assert_eq!(list("/api/v1/empty-files")["items"][0]["relative_path"], "empty");
    assert_eq!(list("/api/v1/empty-folders")["items"][0]["relative_path"], "void");
    let links = list("/api/v1/broken-links");
    assert_eq!((&links["items"][0]["target"], &links["complete"]), (&json!("nowhere"), &json!(true)));
    let copies = list(&format!("/api/v1/files/{}/copies", id(&fixture, "a")));
    assert_eq!((&copies["answer"]["copies"], &copies["complete"]), (&json!(1), &json!(true)), "{copies}");
    assert_eq!(list("/api/v1/folders/identical")["total"], 0);
    let roots = list("/api/v1/roots");
    assert_eq!((&roots["items"][0]["reachable"], &roots["items"][0]["files"]), (&json!(true), &json!(4)), "{roots}");
    assert_eq!(list("/api/v1/coverage")["complete"], true);
    assert_eq!(fixture.get("/api/v1/unique?inside=/nothing").status, 404);
    assert_eq!(fixture.get("/api/v1/unique").status, 422);
    let registered = fixture.post("/api/v1/roots", &json!({ "path": root.to_str().unwrap() }));
    assert_eq!((registered.status, &registered.json()["id"]), (201, &roots["items"][0]["id"]));
    for path in ["relative", "/no/such/folder", "/\0"] {
        assert_eq!(fixture.post("/api/v1/roots", &json!({ "path": path })).status, 422, "{path:?}");
    }
}
