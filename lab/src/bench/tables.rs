//! The measurements as people read them.

use super::cpu::{Cell, Quartiles};
use super::gateway::Variant;
use super::instructions::Count;
use super::memory::Footprint;
use super::wake::Wake;
use crate::report;

pub(crate) fn cpu(cells: &[Cell]) -> String {
    let mut rows =
        head(&["route", "protocol", "variant", "us without", "us with", "ratio", "95 %", "quartiles", "pairs"]);
    for cell in cells {
        let us = |figure: Quartiles| format!("{:.1} ({:.1}-{:.1})", figure.median, figure.q1, figure.q3);
        rows.push(vec![
            cell.route.name().to_owned(),
            cell.protocol.name().to_owned(),
            cell.variant.name().to_owned(),
            us(cell.without_us),
            us(cell.us),
            format!("{:.3}", cell.ratio.median),
            cell.sure_in_words(),
            format!("{:.3}-{:.3}", cell.ratio.q1, cell.ratio.q3),
            cell.pairs_us.len().to_string(),
        ]);
    }
    report::table(&rows)
}

pub(crate) fn instructions(counts: &[Count]) -> String {
    let mut rows = head(&["route", "protocol", "variant", "instructions", "more", "ratio"]);
    for count in counts {
        let baseline = count.variant == Variant::None;
        let unless_baseline = |text: String| if baseline { "-".to_owned() } else { text };
        rows.push(vec![
            count.route.name().to_owned(),
            count.protocol.name().to_owned(),
            count.variant.name().to_owned(),
            format!("{:.0}", count.instructions),
            unless_baseline(format!("{:.0}", count.more())),
            unless_baseline(format!("{:.3}", count.ratio())),
        ]);
    }
    report::table(&rows)
}

pub(crate) fn memory(footprints: &[Footprint]) -> String {
    let mut rows = head(&["workers", "without MiB", "with MiB", "filter MiB"]);
    for footprint in footprints {
        let figures = [footprint.without_mib, footprint.with_mib, footprint.filter_mib()];
        let figures = figures.map(|figure| format!("{figure:.1}"));
        rows.push([footprint.workers.to_string()].into_iter().chain(figures).collect());
    }
    report::table(&rows)
}

pub(crate) fn wake(wake: &Wake) -> String {
    let mut rows = head(&["latency", "n", "p50 ms", "p99 ms", "max ms"]);
    let lines = [
        ("flip: the ledger's zero to the committed flip, own stamps", wake.flip_ms),
        ("wake: the committed flip to the last /wait answer received, all workers", wake.wake_ms),
        ("both: the client's last byte to the last /wait answer received", wake.outside_ms),
    ];
    for (what, quantiles) in lines {
        if let Some(q) = quantiles {
            let figures = [q.p50, q.p99, q.max].map(|figure| format!("{figure:.3}"));
            rows.push([what.to_owned(), q.n.to_string()].into_iter().chain(figures).collect());
        }
    }
    report::table(&rows)
}

fn head(columns: &[&str]) -> Vec<Vec<String>> {
    vec![columns.iter().map(ToString::to_string).collect()]
}
