//! Mistakes in the arguments, and the help that prevents them.

use crate::stand_in::{Pod, softclose};

#[test]
fn a_mistake_never_prevents_the_drain_and_is_64() {
    let pod = Pod::new();
    let flags = ["--setle", "1s", "--fall", "none", "stray"];
    let ended = pod.prestop("30s", &flags).end();
    ended.expect(
        64,
        &[
            "usage: --setle: there is no such flag here",
            "usage: --fall: got \"none\", must be a whole number from 1 to 100",
            "unexpected argument \"stray\"",
            "done: clean; cut at most 0; exit code 64 (usage; it would have been 0)",
        ],
    );
    assert!(pod.agent.told());
}

#[test]
fn a_command_that_is_not_one_is_64_and_nothing_happens() {
    softclose(&["prestpo", "--grace", "60s"]).expect(64, &["no such command: \"prestpo\""]);
    softclose(&[]).expect(64, &["a command is missing"]);
}

/// With `UPDATE_GOLDEN=1` in the environment the file is written instead.
#[test]
fn help_is_as_the_golden_file_says() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/shim/help.txt");
    let commands = ["", "prestop", "drain", "close-lb", "close", "reopen", "status", "wait", "install", "version"];
    let mut text = String::new();
    for command in commands {
        let args: Vec<&str> = [command, "--help"].into_iter().filter(|arg| !arg.is_empty()).collect();
        let ended = softclose(&args).expect(0, &[]);
        text.push_str(&format!("$ softclose {}\n{}\n", args.join(" "), ended.out));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap());
}

#[test]
fn version_is_the_package_s() {
    softclose(&["version"]).expect(0, &[concat!("softclose ", env!("CARGO_PKG_VERSION"), "\n")]);
}
