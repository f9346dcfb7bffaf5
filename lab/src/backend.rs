//! The application behind the gateway: `/fast`, `/sleep?seconds=`, `/stream?seconds=&interval=`, `/bytes?count=`, asked with or
//! without a body. It writes down every request that reached it, so that one which ran twice, or was given up half-way, is seen.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::time::Interval;

use crate::http::AbortOnDrop;
use crate::network::Host;
use crate::timeline::Clock;
use crate::topology;
use crate::watch::lock;

/// Names a request from the client to the application. Not `x-request-id`: Envoy's edge replaces that one.
pub(crate) const REQUEST_ID: &str = "x-lab-id";

/// Names the pod that a request came through; the pod's Envoy adds it.
pub(crate) const POD: &str = "x-lab-pod";

/// One request as the application saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visit {
    pub(crate) id: String,
    /// What Envoy called it.
    pub(crate) request_id: String,
    /// The pod that it came through, as [`POD`] says; empty if that is missing.
    pub(crate) pod: String,
    pub(crate) path: String,
    pub(crate) started_s: f64,
    pub(crate) ended_s: Option<f64>,
    /// It arrived to the last byte of its body, so the application acted on it.
    pub(crate) ran: bool,
    /// False while it runs, and for ever if the caller went away before the last byte.
    pub(crate) finished: bool,
}

/// The running application; it ends when dropped.
pub(crate) struct Backend {
    visits: Log,
    _task: AbortOnDrop<()>,
}

type Log = Arc<Mutex<Vec<Stamped>>>;

/// A visit before it is put on a run's clock.
struct Stamped {
    visit: Visit,
    started: Instant,
    ended: Option<Instant>,
}

impl Backend {
    pub(crate) fn start(host: Host) -> Result<Self> {
        let listener = host.site.listen(host.at(topology::APP)).context("the application cannot listen")?;
        let visits = Log::default();
        let log = Arc::clone(&visits);
        let task = tokio::spawn(async move {
            while let Ok((stream, _peer)) = listener.accept().await {
                let log = Arc::clone(&log);
                let service = service_fn(move |request: Request<Incoming>| serve(request, Arc::clone(&log)));
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    // A caller that went away is what this lab is about; the visit says so.
                    let _closed = connection.await;
                });
            }
        });
        Ok(Self { visits, _task: AbortOnDrop(task) })
    }

    /// Every request so far, on the run's clock.
    pub(crate) fn visits(&self, clock: Clock) -> Vec<Visit> {
        let on_clock = |stamped: &Stamped| Visit {
            started_s: clock.of(stamped.started),
            ended_s: stamped.ended.map(|ended| clock.of(ended)),
            ..stamped.visit.clone()
        };
        lock(&self.visits).iter().map(on_clock).collect()
    }

    /// How many requests are running.
    pub(crate) fn running(&self) -> usize {
        lock(&self.visits).iter().filter(|stamped| stamped.ended.is_none()).count()
    }
}

/// What a path answers with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plan {
    /// One body after a delay.
    Once(Duration),
    /// A chunk at every interval.
    Stream { chunks: u32, interval: Duration },
    /// So many bytes at once.
    Bytes(u32),
}

/// The size of a whole answer to `path`; `None` if the application does not know it.
pub(crate) fn expected_bytes(path_and_query: &str) -> Option<u64> {
    match plan(path_and_query)? {
        Plan::Once(_) => Some(DONE.len() as u64),
        Plan::Stream { chunks, .. } => Some(u64::from(chunks) * chunk(0).len() as u64),
        Plan::Bytes(count) => Some(count.into()),
    }
}

/// The pieces of a whole answer to `path`, a line each; `None` if the application does not know it.
pub(crate) fn expected_chunks(path_and_query: &str) -> Option<u64> {
    match plan(path_and_query)? {
        Plan::Once(_) | Plan::Bytes(_) => Some(1),
        Plan::Stream { chunks, .. } => Some(u64::from(chunks)),
    }
}

/// How long the application takes for an answer to `path`; `None` if it does not know it.
pub(crate) fn nominal(path_and_query: &str) -> Option<Duration> {
    match plan(path_and_query)? {
        Plan::Once(delay) => Some(delay),
        Plan::Bytes(_) => Some(Duration::ZERO),
        Plan::Stream { chunks, interval } => Some(interval.saturating_mul(chunks)),
    }
}

/// The largest answer: more than what lies in the buffers between application and client.
const BYTES_MAX: u32 = 64 << 20;

const DONE: &str = "the whole answer, to the last byte\n";

fn chunk(number: u32) -> String {
    format!("chunk {number:>8}\n")
}

fn plan(path_and_query: &str) -> Option<Plan> {
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    let number = |name: &str| {
        let pair = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?;
        pair.1.parse::<f64>().ok().filter(|seconds| (0.0..=3600.0).contains(seconds))
    };
    match path {
        "/fast" => Some(Plan::Once(Duration::ZERO)),
        "/sleep" => Some(Plan::Once(Duration::from_secs_f64(number("seconds")?))),
        "/stream" => {
            let interval = number("interval").filter(|interval| *interval >= 0.001)?;
            let chunks = (number("seconds")? / interval).round();
            Some(Plan::Stream { chunks: chunks as u32, interval: Duration::from_secs_f64(interval) })
        }
        "/bytes" => {
            let count = query.strip_prefix("count=")?.parse().ok()?;
            (1..=BYTES_MAX).contains(&count).then_some(Plan::Bytes(count))
        }
        _ => None,
    }
}

async fn serve(mut request: Request<Incoming>, log: Log) -> Result<Response<Answer>, hyper::Error> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let (id, request_id, pod) = (header(REQUEST_ID), header("x-request-id"), header(POD));
    let plan = plan(&path);
    let visit = Visit { id, request_id, pod, path, started_s: 0.0, ended_s: None, ran: false, finished: false };
    let index = {
        let mut visits = lock(&log);
        visits.push(Stamped { visit, started: Instant::now(), ended: None });
        visits.len() - 1
    };
    let entry = Entry { log, index };
    while let Some(frame) = request.body_mut().frame().await {
        // A body that ends early ends the exchange; the entry then stays one that did not run.
        frame?;
    }
    entry.run();
    let mut status = hyper::StatusCode::OK;
    let content = match plan {
        Some(Plan::Once(delay)) => {
            // Dropped with the connection when the caller goes away: the entry then stays unfinished.
            tokio::time::sleep(delay).await;
            Content::Whole(Some(DONE.into()))
        }
        Some(Plan::Bytes(count)) => {
            // One piece: its line's end is its last byte.
            let mut bytes = vec![b'x'; count as usize];
            bytes.last_mut().into_iter().for_each(|last| *last = b'\n');
            Content::Whole(Some(bytes.into()))
        }
        Some(Plan::Stream { chunks, interval }) => {
            let ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
            Content::Chunks { ticks, sent: 0, of: chunks }
        }
        None => {
            status = hyper::StatusCode::NOT_FOUND;
            Content::Whole(Some("no such path\n".into()))
        }
    };
    let mut response = Response::new(Answer { content, entry });
    *response.status_mut() = status;
    Ok(response)
}

/// A response body that marks its visit as finished when its last byte was taken.
struct Answer {
    content: Content,
    entry: Entry,
}

enum Content {
    Whole(Option<Bytes>),
    Chunks { ticks: Interval, sent: u32, of: u32 },
}

struct Entry {
    log: Log,
    index: usize,
}

impl Entry {
    fn run(&self) {
        if let Some(stamped) = lock(&self.log).get_mut(self.index) {
            stamped.visit.ran = true;
        }
    }

    fn end(&self, finished: bool) {
        if let Some(stamped) = lock(&self.log).get_mut(self.index).filter(|stamped| stamped.ended.is_none()) {
            stamped.ended = Some(Instant::now());
            stamped.visit.finished = finished;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let (next, last) = match &mut this.content {
            Content::Whole(body) => (body.take(), true),
            Content::Chunks { sent, of, .. } if sent == of => (None, true),
            Content::Chunks { ticks, sent, of } => {
                std::task::ready!(ticks.poll_tick(context));
                *sent += 1;
                (Some(Bytes::from(chunk(*sent))), sent == of)
            }
        };
        if last {
            this.entry.end(true);
        }
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match &self.content {
            Content::Whole(body) => {
                hyper::body::SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
            Content::Chunks { .. } => hyper::body::SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn the_size_of_every_answer_is_known_beforehand() {
        assert_eq!(expected_bytes("/fast"), Some(DONE.len() as u64));
        assert_eq!(expected_bytes("/sleep?seconds=15"), Some(DONE.len() as u64));
        assert_eq!(expected_bytes("/stream?seconds=6&interval=0.5"), Some(12 * chunk(12).len() as u64));
        assert_eq!(expected_bytes("/sleep?seconds=long"), None);
        assert_eq!(expected_bytes("/bytes?count=20000000"), Some(20_000_000));
        assert_eq!((expected_bytes("/bytes?count=0"), expected_bytes("/bytes?count=100000000")), (None, None));
        assert_eq!(expected_bytes("/nothing"), None);
        assert_eq!(expected_chunks("/sleep?seconds=15"), Some(1));
        assert_eq!(expected_chunks("/stream?seconds=6&interval=0.5"), Some(12));
    }

    /// What the application wrote down about one connection that carries these bytes and then closes.
    async fn visits_of(request: &str) -> Vec<(String, bool, bool)> {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let log = Log::default();
        let shared = Arc::clone(&log);
        let service = service_fn(move |request: Request<Incoming>| serve(request, Arc::clone(&shared)));
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut serving = hyper::server::conn::http1::Builder::new();
        let _cut = serving.half_close(true).serve_connection(TokioIo::new(server), service).await;
        let visits = lock(&log);
        visits.iter().map(|entry| (entry.visit.pod.clone(), entry.visit.ran, entry.visit.finished)).collect()
    }

    #[tokio::test]
    async fn a_request_runs_when_its_body_has_arrived_whole() {
        let head = format!("POST /fast HTTP/1.1\r\nhost: app\r\n{POD}: gw-1\r\ncontent-length: 8\r\n\r\n");
        let pod = || "gw-1".to_owned();
        assert_eq!(visits_of(&format!("{head}12345678")).await, [(pod(), true, true)]);
        assert_eq!(visits_of(&format!("{head}1234")).await, [(pod(), false, false)]);
    }
}
