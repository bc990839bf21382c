//! The command line, exit codes and signals.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kennel::app::App;
use kennel::app::control::{Signals, Source, control};
use kennel::config;
use kennel::{cli, log};
use tokio::runtime;
use tracing::warn;

/// A memcached sidecar with dog-pile protection and tags.
///
/// Without a command, runs the sidecar. Without --config, it listens on 127.0.0.1:11211, guards every key and stores values in a
/// memcached inside the process.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Configuration file (TOML). KENNEL_… variables override its keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Format of the log on stderr: text or json.
    #[arg(long, value_name = "FORMAT", global = true)]
    log_format: Option<log::Format>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Validate a configuration and describe it; report all errors.
    Check {
        /// Also connect to every server and report its version and whether it can guard keys. Exit code 1 if a server cannot be
        /// reached, or cannot guard keys although a rule requires it.
        #[arg(long)]
        connect: bool,
        /// Configuration file (TOML). KENNEL_… variables override its keys.
        file: PathBuf,
    },
    /// Demonstrate the guard with simulated clients, in under a minute. Needs no server and no configuration.
    Demo,
    /// Check whether a sidecar is ready. Exit code 0 if it is, otherwise 1.
    Health {
        /// Admin address of the sidecar.
        #[arg(long, value_name = "ADDR", default_value = cli::health::DEFAULT_ADMIN)]
        admin: String,
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
    /// Invalidate tags for all sidecars, or print when they were last invalidated. Needs no running sidecar.
    Tag {
        /// Configuration file of the sidecars (TOML). KENNEL_… variables override its keys.
        #[arg(long, value_name = "FILE", global = true)]
        config: Option<PathBuf>,
        #[command(subcommand)]
        command: TagCommand,
    },
}

#[derive(Subcommand)]
enum TagCommand {
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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Check { connect, file }) => return cli::check::run(file, *connect),
        Some(Command::Demo) => return cli::demo::run(),
        Some(Command::Health { admin }) => return cli::health::run(admin),
        Some(Command::Ring { pool, json, old, new }) => {
            return cli::ring::run(old, new, pool.as_deref(), *json);
        }
        Some(Command::Tag { config, command }) => {
            let (action, names) = match command {
                TagCommand::Bump { names } => (cli::tag::Action::Bump, names),
                TagCommand::Get { names } => (cli::tag::Action::Get, names),
            };
            return cli::tag::run(action, names, config.as_deref().or(arguments.config.as_deref()));
        }
        None => {}
    }
    if let Err(error) = log::init(arguments.log_format) {
        eprintln!("kennel: {error}");
        return ExitCode::FAILURE;
    }
    match serve(arguments.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kennel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: Option<PathBuf>) -> Result<(), Box<dyn std::error::Error>> {
    let source = Source::new(path, config::environment());
    let loaded = source.read().map_err(|errors| format!("\n{errors}"))?;
    loaded.config.warnings.iter().for_each(|warning| warn!("{warning}"));
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    // Before listeners are bound, so that a signal during the start stops the sidecar properly.
    let signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    let mut app = App::start(loaded)?;
    announce(&app, source.is_built_in());
    runtime.block_on(control(&mut app, &source, signals));
    app.stop();
    Ok(())
}

fn announce(app: &App, embedded: bool) {
    for address in app.tcp() {
        println!("kennel: listening on tcp {address}");
    }
    for path in app.unix() {
        println!("kennel: listening on unix {}", path.display());
    }
    if let Some(address) = app.admin() {
        println!("kennel: admin on http://{address}/");
    }
    if let (true, Some(address)) = (embedded, app.tcp().first()) {
        println!(
            "\nNo configuration: every key is guarded, and a memcached inside this process stores the values. To try it, run:\n"
        );
        example(*address).iter().for_each(|line| println!("  {line}"));
        println!(
            "\nThe second command receives a miss (END) and rebuilds the value in 2 s. The third one receives the stale"
        );
        println!("value (hello) meanwhile, and the new value (rebuilt) afterwards.\n");
    }
}

/// Commands for a POSIX shell and any `nc`: a value expires, one client rebuilds it in 2 s, and another reads it meanwhile.
fn example(address: SocketAddr) -> [String; 3] {
    let nc = format!("nc {} {}", address.ip(), address.port());
    [
        format!("printf 'set greeting 0 1 5\\r\\nhello\\r\\nquit\\r\\n' | {nc}; sleep 2"),
        format!(
            "(printf 'get greeting\\r\\n'; sleep 2; printf 'set greeting 0 60 7\\r\\nrebuilt\\r\\nquit\\r\\n') | {nc} &"
        ),
        format!(
            "sleep 1; printf 'get greeting\\r\\nquit\\r\\n' | {nc}; wait; printf 'get greeting\\r\\nquit\\r\\n' | {nc}"
        ),
    ]
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
            let Some(Command::Tag { config, .. }) = arguments.command else { panic!("{line}") };
            config.or(arguments.config)
        };
        for line in [
            "kennel --config f tag bump a",
            "kennel tag --config f bump a",
            "kennel tag bump a b --config f",
            "kennel tag get --config f a",
        ] {
            assert_eq!(file(line).as_deref(), Some(Path::new("f")), "{line}");
        }
        assert!(Arguments::try_parse_from(["kennel", "tag", "bump"]).is_err(), "a name is required");
    }

    #[test]
    fn the_readme_shows_the_commands_that_are_printed_at_start() {
        let shown = example(SocketAddr::from(([127, 0, 0, 1], 11211))).join("\n");
        assert!(include_str!("../README.md").contains(&format!("```sh\n{shown}\n```")), "{shown}");
    }
}
