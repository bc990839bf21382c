//! The command line, exit codes and signals.

use std::env;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode};

use clap::Parser;
use kennel::app::control::{Signals, Source, control};
use kennel::app::{self, App, Service};
use kennel::cli;
use kennel::cli::arguments::{Arguments, Command, TagCommand, VERSION};
use kennel::config::{self, CONFIG_VARIABLE, Config, Loaded, Location, Rule, RuleKind};
use kennel::discovery::Discovery;
use kennel::listener::Inherited;
use kennel::log::{self, LogError};
use kennel::systemd;
use tokio::runtime;
use tracing::{error, info, warn};

/// The most names of rules in a line of the log.
const MAX_LISTED: usize = 8;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let location = Location::find(arguments.config.clone(), env::var_os(CONFIG_VARIABLE));
    match &arguments.command {
        Some(Command::Check { connect, against, json, strict, file }) => {
            let location = file.clone().map_or(location, Location::Named);
            let (servers, against) = (*connect, against.as_deref());
            let options = cli::check::Options { servers, against, json: *json, strict: *strict };
            return cli::check::run(&location, options);
        }
        Some(Command::Completions { shell }) => return cli::completions::run(*shell),
        Some(Command::Demo) => return cli::demo::run(),
        Some(Command::Fleet { sidecar, json }) => return cli::fleet::run(sidecar, *json, &location),
        Some(Command::Health { admin }) => return cli::health::run(&location, admin.as_deref()),
        Some(Command::Explain { admin, direct, base64, json, key }) => {
            let question = cli::explain::Question { key, base64: *base64, json: *json, direct: *direct };
            return cli::explain::run(&question, &location, admin.as_deref());
        }
        Some(Command::Init(init)) => {
            return cli::init::run(init, env::var(cli::init::SERVERS_VARIABLE).ok().as_deref());
        }
        Some(Command::Reload { control, dry_run, force }) => {
            return cli::control::reload(location.path(), control.as_deref(), *dry_run, *force);
        }
        Some(Command::Repair { pool, dry_run, control }) => {
            return cli::control::repair(location.path(), control.as_deref(), pool, *dry_run);
        }
        Some(Command::Ring { pool, json, old, new }) => {
            return cli::ring::run(old, new, pool.as_deref(), *json);
        }
        Some(Command::Server { command }) => return cli::control::server(location.path(), command),
        Some(Command::Tag { command }) => {
            let (action, names) = match command {
                TagCommand::Bump { names } => (cli::tag::Action::Bump, names),
                TagCommand::Get { names } => (cli::tag::Action::Get, names),
            };
            return cli::tag::run(action, names, location.path());
        }
        Some(Command::Top(top)) => return cli::top::run(top, &location),
        Some(Command::Suggest(suggest)) => return cli::suggest::run(suggest, &location),
        Some(Command::Trace(trace)) => return cli::trace::run(trace, &location),
        None => {}
    }
    if !arguments.start_takeover {
        restart_with_allocator_settings();
    }
    match log::init(arguments.log_format) {
        Ok(()) if arguments.start_takeover => start_takeover(),
        Ok(()) => serve(&location, arguments.takeover),
        Err(error @ LogError::Filter(..)) => {
            error!("{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("kennel: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Settings of glibc's allocator, which it reads when a process starts. By default it keeps freed blocks of up to 32 MiB once one of
/// their size has been freed, so what a burst of large values took would stay with the process. `mallopt` is a call into C, and Kennel
/// has no `unsafe` code; settings in the unit alone would not reach whoever starts the program otherwise.
const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "16384"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

/// Executes the program again in the same process, with [`ALLOCATOR`] in its environment. Returns if they are there already, if the
/// operator has set others, if the allocator is not glibc's, or if that fails, which only costs memory.
fn restart_with_allocator_settings() {
    let is_set = |name: &str| env::var_os(name).is_some();
    let has_settings = ALLOCATOR.iter().any(|(name, _)| is_set(name)) || is_set("GLIBC_TUNABLES");
    let (false, true, Ok(program)) = (has_settings, cfg!(target_env = "gnu"), env::current_exe()) else {
        return;
    };
    let mut arguments = env::args_os();
    let mut again = process::Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    // It returns only an error.
    let _ = again.args(arguments).envs(ALLOCATOR).exec();
}

/// Starts a process that takes over, and leaves it to the parent of all.
fn start_takeover() -> ExitCode {
    match service().start_takeover() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("cannot start the process that is to take over: {error}");
            ExitCode::FAILURE
        }
    }
}

fn service() -> Service {
    Service::from_environment(env::args_os().skip(1).collect())
}

/// Runs the sidecar until SIGTERM or SIGINT, or until another process has taken over. Logs why it cannot start.
fn serve(location: &Location, takeover: bool) -> ExitCode {
    // Before the first thread starts.
    let passed = match systemd::sockets() {
        Ok(passed) => passed,
        Err(error) => {
            error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let source = Source::new(location.path().map(Path::to_owned), config::environment());
    let loaded = match source.read() {
        Ok(loaded) => loaded,
        Err(errors) => {
            errors.lines().iter().for_each(|line| error!("{line}"));
            return ExitCode::FAILURE;
        }
    };
    introduce(location, &loaded.config);
    loaded.config.warnings.iter().for_each(|warning| warn!("{warning}"));
    match run(loaded, &source, passed, takeover) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Logs which version begins with which configuration.
fn introduce(location: &Location, config: &Config) {
    let file = location.path().map_or_else(|| "built-in".to_owned(), |path| path.display().to_string());
    let fingerprint = format!("{:016x}", config.rules_fingerprint());
    let (rules, guarded) = (config.rules.len(), guarded(config));
    info!(version = VERSION, file, rules, fingerprint, guarded, "starting");
}

/// The names of the rules that guard, as many as a line takes.
fn guarded(config: &Config) -> String {
    let is_guarded = |rule: &&Rule| matches!(rule.kind, RuleKind::Guarded { .. });
    let names: Vec<_> = config.rules.iter().filter(is_guarded).map(|rule| &*rule.name).collect();
    match names.len() {
        0 => "nothing".to_owned(),
        n if n > MAX_LISTED => format!("{} and {} more", names[..MAX_LISTED].join(", "), n - MAX_LISTED),
        _ => names.join(", "),
    }
}

fn run(
    loaded: Loaded,
    source: &Source,
    passed: Inherited,
    takeover: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let service = service();
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    // Before listeners are bound, so that a signal during the start stops the sidecar properly.
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    let mut discovery = Discovery::new(loaded);
    let app = runtime.block_on(async {
        let starting = async {
            discovery.first().await;
            app::start(discovery.in_force(), passed, takeover, &service).await
        };
        tokio::select! {
            app = starting => app.map(Some),
            () = signals.stop.received() => Ok(None),
        }
    });
    let Some(mut app) = app? else { return Ok(()) };
    app.show_discovery(discovery.status());
    announce(&app, source.is_built_in());
    runtime.block_on(control(&mut app, source, &service, signals, discovery));
    app.stop();
    Ok(())
}

fn announce(app: &App, is_built_in: bool) {
    for address in app.tcp() {
        info!(tcp = %address, "listening");
    }
    for path in app.unix() {
        info!(unix = %path.display(), "listening");
    }
    if let Some(url) = app.admin_url() {
        info!(%url, "listening for operators");
    }
    if is_built_in {
        match app.stores_inside() {
            true => info!(
                "no configuration: every key is guarded, and a memcached inside this process stores the values"
            ),
            // Variables name other servers, and maybe other rules.
            false => {
                info!("no configuration file: KENNEL_… variables replace parts of the built-in configuration")
            }
        }
    }
    // For a person who tries it, not for a log.
    if let (true, Some(address), true) =
        (is_built_in && app.stores_inside(), app.tcp().first(), io::stdout().is_terminal())
    {
        println!("\nTo try it, run:\n");
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
    use super::*;

    #[test]
    fn the_readme_shows_the_commands_that_are_printed_at_start() {
        let shown = example(SocketAddr::from(([127, 0, 0, 1], 11211))).join("\n");
        assert!(include_str!("../README.md").contains(&format!("```sh\n{shown}\n```")), "{shown}");
    }

    #[test]
    fn the_start_names_what_is_guarded_and_no_more_than_a_line_takes() {
        let config = |rules: usize| {
            let rule = |n| format!("[[rules]]\nname = \"r{n}\"\nmatch = \"{n}:*\"\n");
            let rules: String = (0..rules).map(rule).collect();
            let raw = "[[rules]]\nname = \"raw\"\nmatch = \"*\"\nkind = \"raw\"\n";
            Config::read("k.toml", &format!("[pools.main]\nservers = [\"a:1\"]\n{rules}{raw}"), []).unwrap()
        };
        assert_eq!(guarded(&config(0)), "nothing");
        assert_eq!(guarded(&config(2)), "r0, r1");
        assert!(guarded(&config(MAX_LISTED + 3)).ends_with(", r7 and 3 more"));
    }
}
