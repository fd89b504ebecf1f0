//! Checks whether a server at an address speaks AMQP.
//!
//! Owns the protocol header and the first frame of the answer; it does not log in.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Protocol header of AMQP 0-9-1.
const HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// Opens a connection, waits up to `timeout` for the method Connection.Start, and closes it. The system accepts
/// connections even for a paused broker.
pub fn speaks_amqp(address: SocketAddr, timeout: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
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
