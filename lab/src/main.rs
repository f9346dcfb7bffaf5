//! The lab: real Envoy, real HAProxy, real curl, and stand-ins for kubelet, pilot-agent and the application. It shows
//! what a pod's deletion does to requests under way, in each mode, and measures what softclose promises.

mod agent;
mod backend;
mod bench;
mod cases;
mod chart;
mod checks;
mod control;
mod curl;
mod demo;
mod diagnostics;
mod envoy;
mod flip;
mod foreign;
mod gate;
mod ground;
mod haproxy;
mod hc;
mod http;
mod kubelet;
mod manifest;
mod mode;
mod observe;
mod out;
mod process;
mod report;
mod rollcall;
mod run;
mod scenario;
mod soak;
mod soak_drain;
mod story;
mod timeline;
mod topology;
mod verdict;
mod wait;
mod watch;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use crate::curl::Protocol;
use crate::foreign::{CURL, ENVOY, HAPROXY, Program};
use crate::mode::Mode;

/// Shows on one machine what a pod's deletion does to requests under way.
///
/// Needs envoy and haproxy (in PATH, or named in ENVOY_BIN and HAPROXY_BIN) and curl; mode softclose needs
/// dist/softclose.wasm and dist/softclose (or SOFTCLOSE_WASM and SOFTCLOSE_BIN). Loopback only, no root.
#[derive(Parser)]
#[command(name = "softclose-lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The headline: scenario S1 in modes current, improved and softclose, side by side
    Demo(Options),
    /// One scenario in one mode; with --repeat a soak
    Run {
        /// Name of a file in testdata/scenarios
        scenario: String,
        #[arg(long)]
        mode: Mode,
        /// How many runs
        #[arg(long, default_value_t = 1)]
        repeat: u32,
        #[command(flatten)]
        options: Options,
    },
    /// How long the flip takes after the last request, by the gate's own stamps and from outside
    Flip {
        /// Drains in mode softclose
        #[arg(long, default_value_t = 200)]
        drains: u32,
        /// Drains in mode improved, which polls each second
        #[arg(long, default_value_t = 20)]
        improved_drains: u32,
        #[command(flatten)]
        place: Place,
    },
    /// Every worker answers alike, /wait is released across workers, requests on all workers are counted
    Workers {
        #[command(flatten)]
        place: Place,
    },
    /// An idle gateway drains at once; one that nobody counts is never called idle
    Rollcall {
        #[command(flatten)]
        place: Place,
    },
    /// Wrong calls get their 4xx and change nothing; bad configuration is refused or harmless
    Control {
        #[command(flatten)]
        place: Place,
    },
    /// Cases from the field on real Envoy, each by its name: counting, traps, drains, pushes, exposure, install order
    Cases {
        /// Those whose names begin so [default: all]
        names: Vec<String>,
        /// Names them and runs none
        #[arg(long)]
        list: bool,
        /// Only the short list, for each change
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        place: Place,
    },
    /// What the filter costs: CPU per request against no filter and others, memory per worker, latency of flip and wake
    Bench(bench::Args),
    /// Load, clients that go away and drain after drain; at the end nothing may be left over
    SoakDrain(soak_drain::Args),
    /// Draws runs below each other, as SVG on standard output
    Chart {
        /// events.json of each run
        #[arg(required = true)]
        events: Vec<PathBuf>,
    },
    /// The stand-in for Istio's agent
    #[command(hide = true)]
    PilotAgent(agent::Args),
}

/// How to run scenarios.
#[derive(clap::Args, Clone)]
pub(crate) struct Options {
    /// The field's times instead of a quarter of them
    #[arg(long)]
    full: bool,
    /// The clients' protocols
    #[arg(long, default_value = "both")]
    http: Http,
    /// Envoy's worker threads
    #[arg(long, default_value_t = 2)]
    concurrency: u16,
    #[command(flatten)]
    place: Place,
}

/// Where the evidence goes.
#[derive(clap::Args, Clone)]
pub(crate) struct Place {
    /// Folder for logs, events and timelines [default: a new one in lab-runs]
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Http {
    H1,
    H2,
    Both,
}

impl Command {
    /// Programs of others without which nothing of the command works.
    fn needs(&self) -> &'static [Program] {
        match self {
            Self::Demo(_) | Self::Run { .. } => &[ENVOY, HAPROXY, CURL],
            // A case that needs a balancer says so itself.
            Self::Cases { list: false, .. }
            | Self::Flip { .. }
            | Self::Workers { .. }
            | Self::Rollcall { .. }
            | Self::Control { .. }
            | Self::Bench(_)
            | Self::SoakDrain(_) => &[ENVOY],
            Self::Cases { list: true, .. } | Self::Chart { .. } | Self::PilotAgent(_) => &[],
        }
    }
}

impl Options {
    fn scale(&self) -> &'static str {
        if self.full { "full" } else { "scaled" }
    }

    fn protocols(&self) -> Vec<Protocol> {
        match self.http {
            Http::H1 => vec![Protocol::H1],
            Http::H2 => vec![Protocol::H2],
            Http::Both => vec![Protocol::H1, Protocol::H2],
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("softclose-lab: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(interruptible(cli.command)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("softclose-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// True if everything was as promised.
async fn dispatch(command: Command) -> Result<bool> {
    for program in command.needs() {
        program.starts().await?;
    }
    match command {
        Command::Demo(options) => demo::run(&options).await,
        Command::Run { scenario, mode, repeat, options } => soak::run(&scenario, mode, repeat, &options).await,
        Command::Flip { drains, improved_drains, place } => flip::run(drains, improved_drains, &place).await,
        Command::Workers { place } => workers::run(&place).await,
        Command::Rollcall { place } => rollcall::run(&place).await,
        Command::Control { place } => control::run(&place).await,
        Command::Cases { names, list, quick, place } => cases::run(&names, list, quick, &place).await,
        Command::Bench(args) => bench::run(&args).await,
        Command::SoakDrain(args) => soak_drain::run(&args).await,
        Command::Chart { events } => draw(&events).map(|()| true),
        Command::PilotAgent(args) => agent::run(args).await.map(|()| true),
    }
}

fn draw(events: &[PathBuf]) -> Result<()> {
    let read = |path: &PathBuf| -> Result<run::Record> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no record of a run", path.display()))
    };
    let records = events.iter().map(read).collect::<Result<Vec<_>>>()?;
    print!("{}", chart::stacked(&records));
    Ok(())
}

/// Ends early on ctrl-c and SIGTERM; dropping the work kills every process that it started. To the agent SIGTERM means
/// something else.
async fn interruptible(command: Command) -> Result<bool> {
    if let Command::PilotAgent(args) = command {
        return agent::run(args).await.map(|()| true);
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        ended = dispatch(command) => ended,
        _signal = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _signal = terminate.recv() => Err(anyhow::anyhow!("terminated")),
    }
}
