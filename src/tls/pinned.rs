//! TLS from this host's command line to its own sidecar: the server must have exactly the certificate of the configuration.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use super::TlsFiles;
use crate::pem::{BadFile, certificates, private_key};

/// Connects to a server that has the certificate of these files. It shows the same certificate as its own, in case the server asks for
/// one.
pub struct PinnedConnector(TlsConnector);

impl PinnedConnector {
    /// Reads the files of the server.
    pub fn new(files: &TlsFiles) -> Result<PinnedConnector, BadFile> {
        let bad = |key, path: &std::path::Path| {
            let path = path.to_owned();
            move |what| BadFile { key, path, what }
        };
        let chain = certificates(&files.cert).map_err(bad("cert", &files.cert))?;
        let key = private_key(&files.key).map_err(bad("key", &files.key))?;
        let provider = Arc::new(ring::default_provider());
        let pinned = chain.first().cloned().unwrap_or_else(|| CertificateDer::from(Vec::new()));
        let verifier = Arc::new(Pinned { certificate: pinned, provider: Arc::clone(&provider) });
        let of_key = |error: Error| bad("key", &files.key)(format!("cannot be used: {error}"));
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(of_key)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let config = builder.with_client_auth_cert(chain, key).map_err(of_key)?;
        Ok(PinnedConnector(TlsConnector::from(Arc::new(config))))
    }

    /// Performs the handshake, without a timeout.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(&self, socket: S) -> io::Result<TlsStream<S>> {
        // The name is not compared with the certificate, which is known.
        let name = ServerName::try_from("kennel").map_err(io::Error::other)?;
        self.0.connect(name, socket).await
    }
}

#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *shown == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
