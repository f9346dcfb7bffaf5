//! What an error of the transport means to the request that met it.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use crate::fate::Error;

/// As the socket says it.
pub(super) fn of_io(error: &io::Error) -> Error {
    // A TLS stream and h2 wrap what the socket said.
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<io::Error>()) {
        return of_io(inner);
    }
    let kind = error.kind();
    if kind == ErrorKind::ConnectionRefused {
        Error::Refused
    } else if kind == ErrorKind::ConnectionReset {
        Error::Reset
    } else if kind == ErrorKind::TimedOut {
        Error::Timeout
    } else if [
        ErrorKind::UnexpectedEof,
        // A write after the peer's close; h2 also names its peer's close without GOAWAY so.
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionAborted,
        ErrorKind::NotConnected,
        ErrorKind::WriteZero,
    ]
    .contains(&kind)
    {
        Error::Closed
    } else {
        Error::Other(error.to_string())
    }
}

/// What the socket said is in the chain of causes, if it said anything.
pub(super) fn of_hyper(error: &hyper::Error) -> Error {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(inner) = inner.downcast_ref::<io::Error>() {
            return of_io(inner);
        }
        cause = inner.source();
    }
    // Canceled: the connection ended before it took the request.
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return Error::Closed;
    }
    Error::Other(chain(error))
}

/// A reset is told by its code; a GOAWAY that left the stream out has that word before the code.
pub(super) fn of_h2(error: &h2::Error) -> Error {
    if let Some(io) = error.get_io() {
        return of_io(io);
    }
    match error.reason() {
        Some(reason) if error.is_remote() && error.is_reset() => Error::H2(format!("{reason:?}")),
        Some(reason) if error.is_remote() && error.is_go_away() => Error::H2(format!("GOAWAY {reason:?}")),
        // Ours: the peer broke the protocol.
        Some(_) | None => Error::Other(chain(error)),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
