//! `kennel check FILE`: validates a configuration and describes it; with `--connect`, also checks its servers, and with `--against`
//! tells what it would change.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::admin_client::AdminClient;
use super::connect::{Found, connect};
use super::description::Description;
use super::memory::Memory;
use crate::app::workers;
use crate::config::{self, Changes, Config, Loaded, Location};
use crate::memory_limit;
use crate::open_files::{self, Budget};

/// The longest time that a sidecar may take to tell its configuration.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Validates the file together with the `KENNEL_…` variables of this process, as the sidecar does at start. Prints all errors to
/// stderr and returns 1, or prints a description to stdout and returns 0. With `servers`, it then connects to each server, prints
/// those with problems to stderr, and returns 1 if there are any.
/// With `against`, it also tells what the file would change of that configuration, and returns 1 if a reload would refuse it.
pub fn run(location: &Location, servers: bool, against: Option<&str>) -> ExitCode {
    let Some(path) = location.path() else {
        let why = "kennel check: there is no configuration file: name one\n";
        return print(&mut std::io::stderr(), why, ExitCode::FAILURE);
    };
    let loaded = match config::load(Some(path), config::environment()) {
        Ok(loaded) => loaded,
        Err(errors) => return print(&mut std::io::stderr(), &format!("{errors}\n"), ExitCode::FAILURE),
    };
    if let Some(against) = against {
        let changes = match changes(location, &loaded, against) {
            Ok(changes) => changes,
            Err(why) => {
                return print(&mut std::io::stderr(), &format!("kennel check: {why}\n"), ExitCode::FAILURE);
            }
        };
        let code = if changes.lose_something() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        let text = format!("{} is valid.\n\nAgainst {against}:\n\n{}", path.display(), changes.report());
        let code = print(&mut std::io::stdout(), &text, code);
        if !servers || code != ExitCode::SUCCESS {
            return code;
        }
    }
    let mut config = loaded.config;
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

/// What the file would change of a configuration: that of the sidecar with this URL, or of this file.
fn changes(location: &Location, loaded: &Loaded, against: &str) -> Result<Changes, String> {
    let of_sidecar = ["http://", "https://"].iter().find_map(|scheme| against.strip_prefix(scheme));
    let is_file = of_sidecar.is_none() && (Path::new(against).exists() || !against.contains(':'));
    if is_file {
        let old = config::load(Some(Path::new(against)), config::environment());
        return Ok(Changes::between(&old.map_err(|errors| errors.to_string())?, loaded));
    }
    let address = of_sidecar.unwrap_or(against).split('/').next().unwrap_or_default();
    // The credentials are those of the file.
    let client = AdminClient::new(location, Some(address))?;
    let written = client.get("/config", TIMEOUT).map_err(|why| why.to_string())?;
    let old = config::read(&format!("the configuration of {address}"), &written, []);
    let old = old.map_err(|errors| format!("{errors}\nis the sidecar there another version of Kennel?"))?;
    // What the sidecar has read of its files is not told to others.
    let old = Loaded { files: loaded.files.clone(), ..old };
    Ok(Changes::between(&old, loaded))
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
        assert_eq!(run(&Location::Named("/nowhere/kennel.toml".into()), false, None), ExitCode::FAILURE);
    }

    #[test]
    fn the_shipped_sidecar_configuration_is_valid() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/sidecar.toml"));
        let text = report(path, &Config::load(Some(path), []).unwrap());
        assert_eq!(text.matches("33.3% of the keys").count(), 3, "{text}");
        assert_eq!(run(&Location::Named(path.to_owned()), false, None), ExitCode::SUCCESS);
        assert!(text.contains("tags: blog:{blog}, pages") && !text.contains("warning"), "{text}");
    }
}
