use crate::http::{Connection, Failure, Head};

/// A chunk's size line may carry extensions; nobody here sends any.
const SIZE_LINE_MAX: usize = 256;
const TRAILERS_MAX: usize = 64;

/// Gives the body to `take`, part by part, and returns once it is whole.
pub(super) fn read(
    connection: &mut Connection,
    head: &Head,
    body_max: usize,
    take: &mut dyn FnMut(&[u8]),
) -> Result<(), Failure> {
    if head.status == 204 || head.status == 304 {
        return Ok(());
    }
    if let Some(coding) = head.header("transfer-encoding") {
        if !coding.eq_ignore_ascii_case(b"chunked") {
            return Err(Failure::Garbage("an unknown transfer-encoding"));
        }
        return chunks(connection, body_max, take);
    }
    // Without a length an answer that was cut short looks whole. Envoy and the agent always send one.
    let length = head.header("content-length").ok_or(Failure::Garbage("a body of unknown length"))?;
    let length = number(length, 10).ok_or(Failure::Garbage("content-length is not a number"))?;
    if length > body_max {
        return Err(Failure::Garbage("a body too large"));
    }
    exactly(connection, length, take)
}

fn chunks(connection: &mut Connection, body_max: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), Failure> {
    let mut allowed = body_max;
    loop {
        let line = connection.line(SIZE_LINE_MAX)?;
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size = number(size, 16).ok_or(Failure::Garbage("a chunk without a size"))?;
        if size == 0 {
            return trailers(connection);
        }
        allowed = allowed.checked_sub(size).ok_or(Failure::Garbage("a body too large"))?;
        exactly(connection, size, take)?;
        if !connection.line(SIZE_LINE_MAX)?.is_empty() {
            return Err(Failure::Garbage("a chunk longer than its size"));
        }
    }
}

fn trailers(connection: &mut Connection) -> Result<(), Failure> {
    for _ in 0..TRAILERS_MAX {
        if connection.line(SIZE_LINE_MAX)?.is_empty() {
            return Ok(());
        }
    }
    Err(Failure::Garbage("too many trailers"))
}

fn exactly(connection: &mut Connection, length: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), Failure> {
    let mut missing = length;
    while missing > 0 {
        if connection.unused.is_empty() {
            connection.fill()?;
        }
        let count = missing.min(connection.unused.len());
        take(connection.unused.get(..count).unwrap_or_default());
        connection.unused.drain(..count);
        missing -= count;
    }
    Ok(())
}

/// Digits only: `from_str_radix` alone would take a sign.
fn number(digits: &[u8], radix: u32) -> Option<usize> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    usize::from_str_radix(digits, radix).ok()
}
