//! CPU per request: the variants one after the other, in a new order each round, each compared with the listener without
//! a filter of the same round.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use super::Effort;
use super::gateway::{Gateway, Listener, Plan, Route, Variant};
use super::load::{self, Protocol};

/// A load with fewer requests than this says nothing and is repeated, so often at most.
const FEWEST: u64 = 200;
const TRIES: u32 = 5;

/// One variant on one route over one protocol.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) route: Route,
    pub(crate) protocol: Protocol,
    pub(crate) variant: Variant,
    /// Microseconds of Envoy's processor time for a request.
    pub(crate) us: Quartiles,
    /// The same, divided by that of no filter in the same round.
    pub(crate) ratio: Quartiles,
    /// The least of `us` divided by the least without a filter. Others on the machine can only add to a request's cost
    /// (they push it out of the caches), so where it is busy this says more than the median.
    pub(crate) least_ratio: f64,
    pub(crate) pairs: usize,
    pub(crate) requests: u64,
    /// Every `us`, by round.
    pub(crate) rounds_us: Vec<f64>,
}

/// Median and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quartiles {
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
}

/// One load of one listener.
#[derive(Clone, Copy)]
struct Sample {
    round: u32,
    route: Route,
    protocol: Protocol,
    variant: Variant,
    us: f64,
    requests: u64,
}

pub(crate) async fn measure(
    module: &Path,
    all_exports: Option<&Path>,
    effort: &Effort,
    seed: u64,
    dir: &Path,
) -> Result<Vec<Cell>> {
    let mut variants = vec![(Variant::None, None), (Variant::Shipped, Some(module.to_path_buf()))];
    variants.extend(all_exports.map(|module| (Variant::AllExports, Some(module.to_path_buf()))));
    variants.push((Variant::Lua, None));
    let plans: Vec<Plan> = [Route::Direct, Route::Proxied]
        .into_iter()
        .flat_map(|route| {
            variants.iter().map(move |(variant, module)| Plan { route, variant: *variant, module: module.clone() })
        })
        .collect();
    // One worker: with more, what a second one does while it has little to do is measured as well.
    let mut gateway = Gateway::start(&plans, 1, dir).await?;
    let listeners = gateway.listeners.clone();
    println!("CPU per request: {} listeners, 2 protocols, {} rounds; first a warm-up", listeners.len(), effort.rounds);
    let mut dice = Dice(seed);
    let mut samples = Vec::new();
    // Round 0 warms up: V8 compiles what is hot, connections to the application are opened.
    for round in 0..=effort.rounds {
        for protocol in Protocol::ALL {
            for route in [Route::Direct, Route::Proxied] {
                let mut order: Vec<Listener> =
                    listeners.iter().filter(|listener| listener.route == route).copied().collect();
                dice.shuffle(&mut order);
                for listener in order {
                    let sample = load_once(&mut gateway, listener, protocol, effort.load, round).await?;
                    samples.extend(Some(sample).filter(|_| round > 0));
                }
            }
        }
        if round > 0 {
            println!("  round {round} of {}", effort.rounds);
        }
    }
    Ok(cells(&samples, &plans))
}

async fn load_once(
    gateway: &mut Gateway,
    listener: Listener,
    protocol: Protocol,
    time: Duration,
    round: u32,
) -> Result<Sample> {
    for _ in 0..TRIES {
        let (requests_before, cpu_before) = (gateway.requests(listener).await?, gateway.cpu()?);
        load::run(protocol, listener.port, time).await?;
        let (cpu, requests) = (gateway.cpu()? - cpu_before, gateway.requests(listener).await? - requests_before);
        if requests >= FEWEST {
            let us = cpu.as_secs_f64() * 1e6 / requests as f64;
            return Ok(Sample { round, route: listener.route, protocol, variant: listener.variant, us, requests });
        }
    }
    bail!("{TRIES} times fewer than {FEWEST} requests in {time:?}: this machine is too busy")
}

fn cells(samples: &[Sample], plans: &[Plan]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for protocol in Protocol::ALL {
        for plan in plans {
            let of = |variant: Variant| {
                samples.iter().filter(move |sample| {
                    sample.route == plan.route && sample.protocol == protocol && sample.variant == variant
                })
            };
            let pairs: Vec<(f64, f64)> = of(plan.variant)
                .filter_map(|sample| {
                    let baseline = of(Variant::None).find(|other| other.round == sample.round)?;
                    Some((sample.us, sample.us / baseline.us))
                })
                .collect();
            let least = |variant: Variant| of(variant).map(|sample| sample.us).fold(f64::INFINITY, f64::min);
            let (rounds_us, ratios): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            if let (Some(us), Some(ratio)) = (Quartiles::of(&rounds_us), Quartiles::of(&ratios)) {
                cells.push(Cell {
                    route: plan.route,
                    protocol,
                    variant: plan.variant,
                    us,
                    ratio,
                    least_ratio: least(plan.variant) / least(Variant::None),
                    pairs: ratios.len(),
                    requests: of(plan.variant).map(|sample| sample.requests).sum(),
                    rounds_us,
                });
            }
        }
    }
    cells.sort_by_key(|cell| (cell.route == Route::Proxied, cell.protocol == Protocol::H2));
    cells
}

impl Quartiles {
    /// Linear between the neighbours; None of nothing.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len().checked_sub(1)? as f64);
            let (low, high) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
            Some(low + (high - low) * place.fract())
        };
        Some(Self { q1: at(0.25)?, median: at(0.5)?, q3: at(0.75)? })
    }
}

/// Xorshift: an order that no variant can profit from, and that can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let with = (self.roll() % (last as u64 + 1)) as usize;
            items.swap(last, with);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: u32, variant: Variant, us: f64) -> Sample {
        Sample { round, route: Route::Direct, protocol: Protocol::H1, variant, us, requests: 10 }
    }

    #[test]
    fn a_ratio_is_that_of_the_same_round() {
        let plans =
            [Variant::None, Variant::Shipped].map(|variant| Plan { route: Route::Direct, variant, module: None });
        // The machine was half as fast in the second round.
        let samples = [
            sample(1, Variant::None, 10.0),
            sample(1, Variant::Shipped, 11.0),
            sample(2, Variant::Shipped, 22.0),
            sample(2, Variant::None, 20.0),
        ];
        let cells = cells(&samples, &plans);
        assert_eq!(cells.len(), 2);
        assert!((cells[1].ratio.q1 - 1.1).abs() < 1e-9 && (cells[1].ratio.q3 - 1.1).abs() < 1e-9);
        assert_eq!((cells[1].pairs, cells[1].requests), (2, 20));
    }

    #[test]
    fn quartiles_lie_between_the_neighbours() {
        assert_eq!(Quartiles::of(&[4.0, 1.0, 3.0, 2.0]), Some(Quartiles { q1: 1.75, median: 2.5, q3: 3.25 }));
        assert_eq!(Quartiles::of(&[]), None);
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..8).collect();
        let mut dice = Dice(7);
        dice.shuffle(&mut items);
        items.sort_unstable();
        assert_eq!(items, (0..8).collect::<Vec<_>>());
    }
}
