use crate::http::{Connection, Failure};

/// Envoy's own limit for response headers is 60 KiB; control, admin and the agent send less than one.
const LINE_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;

/// Status and headers of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The status.
    pub(crate) status: u16,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Head {
    /// The value of the first header called `name` (in lower case).
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        let named = |(found, _): &&(Vec<u8>, Vec<u8>)| found.eq_ignore_ascii_case(name.as_bytes());
        self.headers.iter().find(named).map(|(_, value)| value.as_slice())
    }
}

pub(super) fn read(connection: &mut Connection) -> Result<Head, Failure> {
    let status = status(&connection.line(LINE_MAX)?).ok_or(Failure::Garbage("no status line"))?;
    let mut headers = Vec::new();
    loop {
        let line = connection.line(LINE_MAX)?;
        if line.is_empty() {
            return Ok(Head { status, headers });
        }
        if headers.len() >= HEADERS_MAX {
            return Err(Failure::Garbage("too many headers"));
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else {
            return Err(Failure::Garbage("a header without a colon"));
        };
        headers.push((name.to_vec(), value.trim_ascii().to_vec()));
    }
}

/// The status in `HTTP/1.1 200 OK`. There is no 1xx: nothing that we send asks for one.
fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, after) = rest.split_at_checked(3)?;
    let status = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (matches!(after.first(), None | Some(b' ')) && (200..600).contains(&status)).then_some(status)
}
