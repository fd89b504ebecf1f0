//! Reads handler errors, whose own `Display` and `source` may panic.

use gristmill_pool::{TaskError, error::Cause};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the text of an error, or a fixed text if formatting it panics.
pub(super) fn error_text(error: &TaskError) -> String {
    let error_text = catch_unwind(AssertUnwindSafe(|| error.to_string()));
    error_text.unwrap_or_else(|_| "the handler's error panicked while it was formatted".to_owned())
}

/// Whether the error, or a source of it, is an [`std::io::Error`] of the kind `TimedOut`. The pool counts its own.
pub(super) fn is_timeout(error: &TaskError) -> bool {
    let Cause::Error(error) = error.cause() else { return false };
    let has_timed_out = || {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
        while let Some(error) = next {
            let io = error.downcast_ref::<std::io::Error>();
            if io.is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut) {
                return true;
            }
            next = error.source();
        }
        false
    };
    catch_unwind(AssertUnwindSafe(has_timed_out)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{error::Error, fmt, io};

    #[derive(Debug)]
    struct Hostile;

    impl fmt::Display for Hostile {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("in Display");
        }
    }

    impl Error for Hostile {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            panic!("in source");
        }
    }

    #[test]
    fn error_whose_methods_panic_is_handled() {
        let error = TaskError::transient(Hostile);
        assert_eq!(error_text(&error), "the handler's error panicked while it was formatted");
        assert!(!is_timeout(&error));
        let error = TaskError::transient(io::Error::new(io::ErrorKind::TimedOut, "slow"));
        assert!(is_timeout(&error) && error_text(&error).contains("slow"));
    }
}
