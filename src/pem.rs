//! Certificates and keys in PEM files, for TLS towards clients and towards servers.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::time::Time;

/// The largest file in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFile {
    /// The configuration key: of a listener `cert`, `key`, `client_ca` or `auth_file`; of a pool `ca`, `cert`, `key` or
    /// `password_file`.
    pub key: &'static str,
    /// The path of the file.
    pub path: PathBuf,
    /// The reason. It continues a sentence that begins with the name of the file.
    pub what: String,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?}) {}", self.key, self.path, self.what)
    }
}

/// The certificates of a file; at least one.
///
/// # Errors
/// The reason. It continues a sentence that begins with the name of the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = contents(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found.map_err(not_pem)? {
        none if none.is_empty() => Err("has no CERTIFICATE section in PEM".to_owned()),
        found => Ok(found),
    }
}

/// When a certificate expires, in seconds of Unix time.
pub fn expires(certificate: &CertificateDer<'_>) -> Option<i64> {
    Some(*validity(certificate)?.end())
}

/// When a certificate is valid, in seconds of Unix time.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<RangeInclusive<i64>> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let validity = certificate.tbs_certificate().validity();
    let seconds = |time: Time| i64::try_from(time.to_unix_duration().as_secs()).ok();
    Some(seconds(validity.not_before)?..=seconds(validity.not_after)?)
}

/// The unencrypted private key of a file.
///
/// # Errors
/// As for [`certificates`].
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = contents(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => "has no unencrypted PRIVATE KEY section in PEM".to_owned(),
        error => not_pem(error),
    })
}

/// The certificates of a file as those of CAs.
///
/// # Errors
/// As for [`certificates`].
pub fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| format!("has a certificate that cannot be used: {error}"))?;
    }
    Ok(roots)
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err("is larger than 1 MiB: is it the right file?".to_owned()),
        false => Ok(bytes),
    }
}

/// Describes a PEM error without quoting the file, which may be a private key.
fn not_pem(error: pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "ends in the middle of a PEM section".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "has a PEM section with an invalid first line".to_owned(),
        pem::Error::Base64Decode(_) => "has a PEM section that is not base64".to_owned(),
        _ => "is not PEM".to_owned(),
    }
}
