//! Instructions per request: what Envoy's process executes outside of the kernel, as valgrind counts it. How fast the machine
//! is and who else wants it changes nothing there, so that a few hundred instructions more for a request are seen at once.
//! It is not time: one that misses every cache costs as much as one that misses none.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::process::Command;

use super::gateway::{Gateway, Listener, Route, Variant};
use super::load::{self, Protocol};
use super::{Modules, plans};
use crate::foreign::{VALGRIND, VGDB};

/// V8 has compiled anew what is hot long before that: more of it changes no count.
const WARM_UP: u64 = 8_000;
/// Many beside the opening of the connections.
const COUNTED: u64 = 2_000;
/// What valgrind writes, each time it is asked, with a number behind.
const DUMP: &str = "instructions";

/// One variant on one route over one protocol.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Count {
    pub(crate) route: Route,
    pub(crate) protocol: Protocol,
    pub(crate) variant: Variant,
    /// Instructions for a request.
    pub(crate) instructions: f64,
    /// So many of them are there without the filter as well.
    pub(crate) without: f64,
}

impl Count {
    /// What the filter adds.
    pub(crate) fn more(&self) -> f64 {
        self.instructions - self.without
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.instructions / self.without
    }
}

/// Valgrind in front of a command: it counts nothing until it is told to.
pub(crate) fn counted(command: &Command, dir: &Path) -> Command {
    let mut valgrind = Command::new(VALGRIND.path());
    // V8 writes code and changes it.
    valgrind.args(["--tool=callgrind", "--instr-atstart=no", "--smc-check=all-non-file"]);
    valgrind.arg(format!("--callgrind-out-file={}", dir.join(DUMP).display()));
    valgrind.arg(command.as_std().get_program()).args(command.as_std().get_args());
    valgrind
}

pub(crate) async fn measure(modules: &Modules, dir: &Path) -> Result<Vec<Count>> {
    let mut gateway = Gateway::start_counted(&plans(modules), dir).await?;
    let listeners = gateway.listeners.clone();
    println!("instructions per request: {} listeners, 2 protocols", listeners.len());
    let mut dumps = 0;
    let mut counts: Vec<Count> = Vec::new();
    for protocol in Protocol::ALL {
        // Without a filter comes first of each route.
        for listener in &listeners {
            dumps += 1;
            let dump = dir.join(format!("{DUMP}.{dumps}"));
            let instructions = count(&mut gateway, protocol, *listener, &dump).await?;
            let alone = listener.variant == Variant::None;
            let without = if alone { instructions } else { baseline(&counts, *listener, protocol)? };
            let (route, variant) = (listener.route, listener.variant);
            counts.push(Count { route, protocol, variant, instructions, without });
        }
    }
    gateway.has_counted_all().await?;
    counts.sort_by_key(|count| (count.route as u8, count.protocol as u8));
    Ok(counts)
}

/// What a request of the same route and protocol takes without a filter.
fn baseline(counts: &[Count], listener: Listener, protocol: Protocol) -> Result<f64> {
    let wanted = (listener.route, protocol, Variant::None);
    let baseline = counts.iter().find(|count| (count.route, count.protocol, count.variant) == wanted);
    Ok(baseline.context("nothing was counted without a filter")?.instructions)
}

async fn count(gateway: &mut Gateway, protocol: Protocol, listener: Listener, dump: &PathBuf) -> Result<f64> {
    load::run(protocol, listener, WARM_UP).await?;
    let envoy = gateway.envoy_id();
    tell(envoy, &["instrumentation", "on"]).await?;
    tell(envoy, &["zero"]).await?;
    load::run(protocol, listener, COUNTED).await?;
    tell(envoy, &["dump"]).await?;
    tell(envoy, &["instrumentation", "off"]).await?;
    let text = std::fs::read_to_string(dump).with_context(|| format!("cannot read {}", dump.display()))?;
    let total = text.lines().rev().find_map(|line| line.strip_prefix("totals: ")).context("a dump without totals")?;
    let total: f64 = total.trim().parse().with_context(|| format!("totals: {total}"))?;
    ensure!(total > 0.0, "valgrind counted nothing");
    Ok(total / COUNTED as f64)
}

/// Tells the valgrind around a process something.
async fn tell(pid: i32, words: &[&str]) -> Result<()> {
    let mut vgdb = Command::new(VGDB.path());
    vgdb.arg(format!("--pid={pid}")).args(words);
    let output = vgdb.output().await.context("cannot start vgdb")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "vgdb {}: {}", words.join(" "), said.trim());
    Ok(())
}
