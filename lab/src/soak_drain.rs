//! `softclose-lab soak-drain`: load, clients that go away, and drain after drain; at the end nothing may be left over.

mod clients;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::clients::Clients;
use crate::backend::Backend;
use crate::bench::gateway::{Gateway, Listener, Plan, Route, Variant};
use crate::bench::load;
use crate::checks::Checks;
use crate::envoy::Admin;
use crate::gate::{Gate, number, text};
use crate::haproxy::Api;
use crate::network::{Network, Pod};
use crate::{Place, diagnostics, topology, wait};

const WORKERS: u16 = 2;
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// In a drain this short some end at zero between two loads and some at their deadline.
const DEADLINE_MS: u32 = 700;
/// A hold that no lab is too slow for: what has become CLOSED cannot be reopened.
const LONG_HOLD: &str = "&hold_min_ms=600000&hold_max_ms=600000";
/// For what is still under way when the load ends.
const LAST_REQUESTS: Duration = Duration::from_secs(15);

/// How long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Minutes of load
    #[arg(long, default_value_t = 10)]
    minutes: u32,
    #[command(flatten)]
    place: Place,
}

/// How the drains ended.
#[derive(Default)]
struct Drains {
    clean: u32,
    at_deadline: u32,
    reopened: u32,
    by_command: u32,
}

/// True if ledger and Envoy agree on nothing in flight, every request was counted, and no VM fell.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    let out = args.place.folder()?;
    load::are_there(&[load::WRK, load::H2LOAD])?;
    let mut checks = Checks::default();
    soak(args.minutes, &out, &mut checks).await.with_context(|| diagnostics::evidence(&out))?;
    checks.finish(&out.join("soak-drain.json"))
}

async fn soak(minutes: u32, out: &Path, checks: &mut Checks) -> Result<()> {
    let module = topology::artifact("SOFTCLOSE_WASM", "softclose.wasm")?;
    let plan = Plan { route: Route::Proxied, variant: Variant::Shipped, module: Some(module) };
    let mut gateway = Gateway::start(&[plan], WORKERS, out).await?;
    let _slow_application = Backend::start(Network::Loopback.application())?;
    let listener = gateway.listeners.first().copied().context("no listener")?;
    let memory_before = gateway.resident_mib()?;
    println!("{minutes} min: wrk, h2load (every third one killed), clients that go away, drain after drain");
    let clients = Clients::start(listener.port);
    let began = Instant::now();
    let ends = began + Duration::from_secs(u64::from(minutes) * 60);
    let (mut drains, mut told) = (Drains::default(), began);
    while Instant::now() < ends {
        drains.one().await?;
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            progress(&mut gateway, listener, began, &drains, &clients).await?;
        }
    }
    let left_early = clients.gone();
    drop(clients);
    diagnostics::collect(&Pod::only(), Api::default(), out, "end-of-load").await;
    afterwards(&mut gateway, listener, checks).await?;
    let sum = format!(
        "{} clean, {} at their deadline, {} reopened, {} by close-lb",
        drains.clean, drains.at_deadline, drains.reopened, drains.by_command
    );
    checks.check(drains.clean > 0 && drains.at_deadline > 0, "drains ended in every way", sum);
    checks.check(left_early > 0, "clients went away in mid-request", left_early.to_string());
    println!("        memory {memory_before:.0} MiB before, {:.0} MiB after", gateway.resident_mib()?);
    no_vm_fell(out, checks).await
}

impl Drains {
    /// One drain, ended in turn by itself, by reopening, and by the operator; always undone.
    async fn one(&mut self) -> Result<()> {
        let gate = Gate::new();
        let number = self.clean + self.at_deadline + self.reopened + self.by_command;
        match number % 4 {
            0 | 1 => {
                gate.command(&format!("/drain?settle_ms=0&deadline_ms={DEADLINE_MS}{LONG_HOLD}")).await?;
                let answer = gate.send("GET", "/wait?for=closing&timeout_ms=15000", "").await.context("GET /wait")?;
                let state = answer.state().unwrap_or_default().to_owned();
                match state.as_str() {
                    "CLOSING" => self.clean += 1,
                    "FAULT" => self.at_deadline += 1,
                    // Distrust releases a wait as well; the drain then ends at its deadline.
                    _ => {
                        let status = gate.reaches("FAULT", Duration::from_secs(5)).await?;
                        anyhow::bail!("a drain was distrusted: {status}");
                    }
                }
            }
            2 => {
                gate.command(&format!("/drain?settle_ms=60000{LONG_HOLD}")).await?;
                wait::pace_until(Instant::now() + Duration::from_millis(200)).await;
                self.reopened += 1;
            }
            _ => {
                gate.command(&format!("/drain?settle_ms=60000{LONG_HOLD}")).await?;
                let waiting = tokio::spawn(async move { gate.send("GET", "/wait?for=closing", "").await });
                gate.command("/close-lb").await?;
                waiting.await?.context("GET /wait")?;
                self.by_command += 1;
            }
        }
        gate.command("/reopen").await?;
        // In OPEN the load is counted without the record; some of the time has to be that.
        wait::pace_until(Instant::now() + Duration::from_millis(300)).await;
        Ok(())
    }
}

async fn progress(
    gateway: &mut Gateway,
    listener: Listener,
    began: Instant,
    drains: &Drains,
    clients: &Clients,
) -> Result<()> {
    let status = Gate::new().status().await?;
    println!(
        "  {:4.0} s  {:9} requests  {:4} in flight  {:3} clean, {:3} at deadline, {:3} reopened, {:3} close-lb  {:6} went \
         away  {:.0} MiB",
        began.elapsed().as_secs_f64(),
        gateway.requests(listener).await?,
        number(&status, "/active").unwrap_or_default(),
        drains.clean,
        drains.at_deadline,
        drains.reopened,
        drains.by_command,
        clients.gone(),
        gateway.resident_mib()?,
    );
    Ok(())
}

/// Both counts when nobody asks for anything any more.
async fn afterwards(gateway: &mut Gateway, listener: Listener, checks: &mut Checks) -> Result<()> {
    let idle = async || {
        let active = gateway.stat(listener, "downstream_rq_active").await.ok()?;
        (active == 0).then_some(())
    };
    let envoy_idle = wait::until("Envoy has no request in flight", LAST_REQUESTS, idle).await;
    let active = gateway.stat(listener, "downstream_rq_active").await?;
    checks.check(envoy_idle.is_ok(), "Envoy's own downstream_rq_active is 0", active.to_string());
    let gate = Gate::new();
    // In OPEN a worker pays a second after the last end.
    let paid = async || gate.status().await.ok().filter(|status| number(status, "/active") == Some(0)).map(|_| ());
    let paid = wait::until("the ledger is 0", Duration::from_secs(3), paid).await;
    let status = gate.status().await?;
    checks.check(paid.is_ok(), "the ledger is 0", format!("{:?}", number(&status, "/active")));
    // A drain has every worker report what it has counted; and an idle gateway must be believed to be idle.
    gate.command("/drain?settle_ms=0").await?;
    let closing = gate.reaches("CLOSING", Duration::from_secs(5)).await;
    checks.check(closing.is_ok(), "a last drain closes at once", closing.as_ref().map_or("no", |_| "yes"));
    let status = gate.status().await?;
    let distrust = status.pointer("/distrust").map(ToString::to_string).unwrap_or_default();
    checks.check(distrust == "null", "the count is believed", distrust);
    let (counted, total) = (number(&status, "/counted"), gateway.requests(listener).await?);
    checks.check(counted == Some(total), "every request was counted", format!("{counted:?} of Envoy's {total}"));
    let state = text(&status, "/state").to_owned();
    println!("        state {state}, drains {}", number(&status, "/drains").unwrap_or_default());
    Ok(())
}

async fn no_vm_fell(out: &Path, checks: &mut Checks) -> Result<()> {
    let page = Admin::new().page("/stats?filter=vm_reload").await.map_err(anyhow::Error::msg)?;
    let reloads: u64 = page.lines().filter_map(|line| line.rsplit(": ").next()?.trim().parse::<u64>().ok()).sum();
    checks.check(reloads == 0, "no VM was reloaded", format!("{reloads} ({} stats)", page.lines().count()));
    let log = std::fs::read_to_string(out.join("envoy.log")).context("cannot read Envoy's log")?;
    let fallen = log.lines().find(|line| ["panic", "backtrace", "[critical]"].iter().any(|word| line.contains(word)));
    checks.check(fallen.is_none(), "Envoy's log knows of no trap", fallen.unwrap_or_default());
    Ok(())
}
