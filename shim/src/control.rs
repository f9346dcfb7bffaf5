//! What is asked of softclose's control listener.

use std::fmt;
use std::time::Duration;

use softclose_fsm::control::STATE_HEADER;
use softclose_fsm::{StateName, Status};

use crate::address::Address;
use crate::http::{Failure, exchange};

/// The control listener.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    /// Where it is.
    pub(crate) address: Address,
}

/// An answer of softclose's.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The state, from the header.
    pub(crate) state: StateName,
    /// The status document; none if this version does not understand it.
    pub(crate) document: Option<Box<Status>>,
    /// The body as it came.
    pub(crate) body: String,
}

/// Why there is no answer of softclose's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No answer at all.
    Failed(Failure),
    /// Something answered that is not softclose, or Envoy without the filter.
    Foreign(u16),
}

impl Control {
    /// `method target`, answered within `timeout`.
    ///
    /// # Errors
    /// Nothing answered, or not softclose.
    pub(crate) fn call(&self, method: &str, target: &str, timeout: Duration) -> Result<Answer, Trouble> {
        let response = exchange(&self.address, method, target, timeout).map_err(Trouble::Failed)?;
        let status = response.head.status;
        let state = response.head.header(STATE_HEADER).and_then(state).ok_or(Trouble::Foreign(status))?;
        let document = serde_json::from_slice(&response.body).ok().map(Box::new);
        Ok(Answer { status, state, document, body: String::from_utf8_lossy(&response.body).into_owned() })
    }
}

impl Answer {
    /// Why the call was not carried out, by the document or else the body.
    pub(crate) fn reason(&self) -> String {
        match self.document.as_ref().and_then(|document| document.error.clone()) {
            Some(error) => error,
            // A rejection may be written before there is a document; enough of it to recognise.
            None => self.body.trim().chars().take(200).collect(),
        }
    }
}

fn state(header: &[u8]) -> Option<StateName> {
    StateName::ALL.into_iter().find(|state| state.as_str().as_bytes() == header)
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => write!(f, "{failure}"),
            Self::Foreign(status) => {
                write!(f, "answered {status} without {STATE_HEADER}: not softclose, or its filter is not running")
            }
        }
    }
}
