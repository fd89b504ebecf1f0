//! Whether a server at an address speaks AMQP.
//!
//! Owns the eight bytes that open a connection and the first frame of the answer. Nothing beyond: no login, no
//! channel.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// AMQP 0-9-1.
const HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// A broker that is paused accepts connections all the same: its system does.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a connection, waits for the method Connection.Start, and hangs up.
pub(crate) fn speaks_amqp(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&HEADER)?;
    // A frame's kind, channel and size, then the class and the method.
    let mut start = [0; 11];
    stream.read_exact(&mut start)?;
    let [kind, _, _, _, _, _, _, method @ ..] = start;
    if kind == 1 && method == [0, 10, 0, 10] {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not AMQP 0-9-1"))
}
