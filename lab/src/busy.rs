//! The busy gateway: two pods under a load that never pauses, of which one is deleted, in front of each balancer that people have.
//!
//! ```text
//! testdata/scenarios/busy.yaml --Scenario--> play --Departure of each pod that leaves, Fates, HAProxy's log--> Record
//!                                              Record --verdict--> complaints: not busy, not as promised, not true
//! ```

mod departure;
mod log;
mod matrix;
mod play;
mod record;
mod scenario;
mod verdict;
mod world;

use std::path::Path;

use anyhow::{Result, bail, ensure};
use softclose_fsm::Preset;

use self::play::Plan;
use self::record::Record;
use self::scenario::Scenario;
use self::world::World;
use crate::curl::Protocol;
use crate::haproxy::Reuse;
use crate::mode::Mode;
use crate::soak::{GROUND_LIMIT, ground_share};
use crate::{Http, Options, report, traffic};

pub(crate) use self::matrix::matrix;
pub(crate) use self::scenario::{NAME, Rate};

/// What the scenario busy takes beside what every scenario does.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Args {
    /// Scenario busy: softclose's preset, haproxy, haproxy-soft, haproxy-retry or nlb [default: haproxy]
    #[arg(long, value_parser = world::parse_preset)]
    preset: Option<Preset>,
    /// Scenario busy: how the balancer is configured [default: as the preset wants it, else plain]
    #[arg(long)]
    world: Option<World>,
    /// Scenario busy: requests a second [default: medium]
    #[arg(long)]
    rate: Option<Rate>,
    /// Scenario busy: HAProxy's http-reuse [default: safe]
    #[arg(long)]
    reuse: Option<Reuse>,
    /// Scenario busy: pods, 1 to 3 [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=3))]
    replicas: Option<u8>,
    /// Scenario busy: how many of them are deleted, all at once [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2))]
    leaving: Option<u8>,
}

/// A run is repeated this often at most when its ground failed.
const GROUND_RETRIES: u32 = 3;

impl Args {
    /// An error if a flag is given that only the scenario busy has.
    pub(crate) fn unused(&self) -> Result<()> {
        let Self { preset, world, rate, reuse, replicas, leaving } = self;
        let given = [
            ("preset", preset.is_some()),
            ("world", world.is_some()),
            ("rate", rate.is_some()),
            ("reuse", reuse.is_some()),
            ("replicas", replicas.is_some()),
            ("leaving", leaving.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => bail!("--{flag} is for the scenario {NAME} alone"),
            None => Ok(()),
        }
    }

    fn plan(&self, mode: Mode, options: &Options) -> Result<Plan> {
        let preset = self.preset.unwrap_or(Preset::Haproxy);
        ensure!(
            mode == Mode::Softclose || self.preset.is_none(),
            "--preset is softclose's, and the mode is {}",
            mode.name()
        );
        let (replicas, leaving) = (self.replicas.unwrap_or(2), self.leaving.unwrap_or(1));
        ensure!(leaving <= replicas, "--leaving is {leaving}, must be at most the {replicas} of --replicas");
        let own = if mode == Mode::Softclose { World::of(preset) } else { World::Plain };
        Ok(Plan {
            network: options.network()?,
            scenario: Scenario::read()?,
            full: options.full,
            rate: self.rate.unwrap_or_default(),
            protocol: match options.http {
                Some(Http::H1) => Some(Protocol::H1),
                Some(Http::H2) => Some(Protocol::H2),
                Some(Http::Both) | None => None,
            },
            mode,
            preset,
            world: self.world.unwrap_or(own),
            reuse: self.reuse.unwrap_or_default(),
            replicas,
            leaving,
            concurrency: options.concurrency,
            number: 1,
            aloud: true,
        })
    }
}

/// Runs it so often; true if every run was busy, as promised and true.
pub(crate) async fn soak(mode: Mode, runs: u32, args: &Args, options: &Options) -> Result<bool> {
    let out = options.place.folder()?;
    let plan = Plan { aloud: runs <= 1, ..args.plan(mode, options)? };
    println!("{NAME}, {} times: {}", plan.scale(), plan.scenario.title);
    let mut records = Vec::new();
    let (mut unfit, mut ground_failures) = (0, 0);
    for number in 1..=runs.max(1) {
        let dir = if runs <= 1 { out.clone() } else { out.join(format!("{number:03}")) };
        let (record, failed) = on_firm_ground(&Plan { number, ..plan.clone() }, &dir).await?;
        ground_failures += failed;
        let complaints = record.complaints();
        println!("run {number:>3} of {runs}: {}", line(&record));
        tell(&record, &complaints, &dir);
        unfit += u32::from(!complaints.is_empty());
        records.push(record);
    }
    println!("\n{}", report::table(&rows(&records)));
    if let [only] = records.as_slice() {
        println!("\n{}", traffic::table(&only.summary));
    }
    let requests: usize = records.iter().map(|record| record.requests).sum();
    let failures: usize = records.iter().map(|record| record.failures().count()).sum();
    let doubled: usize = records.iter().map(|record| record.doubled.len()).sum();
    let played = u32::try_from(records.len()).unwrap_or(u32::MAX);
    let share = ground_share(played, ground_failures);
    println!(
        "\n{played} runs, {requests} requests: {failures} failures, {doubled} doubles; {unfit} runs not as promised; \
         {ground_failures} ground failures ({:.0} %, of many runs at most {:.0} %)",
        100.0 * share,
        100.0 * GROUND_LIMIT
    );
    println!("evidence: {}", out.display());
    // One run that had to be repeated says nothing about a share.
    Ok(unfit == 0 && (played <= 1 || share <= GROUND_LIMIT))
}

/// Runs until the ground held; with what was played, how often it did not.
async fn on_firm_ground(plan: &Plan, dir: &Path) -> Result<(Record, u32)> {
    for failed in 0..=GROUND_RETRIES {
        let dir = match failed {
            0 => dir.to_path_buf(),
            again => dir.with_extension(format!("rerun-{again}")),
        };
        match play::run(plan, &dir).await {
            Ok(record) if record.ground_failure() => {
                println!("  ground failure: HAProxy DOWN before health failed, evidence in {}", dir.display());
            }
            // A machine that did not bear the load measures itself. The last try stands as it is, and is complained of.
            Ok(record) if !record.unfit().is_empty() && failed < GROUND_RETRIES => {
                println!("  ground failure: {}; evidence in {}", record.unfit().join("; "), dir.display());
            }
            Ok(record) => return Ok((record, failed)),
            Err(error) if failed < GROUND_RETRIES => println!("  ground failure: {error:#}"),
            Err(error) => return Err(error),
        }
    }
    bail!("the ground failed {} times in a row; is this machine very busy?", GROUND_RETRIES + 1)
}

/// Failures are told one by one up to here; all are in the record.
const TOLD: usize = 12;

fn tell(record: &Record, complaints: &[String], dir: &Path) {
    for complaint in complaints {
        println!("      NOT AS PROMISED: {complaint}");
    }
    for lost in record.lost.iter().take(TOLD) {
        println!("      lost: {lost}");
    }
    if record.lost.len() > TOLD {
        println!("      and {} more, in {}", record.lost.len() - TOLD, dir.join("busy.json").display());
    }
}

fn line(record: &Record) -> String {
    let said = record.departures.iter().map(|gone| match &gone.said {
        Some(said) => said.message.clone(),
        None => format!("preStop exit {:?}", gone.deletion.pre_stop_exit),
    });
    let (lost, requests) = (record.failures().count(), record.requests);
    format!("{lost} of {requests} lost, {} doubled; {}", record.doubled.len(), said.collect::<Vec<_>>().join("; "))
}

/// Runs in a table.
pub(crate) fn rows(records: &[Record]) -> Vec<Vec<String>> {
    let head = [
        "mode",
        "balancer",
        "reuse",
        "http",
        "rate",
        "reached",
        "requests",
        "failed",
        "doubled",
        "retries",
        "redisp.",
        "in flight at 5",
        "cut at most",
        "exit",
        "s to exit",
        "CPU s",
    ];
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    rows.extend(records.iter().map(row));
    rows
}

fn row(record: &Record) -> Vec<String> {
    let each = |of: &dyn Fn(&departure::Departure) -> Option<String>| {
        let words = record.departures.iter().map(|gone| of(gone).unwrap_or_else(|| "-".to_owned()));
        words.collect::<Vec<_>>().join(" / ")
    };
    let by_word = record.failures_by_word();
    let words: Vec<String> = by_word.iter().map(|(word, count)| format!("{count} {word}")).collect();
    let failed = match record.failures().count() {
        0 => "0".to_owned(),
        count => format!("{count}: {}", words.join(", ")),
    };
    vec![
        record.way(),
        record.world.name().to_owned(),
        record.reuse.name().to_owned(),
        record.protocol.map_or("both", Protocol::name).to_owned(),
        record.rate.name().to_owned(),
        record.rates().map_or("-".to_owned(), |(reached, _)| format!("{reached:.0}/s")),
        record.requests.to_string(),
        failed,
        record.doubled.len().to_string(),
        record.retries.retries.to_string(),
        record.retries.redispatches.to_string(),
        each(&|gone| gone.in_flight_at_down.map(|count| count.to_string())),
        each(&|gone| {
            let said = gone.said.as_ref()?;
            Some(said.cut_at_most.map_or("unknown".to_owned(), |count| count.to_string()))
        }),
        each(&|gone| gone.deletion.pre_stop_exit.map(|code| code.to_string())),
        format!("{:.1}", record.seconds_to_exit()),
        format!("{:.2}", record.cpu_s()),
    ]
}
