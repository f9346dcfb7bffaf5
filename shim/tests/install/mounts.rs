//! Volumes that refuse, each mounted in a mount namespace of its own.

use std::process::Command;

use super::Scene;
use crate::stand_in::{Ended, Running};

/// Installs with a tmpfs of `options` as the volume, and says at the end which names are in it.
fn install_into(options: &str) -> Ended {
    let scene = Scene::new();
    let mut command = Command::new("unshare");
    // $0 the volume, $1 the options, $2 the binary.
    let script = r#"PATH=/usr/bin:/bin:/usr/sbin:/sbin
        mount -t tmpfs -o "$1" tmpfs "$0" || exit 99
        "$2" install --to "$0"; code=$?
        echo "left:" $(ls -A "$0"); exit $code"#;
    command.args(["--mount", "sh", "-c", script]).arg(&scene.volume).arg(options).arg(&scene.binary);
    Running::of(command).end()
}

#[test]
#[ignore = "needs root: it mounts"]
fn a_volume_that_is_large_enough_and_executable_takes_both() {
    install_into("size=64m").expect(0, &["left: softclose softclose.wasm\n"]);
}

#[test]
#[ignore = "needs root: it mounts"]
fn a_full_volume_is_72_and_nothing_half_written_stays() {
    install_into("size=64k")
        .expect(72, &["No space left on device (os error 28); binary and module take 2 MiB", "left: softclose.wasm\n"]);
}

#[test]
#[ignore = "needs root: it mounts"]
fn a_volume_mounted_noexec_is_126_and_the_binary_is_not_there() {
    install_into("size=64m,noexec").expect(
        126,
        &["does not run: Permission denied (os error 13); its volume is mounted noexec", "left: softclose.wasm\n"],
    );
}

#[test]
#[ignore = "needs root: it mounts"]
fn a_volume_mounted_read_only_is_73() {
    install_into("size=64m,ro")
        .expect(73, &["Read-only file system (os error 30); mount the volume without readOnly here", "left:\n"]);
}
