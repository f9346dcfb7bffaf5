//! Ways to the balancer: TCP by whoever owns the network, TLS with ALPN above it.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::failure;
use super::wire::{Socket, Wire};
use crate::curl::Protocol;
use crate::fate::Error;
use crate::{haproxy, topology};

/// Makes a TCP connection; whoever makes it decides in which network.
pub(crate) type Connector = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>> + Send + Sync>;

/// Whom a load asks, and how it gets there.
#[derive(Clone)]
pub(crate) struct Target {
    connect: Connector,
    /// None for a server that speaks plain HTTP, h2 with prior knowledge.
    trust: Option<Arc<RootCertStore>>,
    pub(super) authority: String,
}

impl Target {
    /// The balancer's https frontend on this machine; its certificate lies in the run's folder.
    pub(crate) fn balancer(dir: &Path) -> Result<Self> {
        let path = haproxy::certificate(dir);
        let certificate =
            CertificateDer::from_pem_file(&path).with_context(|| format!("no certificate in {}", path.display()))?;
        let mut trust = RootCertStore::empty();
        trust.add(certificate).with_context(|| format!("{} cannot be trusted", path.display()))?;
        let connect: Connector = Arc::new(|| Box::pin(TcpStream::connect(topology::local(topology::LB))));
        let authority = format!("{}:{}", topology::HOST, topology::LB);
        Ok(Self { connect, trust: Some(Arc::new(trust)), authority })
    }

    /// The same by another way.
    pub(crate) fn by(self, connect: Connector) -> Self {
        Self { connect, ..self }
    }

    /// A server without TLS.
    #[cfg(test)]
    pub(crate) fn plain(connect: Connector) -> Self {
        Self { connect, trust: None, authority: topology::HOST.to_owned() }
    }

    #[cfg(test)]
    pub(super) fn connect_tcp(&self) -> Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>> {
        (self.connect)()
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.trust.is_some() { "https" } else { "http" }
    }

    /// A fresh connection on which this protocol is agreed.
    pub(super) async fn open(&self, protocol: Protocol) -> Result<Wire, Error> {
        let stream = (self.connect)().await.map_err(|error| failure::of_io(&error))?;
        // As curl and browsers do; otherwise a second small write waits for the peer's delayed ACK.
        stream.set_nodelay(true).map_err(|error| failure::of_io(&error))?;
        let stream = Socket(stream);
        let Some(trust) = &self.trust else { return Ok(Wire::new(stream)) };
        let config = config(trust, protocol).map_err(|error| Error::Other(format!("TLS: {error}")))?;
        let name = ServerName::try_from(topology::HOST).map_err(|error| Error::Other(format!("TLS: {error}")))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let wire = connected.map_err(|error| failure::of_io(&error))?;
        match wire.get_ref().1.alpn_protocol() {
            Some(agreed) if agreed == alpn(protocol) => Ok(Wire::new(wire)),
            other => {
                let other = other.map(String::from_utf8_lossy);
                Err(Error::Other(format!("TLS: {} was asked for, agreed is {other:?}", protocol.name())))
            }
        }
    }
}

/// Made anew for each connection: a shared one would resume sessions, and each client of a real load begins without one.
fn config(trust: &Arc<RootCertStore>, protocol: Protocol) -> Result<ClientConfig, tokio_rustls::rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(Arc::clone(trust))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn(protocol).to_vec()];
    Ok(config)
}

fn alpn(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::H1 => b"http/1.1",
        Protocol::H2 => b"h2",
    }
}
