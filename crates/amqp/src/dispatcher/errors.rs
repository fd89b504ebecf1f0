//! What a handler's error says. It is the handler's own type, and may panic when it is asked.

use gristmill_pool::{TaskError, error::Cause};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error as text.
pub(super) fn error_text(error: &TaskError) -> String {
    let error_text = catch_unwind(AssertUnwindSafe(|| error.to_string()));
    error_text.unwrap_or_else(|_| "an error that panics when it is shown".to_owned())
}

/// Whether a handler reports that it took too long: an [`std::io::Error`] of that kind is its error or a cause of it. Timeouts
/// of the pool are counted there.
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
            panic!("as it is shown");
        }
    }

    impl Error for Hostile {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            panic!("as it is asked for its cause");
        }
    }

    #[test]
    fn error_that_panics_is_an_error_like_others() {
        let error = TaskError::transient(Hostile);
        assert_eq!(error_text(&error), "an error that panics when it is shown");
        assert!(!is_timeout(&error));
        let error = TaskError::transient(io::Error::new(io::ErrorKind::TimedOut, "slow"));
        assert!(is_timeout(&error) && error_text(&error).contains("slow"));
    }
}
