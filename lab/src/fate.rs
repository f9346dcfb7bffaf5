//! What became of one request of a load: enough to say whether it was cut, by whom, and what its client saw.

use serde::{Deserialize, Serialize};

use crate::curl::Protocol;

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fate {
    /// Unique in its run; the application writes it down ([`crate::backend::REQUEST_ID`]).
    pub(crate) id: String,
    /// The stream of the load that it belongs to, as the scenario names it.
    pub(crate) stream: String,
    pub(crate) protocol: Protocol,
    pub(crate) path: String,
    /// When the schedule wanted it to start.
    pub(crate) due_s: f64,
    /// When it was sent, or given up before.
    pub(crate) started_s: f64,
    pub(crate) ended_s: f64,
    /// 0 if no answer began.
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) expected_bytes: u64,
    /// Pieces of the answer as the application sent them: what a user of a stream counts.
    pub(crate) chunks: u64,
    pub(crate) expected_chunks: u64,
    /// Sent on a connection that had served another request before.
    pub(crate) reused: bool,
    pub(crate) error: Option<Error>,
    /// The pod that served it last, by the application's log; None if it never got there.
    pub(crate) pod: Option<String>,
    /// How often the application ran it.
    pub(crate) runs: u32,
}

/// How an exchange failed, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Error {
    /// Nobody listens.
    Refused,
    /// The connection was reset.
    Reset,
    /// The connection was closed before the answer began.
    Closed,
    /// The stream was reset by its peer, with this h2 error code.
    H2(String),
    /// The answer began and ended early.
    Truncated,
    Timeout,
    Other(String),
}

impl Fate {
    /// Answered, and whole to the last byte.
    pub(crate) fn whole(&self) -> bool {
        self.error.is_none() && self.status == 200 && self.bytes == self.expected_bytes
    }

    /// What its user lost, in a word; None if nothing. A request that the application ran twice is a loss as well.
    pub(crate) fn loss(&self) -> Option<String> {
        let word = match &self.error {
            Some(Error::Refused) => "refused".to_owned(),
            Some(Error::Reset) => "reset".to_owned(),
            Some(Error::Closed) => "closed".to_owned(),
            Some(Error::H2(code)) => format!("h2 {code}"),
            Some(Error::Truncated) => "truncated".to_owned(),
            Some(Error::Timeout) => "timeout".to_owned(),
            Some(Error::Other(_)) => "broken".to_owned(),
            None if self.status != 200 => self.status.to_string(),
            None if self.bytes != self.expected_bytes => "truncated".to_owned(),
            None if self.runs > 1 => "doubled".to_owned(),
            None => return None,
        };
        Some(word)
    }
}
