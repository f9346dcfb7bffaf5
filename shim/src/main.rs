//! `softclose`: the command that a pod's preStop hook runs, and that an operator types.
//!
//! * [`prestop`] is the whole way out: Envoy's drain, the gate's drain, the wait, the agent, the exit code.
//! * [`commands`] are the single calls.
//! * [`verify`] says whether a drain would be counted whole, before there is one.
//! * [`install`] puts binary and module where the gateway's container finds them.
//! * [`control`] and [`admin`] say what is asked of softclose's filter and of Envoy; [`http`] carries it.
//!
//! Deliberately absent: threads (but for a connect to a socket in the file system, which knows no timeout), an async runtime, name resolution, TLS, signals, any file but standard output and its
//! copy (and what [`install`] copies), any need for a shell, a libc, a home directory or, but there, a writable disk.
#![forbid(unsafe_code)]

mod address;
mod admin;
mod args;
mod budget;
mod commands;
mod control;
mod counters;
mod duration;
mod exit;
mod http;
mod install;
mod log;
mod outcome;
mod prestop;
mod verify;

use std::io::{self, Write};
use std::process::ExitCode;

use crate::args::{Command, Parsed};

fn main() -> ExitCode {
    let code = match args::parse(std::env::args_os().skip(1)) {
        Parsed::Help(text) => {
            print(&text);
            exit::CLEAN
        }
        Parsed::Usage(errors) => {
            for error in errors {
                complain(&error);
            }
            exit::USAGE
        }
        Parsed::Run(Command::Prestop(options)) => prestop::run(*options),
        Parsed::Run(Command::Call(call)) => commands::run(&call),
        Parsed::Run(Command::Install(install)) => install::run(&install),
        Parsed::Run(Command::Verify(verify)) => verify::run(&verify),
        Parsed::Run(Command::Version) => {
            print(concat!("softclose ", env!("CARGO_PKG_VERSION"), "\n"));
            exit::CLEAN
        }
    };
    ExitCode::from(code)
}

/// To standard output; a reader that went away (`softclose status | head -1`) is no error of ours.
fn print(text: &str) {
    drop(io::stdout().lock().write_all(text.as_bytes()));
}

/// To standard error; with that gone there is nobody left to tell.
fn complain(text: &str) {
    drop(writeln!(io::stderr().lock(), "softclose: {text}"));
}
