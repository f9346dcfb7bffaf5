//! HTTP/1.1: one request at a time on a connection, which is kept for the next one.

use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;

use super::client::Progress;
use super::connect::Target;
use super::failure;
use crate::curl::Protocol;
use crate::fate::Error;
use crate::watch::lock;

type Sender = SendRequest<Full<Bytes>>;

pub(super) struct Client {
    target: Target,
    /// Connections that wait for a request, the one used last at the end; None if none is kept.
    idle: Option<Arc<Mutex<Vec<Sender>>>>,
}

impl Client {
    pub(super) fn new(target: Target, kept: bool) -> Self {
        Self { target, idle: kept.then(Arc::default) }
    }

    pub(super) fn authority(&self) -> &str {
        &self.target.authority
    }

    pub(super) async fn exchange(&self, request: Request<Bytes>, progress: &mut Progress) -> Result<(), Error> {
        let mut request = request.map(Full::new);
        let (response, sender) = loop {
            let (mut sender, reused) = match self.take() {
                Some(sender) => (sender, true),
                None => (self.open().await?, false),
            };
            progress.sent(reused);
            match sender.try_send_request(request).await {
                Ok(response) => break (response, sender),
                Err(mut failed) => match failed.take_message() {
                    // The peer had closed this connection while it was idle; no byte of the request was sent.
                    Some(unsent) if reused => request = unsent,
                    Some(_) | None => return Err(failure::of_hyper(failed.error())),
                },
            }
        };
        let (head, mut body) = response.into_parts();
        progress.status = head.status.as_u16();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| failure::of_hyper(&error))?;
            if let Some(data) = frame.data_ref() {
                progress.read(data);
            }
        }
        self.give_back(sender);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn idle_count(&self) -> usize {
        self.idle.as_ref().map_or(0, |idle| lock(idle).len())
    }

    /// The connection used last, as most pools do: it is the likeliest to be alive.
    fn take(&self) -> Option<Sender> {
        let mut idle = lock(self.idle.as_ref()?);
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }

    async fn open(&self) -> Result<Sender, Error> {
        let wire = self.target.open(Protocol::H1).await?;
        let (sender, connection) = handshake(TokioIo::new(wire)).await.map_err(|error| failure::of_hyper(&error))?;
        tokio::spawn(async move {
            // Ends with its sender. What went wrong, the request on it knows.
            let _closed = connection.await;
        });
        Ok(sender)
    }

    /// Idle again as soon as the connection says so; one that is to close never does.
    fn give_back(&self, mut sender: Sender) {
        let Some(idle) = &self.idle else { return };
        // Not the list itself: a load that was dropped must not be kept by its connections.
        let idle = Arc::downgrade(idle);
        tokio::spawn(async move {
            if sender.ready().await.is_ok()
                && let Some(idle) = idle.upgrade()
            {
                lock(&idle).push(sender);
            }
        });
    }
}
