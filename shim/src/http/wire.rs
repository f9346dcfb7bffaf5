//! The bytes of one connection, over a port or over a socket in the file system.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::address::Place;
use crate::http::{Failure, left};

pub(super) enum Wire {
    Port(TcpStream),
    Socket(UnixStream),
}

impl Wire {
    pub(super) fn open(place: &Place, deadline: Instant) -> Result<Self, Failure> {
        let connect = |at: &SocketAddr| TcpStream::connect_timeout(at, left(deadline)?).map_err(Failure::from);
        match place {
            Place::Socket(path) => Ok(Self::Socket(connect_to_socket(path, left(deadline)?)?)),
            Place::Port { first, second } => match (connect(first), second) {
                (Ok(stream), _) => Ok(Self::Port(stream)),
                (Err(_), Some(second)) => Ok(Self::Port(connect(second)?)),
                (Err(failure), None) => Err(failure),
            },
        }
    }

    pub(super) fn write_all(&mut self, bytes: &[u8], within: Duration) -> io::Result<()> {
        match self {
            Self::Port(stream) => stream.set_write_timeout(Some(within)).and_then(|()| stream.write_all(bytes)),
            Self::Socket(stream) => stream.set_write_timeout(Some(within)).and_then(|()| stream.write_all(bytes)),
        }
    }

    pub(super) fn read(&mut self, part: &mut [u8], within: Duration) -> io::Result<usize> {
        match self {
            Self::Port(stream) => stream.set_read_timeout(Some(within)).and_then(|()| stream.read(part)),
            Self::Socket(stream) => stream.set_read_timeout(Some(within)).and_then(|()| stream.read(part)),
        }
    }
}

/// Connecting to such a socket has no timeout of its own: it blocks while the backlog is full, as that of a stopped Envoy comes to
/// be. The thread that it is left to may outlive the wait, never the process.
fn connect_to_socket(path: &Path, within: Duration) -> Result<UnixStream, Failure> {
    let (tell, told) = mpsc::sync_channel(1);
    let path = path.to_owned();
    let connect = move || {
        // Nobody waits any longer: nothing to tell.
        let _late = tell.send(UnixStream::connect(path));
    };
    thread::Builder::new().spawn(connect)?;
    Ok(told.recv_timeout(within).map_err(|_| Failure::Silent)??)
}
