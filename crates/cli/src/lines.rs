//! Lines of files and of standard input, read on a thread of their own.
//!
//! Owns the maximum length of a line: a longer one is refused and never held in memory as a whole.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::error::Error;

/// Opens a file, or standard input for `-`.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    Ok(match path == Path::new("-") {
        true => Box::new(BufReader::new(io::stdin())),
        false => Box::new(BufReader::new(std::fs::File::open(path)?)),
    })
}

/// Returns the next line without its end, or why it is refused; none after the last one.
pub(crate) fn next(source: &mut dyn BufRead, max_bytes: usize) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let mut line = Vec::new();
    if source.take(max_bytes as u64 + 2).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let is_cut = line.last() != Some(&b'\n') && line.len() > max_bytes;
    while matches!(line.last(), Some(b'\n' | b'\r')) {
        line.pop();
    }
    if is_cut {
        source.skip_until(b'\n')?;
    }
    Ok(Some(if is_cut || line.len() > max_bytes { Err(too_long(max_bytes)) } else { Ok(line) }))
}

/// Says that a line or a file is too long. Completes a sentence that begins with its name.
pub(crate) fn too_long(max_bytes: usize) -> String {
    format!("is too long; the maximum is {max_bytes} bytes")
}

/// Starts a thread that reads. It is not joined, because a thread that waits for a line cannot be stopped.
pub(crate) fn spawn(read: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = std::thread::Builder::new().name("lines".to_owned()).spawn(read);
    thread.map(drop).map_err(|error| Error::System(format!("cannot start a thread: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_longer_than_the_limit_are_refused() {
        let mut text: &[u8] = b"a\r\n\n12345678\n123456789\n1234567890123\n12345678\r\nlast";
        let mut found = Vec::new();
        while let Some(line) = next(&mut text, 8).unwrap() {
            found.push(line.map(|line| String::from_utf8(line).unwrap()));
        }
        let (ok, long) = (|text: &str| Ok(text.to_owned()), || Err(too_long(8)));
        assert_eq!(found, [ok("a"), ok(""), ok("12345678"), long(), long(), ok("12345678"), ok("last")]);
    }
}
