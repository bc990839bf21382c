//! `tls` and `auth` of `[pools.<name>]`: what protects the connections to the servers.

use std::path::PathBuf;

use config::{Value, ValueKind};
use serde::Deserialize;

use super::file;
use super::listen::{absolute_path, warn_of_expired};
use super::validator::{KeyPath, Validator, keys, text};
use crate::upstream::credentials::{AuthSpec, check_user};
use crate::upstream::tls::{TlsSpec, check_name};
use crate::upstream::{Address, Security, SecuritySpec, ServerSpec};

/// The tables of the pool at `pool`. The files are read too: a file that cannot be used is an error of the configuration.
pub(super) fn security<'s>(
    v: &mut Validator<'_>,
    pool: &KeyPath,
    tls: Option<&Value>,
    auth: Option<&Value>,
    servers: impl Iterator<Item = &'s ServerSpec> + Clone,
) -> Option<SecuritySpec> {
    let tls_table =
        table::<file::PoolTls>(v, pool, "tls", tls, "{ ca = \"/path\" }, or {} for the system's CAs");
    let auth_table =
        table::<file::PoolAuth>(v, pool, "auth", auth, "{ user = \"name\", password_file = \"/path\" }");
    let tls_spec = tls_table.as_ref().and_then(|table| match table {
        Some(table) => tls_spec(v, pool, table, servers.clone()).map(Some),
        None => Some(None),
    });
    let auth_spec = auth_table.as_ref().and_then(|table| match table {
        Some(table) => auth_spec(v, pool, table, servers.clone()).map(Some),
        None => Some(None),
    });
    // The files of one table are checked even if the other has errors.
    let spec = SecuritySpec { tls: tls_spec.clone().flatten(), auth: auth_spec.clone().flatten() };
    match Security::read(&spec) {
        Ok(security) => warn_of_expired(v, pool, security.certificates()),
        Err(bad_files) => {
            for bad in bad_files {
                let inside = pool.inside(if bad.key == "password_file" { "auth" } else { "tls" });
                let value = match (bad.key, &tls_table, &auth_table) {
                    ("ca", Some(Some(table)), _) => table.ca.as_ref(),
                    ("cert", Some(Some(table)), _) => table.cert.as_ref(),
                    ("key", Some(Some(table)), _) => table.key.as_ref(),
                    ("password_file", _, Some(Some(table))) => table.password_file.as_ref(),
                    _ => None,
                };
                v.error(&inside, bad.key, value, bad.what);
            }
            return None;
        }
    }
    let (tls, auth) = (tls_spec?, auth_spec?);
    let is_open = |server: &&ServerSpec| match &server.address {
        Address::Tcp { host, .. } => !is_loopback(host),
        _ => false,
    };
    if let (None, Some(_), Some(server)) = (&tls, &auth, servers.clone().find(is_open)) {
        let what =
            format!("auth: without tls, the password crosses the network to {} unencrypted", server.address);
        v.warn(pool, what);
    }
    Some(SecuritySpec { tls, auth })
}

fn is_loopback(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// A table within the pool; the inner `None` if it is absent.
fn table<T: Default + for<'de> Deserialize<'de>>(
    v: &mut Validator<'_>,
    pool: &KeyPath,
    key: &str,
    value: Option<&Value>,
    example: &str,
) -> Option<Option<T>> {
    match value {
        None => Some(None),
        Some(value) if matches!(value.kind, ValueKind::Table(_)) => {
            Some(Some(T::deserialize(value.clone()).unwrap_or_default())) // cannot fail for a table
        }
        Some(value) => {
            v.error(pool, key, Some(value), format_args!("must be a table: {example}"));
            None
        }
    }
}

fn tls_spec<'s>(
    v: &mut Validator<'_>,
    pool: &KeyPath,
    table: &file::PoolTls,
    mut servers: impl Iterator<Item = &'s ServerSpec>,
) -> Option<TlsSpec> {
    let at = pool.inside("tls");
    v.unknown(&at, &table.rest, keys(file::PoolTls::KEYS));
    let ca = v.value(&at, "ca", &table.ca, None, absolute_path);
    let cert = v.value(&at, "cert", &table.cert, None, absolute_path);
    let key = v.value(&at, "key", &table.key, None, absolute_path);
    let server_name = v.value(&at, "server_name", &table.server_name, None, |value| {
        let name = text(value)?;
        check_name(name).map(|()| Some(name.to_owned()))
    });
    if table.cert.is_some() != table.key.is_some() {
        let message =
            "must name both files of the client certificate, or neither: cert = \"/path\", key = \"/path\"";
        v.error(pool, "tls", None, message);
        return None;
    }
    let without = servers.find(|server| !matches!(server.address, Address::Tcp { .. }));
    if let Some(server) = without {
        let message = format!(
            "cannot be used with the server \"{}\": TLS needs TCP addresses. Put the others in a pool of their own",
            server.address
        );
        v.error(pool, "tls", None, message);
        return None;
    }
    let server_name = server_name?;
    if server_name.is_none() {
        let cannot = |server: &&ServerSpec| match &server.address {
            Address::Tcp { host, .. } => check_name(host).is_err(),
            _ => false,
        };
        if let Some(server) = servers.find(cannot) {
            let message =
                format!("needs server_name: no certificate can be for the host of \"{}\"", server.address);
            v.error(pool, "tls", None, message);
            return None;
        }
    }
    Some(TlsSpec { ca: ca?, cert: cert?, key: key?, server_name })
}

fn auth_spec<'s>(
    v: &mut Validator<'_>,
    pool: &KeyPath,
    table: &file::PoolAuth,
    mut servers: impl Iterator<Item = &'s ServerSpec>,
) -> Option<AuthSpec> {
    let at = pool.inside("auth");
    v.unknown(&at, &table.rest, keys(file::PoolAuth::KEYS));
    let user = v.value(&at, "user", &table.user, None, |value| {
        let user = text(value)?;
        check_user(user).map(|()| Some(user.to_owned()))
    });
    let password_file: Option<Option<PathBuf>> =
        v.value(&at, "password_file", &table.password_file, None, absolute_path);
    if table.user.is_none() || table.password_file.is_none() {
        let message = "must have both keys: { user = \"name\", password_file = \"/path\" }";
        v.error(pool, "auth", None, message);
        return None;
    }
    if servers.any(|server| matches!(server.address, Address::Embedded { .. })) {
        v.error(pool, "auth", None, "cannot be used with an embedded server, which knows no passwords");
        return None;
    }
    Some(AuthSpec { user: user??, password_file: password_file?? })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, ConfigErrors};

    fn read(servers: &str, pool: &str) -> Result<Config, ConfigErrors> {
        let text = format!("[pools.main]\nservers = {servers}\n{pool}\n");
        Config::read("k.toml", &text, [])
    }

    fn error(servers: &str, pool: &str) -> String {
        let errors = read(servers, pool).expect_err(pool).without_places();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].strip_prefix("k.toml: pools.main.").expect(&errors[0]).to_owned()
    }

    const SERVER: &str = "[\"cache-1.internal:11211\"]";

    #[test]
    fn mistakes_are_named_with_the_key_and_what_would_be_right() {
        for (servers, pool, expected) in [
            (
                SERVER,
                "tls = true",
                "tls (true) must be a table: { ca = \"/path\" }, or {} for the system's CAs",
            ),
            (SERVER, "tls = { ca = \"ca.pem\" }", "tls.ca (\"ca.pem\") must be an absolute path"),
            (
                SERVER,
                "tls = { ca = \"/nowhere/ca.pem\" }",
                "tls.ca (\"/nowhere/ca.pem\") cannot be read: No such file",
            ),
            (
                SERVER,
                "tls = { cert = \"/c\" }",
                "tls must name both files of the client certificate, or neither",
            ),
            (
                SERVER,
                "tls = { key = \"/c\" }",
                "tls must name both files of the client certificate, or neither",
            ),
            (
                SERVER,
                "tls = { server_name = \"a b\" }",
                "tls.server_name (\"a b\") must be a host name or an IP address",
            ),
            (
                SERVER,
                "tls = { verify = false }",
                "tls.verify is not a known key: must be one of ca, cert, key, server_name",
            ),
            (
                "[\"a:1\", \"unix:/run/m\"]",
                "tls = {}",
                "tls cannot be used with the server \"unix:/run/m\": TLS needs TCP",
            ),
            ("[\"embedded:1MiB\"]", "tls = {}", "tls cannot be used with the server \"embedded:1MiB\""),
            (
                SERVER,
                "auth = \"a:b\"",
                "auth (\"a:b\") must be a table: { user = \"name\", password_file = \"/path\" }",
            ),
            (SERVER, "auth = {}", "auth must have both keys: { user = \"name\", password_file = \"/path\" }"),
            (SERVER, "auth = { user = \"a\" }", "auth must have both keys"),
            (
                SERVER,
                "auth = { user = \"a b\", password_file = \"/dev/null\" }",
                "auth.user (\"a b\") must be 1 to 128 visible ASCII characters",
            ),
            (
                SERVER,
                "auth = { user = \"a\", password_file = \"/dev/null\" }",
                "auth.password_file (\"/dev/null\") is empty: it must contain the password",
            ),
            (
                SERVER,
                "auth = { user = \"a\", password_file = \"/dev/null\", password = \"x\" }",
                "auth.password is not a known key: ",
            ),
            (
                "[\"embedded:1MiB\"]",
                "auth = { user = \"a\", password_file = \"/dev/null\" }",
                "auth cannot be used with an embedded server",
            ),
        ] {
            let errors = read(servers, pool).expect_err(pool).without_places();
            let expected = format!("k.toml: pools.main.{expected}");
            assert!(errors.iter().any(|error| error.starts_with(&expected)), "{pool}: {errors:?}");
        }
        let other = "next = [\"unix:/run/m\"]\nfailover = false\ntls = {}";
        assert!(error(SERVER, other).starts_with("tls cannot be used with the server \"unix:/run/m\""));
    }

    #[test]
    fn tls_without_keys_uses_the_cas_of_the_system_and_the_hosts_of_the_servers() {
        let config =
            read("[\"cache-1.internal:11211\", \"10.0.0.2:11211\", \"[::1]:1\"]", "tls = {}").unwrap();
        assert_eq!(config.pools[0].security, SecuritySpec { tls: Some(TlsSpec::default()), auth: None });
        assert_eq!(config.files(), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_password_without_tls_is_a_warning_unless_it_stays_on_the_machine() {
        let path = std::env::temp_dir().join(format!("kennel-config-password-{}", std::process::id()));
        std::fs::write(&path, "s3cret\n").unwrap();
        let auth = format!("auth = {{ user = \"ann\", password_file = {path:?} }}");
        let open = read("[\"127.0.0.1:1\", \"10.0.0.2:1\"]", &auth).unwrap();
        assert_eq!(
            open.warnings,
            ["pools.main.auth: without tls, the password crosses the network to 10.0.0.2:1 unencrypted"]
        );
        assert_eq!(open.files(), [path.as_path()] as [&Path; 1]);
        let local = "[\"127.0.0.1:1\", \"[::1]:1\", \"localhost:1\", \"unix:/run/m\"]";
        assert_eq!(read(local, &auth).unwrap().warnings, [] as [String; 0]);
        let encrypted = read("[\"10.0.0.2:1\"]", &format!("{auth}\ntls = {{}}")).unwrap();
        assert_eq!(encrypted.warnings, [] as [String; 0]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_reference_explains_every_key() {
        let reference = include_str!("../../config/kennel.toml");
        for (key, _) in [file::PoolTls::KEYS, file::PoolAuth::KEYS].concat() {
            assert!(reference.contains(&format!("\n#   {key} ")), "config/kennel.toml should explain {key}");
        }
    }
}
