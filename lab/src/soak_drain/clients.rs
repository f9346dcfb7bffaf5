//! Everybody who asks for something: well-behaved load, and clients that leave in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::bench::load::Protocol;
use crate::process::Process;
use crate::{http, topology, wait};

/// Clients at once that leave in the middle of a request.
const LEAVERS: u64 = 12;
/// One load; both kinds pause for as long as the other kind does not, so that now and then nobody asks for anything.
const LOAD: Duration = Duration::from_secs(2);
const H2_PAUSE: Duration = Duration::from_millis(1_300);
const H1_PAUSE: Duration = Duration::from_millis(1_100);
/// Of the h2 loads every third is killed after this time, with all of its streams open.
const KILLED_AFTER: Duration = Duration::from_millis(900);

/// All clients. They stop when dropped.
pub(crate) struct Clients {
    gone: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Clients {
    pub(crate) fn start(port: u16) -> Self {
        let gone = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(load(Protocol::H1, port, H1_PAUSE));
        tasks.spawn(load(Protocol::H2, port, H2_PAUSE));
        for number in 0..LEAVERS {
            tasks.spawn(leave(number, port, Arc::clone(&gone)));
        }
        Self { gone, _tasks: tasks }
    }

    /// How often a client has gone away in the middle.
    pub(crate) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Relaxed)
    }
}

async fn load(protocol: Protocol, port: u16, pause: Duration) {
    for number in 1_u64.. {
        let mut command = protocol.command(port, "/fast", LOAD);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        match Process::spawn(protocol.name(), command) {
            Ok(mut process) => {
                let killed = protocol == Protocol::H2 && number.is_multiple_of(3);
                let limit = if killed { KILLED_AFTER } else { LOAD + Duration::from_secs(10) };
                // Whatever has not ended by then is killed when it is dropped.
                let _ended = process.exit(limit).await;
            }
            Err(error) => eprintln!("  {error:#}"),
        }
        wait::pace_until(Instant::now() + pause).await;
    }
}

/// Leaves at another moment each time: before the answer, in its middle, in mid-header; by FIN or by RST.
async fn leave(number: u64, port: u16, gone: Arc<AtomicU64>) {
    for round in 0_u64.. {
        // Coprime strides: every combination of moment and manner comes up.
        let (moment, by_reset) = ((round * 7 + number * 5) % 40, (round + number).is_multiple_of(2));
        let path = match round % 3 {
            0 => "/sleep?seconds=0.02",
            1 => "/sleep?seconds=3",
            _ => "/stream?seconds=3&interval=0.005",
        };
        if visit(port, path, Duration::from_millis(moment), by_reset).await.is_ok() {
            gone.fetch_add(1, Ordering::Relaxed);
        }
        // A quiet moment for all leavers together, so that some drains end at zero.
        let pause = if round.is_multiple_of(20) { 2_000 } else { 20 };
        wait::pace_until(Instant::now() + Duration::from_millis(pause)).await;
    }
}

async fn visit(port: u16, path: &str, stay: Duration, by_reset: bool) -> std::io::Result<()> {
    let mut stream = http::connect(TcpSocket::new_v4()?, topology::local(port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", topology::HOST).as_bytes()).await?;
    let leaves = Instant::now() + stay;
    let mut some = [0; 1024];
    while Instant::now() < leaves {
        // Reads what comes until it is time to go.
        match tokio::time::timeout_at(leaves.into(), stream.read(&mut some)).await {
            Ok(Ok(0)) | Err(_) => break,
            Ok(read) => drop(read?),
        }
    }
    if by_reset {
        stream.set_zero_linger()?;
    }
    Ok(())
}
