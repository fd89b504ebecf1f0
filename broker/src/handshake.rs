//! Checks whether a server at an address speaks AMQP.
//!
//! Owns the protocol header and the first frame of the answer; it does not log in.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Protocol header of AMQP 0-9-1.
const HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// Needed because the system accepts connections for a paused broker.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a connection, waits for the method Connection.Start, and closes it.
pub(crate) fn speaks_amqp(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&HEADER)?;
    // Type, channel and size of a frame, then class and method.
    let mut start = [0; 11];
    stream.read_exact(&mut start)?;
    let [kind, _, _, _, _, _, _, method @ ..] = start;
    if kind == 1 && method == [0, 10, 0, 10] {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not AMQP 0-9-1"))
}
