//! A load that keeps its schedule: requests start when they are due, whatever became of those before, and each one's fate is
//! written down. A client that waits for answers would ask less just when something is wrong.
//!
//! ```text
//! Stream --schedule--> one task a request --client (pool or fresh connection)--> balancer
//!                                `-> Fate --join--> the application's log --summary--> before, during, after
//! ```
//!
//! Deliberately absent: retries. What fails has failed; only a request of which nothing was sent takes another connection.

mod client;
mod connect;
mod failure;
mod http1;
mod http2;
mod join;
mod schedule;
mod stream;
mod summary;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::client::{Client, Progress};
pub(crate) use self::connect::Target;
pub(crate) use self::join::join;
use self::schedule::Schedule;
pub(crate) use self::stream::{Connection, Method, Stream, check};
pub(crate) use self::summary::{Row, Window, summary, table};
use crate::fate::{Error, Fate};
use crate::http::AbortOnDrop;
use crate::timeline::Clock;
use crate::wait;

/// A load under way. Dropping it drops every request and connection.
pub(crate) struct Traffic {
    streams: Vec<AbortOnDrop<Result<Vec<Fate>>>>,
    end: watch::Sender<Option<End>>,
    count: Arc<Count>,
    clock: Clock,
    began: Instant,
}

/// What a load was and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// By the time at which they were due.
    pub(crate) fates: Vec<Fate>,
    pub(crate) began_s: f64,
    /// When the schedule ended; answers may have come later.
    pub(crate) ended_s: f64,
}

/// How a load is told to end.
#[derive(Clone, Copy)]
struct End {
    /// Nothing that is due later is started.
    schedule: Instant,
    /// Whoever has no answer by then is given up.
    answers: Instant,
}

#[derive(Default)]
struct Count {
    started: AtomicU64,
    over: AtomicU64,
}

impl Traffic {
    /// Starts all streams; the same seed gives the same schedule.
    pub(crate) fn start(streams: &[Stream], target: &Target, seed: u64, clock: Clock) -> Result<Self> {
        check(streams)?;
        let (end, ends) = watch::channel(None);
        let (count, began) = (Arc::<Count>::default(), Instant::now());
        let play = |stream: &Stream| {
            let source = Source {
                client: Client::new(target.clone(), stream.protocol, stream.connection),
                stream: Arc::new(stream.clone()),
                count: Arc::clone(&count),
                ends: ends.clone(),
                clock,
            };
            AbortOnDrop(tokio::spawn(source.play(began, seed)))
        };
        Ok(Self { streams: streams.iter().map(play).collect(), end, count, clock, began })
    }

    /// Requests that were started and are not over.
    pub(crate) fn in_flight(&self) -> u64 {
        // In this order, so that one which ends in between is not counted below zero.
        let over = self.count.over.load(Ordering::SeqCst);
        self.count.started.load(Ordering::SeqCst).saturating_sub(over)
    }

    /// Requests started so far.
    pub(crate) fn started(&self) -> u64 {
        self.count.started.load(Ordering::SeqCst)
    }

    /// Ends the schedule and waits for what is outstanding, at most `limit`; the rest is a timeout.
    pub(crate) async fn stop(mut self, limit: Duration) -> Result<Load> {
        let schedule = Instant::now();
        self.end.send_replace(Some(End { schedule, answers: schedule + limit }));
        let mut fates = Vec::new();
        for stream in &mut self.streams {
            fates.extend((&mut stream.0).await.context("a stream of the load was lost")??);
        }
        fates.sort_by(|a, b| a.due_s.total_cmp(&b.due_s));
        Ok(Load { fates, began_s: self.clock.of(self.began), ended_s: self.clock.of(schedule) })
    }
}

/// One stream as it runs.
struct Source {
    stream: Arc<Stream>,
    client: Arc<Client>,
    count: Arc<Count>,
    ends: watch::Receiver<Option<End>>,
    clock: Clock,
}

impl Source {
    async fn play(mut self, began: Instant, seed: u64) -> Result<Vec<Fate>> {
        let mut running = JoinSet::new();
        let mut fates = Vec::new();
        for (number, offset) in Schedule::new(self.stream.rate, &self.stream.name, seed).enumerate() {
            let due = began + offset;
            tokio::select! {
                // What was due before the end is started however late it is.
                biased;
                _ended = self.ends.wait_for(|end| end.is_some_and(|end| due >= end.schedule)) => break,
                () = wait::pace_until(due) => {}
            }
            self.count.started.fetch_add(1, Ordering::SeqCst);
            running.spawn(self.request(number, due));
            while let Some(over) = running.try_join_next() {
                fates.push(over.context("a request of the load was lost")?);
            }
        }
        while let Some(over) = running.join_next().await {
            fates.push(over.context("a request of the load was lost")?);
        }
        Ok(fates)
    }

    fn request(&self, number: usize, due: Instant) -> impl Future<Output = Fate> + Send + use<> {
        let (stream, client, count) = (Arc::clone(&self.stream), Arc::clone(&self.client), Arc::clone(&self.count));
        let (ends, clock) = (self.ends.clone(), self.clock);
        async move {
            let id = stream.id(number);
            let mut progress = Progress::new(stream.expected_bytes());
            let ended = tokio::select! {
                ended = client.exchange(&stream, &id, &mut progress) => ended,
                () = given_up(ends) => Err(Error::Timeout),
            };
            let now = Instant::now();
            count.over.fetch_add(1, Ordering::SeqCst);
            Fate {
                id,
                stream: stream.name.clone(),
                protocol: stream.protocol,
                path: stream.path.clone(),
                due_s: clock.of(due),
                started_s: clock.of(progress.started.unwrap_or(now)),
                ended_s: clock.of(now),
                status: progress.status,
                bytes: progress.bytes,
                expected_bytes: stream.expected_bytes(),
                chunks: progress.chunks,
                expected_chunks: stream.expected_chunks(),
                reused: progress.reused,
                error: ended.err().map(|error| progress.seen_so_far(error)),
                pod: None,
                runs: 0,
            }
        }
    }
}

/// Returns when an answer is no longer waited for.
async fn given_up(mut ends: watch::Receiver<Option<End>>) {
    let end = ends.wait_for(Option::is_some).await.ok().and_then(|end| *end);
    match end {
        Some(end) => wait::pace_until(end.answers).await,
        // The load was dropped, and this task is with it.
        None => std::future::pending().await,
    }
}
