use std::io::{self, Read};

use crate::http::{Connection, Failure, Head};

/// A chunk's size line may carry extensions; nobody here sends any.
const SIZE_LINE_MAX: usize = 256;
const TRAILERS_MAX: usize = 64;

/// A body that is read part by part. Only who has seen its end has a whole one.
pub(super) struct Body<'a> {
    connection: &'a mut Connection,
    left: Left,
    /// Why there is no more of it; an [`io::Error`] cannot carry that.
    failure: Option<Failure>,
}

enum Left {
    /// So many bytes, and then the end.
    Bytes(usize),
    /// So many bytes of a chunk, and then another; so many bytes altogether may still come.
    Chunk { missing: usize, allowed: usize },
    /// Nothing: it is whole.
    Nothing,
}

impl<'a> Body<'a> {
    /// The body of an answer with this head, which may have up to `body_max` bytes.
    pub(super) fn of(connection: &'a mut Connection, head: &Head, body_max: usize) -> Result<Self, Failure> {
        let left = if head.status == 204 || head.status == 304 {
            Left::Nothing
        } else if let Some(coding) = head.header("transfer-encoding") {
            if !coding.eq_ignore_ascii_case(b"chunked") {
                return Err(Failure::Garbage("an unknown transfer-encoding"));
            }
            next_chunk(connection, body_max)?
        } else {
            // Without a length an answer that was cut short looks whole. Envoy and the agent always send one.
            let length = head.header("content-length").ok_or(Failure::Garbage("a body of unknown length"))?;
            let length = number(length, 10).ok_or(Failure::Garbage("content-length is not a number"))?;
            if length > body_max {
                return Err(Failure::Garbage("a body too large"));
            }
            Left::Bytes(length)
        };
        Ok(Self { connection, left, failure: None })
    }

    /// Gives the body to `take`, part by part, and returns once it is whole.
    pub(super) fn take(mut self, take: &mut dyn FnMut(&[u8])) -> Result<(), Failure> {
        loop {
            let part = self.part()?;
            if part.is_empty() {
                return Ok(());
            }
            take(part);
            let count = part.len();
            self.used(count)?;
        }
    }

    /// What there is at the moment; nothing only at the end.
    fn part(&mut self) -> Result<&[u8], Failure> {
        let missing = match self.left {
            Left::Bytes(missing) | Left::Chunk { missing, .. } => missing,
            Left::Nothing => 0,
        };
        if missing > 0 && self.connection.unused.is_empty() {
            self.connection.fill()?;
        }
        let count = missing.min(self.connection.unused.len());
        Ok(self.connection.unused.get(..count).unwrap_or_default())
    }

    /// So much of the last part was used.
    fn used(&mut self, count: usize) -> Result<(), Failure> {
        self.connection.unused.drain(..count);
        self.left = match self.left {
            Left::Bytes(missing) => Left::Bytes(missing.saturating_sub(count)),
            Left::Chunk { missing, allowed } if missing > count => Left::Chunk { missing: missing - count, allowed },
            Left::Chunk { allowed, .. } => {
                if !self.connection.line(SIZE_LINE_MAX)?.is_empty() {
                    return Err(Failure::Garbage("a chunk longer than its size"));
                }
                next_chunk(self.connection, allowed)?
            }
            Left::Nothing => Left::Nothing,
        };
        Ok(())
    }

    /// Why reading failed, if it did.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure
    }
}

impl Read for Body<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.part().map(|part| {
            let count = part.len().min(into.len());
            for (to, from) in into.iter_mut().zip(part) {
                *to = *from;
            }
            count
        });
        read.and_then(|count| if count == 0 { Ok(0) } else { self.used(count).map(|()| count) }).map_err(|failure| {
            self.failure = Some(failure);
            io::ErrorKind::Other.into()
        })
    }
}

fn next_chunk(connection: &mut Connection, allowed: usize) -> Result<Left, Failure> {
    let line = connection.line(SIZE_LINE_MAX)?;
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let size = number(size, 16).ok_or(Failure::Garbage("a chunk without a size"))?;
    if size == 0 {
        return trailers(connection).map(|()| Left::Nothing);
    }
    let allowed = allowed.checked_sub(size).ok_or(Failure::Garbage("a body too large"))?;
    Ok(Left::Chunk { missing: size, allowed })
}

fn trailers(connection: &mut Connection) -> Result<(), Failure> {
    for _ in 0..TRAILERS_MAX {
        if connection.line(SIZE_LINE_MAX)?.is_empty() {
            return Ok(());
        }
    }
    Err(Failure::Garbage("too many trailers"))
}

/// Digits only: `from_str_radix` alone would take a sign.
fn number(digits: &[u8], radix: u32) -> Option<usize> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    usize::from_str_radix(digits, radix).ok()
}
