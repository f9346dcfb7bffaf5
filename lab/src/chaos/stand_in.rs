//! Listeners that are not what they should be. Each ends when dropped.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::http::AbortOnDrop;
use crate::topology;

/// A port for a stand-in of admin, and one where nobody listens. Below the ephemeral range, as the lab's others.
pub(crate) const SILENT: u16 = 29090;
pub(crate) const CLOSED: u16 = 29091;

/// Accepts connections and never answers.
pub(crate) async fn silent() -> Result<AbortOnDrop<()>> {
    let listener = listen(topology::local(SILENT)).await?;
    Ok(AbortOnDrop(tokio::spawn(async move {
        let mut open: Vec<TcpStream> = Vec::new();
        while let Ok((stream, _peer)) = listener.accept().await {
            open.push(stream);
        }
    })))
}

/// Answers every request on `port` with 200, as some other program's health page would.
pub(crate) async fn foreign(port: u16) -> Result<AbortOnDrop<()>> {
    let listener = listen(topology::local(port)).await?;
    Ok(AbortOnDrop(tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    })))
}

async fn answer(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    let exchange = async {
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut part).await {
                Ok(read) if read > 0 => head.extend_from_slice(part.get(..read).unwrap_or_default()),
                Ok(_) | Err(_) => return,
            }
        }
        let page = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nok\n";
        // Whoever has gone away needs no answer.
        let _gone = stream.write_all(page).await;
    };
    let _silent = tokio::time::timeout(Duration::from_secs(5), exchange).await;
}

async fn listen(at: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(at).await.with_context(|| format!("the stand-in cannot listen on {at}"))
}
