//! `kennel init`: writes a configuration for the servers that a site has, which leaves every key where it is.
//!
//! `twemproxy` (with `yaml`), `mcrouter` and `list` make a `site` of what they read, and `page` writes its configuration.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use super::arguments::InitArguments;
use super::check::print;
use super::connect::{Found, connect};
use crate::config::Config;
use site::Site;

mod list;
mod mcrouter;
mod page;
mod site;
mod twemproxy;
mod yaml;

/// The variable that applications read their servers from.
pub const SERVERS_VARIABLE: &str = "MEMCACHE_SERVERS";
/// Where Debian's twemproxy has its configuration.
const TWEMPROXY: &str = "/etc/nutcracker/nutcracker.yml";

/// Writes the file, or prints it to stdout, and what must be known of it to stderr. `servers`: the value of [`SERVERS_VARIABLE`]. Returns
/// 1 if there is nothing to begin with, something cannot be translated, or a server cannot be reached.
pub fn run(arguments: &InitArguments, servers: Option<&str>) -> ExitCode {
    match init(arguments, servers, Path::new(TWEMPROXY)) {
        Ok(code) => code,
        Err(why) => print(&mut io::stderr(), &format!("kennel init: {why}\n"), ExitCode::FAILURE),
    }
}

fn init(arguments: &InitArguments, servers: Option<&str>, twemproxy: &Path) -> Result<ExitCode, String> {
    let site = find(arguments, servers, twemproxy)?;
    let text = page::text(&site);
    let mut config = Config::read("the configuration", &text, [])
        .map_err(|errors| format!("what {} has makes no valid configuration:\n{errors}", site.origin))?;
    let Found { good, bad } = match arguments.no_connect {
        true => Found::default(),
        false => connect(&mut config).map_err(|error| format!("cannot connect: {error}"))?,
    };
    write(arguments, &text)?;
    let remarks: String = site.remarks.iter().map(|remark| format!("note: {remark}\n")).collect();
    let code = if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    Ok(print(&mut io::stderr(), &format!("{remarks}{good}{bad}"), code))
}

/// What the arguments name, otherwise the variable, otherwise twemproxy's file.
fn find(arguments: &InitArguments, servers: Option<&str>, twemproxy: &Path) -> Result<Site, String> {
    let (pool, client) = (arguments.pool.as_deref(), arguments.client.as_deref());
    match (&arguments.servers, &arguments.file, servers.filter(|list| !list.trim().is_empty())) {
        (Some(list), _, _) => list::read(list, "--servers", client),
        (None, Some(file), _) => read(file, pool),
        (None, None, Some(list)) => list::read(list, SERVERS_VARIABLE, client),
        (None, None, None) if twemproxy.exists() => read(twemproxy, pool),
        (None, None, None) => Err(format!(
            "there is nothing to begin with: name the servers (--servers HOST:PORT,…, or {SERVERS_VARIABLE}), or the configuration file of \
             twemproxy or mcrouter"
        )),
    }
}

/// The configuration file of a proxy: mcrouter's is JSON, and begins with a brace.
fn read(file: &Path, pool: Option<&str>) -> Result<Site, String> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| format!("{name}: cannot be read: {error}"))?;
    let json = mcrouter::without_comments(&text);
    let site = match json.trim_start().starts_with('{') {
        true => mcrouter::read(&json, &name, pool),
        false => twemproxy::read(&text, &name, pool),
    };
    site.map_err(|why| format!("{name}: {why}"))
}

fn write(arguments: &InitArguments, text: &str) -> Result<(), String> {
    let Some(path) = &arguments.output else {
        print(&mut io::stdout(), text, ExitCode::SUCCESS);
        return Ok(());
    };
    let mut options = OpenOptions::new();
    options.write(true);
    match arguments.force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AlreadyExists => ": --force replaces it",
            _ => "",
        };
        format!("{}: {error}{advice}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;
    use crate::cli::arguments::{Arguments, Command};

    fn arguments(line: &str) -> InitArguments {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Some(Command::Init(arguments)) => arguments,
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn what_is_named_comes_before_the_variable_and_that_before_the_file_of_twemproxy() {
        let directory = std::env::temp_dir().join(format!("kennel-init-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (yaml, missing) = (directory.join("nutcracker.yml"), directory.join("missing.yml"));
        fs::write(&yaml, "alpha:\n  servers:\n   - c:11211:1\n").unwrap();
        let found = |line: &str, servers, twemproxy: &Path| {
            find(&arguments(line), servers, twemproxy).map(|site| site.servers[0].address.clone())
        };
        assert_eq!(found("kennel init --servers a:1", Some("b:1"), &yaml), Ok("a:1".to_owned()));
        let named = format!("kennel init {}", yaml.display());
        assert_eq!(found(&named, Some("b:1"), &missing), Ok("c:11211".to_owned()));
        assert_eq!(found("kennel init", Some("b:1"), &yaml), Ok("b:1".to_owned()));
        assert_eq!(found("kennel init", Some(" "), &yaml), Ok("c:11211".to_owned()));
        assert!(found("kennel init", None, &missing).unwrap_err().starts_with("there is nothing to begin"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_is_not_replaced_unless_that_is_asked_for_and_a_server_that_is_down_is_a_failure() {
        let path = std::env::temp_dir().join(format!("kennel-init-{}.toml", std::process::id()));
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let line = format!("kennel init --servers {free} -o {}", path.display());
        let made = |line: &str| init(&arguments(line), None, Path::new("/nowhere"));
        assert_eq!(made(&line), Ok(ExitCode::FAILURE), "nothing listens there");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(&free.to_string()), "{text}");
        assert!(made(&line).unwrap_err().ends_with(": --force replaces it"));
        assert_eq!(made(&format!("{line} --no-connect --force")), Ok(ExitCode::SUCCESS));
        Config::load(Some(&path), []).unwrap();
        fs::remove_file(path).unwrap();
    }
}
