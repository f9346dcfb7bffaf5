//! Runs the copy, where it is. Nothing else tells a volume that is mounted noexec, or an image of another architecture,
//! before the day on which kubelet runs the preStop hook.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Trouble;
use crate::exit;

/// Printing a version takes a millisecond; a node that pulls images while it starts pods may be slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Linux' `EACCES` and `ENOEXEC` (asm-generic/errno-base.h).
const EACCES: i32 = 13;
const ENOEXEC: i32 = 8;

/// What `binary version` says.
pub(super) fn run(binary: &Path) -> Result<String, Trouble> {
    let failed = |what: String, hint: &'static str| Trouble {
        code: exit::NOT_RUNNABLE,
        what: format!("the copy in {} does not run: {what}", binary.parent().unwrap_or(binary).display()),
        hint,
    };
    let spawned = Command::new(binary)
        .arg("version")
        .env_clear()
        // Not null: there may be no /dev.
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| failed(error.to_string(), hint(&error)))?;
    let (status, said) =
        end(&mut child).map_err(|error| failed(error.to_string(), "the node is at fault; look at its log"))?;
    let expected = format!("softclose {}", env!("CARGO_PKG_VERSION"));
    if status.success() && said.trim_end() == expected {
        return Ok(expected);
    }
    Err(failed(format!("{status}, and it said {said:?}"), "a seccomp or security profile may forbid it there"))
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(EACCES) => {
            "its volume is mounted noexec (image volumes are), or a security profile forbids it: use an emptyDir"
        }
        Some(ENOEXEC) => {
            "it is of another architecture than this node: use the image index, or the image for this node"
        }
        Some(_) | None => "the volume or the node is at fault",
    }
}

/// Waits for the end, at most for [`PATIENCE`]. The few bytes that it says fit into the pipe.
fn end(child: &mut Child) -> io::Result<(ExitStatus, String)> {
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no end after {} s", PATIENCE.as_secs())));
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut said)?;
    }
    Ok((status, String::from_utf8_lossy(&said).into_owned()))
}
