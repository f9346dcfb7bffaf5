//! Where the bytes come from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{MODULE, Trouble};
use crate::exit;

/// A file that was read whole.
pub(super) struct Source {
    /// Where it is.
    pub(super) path: PathBuf,
    /// What is in it.
    pub(super) bytes: Vec<u8>,
}

/// What the kernel runs as this process, whatever its path holds by now.
const SELF: &str = "/proc/self/exe";

/// Istio's agent takes no module larger than this either.
const SIZE_MAX: u64 = 256 * 1024 * 1024;

/// This binary itself.
pub(super) fn binary() -> Result<Source, Trouble> {
    // Without /proc the name that it was started by has to do: an initContainer's command is an absolute path.
    let started = std::env::args_os().next().map(PathBuf::from).filter(|path| path.components().count() > 1);
    match (std::env::current_exe(), started) {
        (Ok(path), _) => match read(Path::new(SELF)) {
            Ok(bytes) => Ok(Source { path, bytes }),
            Err(_) => whole(path, "this binary itself"),
        },
        (Err(_), Some(path)) => whole(path, "this binary itself"),
        (Err(error), None) => Err(Trouble {
            code: exit::NO_SOURCE,
            what: format!("cannot tell where this binary is: {error}"),
            hint: "mount /proc, or start it by its absolute path",
        }),
    }
}

/// The module that is `named`, else the one beside the binary.
pub(super) fn module(named: Option<&Path>, binary: &Path) -> Result<Source, Trouble> {
    let path = named.map_or_else(|| binary.with_file_name(MODULE), Path::to_path_buf);
    let module = whole(path, "the module")?;
    // What Envoy and Istio's agent look at first.
    if module.bytes.len() >= 8 && module.bytes.starts_with(b"\0asm") {
        return Ok(module);
    }
    Err(Trouble {
        code: exit::NO_SOURCE,
        what: format!("{} is no Wasm module ({} bytes)", module.path.display(), module.bytes.len()),
        hint: "the image holds /softclose.wasm; --module names another",
    })
}

fn whole(path: PathBuf, what: &str) -> Result<Source, Trouble> {
    match read(&path) {
        Ok(bytes) => Ok(Source { path, bytes }),
        Err(error) => Err(Trouble {
            code: exit::NO_SOURCE,
            what: format!("cannot read {what}, {}: {error}", path.display()),
            hint: "softclose.wasm is expected beside the binary; --module names another",
        }),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() > SIZE_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{} bytes, at most {SIZE_MAX}", metadata.len()),
        ));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
