//! `kennel check FILE`: validates a configuration and describes it; with `--connect`, also checks its servers, and with `--against`
//! tells what it would change.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::admin_client::AdminClient;
use super::connect::{Found, connect};
use super::description::Description;
use super::memory::Memory;
use crate::app::workers;
use crate::config::{self, Changes, Config, Loaded, Location};
use crate::memory_limit;
use crate::open_files::{self, Budget};
use crate::upstream::Scheme;

/// The longest time that a sidecar may take to tell its configuration.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What `kennel check` does beside validating.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// It connects to each server.
    pub servers: bool,
    /// It tells what the file would change of this configuration.
    pub against: Option<&'a str>,
    /// It prints JSON.
    pub json: bool,
    /// A warning is a failure.
    pub strict: bool,
}

/// Validates the file together with the `KENNEL_…` variables of this process, as the sidecar does at start. Prints all errors to
/// stderr and returns 1, or prints a description to stdout and returns 0. The options may find more that makes it 1: a server with a
/// problem, which is printed to stderr, a change that a reload would refuse, or a warning. With `json`, all is printed to stdout.
pub fn run(location: &Location, options: Options<'_>) -> ExitCode {
    let Some(path) = location.path() else {
        return refuse("there is no configuration file: name one");
    };
    let loaded = match config::load(Some(path), config::environment()) {
        Ok(loaded) => loaded,
        Err(errors) if options.json => {
            let text = format!("{}\n", json!({ "file": path, "valid": false, "errors": errors.lines() }));
            return print(&mut io::stdout(), &text, ExitCode::FAILURE);
        }
        Err(errors) => return print(&mut io::stderr(), &format!("{errors}\n"), ExitCode::FAILURE),
    };
    let changes = match options.against.map(|against| changes(location, &loaded, against)).transpose() {
        Ok(changes) => changes,
        Err(why) => return refuse(&why),
    };
    let mut config = loaded.config;
    // This is the limit of the current process; a service may have another one.
    config.warnings.extend(Budget::new(open_files::raise(), &config, workers(&config)).warning());
    config.warnings.extend(Memory::of(&config).warning(memory_limit::read()));
    let servers = options.servers.then(|| match connect(&mut config) {
        Ok(found) => found,
        Err(error) => Found { good: String::new(), bad: format!("cannot connect: {error}\n") },
    });
    let is_refused = changes.as_ref().is_some_and(Changes::lose_something)
        || servers.as_ref().is_some_and(|found| !found.bad.is_empty())
        || options.strict && !config.warnings.is_empty();
    let code = if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if options.json {
        let text = format!("{}\n", in_json(path, &config, changes.as_ref(), servers.as_ref()));
        return print(&mut io::stdout(), &text, code);
    }
    let mut text = match (options.against, changes) {
        (Some(against), Some(changes)) => {
            format!("{} is valid.\n\nAgainst {against}:\n\n{}", path.display(), changes.report())
        }
        _ => report(path, &config),
    };
    let Found { good, bad } = servers.unwrap_or_default();
    if !good.is_empty() {
        text = format!("{text}\nServers:\n{good}");
    }
    match print(&mut io::stdout(), &text, code) {
        _ if !bad.is_empty() => print(&mut io::stderr(), &bad, code),
        printed => printed,
    }
}

fn refuse(why: &str) -> ExitCode {
    print(&mut io::stderr(), &format!("kennel check: {why}\n"), ExitCode::FAILURE)
}

/// What a valid configuration is, for programs.
fn in_json(path: &Path, config: &Config, changes: Option<&Changes>, servers: Option<&Found>) -> Value {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let pools = config.pools.iter().map(|pool| {
        let servers = pool.all_servers().map(|server| server.address.to_string()).collect::<Vec<_>>();
        let Scheme { distribution, hash, .. } = pool.scheme;
        json!({ "name": pool.name, "servers": servers, "distribution": distribution.name(), "hash": hash.name() })
    });
    let rules = config.rules.iter().map(|rule| {
        let (pattern, pool) = (rule.pattern.text(), &config.pools[rule.pool].name);
        json!({ "name": rule.name, "match": pattern, "kind": rule.kind.word(), "pool": pool })
    });
    let mut all = json!({
        "file": path,
        "valid": true,
        "warnings": config.warnings,
        "rules_fingerprint": format!("{:016x}", config.rules_fingerprint()),
        "pools": pools.collect::<Vec<_>>(),
        "rules": rules.collect::<Vec<_>>(),
    });
    if let Some(changes) = changes {
        let text = changes.all().iter().map(|change| &change.text).collect::<Vec<_>>();
        all["changes"] =
            json!({ "refused": changes.lose_something(), "losses": changes.losses(), "all": text });
    }
    if let Some(Found { good, bad }) = servers {
        all["servers"] = json!({ "good": lines(good), "bad": lines(bad) });
    }
    all
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
        assert_eq!(
            run(&Location::Named("/nowhere/kennel.toml".into()), Options::default()),
            ExitCode::FAILURE
        );
    }

    #[test]
    fn the_shipped_sidecar_configuration_is_valid() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/sidecar.toml"));
        let text = report(path, &Config::load(Some(path), []).unwrap());
        assert_eq!(text.matches("33.3% of the keys").count(), 3, "{text}");
        assert_eq!(run(&Location::Named(path.to_owned()), Options::default()), ExitCode::SUCCESS);
        assert!(text.contains("tags: blog:{blog}, pages") && !text.contains("warning"), "{text}");
    }

    #[test]
    fn programs_are_told_what_people_are() {
        let text = "[pools.main]\nservers = [\"a:1\", \"b:1\"]\n[[rules]]\nname = \"a\"\nmatch = \"a:*\"\n";
        let old = config::read("k.toml", &text.replace("a:*", "b:*"), []).unwrap();
        let new = config::read("k.toml", text, []).unwrap();
        let found = Found { good: "a\nb\n".to_owned(), bad: String::new() };
        let all =
            in_json(Path::new("k.toml"), &new.config, Some(&Changes::between(&old, &new)), Some(&found));
        assert_eq!(all["rules"], json!([{ "name": "a", "match": "a:*", "kind": "guarded", "pool": "main" }]));
        assert_eq!(all["pools"][0]["distribution"], "ketama");
        assert_eq!(all["rules_fingerprint"], format!("{:016x}", new.config.rules_fingerprint()));
        assert_eq!(all["servers"], json!({ "good": ["a", "b"], "bad": [] }));
        assert!(!all["changes"]["all"].as_array().unwrap().is_empty(), "{all}");
    }

    #[test]
    fn a_warning_fails_only_a_strict_check() {
        let path = std::env::temp_dir().join(format!("kennel-strict-{}.toml", std::process::id()));
        let rule = "[[rules]]\nname = \"NAME\"\nmatch = \"*\"\n";
        let hidden = [rule.replace("NAME", "a"), rule.replace("NAME", "b")].concat();
        std::fs::write(&path, format!("[pools.main]\nservers = [\"a:1\"]\n{hidden}")).unwrap();
        let named = Location::Named(path.clone());
        assert_eq!(run(&named, Options::default()), ExitCode::SUCCESS);
        assert_eq!(run(&named, Options { strict: true, ..Options::default() }), ExitCode::FAILURE);
        assert_eq!(run(&named, Options { json: true, ..Options::default() }), ExitCode::SUCCESS);
        std::fs::remove_file(path).unwrap();
    }
}
