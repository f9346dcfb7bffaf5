//! What the tests do with a [`Process`], in the words of the gate.

use std::time::Duration;

use softclose_fsm::control::STATE_HEADER;
use softclose_fsm::{Closing, Record, State, StateName, Status, Verdict};

use crate::host::{Listener, Process, Reply, Request, Setup, StreamId};

/// Long enough for every bell, and for the shortest tick on every worker.
pub(crate) const SOON: Duration = Duration::from_millis(5);

/// How long what has ended may stay in the ledger while the gate is OPEN; with the millisecond at which the tick comes.
pub(crate) const PAID: Duration = Duration::from_millis(1_001);

/// How long a roll call waits.
pub(crate) const ROLL_CALL: Duration = softclose_fsm::ROLL_CALL_WAIT;

/// Every gauge counts, or none does; for `Setup::null_gauge`.
pub(crate) const GAUGES: [fn(usize, &str) -> bool; 2] = [|_, _| false, |_, _| true];

impl Process {
    /// Asks, and takes the answer that must come before anything else happens on this worker.
    pub(crate) fn ask(&self, worker: usize, listener: Listener, request: Request) -> Reply {
        let id = self.request(worker, listener, request);
        self.reply(id).expect("no answer")
    }

    /// The answer to a stream, if there is one.
    pub(crate) fn reply(&self, id: StreamId) -> Option<Reply> {
        let stream = self.stream(id);
        assert_eq!(stream.surplus, 0, "answered twice: {:?}", stream.request);
        stream.reply
    }

    pub(crate) fn command(&self, worker: usize, target: &str) -> Reply {
        self.ask(worker, Listener::Control, Request::new("POST", target))
    }

    /// A command that must be accepted.
    pub(crate) fn order(&self, worker: usize, target: &str) -> Status {
        let reply = self.command(worker, target);
        assert_eq!(reply.status, 200, "{target}: {reply:?}");
        document(&reply)
    }

    pub(crate) fn status(&self, worker: usize) -> Status {
        document(&self.ask(worker, Listener::Control, Request::new("GET", "/status")))
    }

    pub(crate) fn wait(&self, worker: usize, query: &str) -> StreamId {
        self.request(worker, Listener::Control, Request::new("GET", format!("/wait?{query}")))
    }

    /// The balancer asks; its status and state.
    pub(crate) fn probe(&self, worker: usize) -> (u32, StateName) {
        let reply = self.ask(worker, Listener::Health, Request::new("GET", "/health_check.html"));
        (reply.status, state(&reply))
    }

    /// A request in flight on a traffic listener: its headers have passed the filter.
    pub(crate) fn traffic(&self, worker: usize) -> StreamId {
        let id = self.request(worker, Listener::Traffic, Request::new("GET", "/"));
        assert!(self.stream(id).passed, "a request was held up");
        id
    }

    /// The application answers a request, and it ends.
    pub(crate) fn serve(&self, id: StreamId) {
        self.response_headers(id, false);
        self.response_body(id, 1_000, false);
        self.response_body(id, 0, true);
        self.end(id);
    }

    /// Requests in flight by the ledger that everybody reads.
    pub(crate) fn active(&self) -> u64 {
        self.metric("softclose_active")
    }

    /// Every worker's word on the state; all the same.
    pub(crate) fn agreed(&self) -> StateName {
        let states: Vec<StateName> = self.workers().map(|worker| self.status(worker).state).collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "workers disagree: {states:?}");
        states[0]
    }

    /// Fails if any VM has trapped so far.
    pub(crate) fn assert_no_trap(&self) {
        let traps: Vec<String> =
            self.lines().into_iter().map(|line| line.text).filter(|text| text.contains("trapped")).collect();
        assert!(traps.is_empty(), "{traps:#?}");
    }

    /// The JSON lines of one kind.
    pub(crate) fn said(&self, kind: &str) -> Vec<serde_json::Value> {
        let lines = self.lines().into_iter();
        let json = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(&line.text).ok());
        json.filter(|line| line["softclose"] == kind).collect()
    }
}

pub(crate) fn document(reply: &Reply) -> Status {
    serde_json::from_str(&reply.body).unwrap_or_else(|error| panic!("{error}: {reply:?}"))
}

pub(crate) fn state(reply: &Reply) -> StateName {
    let name = reply.header(STATE_HEADER).unwrap_or_else(|| panic!("no state in {reply:?}"));
    StateName::ALL.into_iter().find(|state| state.as_str() == name).unwrap()
}

/// Runs `check` on one process per seed, or on that of `$SEED`; `$SEEDS` runs more of them.
pub(crate) fn each_seed(seeds: u64, setup: impl Fn(u64) -> Setup, check: impl Fn(&Process)) {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![u64::from_str_radix(seed.trim_start_matches("0x"), 16).expect("SEED is a hexadecimal number")],
        Err(_) => {
            (0..std::env::var("SEEDS").map_or(seeds, |seeds| seeds.parse().expect("SEEDS is a number"))).collect()
        }
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&Process::begin(Setup { seed, ..setup(seed) }));
        }));
        if let Err(panic) = run {
            eprintln!("replay with SEED={seed:#x}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Fails at the moment of a clean flip, if a request is in flight whose headers the filter had let through before.
pub(crate) fn watch_for_clean_flips(process: &Process) {
    let mut known = 0;
    process.witness(move |process, key, value| {
        if key != "softclose.1.record" {
            return;
        }
        let record: Record = serde_json::from_slice(value).unwrap();
        // Not the flip itself, but something noted after it.
        if std::mem::replace(&mut known, record.changes) == record.changes {
            return;
        }
        if let State::Closing(Closing { verdict: Verdict::Clean, .. }) = record.state {
            assert_eq!(process.in_flight(), 0, "a clean flip with requests in flight");
        }
    });
}
