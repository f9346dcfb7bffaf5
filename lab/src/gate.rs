//! The gate of a running gateway, spoken to as an operator would.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};

use crate::ground::Ground;
use crate::http::{Answer, Client, Failure};
use crate::{topology, wait};

/// The control listener.
#[derive(Clone, Copy)]
pub(crate) struct Gate(Client);

impl Gate {
    pub(crate) fn new() -> Self {
        // Longer than the longest GET /wait.
        Self(Client::new(topology::OPERATOR, Duration::from_secs(20)))
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Result<Answer, Failure> {
        self.0.send(topology::local(topology::CONTROL), method, path, body).await
    }

    /// A command that must be accepted; returns the status document.
    pub(crate) async fn command(&self, path: &str) -> Result<Value> {
        let answer = self.send("POST", path, "").await.with_context(|| format!("POST {path}"))?;
        if answer.status != 200 {
            bail!("POST {path} was answered {}: {}", answer.status, answer.body);
        }
        serde_json::from_str(&answer.body).with_context(|| format!("POST {path} was answered with {}", answer.body))
    }

    pub(crate) async fn status(&self) -> Result<Value> {
        let answer = self.send("GET", "/status", "").await.context("GET /status")?;
        serde_json::from_str(&answer.body).with_context(|| format!("GET /status was answered with {}", answer.body))
    }

    /// Waits until the gate says that it is in `state`.
    pub(crate) async fn reaches(&self, state: &str, limit: Duration) -> Result<Value> {
        let reached = async || self.status().await.ok().filter(|status| text(status, "/state") == state);
        wait::until(&format!("the gate is {state}"), limit, reached).await
    }
}

/// A text of a status document; empty if it is not there.
pub(crate) fn text<'a>(status: &'a Value, pointer: &str) -> &'a str {
    status.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A number of a status document.
pub(crate) fn number(status: &Value, pointer: &str) -> Option<u64> {
    status.pointer(pointer).and_then(Value::as_u64)
}

/// When an event last happened, on the gate's clock.
pub(crate) fn event_us(status: &Value, name: &str) -> Option<u64> {
    let events = status.pointer("/events")?.as_array()?;
    events.iter().rev().find(|event| text(event, "/event") == name).and_then(|event| number(event, "/at_us"))
}

/// `503 CLOSING` of an answer of the health listener.
pub(crate) fn health_word(answer: &Result<Answer, Failure>) -> String {
    match answer {
        Ok(answer) => format!("{} {}", answer.status, answer.state().unwrap_or("(no state)")),
        Err(failure) => failure.to_string(),
    }
}

/// Requests held in flight straight at the traffic listener, each on a connection of its own.
pub(crate) struct Held {
    // Given up when dropped, all at once: as a balancer does that cuts.
    requests: JoinSet<()>,
    clients: Vec<AbortHandle>,
}

/// Between two clients that leave by themselves: longer than what a balancer's cut ends together.
pub(crate) const APART: Duration = Duration::from_millis(100);

impl Held {
    /// Starts `count` requests and waits until the application runs all of them.
    pub(crate) async fn start(ground: &Ground, count: usize, seconds: f64) -> Result<Self> {
        let client = Client::new(topology::OPERATOR, Duration::from_secs_f64(seconds + 30.0));
        let before = ground.backend.running();
        let (mut held, mut clients) = (JoinSet::new(), Vec::new());
        for _ in 0..count {
            let waiting = held.spawn(async move {
                let path = format!("/sleep?seconds={seconds}");
                // Whoever holds requests drops them before they are answered.
                let _unanswered = client.get(topology::local(topology::TRAFFIC), &path).await;
            });
            clients.push(waiting);
        }
        let running = async || (ground.backend.running() == before + count).then_some(());
        wait::until("the application runs the held requests", Duration::from_secs(10), running).await?;
        Ok(Self { requests: held, clients })
    }

    /// The clients leave, one after the other.
    pub(crate) async fn leave(mut self) {
        for client in self.clients.drain(..) {
            client.abort();
            wait::pace_until(Instant::now() + APART).await;
        }
        self.requests.shutdown().await;
    }
}
