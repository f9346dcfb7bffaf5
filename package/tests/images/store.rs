//! An OCI layout to read, or to make by hand, and a directory that goes with its test.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) struct Folder(PathBuf);

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Folder {
    pub(crate) fn new() -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("softclose-package-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Blobs by digest. Every read checks that digest and size are right.
pub(crate) struct Store {
    blobs: BTreeMap<String, Vec<u8>>,
    /// The descriptor of what the layout is of.
    pub(crate) top: Value,
}

/// A file of a layer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    pub(crate) mtime: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Store {
    pub(crate) fn open(layout: &Path) -> Self {
        let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(layout.join(name)).unwrap()).unwrap();
        assert_eq!(read("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
        let manifests = read("index.json")["manifests"].as_array().unwrap().clone();
        assert_eq!(manifests.len(), 1);
        let blobs = fs::read_dir(layout.join("blobs/sha256"))
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (format!("sha256:{}", entry.file_name().into_string().unwrap()), fs::read(entry.path()).unwrap())
            })
            .collect();
        Self { blobs, top: manifests[0].clone() }
    }

    /// One that holds a single image, made of layers of any type.
    pub(crate) fn of_image(media_type: &str, layers: &[(&str, Vec<u8>)]) -> Self {
        let mut store = Self { blobs: BTreeMap::new(), top: Value::Null };
        let config = store.add("application/vnd.oci.image.config.v1+json", b"{}".to_vec());
        let layers: Vec<Value> =
            layers.iter().map(|(media_type, bytes)| store.add(media_type, bytes.clone())).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers});
        store.top = store.add(media_type, serde_json::to_vec(&manifest).unwrap());
        store
    }

    /// Puts the image into an index, as that of `architecture`.
    pub(crate) fn in_an_index(mut self, architecture: &str) -> Self {
        self.top["platform"] = json!({"os": "linux", "architecture": architecture});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [self.top]});
        self.top = self.add(INDEX, serde_json::to_vec(&index).unwrap());
        self
    }

    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = digest(&bytes);
        let descriptor = json!({"mediaType": media_type, "digest": digest, "size": bytes.len()});
        self.blobs.insert(digest, bytes);
        descriptor
    }

    pub(crate) fn blob(&self, descriptor: &Value) -> &[u8] {
        let named = descriptor["digest"].as_str().unwrap();
        let bytes = &self.blobs[named];
        assert_eq!((named, descriptor["size"].as_u64().unwrap()), (digest(bytes).as_str(), bytes.len() as u64));
        bytes
    }

    pub(crate) fn json(&self, descriptor: &Value) -> Value {
        serde_json::from_slice(self.blob(descriptor)).unwrap()
    }

    /// How many blobs there are.
    pub(crate) fn len(&self) -> usize {
        self.blobs.len()
    }
}

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn unpacked(layer: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(layer).read_to_end(&mut tar).unwrap();
    tar
}

pub(crate) fn entries(layer: &[u8]) -> Vec<Entry> {
    let tar = unpacked(layer);
    let mut archive = tar::Archive::new(tar.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        let header = entry.header();
        assert!(header.entry_type().is_file());
        Entry {
            name: entry.path().unwrap().to_str().unwrap().to_owned(),
            mode: header.mode().unwrap(),
            owner: (header.uid().unwrap(), header.gid().unwrap()),
            mtime: header.mtime().unwrap(),
            bytes,
        }
    });
    entries.collect()
}
