//! `softclose install`: an initContainer puts the binary and the module where the gateway's container finds both.
//!
//! A file appears under its name only when it is whole, on disk, and (the binary) has run from there: whoever reads the
//! directory meets the old file or the new one. Installing the same bytes again writes nothing, so a pod whose
//! initContainers run once more changes nothing under a running gateway.

mod put;
mod source;
mod trial;

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::duration;
use crate::{complain, exit, print};

/// What to install, and where to.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    /// The directory.
    pub(crate) to: PathBuf,
    /// The module; without it, the one beside this binary.
    pub(crate) module: Option<PathBuf>,
}

/// The names in the directory: those of envoyfilter.yaml and of the preStop command.
const BINARY: &str = "softclose";
const MODULE: &str = "softclose.wasm";

/// Readable for Envoy's user, whoever that is, and writable for nobody; the binary runs as well.
const BINARY_MODE: u32 = 0o555;
const MODULE_MODE: u32 = 0o444;

/// How long another install of the same directory is waited for. One takes milliseconds, and at most [`trial::PATIENCE`] more.
const TURN: Duration = Duration::from_secs(30);

/// Installs, says what came of it, and gives the exit code.
pub(crate) fn run(install: &Install) -> u8 {
    match install.carry_out() {
        Ok(()) => exit::CLEAN,
        Err(trouble) => {
            complain(&format!("install: {trouble}"));
            trouble.code
        }
    }
}

/// Why it is not installed, and what to do.
#[derive(Debug)]
struct Trouble {
    code: u8,
    what: String,
    hint: &'static str,
}

impl Install {
    fn carry_out(&self) -> Result<(), Trouble> {
        let binary = source::binary()?;
        let module = source::module(self.module.as_deref(), &binary.path)?;
        let directory = open(&self.to)?;
        // Held to the end, and let go by the kernel if this process is killed.
        let alone = take_turn(&directory, &self.to, TURN)?;
        if alone {
            put::clear(&self.to);
        }
        let place = put::Place { directory: &directory, path: &self.to };
        // The binary last: where it is, all is.
        report(&place.put(MODULE, MODULE_MODE, &module.bytes, |_| Ok(String::new()))?);
        report(&place.put(BINARY, BINARY_MODE, &binary.bytes, trial::run)?);
        Ok(())
    }
}

/// One line for each file: pods' logs are read by people.
fn report(done: &put::Done) {
    let how = if done.written { "installed" } else { "already there, nothing written" };
    let ran = if done.said.is_empty() { String::new() } else { format!("; runs there: {}", done.said) };
    print(&format!("{}: {how} ({} bytes, {:04o}){ran}\n", done.path.display(), done.bytes, done.mode));
}

fn open(path: &Path) -> Result<File, Trouble> {
    let trouble = |error: &io::Error| Trouble::writing(error, format!("cannot open the directory {}", path.display()));
    let directory = File::open(path).map_err(|error| trouble(&error))?;
    match directory.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(directory),
        Ok(_) => Err(trouble(&io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(trouble(&error)),
    }
}

/// Waits until no other install is at work in `directory`; false where the file system has no locks. Then two at once are
/// still safe, since each has files of its own until it renames them, but what a killed one left stays.
fn take_turn(directory: &File, path: &Path, patience: Duration) -> Result<bool, Trouble> {
    let deadline = Instant::now() + patience;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(_)) => return Ok(false),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(Trouble {
                    code: exit::BUSY,
                    what: format!(
                        "another install is at work in {}, and not done after {}",
                        path.display(),
                        duration::text(patience)
                    ),
                    hint: "end it, or run this again",
                });
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

impl Trouble {
    /// The directory, or a file in it, did not take what was asked of it.
    fn writing(error: &io::Error, what: String) -> Self {
        use io::ErrorKind;
        #[expect(clippy::wildcard_enum_match_arm, reason = "ErrorKind is not exhaustive")]
        let (code, hint) = match error.kind() {
            ErrorKind::NotFound => (
                exit::NO_DIRECTORY,
                "mount a volume there (an emptyDir) in the initContainer as well; a directory made here would end with it",
            ),
            ErrorKind::NotADirectory => (exit::NO_DIRECTORY, "--to names a directory: the volume's mountPath"),
            ErrorKind::PermissionDenied => (
                exit::NO_DIRECTORY,
                "this user may not write there: an emptyDir is writable for all, other volumes need fsGroup or runAsUser",
            ),
            ErrorKind::ReadOnlyFilesystem => (
                exit::NO_DIRECTORY,
                "mount the volume without readOnly here; the gateway's container may mount it read-only",
            ),
            ErrorKind::IsADirectory => (exit::NO_DIRECTORY, "a directory has that name: remove it"),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                (exit::NO_SPACE, "binary and module take 2 MiB, and as much again during an upgrade: raise sizeLimit")
            }
            _ => (exit::IO, "the volume or the node is at fault"),
        };
        Self { code, what: format!("{what}: {error}"), hint }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_another_install_holds_is_waited_for_and_then_given_up() {
        let path = std::env::temp_dir();
        let theirs = File::open(&path).unwrap();
        theirs.lock().unwrap();
        let trouble = take_turn(&open(&path).unwrap(), &path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(trouble.code, exit::BUSY);
        assert!(trouble.to_string().contains("not done after 0.1 s; end it, or run this again"), "{trouble}");
        theirs.unlock().unwrap();
        assert!(take_turn(&open(&path).unwrap(), &path, Duration::ZERO).unwrap());
    }
}
