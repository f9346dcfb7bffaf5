//! The lab's HTTP client: one exchange on a fresh connection, from a chosen source address, with a deadline.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};

use crate::network::{Host, Site};

/// How long a connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// A client with a source address of its own.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    from: Host,
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
    /// A client on this machine.
    pub(crate) fn new(from: IpAddr, timeout: Duration) -> Self {
        Self::on(Host { site: Site::default(), address: from }, timeout)
    }

    pub(crate) fn on(from: Host, timeout: Duration) -> Self {
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
        let socket = self.from.site.socket().map_err(broken)?;
        socket.bind(self.from.at(0)).map_err(broken)?;
        let stream = connect(socket, to).await.map_err(|error| match error.kind() == ErrorKind::ConnectionRefused {
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

/// Connects, with a limit: a listener whose backlog is full neither takes nor refuses, and the kernel's own patience is minutes.
pub(crate) async fn connect(socket: TcpSocket, to: SocketAddr) -> io::Result<TcpStream> {
    match tokio::time::timeout(CONNECT_LIMIT, socket.connect(to)).await {
        Ok(connected) => connected,
        Err(_elapsed) => {
            let seconds = CONNECT_LIMIT.as_secs();
            Err(io::Error::new(ErrorKind::TimedOut, format!("no connection to {to} within {seconds} s")))
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology;

    #[tokio::test]
    async fn a_listener_that_never_accepts_is_told_from_a_free_port_and_named_in_time() {
        let listener = TcpSocket::new_v4().unwrap();
        listener.bind(topology::local(0)).unwrap();
        let listener = listener.listen(1).unwrap();
        let to = listener.local_addr().unwrap();
        let mut accepted_by_the_kernel = Vec::new();
        let error = loop {
            match connect(TcpSocket::new_v4().unwrap(), to).await {
                Ok(stream) => accepted_by_the_kernel.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains(&to.to_string()), "{error}");
        assert!(topology::listens(to.port()));
        drop((listener, accepted_by_the_kernel));
        assert!(!topology::listens(to.port()));
    }
}
