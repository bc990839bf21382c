//! The arguments of the command line. Man pages and shell completions are generated from them too.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use super::admin_client::AdminClient;
use super::clients;
use crate::config::Location;
use crate::log;

/// The version of the package, and the commit that it was built from.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("KENNEL_REVISION"), ")");

/// A memcached sidecar with dog-pile protection and tags.
///
/// Without a command, runs the sidecar. Without a configuration file, it listens on 127.0.0.1:11211, guards every key and stores
/// values in a memcached inside the process.
#[derive(Parser)]
#[command(version = VERSION, about)]
pub struct Arguments {
    /// Configuration file (TOML). Without it, the file that KENNEL_CONFIG names ("": none), or /etc/kennel/kennel.toml if there is one.
    /// Other KENNEL_… variables override its keys.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Format of the log on stderr: text or json.
    #[arg(long, value_name = "FORMAT", global = true)]
    pub log_format: Option<log::Format>,
    /// Take over the listeners and clients of the running sidecar with the same admin.control, which then ends. Starts normally if
    /// there is none.
    #[arg(long)]
    pub takeover: bool,
    /// Start a process with --takeover, and end. The running sidecar uses it.
    #[arg(long, hide = true)]
    pub start_takeover: bool,
    /// What to do instead of running the sidecar.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands other than running the sidecar.
#[derive(Subcommand)]
pub enum Command {
    /// Validate a configuration and describe it; report all errors.
    Check {
        /// Also connect to every server and report its version and whether it can guard keys. Exit code 1 if a server cannot be
        /// reached, cannot guard keys although a rule requires it, or does not list its keys although a rule has copies.
        #[arg(long)]
        connect: bool,
        /// Also tell in words what it would change: of the configuration of a running sidecar, by the URL of its admin address
        /// (http://127.0.0.1:9111), or of another file. Exit code 1 if a reload would refuse that, because it would lose something.
        #[arg(long, value_name = "RUNNING|FILE")]
        against: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Exit code 1 if there is a warning, too.
        #[arg(long)]
        strict: bool,
        /// The file, instead of that of --config.
        file: Option<PathBuf>,
    },
    /// Print the completions of a shell: bash, zsh, fish, elvish or powershell.
    Completions {
        /// The shell.
        #[arg(hide_possible_values = true)]
        shell: Shell,
    },
    /// Demonstrate the guard with simulated clients, in under a minute. Needs no server and no configuration.
    Demo,
    /// Explain a key: its rule, server and tags, what is stored and why it is fresh or stale, who rebuilds it. Changes nothing.
    ///
    /// Asks the running sidecar of the configuration. If none replies, asks the servers.
    Explain {
        /// Admin address of the sidecar, instead of that of its configuration. Receives credentials only of a file that --config names.
        #[arg(long, value_name = "ADDR", conflicts_with = "direct")]
        admin: Option<String>,
        /// Ask the servers even if a sidecar runs.
        #[arg(long)]
        direct: bool,
        /// The key is in base64.
        #[arg(long)]
        base64: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The key.
        key: OsString,
    },
    /// List what the marks in the pools tell of the sidecars of the fleet: placements, rules, versions of Kennel, since when.
    ///
    /// Asks a running sidecar of the fleet.
    Fleet {
        /// The sidecar.
        #[command(flatten)]
        sidecar: Sidecar,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check whether the sidecar of a configuration is ready. Exit code 0 if it is, otherwise 1.
    Health {
        /// Admin address of the sidecar, instead of that of its configuration. Receives credentials only of a file that --config names.
        #[arg(long, value_name = "ADDR")]
        admin: Option<String>,
    },
    /// Write a commented configuration for the servers that a site has, which leaves every key on its server, and test them.
    ///
    /// Prints it to stdout, or writes --output; what has no translation, and what the servers are, goes to stderr. Begins with FILE or
    /// --servers; otherwise with MEMCACHE_SERVERS, otherwise with /etc/nutcracker/nutcracker.yml. Exit code 1 if a server cannot be
    /// reached.
    Init(InitArguments),
    /// Have the running sidecar read its configuration again, and print what has changed.
    ///
    /// Asks on its control socket, admin.control. Exit code 0, or 1 if there are mistakes, or if it would lose something: then nothing has
    /// changed.
    Reload {
        /// Control socket of the sidecar, instead of that of its configuration.
        #[arg(long, value_name = "PATH")]
        control: Option<PathBuf>,
        /// Only tell in words what would change. Exit code 1 if a reload would refuse it.
        #[arg(long)]
        dry_run: bool,
        /// Take it even if it loses something, such as invalidations that the servers have acknowledged.
        #[arg(long, conflicts_with = "dry_run")]
        force: bool,
    },
    /// Store copies that a server has lost again, for rules with copies = 2, and print how many there were.
    ///
    /// Asks the running sidecar on its control socket, admin.control, and returns once it is done. The sidecars of a fleet do the same by
    /// themselves, at [pools.NAME.repair] rate. Exit code 0 if everything has two copies: then another server may restart.
    Repair {
        /// The pool.
        #[arg(long, value_name = "NAME", default_value = "main")]
        pool: String,
        /// Only count what is missing. Exit code 0 if that was possible.
        #[arg(long)]
        dry_run: bool,
        /// Control socket of the sidecar, instead of that of its configuration.
        #[arg(long, value_name = "PATH")]
        control: Option<PathBuf>,
    },
    /// Compare the pools of two configurations: print the share of keys that move, from which server to which.
    Ring {
        /// Only this pool.
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Current configuration file (TOML). KENNEL_… variables do not apply.
        old: PathBuf,
        /// New configuration file (TOML).
        new: PathBuf,
    },
    /// Move the keys of a server to its standby servers before it is stopped, for the whole fleet, and back.
    ///
    /// Asks a running sidecar on its control socket, admin.control. The pool must fail over.
    Server {
        /// What to do with the server.
        #[command(subcommand)]
        command: ServerCommand,
    },
    /// Invalidate tags for all sidecars, or print when they were last invalidated. Needs no running sidecar.
    Tag {
        /// What to do with the tags.
        #[command(subcommand)]
        command: TagCommand,
    },
    /// Propose rules for the keys that a running sidecar has observed, or that a recording has, and print them as TOML.
    ///
    /// A sidecar observes the keys of rules with kind = "observe" and, with all = true in [observe], all raw keys. Begin with an
    /// hour of usual load. No proposed rule has the name of one of the configuration.
    Suggest(SuggestArguments),
    /// Show the hottest keys of a running sidecar, live in a terminal. Keys: r, b, m, t, s sort; / filters; q quits.
    Top(TopArguments),
    /// Show what happens to keys in a running sidecar, as it happens.
    Trace(TraceArguments),
}

/// Which sidecar a command asks.
#[derive(Args)]
pub struct Sidecar {
    /// Admin address of the sidecar, instead of that of its configuration. Receives credentials only of a file that --config names.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
}

impl Sidecar {
    /// The way to ask it, with the TLS and the credentials of its configuration.
    pub(super) fn client(&self, location: &Location) -> Result<AdminClient, String> {
        AdminClient::new(location, self.admin.as_deref())
    }
}

/// The arguments of `kennel init`.
#[derive(Args)]
pub struct InitArguments {
    /// The servers, separated by commas: HOST, HOST:PORT or HOST:PORT:WEIGHT, in the order of the application.
    #[arg(long, value_name = "LIST", conflicts_with_all = ["file", "pool"])]
    pub servers: Option<String>,
    /// The library, or proxy, that places the keys of --servers or MEMCACHE_SERVERS today, with its default options or those named.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(clients::names()), conflicts_with = "file")]
    pub client: Option<String>,
    /// The pool of the file to take, if it has several.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Write this file.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace it if it exists.
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Do not connect to the servers.
    #[arg(long)]
    pub no_connect: bool,
    /// The configuration of twemproxy (YAML) or mcrouter (JSON).
    pub file: Option<PathBuf>,
}

/// The arguments of `kennel top`.
#[derive(Args)]
pub struct TopArguments {
    /// The sidecar.
    #[command(flatten)]
    pub sidecar: Sidecar,
    /// Sort by this: requests, bytes, misses, rebuild or spared.
    #[arg(long, value_name = "MEASURE", default_value = "requests")]
    pub by: String,
    /// Only keys of the rule with this name.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Only keys that match, with * and ?.
    #[arg(long, value_name = "GLOB")]
    pub key: Option<OsString>,
    /// Print the table once. This is the default if stdout is no terminal.
    #[arg(long)]
    pub once: bool,
    /// Print the sidecar's JSON once.
    #[arg(long)]
    pub json: bool,
    /// The most keys: 1 to 1000. Without it, 1000 in a terminal, which scrolls, and otherwise 50.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// The arguments of `kennel suggest`.
#[derive(Args)]
pub struct SuggestArguments {
    /// The sidecar.
    #[command(flatten)]
    pub sidecar: Sidecar,
    /// A recording, the output of kennel trace --json, instead of a sidecar; - is stdin.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "admin"])]
    pub recording: Option<PathBuf>,
    /// The same as --recording.
    #[arg(value_name = "RECORDING", conflicts_with = "admin")]
    pub file: Option<PathBuf>,
}

/// The arguments of `kennel trace`.
#[derive(Args)]
pub struct TraceArguments {
    /// The sidecar.
    #[command(flatten)]
    pub sidecar: Sidecar,
    /// Only keys that match, with * and ?.
    #[arg(long, value_name = "GLOB")]
    pub key: Option<OsString>,
    /// Only keys of these rules, separated by commas.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<OsString>,
    /// Only keys of rules of these kinds, separated by commas: guarded, raw, counter, …
    #[arg(long, value_name = "KIND")]
    pub kind: Option<OsString>,
    /// Only what goes to these servers: names or addresses as in the configuration, or pool/name, separated by commas.
    #[arg(long, value_name = "SERVER")]
    pub server: Option<OsString>,
    /// Only requests of these clients, separated by commas, with * and ?: 10.0.0.7, '10.0.0.7:5*', 'unix*'.
    #[arg(long, value_name = "CLIENT")]
    pub client: Option<OsString>,
    /// Only these outcomes, separated by commas, with * and ?: hit, stale, 'miss*', …
    #[arg(long, value_name = "OUTCOME")]
    pub outcome: Option<OsString>,
    /// Only what takes at least this long: 250us, 10ms, 1s.
    #[arg(long, value_name = "DURATION")]
    pub slower: Option<OsString>,
    /// Only a random part of what matches: 1/100.
    #[arg(long, value_name = "FRACTION")]
    pub sample: Option<OsString>,
    /// One line for each key, with a letter for each event.
    #[arg(long, conflicts_with = "json")]
    pub letters: bool,
    /// One JSON object for each event.
    #[arg(long)]
    pub json: bool,
    /// End after this time: 10s. Without it, on Ctrl-C.
    #[arg(long = "for", value_name = "DURATION")]
    pub duration: Option<String>,
}

/// The commands of `kennel tag`.
#[derive(Subcommand)]
pub enum TagCommand {
    /// Invalidate every value that carries one of these tags. Exit code 0 if the servers have acknowledged all bumps.
    Bump {
        /// Names of tags, without tags.prefix.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<OsString>,
    },
    /// Print the version of each tag, which is the time of its last bump: in milliseconds since 1970, and in UTC.
    Get {
        /// Names of tags, without tags.prefix.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<OsString>,
    },
}

/// The commands of `kennel server`.
#[derive(Subcommand)]
pub enum ServerCommand {
    /// Move its guarded keys, tags and copies to their standby servers. Exit code 0 once the server may be stopped.
    Drain(MovedServer),
    /// Let them return. Exit code 0 once they have, after the server has answered for recover_after.
    Undrain(MovedServer),
}

/// The server of `kennel server`.
#[derive(Args)]
pub struct MovedServer {
    /// Control socket of the sidecar, instead of that of its configuration.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Its name in the configuration, or its address.
    #[arg(value_name = "NAME")]
    pub server: String,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
        let file = |line: &str| {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert!(matches!(arguments.command, Some(Command::Tag { .. })), "{line}");
            arguments.config
        };
        for line in [
            "kennel --config f tag bump a",
            "kennel tag --config f bump a",
            "kennel tag bump a b --config f",
            "kennel tag get --config f a",
            "kennel tag get -c f a",
        ] {
            assert_eq!(file(line).as_deref(), Some(Path::new("f")), "{line}");
        }
        assert!(Arguments::try_parse_from(["kennel", "tag", "bump"]).is_err(), "a name is required");
    }

    /// The words of a command as a shell splits them; `None` if it uses more of the shell than this knows.
    fn shell_words(command: &str) -> Option<Vec<String>> {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        for c in command.chars().chain([' ']) {
            match c {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
                '$' | '"' | '`' | '<' | '>' if !is_quoted => return None,
                c => word.push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        (!is_quoted).then_some(words)
    }

    #[test]
    fn each_command_on_the_pages_for_operators_is_one_that_is_understood() {
        let pages = [include_str!("../../docs/operations.md"), include_str!("../../docs/observing.md")];
        // Lines of code, and code in a text: a line of text has it between backquotes.
        let commands = pages.iter().flat_map(|page| page.lines()).flat_map(|line| match line.contains('`') {
            true => line.split('`').skip(1).step_by(2).collect::<Vec<_>>(),
            false => vec![line.split("  #").next().unwrap_or_default()],
        });
        let parts = commands.flat_map(|command| command.split(" | ").flat_map(|part| part.split(" && ")));
        let mut understood = 0;
        for command in parts.map(str::trim).filter(|part| part.starts_with("kennel ")) {
            let Some(words) = shell_words(command) else { continue };
            // A text may name a command, with a flag, without its arguments.
            let is_name = words.len() <= 3;
            if let Err(error) = Arguments::try_parse_from(&words).map(|_| ()) {
                use clap::error::ErrorKind as E;
                let is_incomplete = matches!(
                    error.kind(),
                    E::MissingRequiredArgument | E::DisplayHelpOnMissingArgumentOrSubcommand
                );
                assert!(is_name && is_incomplete, "{command}: {error}");
            }
            understood += 1;
        }
        assert!(understood > 25, "{understood}");
    }

    #[test]
    fn the_version_names_the_commit() {
        let version = <Arguments as clap::CommandFactory>::command().render_version();
        assert_eq!(version, format!("kennel {} ({})\n", env!("CARGO_PKG_VERSION"), env!("KENNEL_REVISION")));
        assert!(!env!("KENNEL_REVISION").is_empty());
    }
}
