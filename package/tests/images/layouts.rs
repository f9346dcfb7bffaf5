//! `softclose-package images`: the layouts that it writes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::agent;
use crate::store::{Entry, Folder, INDEX, LAYER, MANIFEST, Store, digest, entries, unpacked};

const MODULE: &[u8] = b"\0asm\x01\0\0\0 and so on";

fn lay_out(inputs: &Folder, to: &Path) -> Output {
    let binary = |architecture: &str| {
        let path = inputs.file(architecture, format!("the binary of {architecture}").as_bytes());
        format!("--binary={architecture}={}", path.display())
    };
    Command::new(env!("CARGO_BIN_EXE_softclose-package"))
        .args(["images", "--revision", "0123abc"])
        .args([binary("amd64"), binary("arm64")])
        .arg("--module")
        .arg(inputs.file("module", MODULE))
        .arg("--to")
        .arg(to)
        .output()
        .unwrap()
}

/// Laid out, and what was printed.
fn laid_out(inputs: &Folder, name: &str) -> (std::path::PathBuf, String) {
    let to = inputs.path().join(name);
    let output = lay_out(inputs, &to);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (to, String::from_utf8(output.stdout).unwrap())
}

fn file(name: &str, mode: u32, bytes: &[u8]) -> Entry {
    Entry { name: name.to_owned(), mode, owner: (0, 0), mtime: 0, bytes: bytes.to_vec() }
}

/// What is told of every image.
fn about(title: &str) -> Value {
    json!({
        "org.opencontainers.image.title": title,
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.revision": "0123abc",
        "org.opencontainers.image.licenses": "Apache-2.0",
    })
}

#[test]
fn the_binary_s_image_is_an_index_of_both_architectures() {
    let inputs = Folder::new();
    let (to, printed) = laid_out(&inputs, "images");
    let store = Store::open(&to.join("softclose"));
    assert_eq!(store.top["mediaType"], INDEX);
    assert!(printed.contains(store.top["digest"].as_str().unwrap()), "{printed}");
    // Index, and manifest, configuration and layer of each.
    assert_eq!(store.len(), 1 + 2 * 3);
    let index = store.json(&store.top);
    assert_eq!((&index["mediaType"], &index["annotations"]), (&json!(INDEX), &about("softclose")));
    let platforms: Vec<&Value> =
        index["manifests"].as_array().unwrap().iter().map(|image| &image["platform"]).collect();
    assert_eq!(
        platforms,
        [&json!({"os": "linux", "architecture": "amd64"}), &json!({"os": "linux", "architecture": "arm64"})]
    );
    for image in index["manifests"].as_array().unwrap() {
        let architecture = image["platform"]["architecture"].as_str().unwrap();
        let manifest = store.json(image);
        assert_eq!((&image["mediaType"], &manifest["mediaType"]), (&json!(MANIFEST), &json!(MANIFEST)));
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!((layers.len(), &layers[0]["mediaType"]), (1, &json!(LAYER)));
        let layer = store.blob(&layers[0]);
        let binary = format!("the binary of {architecture}");
        assert_eq!(
            entries(layer),
            [file("softclose", 0o555, binary.as_bytes()), file("softclose.wasm", 0o444, MODULE)]
        );
        let config = store.json(&manifest["config"]);
        assert_eq!((&config["os"], &config["architecture"]), (&json!("linux"), &json!(architecture)));
        assert_eq!(config["rootfs"], json!({"type": "layers", "diff_ids": [digest(&unpacked(layer))]}));
        // runAsNonRoot needs a number.
        assert_eq!(
            config["config"],
            json!({"User": "1337:1337", "Entrypoint": ["/softclose"], "WorkingDir": "/", "Labels": about("softclose")})
        );
    }
}

#[test]
fn the_agent_finds_the_module_in_the_module_s_image() {
    let inputs = Folder::new();
    let (to, printed) = laid_out(&inputs, "images");
    let store = Store::open(&to.join("softclose-wasm"));
    assert_eq!(agent::fetch(&store).as_deref(), Ok(MODULE));
    // What a WasmPlugin's sha256 names is the manifest, and there is no index above it.
    assert_eq!(store.top["mediaType"], MANIFEST);
    assert!(printed.contains(store.top["digest"].as_str().unwrap()), "{printed}");
    assert_eq!(store.len(), 3);
    let manifest = store.json(&store.top);
    assert_eq!(manifest["annotations"]["module.wasm.image/variant"], "compat");
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 1);
    assert_eq!(entries(store.blob(&layers[0])), [file("plugin.wasm", 0o444, MODULE)]);
}

#[test]
fn the_same_inputs_give_the_same_bytes() {
    let inputs = Folder::new();
    // Hash maps have another order in each process.
    let (first, _) = laid_out(&inputs, "first");
    for again in ["second", "third", "first"] {
        let (to, _) = laid_out(&inputs, again);
        let same = Command::new("diff").arg("-r").args([&first, &to]).output().unwrap();
        assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    }
}

#[test]
fn a_directory_that_is_no_layout_is_not_replaced() {
    let inputs = Folder::new();
    let home = inputs.path().join("home");
    std::fs::create_dir_all(home.join("softclose")).unwrap();
    std::fs::write(home.join("softclose/thesis"), b"years").unwrap();
    let output = lay_out(&inputs, &home);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("home/softclose is there and no OCI layout"));
    assert!(home.join("softclose/thesis").is_file());
}
