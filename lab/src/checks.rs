//! Checks that are printed as they are made and add up to a verdict.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// One thing that was to hold.
#[derive(Serialize)]
struct Check {
    what: String,
    held: bool,
    /// What was seen.
    seen: String,
}

/// All checks of one command.
#[derive(Default)]
pub(crate) struct Checks(Vec<Check>);

impl Checks {
    /// Notes whether `what` held, with what was seen.
    pub(crate) fn check(&mut self, held: bool, what: impl Into<String>, seen: impl Into<String>) {
        let (what, seen) = (what.into(), seen.into());
        let word = if held { "ok  " } else { "FAIL" };
        println!("  {word}  {what}{}{seen}", if seen.is_empty() { "" } else { ": " });
        self.0.push(Check { what, held, seen });
    }

    /// How many did not hold so far.
    pub(crate) fn failed(&self) -> usize {
        self.0.iter().filter(|check| !check.held).count()
    }

    /// Writes all of it as JSON and prints the sum; true if everything held.
    pub(crate) fn finish(self, path: &Path) -> Result<bool> {
        let failed = self.failed();
        let text = serde_json::to_string_pretty(&self.0)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("\n{} checks, {failed} failed; {}", self.0.len(), path.display());
        Ok(failed == 0 && !self.0.is_empty())
    }
}
