//! What a load consists of, as a scenario writes it.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::backend;
use crate::curl::Protocol;

/// The highest rate of a stream. The lab's question is what becomes of requests, not how many a machine can bear; two cores
/// with balancer, gateway and client on them serve this rate without being late themselves.
const MAX_RATE: f64 = 1000.0;
/// A name becomes part of a header's value.
const MAX_NAME: usize = 40;
/// The longest body of a request: some hundred of the balancer's buffers.
const MAX_BODY: u32 = 4 << 20;
/// HAProxy can send a request again only if all of it is in one buffer (tune.bufsize, 16,384 by default)...
const BUFFER: u32 = 16_384;
/// ...with tune.maxrewrite (1,024 by default) left free, and as much for the request's head.
const BUFFER_FOR_BODY: u32 = BUFFER - 2 * 1024;

/// Requests of one kind at a steady rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stream {
    /// Unique in its load; a part of each request's id.
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    /// Path and query.
    pub(crate) path: String,
    /// Requests per second.
    pub(crate) rate: f64,
    pub(crate) connection: Connection,
    #[serde(default)]
    pub(crate) method: Method,
    /// Size of a POST's body.
    #[serde(default)]
    pub(crate) body_bytes: u32,
    /// What the scenario relies on: that a balancer can keep the whole request and send it again, or that it cannot. Refused
    /// if the size says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replayable: Option<bool>,
}

/// What a request is sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Connection {
    /// One of the stream's own connections, kept from request to request.
    Kept,
    /// A fresh connection for each request.
    New,
}

/// How the application is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Method {
    #[default]
    Get,
    Post,
}

/// Refuses streams that cannot be played; the error names stream, field, value and bound.
pub(crate) fn check(streams: &[Stream]) -> Result<()> {
    let mut names = HashSet::new();
    for stream in streams {
        stream.check().with_context(|| format!("stream {:?}", stream.name))?;
        ensure!(names.insert(&stream.name), "stream {0:?}: name is {0:?} a second time, must be unique", stream.name);
    }
    Ok(())
}

impl Stream {
    fn check(&self) -> Result<()> {
        let (name, rate, body) = (&self.name, self.rate, self.body_bytes);
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            (1..=MAX_NAME).contains(&name.len()) && name.chars().all(plain),
            "name is {name:?}, must be 1 to {MAX_NAME} of a-z, 0-9 and -"
        );
        ensure!(
            backend::expected_bytes(&self.path).is_some(),
            "path is {:?}, must be one of the application's: /fast, /sleep?seconds=, /stream?seconds=&interval=",
            self.path
        );
        ensure!(rate > 0.0 && rate <= MAX_RATE, "rate is {rate}, must be more than 0 and at most {MAX_RATE} a second");
        ensure!(body <= MAX_BODY, "body_bytes is {body}, must be at most {MAX_BODY}");
        ensure!(self.method == Method::Post || body == 0, "body_bytes is {body}, must be 0 unless method is POST");
        match self.replayable {
            Some(true) => ensure!(
                body <= BUFFER_FOR_BODY,
                "replayable is true with body_bytes of {body}, must be at most {BUFFER_FOR_BODY} to fit one buffer"
            ),
            Some(false) => ensure!(
                body >= BUFFER,
                "replayable is false with body_bytes of {body}, must be at least {BUFFER} to fit no buffer"
            ),
            None => {}
        }
        Ok(())
    }

    /// Unique in a load: names are, and what follows the last hyphen is the request's number.
    pub(super) fn id(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    pub(super) fn expected_bytes(&self) -> u64 {
        backend::expected_bytes(&self.path).unwrap_or_default()
    }

    pub(super) fn expected_chunks(&self) -> u64 {
        backend::expected_chunks(&self.path).unwrap_or_default()
    }
}

impl Method {
    pub(super) fn of_http(self) -> hyper::Method {
        match self {
            Self::Get => hyper::Method::GET,
            Self::Post => hyper::Method::POST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &str) -> Result<Stream> {
        let text = format!("{{name: page, protocol: h1, path: /fast, rate: 10, connection: kept, {more}}}");
        let stream: Stream = serde_saphyr::from_str(&text)?;
        check(std::slice::from_ref(&stream))?;
        Ok(stream)
    }

    #[test]
    fn a_stream_is_a_get_without_a_body_unless_it_says_otherwise() {
        let plain = read("").unwrap();
        assert_eq!((plain.method, plain.body_bytes, plain.replayable), (Method::Get, 0, None));
        let upload = read("method: POST, body_bytes: 65536, replayable: false").unwrap();
        assert_eq!((upload.method, upload.body_bytes), (Method::Post, 65_536));
    }

    #[test]
    fn a_field_that_nobody_knows_is_refused() {
        assert!(format!("{:#}", read("colour: red").unwrap_err()).contains("colour"));
    }

    #[test]
    fn a_stream_that_cannot_be_played_is_refused_by_field_value_and_bound() {
        let good = read("").unwrap();
        let refused = |spoil: &dyn Fn(&mut Stream)| {
            let mut stream = good.clone();
            spoil(&mut stream);
            format!("{:#}", check(&[stream]).unwrap_err())
        };
        let says = |error: String, parts: [&str; 3]| {
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        says(refused(&|s| s.rate = 0.0), ["rate", "is 0", "more than 0"]);
        says(refused(&|s| s.rate = f64::NAN), ["rate", "NaN", "1000"]);
        says(refused(&|s| s.path = "/nothing".into()), ["path", "/nothing", "/sleep"]);
        says(refused(&|s| s.name = "Ä".into()), ["name", "Ä", "a-z"]);
        says(refused(&|s| s.body_bytes = 1), ["body_bytes", "is 1", "POST"]);
        says(
            refused(&|s| (s.method, s.body_bytes) = (Method::Post, u32::MAX)),
            ["body_bytes", "4294967295", "4194304"],
        );
        says(refused(&|s| s.replayable = Some(false)), ["replayable", "of 0", "16384"]);
        let large = |s: &mut Stream| (s.method, s.body_bytes, s.replayable) = (Method::Post, 65_536, Some(true));
        says(refused(&large), ["replayable", "65536", "14336"]);
    }

    #[test]
    fn two_streams_of_one_name_are_refused() {
        let twice = [read("").unwrap(), read("").unwrap()];
        assert!(check(&twice).unwrap_err().to_string().contains("a second time"));
    }
}
