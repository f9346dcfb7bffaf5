//! The load against small servers of this process, without TLS.

mod multiplexed;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, mpsc};

use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::stream::{Connection, Method};
use super::*;
use crate::backend;
use crate::curl::Protocol;
use crate::watch::lock;

const LIMIT: Duration = Duration::from_secs(20);
/// The application's answer to `/fast`.
const DONE: &str = "the whole answer, to the last byte\n";

fn stream(protocol: Protocol, path: &str, rate: f64, connection: Connection) -> Stream {
    let (name, path) = ("page".to_owned(), path.to_owned());
    Stream { name, protocol, path, rate, connection, method: Method::Get, body_bytes: 0, replayable: None }
}

fn fast(protocol: Protocol, connection: Connection) -> Stream {
    stream(protocol, "/fast", 100.0, connection)
}

/// Where a server of this process listens.
fn at(address: SocketAddr) -> Target {
    Target::plain(Arc::new(move || Box::pin(TcpStream::connect(address))))
}

/// A server that gives each of its connections, numbered from 0, to `serve`.
async fn server<F>(serve: impl Fn(usize, TcpStream) -> F + Send + 'static) -> (Target, AbortOnDrop<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = at(listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        for number in 0.. {
            let (stream, _peer) = listener.accept().await.unwrap();
            tokio::spawn(serve(number, stream));
        }
    });
    (target, AbortOnDrop(task))
}

/// Reads one bodiless request; None if the peer closed.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_closed) => return None,
        }
    }
    Some(String::from_utf8(text).unwrap())
}

async fn say(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

fn whole_answer() -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{DONE}", DONE.len())
}

/// Plays one stream until so many requests have started and those are over.
async fn play(stream: Stream, target: &Target, requests: u64) -> Load {
    let traffic = Traffic::start(&[stream], target, 7, Clock::start()).unwrap();
    let started = async || (traffic.started() >= requests).then_some(());
    wait::until("the requests have started", LIMIT, started).await.unwrap();
    traffic.stop(LIMIT).await.unwrap()
}

fn losses(load: &Load) -> HashSet<Option<String>> {
    assert!(!load.fates.is_empty());
    load.fates.iter().map(Fate::loss).collect()
}

fn only(loss: &str) -> HashSet<Option<String>> {
    HashSet::from([Some(loss.to_owned())])
}

fn none() -> HashSet<Option<String>> {
    HashSet::from([None])
}

/// What an h2 server does with one request.
type Respond = h2::server::SendResponse<Bytes>;

/// An h2 server that gives each request, numbered over all connections, to `answer`.
async fn h2_server<F>(answer: impl Fn(usize, Respond) -> F + Send + Sync + 'static) -> (Target, AbortOnDrop<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (answer, requests) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    server(move |_, stream| {
        let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_request, respond))) = connection.accept().await {
                tokio::spawn(answer(requests.fetch_add(1, Ordering::SeqCst), respond));
            }
        }
    })
    .await
}

fn answer_whole(mut respond: Respond) {
    let mut body = respond.send_response(hyper::Response::new(()), false).unwrap();
    body.send_data(DONE.into(), true).unwrap();
}

#[tokio::test]
async fn a_request_is_late_when_its_connection_is_but_the_schedule_does_not_wait_for_any_answer() {
    let (release, released) = watch::channel(false);
    let (target, _server) = server(move |_, mut stream| {
        let mut released = released.clone();
        async move {
            while request(&mut stream).await.is_some() {
                released.wait_for(|released| *released).await.unwrap();
                say(&mut stream, &whole_answer()).await;
            }
        }
    })
    .await;
    let stream = fast(Protocol::H1, Connection::Kept);
    let traffic = Traffic::start(std::slice::from_ref(&stream), &target, 7, Clock::start()).unwrap();
    let started = async || (traffic.started() >= 60).then_some(());
    wait::until("60 requests have started", LIMIT, started).await.unwrap();
    assert!(traffic.in_flight() >= 60, "no answer came, so that all wait");
    release.send_replace(true);
    let load = traffic.stop(LIMIT).await.unwrap();
    assert_eq!(losses(&load), none());
    let length = load.ended_s - load.began_s;
    let due = Schedule::new(stream.rate, &stream.name, 7).take_while(|due| due.as_secs_f64() < length).count();
    assert_eq!(load.fates.len(), due);
    assert!(load.fates.iter().all(|fate| fate.due_s <= fate.started_s && fate.started_s <= fate.ended_s));
}

#[tokio::test]
async fn every_request_has_an_id_of_its_own_and_tells_it_to_the_application() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    let (target, _server) = server(move |_, mut stream| {
        let log = Arc::clone(&log);
        async move {
            while let Some(text) = request(&mut stream).await {
                let line = text.lines().find_map(|line| line.strip_prefix(&format!("{}: ", backend::REQUEST_ID)));
                lock(&log).push(line.unwrap().to_owned());
                say(&mut stream, &whole_answer()).await;
            }
        }
    })
    .await;
    let streams = ["page", "page-1"].map(|name| Stream { name: name.into(), ..fast(Protocol::H1, Connection::Kept) });
    let traffic = Traffic::start(&streams, &target, 7, Clock::start()).unwrap();
    let started = async || (traffic.started() >= 40).then_some(());
    wait::until("40 requests have started", LIMIT, started).await.unwrap();
    let load = traffic.stop(LIMIT).await.unwrap();
    let ids: HashSet<String> = load.fates.iter().map(|fate| fate.id.clone()).collect();
    assert_eq!(ids.len(), load.fates.len());
    assert_eq!(ids, lock(&heard).iter().cloned().collect());
    assert!(load.fates.iter().any(|fate| fate.reused), "connections are kept");
}

#[tokio::test]
async fn a_fresh_connection_serves_one_request() {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let (target, _server) = server(move |_, mut stream| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            while request(&mut stream).await.is_some() {
                say(&mut stream, &whole_answer()).await;
            }
        }
    })
    .await;
    let load = play(fast(Protocol::H1, Connection::New), &target, 20).await;
    assert_eq!(losses(&load), none());
    assert_eq!(connections.load(Ordering::SeqCst), load.fates.len());
    assert!(load.fates.iter().all(|fate| !fate.reused));
}

#[tokio::test]
async fn a_reset_in_mid_answer_is_a_reset_and_what_came_before_it_is_kept() {
    // The client's side of each connection, to see that it has read.
    let sides = Arc::new(Mutex::new(Vec::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let kept = Arc::clone(&sides);
    let target = Target::plain(Arc::new(move || {
        let kept = Arc::clone(&kept);
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?.into_std()?;
            lock(&kept).push(stream.try_clone()?);
            TcpStream::from_std(stream)
        })
    }));
    let _server = AbortOnDrop(tokio::spawn(async move {
        loop {
            let (mut stream, peer) = listener.accept().await.unwrap();
            let sides = Arc::clone(&sides);
            tokio::spawn(async move {
                request(&mut stream).await.unwrap();
                say(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 35\r\n\r\nthe whole\n").await;
                let is_read = move || {
                    let sides = lock(&sides);
                    let side = sides.iter().find(|side| side.local_addr().is_ok_and(|local| local == peer))?;
                    side.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock).then_some(())
                };
                let has_read = move || std::future::ready(is_read());
                wait::until("the client has read", LIMIT, has_read).await.unwrap();
                stream.set_zero_linger().unwrap();
            });
        }
    }));
    let load = play(fast(Protocol::H1, Connection::Kept), &target, 10).await;
    assert_eq!(losses(&load), only("reset"));
    for fate in &load.fates {
        assert_eq!((fate.status, fate.bytes, fate.chunks, fate.expected_bytes), (200, 10, 1, 35));
    }
}

/// The fates of requests whose answers all begin and end like this, by a close.
async fn ended_by_close(answer: &'static str) -> Load {
    let (target, _server) = server(move |_, mut stream| async move {
        request(&mut stream).await.unwrap();
        say(&mut stream, answer).await;
    })
    .await;
    play(fast(Protocol::H1, Connection::Kept), &target, 10).await
}

#[tokio::test]
async fn an_answer_that_ends_before_its_length_or_its_last_chunk_is_truncated() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 35\r\n\r\nthe whole",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nthe whole\r\n",
    ] {
        let load = ended_by_close(answer).await;
        assert_eq!(losses(&load), only("truncated"));
        assert!(load.fates.iter().all(|fate| fate.error == Some(Error::Truncated) && fate.bytes == 9));
    }
}

#[tokio::test]
async fn a_clean_end_with_fewer_bytes_is_no_error_and_yet_a_loss() {
    for answer in ["HTTP/1.1 200 OK\r\n\r\nthe whole", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nthe whole"] {
        let load = ended_by_close(answer).await;
        assert_eq!(losses(&load), only("truncated"));
        assert!(load.fates.iter().all(|fate| fate.error.is_none() && fate.bytes == 9));
    }
}

#[tokio::test]
async fn an_error_page_counts_by_its_status_and_its_bytes_are_none_of_the_application() {
    let load = ended_by_close("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\nbad\n").await;
    assert_eq!(losses(&load), only("502"));
    assert!(load.fates.iter().all(|fate| fate.bytes == 0 && fate.chunks == 0));
}

#[tokio::test]
async fn a_port_without_listener_refuses() {
    // Bound and not listening: nobody else can take it.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let target = at(socket.local_addr().unwrap());
    for (protocol, connection) in [(Protocol::H1, Connection::New), (Protocol::H2, Connection::Kept)] {
        let load = play(fast(protocol, connection), &target, 10).await;
        assert_eq!(losses(&load), only("refused"));
    }
}

#[tokio::test]
async fn a_close_before_the_answer_counts_on_a_fresh_and_on_a_kept_connection() {
    let (target, _server) = server(|_, mut stream| async move {
        request(&mut stream).await.unwrap();
    })
    .await;
    let load = play(fast(Protocol::H1, Connection::Kept), &target, 10).await;
    assert_eq!(losses(&load), only("closed"));
    assert!(load.fates.iter().all(|fate| !fate.reused));
    // The second request on each connection is read and not answered.
    let (target, _server) = server(|_, mut stream| async move {
        request(&mut stream).await.unwrap();
        say(&mut stream, &whole_answer()).await;
        request(&mut stream).await;
    })
    .await;
    let load = play(fast(Protocol::H1, Connection::Kept), &target, 20).await;
    let closed: Vec<&Fate> = load.fates.iter().filter(|fate| fate.error == Some(Error::Closed)).collect();
    assert!(!closed.is_empty() && closed.iter().all(|fate| fate.reused));
    assert!(load.fates.iter().filter(|fate| !fate.reused).all(Fate::whole));
}

#[tokio::test]
async fn an_idle_connection_that_its_peer_closed_costs_no_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = at(listener.local_addr().unwrap());
    let (close, told) = mpsc::channel::<()>();
    let (closed, is_closed) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        for number in 0..2 {
            let (mut stream, _peer) = listener.accept().unwrap();
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                text.push(byte[0]);
            }
            stream.write_all(whole_answer().as_bytes()).unwrap();
            if number == 0 {
                told.recv().unwrap();
                drop(stream);
                closed.send(()).unwrap();
            }
        }
    });
    let stream = fast(Protocol::H1, Connection::Kept);
    let client = http1::Client::new(target, true);
    let request = |id: &str| {
        let request = hyper::Request::builder().uri("/fast").header("host", "test").header(backend::REQUEST_ID, id);
        request.body(Bytes::new()).unwrap()
    };
    let mut first = Progress::new(stream.expected_bytes());
    client.exchange(request("a"), &mut first).await.unwrap();
    let idle = async || (client.idle_count() == 1).then_some(());
    wait::until("the connection is idle", LIMIT, idle).await.unwrap();
    // This thread runs the client's tasks as well: none of them can see the close before the request is under way.
    close.send(()).unwrap();
    is_closed.recv().unwrap();
    assert_eq!(client.idle_count(), 1, "the client takes the connection for alive");
    let mut second = Progress::new(stream.expected_bytes());
    client.exchange(request("b"), &mut second).await.unwrap();
    assert!(second.is_whole() && !second.reused);
    server.join().unwrap();
}

#[tokio::test]
async fn what_has_no_answer_at_the_limit_is_a_timeout_that_keeps_what_came() {
    let (target, _server) = server(|_, mut stream| async move {
        request(&mut stream).await.unwrap();
        say(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nf\r\nchunk        1\n\r\n").await;
        request(&mut stream).await;
    })
    .await;
    let stream = stream(Protocol::H1, "/stream?seconds=1&interval=0.1", 50.0, Connection::Kept);
    let traffic = Traffic::start(&[stream], &target, 7, Clock::start()).unwrap();
    let in_flight = async || (traffic.in_flight() >= 5).then_some(());
    wait::until("5 requests are in flight", LIMIT, in_flight).await.unwrap();
    let load = traffic.stop(Duration::from_millis(500)).await.unwrap();
    assert_eq!(losses(&load), only("timeout"));
    assert!(load.fates.iter().all(|fate| (fate.status, fate.chunks, fate.expected_chunks) == (200, 1, 10)));
    assert!(load.fates.iter().all(|fate| fate.ended_s >= load.ended_s + 0.5));
}

#[tokio::test]
async fn a_body_is_sent_whole() {
    let sizes = Arc::new(Mutex::new(HashSet::new()));
    let log = Arc::clone(&sizes);
    let (target, _server) = server(move |_, stream| {
        let log = Arc::clone(&log);
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                let log = Arc::clone(&log);
                tokio::spawn(async move {
                    let (mut body, mut size) = (request.into_body(), 0);
                    while let Some(data) = body.data().await {
                        let length = data.unwrap().len();
                        size += length;
                        body.flow_control().release_capacity(length).unwrap();
                    }
                    lock(&log).insert(size);
                    answer_whole(respond);
                });
            }
        }
    })
    .await;
    let upload = Stream { method: Method::Post, body_bytes: 200_000, ..fast(Protocol::H2, Connection::Kept) };
    let load = play(upload, &target, 10).await;
    assert_eq!(losses(&load), none());
    assert_eq!(*lock(&sizes), HashSet::from([200_000]));
}
