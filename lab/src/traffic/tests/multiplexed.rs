//! HTTP/2: what resets, goaways and idle connections cost.

use super::*;

#[tokio::test]
async fn an_idle_h2_connection_that_its_peer_closed_costs_no_request() {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let (closed, is_closed) = mpsc::channel::<()>();
    let (address, listens) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            let (stream, _peer) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            answer_whole(connection.accept().await.unwrap().unwrap().1);
            tokio::select! {
                biased;
                _told = told => {}
                _next = connection.accept() => panic!("a second request on the first connection"),
            }
            drop(connection);
            closed.send(()).unwrap();
            let (stream, _peer) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            answer_whole(connection.accept().await.unwrap().unwrap().1);
            // Until the client has left.
            while connection.accept().await.is_some() {}
        });
    });
    let target = at(listens.recv().unwrap());
    let client = http2::Client::new(target, true);
    let request = hyper::Request::builder().uri("http://test/fast").body(Bytes::new()).unwrap();
    let mut first = Progress::new(DONE.len() as u64);
    client.exchange(&request, &mut first).await.unwrap();
    // This thread runs the client's tasks as well: none of them can see the close before the request is under way.
    tell.send(()).unwrap();
    is_closed.recv().unwrap();
    let mut second = Progress::new(DONE.len() as u64);
    client.exchange(&request, &mut second).await.unwrap();
    assert!(first.is_whole() && second.is_whole() && !second.reused);
    drop(client);
    tokio::task::spawn_blocking(|| server.join().unwrap()).await.unwrap();
}

#[tokio::test]
async fn an_h2_stream_that_its_peer_resets_is_told_by_its_code() {
    for (reason, loss) in [
        (h2::Reason::CANCEL, "h2 CANCEL"),
        (h2::Reason::REFUSED_STREAM, "h2 REFUSED_STREAM"),
        (h2::Reason::INTERNAL_ERROR, "h2 INTERNAL_ERROR"),
    ] {
        let (target, _server) = h2_server(move |_, mut respond| async move { respond.send_reset(reason) }).await;
        let load = play(fast(Protocol::H2, Connection::Kept), &target, 10).await;
        assert_eq!(losses(&load), only(loss));
        assert!(load.fates.iter().all(|fate| fate.status == 0));
        assert!(load.fates.iter().any(|fate| fate.reused), "a reset stream leaves its connection");
    }
}

#[tokio::test]
async fn an_h2_stream_that_is_reset_in_mid_answer_keeps_code_and_chunks() {
    for (reason, loss) in [(h2::Reason::CANCEL, "h2 CANCEL"), (h2::Reason::NO_ERROR, "h2 NO_ERROR")] {
        let (target, _server) = server(move |_, stream| async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let mut pings = connection.ping_pong().unwrap();
            let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
            let mut body = respond.send_response(hyper::Response::new(()), false).unwrap();
            body.send_data("chunk        1\nchunk".into(), false).unwrap();
            tokio::spawn(async move {
                // A ping may overtake the data, but not the data of before its forerunner's answer.
                for _ in 0..2 {
                    pings.ping(h2::Ping::opaque()).await.unwrap();
                }
                body.send_reset(reason);
            });
            while connection.accept().await.is_some() {}
        })
        .await;
        let stream = stream(Protocol::H2, "/stream?seconds=1&interval=0.1", 50.0, Connection::New);
        let load = play(stream, &target, 5).await;
        assert_eq!(losses(&load), only(loss));
        for fate in &load.fates {
            assert_eq!((fate.status, fate.bytes, fate.chunks, fate.expected_chunks), (200, 20, 1, 10));
        }
    }
}

#[tokio::test]
async fn a_goaway_that_leaves_a_request_out_is_a_loss_with_that_word() {
    let (target, _server) = server(|_, mut stream| async move {
        // RFC 9113: the client's preface (3.4), frames (4.1) up to HEADERS (6.2), which is type 1.
        stream.read_exact(&mut [0; 24]).await.unwrap();
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let mut frame = [0; 9];
        while frame[3] != 1 {
            stream.read_exact(&mut frame).await.unwrap();
            let length = usize::from(frame[1]) << 8 | usize::from(frame[2]);
            stream.read_exact(&mut vec![0; length]).await.unwrap();
        }
        // GOAWAY (6.8) with last stream 0 and ENHANCE_YOUR_CALM.
        stream.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11]).await.unwrap();
        while stream.read_u8().await.is_ok() {}
    })
    .await;
    let load = play(fast(Protocol::H2, Connection::New), &target, 10).await;
    assert_eq!(losses(&load), only("h2 GOAWAY ENHANCE_YOUR_CALM"));
}

#[tokio::test]
async fn a_close_without_goaway_or_reset_counts_on_h2_as_well() {
    let (target, _server) = server(|_, stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let _request = connection.accept().await.unwrap().unwrap();
    })
    .await;
    let load = play(fast(Protocol::H2, Connection::New), &target, 10).await;
    assert_eq!(losses(&load), only("closed"));
}

#[tokio::test]
async fn after_a_goaway_the_next_request_takes_another_connection_and_the_one_under_way_ends_well() {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let (target, _server) = server(move |_, stream| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let mut requests = 0;
            while let Some(Ok((_request, respond))) = connection.accept().await {
                requests += 1;
                if requests == 3 {
                    connection.graceful_shutdown();
                }
                answer_whole(respond);
            }
        }
    })
    .await;
    let load = play(fast(Protocol::H2, Connection::Kept), &target, 30).await;
    assert_eq!(losses(&load), none());
    let seen = connections.load(Ordering::SeqCst);
    assert!(seen >= 2 && seen < load.fates.len(), "{seen} connections for {} requests", load.fates.len());
}

#[tokio::test]
async fn more_requests_than_one_h2_connection_bears_open_another() {
    let (release, released) = watch::channel(false);
    let (target, _server) = h2_server(move |_, respond| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            answer_whole(respond);
        }
    })
    .await;
    let connections = Arc::new(AtomicUsize::new(0));
    let (count, inner) = (Arc::clone(&connections), target.clone());
    let target = target.by(Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        inner.connect_tcp()
    }));
    let stream = stream(Protocol::H2, "/fast", 500.0, Connection::Kept);
    let traffic = Traffic::start(&[stream], &target, 7, Clock::start()).unwrap();
    let in_flight = async || (traffic.in_flight() >= 150).then_some(());
    wait::until("150 requests are in flight", LIMIT, in_flight).await.unwrap();
    let seen = connections.load(Ordering::SeqCst);
    assert!((2..=4).contains(&seen), "{seen} connections");
    release.send_replace(true);
    assert_eq!(losses(&traffic.stop(LIMIT).await.unwrap()), none());
}
