//! A layer: a tar of files in the root directory, compressed.

use std::io::Write;

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::image::layout::digest;

/// A file of a layer.
pub(super) struct File<'a> {
    pub(super) name: &'a str,
    pub(super) mode: u32,
    pub(super) bytes: &'a [u8],
}

/// A layer.
pub(super) struct Layer {
    /// As it is stored.
    pub(super) packed: Vec<u8>,
    /// The digest of the tar in it.
    pub(super) unpacked_digest: String,
}

impl Layer {
    /// `files` in this order, of root, from the beginning of time.
    pub(super) fn of(files: &[File<'_>]) -> Result<Self> {
        let mut tar = Builder::new(Vec::new());
        for file in files {
            let mut header = Header::new_ustar();
            header.set_entry_type(EntryType::Regular);
            header.set_path(file.name)?;
            header.set_mode(file.mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(u64::try_from(file.bytes.len())?);
            header.set_cksum();
            tar.append(&header, file.bytes)?;
        }
        let tar = tar.into_inner()?;
        // 255: no system in particular (RFC 1952).
        let mut gzip = GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::best());
        gzip.write_all(&tar)?;
        Ok(Self { packed: gzip.finish()?, unpacked_digest: format!("sha256:{}", digest(&tar)) })
    }
}
