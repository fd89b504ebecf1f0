//! Translates errors of SQLite into errors of the store.

use std::path::Path;

use crate::error::Error;

impl Error {
    /// Returns whether the lock of another connection was the reason.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Error::Busy(_))
    }

    /// Returns whether a transaction that met this error must be rolled back.
    pub(crate) fn breaks_transaction(&self) -> bool {
        matches!(
            self,
            Error::Full(_)
                | Error::Busy(_)
                | Error::Io(..)
                | Error::Corrupt(..)
                | Error::ReadOnly(_)
                | Error::Internal(_)
        )
    }

    /// Translates an error of SQLite about the file at `path`.
    pub(crate) fn sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;
        let path = path.to_path_buf();
        let detail = error.to_string();
        let (code, extended) = match error {
            rusqlite::Error::SqliteFailure(failure, _) => (failure.code, failure.extended_code),
            rusqlite::Error::SqlInputError { error, .. } => (error.code, error.extended_code),
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..) => return Error::Malformed(detail),
            rusqlite::Error::QueryReturnedNoRows => return Error::NotFound("row not found".to_owned()),
            _ => return Error::Internal(detail),
        };
        match code {
            // The WAL's shared memory cannot grow either.
            Code::SystemIoFailure if extended == rusqlite::ffi::SQLITE_IOERR_SHMSIZE => Error::Full(path),
            Code::NotADatabase => Error::NotADatabase(path),
            Code::DatabaseCorrupt => Error::Corrupt(path, detail),
            Code::CannotOpen | Code::PermissionDenied => Error::CannotOpen(path, detail),
            Code::ReadOnly => Error::ReadOnly(path),
            Code::DiskFull => Error::Full(path),
            Code::DatabaseBusy | Code::DatabaseLocked => Error::Busy(path),
            Code::SystemIoFailure | Code::FileLockingProtocolFailed | Code::NoLargeFileSupport => {
                Error::Io(path, detail)
            }
            Code::TooBig => Error::Invalid(format!("value too large for the database: {detail}")),
            Code::ConstraintViolation => Error::Conflict(format!("refused by a constraint of the database: {detail}")),
            _ => Error::Internal(detail),
        }
    }
}
