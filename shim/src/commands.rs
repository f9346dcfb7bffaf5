//! The single calls that an operator types.

mod summary;

use std::time::{Duration, Instant};

use softclose_fsm::control::{Until, WAIT_MAX};

use crate::args::{Call, CallKind};
use crate::control::{Answer, Control, Trouble};
use crate::duration::{self, millis};
use crate::{complain, exit, print};

/// How long a call may take that has nothing to wait for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A paused answer comes at the end of its slice, and then over loopback.
const LATE: Duration = Duration::from_secs(2);

/// Carries out `call`, prints what came of it, and says the exit code.
pub(crate) fn run(call: &Call) -> u8 {
    let control = Control { address: call.control.clone() };
    match &call.kind {
        CallKind::Post(target) => show(&control, control.call("POST", target, PATIENCE), summary::line),
        CallKind::Status { json: true } => {
            show(&control, control.call("GET", "/status", PATIENCE), |answer| format!("{}\n", answer.body.trim_end()))
        }
        CallKind::Status { json: false } => show(&control, control.call("GET", "/status", PATIENCE), summary::whole),
        CallKind::Wait { until, timeout } => wait(&control, *until, *timeout),
    }
}

fn show(control: &Control, answered: Result<Answer, Trouble>, text: impl FnOnce(&Answer) -> String) -> u8 {
    match answered {
        Ok(answer) if answer.status == 200 => {
            print(&text(&answer));
            for warning in answer.document.iter().flat_map(|document| &document.warnings) {
                complain(&format!("warning: {warning}"));
            }
            exit::CLEAN
        }
        Ok(answer) => refused(&answer),
        Err(trouble) => unavailable(control, &trouble.to_string()),
    }
}

fn wait(control: &Control, until: Until, timeout: Duration) -> u8 {
    let deadline = Instant::now() + timeout;
    loop {
        let slice = deadline.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        if slice.is_zero() {
            return unavailable(control, &format!("not {} after {}", until.as_str(), duration::text(timeout)));
        }
        let target = format!("/wait?for={}&timeout_ms={}", until.as_str(), millis(slice).max(1));
        match control.call("GET", &target, slice + LATE) {
            Ok(answer) if answer.status == 202 || answer.status == 504 => {}
            answered => return show(control, answered, summary::line),
        }
    }
}

fn refused(answer: &Answer) -> u8 {
    let reason = answer.reason();
    if answer.status == 409 {
        complain(&format!(
            "refused: the gate is {}{}{reason}",
            answer.state,
            if reason.is_empty() { "" } else { ": " }
        ));
        exit::REFUSED
    } else {
        complain(&format!("the gate answered {}: {reason}", answer.status));
        // 4xx but 409: it does not understand us, so another version. 5xx: not at the moment.
        if answer.status < 500 { exit::REFUSED } else { exit::UNAVAILABLE }
    }
}

fn unavailable(control: &Control, why: &str) -> u8 {
    complain(&format!("control {}: {why}", control.address));
    exit::UNAVAILABLE
}
