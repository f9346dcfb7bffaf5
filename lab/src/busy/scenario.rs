//! The busy gateway's load and times: `testdata/scenarios/busy.yaml`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::curl::Protocol;
use crate::scenario::Scale;
use crate::topology;
use crate::traffic::{self, Connection, Method, Stream};

/// The scenario's name on the command line.
pub(crate) const NAME: &str = "busy";

/// How many requests a second. What was measured on a gateway of the field is near each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rate {
    /// 19 requests a second
    Light,
    /// 170 requests a second
    #[default]
    Medium,
    /// 600 requests a second
    Heavy,
}

impl Rate {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Medium => "medium",
            Self::Heavy => "heavy",
        }
    }

    fn requests_a_second(self) -> f64 {
        match self {
            Self::Light => 19.0,
            Self::Medium => 170.0,
            Self::Heavy => 600.0,
        }
    }
}

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) title: String,
    load: Vec<Part>,
    scales: BTreeMap<String, Times>,
}

/// One stream of the load at every rate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    name: String,
    protocol: Protocol,
    path: String,
    /// At full times, where another.
    full_path: Option<String>,
    connection: Connection,
    #[serde(default)]
    method: Method,
    #[serde(default)]
    body_bytes: u32,
    light: f64,
    medium: f64,
    heavy: f64,
}

/// One scale.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Times {
    /// `softclose prestop --hold-max`.
    pub(crate) hold_max_s: u32,
    /// `softclose prestop --hold-min` with the preset nlb.
    pub(crate) nlb_hold_min_s: u32,
    /// Those that every scenario has.
    pub(crate) times: Scale,
}

impl Scenario {
    pub(crate) fn read() -> Result<Self> {
        let path = topology::root()?.join("testdata/scenarios").join(format!("{NAME}.yaml"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
        let scenario: Self = serde_saphyr::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        scenario.check().with_context(|| format!("in {}", path.display()))?;
        Ok(scenario)
    }

    pub(crate) fn times(&self, scale: &str) -> Result<&Times> {
        self.scales.get(scale).with_context(|| format!("{NAME} has no scale {scale}"))
    }

    /// The load, spoken in the protocols of the file or, if one is named, in that alone.
    pub(crate) fn load(&self, full: bool, rate: Rate, protocol: Option<Protocol>) -> Vec<Stream> {
        self.load.iter().map(|part| part.stream(full, rate, protocol)).collect()
    }

    fn check(&self) -> Result<()> {
        for rate in [Rate::Light, Rate::Medium, Rate::Heavy] {
            for full in [false, true] {
                let load = self.load(full, rate, None);
                traffic::check(&load)?;
                let (sum, wanted) = (load.iter().map(|stream| stream.rate).sum::<f64>(), rate.requests_a_second());
                ensure!((sum - wanted).abs() < 1e-6, "{} adds up to {sum}, must be {wanted}", rate.name());
            }
        }
        Ok(())
    }
}

impl Part {
    fn stream(&self, full: bool, rate: Rate, protocol: Option<Protocol>) -> Stream {
        let path = self.full_path.as_ref().filter(|_| full).unwrap_or(&self.path);
        Stream {
            name: self.name.clone(),
            protocol: protocol.unwrap_or(self.protocol),
            path: path.clone(),
            rate: match rate {
                Rate::Light => self.light,
                Rate::Medium => self.medium,
                Rate::Heavy => self.heavy,
            },
            connection: self.connection,
            method: self.method,
            body_bytes: self.body_bytes,
            replayable: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend;

    #[test]
    fn every_rate_adds_up_and_keeps_more_than_a_few_requests_in_flight() {
        let scenario = Scenario::read().unwrap();
        for (rate, full) in [(Rate::Light, false), (Rate::Light, true), (Rate::Heavy, false)] {
            let of = |stream: &Stream| stream.rate * backend::nominal(&stream.path).unwrap().as_secs_f64();
            let in_flight: f64 = scenario.load(full, rate, None).iter().map(of).sum();
            // Half of them on each of two pods.
            assert!(in_flight > 12.0, "{rate:?}, full {full}: {in_flight}");
        }
    }

    #[test]
    fn a_protocol_that_is_named_is_that_of_every_stream() {
        let scenario = Scenario::read().unwrap();
        let load = scenario.load(false, Rate::Medium, Some(Protocol::H2));
        assert!(load.iter().all(|stream| stream.protocol == Protocol::H2));
        let mixed = scenario.load(false, Rate::Medium, None);
        assert!([Protocol::H1, Protocol::H2].iter().all(|one| mixed.iter().any(|stream| stream.protocol == *one)));
    }

    #[test]
    fn both_scales_are_there_and_full_times_are_the_longer_ones() {
        let scenario = Scenario::read().unwrap();
        let (scaled, full) = (scenario.times("scaled").unwrap(), scenario.times("full").unwrap());
        assert!(scaled.times.shrink < full.times.shrink && scaled.hold_max_s < full.hold_max_s);
    }
}
