//! Identifying processes, and whether they still run.

use std::time::Duration;

use gristmill_store::Store;
use gristmill_store::process::{is_alive, tag, tag_of};
use gristmill_store::processed::ClaimResult;
use rusqlite::Connection;

#[cfg(target_os = "linux")]
#[test]
fn process_is_alive_until_it_has_ended() {
    assert_eq!(is_alive(&tag()), Some(true));
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let other = tag_of(child.id());
    assert_eq!(is_alive(&other), Some(true));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(is_alive(&other), Some(false));
}

#[cfg(target_os = "linux")]
#[test]
fn is_alive_is_unknown_for_other_hosts_and_systems() {
    for tag in ["process 1 on elsewhere (boot x, start 1)", "process 1", "unknown", ""] {
        assert_eq!(is_alive(tag), None, "{tag:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn is_alive_is_unknown_without_a_recorded_start_time() {
    let tag = tag();
    let (before, _) = tag.rsplit_once("start ").unwrap();
    assert_eq!(is_alive(&format!("{before}start )")), None);
}

/// Claims of ended processes are taken over at once, those of unknown processes after the lease.
#[test]
fn message_claim_of_an_ended_process_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let store = Store::open(&path).unwrap();
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let running = tag_of(child.id());
    let claimed_by = |tag: &str, age: &str| {
        let conn = Connection::open(&path).unwrap();
        let at = "strftime('%Y-%m-%d %H:%M:%f000', 'now', ?2)";
        let sql = format!("INSERT OR REPLACE INTO message_claims VALUES ('q', 'a', ?1, {at})");
        conn.execute(&sql, rusqlite::params![tag, age]).unwrap();
        let claim = store.processed_ids().claim("q", "a", Duration::from_secs(60)).unwrap();
        store.processed_ids().release("q", "a").unwrap();
        claim
    };
    let elsewhere = "process 1 on elsewhere (boot x, start 1)";
    assert_eq!(claimed_by(elsewhere, "-1 seconds"), ClaimResult::InProgress);
    assert_eq!(claimed_by(elsewhere, "-1 hours"), ClaimResult::Claimed);
    if is_alive(&running).is_some() {
        assert_eq!(claimed_by(&running, "-1 hours"), ClaimResult::InProgress);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if is_alive(&running).is_some() {
        assert_eq!(claimed_by(&running, "-1 seconds"), ClaimResult::Claimed);
    }
}
