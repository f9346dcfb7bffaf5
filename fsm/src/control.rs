//! What the filter understands on its two listeners, and the preStop command says.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use crate::input::{Refusal, Warning};
use crate::plan::{FieldError, Plan, millis_within, one_of, whole_within};
use crate::record::{Path, Record};
use crate::state::StateName;

/// The header on every answer; its value is a state. What answers without it is not softclose.
pub const STATE_HEADER: &str = "x-softclose-state";

/// The header on a request that was sent back to the balancer; its body is the value too.
pub const REFUSED: (&str, &str) = ("x-softclose", "refused");

/// The longest that one `GET /wait` is held. A waiting stream on a VM that traps is never answered, so callers ask again.
pub const WAIT_MAX: Duration = Duration::from_secs(15);

/// A call on the control listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `POST /drain`: leave.
    Drain {
        /// By this plan.
        plan: Plan,
        /// Envoy's own drain was started before (`envoy_drain=started`).
        envoy_drain_started: bool,
    },
    /// `POST /close-lb`: tell the balancer 503 now.
    CloseLb,
    /// `POST /close`: end the hold now.
    Close,
    /// `POST /reopen`: stay after all.
    Reopen,
    /// `POST /observe?active=N`: what Envoy's own counters say.
    Observe(u64),
    /// `GET /status`.
    Status,
    /// `GET /wait`: answer on the next transition.
    Wait {
        /// What is waited for.
        until: Until,
        /// The newest change that the caller knows of (`changes` of a status document); none: the newest there is.
        after: Option<u64>,
        /// How long.
        timeout: Duration,
    },
}

/// What a `GET /wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The balancer was told 503: CLOSING, CLOSED or FAULT.
    Closing,
    /// The pod may leave: CLOSED, or FAULT after its hold.
    Exit,
}

/// Why a call is not understood, as HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// 400, 404, 405 or 413.
    pub status: u16,
    /// The `allow` header of a 405.
    pub allow: Option<&'static str>,
    /// What is wrong, and what would be right.
    pub reason: String,
}

/// The paths of the health listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPaths {
    /// What the external balancer probes.
    pub balancer: String,
    /// What Kubernetes may probe.
    pub readiness: String,
}

/// All calls: path, method, and what it does.
pub const CALLS: [(&str, &str, &str); 7] = [
    ("/drain", "POST", "leave: tell the balancer 503 once the last request has ended"),
    ("/close-lb", "POST", "tell the balancer 503 now, whatever is in flight"),
    ("/close", "POST", "end the hold now"),
    ("/reopen", "POST", "stay after all"),
    ("/observe", "POST", "bring a second opinion of the requests in flight"),
    ("/status", "GET", "say where the gate stands"),
    ("/wait", "GET", "answer on the next transition"),
];

impl Call {
    /// What a request on the control listener asks for. `plan` is what a drain does where the query says nothing else.
    ///
    /// # Errors
    /// The answer to give instead; nothing was changed.
    pub fn parse(method: &[u8], target: &[u8], has_body: bool, plan: &Plan) -> Result<Self, Rejection> {
        let (path, query) = split_target(target);
        let Some((path, allowed, _)) = CALLS.iter().find(|(known, _, _)| known.as_bytes() == path) else {
            let known = CALLS.map(|(path, method, _)| format!("{method} {path}")).join(", ");
            return Err(Rejection::new(404, format!("no such call; there are {known}")));
        };
        if method != allowed.as_bytes() {
            let allow = Some(*allowed);
            return Err(Rejection { allow, ..Rejection::new(405, format!("{path} is called with {allowed}")) });
        }
        if has_body {
            return Err(Rejection::new(413, format!("{path} takes no body; values go into the query")));
        }
        let fields = fields(query)?;
        match *path {
            "/drain" => Self::drain(fields, plan),
            "/close-lb" => none(&fields).map(|()| Self::CloseLb),
            "/close" => none(&fields).map(|()| Self::Close),
            "/reopen" => none(&fields).map(|()| Self::Reopen),
            "/observe" => Self::observe(&fields),
            "/status" => none(&fields).map(|()| Self::Status),
            _ => Self::wait(&fields),
        }
    }

    fn drain(mut fields: Vec<(&str, &str)>, plan: &Plan) -> Result<Self, Rejection> {
        let mut envoy_drain_started = false;
        if let Some(at) = fields.iter().position(|(field, _)| *field == "envoy_drain") {
            let (field, value) = fields.remove(at);
            if value != "started" {
                return Err(FieldError::new(field, value, &one_of(&["started"])).into());
            }
            if fields.iter().any(|(other, _)| *other == field) {
                return Err(FieldError::new(field, value, "once only").into());
            }
            envoy_drain_started = true;
        }
        if let Some((field, value)) = fields.iter().find(|(field, _)| !Plan::FIELDS.contains(field)) {
            let known: Vec<&str> = Plan::FIELDS.into_iter().chain(["envoy_drain"]).collect();
            return Err(FieldError::unknown(field, value, &known).into());
        }
        Ok(Self::Drain { plan: plan.with(fields)?, envoy_drain_started })
    }

    fn observe(fields: &[(&str, &str)]) -> Result<Self, Rejection> {
        known(fields, &["active"])?;
        match fields {
            [(field, value)] => Ok(Self::Observe(whole_within(field, value, 0..=u64::from(u32::MAX))?)),
            [] => Err(FieldError::new("active", "", "given: the requests in flight by Envoy's own counters").into()),
            [_, (field, value), ..] => Err(FieldError::new(field, value, "once only").into()),
        }
    }

    fn wait(fields: &[(&str, &str)]) -> Result<Self, Rejection> {
        known(fields, &["for", "after", "timeout_ms"])?;
        let mut until = Until::Closing;
        let mut after = None;
        let mut timeout = WAIT_MAX;
        for (at, (field, value)) in fields.iter().enumerate() {
            if fields.iter().take(at).any(|(earlier, _)| earlier == field) {
                return Err(FieldError::new(field, value, "once only").into());
            }
            match (*field, *value) {
                ("for", "closing") => until = Until::Closing,
                ("for", "exit") => until = Until::Exit,
                ("for", _) => return Err(FieldError::new(field, value, &one_of(&["closing", "exit"])).into()),
                ("after", _) => after = Some(whole_within(field, value, 0..=u64::MAX)?),
                _ => {
                    let longest = u64::try_from(WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
                    timeout = millis_within(field, value, 1..=longest)?;
                }
            }
        }
        Ok(Self::Wait { until, after, timeout })
    }
}

impl Until {
    /// The status of an answer to somebody who waits for this, given the record; none while there is nothing to say.
    ///
    /// `known` is the newest change that the waiter knows of. Every later one is worth an answer: 202 if it is not yet what is
    /// waited for.
    pub fn status(self, record: &Record, known: u64) -> Option<u16> {
        let reached = match (self, record.state.name()) {
            (Self::Closing | Self::Exit, StateName::Open) => return Some(409),
            (Self::Closing, StateName::Closing | StateName::Closed | StateName::Fault) => true,
            (Self::Exit, StateName::Closed | StateName::Fault) => record.may_exit(),
            (Self::Closing, StateName::Draining) | (Self::Exit, StateName::Draining | StateName::Closing) => false,
        };
        match (reached, record.changes != known) {
            (true, _) => Some(200),
            (false, true) => Some(202),
            (false, false) => None,
        }
    }

    /// As in the query.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closing => "closing",
            Self::Exit => "exit",
        }
    }
}

impl Default for HealthPaths {
    fn default() -> Self {
        Self { balancer: "/health_check.html".to_owned(), readiness: "/health".to_owned() }
    }
}

impl HealthPaths {
    /// Which probe a request on the health listener is.
    ///
    /// # Errors
    /// The answer to give instead. Commands do not exist here: they are 404 like any other path.
    pub fn parse(&self, method: &[u8], target: &[u8]) -> Result<Path, Rejection> {
        let (path, _) = split_target(target);
        let probe = if path == self.balancer.as_bytes() {
            Path::Balancer
        } else if path == self.readiness.as_bytes() {
            Path::Readiness
        } else {
            let reason = format!("nothing here but {} and {}", self.balancer, self.readiness);
            return Err(Rejection::new(404, reason));
        };
        if method == b"GET" || method == b"HEAD" {
            Ok(probe)
        } else {
            let allow = Some("GET, HEAD");
            Err(Rejection { allow, ..Rejection::new(405, "health is asked for with GET or HEAD".to_owned()) })
        }
    }
}

impl Rejection {
    fn new(status: u16, reason: String) -> Self {
        Self { status, allow: None, reason }
    }
}

impl From<FieldError> for Rejection {
    fn from(error: FieldError) -> Self {
        Self::new(400, error.to_string())
    }
}

impl Refusal {
    /// In words, for the 409.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotDraining => "not draining; POST /drain comes first",
            Self::BalancerNotTold => "the balancer has not been told yet; POST /close-lb comes first",
            Self::AlreadyClosed => "closed for good: the pod may be leaving already, only a new process opens again",
        }
    }
}

impl Warning {
    /// In words, for the document and the `warning` header.
    pub fn text(self) -> &'static str {
        match self {
            Self::BalancerMayHaveNoticed => {
                "the balancer may have counted failed checks or marked this server DOWN; it is UP again after rise x inter"
            }
            Self::EnvoyKeepsDraining => {
                "Envoy's own drain cannot be undone: every response carries connection: close until the process restarts"
            }
        }
    }
}

fn split_target(target: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = target.splitn(2, |byte| *byte == b'?');
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// `a=1&b=2` as pairs. No value of ours needs escaping, so there is none.
fn fields(query: &[u8]) -> Result<Vec<(&str, &str)>, Rejection> {
    let Ok(query) = core::str::from_utf8(query) else {
        return Err(Rejection::new(400, "the query is not UTF-8".to_owned()));
    };
    if query.is_empty() {
        return Ok(Vec::new());
    }
    let pair =
        |pair| str::split_once(pair, '=').ok_or_else(|| FieldError::new(pair, "", "written as name=value").into());
    query.split('&').map(pair).collect()
}

fn none(fields: &[(&str, &str)]) -> Result<(), Rejection> {
    match fields {
        [] => Ok(()),
        [(field, value), ..] => Err(FieldError::new(field, value, "absent: this call takes no query").into()),
    }
}

fn known(fields: &[(&str, &str)], names: &[&str]) -> Result<(), Rejection> {
    match fields.iter().find(|(field, _)| !names.contains(field)) {
        Some((field, value)) => Err(FieldError::unknown(field, value, names).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
