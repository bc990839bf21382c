//! What is meant by an entry of `listen.tcp` and `listen.unix`: a place, and what is asked of clients there.

use std::path::PathBuf;

use config::{Value, ValueKind};
use serde::Deserialize;

use super::file;
use super::units;
use super::validate::{KeyPath, Validator, keys, text, word};
use crate::handshake::{Handshake, Requirements};
use crate::listener::{ListenAddress, ListenerSpec};
use crate::proxy::connection_use::ConnectionUse;
use crate::tls::TlsFiles;

/// `"host:port"`, or a table with what is asked of clients.
pub(super) fn tcp(
    r: &mut Validator<'_>,
    at: &KeyPath,
    key: String,
    v: &Value,
    usual: ConnectionUse,
) -> Option<ListenerSpec<ListenAddress>> {
    let address = |v: &Value| units::listen_address(text(v)?).map(Some);
    match &v.kind {
        ValueKind::String(_) => {
            let address = r.leaf(at, &key, &Some(v.clone()), None, address)??;
            Some(ListenerSpec { at: address, terms: Requirements::default(), clients: usual })
        }
        ValueKind::Table(_) => {
            let w = file::TcpEntrance::deserialize(v.clone()).unwrap_or_default(); // no table fails
            let inside = at.inside(&key);
            r.unknown(&inside, &w.rest, keys(file::TcpEntrance::KEYS));
            if w.address.is_none() {
                r.say(at, &key, None, "has no address: add address = \"127.0.0.1:11211\"");
            }
            let address = r.leaf(&inside, "address", &w.address, None, address);
            let terms = terms(r, &inside, &w.tls, &w.auth_file);
            let clients = clients(r, &inside, &w.clients, usual);
            Some(ListenerSpec { at: address??, terms: terms?, clients: clients? })
        }
        _ => {
            let what = "must be \"host:port\" or { address = \"host:port\", auth_file = \"/path\" }";
            r.say(at, &key, Some(v), what);
            None
        }
    }
}

/// `"/path"`, or a table with what is asked of clients. They are on this machine: TLS would hide nothing from anybody.
pub(super) fn unix(
    r: &mut Validator<'_>,
    at: &KeyPath,
    key: String,
    v: &Value,
    usual: ConnectionUse,
) -> Option<ListenerSpec<PathBuf>> {
    let path = |v: &Value| units::unix_path(text(v)?).map(Some);
    match &v.kind {
        ValueKind::Table(_) => {
            let w = file::UnixEntrance::deserialize(v.clone()).unwrap_or_default(); // no table fails
            let inside = at.inside(&key);
            r.unknown(&inside, &w.rest, keys(file::UnixEntrance::KEYS));
            if w.path.is_none() {
                r.say(at, &key, None, "has no path: add path = \"/run/kennel/kennel.sock\"");
            }
            let path = r.leaf(&inside, "path", &w.path, None, path);
            let terms = terms(r, &inside, &None, &w.auth_file);
            let clients = clients(r, &inside, &w.clients, usual);
            Some(ListenerSpec { at: path??, terms: terms?, clients: clients? })
        }
        _ => {
            let path = r.leaf(at, &key, &Some(v.clone()), None, path)??;
            Some(ListenerSpec { at: path, terms: Requirements::default(), clients: usual })
        }
    }
}

/// Whether the clients have pools of connections.
pub(super) fn clients(
    r: &mut Validator<'_>,
    at: &KeyPath,
    written: &Option<Value>,
    usual: ConnectionUse,
) -> Option<ConnectionUse> {
    let all = [ConnectionUse::Auto, ConnectionUse::Single, ConnectionUse::Pooled]
        .map(|clients| (clients.word(), clients));
    r.leaf(at, "clients", written, usual, word(&all))
}

/// Reads the files too: a listener whose files are unusable is a mistake like others.
fn terms(
    r: &mut Validator<'_>,
    at: &KeyPath,
    tls: &Option<Value>,
    auth_file: &Option<Value>,
) -> Option<Requirements> {
    let file = |v: &Value| match text(v)? {
        path if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
        _ => Err("must be an absolute path, beginning with /".to_owned()),
    };
    let inside = at.inside("tls");
    let files = match tls.as_ref().map(|v| (v, &v.kind)) {
        None => Some((file::Tls::default(), None)),
        Some((v, ValueKind::Table(_))) => {
            let w = file::Tls::deserialize(v.clone()).unwrap_or_default(); // no table fails
            r.unknown(&inside, &w.rest, keys(file::Tls::KEYS));
            let cert = r.leaf(&inside, "cert", &w.cert, None, file);
            let key = r.leaf(&inside, "key", &w.key, None, file);
            let client_ca = r.leaf(&inside, "client_ca", &w.client_ca, None, file);
            if w.cert.is_none() || w.key.is_none() {
                let what = "must name both, in PEM: cert = \"/path\", key = \"/path\"";
                r.say(at, "tls", None, what);
            }
            match (cert, key, client_ca) {
                (Some(Some(cert)), Some(Some(key)), Some(client_ca)) => {
                    Some((w, Some(TlsFiles { cert, key, client_ca })))
                }
                _ => None,
            }
        }
        Some((v, _)) => {
            r.say(at, "tls", Some(v), "must be a table: { cert = \"/path\", key = \"/path\" }");
            None
        }
    };
    let auth = r.leaf(at, "auth_file", auth_file, None, file);
    let (is_whole, w, tls) = match files {
        Some((w, tls)) => (true, w, tls),
        None => (false, file::Tls::default(), None),
    };
    // What can be read is read, whatever is wrong beside it.
    let terms = Requirements { tls, auth_file: auth.clone().flatten() };
    match Handshake::new(&terms) {
        Ok(_) if is_whole && auth.is_some() => Some(terms),
        Ok(_) => None,
        Err(bad) => {
            for bad in bad {
                let (at, value) = match bad.key {
                    "cert" => (&inside, &w.cert),
                    "key" => (&inside, &w.key),
                    "client_ca" => (&inside, &w.client_ca),
                    _ => (at, auth_file),
                };
                r.say(at, bad.key, value.as_ref(), bad.what);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigErrors};
    use super::*;

    fn read(listen: &str) -> Result<Config, ConfigErrors> {
        let text = format!("[pools.main]\nservers = [\"10.0.0.1:11211\"]\n[listen]\n{listen}\n");
        Config::read("k.toml", &text, [])
    }

    fn mistakes(listen: &str) -> Vec<String> {
        read(listen).expect_err(listen).lines().to_vec()
    }

    #[test]
    fn an_entry_is_a_text_or_a_table() {
        let config = read(
            "tcp = [\"127.0.0.1:1\", { address = \"127.0.0.1:2\" }]\nunix = [\"/a\", { path = \"/b\" }]",
        );
        let listen = config.unwrap().listen;
        assert_eq!(listen.tcp.iter().map(|e| e.at.port).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(listen.unix.iter().map(|e| e.at.to_str()).collect::<Vec<_>>(), [Some("/a"), Some("/b")]);
        assert!(listen.tcp.iter().all(|e| e.terms == Requirements::default()));
        assert_eq!(
            mistakes("tcp = [3]"),
            [
                "k.toml: listen.tcp[0] (3) must be \"host:port\" or { address = \"host:port\", auth_file = \"/path\" }"
            ]
        );
        assert_eq!(mistakes("unix = [3]"), ["k.toml: listen.unix[0] (3) must be a text in quotes"]);
        assert_eq!(mistakes("tcp = [\"a:1\", { address = \"A:1\" }]").len(), 1);
        assert_eq!(mistakes("unix = [\"/a\", { path = \"/a\" }]").len(), 1);
    }

    #[test]
    fn what_is_wrong_with_an_entry_and_with_its_files_is_told_at_once() {
        let said = mistakes(
            "tcp = [{ adress = \"a:1\", tls = { cert = \"/nowhere/c\", key = \"k\" }, auth_file = \"/nowhere/a\" }]\n\
             unix = [{ path = \"b\", tls = {}, auth_file = 7 }]",
        );
        let expected = [
            "k.toml: listen.tcp[0].adress is not a key here: did you mean address?",
            "k.toml: listen.tcp[0] has no address: add address = \"127.0.0.1:11211\"",
            "k.toml: listen.tcp[0].tls.key (\"k\") must be an absolute path, beginning with /",
            "k.toml: listen.tcp[0].auth_file (\"/nowhere/a\") cannot be read: No such file or directory (os error 2)",
            "k.toml: listen.unix[0].tls is not a key here: there are path, auth_file, clients",
            "k.toml: listen.unix[0].path (\"b\") must be an absolute path, beginning with /",
            "k.toml: listen.unix[0].auth_file (7) must be a text in quotes",
        ];
        assert_eq!(said, expected);
        let said =
            mistakes("tcp = [{ address = \"a:1\", tls = { cert = \"/nowhere/c\", key = \"/nowhere/k\" } }]");
        let expected = [
            "k.toml: listen.tcp[0].tls.cert (\"/nowhere/c\") cannot be read: No such file or directory (os error 2)",
            "k.toml: listen.tcp[0].tls.key (\"/nowhere/k\") cannot be read: No such file or directory (os error 2)",
        ];
        assert_eq!(said, expected);
        assert_eq!(
            mistakes("tcp = [{ address = \"a:1\", tls = \"yes\" }]"),
            ["k.toml: listen.tcp[0].tls (\"yes\") must be a table: { cert = \"/path\", key = \"/path\" }"]
        );
        assert_eq!(
            mistakes("tcp = [{ address = \"a:1\", tls = {} }]"),
            ["k.toml: listen.tcp[0].tls must name both, in PEM: cert = \"/path\", key = \"/path\""]
        );
    }

    #[test]
    fn the_reference_tells_of_every_key_of_an_entry() {
        let reference = include_str!("../../config/kennel.toml");
        let all = [file::TcpEntrance::KEYS, file::UnixEntrance::KEYS, file::Tls::KEYS].concat();
        for (key, _) in all {
            assert!(reference.contains(&format!("\n#   {key} ")), "config/kennel.toml should explain {key}");
        }
    }
}
