use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{BODY_MAX, Failure, Response, exchange};
use crate::address::Address;

/// What comes of an exchange with a listener that answers exactly `bytes`, then closes.
fn answered(bytes: &[u8]) -> Result<Response, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    let bytes = bytes.to_vec();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        // The client may have had enough before the end.
        drop(stream.write_all(&bytes));
        drop(stream.shutdown(Shutdown::Write));
        request
    });
    let result = exchange(&address, "POST", "/drain?a=b&c", Duration::from_secs(5));
    let request = String::from_utf8(server.join().unwrap()).unwrap();
    assert!(request.starts_with("POST /drain?a=b&c HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
    assert!(
        request.contains("\r\nconnection: close\r\n") && request.contains("\r\ncontent-length: 0\r\n"),
        "{request}"
    );
    result
}

fn body(bytes: &[u8]) -> Vec<u8> {
    answered(bytes).unwrap().body
}

#[test]
fn a_body_of_known_length_is_read_to_its_end() {
    let response =
        answered(b"HTTP/1.1 200 OK\r\nX-Softclose-State: OPEN\r\ncontent-length:  5 \r\n\r\nhelloandmore").unwrap();
    assert_eq!(response.head.status, 200);
    assert_eq!(response.head.header("x-softclose-state"), Some(b"OPEN".as_slice()));
    assert_eq!(response.head.header("x-other"), None);
    assert_eq!(response.body, b"hello");
}

#[test]
fn a_chunked_body_is_put_together() {
    let chunked =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\nx: y\r\n\r\n";
    assert_eq!(body(chunked), b"hello, world");
}

#[test]
fn an_answer_without_a_body_is_whole() {
    assert_eq!(body(b"HTTP/1.1 204 No Content\r\n\r\n"), b"");
    assert_eq!(body(b"HTTP/1.0 200\r\ncontent-length: 0\r\n\r\n"), b"");
    assert_eq!(body(b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok"), b"ok");
}

#[test]
fn a_chunk_size_that_is_a_length_in_large_pieces_is_read() {
    let long = vec![b'x'; 100_000];
    let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n186A0\r\n".to_vec();
    bytes.extend_from_slice(&long);
    bytes.extend_from_slice(b"\r\n0\r\n\r\n");
    assert_eq!(body(&bytes), long);
}

#[test]
fn half_an_answer_is_no_answer() {
    for half in [
        b"".as_slice(),
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ] {
        assert_eq!(answered(half), Err(Failure::CutShort), "{}", String::from_utf8_lossy(half));
    }
}

#[test]
fn what_is_not_http_is_garbage() {
    for garbage in [
        b"SSH-2.0-OpenSSH\r\n".as_slice(),
        b"\x15\x03\x01\x00\x02\x02\x0a\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ] {
        assert!(matches!(answered(garbage), Err(Failure::Garbage(_))), "{}", String::from_utf8_lossy(garbage));
    }
}

#[test]
fn a_huge_head_or_body_is_refused_and_not_swallowed() {
    let mut line = b"HTTP/1.1 200 OK\r\nx: ".to_vec();
    line.resize(1 << 20, b'x');
    assert_eq!(answered(&line), Err(Failure::Garbage("a line without an end")));

    let mut many = b"HTTP/1.1 200 OK\r\n".to_vec();
    many.extend_from_slice(&b"x: y\r\n".repeat(1000));
    assert_eq!(answered(&many), Err(Failure::Garbage("too many headers")));

    let large = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", BODY_MAX + 1);
    assert_eq!(answered(large.as_bytes()), Err(Failure::Garbage("a body too large")));

    let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let chunk = [b"8000\r\n".to_vec(), vec![b'x'; 0x8000], b"\r\n".to_vec()].concat();
    chunked.extend_from_slice(&chunk.repeat(9));
    assert_eq!(answered(&chunked), Err(Failure::Garbage("a body too large")));
}

#[test]
fn nothing_listening_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    drop(listener);
    assert_eq!(exchange(&address, "GET", "/", Duration::from_secs(1)), Err(Failure::Refused));
}

#[test]
fn an_answer_that_does_not_come_or_drips_ends_at_the_deadline() {
    for drip in [b"".as_slice(), b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for byte in drip.iter().chain([b'x'; 40].iter()) {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let start = Instant::now();
        assert_eq!(exchange(&address, "GET", "/", Duration::from_millis(200)), Err(Failure::Silent));
        assert!(start.elapsed() < Duration::from_secs(1));
        server.join().unwrap();
    }
}

#[test]
fn localhost_is_found_where_only_ipv6_listens() {
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    });
    let address = Address::parse(&format!("localhost:{port}")).unwrap();
    assert_eq!(exchange(&address, "GET", "/", Duration::from_secs(2)).unwrap().body, b"ok");
    server.join().unwrap();
}

#[test]
fn a_socket_in_the_file_system_is_asked_like_a_port() {
    let path = std::env::temp_dir().join(format!("softclose-{}.sock", std::process::id()));
    let address = Address::parse(&format!("unix:{}", path.display())).unwrap();
    let ask = || exchange(&address, "GET", "/", Duration::from_secs(2));
    assert_eq!(ask(), Err(Failure::Refused), "no such file");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 512];
        let length = stream.read(&mut head).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        String::from_utf8_lossy(&head[..length]).into_owned()
    });
    assert_eq!(ask().unwrap().body, b"ok");
    assert!(server.join().unwrap().contains("host: softclose\r\n"));
    assert_eq!(ask(), Err(Failure::Refused), "the file of one that is gone");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_socket_whose_backlog_is_full_ends_at_the_deadline() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let path = std::env::temp_dir().join(format!("softclose-full-{}.sock", std::process::id()));
    // The standard library's own backlog holds thousands; this one takes a single connection.
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    let address = Address::parse(&format!("unix:{}", path.display())).unwrap();
    let start = Instant::now();
    assert_eq!(exchange(&address, "GET", "/", Duration::from_millis(200)), Err(Failure::Silent));
    assert!(start.elapsed() < Duration::from_secs(1));
    std::fs::remove_file(&path).unwrap();
}
