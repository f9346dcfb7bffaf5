//! `softclose install`, from a directory that is laid out like the image into one that stands for the volume.

mod mounts;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::stand_in::{Ended, Folder, Running, chmod, mode, names, softclose, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_softclose");
const MODULE: &[u8] = b"\0asm\x01\0\0\0 and what else is in a module";

/// Image and volume.
struct Scene {
    folder: Folder,
    binary: PathBuf,
    volume: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = Folder::new();
        let image = folder.dir("image", 0o755);
        let binary = image.join("softclose");
        fs::copy(BINARY, &binary).unwrap();
        chmod(&binary, 0o555);
        fs::write(image.join("softclose.wasm"), MODULE).unwrap();
        // As kubelet makes an emptyDir.
        let volume = folder.dir("volume", 0o777);
        Self { folder, binary, volume }
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("install").arg("--to").arg(&self.volume).args(flags);
        command
    }

    fn install(&self, flags: &[&str]) -> Ended {
        Running::of(self.command(flags)).end()
    }

    /// As a user who is nobody here. Only root can.
    fn install_as(&self, uid: u32) -> Ended {
        let mut command = self.command(&[]);
        command.uid(uid).gid(uid);
        Running::of(command).end()
    }

    fn installed(&self) -> (PathBuf, PathBuf) {
        (self.volume.join("softclose"), self.volume.join("softclose.wasm"))
    }

    /// Both files are there, whole, and nothing else.
    #[track_caller]
    fn expect_installed(&self) {
        let (binary, module) = self.installed();
        assert_eq!(names(&self.volume), ["softclose", "softclose.wasm"]);
        assert!(fs::read(&binary).unwrap() == fs::read(BINARY).unwrap(), "the binary's bytes");
        assert_eq!(fs::read(&module).unwrap(), MODULE);
        assert_eq!((mode(&binary), mode(&module)), (0o555, 0o444));
    }
}

#[test]
fn binary_and_module_are_put_into_the_directory_and_the_copy_runs() {
    let scene = Scene::new();
    let ended = scene.install(&[]);
    ended.expect(0, &["softclose.wasm: installed (37 bytes, 0444)", "0555); runs there: softclose 0.1.0"]);
    scene.expect_installed();
    let (binary, _) = scene.installed();
    let mut version = Command::new(binary);
    version.arg("version");
    Running::of(version).end().expect(0, &["softclose 0.1.0"]);
}

#[test]
fn installing_the_same_again_writes_nothing() {
    let scene = Scene::new();
    scene.install(&[]).expect(0, &[]);
    let (binary, module) = scene.installed();
    let stamp = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ino(), metadata.mtime_nsec(), metadata.ctime_nsec())
    };
    let before = (stamp(&binary), stamp(&module), stamp(&scene.volume));
    let ended = scene.install(&[]).expect(0, &["softclose: already there, nothing written", "runs there"]);
    assert_eq!(ended.said("nothing written"), 2);
    assert_eq!((stamp(&binary), stamp(&module), stamp(&scene.volume)), before);
}

#[test]
fn another_version_is_replaced_while_it_runs() {
    let scene = Scene::new();
    let (binary, module) = scene.installed();
    fs::copy("/bin/sleep", &binary).unwrap();
    fs::write(&module, b"older").unwrap();
    let reader = File::open(&module).unwrap();
    let mut running = Command::new(&binary).arg("60").stdout(Stdio::null()).spawn().unwrap();
    let busy = || File::options().write(true).open(&binary).is_err_and(|e| e.kind() == ErrorKind::ExecutableFileBusy);
    wait_until("writing to it is refused, for it runs", busy);

    scene.install(&[]).expect(0, &[]);
    scene.expect_installed();
    assert!(running.try_wait().unwrap().is_none(), "what runs goes on");
    assert_eq!(reader.metadata().unwrap().len(), 5, "who reads the old module has the old module");
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn a_wrong_mode_a_link_and_half_a_file_are_put_right() {
    let scene = Scene::new();
    scene.install(&[]).expect(0, &[]);
    let (binary, module) = scene.installed();
    chmod(&binary, 0o755);
    scene.install(&[]).expect(0, &["softclose: installed", "softclose.wasm: already there"]);
    scene.expect_installed();

    let elsewhere = scene.folder.path().join("elsewhere");
    fs::write(&elsewhere, MODULE).unwrap();
    fs::remove_file(&module).unwrap();
    symlink(&elsewhere, &module).unwrap();
    fs::remove_file(&binary).unwrap();
    fs::write(&binary, &fs::read(BINARY).unwrap()[..1000]).unwrap();
    scene.install(&[]).expect(0, &[]);
    scene.expect_installed();
    assert!(fs::symlink_metadata(&module).unwrap().is_file());
    assert_eq!(fs::read(&elsewhere).unwrap(), MODULE, "what the link led to is untouched");
}

#[test]
fn what_a_killed_install_left_is_removed_and_nothing_else_is() {
    let scene = Scene::new();
    fs::write(scene.volume.join(".softclose-unfinished-1-2"), b"half").unwrap();
    fs::write(scene.volume.join("somebody's"), b"").unwrap();
    scene.install(&[]).expect(0, &[]);
    assert_eq!(names(&scene.volume), ["softclose", "softclose.wasm", "somebody's"]);
}

#[test]
fn killed_at_any_moment_it_leaves_whole_files_or_none() {
    let scene = Scene::new();
    let (binary, module) = scene.installed();
    let whole = fs::read(BINARY).unwrap();
    let mut killed_in_the_middle = 0;
    for round in 0..40 {
        let running = Running::of(scene.command(&[]));
        // Somewhere in a run, which takes some ten milliseconds.
        std::thread::sleep(Duration::from_micros(500 * round));
        running.kill();
        for (path, bytes) in [(&binary, whole.as_slice()), (&module, MODULE)] {
            match fs::read(path) {
                Ok(found) => assert!(found == bytes, "{} is not whole", path.display()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
            }
        }
        let left = names(&scene.volume);
        killed_in_the_middle += u32::from(!left.is_empty() && left != ["softclose", "softclose.wasm"]);
        for name in left {
            fs::remove_file(scene.volume.join(name)).unwrap();
        }
    }
    assert!(killed_in_the_middle > 0, "each was killed before it began, or had ended");
    scene.install(&[]).expect(0, &[]);
    scene.expect_installed();
}

#[test]
fn many_at_once_all_succeed_and_leave_two_files() {
    let scene = Scene::new();
    let running: Vec<Running> = (0..8).map(|_| Running::of(scene.command(&[]))).collect();
    let ended: Vec<Ended> = running.into_iter().map(|running| running.end().expect(0, &["runs there"])).collect();
    let written = ended.iter().filter(|ended| ended.said(": installed") == 2).count();
    assert_eq!(written, 1, "one wrote, and the others found it there: {ended:#?}");
    scene.expect_installed();
}

#[test]
fn without_a_module_nothing_is_written() {
    let scene = Scene::new();
    let module = scene.binary.with_file_name("softclose.wasm");
    fs::write(&module, b"<html>404</html>").unwrap();
    scene.install(&[]).expect(66, &["softclose.wasm is no Wasm module (16 bytes)"]);
    fs::remove_file(&module).unwrap();
    scene.install(&[]).expect(66, &["cannot read the module", "No such file or directory (os error 2)", "--module"]);
    fs::create_dir(&module).unwrap();
    scene.install(&[]).expect(66, &["not a regular file"]);
    assert_eq!(names(&scene.volume), [""; 0]);

    let other = scene.folder.path().join("other.wasm");
    fs::write(&other, MODULE).unwrap();
    scene.install(&["--module", other.to_str().unwrap()]).expect(0, &[]);
    scene.expect_installed();
}

#[test]
fn without_a_directory_it_says_which_and_what_to_do() {
    let scene = Scene::new();
    let missing = Scene { volume: scene.folder.path().join("missing"), ..Scene::new() };
    missing.install(&[]).expect(73, &["/missing: No such file or directory (os error 2); mount a volume there"]);
    let file = Scene { volume: scene.binary.clone(), ..Scene::new() };
    file.install(&[]).expect(73, &["/image/softclose: not a directory; --to names a directory"]);
    fs::create_dir(scene.volume.join("softclose")).unwrap();
    scene.install(&[]).expect(73, &["/volume/softclose in its place: Is a directory (os error 21)"]);
    assert_eq!(names(&scene.volume), ["softclose", "softclose.wasm"]);
}

#[test]
fn a_mistake_in_the_arguments_is_64_and_nothing_happens() {
    softclose(&["install"]).expect(64, &["--to: is missing; the directory that both containers mount"]);
    let scene = Scene::new();
    scene.install(&["--mdule", "x"]).expect(64, &["--mdule: there is no such flag here"]);
    assert_eq!(names(&scene.volume), [""; 0]);
}

#[test]
#[ignore = "needs root: it becomes other users"]
fn any_user_may_and_finds_another_user_s_files_good() {
    let scene = Scene::new();
    scene.install_as(1337).expect(0, &[": installed"]);
    scene.expect_installed();
    assert_eq!(fs::metadata(scene.installed().0).unwrap().uid(), 1337);
    scene.install_as(4711).expect(0, &["nothing written"]);
    // In a directory that is not sticky a name is anybody's to give.
    fs::write(scene.binary.with_file_name("softclose.wasm"), b"\0asm newer").unwrap();
    scene.install_as(4711).expect(0, &["softclose.wasm: installed"]);
    assert_eq!(fs::metadata(scene.installed().1).unwrap().uid(), 4711);
}

#[test]
#[ignore = "needs root: it becomes another user"]
fn a_directory_of_somebody_else_s_is_named_and_left_alone() {
    let scene = Scene::new();
    chmod(&scene.volume, 0o755);
    scene.install_as(1337).expect(73, &["/volume: Permission denied (os error 13); this user may not write there"]);
    assert_eq!(names(&scene.volume), [""; 0]);

    // Root's older file where everybody may write but only owners may replace.
    chmod(&scene.volume, 0o1777);
    fs::write(scene.volume.join("softclose.wasm"), b"older").unwrap();
    fs::write(scene.volume.join(".softclose-unfinished-1-2"), b"root's").unwrap();
    scene.install_as(1337).expect(73, &["softclose.wasm in its place: Operation not permitted (os error 1)"]);
    assert_eq!(names(&scene.volume), [".softclose-unfinished-1-2", "softclose.wasm"]);
}
