//! The images by way of a real registry: `just push`, and back with skopeo.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::agent;
use crate::store::{Folder, Store, entries};

/// Debian's docker-registry, on loopback.
struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    fn start(folder: &Folder) -> Self {
        // Below what the kernel gives to clients; the next one if somebody is there already.
        let mut port = 21_000 + u16::try_from(std::process::id() % 1_000).unwrap();
        loop {
            port += 1;
            assert!(port < 32_768, "no free port");
            if TcpStream::connect(("127.0.0.1", port)).is_err() {
                break;
            }
        }
        let data = folder.path().join("registry");
        let config = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            data.display()
        );
        let config = folder.file("registry.yml", config.as_bytes());
        let log = fs::File::create(folder.path().join("registry.log")).unwrap();
        let program = std::env::var_os("REGISTRY_BIN").map_or_else(|| PathBuf::from("docker-registry"), PathBuf::from);
        let child = Command::new(&program).arg("serve").arg(config).stdout(Stdio::null()).stderr(log).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run {}: {error}", program.display()));
        let registry = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "{}", fs::read_to_string(folder.path().join("registry.log")).unwrap());
            thread::sleep(Duration::from_millis(10));
        }
        registry
    }

    fn reference(&self, image: &str) -> String {
        format!("127.0.0.1:{}/team/{image}:1", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Pulls `reference` into a layout.
fn pull(folder: &Folder, name: &str, flags: &[&str], reference: &str) -> PathBuf {
    let to = folder.path().join(name);
    let (from, into) = (format!("docker://{reference}"), format!("oci:{}", to.display()));
    run("skopeo", &[&["copy", "--preserve-digests", "--src-tls-verify=false"], flags, &[&from, &into]].concat());
    to
}

fn raw(reference: &str) -> Vec<u8> {
    run("skopeo", &["inspect", "--tls-verify=false", "--raw", &format!("docker://{reference}")]).into_bytes()
}

#[test]
#[ignore = "needs just, skopeo and docker-registry: just images-test"]
fn what_is_pulled_is_what_was_built() {
    let folder = Folder::new();
    let registry = Registry::start(&folder);
    let (shim, wasm) = (registry.reference("softclose"), registry.reference("softclose-wasm"));
    run("just", &["push", &shim, "--dest-tls-verify=false"]);
    let built = |name: &str| Store::open(&root().join("dist/images").join(name));

    // As the registry has them: the same documents, so the same digests, under the tag and under the digest.
    for (reference, store) in [(&shim, built("softclose")), (&wasm, built("softclose-wasm"))] {
        assert_eq!(raw(reference), store.blob(&store.top));
        let (repository, _) = reference.rsplit_once(':').unwrap();
        assert_eq!(raw(&format!("{repository}@{}", store.top["digest"].as_str().unwrap())), store.blob(&store.top));
    }

    // As it comes back, all of it.
    for (name, flags, reference) in [("softclose", ["--all"].as_slice(), &shim), ("softclose-wasm", &[], &wasm)] {
        let pulled = pull(&folder, name, flags, reference);
        let (ours, theirs) = (root().join("dist/images").join(name).join("blobs"), pulled.join("blobs"));
        run("diff", &["-r", ours.to_str().unwrap(), theirs.to_str().unwrap()]);
        assert_eq!(Store::open(&pulled).top["digest"], built(name).top["digest"]);
    }

    let module = fs::read(root().join("dist/softclose.wasm")).unwrap();
    assert!(
        agent::fetch(&Store::open(&folder.path().join("softclose-wasm"))) == Ok(module.clone()),
        "the agent's bytes"
    );

    // As a node of each architecture gets it: a static binary for it (e_machine of elf(5), little endian), and the module.
    for (architecture, machine) in [("amd64", 62_u8), ("arm64", 183)] {
        let flag = format!("--override-arch={architecture}");
        let store = Store::open(&pull(&folder, architecture, &[&flag], &shim));
        let layers = store.json(&store.top)["layers"].clone();
        let files = entries(store.blob(&layers[0]));
        assert_eq!(files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["softclose", "softclose.wasm"]);
        assert_eq!((&files[0].bytes[..4], files[0].bytes[18]), (b"\x7fELF".as_slice(), machine));
        assert!(files[0].bytes.len() <= 1 << 20, "{architecture}: {} bytes", files[0].bytes.len());
        assert!(files[1].bytes == module, "the module beside the binary");
    }
}
