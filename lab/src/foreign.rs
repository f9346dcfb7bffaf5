//! Programs of others: where they are, and whether they can be started at all.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::topology;

/// A program that the lab needs and does not build.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Names another one than that in PATH.
    pub(crate) variable: &'static str,
    /// Makes it say its version and end.
    pub(crate) version_flag: &'static str,
    /// Where to get it.
    source: &'static str,
}

pub(crate) const ENVOY: Program = Program {
    name: "envoy",
    variable: "ENVOY_BIN",
    version_flag: "--version",
    source: "`./run setup` fetches it for `./run lab`",
};
pub(crate) const HAPROXY: Program =
    Program { name: "haproxy", variable: "HAPROXY_BIN", version_flag: "-v", source: "Debian's package is haproxy" };
pub(crate) const CURL: Program =
    Program { name: "curl", variable: "CURL_BIN", version_flag: "--version", source: "Debian's package is curl" };

/// The Envoy that the command line names.
static CHOSEN_ENVOY: OnceLock<PathBuf> = OnceLock::new();

/// Lets the lab use an Envoy of that version, of those that `just envoy VERSION` fetches.
pub(crate) fn choose_envoy(version: &str) -> Result<()> {
    let path = topology::root()?.join(".tools").join(format!("envoy-{version}"));
    ensure!(
        path.exists(),
        "envoy is {version}, and {} is not there; `./run envoy {version}` fetches it",
        path.display()
    );
    let _first = CHOSEN_ENVOY.set(path);
    Ok(())
}

pub(crate) const TCPDUMP: Program = Program {
    name: "tcpdump",
    variable: "TCPDUMP_BIN",
    version_flag: "--version",
    source: "Debian's package is tcpdump",
};

/// Counts instructions.
pub(crate) const VALGRIND: Program = Program {
    name: "valgrind",
    variable: "VALGRIND_BIN",
    version_flag: "--version",
    source: "Debian's package is valgrind",
};
/// Speaks to a valgrind.
pub(crate) const VGDB: Program =
    Program { name: "vgdb", variable: "VGDB_BIN", version_flag: "--help", source: VALGRIND.source };

impl Program {
    /// What to start: a path that holds in any folder, or a name for PATH.
    pub(crate) fn path(&self) -> PathBuf {
        match CHOSEN_ENVOY.get() {
            Some(path) if self.variable == ENVOY.variable => path.clone(),
            Some(_) | None => self.located(std::env::var_os(self.variable)),
        }
    }

    fn located(&self, named: Option<OsString>) -> PathBuf {
        let named = named.filter(|name| !name.is_empty()).map_or_else(|| PathBuf::from(self.name), PathBuf::from);
        match named.components().count() {
            1 => named,
            _ => std::path::absolute(&named).unwrap_or(named),
        }
    }

    /// Starts it for its version: before any scenario, so that its absence is told once and not by each failing part.
    pub(crate) async fn starts(&self) -> Result<()> {
        self.starts_as(&self.path()).await
    }

    async fn starts_as(&self, path: &Path) -> Result<()> {
        let mut command = Command::new(path);
        command.arg(self.version_flag).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().await.with_context(|| self.missing(path))?;
        ensure!(status.success(), "{}: {} ended with {status}", self.missing(path), self.version_flag);
        Ok(())
    }

    /// What to say, and to do, where it cannot be started.
    pub(crate) fn missing(&self, path: &Path) -> String {
        let place = if path.components().count() == 1 { " in PATH" } else { "" };
        let Self { name, variable, source, .. } = self;
        format!("cannot start {name}, tried {}{place}; {source}, or name one in {variable}", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_left_to_the_path_and_a_path_holds_in_any_folder() {
        assert_eq!(ENVOY.located(None), Path::new("envoy"));
        assert_eq!(ENVOY.located(Some("".into())), Path::new("envoy"));
        assert_eq!(ENVOY.located(Some("envoy-1.40".into())), Path::new("envoy-1.40"));
        assert!(ENVOY.located(Some("./tools/envoy".into())).is_absolute());
    }

    #[tokio::test]
    async fn what_cannot_be_started_is_named_with_what_was_tried_and_what_to_do() {
        let error = format!("{:#}", ENVOY.starts_as(Path::new("/nowhere/envoy")).await.unwrap_err());
        for word in ["/nowhere/envoy", "./run setup", "ENVOY_BIN", "No such file"] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[tokio::test]
    async fn a_program_that_fails_at_once_is_none_that_starts() {
        let error = ENVOY.starts_as(Path::new("/bin/false")).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 1") && error.contains("/bin/false"), "{error}");
    }
}
