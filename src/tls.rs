//! TLS for client connections: TLS 1.2 and 1.3, with ring's cryptography. Certificates and keys are read when a configuration comes
//! into force.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::pem::{BadFile, certificates, expires, private_key, roots};

mod pinned;

pub use pinned::PinnedConnector;

/// How long a client may take to read the rest of its data and the close_notify.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The PEM files of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// The unencrypted private key of the certificate.
    pub key: PathBuf,
    /// The CAs that sign client certificates; `None`: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS connections with a listener's certificate.
#[derive(Clone)]
pub struct Acceptor {
    tls: TlsAcceptor,
    certificate: PathBuf,
    /// When the first certificate of the file expires, in seconds of Unix time; `None` if that cannot be read.
    expires: Option<i64>,
    /// The file of the CAs for clients, and when the last one in it expires.
    client_ca: Option<(PathBuf, i64)>,
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

impl Acceptor {
    /// Reads the files. The error lists every file that cannot be used.
    pub fn read(files: &TlsFiles) -> Result<Acceptor, Vec<BadFile>> {
        let TlsFiles { cert, key, client_ca } = files;
        let bad = |key, path: &Path| {
            let path = path.to_owned();
            move |what| BadFile { key, path, what }
        };
        let chain = certificates(cert).map_err(bad("cert", cert));
        let key = private_key(key).map_err(bad("key", key));
        let roots = client_ca.as_deref().map(|path| roots(path).map_err(bad("client_ca", path))).transpose();
        let (chain, key, roots) = match (chain, key, roots) {
            (Ok(chain), Ok(key), Ok(roots)) => (chain, key, roots),
            (chain, key, roots) => {
                return Err([chain.err(), key.err(), roots.err()].into_iter().flatten().collect());
            }
        };
        let first = chain.iter().filter_map(expires).min();
        // The next CA stands beside the one in use.
        let cas = client_ca.as_deref().and_then(|path| certificates(path).ok());
        let last = cas.and_then(|cas| cas.iter().filter_map(expires).max());
        let config = configure(files, chain, key, roots).map_err(|bad| vec![bad])?;
        let tls = TlsAcceptor::from(Arc::new(config));
        Ok(Acceptor {
            tls,
            certificate: cert.clone(),
            expires: first,
            client_ca: client_ca.clone().zip(last),
        })
    }

    /// The file of the certificate, and when the first certificate in it expires, in seconds of Unix time.
    pub fn certificate(&self) -> Option<(&Path, i64)> {
        Some((&self.certificate, self.expires?))
    }

    /// The file of the CAs for clients, and when the last one in it expires, in seconds of Unix time.
    pub fn client_ca(&self) -> Option<(&Path, i64)> {
        self.client_ca.as_ref().map(|(path, expires)| (&**path, *expires))
    }

    /// Performs the handshake, without a timeout.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, socket: S) -> io::Result<TlsConnection<S>> {
        Ok(TlsConnection { stream: self.tls.accept(socket).await?, close_timeout: None })
    }
}

fn configure(
    files: &TlsFiles,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Option<RootCertStore>,
) -> Result<ServerConfig, BadFile> {
    let provider = Arc::new(ring::default_provider());
    let of_key = |error: Error| {
        let what = match error {
            Error::InconsistentKeys(_) => "is not the key of the certificate in cert".to_owned(),
            error => format!("cannot be used with the certificate in cert: {error}"),
        };
        BadFile { key: "key", path: files.key.clone(), what }
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(of_key)?;
    let builder = match roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.map_err(|error| BadFile {
                key: "client_ca",
                path: files.client_ca.clone().unwrap_or_default(),
                what: format!("cannot be used: {error}"),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder.with_single_cert(chain, key).map_err(of_key)
}

/// A client's connection after the TLS handshake. Writes must be flushed, because the stream buffers them.
pub struct TlsConnection<S> {
    stream: TlsStream<S>,
    /// Runs from the beginning of the shutdown. A client that does not read would delay it forever.
    close_timeout: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Sends a close_notify, so that the client can distinguish the end of the connection from its loss.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_shutdown(cx) {
            return Poll::Ready(done);
        }
        let timeout = self.close_timeout.get_or_insert_with(|| Box::pin(sleep(CLOSE_TIMEOUT)));
        timeout.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}
