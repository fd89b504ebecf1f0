//! The details of a task error.

#![cfg(not(any(shuttle, loom)))]

use gristmill_pool::{Dependency, ErrorClass, TaskError};
use std::time::Duration;

#[test]
fn setters_and_getters_agree() {
    let error = TaskError::partial("upload", "503").with_retry_after(Duration::from_secs(7)).with_hint("later");
    assert_eq!(error.step(), Some("upload"));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    assert_eq!(error.hint(), Some("later"));
}

#[test]
fn errors_of_a_dependency_are_transient() {
    for (error, dependency) in [
        (TaskError::unavailable("connection refused"), Some(Dependency::Unavailable)),
        (TaskError::dependency_failed("500"), Some(Dependency::Failed)),
        (TaskError::transient("busy"), None),
    ] {
        assert_eq!((error.class(), error.dependency()), (ErrorClass::Transient, dependency));
    }
}
