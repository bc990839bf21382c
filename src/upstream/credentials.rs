//! The user and password of a pool, with which each connection to a server begins.
//!
//! The protocol is that of memcached's `-Y`. Its server ignores the key, the flags and the exptime:
//!
//! ```text
//!  set kennel 0 -1 10\r\n
//!  ann s3cret\r\n              →  STORED; every command is served from now on
//! ```
//!
//! The negative exptime matters with a server that requires no password: it takes this for an ordinary `set`, and an item that has
//! expired can be read by nobody.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use super::connection_error::ConnectionError;
use super::socket::Socket;
use crate::metrics::ConnectFailure;
use crate::pem::BadFile;

/// The longest line `user:password` that memcached reads, in bytes.
const MAX_ENTRY: usize = 254;
/// The largest file in bytes.
const MAX_FILE: u64 = 4096;
/// The longest reply to a password in bytes.
const MAX_REPLY: usize = 1024;

/// `auth` of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSpec {
    /// The user; valid for [`check_user`].
    pub user: String,
    /// A file that contains the password and nothing else, but for a line end.
    pub password_file: PathBuf,
}

/// A user and the password. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    user: String,
    file: PathBuf,
    /// The `set` that authenticates, as it is sent.
    command: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Whether memcached can know a user by this name.
///
/// # Errors
/// The reason. It continues a sentence that begins with the name of the key.
pub fn check_user(user: &str) -> Result<(), String> {
    match user.len() {
        1..=128 if user.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') => Ok(()),
        _ => Err("must be 1 to 128 visible ASCII characters without spaces and colons".to_owned()),
    }
}

impl Credentials {
    /// Reads the password. The error never quotes the file.
    pub(super) fn read(spec: &AuthSpec) -> Result<Credentials, BadFile> {
        let AuthSpec { user, password_file } = spec;
        let bad = |what| BadFile { key: "password_file", path: password_file.clone(), what };
        let password = password(password_file, user.len()).map_err(bad)?;
        let mut command =
            format!("set kennel 0 -1 {}\r\n{user} ", user.len() + 1 + password.len()).into_bytes();
        command.extend_from_slice(&password);
        command.extend_from_slice(b"\r\n");
        Ok(Credentials { user: user.clone(), file: password_file.clone(), command })
    }

    /// Authenticates a new connection.
    pub(super) async fn log_in(&self, socket: &mut Socket) -> Result<(), ConnectionError> {
        let mut input = BytesMut::with_capacity(256);
        socket.first_reply(&self.command, &mut input).await?;
        while !input.ends_with(b"\n") {
            if input.len() > MAX_REPLY {
                return Err(ConnectionError::Garbage("too long a reply to the password"));
            }
            if socket.read_buf(&mut input).await.map_err(ConnectionError::Io)? == 0 {
                return Err(ConnectionError::Closed);
            }
        }
        match &input[..] {
            b"STORED\r\n" => Ok(()),
            reply if reply.starts_with(b"CLIENT_ERROR authentication failure") => {
                let (user, file) = (&self.user, self.file.display());
                let what = format!(
                    "the server refused the user {user:?} with the password in {file}: correct auth, or the server's file"
                );
                Err(ConnectionError::insecure(ConnectFailure::Password, what))
            }
            _ => Err(ConnectionError::Garbage(
                "neither STORED nor an authentication failure in reply to the password",
            )),
        }
    }
}

fn password(path: &Path, user: usize) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("is larger than {} KiB: is it the right file?", MAX_FILE / 1024));
    }
    let password = text.strip_suffix(b"\n").unwrap_or(&text);
    let password = password.strip_suffix(b"\r").unwrap_or(password);
    if password.is_empty() {
        return Err("is empty: it must contain the password".to_owned());
    }
    if password.contains(&b'\n') {
        return Err("has several lines: it must contain the password and nothing else".to_owned());
    }
    if password.iter().any(|byte| b" \t\r\0".contains(byte)) {
        return Err(
            "has a space, a tab, a CR or a NUL, which memcached does not accept in a password".to_owned()
        );
    }
    if user + 1 + password.len() > MAX_ENTRY {
        return Err(format!("is too long: user and password have at most {} bytes together", MAX_ENTRY - 1));
    }
    Ok(password.to_vec())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    /// A password file of this test with these contents, and what reading it says.
    fn read(test: &str, contents: &[u8]) -> Result<Credentials, String> {
        let path = std::env::temp_dir().join(format!("kennel-password-{}-{test}", std::process::id()));
        std::fs::write(&path, contents).unwrap();
        let read = Credentials::read(&AuthSpec { user: "ann".to_owned(), password_file: path.clone() });
        std::fs::remove_file(path).unwrap();
        read.map_err(|bad| bad.what)
    }

    #[test]
    fn the_file_contains_the_password_with_or_without_a_line_end() {
        for contents in ["s3:cret", "s3:cret\n", "s3:cret\r\n"] {
            let read = read("end", contents.as_bytes()).unwrap();
            assert_eq!(read.command, b"set kennel 0 -1 11\r\nann s3:cret\r\n");
            assert!(!format!("{read:?}").contains("cret"), "{read:?}");
        }
        let longest = "p".repeat(MAX_ENTRY - 4);
        assert!(read("longest", longest.as_bytes()).is_ok());
    }

    #[test]
    fn a_file_without_one_password_is_refused_and_never_quoted() {
        let long = "p".repeat(MAX_ENTRY - 3);
        let huge = "s3cret".repeat(1000);
        for (contents, expected) in [
            ("", "is empty"),
            ("\n", "is empty"),
            ("s3cret\ns3cret\n", "has several lines"),
            ("s3cret\n\n", "has several lines"),
            ("s3 cret", "has a space"),
            ("s3\0cret", "has a space, a tab, a CR or a NUL"),
            (&long, "is too long: user and password have at most 253 bytes together"),
            (&huge, "is larger than 4 KiB"),
        ] {
            let why = read("refused", contents.as_bytes()).unwrap_err();
            assert!(why.starts_with(expected) && !why.contains("cret"), "{why}");
        }
        let spec = AuthSpec { user: "ann".to_owned(), password_file: "/nowhere/password".into() };
        assert!(Credentials::read(&spec).unwrap_err().what.starts_with("cannot be read"));
    }

    #[test]
    fn a_user_is_a_word_without_a_colon() {
        assert!(check_user("ann").is_ok() && check_user(&"a".repeat(128)).is_ok());
        for user in ["", "a b", "a:b", "a\n", "ä", &"a".repeat(129)] {
            assert!(check_user(user).is_err(), "{user}");
        }
    }

    /// What logging in says if the server sends these bytes, and then closes the connection.
    async fn log_in(reply: &[u8]) -> Result<(), ConnectionError> {
        let credentials = read("log-in", b"s3cret").unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let server = async {
            let mut command = vec![0; credentials.command.len()];
            theirs.read_exact(&mut command).await.unwrap();
            // A reply may arrive in parts.
            for part in reply.chunks(7) {
                theirs.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(theirs);
        };
        let mut ours = Socket::Unix(ours);
        tokio::join!(credentials.log_in(&mut ours), server).0
    }

    #[tokio::test]
    async fn only_stored_is_a_success() {
        assert!(log_in(b"STORED\r\n").await.is_ok());
        for (reply, reason) in [
            (&b"CLIENT_ERROR authentication failure\r\n"[..], ConnectFailure::Password),
            (b"ERROR\r\n", ConnectFailure::Garbage),
            (b"STORED\r\nSTORED\r\n", ConnectFailure::Garbage),
            (b"STOR", ConnectFailure::Closed),
            (b"", ConnectFailure::Closed),
            (&[b'x'; 1100], ConnectFailure::Garbage),
        ] {
            let error = log_in(reply).await.unwrap_err();
            assert_eq!(error.reason(), reason, "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
