//! An OCI layout (image-spec, `image-layout.md`): `oci-layout`, `index.json`, and blobs by their digest.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use oci_spec::image::{Descriptor, ImageIndexBuilder, MediaType, OciLayoutBuilder, SCHEMA_VERSION, Sha256Digest};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// A layout that is being written.
pub(super) struct Layout(PathBuf);

const MARK: &str = "oci-layout";

impl Layout {
    /// An empty one at `path`, instead of the one that may be there.
    pub(super) fn create(path: &Path) -> Result<Self> {
        if path.exists() {
            // Whatever else somebody named by mistake stays.
            ensure!(path.join(MARK).is_file(), "{} is there and no OCI layout", path.display());
            fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let layout = Self(path.to_owned());
        fs::create_dir_all(layout.blobs()).with_context(|| format!("cannot create {}", path.display()))?;
        layout.write(MARK, &sorted(&OciLayoutBuilder::default().image_layout_version("1.0.0").build()?)?)?;
        Ok(layout)
    }

    /// Adds `bytes`.
    pub(super) fn blob(&mut self, media_type: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let digest = digest(bytes);
        let path = self.blobs().join(&digest);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Descriptor::new(media_type, u64::try_from(bytes.len())?, Sha256Digest::from_str(&digest)?))
    }

    /// Adds a document.
    pub(super) fn json(&mut self, media_type: MediaType, document: &impl Serialize) -> Result<Descriptor> {
        self.blob(media_type, &sorted(document)?)
    }

    /// Makes `image` what the layout is of.
    pub(super) fn finish(self, image: &Descriptor) -> Result<()> {
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests(vec![image.clone()])
            .build()?;
        self.write("index.json", &sorted(&index)?)
    }

    fn blobs(&self) -> PathBuf {
        self.0.join("blobs/sha256")
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The SHA-256 of `bytes`, in hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Annotations are hash maps, whose order differs from run to run; in a value of JSON the names are sorted.
fn sorted(document: &impl Serialize) -> Result<Vec<u8>> {
    let mut value = serde_json::to_value(document)?;
    value.sort_all_objects();
    Ok(serde_json::to_vec(&value)?)
}
