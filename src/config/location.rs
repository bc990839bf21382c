//! Which file a configuration is read from.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Names the file, if `--config` does not. Empty: there is none.
pub const CONFIG_VARIABLE: &str = "KENNEL_CONFIG";
/// Read if nothing names a file.
const OF_THE_SYSTEM: &str = "/etc/kennel/kennel.toml";

/// Which file a configuration is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// The command line names it.
    Named(PathBuf),
    /// The command line does not.
    Found(PathBuf),
    /// There is no file: the built-in configuration.
    BuiltIn,
}

impl Location {
    /// What `--config` names, otherwise [`CONFIG_VARIABLE`], otherwise the file of the system if there is one. One that cannot be
    /// looked at is there: reading it tells why.
    pub fn find(argument: Option<PathBuf>, variable: Option<OsString>) -> Location {
        Location::find_in(argument, variable, Path::new(OF_THE_SYSTEM))
    }

    fn find_in(argument: Option<PathBuf>, variable: Option<OsString>, system: &Path) -> Location {
        let is_missing = || fs::metadata(system).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        match (argument, variable) {
            (Some(file), _) => Location::Named(file),
            (None, Some(none)) if none.is_empty() => Location::BuiltIn,
            (None, Some(file)) => Location::Found(file.into()),
            (None, None) if is_missing() => Location::BuiltIn,
            (None, None) => Location::Found(system.to_owned()),
        }
    }

    /// Path of the file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Location::Named(file) | Location::Found(file) => Some(file),
            Location::BuiltIn => None,
        }
    }

    /// The file, if the command line names it.
    pub fn named(&self) -> Option<&Path> {
        match self {
            Location::Named(file) => Some(file),
            Location::Found(_) | Location::BuiltIn => None,
        }
    }
}

/// Why a file could not be read, to follow its name. The package's file is readable for root and the sidecar only.
pub(super) fn unreadable(error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ": run this as its owner or a member of its group, or name another file with --config or KENNEL_CONFIG (\"\": none)"
        }
        _ => "",
    };
    format!("cannot be read: {error}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_comes_before_the_variable_and_that_before_the_file_of_the_system() {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/kennel.toml"));
        let missing = Path::new("/nowhere/kennel.toml");
        let find = |argument: Option<&str>, variable: Option<&str>, system| {
            Location::find_in(argument.map(PathBuf::from), variable.map(OsString::from), system)
        };
        assert_eq!(find(Some("a"), Some("b"), here), Location::Named("a".into()));
        assert_eq!(find(Some("a"), Some(""), here), Location::Named("a".into()));
        assert_eq!(find(None, Some("b"), here), Location::Found("b".into()));
        assert_eq!(find(None, Some(""), here), Location::BuiltIn);
        assert_eq!(find(None, None, here), Location::Found(here.to_owned()));
        assert_eq!(find(None, None, missing), Location::BuiltIn);
        // Nobody can tell whether it is there: it is not skipped.
        let inside_a_file = here.join("kennel.toml");
        assert_eq!(find(None, None, &inside_a_file), Location::Found(inside_a_file));
    }

    #[test]
    fn who_may_not_read_the_file_is_told_what_to_do() {
        let denied = unreadable(&io::Error::from_raw_os_error(13));
        assert!(
            denied.starts_with("cannot be read: Permission denied (os error 13): run this as"),
            "{denied}"
        );
        let missing = unreadable(&io::Error::from_raw_os_error(2));
        assert_eq!(missing, "cannot be read: No such file or directory (os error 2)");
    }
}
