//! What is said, and where.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::stand_in::{Pod, wait_until};

/// A path of this test's own.
fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    drop(fs::remove_file(&path));
    path
}

#[test]
fn json_is_one_object_a_line_and_the_last_has_the_code() {
    let ended = Pod::new().prestop("30s", &["--log", "json"]).end().expect(0, &[]);
    let lines: Vec<serde_json::Value> = ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.len() >= 5 && lines.iter().all(|line| line["level"] == "info" && line["elapsed_ms"].is_u64()),
        "{ended:#?}"
    );
    let last = lines.last().unwrap();
    assert_eq!((&last["exit"], &last["cut_at_most"]), (&0.into(), &0.into()));
}

#[test]
fn a_kubelet_that_was_given_less_than_we_were_told_leaves_a_trail() {
    let pod = Pod::new();
    pod.gate.set_active(2);
    let running = pod.prestop("60s", &[]);
    wait_until("a second slice begins", || pod.gate.seen("/wait") == 2);
    let ended = running.kill();
    assert_eq!((ended.code, ended.said("draining: 2 requests in flight, deadline in")), (None, 2), "{ended:#?}");
}

#[test]
fn a_second_place_gets_every_line_too() {
    let path = path("copy");
    File::create(&path).unwrap();
    let ended = Pod::new().prestop("30s", &["--log-also", path.to_str().unwrap()]).end().expect(0, &[]);
    assert_eq!(fs::read_to_string(&path).unwrap(), ended.out);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_second_place_that_nobody_reads_or_that_is_not_there_holds_nothing_up() {
    let path = path("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // O_RDWR | O_NONBLOCK: a pipe with a reader that never reads, full to the brim.
    let mut pipe = OpenOptions::new().read(true).write(true).custom_flags(0o4000).open(&path).unwrap();
    while std::io::Write::write(&mut pipe, &[b'x'; 4096]).is_ok() {}
    Pod::new().prestop("30s", &["--log-also", path.to_str().unwrap()]).end().expect(0, &["done: clean"]);
    drop(pipe);
    // Without a reader the open itself fails.
    Pod::new().prestop("30s", &["--log-also", path.to_str().unwrap()]).end().expect(0, &["done: clean"]);
    fs::remove_file(&path).unwrap();
    Pod::new().prestop("30s", &["--log-also", "/proc/1/nothing/here"]).end().expect(0, &["done: clean"]);
}

#[test]
fn the_last_line_becomes_the_container_s_termination_message_where_there_is_such_a_file() {
    let (there, missing) = (path("termination-log"), path("missing"));
    std::fs::write(&there, "something older and longer than what replaces it, ".repeat(10)).unwrap();
    for path in [&there, &missing] {
        Pod::new().prestop("30s", &["--termination-log", path.to_str().unwrap()]).end().expect(0, &[]);
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "softclose: done: clean; cut at most 0; exit code 0\n");
    assert!(!missing.exists(), "it is kubelet's to make");
}
