//! What went over the wire: `tcpdump` beside a run, read afterwards.
//!
//! Event 6 is taken from here, and with it who cut: the FIN or RST behind which a client's request was waiting. HAProxy
//! resets its check connections too, and a peer that goes on sending after a good `connection: close` is reset as well;
//! nobody loses anything by those.

pub(crate) mod endings;
pub(crate) mod segment;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use self::segment::Segment;
use crate::foreign::TCPDUMP;
use crate::process::Process;
use crate::wait;
use crate::wall::Wall;

/// tcpdump opens its socket within milliseconds; a busy machine may take its time to start it.
const START_LIMIT: Duration = Duration::from_secs(10);
const END_LIMIT: Duration = Duration::from_secs(5);

/// A capture under way. Dropping it kills tcpdump.
pub(crate) struct Capture {
    process: Process,
    name: String,
    dir: PathBuf,
    place: Box<dyn Fn(&mut Command) + Send>,
}

/// What was captured.
pub(crate) struct Captured {
    /// On the run's clock, in the order of the wire.
    pub(crate) segments: Vec<Segment>,
    /// Packets that the kernel had no room for; with any, an ending that is not here proves nothing.
    pub(crate) lost: u64,
}

impl Capture {
    /// Captures TCP of these ports on `interface` into `<dir>/<name>.pcap`, from the moment this returns; `place` puts the
    /// command where the interface is. Needs the right to capture: root, or CAP_NET_RAW.
    pub(crate) async fn start(
        dir: &Path,
        name: &str,
        interface: &str,
        ports: &[u16],
        place: impl Fn(&mut Command) + Send + 'static,
    ) -> Result<Self> {
        let mut command = tcpdump();
        command
            .args(["-n", "-i", interface])
            // Each packet at once, from the kernel and into the file.
            .args(["--immediate-mode", "-U"])
            // Headers are enough; 16 MiB of room for a busy run.
            .args(["-s", "128", "-B", "16384"])
            // Debian's would change to a user of its own, which may not write here.
            .args(["-Z", "root"])
            .arg("-w")
            .arg(pcap(dir, name))
            .arg(filter(ports));
        place(&mut command);
        let mut process = Process::start(name, command, dir).with_context(|| TCPDUMP.missing(&TCPDUMP.path()))?;
        let listening = async || {
            if let Err(early) = process.assert_running(dir) {
                return Some(Err(early));
            }
            let log = std::fs::read_to_string(dir.join(format!("{name}.log"))).ok()?;
            log.contains("listening on").then_some(Ok(()))
        };
        wait::until("tcpdump listens", START_LIMIT, listening).await??;
        Ok(Self { process, name: name.to_owned(), dir: dir.to_path_buf(), place: Box::new(place) })
    }

    /// Ends the capture and reads it. Whatever is of interest must have been on the wire before.
    pub(crate) async fn end(mut self, wall: &Wall) -> Result<Captured> {
        // To tcpdump SIGTERM is what SIGINT is: it writes what it has and says what it lost.
        self.process.terminate();
        let status =
            self.process.exit(END_LIMIT).await.with_context(|| format!("{}: tcpdump does not end", self.name))?;
        let log = std::fs::read_to_string(self.dir.join(format!("{}.log", self.name)))?;
        ensure!(status.success(), "{}: tcpdump ended with {status}: {}", self.name, crate::process::last_words(&log));
        let lost = lost(&log).with_context(|| format!("{}: tcpdump does not say what it lost", self.name))?;
        let mut command = tcpdump();
        command.args(["-nn", "-tt", "-r"]).arg(pcap(&self.dir, &self.name));
        (self.place)(&mut command);
        let output = command.output().await.context("tcpdump cannot read its own capture")?;
        ensure!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Captured { segments: segment::parse(&text, |wall_s| wall.on_clock(wall_s))?, lost })
    }
}

/// The tcpdump to run.
fn tcpdump() -> Command {
    Command::new(TCPDUMP.path())
}

fn pcap(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.pcap"))
}

/// `tcp and (port 28080 or port 28443)`
fn filter(ports: &[u16]) -> String {
    let ports: Vec<String> = ports.iter().map(|port| format!("port {port}")).collect();
    format!("tcp and ({})", ports.join(" or "))
}

/// `0 packets dropped by kernel`
fn lost(log: &str) -> Option<u64> {
    let line = log.lines().find(|line| line.contains("dropped by kernel"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ports_that_were_named_are_captured() {
        assert_eq!(filter(&[28080, 28443]), "tcp and (port 28080 or port 28443)");
    }

    #[test]
    fn what_the_kernel_dropped_is_read_from_tcpdumps_last_words() {
        let log = "tcpdump: listening on lo, link-type EN10MB\n12 packets captured\n24 packets received by filter\n3 packets dropped by kernel\n";
        assert_eq!(lost(log), Some(3));
        assert_eq!(lost("tcpdump: listening on lo\n"), None);
    }
}
