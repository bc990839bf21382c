//! Arguments, exit codes, signals.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kennel::app::App;
use kennel::config::{self, Config};
use kennel::{cli, log};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

/// A memcached sidecar with dog-pile protection and tags.
///
/// Without a configuration it serves 127.0.0.1:11211 from a memcached inside the process, with every key guarded.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The configuration to serve, in TOML; KENNEL_… variables override its keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to log to stderr: text or json.
    #[arg(long, value_name = "FORMAT", global = true)]
    log_format: Option<log::Format>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Say what is wrong with a configuration, or what it means.
    Check {
        /// Also connect to every server: say what it is, and whether it can guard keys. Exit code 1 if one that must cannot.
        #[arg(long)]
        connect: bool,
        /// The configuration, in TOML.
        file: PathBuf,
    },
    /// Show what the guard does, in under 20 seconds; needs no server and no configuration.
    Demo,
    /// Ask the sidecar beside this command whether it is ready: exit code 0 or 1.
    Health {
        /// Where its admin listens.
        #[arg(long, value_name = "ADDR", default_value = cli::health::DEFAULT_ADMIN)]
        admin: String,
    },
    /// Invalidate all values of a tag in the whole fleet, or say when that last happened; needs no running sidecar.
    Tag {
        /// The configuration of the sidecars, in TOML; KENNEL_… variables override its keys.
        #[arg(long, value_name = "FILE", global = true)]
        config: Option<PathBuf>,
        #[command(subcommand)]
        command: TagCommand,
    },
}

#[derive(Subcommand)]
enum TagCommand {
    /// Make every value stale that carries one of these tags: exit code 0 if the servers have acknowledged all.
    Bump {
        /// Names of tags, without tags.prefix.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<OsString>,
    },
    /// Say each tag's version, which is when it last moved: milliseconds since 1970, and UTC.
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
    match serve(arguments.config.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kennel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: Option<&Path>) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load(path, config::environment()).map_err(|mistakes| format!("\n{mistakes}"))?;
    config.warnings.iter().for_each(|warning| warn!("{warning}"));
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    // Before anything is bound, so that no signal finds the sidecar half built.
    let (mut terminate, mut interrupt) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let app = App::start(&config)?;
    announce(&app, path.is_none());
    runtime.block_on(async {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM"),
            _ = interrupt.recv() => info!("SIGINT"),
        }
    });
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
            "\nNo configuration: every key is guarded, in a memcached inside this process. To see it work, paste:\n"
        );
        try_it(*address).iter().for_each(|line| println!("  {line}"));
        println!(
            "\nThe second line wins the right to rebuild (END) and takes 2 s; meanwhile the third is served the stale"
        );
        println!("value (hello), and afterwards the new one (rebuilt).\n");
    }
}

/// For a POSIX shell and any `nc`: a value expires, one client rebuilds it for 2 s, another reads it meanwhile.
fn try_it(address: SocketAddr) -> [String; 3] {
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
    use super::*;

    #[test]
    fn the_arguments_hold_together() {
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
        assert!(Arguments::try_parse_from(["kennel", "tag", "bump"]).is_err(), "which tags?");
    }

    #[test]
    fn the_readme_shows_the_lines_that_are_printed_at_start() {
        let shown = try_it(SocketAddr::from(([127, 0, 0, 1], 11211))).join("\n");
        assert!(include_str!("../README.md").contains(&format!("```sh\n{shown}\n```")), "{shown}");
    }
}
