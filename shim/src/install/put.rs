//! A file into a directory, whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Trouble;

/// The directory that files are put into.
pub(super) struct Place<'a> {
    /// It, open.
    pub(super) directory: &'a File,
    /// Its path.
    pub(super) path: &'a Path,
}

/// A file that is in its place.
pub(super) struct Done {
    /// Its path.
    pub(super) path: PathBuf,
    /// Whether it had to be written.
    pub(super) written: bool,
    /// Its size.
    pub(super) bytes: usize,
    /// Its mode.
    pub(super) mode: u32,
    /// What it said when it was tried.
    pub(super) said: String,
}

/// How files begin that are not yet in their place.
const UNFINISHED: &str = ".softclose-unfinished-";

/// The permission bits of a mode, without the file's type.
const PERMISSIONS: u32 = 0o7777;

impl Place<'_> {
    /// Puts `bytes` there as `name`, after `try_out` was content with them where they are.
    pub(super) fn put(
        &self,
        name: &str,
        mode: u32,
        bytes: &[u8],
        try_out: impl Fn(&Path) -> Result<String, Trouble>,
    ) -> Result<Done, Trouble> {
        let path = self.path.join(name);
        let written = !is_there(&path, mode, bytes);
        let said = if written {
            let unfinished = Unfinished::write(self.path, mode, bytes)?;
            let said = try_out(&unfinished.0)?;
            unfinished.rename(&path)?;
            self.flush()?;
            said
        } else {
            try_out(&path)?
        };
        Ok(Done { path, written, bytes: bytes.len(), mode, said })
    }

    /// The new name survives a power failure as well; some file systems cannot say so of a directory.
    fn flush(&self) -> Result<(), Trouble> {
        match self.directory.sync_all() {
            Err(error) if !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                Err(Trouble::writing(&error, format!("cannot flush {}", self.path.display())))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Removes what killed installs left. Only for who is alone at work there.
pub(super) fn clear(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            // Another user's stays where the directory is sticky; it is in nobody's way.
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// Whether the file is there already, with these bytes and this mode; whoever owns it.
fn is_there(path: &Path, mode: u32, bytes: &[u8]) -> bool {
    let right = |metadata: &fs::Metadata| {
        metadata.is_file()
            && metadata.permissions().mode() & PERMISSIONS == mode
            && usize::try_from(metadata.len()) == Ok(bytes.len())
    };
    fs::symlink_metadata(path).is_ok_and(|metadata| right(&metadata))
        && fs::read(path).is_ok_and(|found| found == bytes)
}

/// A file without its final name; removed unless it gets it.
struct Unfinished(PathBuf);

impl Unfinished {
    fn write(directory: &Path, mode: u32, bytes: &[u8]) -> Result<Self, Trouble> {
        let (unfinished, mut file) = Self::create(directory)?;
        let written = file
            .write_all(bytes)
            // After the bytes, and whatever the umask is.
            .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
            .and_then(|()| file.sync_all());
        match written {
            Ok(()) => Ok(unfinished),
            Err(error) => {
                Err(Trouble::writing(&error, format!("cannot write {} bytes to {}", bytes.len(), directory.display())))
            }
        }
    }

    /// A process id alone does not do: in two containers both are 1.
    fn create(directory: &Path) -> Result<(Self, File), Trouble> {
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let path = directory.join(format!("{UNFINISHED}{}-{}", std::process::id(), now.as_nanos()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok((Self(path), file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(Trouble::writing(&error, format!("cannot create a file in {}", directory.display())));
                }
            }
        }
    }

    fn rename(self, to: &Path) -> Result<(), Trouble> {
        // Replaces the name alone: who runs or reads the old file goes on with it.
        fs::rename(&self.0, to)
            .map_err(|error| Trouble::writing(&error, format!("cannot put {} in its place", to.display())))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After a rename there is nothing of this name.
        drop(fs::remove_file(&self.0));
    }
}
