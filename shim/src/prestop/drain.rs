//! Steps 1 and 2: Envoy's own drain, and the gate's.

use std::time::{Duration, Instant};

use softclose_fsm::{Order, Plan, Preset, StateName};

use crate::admin::AdminError;
use crate::args::{Overrides, target};
use crate::budget::Split;
use crate::control::Answer;
use crate::duration::{self, millis};
use crate::log::Level;
use crate::prestop::{Break, EnvoyDrain, PATIENCE, Prestop, Understood};

/// How long the gate's drain waits for Envoy's to start. Both matter, but an admin that hangs must not cost the requests their
/// time; it is asked again during the wait.
const ADMIN_FIRST: Duration = Duration::from_secs(3);

impl Prestop {
    /// Starts Envoy's own drain, or leaves it owed after a while.
    pub(super) fn start_envoy_drain(&mut self) -> Result<(), Break> {
        let until = Instant::now() + ADMIN_FIRST.min(self.left()? / 4);
        loop {
            self.ask_envoy_to_drain()?;
            if self.envoy_drain != EnvoyDrain::Owed {
                return Ok(());
            }
            if Instant::now() >= until || self.admin_link.refused_repeatedly() {
                self.log
                    .warn("Envoy's drain has not started; going on with the gate's, and asking again meanwhile", &[]);
                return Ok(());
            }
            self.pause(self.admin_link.pause())?;
        }
    }

    /// Asks once for Envoy's own drain, if it is owed.
    pub(super) fn ask_envoy_to_drain(&mut self) -> Result<(), Break> {
        if self.envoy_drain != EnvoyDrain::Owed {
            return Ok(());
        }
        let left = self.left()?;
        let Err(error) = self.admin.drain(left) else {
            self.admin_link.answered();
            self.envoy_drain = EnvoyDrain::Started;
            self.log.info("Envoy's drain has started: every port stays open", &[]);
            return Ok(());
        };
        self.admin_failed(error);
        let address = self.admin.address.clone();
        match error {
            AdminError::Unsupported(status) => {
                self.envoy_drain = EnvoyDrain::Unsupported;
                let left = self.left()?;
                let version = self.admin.version(left).unwrap_or_else(|error| format!("unknown ({error})"));
                let what = format!("admin {address}: POST /drain_listeners?graceful&skip_exit answered {status}");
                let so = "Envoy's own drain is not started, clients keep their connections";
                self.log.line(Level::Error, &format!("{what}; {so}; server version {version}"), &[]);
            }
            AdminError::Busy(_) => self.log.warn(&format!("admin {address}: {error}; asking again"), &[]),
            AdminError::Failed(_) if self.admin_link.news() => {
                self.log.warn(&format!("admin {address}: {error}; unknown, asking again"), &[]);
            }
            AdminError::Failed(_) => {}
        }
        Ok(())
    }

    /// Has the gate drain with what is left of the budget, and says until when that may take.
    pub(super) fn drain(&mut self) -> Result<Instant, Break> {
        loop {
            let Some(before) = self.attempt("GET", "/status", PATIENCE)? else { continue };
            let (split, call) = self.drain_call(&before);
            let Some(answer) = self.attempt("POST", &call, PATIENCE)? else { continue };
            if answer.status != 200 {
                self.not_understood(&call, &answer)?;
                continue;
            }
            if self.envoy_drain == EnvoyDrain::Started {
                self.envoy_drain = EnvoyDrain::Told;
            }
            self.say_drained(&before, split);
            // Whatever was seen of an earlier drain is over.
            self.seen.drains = answer.document.as_ref().map_or(self.seen.drains, |document| document.drains);
            self.tell(&answer);
            return Ok(Instant::now() + split.drain);
        }
    }

    /// Envoy's drain came late: the gate should know. Draining again changes nothing else.
    pub(super) fn tell_gate_of_envoy_drain(&mut self, own_deadline: Instant) -> Result<(), Break> {
        if self.envoy_drain != EnvoyDrain::Started || self.understood == Understood::Nothing {
            return Ok(());
        }
        // The deadline matters only if somebody has reopened the gate this moment.
        let left = own_deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let call = format!("/drain?deadline_ms={}&envoy_drain=started", millis(left));
        if self.attempt("POST", &call, PATIENCE)?.is_some_and(|answer| answer.status == 200) {
            self.envoy_drain = EnvoyDrain::Told;
        }
        Ok(())
    }

    /// The query of `POST /drain`: the flags, what Envoy does, and our share of the grace period.
    fn drain_call(&self, before: &Answer) -> (Split, String) {
        let wanted = self.plan(before);
        let split = match wanted.order {
            Order::IdleFirst => self.budget.split(Instant::now(), wanted.hold_max),
            Order::HealthFirst => self.budget.side_by_side(Instant::now(), wanted.hold_max),
        };
        let mut fields = match self.understood {
            Understood::All => self.options.plan.clone(),
            Understood::Deadline => Overrides::new(),
            Understood::Nothing => return (split, "/drain".to_owned()),
        };
        if split.hold < wanted.hold_max {
            set(&mut fields, "hold_max_ms", split.hold);
        }
        if split.hold < wanted.hold_min {
            set(&mut fields, "hold_min_ms", split.hold);
        }
        set(&mut fields, "deadline_ms", split.drain);
        if self.envoy_drain == EnvoyDrain::Started {
            fields.push(("envoy_drain", "started".to_owned()));
        }
        (split, target("/drain", &fields))
    }

    /// What the gate would do by its configuration and our flags.
    fn plan(&self, before: &Answer) -> Plan {
        let own = match &before.document {
            Some(document) => document.plan.clone(),
            None => Plan::preset(Preset::Haproxy),
        };
        // A pair that contradicts itself is the gate's to refuse.
        own.with(self.options.plan.iter().map(|(field, value)| (*field, value.as_str()))).unwrap_or(own)
    }

    fn say_drained(&mut self, before: &Answer, split: Split) {
        match before.state {
            StateName::Open => {
                let Plan { hold_max: wanted, order, .. } = self.plan(before);
                if split.hold < wanted {
                    let (wanted, hold) = (duration::text(wanted), duration::text(split.hold));
                    let short = format!(
                        "the grace period is too short for a hold of {wanted}: the balancer gets at most {hold}"
                    );
                    self.log.warn(&format!("{short} to notice, the requests {}", duration::text(split.drain)), &[]);
                }
                let fields = [("deadline_ms", millis(split.drain).into()), ("hold_max_ms", millis(split.hold).into())];
                let (drain, hold) = (duration::text(split.drain), duration::text(split.hold));
                let together = if order == Order::HealthFirst { " in the same time" } else { "" };
                let said = format!(
                    "the gate drains: at most {drain} for the requests, {hold} for the balancer to notice{together}"
                );
                self.log.info(&said, &fields);
            }
            StateName::Draining => self.log.info("joining the drain under way; its deadline stands", &[]),
            StateName::Closing | StateName::Closed | StateName::Fault => {
                self.log.info("joining a drain that is past its flip", &[]);
            }
        }
    }

    /// The gate refused the call: another version, or flags that contradict its configuration. Say less the next time.
    fn not_understood(&mut self, call: &str, answer: &Answer) -> Result<(), Break> {
        self.usage_errors = true;
        let refused = format!("POST {call} answered {}: {}", answer.status, answer.reason());
        self.understood = match self.understood {
            Understood::All => Understood::Deadline,
            Understood::Deadline => Understood::Nothing,
            Understood::Nothing => return Err(Break::Fallback(refused)),
        };
        self.log.line(Level::Error, &format!("{refused}; going on with the gate's own plan"), &[]);
        Ok(())
    }
}

fn set(fields: &mut Overrides, field: &'static str, span: Duration) {
    fields.retain(|(found, _)| *found != field);
    fields.push((field, millis(span).to_string()));
}
