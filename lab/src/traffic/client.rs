//! One request, whichever protocol it speaks, and what has been seen of its answer.

use std::sync::Arc;
use std::time::Instant;

use hyper::Request;
use hyper::body::Bytes;

use super::connect::Target;
use super::stream::{Connection, Stream};
use super::{http1, http2};
use crate::backend;
use crate::curl::Protocol;
use crate::fate::Error;

/// A stream's client with connections of its own.
pub(super) enum Client {
    H1(http1::Client),
    H2(http2::Client),
}

/// What has been seen of an exchange; kept even if the exchange is given up.
pub(super) struct Progress {
    /// When it was first handed to a connection.
    pub(super) started: Option<Instant>,
    pub(super) reused: bool,
    pub(super) status: u16,
    /// Of the application's answer; an error page of the balancer's is none of it.
    pub(super) bytes: u64,
    pub(super) chunks: u64,
    expected_bytes: u64,
}

impl Client {
    pub(super) fn new(target: Target, protocol: Protocol, connection: Connection) -> Arc<Self> {
        let kept = connection == Connection::Kept;
        Arc::new(match protocol {
            Protocol::H1 => Self::H1(http1::Client::new(target, kept)),
            Protocol::H2 => Self::H2(http2::Client::new(target, kept)),
        })
    }

    /// Sends the request once, and reads the answer to its end.
    pub(super) async fn exchange(&self, stream: &Stream, id: &str, progress: &mut Progress) -> Result<(), Error> {
        let body = Bytes::from(vec![b'x'; stream.body_bytes as usize]);
        match self {
            Self::H1(client) => {
                let request = head(stream, id, &stream.path).header("host", client.authority());
                client.exchange(request.body(body).map_err(no_request)?, progress).await
            }
            Self::H2(client) => {
                let uri = format!("{}{}", client.origin(), stream.path);
                let mut request = head(stream, id, &uri);
                if !body.is_empty() {
                    request = request.header("content-length", body.len());
                }
                client.exchange(&request.body(body).map_err(no_request)?, progress).await
            }
        }
    }
}

impl Progress {
    pub(super) fn new(expected_bytes: u64) -> Self {
        Self { started: None, reused: false, status: 0, bytes: 0, chunks: 0, expected_bytes }
    }

    /// The request is handed to a connection.
    pub(super) fn sent(&mut self, reused: bool) {
        self.started = Some(Instant::now());
        self.reused = reused;
    }

    /// Takes a piece of the body. The application ends each of its pieces with a line's end, wherever the network cut them.
    pub(super) fn read(&mut self, data: &[u8]) {
        if self.status == 200 {
            self.bytes += data.len() as u64;
            self.chunks += data.iter().filter(|byte| **byte == b'\n').count() as u64;
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.bytes == self.expected_bytes
    }

    /// A close is another matter once the answer has begun.
    pub(super) fn seen_so_far(&self, error: Error) -> Error {
        if error == Error::Closed && self.status != 0 { Error::Truncated } else { error }
    }
}

fn head(stream: &Stream, id: &str, uri: &str) -> hyper::http::request::Builder {
    Request::builder().method(stream.method.of_http()).uri(uri).header(backend::REQUEST_ID, id)
}

fn no_request(error: hyper::http::Error) -> Error {
    Error::Other(error.to_string())
}
