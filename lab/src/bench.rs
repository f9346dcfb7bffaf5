//! `softclose-lab bench`: what the filter costs a request, in CPU and memory, and how soon a flip is heard.
//!
//! CPU is what the kernel has counted for Envoy's process, not what a client feels: on a small machine a client's latency
//! says more about who else wants the processor. Everything is compared with the same listener without the filter, in
//! the same process and the same minute.

mod cpu;
pub(crate) mod gateway;
pub(crate) mod load;
mod memory;
mod wake;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use self::cpu::Cell;
use self::gateway::{Route, Variant};
use self::memory::Footprint;
use self::wake::Wake;
use crate::checks::Checks;
use crate::{Place, diagnostics, report, topology};

/// The most that the filter may cost a request that Envoy answers itself, and one that it passes on.
const DIRECT_LIMIT: f64 = 1.20;
const PROXIED_LIMIT: f64 = 1.10;
/// What is aimed at where Envoy answers itself.
const DIRECT_AIM: f64 = 1.15;
/// From the ledger's zero to the committed flip, 99 of 100.
const FLIP_P99_MS: f64 = 5.0;
/// Drains for the latencies.
const DRAINS: u32 = 1_000;

/// How much is measured.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// More and longer rounds: about twenty minutes instead of four
    #[arg(long)]
    full: bool,
    /// How often each variant is loaded [default: 7, or 31 with --full]
    #[arg(long)]
    rounds: Option<u32>,
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
    /// Drains for the latencies
    #[arg(long, default_value_t = DRAINS)]
    drains: u32,
    #[command(flatten)]
    place: Place,
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Processor time for each request
    Cpu,
    /// What a worker more costs
    Memory,
    /// From zero to the flip, and from the flip to the last wait answered
    Latency,
}

/// How long each part lasts.
pub(crate) struct Effort {
    /// How often each variant is loaded.
    pub(crate) rounds: u32,
    /// One load of one variant.
    pub(crate) load: Duration,
    /// Drains for the latencies.
    pub(crate) drains: u32,
}

/// All that was measured.
#[derive(Serialize)]
struct Report {
    /// Load averages before the first round and after the last: a busy machine makes wider quartiles.
    load_average: [String; 2],
    /// Of the order of the variants.
    seed: u64,
    module_bytes: u64,
    cpu: Vec<Cell>,
    memory: Vec<Footprint>,
    wake: Option<Wake>,
}

/// True if the filter costs no more than promised.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    let out = args.place.folder()?;
    let effort = match args.full {
        true => Effort { rounds: args.rounds.unwrap_or(31), load: Duration::from_secs(2), drains: args.drains },
        false => Effort { rounds: args.rounds.unwrap_or(7), load: Duration::from_secs(1), drains: args.drains },
    };
    load::tools_are_there()?;
    let module = topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?;
    let all_exports = all_exports();
    let before = load_average();
    println!("load average {before}");
    let seed = seed();
    let wanted = |part: Part| args.only.is_none_or(|only| only == part);
    let (mut cpu, mut footprints, mut latencies) = (Vec::new(), Vec::new(), None);
    if wanted(Part::Cpu) {
        cpu = measure_cpu(&module, all_exports.as_deref(), &effort, seed, &out).await?;
        println!("\n{}\n", cpu_table(&cpu));
    }
    if wanted(Part::Memory) {
        footprints = memory::measure(&module, &out).await?;
        println!("\n{}\n{}\n", memory_table(&footprints), memory::in_words(&footprints));
    }
    if wanted(Part::Latency) {
        let dir = folder(&out, "wake")?;
        let measured = wake::measure(effort.drains, &dir).await.with_context(|| diagnostics::evidence(&dir))?;
        println!("\n{}\n", wake_table(&measured));
        latencies = Some(measured);
    }
    let report = Report {
        load_average: [before, load_average()],
        seed,
        module_bytes: std::fs::metadata(&module)?.len(),
        cpu,
        memory: footprints,
        wake: latencies,
    };
    println!("load average {}; module {} bytes", report.load_average.join(" before, after "), report.module_bytes);
    let path = out.join("bench.json");
    std::fs::write(&path, serde_json::to_string_pretty(&report)?)?;
    println!("{}", path.display());
    verdict(&report).finish(&out.join("checks.json"))
}

async fn measure_cpu(
    module: &Path,
    all_exports: Option<&Path>,
    effort: &Effort,
    seed: u64,
    out: &Path,
) -> Result<Vec<Cell>> {
    if all_exports.is_none() {
        println!("no module with all exports: `just bench` makes one and names it in SOFTCLOSE_WASM_ALL");
    }
    let dir = folder(out, "cpu")?;
    cpu::measure(module, all_exports, effort, seed, &dir).await.with_context(|| diagnostics::evidence(&dir))
}

fn verdict(report: &Report) -> Checks {
    let mut checks = Checks::default();
    for cell in report.cpu.iter().filter(|cell| cell.variant == Variant::Shipped) {
        let limit = match cell.route {
            Route::Direct => DIRECT_LIMIT,
            Route::Proxied => PROXIED_LIMIT,
        };
        let aim = match cell.route {
            Route::Direct => format!(", aimed at {DIRECT_AIM}"),
            Route::Proxied => String::new(),
        };
        checks.check(
            cell.ratio.median <= limit,
            format!(
                "{}, {}: at most {limit} of the CPU without the filter{aim}",
                cell.route.name(),
                cell.protocol.name()
            ),
            format!("{:.3}", cell.ratio.median),
        );
    }
    if let Some(wake) = &report.wake {
        let p99 = wake.flip_ms.map_or(f64::INFINITY, |flip| flip.p99);
        checks.check(
            p99 < FLIP_P99_MS,
            format!("99 of 100 flips within {FLIP_P99_MS} ms of the ledger's zero"),
            format!("{p99:.3} ms"),
        );
    }
    checks
}

fn cpu_table(cells: &[Cell]) -> String {
    let head =
        ["route", "protocol", "variant", "us/request", "ratio", "quartiles", "of the least", "pairs", "requests"];
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for cell in cells {
        let baseline = cell.variant == Variant::None;
        let unless_baseline = |text: String| if baseline { "-".to_owned() } else { text };
        rows.push(vec![
            cell.route.name().to_owned(),
            cell.protocol.name().to_owned(),
            cell.variant.name().to_owned(),
            format!("{:.2} ({:.2}-{:.2})", cell.us.median, cell.us.q1, cell.us.q3),
            unless_baseline(format!("{:.3}", cell.ratio.median)),
            unless_baseline(format!("{:.3}-{:.3}", cell.ratio.q1, cell.ratio.q3)),
            unless_baseline(format!("{:.3}", cell.least_ratio)),
            cell.pairs.to_string(),
            cell.requests.to_string(),
        ]);
    }
    report::table(&rows)
}

fn memory_table(footprints: &[Footprint]) -> String {
    let mut rows = vec![vec!["workers".to_owned(), "without MiB".into(), "with MiB".into(), "filter MiB".into()]];
    for footprint in footprints {
        let figures = [footprint.without_mib, footprint.with_mib, footprint.filter_mib()];
        let figures = figures.map(|figure| format!("{figure:.1}"));
        rows.push([footprint.workers.to_string()].into_iter().chain(figures).collect());
    }
    report::table(&rows)
}

fn wake_table(wake: &Wake) -> String {
    let head = ["latency", "n", "p50 ms", "p99 ms", "max ms"];
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
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

/// The same module before its unneeded exports were removed; only a comparison, so it may be missing.
fn all_exports() -> Option<PathBuf> {
    let path = std::env::var_os("SOFTCLOSE_WASM_ALL").map(PathBuf::from)?;
    std::path::absolute(path).ok().filter(|path| path.is_file())
}

fn folder(out: &Path, name: &str) -> Result<PathBuf> {
    let dir = out.join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| u64::from(since.subsec_nanos()) | 1)
}
