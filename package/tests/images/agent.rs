//! How Istio's agent finds the module in an image, restated from `pkg/wasm/imagefetcher.go` and `pkg/wasm/cache.go` of
//! Istio 1.30.3: what it does not find there, it answers by a filter that denies or allows all traffic.

use std::io::Read;

use serde_json::Value;

use crate::store::{INDEX, LAYER, MANIFEST, Store};

const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const ARTIFACT_LAYER: &str = "application/vnd.module.wasm.content.layer.v1+wasm";

/// What the agent gets out of the image.
pub(crate) fn fetch(store: &Store) -> Result<Vec<u8>, String> {
    let manifest = store.json(&image(store)?);
    let layers = manifest["layers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let module = if manifest["mediaType"] == DOCKER_MANIFEST {
        packed(store, layers, DOCKER_LAYER)
    } else {
        packed(store, layers, LAYER)
            .or_else(|compat| artifact(store, layers).map_err(|artifact| format!("{compat}; {artifact}")))
    }?;
    if module.len() < 8 || !module.starts_with(b"\0asm") {
        return Err("not a Wasm module".to_owned());
    }
    Ok(module)
}

/// Out of an index the agent's library takes linux/amd64, whatever the node is.
fn image(store: &Store) -> Result<Value, String> {
    if store.top["mediaType"] != INDEX {
        return Ok(store.top.clone());
    }
    let amd64 = |image: &&Value| image["platform"]["os"] == "linux" && image["platform"]["architecture"] == "amd64";
    let index = store.json(&store.top);
    index["manifests"].as_array().unwrap().iter().find(amd64).cloned().ok_or("no linux/amd64".to_owned())
}

/// The variants "docker" and "compat": the last layer, which is of exactly this type, and the first file in it that is
/// called plugin.wasm, in whatever directory.
fn packed(store: &Store, layers: &[Value], media_type: &str) -> Result<Vec<u8>, String> {
    let layer = layers.last().ok_or("no layer")?;
    if layer["mediaType"] != media_type {
        return Err(format!("the last layer is {}", layer["mediaType"]));
    }
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(store.blob(layer)));
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let mut entry = entry.map_err(|error| error.to_string())?;
        if entry.path().is_ok_and(|path| path.file_name().is_some_and(|name| name == "plugin.wasm")) {
            let mut module = Vec::new();
            entry.read_to_end(&mut module).map_err(|error| error.to_string())?;
            return Ok(module);
        }
    }
    Err("no plugin.wasm".to_owned())
}

/// The variant "oci": exactly two layers, one of which is the module as it is.
fn artifact(store: &Store, layers: &[Value]) -> Result<Vec<u8>, String> {
    if layers.len() != 2 {
        return Err(format!("{} layers", layers.len()));
    }
    let layer = layers.iter().find(|layer| layer["mediaType"] == ARTIFACT_LAYER).ok_or("no layer of a module")?;
    Ok(store.blob(layer).to_vec())
}

const MODULE: &[u8] = b"\0asm\x01\0\0\0";

fn tar_of(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    tar.append_data(&mut header, name, bytes).unwrap();
    tar.into_inner().unwrap()
}

fn packed_layer(name: &str, bytes: &[u8]) -> Vec<u8> {
    let tar = tar_of(name, bytes);
    let mut packed = Vec::new();
    flate2::read::GzEncoder::new(tar.as_slice(), flate2::Compression::fast()).read_to_end(&mut packed).unwrap();
    packed
}

#[test]
fn the_agent_takes_each_of_the_three_variants() {
    let plugin = packed_layer("plugin.wasm", MODULE);
    let deep = packed_layer("some/where/plugin.wasm", MODULE);
    let config = ("application/vnd.module.wasm.config.v1+json", b"{}".to_vec());
    for store in [
        Store::of_image(MANIFEST, &[(LAYER, plugin.clone())]),
        Store::of_image(MANIFEST, &[(LAYER, packed_layer("base", b"")), (LAYER, deep)]),
        Store::of_image(DOCKER_MANIFEST, &[(DOCKER_LAYER, plugin.clone())]),
        Store::of_image(MANIFEST, &[config, (ARTIFACT_LAYER, MODULE.to_vec())]),
        Store::of_image(MANIFEST, &[(LAYER, plugin)]).in_an_index("amd64"),
    ] {
        assert_eq!(fetch(&store).as_deref(), Ok(MODULE));
    }
}

#[test]
fn the_agent_refuses_what_looks_almost_the_same() {
    let plugin = packed_layer("plugin.wasm", MODULE);
    let one = |layer: (&str, Vec<u8>)| Store::of_image(MANIFEST, &[layer]);
    for (store, why) in [
        (Store::of_image(MANIFEST, &[]), "no layer; 0 layers"),
        (one(("application/vnd.oci.image.layer.v1.tar", tar_of("plugin.wasm", MODULE))), "layer.v1.tar\"; 1 layers"),
        (one(("application/vnd.oci.image.layer.v1.tar+zstd", plugin.clone())), "tar+zstd\"; 1 layers"),
        (one((LAYER, packed_layer("softclose.wasm", MODULE))), "no plugin.wasm"),
        (one((LAYER, packed_layer("plugin.wasm", b"\x7fELF1234"))), "not a Wasm module"),
        (one((LAYER, packed_layer("plugin.wasm", &MODULE[..4]))), "not a Wasm module"),
        (one((ARTIFACT_LAYER, MODULE.to_vec())), "1 layers"),
        (Store::of_image(MANIFEST, &[(LAYER, plugin.clone()), (LAYER, packed_layer("top", b""))]), "no plugin.wasm"),
        (Store::of_image(DOCKER_MANIFEST, &[(LAYER, plugin.clone())]), "the last layer is"),
        (one((LAYER, plugin)).in_an_index("arm64"), "no linux/amd64"),
    ] {
        let refused = fetch(&store).unwrap_err();
        assert!(refused.contains(why), "{refused:?}, not {why:?}");
    }
}
