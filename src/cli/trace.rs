//! `kennel trace`: what happens to keys in a running sidecar, as it happens.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::admin_client::{OpenReply, add_parameter};
use super::arguments::TraceArguments;
use crate::config::Location;
use crate::trace::Filter;
use letters::LetterLines;

mod letters;

/// The longest time until the sidecar has begun to reply.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(5);
/// How often lines of letters are written.
const REDRAW: Duration = Duration::from_millis(250);
/// Without `--for`, it ends on a signal. No process lasts longer.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// An event, as the sidecar sends it.
#[derive(Debug, Deserialize)]
struct EventLine {
    time: String,
    client: String,
    command: String,
    key: String,
    rule: String,
    /// Empty, if the sidecar is of an earlier version.
    #[serde(default)]
    kind: String,
    outcome: String,
    server: Option<String>,
    us: u64,
    letters: String,
}

/// What ends a trace.
enum End {
    /// A signal, `--for`, or nobody reads the output.
    Wanted,
    Failed(String),
}

/// How events are written.
enum Output {
    Text,
    Json,
    Letters(LetterLines),
}

/// Prints what happens to keys until a signal arrives. `location`: of the configuration. Returns 1, and prints the
/// reason to stderr, if a condition is invalid or the sidecar cannot be reached.
pub fn run(arguments: &TraceArguments, location: &Location) -> ExitCode {
    match trace(arguments, location) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // The exit code matters even if stderr is closed.
            let _ = writeln!(io::stderr(), "kennel trace: {why}");
            ExitCode::FAILURE
        }
    }
}

fn trace(arguments: &TraceArguments, location: &Location) -> Result<(), String> {
    let (query, limit) = (query(arguments)?, limit(arguments)?);
    let client = arguments.sidecar.client(location)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let opened = client.open(&format!("/trace{query}"), SIDECAR_TIMEOUT).await;
        let reply = opened.map_err(|why| why.to_string())?;
        // Writes are not buffered: each event is seen at once.
        let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let mut out = File::from(stdout);
        let mut output = match (arguments.json, arguments.letters) {
            (true, _) => Output::Json,
            (_, true) => Output::Letters(LetterLines::new(io::stdout().is_terminal())),
            _ => Output::Text,
        };
        let end = follow(reply, &mut output, &mut out, limit).await;
        // The output may be closed: then there is nobody to tell.
        let _ = output.finish(&mut out);
        match end {
            Ok(End::Wanted) => Ok(()),
            Ok(End::Failed(why)) => Err(format!("{}: {why}", client.address)),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
}

/// The conditions as a query. They are checked here too, so that a mistake is named even without a sidecar.
fn query(arguments: &TraceArguments) -> Result<String, String> {
    let TraceArguments { key, rule, kind, server, client, outcome, slower, sample, .. } = arguments;
    let conditions = [
        ("key", key),
        ("rule", rule),
        ("kind", kind),
        ("server", server),
        ("client", client),
        ("outcome", outcome),
        ("slower", slower),
        ("sample", sample),
    ];
    let (mut query, mut filter) = (String::new(), Filter::default());
    for (name, value) in conditions {
        if let Some(value) = value {
            filter.set(name, value.as_bytes()).map_err(|why| format!("--{why}"))?;
            add_parameter(&mut query, name, value.as_bytes());
        }
    }
    Ok(query)
}

fn limit(arguments: &TraceArguments) -> Result<Duration, String> {
    let Some(text) = &arguments.duration else { return Ok(FOREVER) };
    let seconds = text.strip_suffix('s').and_then(|seconds| seconds.parse::<f64>().ok());
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| format!("--for={text} must be a number of seconds: 10s"))
}

/// Writes each event until one of the ends.
async fn follow(
    mut reply: OpenReply,
    output: &mut Output,
    out: &mut File,
    limit: Duration,
) -> io::Result<End> {
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (mut ticks, end) = (interval(REDRAW), Instant::now() + limit);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    output.begin(out)?;
    let mut dropped = false;
    // A line may have been read in part when something else happens, so its future goes on.
    let mut line = Box::pin(next_line(&mut reply));
    loop {
        let (read, rest) = tokio::select! {
            read = &mut line => read,
            _ = ticks.tick() => {
                output.tick(out)?;
                continue;
            }
            _ = interrupted.recv() => return Ok(End::Wanted),
            _ = terminated.recv() => return Ok(End::Wanted),
            () = sleep(end.saturating_duration_since(Instant::now())) => return Ok(End::Wanted),
        };
        match read {
            Ok(Some(text)) if text == "event: dropped" => dropped = true,
            Ok(Some(text)) => match text.strip_prefix("data: ") {
                Some(data) if std::mem::take(&mut dropped) => output.dropped(data, out)?,
                Some("{}") | None => {}
                Some(data) => output.event(data, out)?,
            },
            Ok(None) => return Ok(End::Failed("the sidecar has ended the trace".to_owned())),
            Err(error) => return Ok(End::Failed(error.to_string())),
        }
        line = Box::pin(next_line(rest));
    }
}

async fn next_line(reply: &mut OpenReply) -> (io::Result<Option<String>>, &mut OpenReply) {
    (reply.line().await, reply)
}

impl Output {
    fn begin(&self, out: &mut File) -> io::Result<()> {
        match self {
            Output::Text => writeln!(
                out,
                "{:12}  {:21}  {:9}  {:12}  {:>9}  {:4}  {:12}  {:7}  {:21}  key",
                "time", "client", "command", "outcome", "µs", "", "rule", "kind", "server"
            ),
            _ => Ok(()),
        }
    }

    fn event(&mut self, data: &str, out: &mut File) -> io::Result<()> {
        if let Output::Json = self {
            return writeln!(out, "{data}");
        }
        // A later sidecar may send events that this version does not know.
        let Ok(event) = serde_json::from_str::<EventLine>(data) else { return Ok(()) };
        match self {
            Output::Letters(lines) => {
                lines.add(&event.key, &event.letters);
                Ok(())
            }
            _ => {
                let EventLine { time, client, command, key, rule, kind, outcome, server, us, letters } =
                    &event;
                let time = time.split_once('T').map_or(&**time, |(_, time)| time.trim_end_matches('Z'));
                let server = server.as_deref().unwrap_or("-");
                writeln!(
                    out,
                    "{time:12}  {client:21}  {command:9}  {outcome:12}  {us:>9}  {letters:4}  {rule:12}  {kind:7}  {server:21}  {key}"
                )
            }
        }
    }

    fn dropped(&mut self, data: &str, out: &mut File) -> io::Result<()> {
        let number = serde_json::from_str::<serde_json::Value>(data).ok();
        let number = number.and_then(|data| data.get("dropped")?.as_u64()).unwrap_or_default();
        match self {
            Output::Json => writeln!(out, "{data}"),
            Output::Text => {
                writeln!(out, "--- {number} events dropped: they came faster than they were read")
            }
            Output::Letters(lines) => {
                lines.dropped(number);
                Ok(())
            }
        }
    }

    fn tick(&mut self, out: &mut File) -> io::Result<()> {
        match self {
            Output::Letters(lines) => lines.write(out),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, out: &mut File) -> io::Result<()> {
        self.tick(out)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::arguments::{Arguments, Command};

    fn arguments(line: &str) -> TraceArguments {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Some(Command::Trace(arguments)) => arguments,
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn conditions_become_a_query_and_a_mistake_is_named() {
        let all = arguments(
            "kennel trace --key blog:* --rule a,b --kind raw,none --client 10.0.0.7 --outcome miss* --slower 10ms --sample 1/100",
        );
        let query = query(&all).unwrap();
        assert_eq!(
            query,
            "?key=blog%3A%2A&rule=a%2Cb&kind=raw%2Cnone&client=10.0.0.7&outcome=miss%2A&slower=10ms&sample=1%2F100"
        );
        for (line, expected) in [
            ("kennel trace --slower fast", "--slower=fast must be"),
            ("kennel trace --kind lucky", "--kind=lucky is no kind: use guarded, raw, counter,"),
            ("kennel trace --outcome lucky", "--outcome=lucky is no outcome"),
            ("kennel trace --sample 5", "--sample=5 must be"),
        ] {
            let error = super::query(&arguments(line)).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(limit(&arguments("kennel trace --for 1.5s")), Ok(Duration::from_millis(1500)));
        assert!(limit(&arguments("kennel trace --for 1h")).unwrap_err().contains("number of seconds"));
    }
}
