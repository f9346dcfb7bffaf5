//! The lab: real Envoy, real HAProxy, real curl, and stand-ins for kubelet, pilot-agent and the application. It shows
//! what a pod's deletion does to requests under way, in each mode, and measures what softclose promises.

mod agent;
mod backend;
mod balancer_checks;
mod bench;
mod busy;
mod capture;
mod cases;
mod chaos;
mod chart;
mod checks;
mod control;
mod curl;
mod demo;
mod deployed;
mod diagnostics;
mod envoy;
mod evidence;
mod fate;
mod flip;
mod foreign;
mod gate;
mod ground;
mod haproxy;
mod hc;
mod http;
mod istio;
mod kubelet;
mod manifest;
mod matrix;
mod mode;
mod network;
mod observe;
mod oracle;
mod out;
mod page;
mod played;
mod process;
mod report;
mod rollcall;
mod rollout;
mod run;
mod scenario;
mod soak;
mod soak_drain;
mod story;
mod timeline;
mod topology;
mod traffic;
mod verdict;
mod wait;
mod wall;
mod watch;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use crate::curl::Protocol;
use crate::foreign::{CURL, ENVOY, HAPROXY, Program};
use crate::mode::Mode;
use crate::network::Network;

/// Shows on one machine what a pod's deletion does to requests under way.
///
/// Needs envoy and haproxy (in PATH, or named in ENVOY_BIN and HAPROXY_BIN) and curl; mode softclose needs
/// dist/softclose.wasm and dist/softclose (or SOFTCLOSE_WASM and SOFTCLOSE_BIN). Loopback only, no root.
#[derive(Parser)]
#[command(name = "softclose-lab", version, max_term_width = 100)]
struct Cli {
    /// Envoy of this version, as `./run envoy VERSION` fetches it, instead of ENVOY_BIN
    #[arg(long, global = true, value_name = "VERSION")]
    envoy: Option<String>,
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
        /// How the gateway leaves; softclose if a preset is named
        #[arg(
            long,
            required_unless_present = "preset",
            default_value_if("preset", clap::builder::ArgPredicate::IsPresent, "softclose")
        )]
        mode: Option<Mode>,
        /// How many runs
        #[arg(long, default_value_t = 1)]
        repeat: u32,
        #[command(flatten)]
        busy: busy::Args,
        #[command(flatten)]
        options: Options,
    },
    /// One scenario in one mode, again and again: each run's failures, and the bound that so many runs allow
    Soak {
        /// How many runs
        runs: u32,
        /// Name of a file in testdata/scenarios
        scenario: String,
        #[arg(long, default_value = "softclose")]
        mode: Mode,
        #[command(flatten)]
        busy: busy::Args,
        #[command(flatten)]
        options: Options,
    },
    /// Modes x scenarios: what each loses, how long a pod takes to leave, and how much of that is wasted
    Matrix(matrix::Args),
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
    /// A pod's deletion with a fault in it, each by its name: what the client saw, what the preStop command said
    Chaos {
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
    /// Runs that lie in a folder as one HTML page
    Report(page::Args),
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
    /// The clients' protocols [default: the scenario's, or both]
    #[arg(long)]
    http: Option<Http>,
    /// Envoy's worker threads
    #[arg(long, default_value_t = 2)]
    concurrency: u16,
    /// Mode nlb-recipe: seconds, at full times, from the deletion until the load balancer sends the pod nothing new. AWS names
    /// no figure; users report 30 to 180
    #[arg(long, default_value_t = mode::NLB_LAG.as_secs())]
    nlb_lag: u64,
    /// Mode softclose: which of the shipped manifests
    #[arg(long, value_enum, default_value_t = deployed::Variant::Main)]
    variant: deployed::Variant,
    /// On a gateway as Istio configures it: TLS chains, h2, TCP and passthrough beside, and its rules for stats
    #[arg(long)]
    istio: bool,
    /// Where it runs [default: namespaces as root, loopback as anybody else]
    #[arg(long)]
    ground: Option<network::Kind>,
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
            Self::Demo(_)
            | Self::Run { .. }
            | Self::Soak { .. }
            | Self::Matrix(_)
            | Self::Chaos { list: false, .. } => &[ENVOY, HAPROXY, CURL],
            // A case that needs a balancer says so itself.
            Self::Cases { list: false, .. }
            | Self::Flip { .. }
            | Self::Workers { .. }
            | Self::Rollcall { .. }
            | Self::Control { .. }
            | Self::Bench(_)
            | Self::SoakDrain(_) => &[ENVOY],
            Self::Cases { list: true, .. }
            | Self::Chaos { list: true, .. }
            | Self::Chart { .. }
            | Self::Report(_)
            | Self::PilotAgent(_) => &[],
        }
    }
}

impl Options {
    fn scale(&self) -> &'static str {
        if self.full { "full" } else { "scaled" }
    }

    /// One run, told aloud.
    fn plan(&self, network: Arc<Network>, scenario: &scenario::Scenario, mode: Mode) -> run::Plan {
        let lag = std::time::Duration::from_secs(self.nlb_lag);
        run::Plan {
            network,
            scenario: scenario.clone(),
            scale: self.scale().to_owned(),
            mode,
            nlb_lag: scenario.scale(self.scale()).map_or(lag, |scale| scale.shrunk(lag)),
            protocols: self.protocols(scenario),
            concurrency: self.concurrency,
            deployed: deployed::Deployed { variant: self.variant, istio: self.istio },
            number: 1,
            aloud: true,
        }
    }

    /// The ground that was asked for; else namespaces where they can be had, else loopback.
    fn network(&self) -> Result<Arc<Network>> {
        let network = match self.ground {
            Some(kind) => Network::lay(kind)?,
            None if !rustix::process::geteuid().is_root() => Network::Loopback,
            None => Network::lay(network::Kind::Namespaces).unwrap_or_else(|error| {
                println!("no network namespaces, so on loopback and without a capture: {error:#}");
                Network::Loopback
            }),
        };
        Ok(Arc::new(network))
    }

    fn protocols(&self, scenario: &scenario::Scenario) -> Vec<Protocol> {
        match self.http {
            Some(Http::H1) => vec![Protocol::H1],
            Some(Http::H2) => vec![Protocol::H2],
            Some(Http::Both) => vec![Protocol::H1, Protocol::H2],
            None if scenario.protocols.is_empty() => vec![Protocol::H1, Protocol::H2],
            None => scenario.protocols.clone(),
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
    if let Some(error) = cli.envoy.as_deref().and_then(|version| foreign::choose_envoy(version).err()) {
        eprintln!("softclose-lab: {error:#}");
        return ExitCode::FAILURE;
    }
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
        Command::Run { scenario, mode, repeat, busy, options } => {
            soak(&scenario, mode.unwrap_or(Mode::Softclose), repeat, &busy, &options).await
        }
        Command::Soak { runs, scenario, mode, busy, options } => soak(&scenario, mode, runs, &busy, &options).await,
        Command::Matrix(args) => matrix::run(&args).await,
        Command::Flip { drains, improved_drains, place } => flip::run(drains, improved_drains, &place).await,
        Command::Workers { place } => workers::run(&place).await,
        Command::Rollcall { place } => rollcall::run(&place).await,
        Command::Control { place } => control::run(&place).await,
        Command::Cases { names, list, quick, place } => cases::run(&names, list, quick, &place).await,
        Command::Chaos { names, list, quick, place } => chaos::run(&names, list, quick, &place).await,
        Command::Bench(args) => bench::run(&args).await,
        Command::SoakDrain(args) => soak_drain::run(&args).await,
        Command::Chart { events } => draw(&events).map(|()| true),
        Command::Report(args) => page::run(&args).map(|()| true),
        Command::PilotAgent(args) => agent::run(args).await.map(|()| true),
    }
}

async fn soak(scenario: &str, mode: Mode, runs: u32, busy: &busy::Args, options: &Options) -> Result<bool> {
    if scenario.eq_ignore_ascii_case(busy::NAME) {
        return busy::soak(mode, runs, busy, options).await;
    }
    busy.unused().with_context(|| format!("scenario {scenario}"))?;
    soak::run(scenario, mode, runs, options).await
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
