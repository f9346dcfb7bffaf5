use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A listener on a port of the kernel's choice that answers as it is told, and can hang or vanish.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    handler: Box<dyn Fn(&Request) -> Reply + Send + Sync>,
    seen: Mutex<Vec<String>>,
    /// Connections are taken and not answered, as by a stopped process.
    hanging: AtomicBool,
    /// Whether anything listens.
    listening: AtomicBool,
}

pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
}

pub(crate) enum Reply {
    /// A whole answer: status, extra header lines, body.
    Whole(u16, String, String),
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// The end at once.
    Close,
}

impl Server {
    pub(crate) fn start(ip: &str, handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let ip: std::net::IpAddr = ip.parse().unwrap();
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            shared: Arc::new(Shared {
                handler: Box::new(handler),
                seen: Mutex::default(),
                hanging: AtomicBool::new(false),
                listening: AtomicBool::new(true),
            }),
        };
        server.accept(listener);
        server
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Every request so far, `METHOD target`.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn hang(&self, hanging: bool) {
        self.shared.hanging.store(hanging, Ordering::SeqCst);
    }

    /// Nothing listens any more.
    pub(crate) fn vanish(&self) {
        self.shared.listening.store(false, Ordering::SeqCst);
        super::wait_until("connections are refused", || TcpStream::connect(self.address).is_err());
    }

    /// It listens again.
    pub(crate) fn appear(&self) {
        self.shared.listening.store(true, Ordering::SeqCst);
        self.accept(TcpListener::bind(self.address).unwrap());
    }

    fn accept(&self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            while shared.listening.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let shared = Arc::clone(&shared);
                        thread::spawn(move || shared.serve(stream));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.listening.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn hang(&self) {
        while self.hanging.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn serve(&self, mut stream: TcpStream) {
        stream.set_nonblocking(false).unwrap();
        self.hang();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let Some(Ok(first)) = lines.next() else { return };
        // To the end of the head; nothing here has a body.
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let mut words = first.split(' ').map(str::to_owned);
        let request = Request { method: words.next().unwrap_or_default(), target: words.next().unwrap_or_default() };
        self.seen.lock().unwrap().push(format!("{} {}", request.method, request.target));
        let bytes = match (self.handler)(&request) {
            Reply::Whole(status, headers, body) => {
                let length = body.len();
                format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}")
                    .into_bytes()
            }
            Reply::Bytes(bytes) => bytes,
            Reply::Close => return,
        };
        self.hang();
        // The other end may be gone.
        drop(stream.write_all(&bytes));
    }
}
