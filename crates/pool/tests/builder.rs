//! Settings that no pool can be built with.

#![cfg(not(any(shuttle, loom)))]

use gristmill_pool::{PoolBuilder, error::BuildError};
use std::time::Duration;

#[test]
fn settings_of_zero_are_rejected() {
    let check = |builder: PoolBuilder, want: &str| match builder.build() {
        Err(BuildError::Zero { setting }) => assert_eq!(setting, want),
        _ => panic!("{want} = 0 was accepted"),
    };
    check(PoolBuilder::new().workers(0), "workers");
    check(PoolBuilder::new().queue_capacity(0), "queue_capacity");
    check(PoolBuilder::new().result_capacity(0), "result_capacity");
    check(PoolBuilder::new().timeout(Duration::ZERO), "timeout");
    check(PoolBuilder::new().stall_timeout(Duration::ZERO), "stall_timeout");
    check(PoolBuilder::new().workers_per_core(4, 0), "workers");
}

#[test]
fn error_names_the_setting() {
    let error = PoolBuilder::new().queue_capacity(0).build().unwrap_err();
    assert_eq!(error.to_string(), "cannot build a pool: `queue_capacity` is 0; it must be greater than 0");
}
