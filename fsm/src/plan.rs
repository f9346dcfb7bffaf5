use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use serde::{Deserialize, Serialize};

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
}

/// A kind of balancer, by what it does with the health answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// HAProxy and its like, plain: 503 for `fall` checks is DOWN, and DOWN resets every connection.
    Haproxy,
}

/// A field that is not what it has to be; its `Display` names the field, the value and the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field's name, as written in the query or configuration.
    pub field: String,
    /// The value that was given.
    pub value: String,
    /// What it has to be.
    pub expected: String,
}

impl Plan {
    /// The names of all fields of a plan.
    pub const FIELDS: [&'static str; 7] =
        ["preset", "settle_ms", "fall", "margin_ms", "hold_min_ms", "hold_max_ms", "deadline_ms"];

    /// The defaults of a preset.
    pub fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Haproxy => Self {
                preset,
                settle: Duration::from_secs(1),
                // `fall 2`, `LB_BUFFER` 10 s: the configuration that the project's first measurements were made with.
                fall: 2,
                margin: Duration::from_millis(500),
                hold_min: Duration::ZERO,
                hold_max: Duration::from_secs(10),
                deadline: None,
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
        if plan.hold_min > plan.hold_max {
            let bound = format!("at most hold_max_ms ({})", plan.hold_max.as_millis());
            return Err(FieldError::new("hold_min_ms", &format!("{}", plan.hold_min.as_millis()), &bound));
        }
        Ok(plan)
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
            _ => return Err(FieldError::unknown(field, value, &Self::FIELDS)),
        }
        Ok(())
    }
}

impl Preset {
    /// All presets, by name.
    pub const ALL: [(&'static str, Self); 1] = [("haproxy", Self::Haproxy)];

    fn parse(value: &str) -> Result<Self, FieldError> {
        Self::ALL
            .iter()
            .find(|(name, _)| *name == value)
            .map(|(_, preset)| *preset)
            .ok_or_else(|| FieldError::new("preset", value, &one_of(&Self::ALL.map(|(name, _)| name))))
    }
}

impl FieldError {
    /// `field` was given as `value`; it has to be `expected`.
    pub fn new(field: &str, value: &str, expected: &str) -> Self {
        // An error goes into logs and answers: enough of a hostile value to recognise it, no more.
        const SHOWN: usize = 64;
        Self {
            field: field.chars().take(SHOWN).collect(),
            value: value.chars().take(SHOWN).collect(),
            expected: expected.to_owned(),
        }
    }

    /// There is no such field; these are.
    pub fn unknown(field: &str, value: &str, known: &[&str]) -> Self {
        Self::new(field, value, &format!("absent: the fields are {}", known.join(", ")))
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: got {:?}, must be {}", self.field, self.value, self.expected)
    }
}

impl core::error::Error for FieldError {}

/// `value` as a whole number within `bounds`.
///
/// # Errors
/// Anything else, naming the bounds.
pub(crate) fn whole_within(field: &str, value: &str, bounds: RangeInclusive<u64>) -> Result<u64, FieldError> {
    // `u64::from_str` takes a leading `+`, which in a query is somebody's encoded space.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse::<u64>().ok().filter(|number| digits && bounds.contains(number)).ok_or_else(|| {
        FieldError::new(field, value, &format!("a whole number from {} to {}", bounds.start(), bounds.end()))
    })
}

/// `value` as a duration in whole milliseconds within `bounds`.
///
/// # Errors
/// Anything else, naming the bounds.
pub(crate) fn millis_within(field: &str, value: &str, bounds: RangeInclusive<u64>) -> Result<Duration, FieldError> {
    whole_within(field, value, bounds).map(Duration::from_millis)
}

/// "one of a, b".
pub(crate) fn one_of(names: &[&str]) -> String {
    format!("one of {}", names.join(", "))
}

#[cfg(test)]
mod tests;
