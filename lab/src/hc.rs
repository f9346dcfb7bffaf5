//! The stand-in for the health sidecar (`hc`) of modes `current` and `improved`: five states driven by POST, answered
//! on the health port. In mode softclose nothing of this runs; the filter answers.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

use crate::balancer_checks;
use crate::http::AbortOnDrop;
use crate::network::Pod;
use crate::watch::lock;

/// A running stand-in; it ends when dropped.
pub(crate) struct Hc {
    _task: AbortOnDrop<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Draining,
    Closing,
    Closed,
}

impl Hc {
    /// Starts answering; transitions are written to `hc.log` in `dir`, checks to [`balancer_checks::FILE`].
    pub(crate) fn start(pod: &Pod, dir: &Path) -> Result<Self> {
        let log = Arc::new(File::create(dir.join("hc.log")).context("cannot write hc.log")?);
        let checks = Arc::new(File::create(dir.join(balancer_checks::FILE)).context("cannot write the checks' log")?);
        let listener = pod.site.listen(pod.health()).context("the hc stand-in cannot listen")?;
        let state = Arc::new(Mutex::new(State::Open));
        let task = tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let (state, log, checks) = (Arc::clone(&state), Arc::clone(&log), Arc::clone(&checks));
                let service = service_fn(move |request: Request<Incoming>| {
                    if request.uri().path() == balancer_checks::PATH {
                        note_check(&checks, peer);
                    }
                    let mut state = lock(&state);
                    let before = *state;
                    let answer = answer(&mut state, request.method(), request.uri().path());
                    if *state != before {
                        note(&log, before, *state);
                    }
                    async move { Ok::<_, Infallible>(answer) }
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    // A balancer resets its check connections; that is no error here.
                    let _closed = connection.await;
                });
            }
        });
        Ok(Self { _task: AbortOnDrop(task) })
    }
}

fn answer(state: &mut State, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let before = *state;
    let status = match (method, path) {
        (&Method::GET | &Method::HEAD, balancer_checks::PATH) => match before {
            State::Open | State::Draining => 200,
            State::Closing | State::Closed => 503,
        },
        (&Method::GET | &Method::HEAD, "/health") => match before {
            State::Open | State::Draining | State::Closing => 200,
            State::Closed => 503,
        },
        (&Method::POST, "/drain" | "/close-lb" | "/close" | "/reopen") => match next(before, path) {
            Some(next) => {
                *state = next;
                200
            }
            None => 409,
        },
        (_, _) => 404,
    };
    let mut response = Response::new(Full::new(Bytes::from(format!("{state:?}\n"))));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    // Back among the balanced servers only after rise x inter: whoever reopens is told so.
    if path == "/reopen" && status == 200 && before == State::Closing {
        let warning =
            hyper::header::HeaderValue::from_static("199 hc \"the balancer may have marked this backend DOWN\"");
        response.headers_mut().insert("warning", warning);
    }
    response
}

/// One line per transition, with the wall clock of the other programs' logs.
fn note(mut log: &File, from: State, to: State) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if let Err(error) = writeln!(log, "{:.3} event=transition from={from:?} to={to:?}", now.as_secs_f64()) {
        eprintln!("hc.log: {error}");
    }
}

/// One line per check.
fn note_check(mut log: &File, peer: SocketAddr) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = balancer_checks::Line { at: format!("{:.6}", now.as_secs_f64()), from: peer.ip().to_string() };
    // In one write: checks come on connections of their own, at the same time.
    let written = serde_json::to_string(&line).map_err(std::io::Error::from);
    let written = written.and_then(|line| log.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = written {
        eprintln!("{}: {error}", balancer_checks::FILE);
    }
}

fn next(state: State, command: &str) -> Option<State> {
    match (command, state) {
        ("/drain", State::Open) => Some(State::Draining),
        ("/drain", State::Draining | State::Closing | State::Closed) => Some(state),
        ("/close-lb", State::Draining | State::Closing) => Some(State::Closing),
        ("/close-lb", State::Closed) => Some(state),
        ("/close", State::Closing | State::Closed) => Some(State::Closed),
        ("/reopen", State::Open | State::Draining | State::Closing) => Some(State::Open),
        (_, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: &mut State, method: &Method, path: &str) -> u16 {
        answer(state, method, path).status().as_u16()
    }

    #[test]
    fn the_paths_fail_one_after_the_other() {
        let mut state = State::Open;
        let seen: Vec<(u16, u16, u16)> = ["/drain", "/close-lb", "/close"]
            .iter()
            .map(|command| {
                let accepted = status(&mut state, &Method::POST, command);
                let balancer = status(&mut state, &Method::GET, "/health_check.html");
                (accepted, balancer, status(&mut state, &Method::GET, "/health"))
            })
            .collect();
        assert_eq!(seen, [(200, 200, 200), (200, 503, 200), (200, 503, 503)]);
    }

    #[test]
    fn closed_cannot_be_reopened() {
        let mut state = State::Closed;
        assert_eq!(status(&mut state, &Method::POST, "/reopen"), 409);
        assert_eq!(state, State::Closed);
    }
}
