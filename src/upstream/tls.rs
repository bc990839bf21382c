//! TLS towards servers: TLS 1.2 and 1.3, with ring's cryptography. The server's certificate is always verified.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, HandshakeKind, InvalidMessage, RootCertStore,
};

use super::connection_error::ConnectionError;
use super::verifier::Verifier;
use crate::metrics::ConnectFailure;
use crate::pem::{BadFile, certificates, expires, private_key};

/// How many TLS sessions are kept for each server, to resume them. Each worker and the monitor has one connection to it.
const MAX_SESSIONS: usize = 64;

/// `tls` of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsSpec {
    /// The CAs that sign servers' certificates, in PEM; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate that a server may ask for, followed by its intermediate certificates. With `key`.
    pub cert: Option<PathBuf>,
    /// The unencrypted private key of that certificate.
    pub key: Option<PathBuf>,
    /// The name or IP address in the certificate of each server; `None`: the host of the server's address. Valid for
    /// [`check_name`].
    pub server_name: Option<String>,
}

/// Whether a certificate can be for this host name or IP address.
///
/// # Errors
/// The reason. It continues a sentence that begins with the name of the key.
pub fn check_name(name: &str) -> Result<(), String> {
    server_name(name).map(drop).ok_or_else(|| "must be a host name or an IP address".to_owned())
}

fn server_name(name: &str) -> Option<ServerName<'static>> {
    // A name in a certificate has no final dot.
    ServerName::try_from(name.strip_suffix('.').unwrap_or(name).to_owned()).ok()
}

/// The contents of the files of a [`TlsSpec`].
pub(super) struct Tls {
    config: ClientConfig,
    spec: TlsSpec,
    /// A hash of the contents.
    fingerprint: u64,
    certificates: Vec<(PathBuf, i64)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Tls {
    pub(super) fn read(spec: &TlsSpec) -> Result<Tls, Vec<BadFile>> {
        let bad = |key, path: Option<&PathBuf>| {
            let path = path.cloned().unwrap_or_default();
            move |what| BadFile { key, path, what }
        };
        let cas = match &spec.ca {
            Some(ca) => certificates(ca),
            None => cas_of_the_system(),
        };
        let listed = cas.and_then(|cas| Ok((roots(&cas, spec.ca.is_some())?, cas)));
        let listed = listed.map_err(bad("ca", spec.ca.as_ref()));
        let chain = spec.cert.as_deref().map(certificates).transpose();
        let chain = chain.map_err(bad("cert", spec.cert.as_ref()));
        let key = spec.key.as_deref().map(private_key).transpose();
        let key = key.map_err(bad("key", spec.key.as_ref()));
        let ((roots, cas), chain, key) = match (listed, chain, key) {
            (Ok(listed), Ok(chain), Ok(key)) => (listed, chain, key),
            (listed, chain, key) => {
                return Err([listed.err(), chain.err(), key.err()].into_iter().flatten().collect());
            }
        };
        let mut hasher = DefaultHasher::new();
        cas.iter().chain(chain.iter().flatten()).for_each(|certificate| certificate.hash(&mut hasher));
        key.as_ref().map(PrivateKeyDer::secret_der).hash(&mut hasher);
        let expiry_of_chain = chain.iter().flatten().filter_map(expires).min();
        let own = spec.cert.clone().zip(expiry_of_chain);
        // Only a file that is the operator's. That of the system is somebody else's to renew.
        let expiry_of_cas = cas.iter().filter_map(expires).max();
        let ca = spec.ca.clone().zip(expiry_of_cas);
        let config = configure(roots, cas, chain.zip(key)).map_err(|(key, what)| {
            let path = if key == "key" { spec.key.as_ref() } else { spec.ca.as_ref() };
            vec![bad(key, path)(what)]
        })?;
        let certificates = own.into_iter().chain(ca).collect();
        Ok(Tls { config, spec: spec.clone(), fingerprint: hasher.finish(), certificates })
    }

    /// The files of certificates, and when they expire, in seconds of Unix time.
    pub(super) fn certificates(&self) -> &[(PathBuf, i64)] {
        &self.certificates
    }

    /// TLS to one server. Its sessions are its own: those of another server cannot be resumed.
    ///
    /// # Errors
    /// No certificate can be for this host.
    pub(super) fn for_host(&self, host: &str) -> io::Result<ServerTls> {
        let name = self.spec.server_name.as_deref().unwrap_or(host);
        let Some(name) = server_name(name) else {
            let what = format!("{name:?} cannot be the name in a certificate: set tls.server_name");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        };
        let mut config = self.config.clone();
        config.resumption = Resumption::in_memory_sessions(MAX_SESSIONS);
        let connector = TlsConnector::from(Arc::new(config));
        Ok(ServerTls { connector, name, spec: self.spec.clone(), fingerprint: self.fingerprint })
    }
}

/// The CAs of the system: those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, if set.
fn cas_of_the_system() -> Result<Vec<CertificateDer<'static>>, String> {
    let found = rustls_native_certs::load_native_certs();
    match (found.certs, found.errors.first()) {
        (certs, None) if certs.is_empty() => {
            Err("is not set, and the system has no CA certificates: set it, or install ca-certificates"
                .to_owned())
        }
        (certs, Some(error)) if certs.is_empty() => {
            Err(format!("is not set, and the system's CA certificates cannot be read: {error}"))
        }
        (certs, _) => Ok(certs),
    }
}

/// The certificates as those of CAs. Of the system's, those that cannot be used are ignored.
fn roots(cas: &[CertificateDer<'static>], all: bool) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in cas {
        match roots.add(certificate.clone()) {
            Err(error) if all => return Err(format!("has a certificate that cannot be used: {error}")),
            _ => {}
        }
    }
    Ok(roots)
}

/// The error is a key of the configuration, and what is wrong with its file.
fn configure(
    roots: RootCertStore,
    cas: Vec<CertificateDer<'static>>,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, (&'static str, String)> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new(roots, cas, Arc::clone(&provider));
    let verifier = verifier.map_err(|error| ("ca", format!("cannot be used: {error}")))?;
    let of_key = |error: Error| {
        let what = match error {
            Error::InconsistentKeys(_) => "is not the key of the certificate in cert".to_owned(),
            error => format!("cannot be used with the certificate in cert: {error}"),
        };
        ("key", what)
    };
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(of_key)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    match own {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(of_key),
    }
}

/// TLS to one server.
pub(super) struct ServerTls {
    connector: TlsConnector,
    name: ServerName<'static>,
    spec: TlsSpec,
    fingerprint: u64,
}

impl ServerTls {
    /// Whether it was made from the same contents.
    pub(super) fn is_of(&self, tls: &Tls) -> bool {
        self.fingerprint == tls.fingerprint && self.spec == tls.spec
    }

    /// Performs the handshake, without a time limit.
    pub(super) async fn connect(&self, socket: TcpStream) -> Result<TlsSocket, ConnectionError> {
        let connected = self.connector.connect(self.name.clone(), socket).await;
        let stream = connected.map_err(|error| failed(&error, &self.spec))?;
        Ok(TlsSocket { stream, spec: self.spec.clone() })
    }
}

/// A connection to a server after the TLS handshake.
pub(crate) struct TlsSocket {
    stream: TlsStream<TcpStream>,
    spec: TlsSpec,
}

impl TlsSocket {
    /// Whether the session is one of an earlier connection.
    pub(super) fn resumed(&self) -> bool {
        self.stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// What an error of this connection means before the first reply.
    pub(super) fn failed(&self, error: &io::Error) -> ConnectionError {
        failed(error, &self.spec)
    }

    /// What to do if the server wants a certificate.
    pub(super) fn certificate_hint(&self) -> &'static str {
        certificate_hint(&self.spec)
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, into) {
            // memcached closes a connection without a close_notify. A reply that is cut is noticed without it.
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Whether the peer has ended a TLS connection with an alert.
pub(super) fn is_alert(error: &io::Error) -> bool {
    matches!(tls_error(error), Some(Error::AlertReceived(_)))
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn certificate_hint(spec: &TlsSpec) -> &'static str {
    match spec.cert {
        Some(_) => "it refuses that of tls.cert: its CA must be one that the server knows",
        None => "set tls.cert and tls.key for the pool",
    }
}

/// What a failed handshake means, and what to do.
fn failed(error: &io::Error, spec: &TlsSpec) -> ConnectionError {
    let (reason, what) = match tls_error(error) {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => (
            ConnectFailure::TlsMissing,
            "the server does not speak TLS at this port: correct the address, or remove tls from the pool"
                .to_owned(),
        ),
        Some(Error::InvalidCertificate(why)) => wrong_certificate(why, spec),
        Some(Error::AlertReceived(alert)) => refused(*alert, spec),
        Some(other) => (ConnectFailure::Tls, format!("the TLS handshake failed: {other}")),
        None if is_end(error) => (
            ConnectFailure::Closed,
            "the server closed the connection in the TLS handshake: check that it speaks TLS at this port"
                .to_owned(),
        ),
        None => (ConnectFailure::Closed, format!("the connection ended in the TLS handshake: {error}")),
    };
    ConnectionError::Insecure { reason, what }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// How webpki says that the certificate of a server is that of a CA.
const CA_AS_SERVER: &str = "CaUsedAsEndEntity";

fn wrong_certificate(why: &CertificateError, spec: &TlsSpec) -> (ConnectFailure, String) {
    let cas = |ca: Option<&Path>| match ca {
        Some(ca) => format!("of {}", ca.display()),
        None => "of the system".to_owned(),
    };
    match why {
        CertificateError::UnknownIssuer => (
            ConnectFailure::UnknownCa,
            format!(
                "no CA {} has signed the server's certificate: set tls.ca to the file of the CA that has",
                cas(spec.ca.as_deref())
            ),
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            ConnectFailure::Expired,
            "the server's certificate, or that of its CA, has expired: renew it on the server".to_owned(),
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            ConnectFailure::Expired,
            "the server's certificate is not valid yet: check the clocks of this host and of the server".to_owned(),
        ),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented = match &presented[..] {
                [] => "no names (no subjectAltName)".to_owned(),
                names => names.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", "),
            };
            let expected = expected.to_str();
            let what = format!(
                "the server's certificate is for {presented}, not for {expected}: set tls.server_name, or use another name in servers"
            );
            (ConnectFailure::WrongName, what)
        }
        CertificateError::NotValidForName => (
            ConnectFailure::WrongName,
            "the server's certificate is for another name: set tls.server_name, or use another name in servers".to_owned(),
        ),
        // From webpki, which has no certificate of a CA for a server: one that signs itself must be listed.
        CertificateError::Other(other) if other.0.to_string() == CA_AS_SERVER => (
            ConnectFailure::UnknownCa,
            format!(
                "the server's certificate is that of a CA, as a self-signed one is, and is not itself among the CAs {}: set tls.ca to a \
                 file that contains it",
                cas(spec.ca.as_deref())
            ),
        ),
        CertificateError::Other(other) => {
            (ConnectFailure::Certificate, format!("the server's certificate cannot be accepted: {other}"))
        }
        other => (ConnectFailure::Certificate, format!("the server's certificate cannot be accepted: {other}")),
    }
}

fn refused(alert: AlertDescription, spec: &TlsSpec) -> (ConnectFailure, String) {
    use AlertDescription as Alert;
    match alert {
        Alert::NoCertificate
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::DecryptError
        | Alert::CertificateRequired => {
            let what = match spec.cert {
                Some(_) => {
                    format!("the server refused the client certificate in tls.cert ({alert:?}): {}", certificate_hint(spec))
                }
                None => format!("the server requires a client certificate ({alert:?}): {}", certificate_hint(spec)),
            };
            (ConnectFailure::ClientCertificate, what)
        }
        // With TLS 1.2, this is what OpenSSL says about a certificate that it lacks, too.
        Alert::HandshakeFailure if spec.cert.is_none() => (
            ConnectFailure::ClientCertificate,
            "the server refused the TLS handshake (HandshakeFailure): it requires a client certificate (set tls.cert and \
             tls.key for the pool), or shares no cipher"
                .to_owned(),
        ),
        Alert::UnrecognisedName => (
            ConnectFailure::WrongName,
            "the server does not know the name that it was asked for: set tls.server_name".to_owned(),
        ),
        alert => (ConnectFailure::Tls, format!("the server refused the TLS handshake: {alert:?}")),
    }
}
