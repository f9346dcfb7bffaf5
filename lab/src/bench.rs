//! `softclose-lab bench`: what the filter costs a request, in CPU and memory, and how soon a flip is heard.
//!
//! CPU is what the kernel has counted for Envoy's process, not what a client feels: on a small machine a client's latency
//! says more about who else wants the processor. Everything is compared with the same listener without the filter, in
//! the same process and the same minute.

mod cpu;
pub(crate) mod gateway;
mod instructions;
pub(crate) mod load;
mod memory;
mod tables;
mod wake;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use self::cpu::Cell;
use self::gateway::{Plan, Route, Variant};
use self::instructions::Count;
use self::memory::Footprint;
use self::wake::Wake;
use crate::checks::Checks;
use crate::foreign::{VALGRIND, VGDB};
use crate::{Place, diagnostics, topology};

/// The most that the filter may cost a request that Envoy answers itself, and one that it passes on.
const DIRECT_LIMIT: f64 = 1.20;
const PROXIED_LIMIT: f64 = 1.10;
/// What is aimed at where Envoy answers itself.
const DIRECT_AIM: f64 = 1.15;
/// The most instructions that it may add to a request. Counted on Envoy 1.40.0: 8,100 to 8,300 where Envoy answers, 7,300 to
/// 10,100 where it passes on, because the timers of a slow process are counted as well. A change that goes past this costs a
/// gateway something, and has to say what for.
const DIRECT_INSTRUCTIONS: f64 = 9_000.0;
const PROXIED_INSTRUCTIONS: f64 = 12_000.0;
/// From the ledger's zero to the committed flip, 99 of 100.
const FLIP_P99_MS: f64 = 5.0;
/// Drains for the latencies.
const DRAINS: u32 = 1_000;
/// Pairs of loads for the processor time: the more, the surer.
const PAIRS: u32 = 25;
const PAIRS_FULL: u32 = 150;

/// How much is measured.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// More pairs of loads: for the processor time three quarters of an hour instead of seven minutes
    #[arg(long)]
    full: bool,
    /// Pairs of loads for each variant's processor time [default: 25, or 150 with --full]
    #[arg(long)]
    pairs: Option<u32>,
    /// The shipped module alone: neither one with all exports nor an empty one, nor a counter in Lua
    #[arg(long)]
    alone: bool,
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
    /// Instructions for each request, outside of the kernel: the same on any machine
    Instructions,
    /// What a worker more costs
    Memory,
    /// From zero to the flip, and from the flip to the last wait answered
    Latency,
}

/// What is compared.
pub(crate) struct Modules {
    /// The module that is shipped.
    shipped: PathBuf,
    /// What else can count, for comparison.
    others: Vec<(Variant, Option<PathBuf>)>,
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
    instructions: Vec<Count>,
    memory: Vec<Footprint>,
    wake: Option<Wake>,
}

/// True if the filter costs no more than promised.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    let out = args.place.folder()?;
    let pairs = args.pairs.unwrap_or(if args.full { PAIRS_FULL } else { PAIRS });
    load::are_there(&[load::H2LOAD])?;
    let modules = Modules::find(args.alone, &out)?;
    let before = load_average();
    println!("load average {before}");
    let seed = seed();
    let wanted = |part: Part| args.only.is_none_or(|only| only == part);
    let (mut cpu, mut counts, mut footprints, mut latencies) = (Vec::new(), Vec::new(), Vec::new(), None);
    if wanted(Part::Instructions) {
        VALGRIND.starts().await?;
        VGDB.starts().await?;
        let dir = folder(&out, "instructions")?;
        counts = instructions::measure(&modules, &dir).await.with_context(|| diagnostics::evidence(&dir))?;
        println!("\n{}\n", tables::instructions(&counts));
    }
    if wanted(Part::Cpu) {
        let dir = folder(&out, "cpu")?;
        cpu = cpu::measure(&modules, pairs, seed, &dir).await.with_context(|| diagnostics::evidence(&dir))?;
        println!("\n{}\n", tables::cpu(&cpu));
    }
    if wanted(Part::Memory) {
        footprints = memory::measure(&modules.shipped, &out).await?;
        println!("\n{}\n{}\n", tables::memory(&footprints), memory::in_words(&footprints));
    }
    if wanted(Part::Latency) {
        let dir = folder(&out, "wake")?;
        let measured = wake::measure(args.drains, &dir).await.with_context(|| diagnostics::evidence(&dir))?;
        println!("\n{}\n", tables::wake(&measured));
        latencies = Some(measured);
    }
    let report = Report {
        load_average: [before, load_average()],
        seed,
        module_bytes: std::fs::metadata(&modules.shipped)?.len(),
        cpu,
        instructions: counts,
        memory: footprints,
        wake: latencies,
    };
    println!("load average {}; module {} bytes", report.load_average.join(" before, after "), report.module_bytes);
    let path = out.join("bench.json");
    std::fs::write(&path, serde_json::to_string_pretty(&report)?)?;
    println!("{}", path.display());
    verdict(&report).finish(&out.join("checks.json"))
}

impl Modules {
    fn find(alone: bool, out: &Path) -> Result<Self> {
        let shipped = topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?;
        if alone {
            return Ok(Self { shipped, others: Vec::new() });
        }
        let all_exports = std::env::var_os("SOFTCLOSE_WASM_ALL").map(PathBuf::from);
        let all_exports = all_exports.and_then(|path| std::path::absolute(path).ok()).filter(|path| path.is_file());
        if all_exports.is_none() {
            println!("no module with all exports: `just bench` makes one and names it in SOFTCLOSE_WASM_ALL");
        }
        let empty = out.join("empty.wasm");
        let text = topology::root()?.join("testdata/envoy/empty.wat");
        std::fs::write(&empty, wat::parse_file(&text)?).with_context(|| format!("cannot write {}", empty.display()))?;
        let others = all_exports.into_iter().map(|module| (Variant::AllExports, Some(module)));
        let others = others.chain([(Variant::Empty, Some(empty)), (Variant::Lua, None)]).collect();
        Ok(Self { shipped, others })
    }
}

/// A listener for each variant on each route; of each route first that without a filter.
pub(crate) fn plans(modules: &Modules) -> Vec<Plan> {
    let mut variants = vec![(Variant::None, None), (Variant::Shipped, Some(modules.shipped.clone()))];
    variants.extend(modules.others.iter().cloned());
    Route::ALL
        .into_iter()
        .flat_map(|route| variants.iter().cloned().map(move |(variant, module)| Plan { route, variant, module }))
        .collect()
}

fn verdict(report: &Report) -> Checks {
    let mut checks = Checks::default();
    for cell in report.cpu.iter().filter(|cell| cell.variant == Variant::Shipped) {
        let (limit, aim) = match cell.route {
            Route::Direct => (DIRECT_LIMIT, format!(", aimed at {DIRECT_AIM}")),
            Route::Proxied => (PROXIED_LIMIT, String::new()),
            // The same work as passing on, and more besides it: shown, and held by what it has in common.
            Route::Edge => continue,
        };
        checks.check(
            cell.ratio.median <= limit,
            format!(
                "{}, {}: at most {limit} of the CPU without the filter{aim}",
                cell.route.name(),
                cell.protocol.name()
            ),
            format!("{:.3} (at 95 %: {})", cell.ratio.median, cell.sure_in_words()),
        );
    }
    for count in report.instructions.iter().filter(|count| count.variant == Variant::Shipped) {
        let limit = match count.route {
            Route::Direct => DIRECT_INSTRUCTIONS,
            Route::Proxied | Route::Edge => PROXIED_INSTRUCTIONS,
        };
        checks.check(
            count.more() <= limit,
            format!("{}, {}: at most {limit} instructions more", count.route.name(), count.protocol.name()),
            format!("{:.0}", count.more()),
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
