//! CPU per request: so many requests to the listener without a filter and to a variant's, one right after the other, again
//! and again. Each such pair gives one ratio. A pair takes a second at most: what wanders, on a machine that is shared, is its
//! speed, and less within a second than from minute to minute.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::gateway::{Gateway, Listener, Plan, Route, Variant};
use super::load::{self, Protocol};
use super::{Modules, plans};

/// Before the first pair: V8 compiles what is hot, connections to the application are opened.
const WARM_UP: u64 = 30_000;

/// One variant on one route over one protocol.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) route: Route,
    pub(crate) protocol: Protocol,
    pub(crate) variant: Variant,
    /// Microseconds of Envoy's processor time for a request, without the filter.
    pub(crate) without_us: Quartiles,
    /// The same with it.
    pub(crate) us: Quartiles,
    /// One divided by the other, pair by pair.
    pub(crate) ratio: Quartiles,
    /// Where the true median of the ratios lies, at 95 %; none where there are too few pairs to say.
    pub(crate) sure: Option<[f64; 2]>,
    /// Both, pair by pair.
    pub(crate) pairs_us: Vec<[f64; 2]>,
}

/// Median and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quartiles {
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
}

/// One pair: microseconds for a request without the filter and with it.
#[derive(Clone, Copy)]
struct Pair {
    route: Route,
    protocol: Protocol,
    variant: Variant,
    us: [f64; 2],
}

pub(crate) async fn measure(modules: &Modules, pairs: u32, seed: u64, dir: &Path) -> Result<Vec<Cell>> {
    let plans = plans(modules);
    // One worker: with more, what a second one does while it has little to do is measured as well.
    let mut gateway = Gateway::start(&plans, 1, dir).await?;
    let listeners = gateway.listeners.clone();
    println!("CPU per request: {} listeners, 2 protocols, {pairs} pairs each; first a warm-up", listeners.len());
    for protocol in Protocol::ALL {
        for listener in &listeners {
            load::run(protocol, *listener, WARM_UP).await?;
        }
    }
    let mut dice = Dice(seed);
    let mut measured = Vec::new();
    for number in 1..=pairs {
        let mut order: Vec<(Protocol, Listener)> = Protocol::ALL
            .into_iter()
            .flat_map(|protocol| listeners.iter().map(move |listener| (protocol, *listener)))
            .filter(|(_, listener)| listener.variant != Variant::None)
            .collect();
        dice.shuffle(&mut order);
        for (protocol, with) in order {
            let without = listeners.iter().find(|other| other.route == with.route && other.variant == Variant::None);
            let Some(without) = without.copied() else { continue };
            let us = pair(&mut gateway, protocol, [without, with], dice.roll().is_multiple_of(2)).await?;
            measured.push(Pair { route: with.route, protocol, variant: with.variant, us });
        }
        if number.is_multiple_of(10) || number == pairs {
            println!("  pair {number} of {pairs}");
        }
    }
    gateway.has_counted_all().await?;
    Ok(cells(&measured, &plans))
}

async fn pair(gateway: &mut Gateway, protocol: Protocol, of: [Listener; 2], turned: bool) -> Result<[f64; 2]> {
    let [without, with] = of;
    if turned {
        let with = microseconds(gateway, protocol, with).await?;
        return Ok([microseconds(gateway, protocol, without).await?, with]);
    }
    Ok([microseconds(gateway, protocol, without).await?, microseconds(gateway, protocol, with).await?])
}

async fn microseconds(gateway: &mut Gateway, protocol: Protocol, listener: Listener) -> Result<f64> {
    let requests = requests(listener.route);
    let before = gateway.cpu()?;
    load::run(protocol, listener, requests).await?;
    Ok((gateway.cpu()? - before).as_secs_f64() * 1e6 / requests as f64)
}

/// Requests of half a pair: many beside the opening of the connections, and few enough to take a fraction of a second.
fn requests(route: Route) -> u64 {
    match route {
        Route::Direct => 4_000,
        Route::Proxied | Route::Edge => 2_000,
    }
}

fn cells(measured: &[Pair], plans: &[Plan]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for plan in plans {
        for protocol in Protocol::ALL {
            let pairs_us: Vec<[f64; 2]> = measured
                .iter()
                .filter(|pair| (pair.route, pair.protocol, pair.variant) == (plan.route, protocol, plan.variant))
                .map(|pair| pair.us)
                .collect();
            let of = |figure: fn(&[f64; 2]) -> f64| pairs_us.iter().map(figure).collect::<Vec<f64>>();
            let ratios = of(|[without, with]| with / without);
            let all = (Quartiles::of(&of(|[without, _]| *without)), Quartiles::of(&of(|[_, with]| *with)));
            if let ((Some(without_us), Some(us)), Some(ratio)) = (all, Quartiles::of(&ratios)) {
                let sure = sure_of_median(&ratios);
                let (route, variant) = (plan.route, plan.variant);
                cells.push(Cell { route, protocol, variant, without_us, us, ratio, sure, pairs_us });
            }
        }
    }
    cells.sort_by_key(|cell| (cell.route as u8, cell.protocol as u8));
    cells
}

/// Where the median of all pairs that could be measured lies, at 95 %: by the ranks of those that were, so that nothing is said
/// about how they are spread. None of so few that not even the least and the greatest enclose it so surely.
fn sure_of_median(values: &[f64]) -> Option<[f64; 2]> {
    /// Of the normal distribution, two-sided.
    const SIGMAS: f64 = 1.96;
    /// All of five lie on one side of the median in one case of 16, all of six in one of 32.
    const FEWEST: usize = 6;
    if values.len() < FEWEST {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let rank = ((n - SIGMAS * n.sqrt()) / 2.0).floor().max(0.0) as usize;
    let below = rank.saturating_sub(1);
    Some([*sorted.get(below)?, *sorted.get(sorted.len().checked_sub(1 + below)?)?])
}

impl Cell {
    /// Where the true median lies, in words.
    pub(crate) fn sure_in_words(&self) -> String {
        self.sure.map_or("too few pairs".to_owned(), |[low, high]| format!("{low:.3}-{high:.3}"))
    }
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

    #[test]
    fn a_ratio_is_that_of_one_pair() {
        let plan = Plan { route: Route::Direct, variant: Variant::Shipped, module: None };
        // The machine was half as fast in the second pair.
        let measured = [[10.0, 11.0], [20.0, 22.0]].map(|us| Pair {
            route: Route::Direct,
            protocol: Protocol::H1,
            variant: Variant::Shipped,
            us,
        });
        let cells = cells(&measured, &[plan]);
        assert_eq!(cells.len(), 1);
        assert!((cells[0].ratio.q1 - 1.1).abs() < 1e-9 && (cells[0].ratio.q3 - 1.1).abs() < 1e-9);
        assert_eq!(cells[0].pairs_us.len(), 2);
    }

    #[test]
    fn the_median_is_surer_the_more_pairs_there_are() {
        let values = |n: u32| (0..n).map(f64::from).collect::<Vec<_>>();
        assert_eq!(sure_of_median(&values(5)), None);
        assert_eq!(sure_of_median(&values(6)), Some([0.0, 5.0]));
        // The tables' ranks for n = 100 are the 40th and the 61st.
        assert_eq!(sure_of_median(&values(100)), Some([39.0, 60.0]));
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
