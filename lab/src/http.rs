//! The lab's HTTP client: one exchange on a fresh connection, from a chosen source address, with a deadline.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

/// A client with a source address of its own.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    from: IpAddr,
    timeout: Duration,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: String,
}

/// Why nothing came back.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused,
    Timeout,
    Broken(String),
}

impl Client {
    pub(crate) fn new(from: IpAddr, timeout: Duration) -> Self {
        Self { from, timeout }
    }

    pub(crate) async fn get(&self, to: SocketAddr, path: &str) -> Result<Answer, Failure> {
        self.send(to, "GET", path, "").await
    }

    pub(crate) async fn post(&self, to: SocketAddr, path: &str) -> Result<Answer, Failure> {
        self.send(to, "POST", path, "").await
    }

    /// One exchange; an empty `body` sends none. Says nothing about `connection`, so that the server's word is its own.
    pub(crate) async fn send(&self, to: SocketAddr, method: &str, path: &str, body: &str) -> Result<Answer, Failure> {
        match tokio::time::timeout(self.timeout, self.exchange(to, method, path, body)).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(Failure::Timeout),
        }
    }

    async fn exchange(&self, to: SocketAddr, method: &str, path: &str, body: &str) -> Result<Answer, Failure> {
        let socket = TcpSocket::new_v4().map_err(broken)?;
        socket.bind(SocketAddr::new(self.from, 0)).map_err(broken)?;
        let stream =
            socket.connect(to).await.map_err(|error| match error.kind() == std::io::ErrorKind::ConnectionRefused {
                true => Failure::Refused,
                false => broken(error),
            })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await.map_err(broken)?;
        // Aborted with the exchange: the connection never outlives it.
        let _connection = AbortOnDrop(tokio::spawn(connection));
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).map_err(broken)?)
            .uri(path)
            .header("host", to.to_string())
            .body(Full::new(Bytes::from(body.to_owned())))
            .map_err(broken)?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(broken)?.to_bytes();
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }
}

impl Answer {
    /// A header's value, if it is there and text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The gate's state as its answer's header gives it.
    pub(crate) fn state(&self) -> Option<&str> {
        self.header("x-softclose-state")
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::Timeout => f.write_str("timeout"),
            Self::Broken(why) => write!(f, "broken: {why}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A task that ends with its owner.
pub(crate) struct AbortOnDrop<T>(pub(crate) tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::Broken(error.to_string())
}
