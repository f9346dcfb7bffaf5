//! HTTP/2: many requests at a time on a connection, as many as the peer allows; then another connection is opened.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use h2::client::{ResponseFuture, SendRequest};
use hyper::Request;
use hyper::body::Bytes;
use tokio::sync::OnceCell;

use super::client::Progress;
use super::connect::Target;
use super::failure;
use super::wire::Written;
use crate::curl::Protocol;
use crate::fate::Error;
use crate::watch::lock;

/// Requests at a time on one connection: HAProxy's tune.h2.max-concurrent-streams, 100 by default. One more would wait in
/// the client, and a request that waits there has not started.
const MAX_STREAMS: usize = 100;

pub(super) struct Client {
    target: Target,
    /// None if none is kept.
    links: Option<Mutex<Vec<Arc<Link>>>>,
}

/// A connection, possibly still being opened: whoever comes meanwhile waits for it and shares its outcome.
#[derive(Default)]
struct Link {
    open: OnceCell<Result<Open, Error>>,
    in_flight: AtomicUsize,
    sent: AtomicU64,
    /// Takes no more requests: refused, closed, or told to go away.
    over: Arc<AtomicBool>,
}

/// A connection that came about.
struct Open {
    sender: SendRequest<Bytes>,
    written: Written,
}

/// A request's place on a connection.
struct Place(Arc<Link>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Client {
    pub(super) fn new(target: Target, kept: bool) -> Self {
        Self { target, links: kept.then(Mutex::default) }
    }

    /// Scheme and authority, which are part of an h2 request's URI.
    pub(super) fn origin(&self) -> String {
        format!("{}://{}", self.target.scheme(), self.target.authority)
    }

    pub(super) async fn exchange(&self, request: &Request<Bytes>, progress: &mut Progress) -> Result<(), Error> {
        loop {
            let place = self.place();
            let link = &place.0;
            let mut opened = false;
            let opening = || {
                opened = true;
                self.open(Arc::clone(&link.over))
            };
            let open = match link.open.get_or_init(opening).await {
                Ok(open) => open,
                Err(error) => {
                    link.over.store(true, Ordering::SeqCst);
                    return Err(error.clone());
                }
            };
            let written = open.written.bytes();
            let (error, unsent) = match send(&open.sender, request, link, progress).await {
                Ok(answer) => match answer.await {
                    Ok(answer) => return read(answer.into_parts(), progress).await,
                    Err(error) => {
                        let unsent = !error.is_reset() && open.written.bytes() == written;
                        (error, unsent)
                    }
                },
                Err(error) => (error, true),
            };
            if !error.is_reset() {
                link.over.store(true, Ordering::SeqCst);
            }
            // A connection that had been open before may have been ended by its peer while it was idle, or told to go away; a
            // request of which no byte was sent takes another one.
            if opened || !unsent {
                return Err(failure::of_h2(&error));
            }
        }
    }

    /// The first connection with room, or a new one.
    fn place(&self) -> Place {
        let Some(links) = &self.links else { return Link::default().place() };
        let mut links = lock(links);
        links.retain(|link| !link.over.load(Ordering::SeqCst));
        if let Some(link) = links.iter().find(|link| link.has_room()) {
            return Arc::clone(link).enter();
        }
        let place = Link::default().place();
        links.push(Arc::clone(&place.0));
        place
    }

    async fn open(&self, over: Arc<AtomicBool>) -> Result<Open, Error> {
        let wire = self.target.open(Protocol::H2).await?;
        let written = wire.written();
        let (sender, connection) = h2::client::handshake(wire).await.map_err(|error| failure::of_h2(&error))?;
        tokio::spawn(async move {
            // Ends with its last sender. What went wrong, the requests on it know.
            let _closed = connection.await;
            over.store(true, Ordering::SeqCst);
        });
        Ok(Open { sender, written })
    }
}

impl Link {
    fn place(self) -> Place {
        Arc::new(self).enter()
    }

    fn enter(self: Arc<Self>) -> Place {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Place(self)
    }

    fn has_room(&self) -> bool {
        let allowed = match self.open.get() {
            Some(Ok(open)) => open.sender.current_max_send_streams().min(MAX_STREAMS),
            Some(Err(_)) => 0,
            None => MAX_STREAMS,
        };
        self.in_flight.load(Ordering::SeqCst) < allowed
    }
}

/// Hands the request to the connection; an error means that nothing of it was sent.
async fn send(
    sender: &SendRequest<Bytes>,
    request: &Request<Bytes>,
    link: &Link,
    progress: &mut Progress,
) -> Result<ResponseFuture, h2::Error> {
    let mut sender = sender.clone().ready().await?;
    let body = request.body().clone();
    let (response, mut rest) = sender.send_request(request.clone().map(|_| ()), body.is_empty())?;
    progress.sent(link.sent.fetch_add(1, Ordering::SeqCst) > 0);
    if !body.is_empty() {
        // Kept by h2 until the peer's window takes it. A stream that was reset meanwhile says so in its response.
        let _reset = rest.send_data(body, true);
    }
    Ok(response)
}

/// Reads an answer to its end.
async fn read(
    (head, mut body): (hyper::http::response::Parts, h2::RecvStream),
    progress: &mut Progress,
) -> Result<(), Error> {
    progress.status = head.status.as_u16();
    while let Some(data) = body.data().await {
        let data = match data {
            Ok(data) => data,
            // Behind a whole answer it asks to send no more of the request (RFC 9113, 8.1).
            Err(error) if asks_for_no_more(&error) && progress.is_whole() => return Ok(()),
            Err(error) => return Err(failure::of_h2(&error)),
        };
        progress.read(&data);
        body.flow_control().release_capacity(data.len()).map_err(|error| failure::of_h2(&error))?;
    }
    match body.trailers().await {
        Err(error) if !(asks_for_no_more(&error) && progress.is_whole()) => Err(failure::of_h2(&error)),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn asks_for_no_more(error: &h2::Error) -> bool {
    error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::NO_ERROR)
}
