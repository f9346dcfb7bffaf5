//! The whole way out, as kubelet runs it before SIGTERM.
//!
//! ```text
//!   Envoy's drain -> the gate's drain -> wait for closing -> wait for exit -> the agent -> exit code
//!         |                |                    |                 |
//!         '----------------+--- not softclose, while admin answers: fallback (polls Envoy's own counters)
//!                          '--- refused everywhere: Envoy is gone
//! ```
//!
//! No answer is unknown, never zero. Everything is asked again, with back-off, until the budget is spent.

mod drain;
mod fallback;
mod link;
mod opinion;
mod sockets;
mod tell;
mod wait;

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use softclose_fsm::{Audience, DistrustReason, StateName};

use crate::admin::{Admin, AdminError, agent_drained};
use crate::args::Options;
use crate::budget::Budget;
use crate::control::{Answer, Control, Trouble};
use crate::duration;
use crate::exit;
use crate::log::{Level, Log};
use crate::outcome::Outcome;
use crate::prestop::link::Link;
use crate::verify;

/// Drains as `options` say and returns the exit code.
pub(crate) fn run(options: Options) -> u8 {
    let start = Instant::now();
    let log = Log::new(start, options.form, options.log_also.as_deref());
    let mut prestop = Prestop {
        budget: Budget::new(start, options.grace),
        admin: Admin { address: options.admin.clone() },
        control: Control { address: options.control.clone() },
        log,
        admin_link: Link::default(),
        control_link: Link::default(),
        envoy_drain: EnvoyDrain::Owed,
        understood: Understood::All,
        seen: Seen::default(),
        usage_errors: !options.errors.is_empty(),
        options,
    };
    prestop.begin();
    let outcome = prestop.leave();
    prestop.finish(&outcome)
}

/// One run.
struct Prestop {
    options: Options,
    budget: Budget,
    admin: Admin,
    control: Control,
    log: Log,
    admin_link: Link,
    control_link: Link,
    envoy_drain: EnvoyDrain,
    understood: Understood,
    usage_errors: bool,
    seen: Seen,
}

/// Where Envoy's own drain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EnvoyDrain {
    /// Not yet accepted: to be asked for again.
    Owed,
    /// Accepted; the gate does not know.
    Started,
    /// Accepted, and the gate was told.
    Told,
    /// This Envoy does not do it.
    Unsupported,
}

/// How much of our `POST /drain` the gate understands; one of another version may know fewer fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Understood {
    /// Everything.
    All,
    /// The deadline, and that Envoy's drain was started.
    Deadline,
    /// The bare call.
    Nothing,
}

/// What the gate last said.
#[derive(Clone, Debug, Default)]
struct Seen {
    state: Option<StateName>,
    distrust: Option<DistrustReason>,
    /// The gate waits for zero: it drains, or it has closed health first.
    waits_for_zero: bool,
    /// Requests in flight by the newest document.
    active: Option<u64>,
    /// The most in flight since the balancer was told.
    peak: u64,
    /// What the probers had been told when the pod was free to leave.
    audience: Option<Audience>,
    /// Requests of this drain that whoever asked has ended.
    ended_by_peers: u64,
    /// The number of the drain that we wait for.
    drains: u64,
    /// The newest change that the gate has told us of; none if it numbers them not, or not for us.
    changes: Option<u64>,
    /// The gate lost its record on the way.
    record_lost: bool,
    /// Times that somebody reopened the gate on the way.
    reopened: u32,
    /// What Envoy's own counters last said: how many requests that can be.
    counted: Option<u64>,
    /// The last opinion that was brought to the gate and said so.
    said_opinion: Option<u64>,
    /// It was said that Envoy has no counters to offer.
    said_no_counters: bool,
}

/// Why the ordinary way out ends early.
#[derive(Debug)]
enum Break {
    /// The grace period is about to end.
    BudgetSpent,
    /// Nothing listens on admin or control.
    EnvoyGone,
    /// Admin answers, softclose does not.
    Fallback(String),
    /// It ended without an answer of the gate's.
    Ended(Outcome),
}

/// How long a call of control may take that has nothing to wait for. Workers answer within milliseconds; Envoy stopped for a
/// moment is asked again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Well within the second that is kept for last words.
const LAST_LOOK: Duration = Duration::from_millis(300);

impl Prestop {
    fn begin(&mut self) {
        let grace = duration::text(self.options.grace);
        let version = env!("CARGO_PKG_VERSION");
        self.log.info(&format!("prestop {version}: leaving, within {grace}"), &[]);
        for error in std::mem::take(&mut self.options.errors) {
            self.log.line(Level::Error, &format!("usage: {error}; going on with the default"), &[]);
        }
    }

    fn leave(&mut self) -> Outcome {
        let outcome = match self.softclose() {
            Err(Break::Fallback(why)) => self.fallback(&why),
            otherwise => otherwise,
        };
        match outcome {
            Ok(outcome) => outcome,
            Err(Break::Ended(outcome)) => outcome,
            Err(Break::EnvoyGone) => Outcome::EnvoyGone { last_seen: self.last_seen() },
            Err(Break::BudgetSpent) => self.last_look(),
            // The fallback has none of its own.
            Err(Break::Fallback(_)) => Outcome::FallbackUnknown { reason: "no way left", at_most: None },
        }
    }

    /// The budget is spent, but for last words: where does that leave the requests?
    fn last_look(&mut self) -> Outcome {
        let answer = self.control.call("GET", "/status", LAST_LOOK).ok();
        if let Some(answer) = &answer {
            self.tell(answer);
        }
        let active = answer.and_then(|answer| answer.document).map(|document| document.active);
        let at_most = active.map(|active| active.max(self.seen.peak));
        Outcome::BudgetSpent { state: self.seen.state, at_most, last_seen: self.last_seen() }
    }

    /// The ordinary way: the gate decides.
    fn softclose(&mut self) -> Result<Outcome, Break> {
        self.start_envoy_drain()?;
        let own_deadline = self.drain()?;
        let answer = self.wait(own_deadline)?;
        let outcome = Outcome::of(answer.document.as_deref(), self.seen.peak, self.seen.reopened > 0);
        Ok(if self.seen.record_lost { outcome.after_a_lost_record() } else { outcome })
    }

    fn finish(&mut self, outcome: &Outcome) -> u8 {
        if outcome.is_clean() {
            self.tell_agent();
            self.name_uncounted();
        }
        let code = outcome.code();
        let cut = match outcome.cut_at_most() {
            Some(count) => format!("cut at most {count}"),
            None => "how many were cut is not known".to_owned(),
        };
        let (code, usage) = if self.usage_errors {
            (exit::USAGE, format!(" (usage; it would have been {code})"))
        } else {
            (code, String::new())
        };
        let level = if code == exit::CLEAN { Level::Info } else { Level::Error };
        let at_most = outcome.cut_at_most().map_or(Value::Null, Value::from);
        let audience = self.seen.audience;
        let told = audience.map_or(
            Value::Null,
            |audience| json!({"told": audience.told, "untold": audience.untold, "gone": audience.gone}),
        );
        let ended = Value::from(self.seen.ended_by_peers);
        let fields =
            [("exit", Value::from(code)), ("cut_at_most", at_most), ("probers", told), ("ended_by_peers", ended)];
        let cut = match audience.filter(|audience| !audience.is_empty() && outcome.is_clean()) {
            Some(Audience { told, gone, .. }) => format!("{} told{}; {cut}", probers(told), gone_too(gone)),
            None => cut,
        };
        let done = format!("done: {outcome}; {cut}; exit code {code}{usage}");
        self.log.line(level, &done, &fields);
        if let Some(path) = &self.options.termination_log {
            self.log.last_words(path, &done);
        }
        code
    }

    /// Clean is said of requests. Connections that are no HTTP are cut with the pod, and their listeners named.
    fn name_uncounted(&mut self) {
        match verify::uncounted(&self.options.admin, self.budget.left(Instant::now()).min(PATIENCE)) {
            Ok(listeners) if listeners.is_empty() => {}
            Ok(listeners) => {
                let named = listeners.join(", ");
                let fields = [("uncounted", Value::from(listeners))];
                self.log.warn(&format!("clean is said of HTTP, and nothing is known of {named}"), &fields);
            }
            Err(error) => self.log.info(&format!("which listeners cannot be counted is not known: admin {error}"), &[]),
        }
    }

    /// At SIGTERM the agent would drain Envoy once more and wait for terminationDrainDuration. After a clean end there is
    /// nothing to wait for; after any other, its drain is the second net and stays.
    fn tell_agent(&mut self) {
        let agent = self.options.agent.clone();
        match agent_drained(&agent, self.budget.left(Instant::now())) {
            Ok(()) => self.log.info("the agent will exit at once on SIGTERM", &[]),
            Err(error) => self.log.warn(&format!("agent {agent}: {error}; it will drain by itself on SIGTERM"), &[]),
        }
    }

    /// One call of control, with `timeout`; none after a failure that is worth another try, and after a pause for it.
    fn attempt(&mut self, method: &str, target: &str, timeout: Duration) -> Result<Option<Answer>, Break> {
        let left = self.left()?;
        let trouble = match self.control.call(method, target, timeout.min(left)) {
            // 504 is the end of a slice; any other 5xx that carries our header is a worker in distress.
            Ok(answer) if answer.status < 500 || answer.status == 504 => {
                self.control_link.answered();
                return Ok(Some(answer));
            }
            Ok(answer) => {
                self.control_link.failed(Instant::now(), link::Absence::Silent);
                format!("answered {}", answer.status)
            }
            Err(trouble) => {
                self.control_link.failed(Instant::now(), absence(trouble));
                trouble.to_string()
            }
        };
        self.left()?;
        if self.control_link.news() {
            let unknown = format!("control {}: {trouble}; unknown, asking again", self.control.address);
            self.log.warn(&unknown, &[("tries", self.control_link.tries().into())]);
        }
        self.judge(&trouble)?;
        self.pause(self.control_link.pause())?;
        Ok(None)
    }

    /// Control did not answer: is it softclose that is missing, or Envoy?
    fn judge(&mut self, trouble: &str) -> Result<(), Break> {
        let left = self.left()?;
        let admin_answers = match self.admin.version(left) {
            Ok(_) => {
                self.admin_link.answered();
                true
            }
            Err(error) => self.admin_failed(error),
        };
        let now = Instant::now();
        if self.admin_link.refused_for_long(now) && self.control_link.missing_for_long(now) {
            return Err(Break::EnvoyGone);
        }
        if admin_answers && (self.control_link.missing_for_long(now) || self.control_link.silent_for_long(now)) {
            return Err(Break::Fallback(format!("control {}: {trouble}", self.control.address)));
        }
        Ok(())
    }

    /// Notes a failure of admin; says whether it was an answer all the same.
    fn admin_failed(&mut self, error: AdminError) -> bool {
        match error {
            AdminError::Failed(failure) => {
                self.admin_link.failed(Instant::now(), absence(Trouble::Failed(failure)));
                false
            }
            AdminError::Unsupported(_) | AdminError::Busy(_) => {
                self.admin_link.answered();
                true
            }
        }
    }

    /// What is left of the budget.
    fn left(&self) -> Result<Duration, Break> {
        let left = self.budget.left(Instant::now());
        if left.is_zero() { Err(Break::BudgetSpent) } else { Ok(left) }
    }

    fn pause(&self, span: Duration) -> Result<(), Break> {
        thread::sleep(span.min(self.left()?));
        self.left().map(drop)
    }

    /// Requests in flight when the gate, or in its place Envoy's counters, last answered.
    fn last_seen(&self) -> Option<u64> {
        self.seen.active.or(self.seen.counted)
    }
}

fn probers(count: u32) -> String {
    if count == 1 { "1 prober was".to_owned() } else { format!("{count} probers were") }
}

fn gone_too(count: u32) -> String {
    if count == 0 { String::new() } else { format!(", {count} stopped asking") }
}

fn absence(trouble: Trouble) -> link::Absence {
    use crate::http::Failure;
    match trouble {
        Trouble::Failed(Failure::Refused) => link::Absence::Refused,
        Trouble::Failed(Failure::Io(_) | Failure::Garbage(_)) | Trouble::Foreign(_) => link::Absence::Foreign,
        Trouble::Failed(Failure::Silent | Failure::CutShort) => link::Absence::Silent,
    }
}
