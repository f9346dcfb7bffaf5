//! Bytes on a connection, for what no well-behaved client would send: half heads, odd versions, resets, bare h2 frames.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::{http, topology};

const PATIENCE: Duration = Duration::from_secs(15);

/// An open connection.
pub(crate) struct Wire {
    stream: TcpStream,
    /// Read, but not yet asked for.
    unread: Vec<u8>,
}

impl Wire {
    /// Connects to a port of this machine, as the operator.
    pub(crate) async fn to(port: u16) -> Result<Self> {
        Self::from(topology::OPERATOR, port).await
    }

    /// Connects from an address of this machine.
    pub(crate) async fn from(address: IpAddr, port: u16) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(address, 0))?;
        let stream = http::connect(socket, topology::local(port)).await.with_context(|| format!("port {port}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.stream.write_all(bytes.as_ref()).await?)
    }

    /// The next answer: head and, by its `content-length`, body.
    pub(crate) async fn answer(&mut self) -> Result<String> {
        let head = self.until(|bytes| bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)).await?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let length = length.unwrap_or(0);
        let body = self.until(|bytes| (bytes.len() >= length).then_some(length)).await?;
        Ok(head + &body)
    }

    /// Whether the other end has closed within `time`; what it says in the meantime is thrown away.
    pub(crate) async fn closes_within(&mut self, time: Duration) -> bool {
        let mut buffer = [0; 4096];
        let end = async {
            // A reset is an end as well.
            while self.stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
        };
        tokio::time::timeout(time, end).await.is_ok()
    }

    /// Ends the connection with RST instead of FIN.
    pub(crate) fn reset(self) -> Result<()> {
        Ok(self.stream.set_zero_linger()?)
    }

    /// Sends the h2 preface and one request as stream 1, whose pseudo-headers may be as odd as one likes.
    pub(crate) async fn send_h2(&mut self, method: &str, path: &str) -> Result<()> {
        let mut block = Vec::new();
        let authority = topology::local(topology::TRAFFIC).to_string();
        for (name, value) in [(":method", method), (":scheme", "http"), (":path", path), (":authority", &authority)] {
            // RFC 7541 6.2.2: literal without indexing, new name, both without Huffman.
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).ok().filter(|length| *length < 0x7f).context("too long a header")?);
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        self.send(frame(SETTINGS, 0, 0, &[])?).await?;
        self.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &block)?).await
    }

    /// Gives stream 1 up, and keeps the connection.
    pub(crate) async fn reset_h2_stream(&mut self) -> Result<()> {
        const CANCEL: u32 = 8;
        self.send(frame(RST_STREAM, 0, 1, &CANCEL.to_be_bytes())?).await
    }

    /// The status of stream 1's answer; an error if the stream was reset instead.
    pub(crate) async fn h2_status(&mut self) -> Result<u16> {
        loop {
            let head = self.bytes(9).await?;
            let [a, b, c, kind, _flags, rest @ ..] = head.as_slice() else { bail!("a short frame") };
            let payload = self.bytes(usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)).await?;
            let stream = rest.last().copied().unwrap_or_default();
            match (*kind, stream) {
                (HEADERS, 1) => return status_of(&payload),
                (RST_STREAM, 1) => bail!("the stream was reset"),
                _ => {}
            }
        }
    }

    async fn until(&mut self, end: impl Fn(&[u8]) -> Option<usize>) -> Result<String> {
        let read = async {
            loop {
                if let Some(at) = end(&self.unread) {
                    let rest = self.unread.split_off(at);
                    return Ok(std::mem::replace(&mut self.unread, rest));
                }
                let mut buffer = [0; 4096];
                match self.stream.read(&mut buffer).await? {
                    0 => bail!("closed after {:?}", String::from_utf8_lossy(&self.unread)),
                    read => self.unread.extend_from_slice(buffer.get(..read).unwrap_or_default()),
                }
            }
        };
        let bytes = tokio::time::timeout(PATIENCE, read).await.context("no answer in time")??;
        Ok(bytes.into_iter().map(char::from).collect())
    }

    async fn bytes(&mut self, count: usize) -> Result<Vec<u8>> {
        let text = self.until(|bytes| (bytes.len() >= count).then_some(count)).await?;
        // `until` maps each byte to the character of that number.
        Ok(text.chars().filter_map(|character| u8::try_from(u32::from(character)).ok()).collect())
    }
}

/// A whole exchange; the first line of the answer, or why there is none.
pub(crate) async fn exchange(port: u16, request: &str) -> String {
    match answer_to(port, request).await {
        Ok(answer) => answer,
        Err(error) => format!("{error:#}"),
    }
}

/// Sends a request as it is; the answer as it is.
pub(crate) async fn answer_to(port: u16, request: &str) -> Result<String> {
    let mut wire = Wire::to(port).await?;
    wire.send(request).await?;
    wire.answer().await
}

/// The status of an HTTP/1 answer; 0 if that is none.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// A header of an HTTP/1 answer.
pub(crate) fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let fields = answer.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(':'));
    fields.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// RFC 9113 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(payload.len())?.to_be_bytes();
    let mut bytes = length.get(1..).unwrap_or_default().to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// The status at the head of a header block: of RFC 7541's static table only, which holds what is looked for here.
fn status_of(block: &[u8]) -> Result<u16> {
    // A change of the dynamic table's size may come first.
    match block.iter().find(|byte| **byte & 0xe0 != 0x20) {
        Some(0x88) => Ok(200),
        Some(0x8c) => Ok(400),
        Some(0x8d) => Ok(404),
        Some(0x8e) => Ok(500),
        other => bail!("a status beside the static table ({other:02x?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_whatever_its_case_and_only_in_the_head() {
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nx-late: 1";
        assert_eq!(
            (status(answer), header(answer, "connection"), header(answer, "x-late")),
            (200, Some("close"), None)
        );
    }

    #[test]
    fn a_status_may_follow_a_table_size() {
        assert_eq!(status_of(&[0x3f, 0x88]).unwrap(), 200);
        assert_eq!(frame(SETTINGS, 0, 0, &[]).unwrap(), [0, 0, 0, 4, 0, 0, 0, 0, 0]);
    }
}
