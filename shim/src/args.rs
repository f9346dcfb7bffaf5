//! What was typed, and what it means.

mod help;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser};
use softclose_fsm::control::{Until, WAIT_MAX};
use softclose_fsm::{FieldError, Plan, Preset};

use crate::address::{self, Address};
use crate::duration::{self, millis};
use crate::install::Install;
use crate::log::Form;
use crate::verify::Verify;

/// What the command line comes to.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// Print this.
    Help(String),
    /// It is not understood, and these are the reasons.
    Usage(Vec<String>),
    /// Do this.
    Run(Command),
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// The whole way out.
    Prestop(Box<Options>),
    /// One call of the control listener.
    Call(Call),
    /// Say whether a drain would be counted whole.
    Verify(Verify),
    /// Put binary and module into a directory.
    Install(Install),
    /// Say the version.
    Version,
}

/// How `prestop` is done.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The pod's termination grace period.
    pub(crate) grace: Duration,
    /// Envoy's admin listener.
    pub(crate) admin: Address,
    /// softclose's control listener.
    pub(crate) control: Address,
    /// Istio's agent.
    pub(crate) agent: Address,
    /// Fields of the plan that differ from the gate's own.
    pub(crate) plan: Overrides,
    /// The form of the log.
    pub(crate) form: Form,
    /// Where a copy of the log goes.
    pub(crate) log_also: Option<String>,
    /// The file of the container's termination message, for the last line.
    pub(crate) termination_log: Option<String>,
    /// What was not understood. It never prevents the drain.
    pub(crate) errors: Vec<String>,
}

/// Fields of a plan, as in the query of `POST /drain`.
pub(crate) type Overrides = Vec<(&'static str, String)>;

/// One call of the control listener.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Where it is.
    pub(crate) control: Address,
    /// Which.
    pub(crate) kind: CallKind,
}

/// Which call.
#[derive(Clone, Debug)]
pub(crate) enum CallKind {
    /// A command, with its query.
    Post(String),
    /// The status document; as it came, or for people.
    Status {
        /// As it came.
        json: bool,
    },
    /// Until the gate is that far.
    Wait {
        /// How far.
        until: Until,
        /// How long at most.
        timeout: Duration,
    },
}

/// Kubernetes' own default for terminationGracePeriodSeconds.
const GRACE: Duration = Duration::from_secs(30);
/// Less leaves no time to do anything in.
const GRACE_MIN: Duration = Duration::from_secs(2);
/// Envoy's admin and the agent's status port as Istio sets them, and the control listener of envoyfilter.yaml.
const ADMIN_PORT: u16 = 15000;
const AGENT_PORT: u16 = 15020;
const CONTROL_PORT: u16 = 18181;
/// The output of the container's first process: what `kubectl logs` shows.
const CONTAINER_LOG: &str = "/proc/1/fd/1";
/// Kubernetes' default for terminationMessagePath.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// What `args`, without the program's name, come to.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed {
    let mut parser = Parser::from_args(args);
    let command = match parser.next() {
        Ok(Some(Arg::Value(command))) => command.to_string_lossy().into_owned(),
        Ok(Some(Arg::Long("help") | Arg::Short('h'))) => return Parsed::Help(help::overview()),
        Ok(Some(Arg::Long("version") | Arg::Short('V'))) => return Parsed::Run(Command::Version),
        Ok(None) => return Parsed::Usage(vec!["a command is missing; see softclose --help".to_owned()]),
        Ok(Some(other)) => return Parsed::Usage(vec![other.unexpected().to_string()]),
        Err(error) => return Parsed::Usage(vec![error.to_string()]),
    };
    let Some(help) = help::of(&command) else {
        return Parsed::Usage(vec![format!("no such command: {command:?}; see softclose --help")]);
    };
    let (mut flags, errors) = match Flags::read(&mut parser) {
        Read::Help => return Parsed::Help(help),
        Read::Flags(flags, errors) => (flags, errors),
    };
    if command == "prestop" {
        return Parsed::Run(Command::Prestop(Box::new(Options::of(flags, errors))));
    }
    if command == "install" {
        return match install(flags, errors) {
            Ok(install) => Parsed::Run(Command::Install(install)),
            Err(errors) => Parsed::Usage(errors),
        };
    }
    if command == "status" && flags.take("verify").is_some() {
        return match verify(flags, errors) {
            Ok(verify) => Parsed::Run(Command::Verify(verify)),
            Err(errors) => Parsed::Usage(errors),
        };
    }
    match call(&command, flags, errors) {
        Ok(Some(call)) => Parsed::Run(Command::Call(call)),
        Ok(None) => Parsed::Run(Command::Version),
        Err(errors) => Parsed::Usage(errors),
    }
}

/// The flags of one command line; the last of each name counts.
struct Flags(Vec<(String, String)>);

enum Read {
    Help,
    Flags(Flags, Vec<String>),
}

impl Flags {
    fn read(parser: &mut Parser) -> Read {
        let mut flags = Vec::new();
        let mut errors = Vec::new();
        loop {
            match parser.next() {
                Ok(None) => return Read::Flags(Self(flags), errors),
                Ok(Some(Arg::Long("help") | Arg::Short('h'))) => return Read::Help,
                Ok(Some(Arg::Long(name @ ("json" | "verify")))) => flags.push((name.to_owned(), String::new())),
                Ok(Some(Arg::Long(name))) => {
                    let name = name.to_owned();
                    match parser.value() {
                        Ok(value) => flags.push((name, value.to_string_lossy().into_owned())),
                        Err(error) => errors.push(error.to_string()),
                    }
                }
                Ok(Some(other)) => errors.push(other.unexpected().to_string()),
                Err(error) => errors.push(error.to_string()),
            }
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let mut last = None;
        self.0.retain_mut(|(found, value)| {
            let matches = found == name;
            if matches {
                last = Some(std::mem::take(value));
            }
            !matches
        });
        last
    }

    /// The value of `--name`, understood by `parse`; without it, or when it is not what was `expected`, `default`.
    fn value<T>(
        &mut self,
        errors: &mut Vec<String>,
        name: &str,
        expected: &str,
        default: T,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> T {
        let Some(text) = self.take(name) else { return default };
        parse(&text).unwrap_or_else(|| {
            errors.push(FieldError::new(&format!("--{name}"), &text, expected).to_string());
            default
        })
    }

    fn address(&mut self, errors: &mut Vec<String>, name: &str, port: u16) -> Address {
        self.value(errors, name, address::EXPECTED, Address::loopback(port), Address::parse)
    }

    /// The fields of a plan; those that the gate would refuse are left out.
    fn plan(&mut self, errors: &mut Vec<String>, with_deadline: bool) -> Overrides {
        let mut plan = Overrides::new();
        let durations = ["settle", "margin", "hold-min", "hold-max", "deadline"];
        let fields = ["settle_ms", "margin_ms", "hold_min_ms", "hold_max_ms", "deadline_ms"];
        for (name, field) in durations.into_iter().zip(fields).filter(|(name, _)| with_deadline || *name != "deadline")
        {
            let Some(text) = self.take(name) else { continue };
            match duration::parse(&text) {
                Some(span) => keep(&mut plan, errors, name, field, millis(span).to_string()),
                None => errors.push(FieldError::new(&format!("--{name}"), &text, duration::EXPECTED).to_string()),
            }
        }
        for (name, field) in
            [("fall", "fall"), ("preset", "preset"), ("replay-limit", "replay_limit"), ("probers", "probers")]
        {
            if let Some(text) = self.take(name) {
                keep(&mut plan, errors, name, field, text);
            }
        }
        plan
    }

    /// What is left is unknown.
    fn finish(self, errors: &mut Vec<String>) {
        errors.extend(self.0.into_iter().map(|(name, _)| format!("--{name}: there is no such flag here; see --help")));
    }
}

/// Adds a field to the plan if the gate would take it.
fn keep(plan: &mut Overrides, errors: &mut Vec<String>, name: &str, field: &'static str, value: String) {
    // Whether hold_min is below hold_max is the gate's to say: only it knows both.
    let fields = [(field, value.as_str()), ("hold_max_ms", "600000")];
    let count = if field == "hold_min_ms" { 2 } else { 1 };
    match Plan::preset(Preset::Haproxy).with(fields.into_iter().take(count)) {
        Ok(_) => plan.push((field, value)),
        Err(error) if error.field == field => {
            let flag = FieldError { field: format!("--{name}"), ..error };
            let unit = if field.ends_with("_ms") { " (milliseconds)" } else { "" };
            errors.push(format!("{flag}{unit}"));
        }
        // A hold_max below the preset's own hold_min: the gate's to say as well.
        Err(_) => plan.push((field, value)),
    }
}

impl Options {
    fn of(mut flags: Flags, mut errors: Vec<String>) -> Self {
        let grace = |text: &str| duration::parse(text).filter(|grace| *grace >= GRACE_MIN);
        let form = |text: &str| match text {
            "text" => Some(Form::Text),
            "json" => Some(Form::Json),
            _ => None,
        };
        let options = Self {
            grace: flags.value(&mut errors, "grace", "a duration of at least 2s, as 60s, 2m or 1500ms", GRACE, grace),
            admin: flags.address(&mut errors, "admin", ADMIN_PORT),
            control: flags.address(&mut errors, "control", CONTROL_PORT),
            agent: flags.address(&mut errors, "agent", AGENT_PORT),
            plan: flags.plan(&mut errors, false),
            form: flags.value(&mut errors, "log", "text or json", Form::Text, form),
            log_also: Some(flags.take("log-also").unwrap_or_else(|| CONTAINER_LOG.to_owned()))
                .filter(|path| path != "none"),
            termination_log: Some(flags.take("termination-log").unwrap_or_else(|| TERMINATION_LOG.to_owned()))
                .filter(|path| path != "none"),
            errors: Vec::new(),
        };
        flags.finish(&mut errors);
        Self { errors, ..options }
    }
}

fn verify(mut flags: Flags, mut errors: Vec<String>) -> Result<Verify, Vec<String>> {
    let verify = Verify {
        admin: flags.address(&mut errors, "admin", ADMIN_PORT),
        control: flags.address(&mut errors, "control", CONTROL_PORT),
        json: flags.take("json").is_some(),
    };
    flags.finish(&mut errors);
    if errors.is_empty() { Ok(verify) } else { Err(errors) }
}

fn install(mut flags: Flags, mut errors: Vec<String>) -> Result<Install, Vec<String>> {
    let to = flags.take("to").filter(|to| !to.is_empty()).map(PathBuf::from);
    let module = flags.take("module").map(PathBuf::from);
    flags.finish(&mut errors);
    match to {
        Some(to) if errors.is_empty() => Ok(Install { to, module }),
        Some(_) => Err(errors),
        None => {
            errors
                .push("--to: is missing; the directory that both containers mount, as --to /opt/softclose".to_owned());
            Err(errors)
        }
    }
}

/// The call that `command` is; none for `version`.
fn call(command: &str, mut flags: Flags, mut errors: Vec<String>) -> Result<Option<Call>, Vec<String>> {
    let control = match command {
        "version" => None,
        _ => Some(flags.address(&mut errors, "control", CONTROL_PORT)),
    };
    let kind = match command {
        "drain" => CallKind::Post(target("/drain", &flags.plan(&mut errors, true))),
        "status" => CallKind::Status { json: flags.take("json").is_some() },
        "wait" => {
            let until = |text: &str| match text {
                "closing" => Some(Until::Closing),
                "exit" => Some(Until::Exit),
                _ => None,
            };
            let until = flags.value(&mut errors, "for", "closing or exit", Until::Closing, until);
            let timeout = flags.value(&mut errors, "timeout", duration::EXPECTED, WAIT_MAX, duration::parse);
            CallKind::Wait { until, timeout }
        }
        _ => CallKind::Post(format!("/{command}")),
    };
    flags.finish(&mut errors);
    if errors.is_empty() { Ok(control.map(|control| Call { control, kind })) } else { Err(errors) }
}

/// `path` with `fields` as its query. No value of ours needs escaping.
pub(crate) fn target(path: &str, fields: &[(&'static str, String)]) -> String {
    let query: Vec<String> = fields.iter().map(|(field, value)| format!("{field}={value}")).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}
