//! The contents of the files that a configuration names, so that a file that has changed can be told from one that has not.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crc32fast::hash;

/// What begins a certificate in a file.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE";
/// What ends the first line of a private key.
const PRIVATE_KEY: &[u8] = b"PRIVATE KEY-----";

/// The files as they were read. No content is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadFiles(BTreeMap<PathBuf, ReadFile>);

/// What is remembered of a file, to tell whether it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReadFile {
    content: Content,
    /// The length, and a checksum.
    digest: (usize, u32),
}

/// What a file contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Certificate,
    PrivateKey,
    Secret,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Content::Certificate => "certificate",
            Content::PrivateKey => "private key",
            Content::Secret => "password or token file",
        })
    }
}

impl ReadFiles {
    /// Reads these. One that cannot be read is left out: whoever uses it says why.
    pub(super) fn read(paths: &[PathBuf]) -> ReadFiles {
        let read = |path: &PathBuf| Some((path.clone(), ReadFile::of(&std::fs::read(path).ok()?)));
        ReadFiles(paths.iter().filter_map(read).collect())
    }

    /// A line for each that `next` has too, and that differs.
    pub fn changes(&self, next: &ReadFiles) -> Vec<String> {
        let differs = |(path, file): &(&PathBuf, &ReadFile)| {
            self.0.get(*path).is_some_and(|before| before.digest != file.digest)
        };
        let line = |(path, file): (&PathBuf, &ReadFile)| {
            format!("the {} {} was read again: it has changed", file.content, path.display())
        };
        next.0.iter().filter(differs).map(line).collect()
    }
}

impl ReadFile {
    fn of(bytes: &[u8]) -> ReadFile {
        let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        let content = match (has(PRIVATE_KEY), has(CERTIFICATE)) {
            (true, _) => Content::PrivateKey,
            (false, true) => Content::Certificate,
            (false, false) => Content::Secret,
        };
        ReadFile { content, digest: (bytes.len(), hash(bytes)) }
    }
}
