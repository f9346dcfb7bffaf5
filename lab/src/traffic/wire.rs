//! A connection's bytes, encrypted or not: none is written to a peer that has closed already, and how many went out is known.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// One connection.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    written: Written,
}

/// How many bytes a connection has taken so far. A request that failed while this stood still was never sent.
#[derive(Clone, Default)]
pub(super) struct Written(Arc<AtomicU64>);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A socket that is asked itself each time whether it has something to read. Tokio's knowledge of it is as old as its last
/// look at all sockets, and a peer's close since then would be seen only after the next request had been written. curl
/// looks at the socket before it uses a connection again, too.
pub(super) struct Socket(pub(super) TcpStream);

impl Wire {
    pub(super) fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), written: Written::default() }
    }

    pub(super) fn written(&self) -> Written {
        self.written.clone()
    }
}

impl Written {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = &taken {
            self.written.0.fetch_add(*count as u64, Ordering::SeqCst);
        }
        taken
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // It has noted whom to wake if there is nothing yet.
        if let Poll::Ready(read) = Pin::new(&mut self.0).poll_read(cx, buffer) {
            return Poll::Ready(read);
        }
        match rustix::net::recv(&self.0, buffer.initialize_unfilled(), RecvFlags::DONTWAIT) {
            Ok((_, count)) => {
                buffer.advance(count);
                Poll::Ready(Ok(()))
            }
            Err(Errno::AGAIN | Errno::INTR) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
