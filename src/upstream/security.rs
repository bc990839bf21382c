//! What protects the connections to the servers of a pool: TLS and a password.

use std::io;
use std::path::PathBuf;

use super::credentials::{AuthSpec, Credentials};
use super::tls::{Tls, TlsSpec};
use crate::pem::BadFile;

/// `tls` and `auth` of a pool. The default is neither.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecuritySpec {
    /// TLS towards the servers; without it, plain connections.
    pub tls: Option<TlsSpec>,
    /// A user and a password.
    pub auth: Option<AuthSpec>,
}

impl SecuritySpec {
    /// The files that it names.
    pub fn files(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter().flat_map(|tls| [tls.ca.as_ref(), tls.cert.as_ref(), tls.key.as_ref()]);
        let auth = self.auth.iter().map(|auth| Some(&auth.password_file));
        tls.chain(auth).flatten().cloned().collect()
    }
}

/// The contents of the files of a [`SecuritySpec`]. Connections that are made later use it.
#[derive(Debug, Default)]
pub struct Security {
    pub(super) tls: Option<Tls>,
    pub(super) credentials: Option<Credentials>,
}

impl Security {
    /// Reads the files.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn read(spec: &SecuritySpec) -> Result<Security, Vec<BadFile>> {
        let tls = spec.tls.as_ref().map(Tls::read).transpose();
        let credentials = spec.auth.as_ref().map(Credentials::read).transpose();
        match (tls, credentials) {
            (Ok(tls), Ok(credentials)) => Ok(Security { tls, credentials }),
            (tls, credentials) => {
                let of_credentials = credentials.err().map(|bad| vec![bad]);
                Err([tls.err(), of_credentials].into_iter().flatten().flatten().collect())
            }
        }
    }

    /// Reads the files for a command that has checked them before.
    ///
    /// # Errors
    /// The same, as one error.
    pub fn open(spec: &SecuritySpec) -> io::Result<Security> {
        let all = |bad: Vec<BadFile>| bad.iter().map(BadFile::to_string).collect::<Vec<_>>().join("; ");
        Security::read(spec).map_err(|bad| io::Error::other(all(bad)))
    }

    /// The certificates: each file, and when it expires, in seconds of Unix time. The client's certificate expires with the first of
    /// its chain; a file of CAs, where the next one stands beside the one in use, with the last.
    pub fn certificates(&self) -> Vec<(String, i64)> {
        let certificates = self.tls.iter().flat_map(|tls| tls.certificates());
        certificates.map(|(file, expires)| (file.display().to_string(), *expires)).collect()
    }
}
