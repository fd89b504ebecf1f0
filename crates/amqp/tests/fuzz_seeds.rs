//! Runs the checks of the fuzz targets on their seeds, truncated and with single bytes changed.

use gristmill_amqp::__fuzz;
use std::path::Path;

/// Calls `check` with each seed of a target, truncated at every length and with each byte changed.
fn check_seeds(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        count += 1;
        (0..=seed.len()).for_each(|end| check(&seed[..end]));
        for at in 0..seed.len() {
            for change in [0x01, 0x20, 0x80, 0xff] {
                let mut changed = seed.clone();
                changed[at] ^= change;
                check(&changed);
            }
        }
    }
    assert!(count > 0, "{target} has no seeds");
}

#[test]
fn frames_are_read_the_same_in_any_pieces() {
    check_seeds("frames", |data| {
        if let Some((sizes, bytes)) = data.split_first_chunk::<3>() {
            __fuzz::frames(sizes, bytes);
        }
    });
}

#[test]
fn methods_are_read_or_refused() {
    check_seeds("methods", __fuzz::method);
}

#[test]
fn properties_are_written_as_read() {
    check_seeds("properties", __fuzz::properties);
}

#[test]
fn tables_are_written_as_read() {
    check_seeds("tables", __fuzz::table);
}

#[test]
fn uris_are_parsed_or_refused_without_repeating_a_password() {
    check_seeds("uris", |data| {
        if let Ok(text) = str::from_utf8(data) {
            __fuzz::uri(text);
        }
    });
}
