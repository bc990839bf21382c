//! `kennel check FILE`: validates a configuration and describes it; with `--connect`, also checks its servers.

use std::path::Path;
use std::process::ExitCode;

use super::connect::{Found, connect};
use super::description::Description;
use super::memory::Memory;
use crate::app::workers;
use crate::config::{self, Config};
use crate::memory_limit;
use crate::open_files::{self, Budget};

/// Validates the file together with the `KENNEL_…` variables of this process, as the sidecar does at start. Prints all errors to
/// stderr and returns 1, or prints a description to stdout and returns 0. With `servers`, it then connects to each server, prints
/// those with problems to stderr, and returns 1 if there are any.
pub fn run(path: &Path, servers: bool) -> ExitCode {
    let mut config = match Config::load(Some(path), config::environment()) {
        Ok(config) => config,
        Err(errors) => return print(&mut std::io::stderr(), &format!("{errors}\n"), ExitCode::FAILURE),
    };
    // This is the limit of the current process; a service may have another one.
    config.warnings.extend(Budget::new(open_files::raise(), &config, workers(&config)).warning());
    config.warnings.extend(Memory::of(&config).warning(memory_limit::read()));
    if !servers {
        return print(&mut std::io::stdout(), &report(path, &config), ExitCode::SUCCESS);
    }
    let (good, bad) = match connect(&mut config) {
        Ok(Found { good, bad }) => (good, bad),
        Err(error) => (String::new(), format!("cannot connect: {error}\n")),
    };
    let report = report(path, &config);
    let title = if good.is_empty() { "" } else { "\nServers:\n" };
    let code = print(&mut std::io::stdout(), &format!("{report}{title}{good}"), ExitCode::SUCCESS);
    if bad.is_empty() { code } else { print(&mut std::io::stderr(), &bad, ExitCode::FAILURE) }
}

/// Prints `text` and returns `code`, also if the reader of a pipe has closed it (`kennel check f | head -1`).
pub(super) fn print(to: &mut impl std::io::Write, text: &str, code: ExitCode) -> ExitCode {
    match to.write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => code,
        Err(_) => ExitCode::FAILURE,
    }
}

fn report(path: &Path, config: &Config) -> String {
    format!("{} is valid.\n\n{}", path.display(), Description(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_an_error() {
        let errors = Config::load(Some(Path::new("/nowhere/kennel.toml")), []).unwrap_err().to_string();
        assert!(errors.starts_with("/nowhere/kennel.toml: cannot be read: No such file"), "{errors}");
        assert_eq!(run(Path::new("/nowhere/kennel.toml"), false), ExitCode::FAILURE);
    }

    #[test]
    fn the_shipped_sidecar_configuration_is_valid() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/sidecar.toml"));
        let text = report(path, &Config::load(Some(path), []).unwrap());
        assert_eq!(text.matches("33.3% of the keys").count(), 3, "{text}");
        assert_eq!(run(path, false), ExitCode::SUCCESS);
        assert!(text.contains("tags: blog:{blog}, pages") && !text.contains("warning"), "{text}");
    }
}
