mod field;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::field::FieldError;
use self::field::{body, named, status_within};
pub(crate) use self::field::{millis_within, one_of, whole_within};
use crate::state::StateName;
use crate::time::{millis, optional_millis};

/// What one drain does: fixed when the drain begins and carried in the record, so that every worker acts alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The balancer's habits that the other fields start from.
    pub preset: Preset,
    /// How long zero requests in flight must last before the flip (`settle_ms`). The last byte of a response is in the
    /// connection's buffer when its stream ends; this is the time it has to leave.
    #[serde(rename = "settle_ms", with = "millis")]
    pub settle: Duration,
    /// Failed checks after which the balancer marks the server DOWN (`fall`).
    pub fall: u32,
    /// Added to the hold after a prober's `fall`-th hard answer (`margin_ms`); its learnt interval where that is longer.
    #[serde(rename = "margin_ms", with = "millis")]
    pub margin: Duration,
    /// The shortest hold (`hold_min_ms`); never less than `fall` learnt intervals and the margin.
    #[serde(rename = "hold_min_ms", with = "millis")]
    pub hold_min: Duration,
    /// The longest hold (`hold_max_ms`), and the hold when nobody is known to probe.
    #[serde(rename = "hold_max_ms", with = "millis")]
    pub hold_max: Duration,
    /// From the beginning of the drain to its end, whatever is in flight (`deadline_ms`); none: wait for zero.
    #[serde(rename = "deadline_ms", with = "optional_millis", default)]
    pub deadline: Option<Duration>,
    /// What comes first (`order`). This field and those below are absent from records of a module that did not know them, and
    /// their defaults are what that module did.
    #[serde(default)]
    pub order: Order,
    /// The status of the balancer path in DRAINING (`soft_status`), where the balancer takes it for "no new requests"; none: 200.
    /// To any other balancer it is a failed check like 503.
    #[serde(default)]
    pub soft_status: Option<u16>,
    /// The body that goes with it (`soft_body`), for a balancer that looks there; none: the state's name.
    #[serde(default)]
    pub soft_body: Option<String>,
    /// What becomes of new requests in DRAINING (`arrivals`).
    #[serde(default)]
    pub arrivals: Arrivals,
    /// What becomes of them once health is 503 (`arrivals_closing`): until the balancer has noticed, they still come, and it may
    /// cut them when it does.
    #[serde(default)]
    pub arrivals_closing: Arrivals,
    /// The status that sends a request back to the balancer (`refuse_status`).
    #[serde(default = "too_early")]
    pub refuse_status: u16,
    /// The longest declared body that the balancer still replays, in bytes (`replay_limit`).
    #[serde(default = "replay_limit")]
    pub replay_limit: u64,
    /// What becomes of Envoy's listening sockets once health is 503 (`sockets_closing`); the preStop command carries it out.
    #[serde(default)]
    pub sockets_closing: Sockets,
    /// Whether somebody is expected to ask the balancer path (`probers`). It changes nothing for those who do.
    #[serde(default)]
    pub probers: Watch,
}

/// A kind of balancer, by what it does with the health answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// HAProxy and its like, plain: 503 for `fall` checks is DOWN, and DOWN resets every connection. What is in flight then is
    /// lost, and on a busy gateway something always is.
    Haproxy,
    /// HAProxy with `http-check disable-on-404`: one 404 keeps new requests away and the running ones alive.
    HaproxySoft,
    /// HAProxy with `retry-on conn-failure empty-response 425`, `option redispatch 1`, `option http-buffer-request` and a
    /// `tune.bufsize` that holds the requests: what is refused is replayed on another server. Without waiting for the whole request
    /// HAProxy has no body to replay when the refusal comes (measured on 2.6.12: every POST whose body came in a segment of its own
    /// was answered 425); without `empty-response` what was not answered yet when the sockets closed, or at DOWN, is lost.
    HaproxyRetry,
    /// A balancer for which DOWN cuts nothing: AWS NLB with unhealthy connection termination off, HAProxy without
    /// `on-marked-down shutdown-sessions`.
    Nlb,
}

/// What comes first: an idle gateway, or the news that it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// 503 once no request is in flight: DOWN would cut it.
    #[default]
    IdleFirst,
    /// 503 at once, because DOWN cuts nothing; leave once no request is in flight and the hold is over.
    HealthFirst,
}

/// What becomes of a new request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// It is served.
    #[default]
    Serve,
    /// It is sent back, if the balancer can replay it on another server; else it is served.
    Refuse,
}

/// What becomes of Envoy's listening sockets, those of health and control among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sockets {
    /// They stay open; the balancer is told by answers alone.
    #[default]
    Keep,
    /// They are closed. The balancer's next connection is refused, which it retries elsewhere, so that nothing is on its way to
    /// this server when DOWN cuts. Sending requests back does not do that: they come until the moment of DOWN, and the one whose
    /// 425 has not been read yet is cut (measured: requests a second times the way there and back).
    Close,
}

/// Whether a balancer is expected to ask for health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watch {
    /// Somebody is: a drain that nobody watched told nobody, and is no clean one.
    #[default]
    Expected,
    /// Nobody is: this gateway has no such balancer, and where nobody asks, nobody is waited for.
    None,
}

/// How a new request is sent back to the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deflection {
    /// With which status.
    pub status: u16,
    /// The longest declared body that the balancer still replays, in bytes.
    pub replay_limit: u64,
}

impl Plan {
    /// The names of all fields of a plan.
    pub const FIELDS: [&'static str; 16] = [
        "preset",
        "settle_ms",
        "fall",
        "margin_ms",
        "hold_min_ms",
        "hold_max_ms",
        "deadline_ms",
        "order",
        "soft_status",
        "soft_body",
        "arrivals",
        "arrivals_closing",
        "refuse_status",
        "replay_limit",
        "sockets_closing",
        "probers",
    ];

    /// The defaults of a preset.
    pub fn preset(preset: Preset) -> Self {
        let haproxy = Self {
            preset,
            settle: Duration::from_secs(1),
            // `fall 2`, `LB_BUFFER` 10 s: the configuration that the project's first measurements were made with.
            fall: 2,
            margin: Duration::from_millis(500),
            hold_min: Duration::ZERO,
            hold_max: Duration::from_secs(10),
            deadline: None,
            order: Order::IdleFirst,
            soft_status: None,
            soft_body: None,
            arrivals: Arrivals::Serve,
            arrivals_closing: Arrivals::Serve,
            refuse_status: too_early(),
            replay_limit: replay_limit(),
            sockets_closing: Sockets::Keep,
            probers: Watch::Expected,
        };
        match preset {
            Preset::Haproxy => haproxy,
            // The status that `http-check disable-on-404` is named after.
            Preset::HaproxySoft => Self { soft_status: Some(404), ..haproxy },
            // In CLOSING too: until DOWN the balancer goes on sending, and with shutdown-sessions DOWN cuts what was served.
            Preset::HaproxyRetry => Self {
                arrivals: Arrivals::Refuse,
                arrivals_closing: Arrivals::Refuse,
                sockets_closing: Sockets::Close,
                ..haproxy
            },
            Preset::Nlb => Self {
                order: Order::HealthFirst,
                // New connections were seen to come 30 to 180 s after a target was deregistered, which for targets of type ip
                // happens when the pod is deleted (kubernetes-sigs/aws-load-balancer-controller, issue 2366).
                hold_min: Duration::from_secs(180),
                // Where nobody is known to probe: two checks at AWS's defaults (UnhealthyThresholdCount 2, 30 s apart), and
                // those 180 s.
                hold_max: Duration::from_secs(240),
                ..haproxy
            },
        }
    }

    /// `self` with the given fields in place of its own; of another preset, with that preset's defaults below them.
    ///
    /// # Errors
    /// The first field that is unknown, given twice or out of bounds, or a pair that contradicts itself.
    pub fn with<'a>(&self, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, FieldError> {
        let fields: Vec<(&str, &str)> = fields.into_iter().collect();
        for (at, (field, value)) in fields.iter().enumerate() {
            if fields.iter().take(at).any(|(earlier, _)| earlier == field) {
                return Err(FieldError::new(field, value, "once only"));
            }
        }
        let mut plan = self.clone();
        if let Some((_, value)) = fields.iter().find(|(field, _)| *field == "preset") {
            let preset = Preset::parse(value)?;
            if preset != self.preset {
                plan = Self::preset(preset);
            }
        }
        for (field, value) in fields {
            plan.set(field, value)?;
        }
        if plan.hold_min == Self::preset(plan.preset).hold_min {
            // A default does not stand in the way of what somebody chose.
            plan.hold_min = plan.hold_min.min(plan.hold_max);
        }
        if plan.hold_min > plan.hold_max {
            let bound = format!("at most hold_max_ms ({})", plan.hold_max.as_millis());
            return Err(FieldError::new("hold_min_ms", &format!("{}", plan.hold_min.as_millis()), &bound));
        }
        plan.contradiction().map_or(Ok(plan), Err)
    }

    /// How a new request is sent back in `state`; none: it is served.
    pub fn deflection(&self, state: StateName) -> Option<Deflection> {
        let arrivals = match state {
            StateName::Open => Arrivals::Serve,
            StateName::Draining => self.arrivals,
            StateName::Closing | StateName::Closed | StateName::Fault => self.arrivals_closing,
        };
        match arrivals {
            Arrivals::Serve => None,
            Arrivals::Refuse => Some(Deflection { status: self.refuse_status, replay_limit: self.replay_limit }),
        }
    }

    /// Fields that would be without effect, and so are somebody's mistake.
    fn contradiction(&self) -> Option<FieldError> {
        let soft = self.soft_status.map(|status| format!("{status}"));
        match (self.order, soft, &self.soft_body) {
            (Order::HealthFirst, Some(status), _) => {
                Some(FieldError::new("soft_status", &status, "none where order is health-first: there is no DRAINING"))
            }
            (Order::HealthFirst, None, None) if self.arrivals == Arrivals::Refuse => {
                let expected =
                    "serve where order is health-first: there is no DRAINING, arrivals_closing is what counts";
                Some(FieldError::new("arrivals", "refuse", expected))
            }
            (Order::HealthFirst, None, None) if self.sockets_closing == Sockets::Close => {
                let expected = "keep where order is health-first: DOWN cuts nothing, and CLOSING waits for zero";
                Some(FieldError::new("sockets_closing", "close", expected))
            }
            (_, None, Some(body)) => Some(FieldError::new("soft_body", body, "absent without soft_status")),
            (Order::IdleFirst | Order::HealthFirst, _, _) => None,
        }
    }

    fn set(&mut self, field: &str, value: &str) -> Result<(), FieldError> {
        // An hour is longer than any settle or hold that helps; a day is longer than any grace period in use.
        const MINUTE: u64 = 60_000;
        const TEN_MINUTES: u64 = 600_000;
        const DAY: u64 = 86_400_000;
        match field {
            "preset" => self.preset = Preset::parse(value)?,
            "settle_ms" => self.settle = millis_within(field, value, 0..=MINUTE)?,
            // HAProxy takes any `fall`; past 100 checks the hold is `hold_max` anyway.
            "fall" => self.fall = u32::try_from(whole_within(field, value, 1..=100)?).unwrap_or(u32::MAX),
            "margin_ms" => self.margin = millis_within(field, value, 0..=MINUTE)?,
            "hold_min_ms" => self.hold_min = millis_within(field, value, 0..=TEN_MINUTES)?,
            "hold_max_ms" => self.hold_max = millis_within(field, value, 0..=TEN_MINUTES)?,
            "deadline_ms" => self.deadline = Some(millis_within(field, value, 1..=DAY)?),
            "order" => self.order = named(field, value, Order::ALL)?,
            "soft_status" if value == "none" => self.soft_status = None,
            "soft_status" => self.soft_status = Some(status_within(field, value, 200, " or none")?),
            "soft_body" => self.soft_body = Some(body(field, value)?),
            "arrivals" => self.arrivals = named(field, value, Arrivals::ALL)?,
            "arrivals_closing" => self.arrivals_closing = named(field, value, Arrivals::ALL)?,
            "refuse_status" => self.refuse_status = status_within(field, value, 400, "")?,
            "sockets_closing" => self.sockets_closing = named(field, value, Sockets::ALL)?,
            "probers" => self.probers = named(field, value, Watch::ALL)?,
            // A balancer buffers a request before it knows where to send it; nobody gives each of them more than 16 MiB.
            "replay_limit" => self.replay_limit = whole_within(field, value, 0..=16_777_216)?,
            _ => return Err(FieldError::unknown(field, value, &Self::FIELDS)),
        }
        Ok(())
    }
}

impl Preset {
    /// All presets, by name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("haproxy", Self::Haproxy),
        ("haproxy-soft", Self::HaproxySoft),
        ("haproxy-retry", Self::HaproxyRetry),
        ("nlb", Self::Nlb),
    ];

    fn parse(value: &str) -> Result<Self, FieldError> {
        named("preset", value, Self::ALL)
    }
}

impl Order {
    /// Both, by name.
    pub const ALL: [(&'static str, Self); 2] = [("idle-first", Self::IdleFirst), ("health-first", Self::HealthFirst)];
}

impl Arrivals {
    /// Both, by name.
    pub const ALL: [(&'static str, Self); 2] = [("serve", Self::Serve), ("refuse", Self::Refuse)];
}

impl Sockets {
    /// Both, by name.
    pub const ALL: [(&'static str, Self); 2] = [("keep", Self::Keep), ("close", Self::Close)];
}

impl Watch {
    /// Both, by name.
    pub const ALL: [(&'static str, Self); 2] = [("expected", Self::Expected), ("none", Self::None)];
}

/// The status that a balancer is asked to retry on: 425 Too Early. Applications hardly ever say it themselves, unlike 503, which
/// the balancer would then replay as well.
fn too_early() -> u16 {
    425
}

/// Half of HAProxy's default `tune.bufsize` (16,384 bytes), which has to hold the headers and `tune.maxrewrite` (1,024) as well.
fn replay_limit() -> u64 {
    8_192
}

#[cfg(test)]
mod tests;
