//! One HTTP/1.1 exchange on one connection, with a deadline. Enough for loopback listeners of Envoy and the agent, and no
//! more: no keep-alive, no redirects, no TLS, no request body.
//!
//! An answer counts only when it is whole. Half a body is no answer, and no answer is never zero.

mod body;
mod head;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::io::{self, BufReader};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::address::Address;
use crate::http::body::Body;
pub(crate) use crate::http::head::Head;
use crate::http::wire::Wire;

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    /// Status and headers.
    pub(crate) head: Head,
    /// The body.
    pub(crate) body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing listens there.
    Refused,
    /// The connection could not be made, or broke, otherwise.
    Io(io::ErrorKind),
    /// No whole answer in time.
    Silent,
    /// The connection ended before the answer did.
    CutShort,
    /// Not HTTP, or more of it than is taken.
    Garbage(&'static str),
}

/// The largest body that is kept. A status document with 64 probers and 32 events is under 16 KiB.
const BODY_MAX: usize = 256 * 1024;

/// Sends `method target` to `address` and takes the whole answer within `timeout`.
///
/// # Errors
/// There was no whole answer.
pub(crate) fn exchange(address: &Address, method: &str, target: &str, timeout: Duration) -> Result<Response, Failure> {
    let mut body = Vec::new();
    let head = stream(address, method, target, timeout, BODY_MAX, &mut |part| body.extend_from_slice(part))?;
    Ok(Response { head, body })
}

/// The same for a body of up to `body_max` bytes that is not kept: `take` gets it in parts. What it got of an answer that then
/// fails is to be forgotten.
///
/// # Errors
/// There was no whole answer.
pub(crate) fn stream(
    address: &Address,
    method: &str,
    target: &str,
    timeout: Duration,
    body_max: usize,
    take: &mut dyn FnMut(&[u8]),
) -> Result<Head, Failure> {
    let (mut connection, head) = ask(address, method, target, timeout)?;
    Body::of(&mut connection, &head, body_max)?.take(take)?;
    Ok(head)
}

/// `GET target`, a document of up to `body_max` bytes that is read as it comes: only what `T` has a place for is kept. None if
/// the status is not 200.
///
/// # Errors
/// There was no whole answer, or the document is not a `T`.
pub(crate) fn document<T: DeserializeOwned>(
    address: &Address,
    target: &str,
    timeout: Duration,
    body_max: usize,
) -> Result<Result<T, u16>, Failure> {
    let (mut connection, head) = ask(address, "GET", target, timeout)?;
    if head.status != 200 {
        return Ok(Err(head.status));
    }
    let mut body = BufReader::new(Body::of(&mut connection, &head, body_max)?);
    serde_json::from_reader(&mut body)
        .map(Ok)
        .map_err(|_| body.get_ref().failure().unwrap_or(Failure::Garbage("not the JSON that Envoy writes")))
}

/// Sends a request, and reads the head of what is answered.
fn ask(address: &Address, method: &str, target: &str, timeout: Duration) -> Result<(Connection, Head), Failure> {
    let deadline = Instant::now() + timeout;
    let mut connection = Connection::open(address, deadline)?;
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: {}\r\nuser-agent: softclose/{}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        address.host(),
        env!("CARGO_PKG_VERSION")
    );
    connection.send(request.as_bytes())?;
    let head = head::read(&mut connection)?;
    Ok((connection, head))
}

/// A connection with what was read of it and not yet used.
struct Connection {
    wire: Wire,
    deadline: Instant,
    unused: Vec<u8>,
}

impl Connection {
    fn open(address: &Address, deadline: Instant) -> Result<Self, Failure> {
        Ok(Self { wire: Wire::open(&address.place, deadline)?, deadline, unused: Vec::new() })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.wire.write_all(bytes, left(self.deadline)?)?)
    }

    /// Reads what is there, waiting for it until the deadline.
    fn fill(&mut self) -> Result<(), Failure> {
        let mut part = [0; 8 * 1024];
        loop {
            match self.wire.read(&mut part, left(self.deadline)?) {
                Ok(0) => return Err(Failure::CutShort),
                Ok(count) => {
                    self.unused.extend_from_slice(part.get(..count).unwrap_or_default());
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next line of at most `longest` bytes, without its end.
    fn line(&mut self, longest: usize) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(end) = self.unused.iter().take(longest).position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.unused.drain(..=end).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(line);
            }
            if self.unused.len() >= longest {
                return Err(Failure::Garbage("a line without an end"));
            }
            self.fill()?;
        }
    }
}

/// The time that is left, never zero: a timeout of zero means none at all.
fn left(deadline: Instant) -> Result<Duration, Failure> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Failure::Silent) } else { Ok(left) }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind;
        #[expect(clippy::wildcard_enum_match_arm, reason = "ErrorKind is not exhaustive")]
        match error.kind() {
            // A socket's file comes with who listens there.
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => Self::Refused,
            // A read that times out is EAGAIN on Linux.
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::Silent,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => Self::CutShort,
            other => Self::Io(other),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused"),
            Self::Io(kind) => write!(f, "{kind}"),
            Self::Silent => f.write_str("no answer in time"),
            Self::CutShort => f.write_str("the connection ended before the answer did"),
            Self::Garbage(what) => write!(f, "not an HTTP answer: {what}"),
        }
    }
}
