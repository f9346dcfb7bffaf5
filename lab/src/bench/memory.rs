//! Memory: the same gateway with and without the filter, at several numbers of workers.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::folder;
use super::gateway::{Gateway, Plan, Route, Variant};
use super::load::{self, Protocol};
use crate::diagnostics::evidence;

const WORKERS: [u16; 5] = [1, 2, 4, 8, 16];
/// Every worker has served requests before memory is read.
const WARM_UP: u64 = 10_000;

/// Resident memory of Envoy with so many workers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Footprint {
    pub(crate) workers: u16,
    pub(crate) without_mib: f64,
    pub(crate) with_mib: f64,
}

impl Footprint {
    /// What both roles' VMs take.
    pub(crate) fn filter_mib(&self) -> f64 {
        self.with_mib - self.without_mib
    }
}

pub(crate) async fn measure(module: &Path, out: &Path) -> Result<Vec<Footprint>> {
    let mut footprints = Vec::new();
    for workers in WORKERS {
        let mut of = [0.0, 0.0];
        for (mib, variant) in of.iter_mut().zip([Variant::None, Variant::Shipped]) {
            let dir = folder(out, &format!("memory-{workers}-{variant:?}").to_lowercase())?;
            let plan = Plan { route: Route::Direct, variant, module: Some(module.to_path_buf()) };
            *mib = resident(&plan, workers, &dir).await.with_context(|| evidence(&dir))?;
        }
        let [without_mib, with_mib] = of;
        println!("  memory, {workers} workers: {without_mib:.1} MiB without the filter, {with_mib:.1} MiB with it");
        footprints.push(Footprint { workers, without_mib, with_mib });
    }
    Ok(footprints)
}

async fn resident(plan: &Plan, workers: u16, dir: &Path) -> Result<f64> {
    let mut gateway = Gateway::start(std::slice::from_ref(plan), workers, dir).await?;
    for listener in gateway.listeners.clone() {
        load::run(Protocol::H1, listener, WARM_UP).await?;
    }
    gateway.resident_mib()
}

/// The straight line through the measurements.
pub(crate) fn in_words(footprints: &[Footprint]) -> String {
    let points: Vec<(f64, f64)> =
        footprints.iter().map(|footprint| (f64::from(footprint.workers), footprint.filter_mib())).collect();
    let (at_zero, slope) = line(&points);
    format!("  about {at_zero:.0} MiB + {slope:.1} MiB for each worker")
}

/// Least squares.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len().max(1) as f64;
    let (mean_x, mean_y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let covariance: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    let variance: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
    let slope = if variance > 0.0 { covariance / variance } else { 0.0 };
    (mean_y - slope * mean_x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_line_is_found() {
        let (at_zero, slope) = line(&[(1.0, 12.5), (2.0, 15.0), (4.0, 20.0)]);
        assert!((at_zero - 10.0).abs() < 1e-9 && (slope - 2.5).abs() < 1e-9);
    }
}
