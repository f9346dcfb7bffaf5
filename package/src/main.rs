//! Makes what is shipped out of what the compiler gives.

mod image;
mod interface;
mod names;
mod trim;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::image::Images;
use crate::names::Names;

/// Makes what is shipped out of what the compiler gives.
#[derive(Parser)]
#[command(name = "softclose-package", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Removes from a Wasm module what no host ever calls; the same input always gives the same bytes
    Trim {
        /// The module as the linker wrote it
        input: PathBuf,
        /// Where the trimmed module goes
        output: PathBuf,
        /// Keeps every callback's export, those that nobody needs with nothing in them, to measure what the calls cost
        #[arg(long)]
        keep_all: bool,
        /// Whose functions are named in Envoy's trap messages
        #[arg(long, default_value = "own")]
        names: Names,
    },
    /// Prints the imports and exports of a Wasm module, one in a line
    List {
        /// The module
        module: PathBuf,
    },
    /// Lays out the images as directories that skopeo uploads; the same inputs always give the same bytes
    Images(Images),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("softclose-package: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Trim { input, output, keep_all, names } => {
            let before = read(&input)?;
            let after = trim::trim(&before, keep_all, names).with_context(|| format!("in {}", input.display()))?;
            std::fs::write(&output, &after).with_context(|| format!("cannot write {}", output.display()))?;
            println!("{}: {} bytes, trimmed from {}", output.display(), after.len(), before.len());
        }
        Command::Images(images) => image::lay_out(&images)?,
        Command::List { module } => {
            let bytes = read(&module)?;
            print!("{}", interface::list(&bytes).with_context(|| format!("in {}", module.display()))?);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
