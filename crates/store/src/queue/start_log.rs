//! The start log of a worker: a file beside the database with the tasks that it was about to start.
//!
//! Owns the file's name and lines. A line is written by one call, without a commit and without fsync: what a process
//! has written to a file survives the process, but not the machine. A recovery reads the log of a dead worker to learn
//! which of its claims were started. The log is for the few tasks whose start must be known for certain; most starts
//! are recorded in the database shortly after. A long log is rewritten without settled tasks and starts that are
//! recorded there.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::Store;
use crate::error::Result;
use crate::lease::{Token, WorkerId};
use crate::paths::{resolve_last_link, with_suffix};

/// Length in bytes above which a log is rewritten.
const MAX_LENGTH: usize = 1 << 20;

/// Start log of one worker. The first start creates the file.
#[derive(Debug)]
pub struct StartLog {
    store: Store,
    worker: String,
    path: PathBuf,
    open: Mutex<Option<OpenLog>>,
}

/// The open file and its length in bytes.
#[derive(Debug)]
struct OpenLog {
    file: File,
    length: usize,
    /// Length in bytes at which the file is rewritten.
    rewrite_at: usize,
}

impl StartLog {
    /// Returns the log of `worker` for the tasks of `store`.
    pub fn new(store: &Store, worker: &WorkerId) -> Self {
        let (worker, path) = (worker.name().to_owned(), path_of(store.path(), worker.name()));
        StartLog { store: store.clone(), worker, path, open: Mutex::default() }
    }

    /// Writes that a task is about to be started.
    pub fn write(&self, task: i64, token: &Token) -> io::Result<()> {
        let line = format!("{task} {}\n", token.as_str());
        let mut lock = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.as_ref().is_some_and(|log| log.length + line.len() > log.rewrite_at) {
            self.rewrite(&mut lock);
        }
        let log = match &mut *lock {
            Some(log) => log,
            None => lock.insert(OpenLog { file: open(&self.path)?, length: 0, rewrite_at: MAX_LENGTH }),
        };
        // One call, so that a killed process leaves no partial line.
        log.file.write_all(line.as_bytes())?;
        log.length += line.len();
        Ok(())
    }

    /// Rewrites the log with only the starts that are not in the database. If that fails, it may double its length.
    fn rewrite(&self, lock: &mut Option<OpenLog>) {
        let length = lock.as_ref().map_or(0, |log| log.length);
        let rewritten = self.unrecorded().map_err(|error| io::Error::other(error.to_string())).and_then(|text| {
            let new = new_path(&self.path);
            let mut file = open_with(&new, OpenOptions::new().create(true).write(true).truncate(true))?;
            file.write_all(text.as_bytes())?;
            std::fs::rename(&new, &self.path)?;
            Ok((open(&self.path)?, text.len()))
        });
        match rewritten {
            Ok((file, length)) => {
                *lock = Some(OpenLog { file, length, rewrite_at: MAX_LENGTH.max(2 * length) });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot rewrite the start log");
                if let Some(log) = lock {
                    log.rewrite_at = 2 * length;
                }
            }
        }
    }

    /// Returns the lines of tasks that this worker has claimed and whose start is not recorded in the database.
    fn unrecorded(&self) -> Result<String> {
        let sql = "SELECT id, worker_id FROM tasks WHERE status = 'running' AND started_at IS NULL
            AND substr(worker_id, 1, length(?1) + 1) = ?1 || '/'";
        let rows = self.store.read(|db| {
            db.rows(sql, [&self.worker], |row| Ok((row.get(0)?, Token::named(&row.get::<_, String>(1)?))))
        })?;
        let claimed: HashSet<(i64, Token)> = rows.into_iter().collect();
        let logged = read(self.store.path(), &self.worker).into_iter().filter(|start| claimed.contains(start));
        Ok(logged.map(|(task, token)| format!("{task} {}\n", token.as_str())).collect())
    }
}

/// Deletes the file, because its worker ends normally.
impl Drop for StartLog {
    fn drop(&mut self) {
        if self.open.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            remove(&self.path);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().create(true).append(true))
}

fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.open(path)
}

/// Returns the log's path. The part of a worker's name after the last colon is new with every start.
fn path_of(database: &Path, worker: &str) -> PathBuf {
    let part = worker.rsplit(':').next().unwrap_or(worker);
    let part: String = part.chars().filter(char::is_ascii_alphanumeric).collect();
    with_suffix(&resolve_last_link(database), &format!("-starts-{part}"))
}

/// Returns the path of the file that replaces the log at `path` when it is complete.
fn new_path(path: &Path) -> PathBuf {
    with_suffix(path, ".new")
}

/// Reads the tasks and tokens in a worker's log; empty if it has no log.
pub(crate) fn read(database: &Path, worker: &str) -> Vec<(i64, Token)> {
    let text = std::fs::read(path_of(database, worker)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = |line: &str| {
        let (task, token) = line.split_once(' ')?;
        Some((task.parse().ok()?, Token::named(token)))
    };
    text.lines().filter_map(line).collect()
}

/// Deletes the log of a worker whose starts are recorded.
pub(crate) fn remove_of(database: &Path, worker: &str) {
    let path = path_of(database, worker);
    remove(&path);
    remove(&new_path(&path));
}

fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, "cannot delete the start log");
        }
        _ => {}
    }
}
