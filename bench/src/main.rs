//! Compares Kennel with twemproxy and plain memcached under load. README.md explains the output.

mod arguments;
mod contender;
mod counted;
mod clients;
mod histogram;
mod idle;
mod loads;
mod machine;
mod outage;
mod process;
mod report;
mod socket;
mod start;
mod wire;

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arguments::Arguments;
use clients::{Extent, Plan};
use contender::{Contender, Programs, Setup};
use loads::Load;
use process::Cores;
use report::{Growth, Round, Score};

fn main() -> ExitCode {
    match Arguments::read(std::env::args().skip(1))
        .and_then(|arguments| arguments.map_or(Ok(true), |a| run(&a)))
    {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("bench: some replies were wrong or missing: the bold lines below the tables name them");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no contender failed and no key was missing.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let missing = |what: &str| format!("{what} is not installed: apt-get install {what}");
    let cores = if arguments.pin { process::leave_one_core()? } else { Cores::AsHere };
    let programs = Programs {
        memcached: process::find("memcached").ok_or_else(|| missing("memcached"))?,
        nutcracker: process::find("nutcracker"),
        kennel: arguments.kennel.clone(),
        workers: arguments.workers,
        proxies: cores,
    };
    let mut contenders = arguments.contenders.clone();
    if programs.nutcracker.is_none() && contenders.contains(&Contender::Twemproxy) {
        warn(
            "TWEMPROXY IS MISSING: its lines and every ratio to it are left out. apt-get install nutcracker",
        );
        contenders.retain(|contender| *contender != Contender::Twemproxy);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| error.to_string())?;
    }
    let busy = machine::busy();
    if busy > machine::QUIET {
        warn(&format!("THE MACHINE IS BUSY: its load average is {busy}; what else runs is in the numbers"));
    }
    println!("{}- load average before: {busy}", machine::describe(&programs));
    if let Cores::Only(core) = cores {
        println!("- proxies on core {core}, all else on the others");
    }
    println!("- {} rounds of {:?}, the contenders in turn; medians\n", arguments.rounds, arguments.seconds);
    let directory = Directory::create()?;
    let (mut all, mut fine) = (Vec::new(), true);
    for load in &arguments.loads {
        let scores = measure(load, &contenders, &programs, arguments, &directory.0, &stop)?;
        println!("{}", report::table(load, &scores));
        fine &= scores.iter().all(|score| {
            score.rounds.as_ref().is_ok_and(|rounds| rounds.iter().all(|round| round.missing == 0))
        });
        all.push((load, scores));
    }
    if !all.is_empty() {
        println!("{}", report::growth(&all));
    }
    for outage in &arguments.outages {
        let (phases, directory) = (arguments.phases, &directory.0);
        let (tables, plot) =
            outage::measure(*outage, phases, &contenders, &programs, directory, &stop, progress)?;
        println!("{tables}");
        if let Some(file) = &arguments.plot {
            fs::write(file, plot).map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    if arguments.start && contenders.iter().any(|contender| start::starts(*contender)) {
        progress(start::NAME);
        let times = start::measure(&contenders, &programs, &directory.0, &stop)
            .map_err(|error| format!("{}: {error}", start::NAME))?;
        progress("");
        println!("{}", report::starts(&times));
    }
    Ok(fine)
}

/// All rounds of one load.
fn measure(
    load: &Load,
    contenders: &[Contender],
    programs: &Programs,
    arguments: &Arguments,
    directory: &Path,
    stop: &AtomicBool,
) -> Result<Vec<Score>, String> {
    // Memory growth is measured for proxies only, and twemproxy does not speak the binary protocol.
    let compared = |contender: &Contender| match contender {
        Contender::Direct => load.replies.is_none(),
        Contender::Twemproxy => !load.binary,
        _ => true,
    };
    let contenders: Vec<Contender> = contenders.iter().copied().filter(compared).collect();
    let in_all = if load.replies.is_some() { 1 } else { arguments.rounds };
    let setup = Setup::start(load, &contenders, programs, directory)
        .map_err(|error| format!("{}: {error}", load.name))?;
    let mut scores: Vec<Score> = contenders
        .iter()
        .map(|contender| Score { contender: *contender, rounds: Ok(Vec::new()), peak_memory: None })
        .collect();
    for number in 0..in_all {
        for (i, score) in scores.iter_mut().enumerate() {
            let Ok(rounds) = &mut score.rounds else { continue };
            progress(&format!("{} {}/{} {}", load.name, number + 1, in_all, score.contender.name()));
            match round(load, &setup, i, number, arguments, stop) {
                Ok(round) => rounds.push(round),
                Err(error) => score.rounds = Err(error),
            }
            if stop.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
        }
    }
    progress("");
    for (score, running) in scores.iter_mut().zip(&setup.running) {
        // `None` if the proxy has ended; its rounds report that.
        score.peak_memory = running.proxy.as_ref().and_then(|proxy| proxy.peak_memory().ok());
    }
    Ok(scores)
}

/// One round of one contender.
fn round(
    load: &Load,
    setup: &Setup,
    index: usize,
    number: usize,
    arguments: &Arguments,
    stop: &AtomicBool,
) -> Result<Round, String> {
    let running = &setup.running[index];
    // Values that expire are stored again, so that each round begins alike.
    if number == 0 || load.expiry.is_some() {
        clients::fill(&running.items, &running.addresses)?;
    }
    let least = load.expiry.map_or(Duration::ZERO, |expiry| expiry.round);
    let (warm, measured) = match load.replies {
        // The memory after the first tenth is what the proxy needs.
        Some(replies) => (Extent::Replies(replies / 10), Extent::Replies(replies - replies / 10)),
        None => (Extent::Time(arguments.seconds / 5), Extent::Time(arguments.seconds.max(least))),
    };
    let plan = Plan {
        load,
        items: &running.items,
        addresses: &running.addresses,
        warm,
        measured,
        stop,
        seed: number as u64,
    };
    let cpu = || {
        let proxy = running.proxy.as_ref().map(process::Process::cpu).transpose()?;
        Ok::<_, String>((proxy, setup.servers_cpu()? + process::own_cpu()?))
    };
    // Measured once.
    let (_idle, idle_client) = match &running.proxy {
        Some(proxy) if load.idle > 0 && number == 0 => {
            let (idle, each) =
                idle::connect_and_weigh(load.idle, &running.items, &running.addresses, proxy, stop)?;
            (idle, Some(each))
        }
        _ => (idle::connect(load.idle, &running.items, &running.addresses, stop)?, None),
    };
    let reads_before = counted::reads(&setup.addresses)?;
    let (mut edges, mut memory) = (Vec::new(), Vec::new());
    let results = clients::drive(&plan, || {
        edges.push(cpu()?);
        if let (Some(_), Some(proxy)) = (load.replies, &running.proxy) {
            memory.push(proxy.memory()?);
        }
        Ok(())
    })?;
    let server_reads = counted::reads(&setup.addresses)? - reads_before;
    let [(proxy_before, others_before), (proxy_after, others_after)] = edges[..] else {
        return Err("the round did not end".into());
    };
    let proxy = proxy_before.zip(proxy_after).map(|(before, after)| after - before);
    let round =
        Round::new(&results, proxy, others_after - others_before + proxy.unwrap_or_default(), server_reads);
    let growth = match (load.replies, &memory[..]) {
        (Some(replies), [early, last]) => {
            Some(Growth { replies: [replies / 10, replies], memory: [*early, *last] })
        }
        _ => None,
    };
    Ok(Round { idle_client, growth, ..round })
}

/// Shows the current step in the last line of a terminal.
fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{what}");
    }
}

/// Prints a warning to standard error.
fn warn(what: &str) {
    eprintln!("\n*** {what} ***\n");
    println!("**{what}**\n");
}

/// Configurations, logs and sockets of this run; removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn create() -> Result<Directory, String> {
        let path = std::env::temp_dir().join(format!("kennel-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
