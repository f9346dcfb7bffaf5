//! The shipped binary where there is nothing else: a root directory that holds it and no more, read-only, without /proc, as
//! another user, without capabilities. Needs root to make such a place, and `dist/softclose`, since only that is static.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stand_in::{Ended, Folder, Pod, Running, chmod, names, wait_until};

/// The user of Istio's proxy.
const UID: &str = "1337";

/// A container's root directory, as made from the image.
struct Root {
    folder: Folder,
}

impl Root {
    /// With these files, and an empty directory for a volume.
    fn with(files: &[&str]) -> Self {
        let folder = Folder::new();
        let root = folder.dir("root", 0o755);
        for name in files {
            let from = dist(name);
            assert!(from.is_file(), "{} is missing: just build", from.display());
            std::fs::copy(&from, root.join(name)).unwrap();
        }
        std::fs::create_dir(root.join("volume")).unwrap();
        chmod(&folder.dir("volume", 0o777), 0o777);
        Self { folder }
    }

    fn volume(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    /// `/softclose ARGS` in there. The shell makes the place and is gone: unshare, setpriv and chroot are of the machine.
    fn start(&self, args: &[&str]) -> Running {
        let script = format!(
            r#"set -e; export PATH=/usr/sbin:/usr/bin:/sbin:/bin; r="$0/root"
            mount --bind "$r" "$r"; mount --bind "$0/volume" "$r/volume"; mount -o remount,bind,ro "$r"
            exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid --inh-caps=-all \
                chroot --userspec={UID}:{UID} --groups= "$r" /softclose "$@""#
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", &script]).arg(self.folder.path()).args(args);
        Running::of(command)
    }
}

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(name)
}

/// A line of /proc/PID/status, seen from outside.
fn status(pid: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(str::trim));
    line.unwrap_or_default().to_owned()
}

fn prestop(root: &Root, pod: &Pod) -> Running {
    let (admin, control, agent) = (pod.admin.server.address(), pod.gate.server.address(), pod.agent.server.address());
    let args = ["prestop", "--grace", "20s", "--admin", &admin, "--control", &control, "--agent", &agent];
    // --log-also is left at its default, /proc/1/fd/1, which is not there.
    root.start(&[&args[..], &["--settle", "50ms", "--hold-max", "300ms", "--margin", "10ms"]].concat())
}

#[test]
#[ignore = "needs root, and dist/softclose: it makes an empty root directory"]
fn a_whole_pre_stop_needs_nothing_but_the_binary() {
    let (root, pod) = (Root::with(&["softclose"]), Pod::new());
    pod.gate.set_active(1);
    let running = prestop(&root, &pod);
    wait_until("it waits for the request", || pod.gate.seen("/wait?for=closing") >= 1);

    // The place is what it is said to be.
    let pid = running.pid();
    assert_eq!(names(Path::new(&format!("/proc/{pid}/root"))), ["softclose", "volume"]);
    assert_eq!(status(pid, "Uid").split_whitespace().collect::<Vec<_>>(), [UID; 4]);
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert_eq!(status(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(pid, "NoNewPrivs"), "1");
    let probe = std::fs::write(format!("/proc/{pid}/root/file"), b"");
    assert_eq!(probe.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // Its resident memory, at most 5 MiB.
    let kb: u64 = status(pid, "VmHWM").split_whitespace().next().unwrap().parse().unwrap();
    assert!(kb <= 5 * 1024, "{kb} kB");

    pod.gate.set_active(0);
    running.end().expect(0, &["draining", "done: clean; cut at most 0; exit code 0"]);
    assert!(pod.agent.told());
}

#[test]
#[ignore = "needs root, and dist/softclose: it makes an empty root directory"]
fn the_fallback_needs_nothing_either() {
    let (root, pod) = (Root::with(&["softclose"]), Pod::new());
    pod.gate.server.vanish();
    prestop(&root, &pod).end().expect(12, &["Envoy's own counters read zero"]);
}

#[test]
#[ignore = "needs root, and dist/softclose: it makes an empty root directory"]
fn install_from_a_root_like_the_image_needs_no_proc() {
    let root = Root::with(&["softclose", "softclose.wasm"]);
    let install = || -> Ended { root.start(&["install", "--to", "/volume"]).end() };
    install().expect(0, &["/volume/softclose: installed", "runs there: softclose"]);
    install().expect(0, &["/volume/softclose: already there, nothing written"]);
    assert_eq!(names(&root.volume()), ["softclose", "softclose.wasm"]);
    for name in ["softclose", "softclose.wasm"] {
        assert!(std::fs::read(root.volume().join(name)).unwrap() == std::fs::read(dist(name)).unwrap(), "{name}");
    }
}
