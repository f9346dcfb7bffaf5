use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::{CallKind, Command, Options, Parsed, parse};
use crate::log::Form;

fn parsed(line: &str) -> Parsed {
    parse(line.split_whitespace().map(OsString::from))
}

fn prestop(line: &str) -> Options {
    let Parsed::Run(Command::Prestop(options)) = parsed(line) else { panic!("{line}") };
    *options
}

fn usage(line: &str) -> String {
    let Parsed::Usage(errors) = parsed(line) else { panic!("{line}") };
    errors.join("\n")
}

fn posted(line: &str) -> String {
    let Parsed::Run(Command::Call(call)) = parsed(line) else { panic!("{line}") };
    let CallKind::Post(target) = call.kind else { panic!("{line}") };
    target
}

#[test]
fn prestop_alone_has_kubernetes_and_istio_s_defaults() {
    let options = prestop("prestop");
    assert_eq!(options.grace, Duration::from_secs(30));
    assert_eq!(options.admin.to_string(), "127.0.0.1:15000");
    assert_eq!(options.control.to_string(), "127.0.0.1:18181");
    assert_eq!(options.agent.to_string(), "127.0.0.1:15020");
    assert_eq!(options.log_also.as_deref(), Some("/proc/1/fd/1"));
    assert!(options.plan.is_empty() && options.errors.is_empty() && options.form == Form::Text);
}

#[test]
fn prestop_s_flags_are_understood_in_both_spellings() {
    let options = prestop(
        "prestop --grace=60 --admin [::1]:1 --control=localhost:2 --settle 500ms --fall 3 --log json --log-also none",
    );
    assert_eq!(options.grace, Duration::from_secs(60));
    assert_eq!(options.admin.to_string(), "[::1]:1");
    assert_eq!(options.plan, [("settle_ms", "500".to_owned()), ("fall", "3".to_owned())]);
    assert_eq!((options.form, options.log_also), (Form::Json, None));
    assert!(options.errors.is_empty(), "{:?}", options.errors);
}

#[test]
fn a_mistake_is_named_with_value_and_bound_and_the_default_holds() {
    let options = prestop(
        "prestop --grace 1s --admin gateway:1 --settle 2m --fall 0 --preset nginx --log xml --colour red stray -x",
    );
    assert_eq!(options.grace, Duration::from_secs(30));
    assert_eq!(options.admin.to_string(), "127.0.0.1:15000");
    assert!(options.plan.is_empty());
    let errors = options.errors.join("\n");
    for part in [
        "--grace: got \"1s\", must be a duration of at least 2s",
        "--admin: got \"gateway:1\", must be IP:PORT",
        "--settle: got \"120000\", must be a whole number from 0 to 60000 (milliseconds)",
        "--fall: got \"0\", must be a whole number from 1 to 100",
        "--preset: got \"nginx\", must be one of haproxy",
        "--log: got \"xml\", must be text or json",
        "--colour: there is no such flag here",
        "unexpected argument \"stray\"",
        "-x",
    ] {
        assert!(errors.contains(part), "{part} in\n{errors}");
    }
}

#[test]
fn a_missing_value_and_bytes_that_are_not_utf8_are_mistakes_and_no_panic() {
    assert_eq!(prestop("prestop --grace").errors.len(), 1);
    assert_eq!(prestop("prestop --json=1 --grace 9s").grace, Duration::from_secs(9));
    let odd = OsString::from_vec(vec![b'-', b'-', 0xff, 0xfe]);
    let Parsed::Run(Command::Prestop(options)) = parse([OsString::from("prestop"), odd]) else { panic!() };
    assert_eq!(options.errors.len(), 1);
}

#[test]
fn every_preset_and_the_limit_of_what_is_replayed_are_flags() {
    for (name, _) in softclose_fsm::Preset::ALL {
        let options = prestop(&format!("prestop --preset {name} --replay-limit 102400"));
        assert_eq!(options.plan, [("preset", name.to_owned()), ("replay_limit", "102400".to_owned())]);
        assert!(options.errors.is_empty(), "{:?}", options.errors);
    }
    let errors = prestop("prestop --replay-limit 100k").errors;
    assert_eq!(errors, ["--replay-limit: got \"100k\", must be a whole number from 0 to 16777216"]);
}

#[test]
fn the_last_of_a_repeated_flag_counts() {
    let options = prestop("prestop --grace 10s --grace 20s --fall 2 --fall 3");
    assert_eq!(options.grace, Duration::from_secs(20));
    assert_eq!(options.plan, [("fall", "3".to_owned())]);
}

#[test]
fn the_other_commands_refuse_mistakes_and_do_nothing() {
    assert!(usage("").contains("a command is missing"));
    assert!(usage("prestpo --grace 60s").contains("no such command"));
    assert!(usage("close --deadline 5s").contains("--deadline"));
    assert!(usage("drain --deadline 0").contains("from 1 to 86400000"));
    assert!(usage("wait --for ever").contains("must be closing or exit"));
    assert!(usage("version --control 127.0.0.1:1").contains("--control"));
    assert!(usage("--grace 60s prestop").contains("--grace"));
}

#[test]
fn calls_become_targets() {
    assert_eq!(posted("drain"), "/drain");
    assert_eq!(posted("drain --deadline 45s --hold-min 20s"), "/drain?hold_min_ms=20000&deadline_ms=45000");
    assert_eq!(posted("close-lb"), "/close-lb");
    assert_eq!(posted("close --control [::1]:9"), "/close");
    assert_eq!(posted("reopen"), "/reopen");
    assert!(matches!(parsed("version"), Parsed::Run(Command::Version)));
    assert!(matches!(parsed("--version"), Parsed::Run(Command::Version)));
}

#[test]
fn every_command_has_its_help() {
    for command in ["prestop", "drain", "close-lb", "close", "reopen", "status", "wait", "install", "version"] {
        let Parsed::Help(text) = parsed(&format!("{command} --control x --help")) else { panic!("{command}") };
        assert!(text.starts_with(&format!("usage: softclose {command}")), "{text}");
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }
}
