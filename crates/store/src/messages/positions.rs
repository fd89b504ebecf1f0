//! Stream positions: the offset at which each consumer of a stream continues after a restart.
//!
//! Owns the table `stream_positions`. The consumer decides which messages are done.

use crate::Store;
use crate::error::{Error, Result};
use crate::sqlite::{WriteKind, params};

/// Stream positions in a store.
#[derive(Clone, Copy, Debug)]
pub struct Positions<'a>(pub(crate) &'a Store);

impl Positions<'_> {
    /// Returns the offset at which a consumer continues, if one was recorded.
    pub fn get(self, stream: &str, consumer: &str) -> Result<Option<u64>> {
        let sql = "SELECT next_offset FROM stream_positions WHERE stream = ?1 AND consumer = ?2";
        let found: Option<i64> = self.0.read(|db| db.first(sql, params![stream, consumer], |row| row.get(0)))?;
        Ok(found.and_then(|offset| u64::try_from(offset).ok()))
    }

    /// Records the offset at which a consumer continues. It is on disk when this returns.
    pub fn record(self, stream: &str, consumer: &str, next_offset: u64) -> Result<()> {
        let next = i64::try_from(next_offset)
            .map_err(|_| Error::Invalid(format!("invalid offset {next_offset}; expected at most {}", i64::MAX)))?;
        if stream.is_empty() || consumer.is_empty() {
            return Err(Error::Invalid(
                "a position needs the names of its stream and its consumer; neither may be empty".to_owned(),
            ));
        }
        let (stream, consumer) = (stream.to_owned(), consumer.to_owned());
        self.0.write(WriteKind::TaskStatement, move |db| {
            let sql = "INSERT INTO stream_positions (stream, consumer, next_offset, updated_at)
                VALUES (?1, ?2, ?3, ?4) ON CONFLICT (stream, consumer)
                DO UPDATE SET next_offset = excluded.next_offset, updated_at = excluded.updated_at";
            db.execute(sql, params![stream, consumer, next, db.now()]).map(drop)
        })
    }
}
