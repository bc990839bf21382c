//! Verifies the certificate of a server.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{VerifierBuilderError, WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::pem::validity;

/// Accepts what a CA has signed for the expected name, and what is itself listed among the CAs: a self-signed certificate, which
/// webpki refuses because it is that of a CA. Of the latter too, the name and the dates are checked.
#[derive(Debug)]
pub(super) struct Verifier {
    by_ca: Arc<WebPkiServerVerifier>,
    listed: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// `listed` are the certificates of `roots`.
    pub(super) fn new(
        roots: RootCertStore,
        listed: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Verifier, VerifierBuilderError> {
        let by_ca = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        Ok(Verifier { by_ca, listed })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.listed.contains(certificate) {
            return self.by_ca.verify_server_cert(certificate, intermediates, name, ocsp_response, now);
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        match validity(certificate) {
            None => Err(CertificateError::BadEncoding.into()),
            Some(valid) if now < *valid.start() => Err(CertificateError::NotValidYet.into()),
            Some(valid) if now > *valid.end() => Err(CertificateError::Expired.into()),
            Some(_) => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_ca.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_ca.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_ca.supported_verify_schemes()
    }
}
