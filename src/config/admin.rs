//! Where the admin listener and the control socket of a configuration are and what they need, for the commands that ask there.

use std::path::{Path, PathBuf};

use config::{FileFormat, Map, Source, Value};

use super::environment::Overrides;
use super::location::unreadable;
use super::{integers, units};
use crate::listener::ListenAddress;
use crate::tls::TlsFiles;

/// Used when the key is absent.
const DEFAULT: &str = "127.0.0.1:9111";

/// How to reach the admin server of a sidecar on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAccess {
    /// Where it listens; `None` if it is turned off.
    pub listen: Option<ListenAddress>,
    /// The files of its TLS.
    pub tls: Option<TlsFiles>,
    /// The file of the users that may look.
    pub auth_file: Option<PathBuf>,
    /// The file of its token.
    pub token_file: Option<PathBuf>,
    /// `admin.control`, as it is written: a path, `auto` or empty.
    pub control: String,
}

/// Reads `[admin]` alone: of the file at `path`, if there is one, and of the `KENNEL_…` variables in `env`. Mistakes in other keys do
/// not matter, because a running sidecar does not become worse while its file is edited.
///
/// # Errors
/// One line: the file cannot be read, is not TOML, or has a wrong address.
pub fn admin_access(
    path: Option<&Path>,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<AdminAccess, String> {
    let mut root = path.map_or_else(|| Ok(Map::new()), read)?;
    Overrides::apply(env, &mut root);
    let mut admin = root.remove("admin").and_then(|admin| admin.into_table().ok()).unwrap_or_default();
    let file = |table: &mut Map<String, Value>, key: &str| {
        Some(PathBuf::from(table.remove(key)?.into_string().ok()?))
    };
    let tls = admin.remove("tls").and_then(|tls| tls.into_table().ok()).and_then(|mut tls| {
        let (cert, key) = (file(&mut tls, "cert")?, file(&mut tls, "key")?);
        Some(TlsFiles { cert, key, client_ca: file(&mut tls, "client_ca") })
    });
    let (auth_file, token_file) = (file(&mut admin, "auth_file"), file(&mut admin, "token_file"));
    let listen = match admin.remove("listen") {
        Some(listen) => listen.into_string().map_err(|_| "admin.listen is not a string".to_owned())?,
        None => DEFAULT.to_owned(),
    };
    let listen = match &listen[..] {
        "" => None,
        address => {
            let address = units::listen_address(address);
            Some(address.map_err(|why| format!("admin.listen ({listen:?}) {why}"))?)
        }
    };
    let control = admin.remove("control").and_then(|control| control.into_string().ok());
    let control = control.unwrap_or_else(|| "auto".to_owned());
    Ok(AdminAccess { listen, tls, auth_file, token_file, control })
}

fn read(path: &Path) -> Result<Map<String, Value>, String> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{file}: {}", unreadable(&error)))?;
    let (readable, _) = integers::quote_oversized("", &text);
    let root = config::File::from_str(&readable, FileFormat::Toml).collect();
    root.map_err(|_| format!("{file}: is not TOML: kennel check {file} shows why"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn address(text: Option<&str>, env: &[(&str, &str)]) -> Result<Option<String>, String> {
        let path = std::env::temp_dir().join(format!("kennel-admin-{}.toml", std::process::id()));
        let path = text.map(|text| {
            std::fs::write(&path, text).unwrap();
            path
        });
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let found = admin_access(path.as_deref(), env);
        found.map(|access| access.listen.map(|address| address.to_string()))
    }

    #[test]
    fn the_variable_overrides_the_file_and_the_default_is_that_of_the_sidecar() {
        let default = Config::load(None, []).unwrap().admin.unwrap().listen.to_string();
        let file = Some("[admin]\nlisten = \"[::1]:9\"");
        let set = [("KENNEL_ADMIN__LISTEN", "0.0.0.0:7")];
        assert_eq!(address(None, &[]), Ok(Some(default.clone())));
        assert_eq!(address(Some("[listen]"), &[]), Ok(Some(default)));
        assert_eq!(address(file, &[]), Ok(Some("[::1]:9".to_owned())));
        assert_eq!(address(file, &set), Ok(Some("0.0.0.0:7".to_owned())));
        assert_eq!(address(None, &set), Ok(Some("0.0.0.0:7".to_owned())));
        assert_eq!(address(file, &[("KENNEL_ADMIN_LISTEN", "")]), Ok(None));
    }

    #[test]
    fn mistakes_elsewhere_do_not_matter() {
        let text = "oops = 99999999999999999999\npools = 7\nlisten.tcp = [3]\nadmin.listen = \"a:1\"\nadmin.color = 1";
        let env = [("KENNEL_POOLS__MAIN__SERVERS", "x"), ("KENNEL_NONSENSE", "1")];
        assert_eq!(address(Some(text), &env), Ok(Some("a:1".to_owned())));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let error = |text| address(Some(text), &[]).unwrap_err();
        assert!(error("[admin").contains("is not TOML: kennel check "));
        assert_eq!(error("admin.listen = [1]"), "admin.listen is not a string");
        assert!(error("admin.listen = 9111").starts_with("admin.listen (\"9111\") must be host:port"));
        let gone = admin_access(Some(Path::new("/nonexistent")), []).unwrap_err();
        assert!(gone.starts_with("/nonexistent: cannot be read: "), "{gone}");
    }
}
