//! Stand-ins for everything that the command talks to, and the command itself.

mod envoy;
mod folder;
mod gate;
mod server;

use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use envoy::{Admin, Agent};
pub(crate) use folder::{Folder, chmod, mode, names};
pub(crate) use gate::Gate;
pub(crate) use server::{Reply, Server};

/// A pod: Envoy's admin, softclose's control listener and the agent.
pub(crate) struct Pod {
    pub(crate) admin: Admin,
    pub(crate) gate: Gate,
    pub(crate) agent: Agent,
}

impl Pod {
    pub(crate) fn new() -> Self {
        Self::on("127.0.0.1")
    }

    pub(crate) fn on(ip: &str) -> Self {
        Self { admin: Admin::start(ip), gate: Gate::start(ip), agent: Agent::start(ip) }
    }

    /// `softclose prestop` with so much grace, a short settle and hold, and `flags`.
    pub(crate) fn prestop(&self, grace: &str, flags: &[&str]) -> Running {
        self.prestop_at(grace, &self.gate.server.address(), flags)
    }

    /// The same with control somewhere else.
    pub(crate) fn prestop_at(&self, grace: &str, control: &str, flags: &[&str]) -> Running {
        let (admin, agent) = (self.admin.server.address(), self.agent.server.address());
        let mut args = vec!["prestop", "--grace", grace, "--admin", &admin, "--control", control, "--agent", &agent];
        args.extend(["--log-also", "none", "--settle", "50ms", "--hold-max", "300ms", "--margin", "10ms"]);
        args.extend(flags);
        Running::start(&args)
    }
}

/// The command, running.
pub(crate) struct Running {
    child: Child,
    start: Instant,
}

/// The command, ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Running {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softclose"));
        command.args(args);
        Self::of(command)
    }

    /// The same, started otherwise.
    pub(crate) fn of(mut command: Command) -> Self {
        command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), start: Instant::now() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) -> Ended {
        self.child.kill().unwrap();
        self.end()
    }

    pub(crate) fn end(mut self) -> Ended {
        // Longer than any grace in these tests: reaching it is a failure of its own.
        let deadline = self.start + Duration::from_secs(30);
        let hung = loop {
            match self.child.try_wait().unwrap() {
                Some(_) => break false,
                None if Instant::now() >= deadline => break true,
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let took = self.start.elapsed();
        if hung {
            self.child.kill().unwrap();
        }
        let Output { status, stdout, stderr } = self.child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ended = Ended { code: status.code(), out: text(stdout), err: text(stderr), took };
        assert!(!hung, "it hung: {ended:#?}");
        ended
    }
}

impl Ended {
    /// Ended with `code`, after saying each of `parts`.
    #[track_caller]
    pub(crate) fn expect(self, code: u8, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(i32::from(code)), "{}\n{}", self.out, self.err);
        for part in parts {
            assert!(self.out.contains(part) || self.err.contains(part), "{part:?} in\n{}\n{}", self.out, self.err);
        }
        self
    }

    /// The last line.
    pub(crate) fn summary(&self) -> &str {
        self.out.lines().last().unwrap_or_default()
    }

    /// How often it said `part`.
    pub(crate) fn said(&self, part: &str) -> usize {
        self.out.matches(part).count()
    }
}

/// Runs the command to its end.
pub(crate) fn softclose(args: &[&str]) -> Ended {
    Running::start(args).end()
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
