//! Foreign programs as children: each in a process group of its own, ended by its id, never left behind.

use std::fs::File;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};

/// A running child. Dropping it kills its whole group.
pub(crate) struct Process {
    name: String,
    child: Child,
    pid: Pid,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` in its own group; both outputs go to `<dir>/<name>.log`.
    pub(crate) fn start(name: &str, mut command: Command, dir: &Path) -> Result<Self> {
        let path = dir.join(format!("{name}.log"));
        let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        command.stdout(log.try_clone()?).stderr(log);
        Self::spawn(name, command)
    }

    /// Starts `command` in its own group; its outputs are the caller's matter.
    pub(crate) fn spawn(name: &str, mut command: Command) -> Result<Self> {
        command.process_group(0).stdin(Stdio::null());
        dies_with_us(&mut command);
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name} ({program})"))?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{name} ended before it began"))?;
        Ok(Self { name: name.to_owned(), child, pid, status: None })
    }

    /// The child itself, for its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The child's process id.
    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends SIGTERM to the child alone, as kubelet does to a container's first process.
    pub(crate) fn terminate(&mut self) {
        if self.status.is_none() {
            // It may have ended by itself; then there is nobody to tell.
            let _gone = kill_process(self.pid, Signal::TERM);
        }
    }

    /// Sends SIGKILL to the whole group.
    pub(crate) fn kill(&mut self) {
        if self.status.is_none() {
            let _gone = kill_process_group(self.pid, Signal::KILL);
        }
    }

    /// The exit status, if the child has ended.
    pub(crate) fn try_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits for the end, at most `limit`.
    pub(crate) async fn exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = tokio::time::timeout(limit, self.child.wait()).await.ok().and_then(Result::ok);
        }
        self.status
    }

    /// An error with the program's last words if it has ended although it should run.
    pub(crate) fn assert_running(&mut self, dir: &Path) -> Result<()> {
        match self.try_status() {
            None => Ok(()),
            Some(status) => {
                anyhow::bail!("{} ended early ({status}), {}", self.name, log_ends(dir, &self.name))
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Once reaped, the id may belong to somebody else.
        if self.try_status().is_none() {
            self.kill();
        }
    }
}

/// Makes the kernel kill a child when the thread that starts it ends, which here is the main one: even a lab that is
/// itself killed leaves nobody behind.
pub(crate) fn dies_with_us(command: &mut Command) {
    let ask = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec this makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(ask) };
}

/// Processor time that a process has used so far, over all of its threads.
pub(crate) fn cpu(pid: i32) -> Result<Duration> {
    let tasks = format!("/proc/{pid}/task");
    let mut nanos = 0;
    for task in std::fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        // A helper thread of V8 may end while its name is read.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let on_cpu = text.split(' ').next().and_then(|field| field.parse::<u64>().ok());
        nanos += on_cpu.context("a schedstat that does not begin with a number")?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// The last lines of a log, on one line.
pub(crate) fn last_words(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(4);
    lines.get(from..).unwrap_or_default().join(" | ")
}

/// How `<dir>/<name>.log` ends, as the end of a sentence.
pub(crate) fn log_ends(dir: &Path, name: &str) -> String {
    match std::fs::read_to_string(dir.join(format!("{name}.log"))) {
        Err(_missing) => format!("and there is no {name}.log"),
        Ok(log) if log.trim().is_empty() => format!("and {name}.log is empty"),
        Ok(log) => format!("{name}.log ends: {}", last_words(&log)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_told_even_if_there_is_nothing_in_it() {
        let dir = std::env::temp_dir().join(format!("softclose-lab-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(log_ends(&dir, "envoy"), "and there is no envoy.log");
        std::fs::write(dir.join("envoy.log"), "\n").unwrap();
        assert_eq!(log_ends(&dir, "envoy"), "and envoy.log is empty");
        std::fs::write(dir.join("envoy.log"), "a\nb\n\nc\nd\ne\n").unwrap();
        assert_eq!(log_ends(&dir, "envoy"), "envoy.log ends: b | c | d | e");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
