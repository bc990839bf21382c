//! `kennel tag`: bumps tags for all sidecars, or prints their versions. It connects to the servers as a sidecar does; no sidecar
//! needs to run.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::pipeline;
use crate::clock::utc;
use crate::config::units::show_duration;
use crate::config::{self, Config, RuleKind};
use crate::discovery;
use crate::error::Failure;
use crate::guard::TagName;
use crate::proxy::Proxy;
use crate::random::Random;
use crate::rule::{Captures, Pattern, Template, fold_tag};
use crate::upstream::{Address, PoolSpec};

/// The most tags of one command. All are requested at once, and a connection queues at most 65,536 commands.
const MAX_NAMES: usize = 16 * 1024;
/// The time limit of one tag, in multiples of `request_timeout`. A bump takes nine replies, including six to the probe of the
/// connection, and more if others bump the same tag meanwhile.
const MAX_REPLIES: u32 = 13;

/// What to do with the tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Invalidate all values that carry them.
    Bump,
    /// Print their versions.
    Get,
}

/// Performs the action on the tags, with the pool and the prefix of the configuration at `path`, or of the built-in one. Prints
/// `NAME VERSION TIME` to stdout for each tag. Returns 0 if every tag succeeded, otherwise 1, with the other tags on stderr.
pub fn run(action: Action, names: &[OsString], path: Option<&Path>) -> ExitCode {
    let loaded = config::load(path, config::environment()).map_err(|errors| errors.to_string());
    let report = match loaded.and_then(|loaded| discovery::look_up_once(loaded).map_err(not_found)) {
        Ok(config) => report(action, names, &config),
        Err(errors) => Report::refusal(errors),
    };
    // The exit code matters even if stderr is closed.
    let _ = io::stderr().write_all(report.err.as_bytes());
    match io::stdout().write_all(&report.out) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ if report.success => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn not_found(errors: Vec<String>) -> String {
    errors.into_iter().map(|error| format!("kennel tag: {error}")).collect::<Vec<_>>().join("\n")
}

/// The output, and whether every tag succeeded.
#[derive(Debug, Default)]
struct Report {
    out: Vec<u8>,
    err: String,
    success: bool,
}

impl Report {
    /// An error before any request was sent.
    fn refusal(error: String) -> Report {
        Report { err: error + "\n", ..Report::default() }
    }
}

/// A tag of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag {
    /// The name as given.
    given: Vec<u8>,
    /// The part of its key after the prefix.
    name: TagName,
}

fn report(action: Action, names: &[OsString], config: &Config) -> Report {
    let tags = match tags(names, &config.tags.prefix) {
        Ok(tags) => tags,
        Err(errors) => return Report::refusal(errors),
    };
    let pool = &config.pools[config.tags.pool];
    if pool.servers.iter().any(|server| matches!(server.address, Address::Embedded { .. })) {
        return Report::refusal(embedded_pool(action, &tags, config));
    }
    match perform(action, &tags, config, pool) {
        Ok(results) => summarize(action, &tags, &results, config),
        Err(error) => Report::refusal(format!("kennel tag: {error}")),
    }
}

/// The tags without duplicates, or all errors in their names.
fn tags(names: &[OsString], prefix: &[u8]) -> Result<Vec<Tag>, String> {
    if names.len() > MAX_NAMES {
        return Err(format!("kennel tag: too many tags: {}, at most {MAX_NAMES} are allowed", names.len()));
    }
    let (mut tags, mut errors) = (Vec::<Tag>::new(), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for name in names {
        let given = name.as_bytes();
        let mut error = |message: &str| errors.push(format!("kennel tag: {:?}: {message}", lossy(given)));
        if given.is_empty() {
            error("the name must not be empty");
        } else if given.iter().any(|byte| b" \r\n\0".contains(byte)) {
            error("the name must not contain a space, CR, LF or NUL");
        } else if given.starts_with(prefix) {
            error(&format!("the name must not include the prefix {:?} (tags.prefix)", lossy(prefix)));
        } else {
            let mut key = [prefix, given].concat();
            fold_tag(&mut key, prefix.len());
            let name = TagName::from_slice(&key[prefix.len()..]);
            if seen.insert(name.clone()) {
                tags.push(Tag { given: given.to_vec(), name });
            }
        }
    }
    if errors.is_empty() { Ok(tags) } else { Err(errors.join("\n")) }
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The error for a pool in the process of a sidecar, with a command that reaches it.
fn embedded_pool(action: Action, tags: &[Tag], config: &Config) -> String {
    let command = match action {
        Action::Bump => "delete",
        Action::Get => "get",
    };
    let mut lines = String::new();
    for tag in tags {
        let key = [&config.tags.prefix, &tag.name[..]].concat();
        // Writing to a String cannot fail.
        let _ = write!(lines, "{command} {}\\r\\n", quoted(&key));
    }
    let at = match (config.listen.tcp.first(), config.listen.unix.first()) {
        (Some(listener), _) => format!("{} {}", listener.address.host, listener.address.port),
        (None, Some(listener)) => format!("-U {}", listener.address.display()),
        (None, None) => String::new(), // a valid configuration has a listener
    };
    format!(
        "kennel tag: the pool {:?} is inside the sidecar's process and cannot be reached from another. Name the sidecars' \
         configuration with --config FILE, or send the command to the running sidecar:\n  printf '{lines}quit\\r\\n' | nc {at}",
        config.pools[config.tags.pool].name
    )
}

/// A key, quoted for a POSIX `printf '…'`.
fn quoted(key: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@:._-~/+=,#".contains(&byte);
    key.iter()
        .map(|&byte| if plain(byte) { char::from(byte).to_string() } else { format!("\\{byte:03o}") })
        .collect()
}

/// A tag's version, `None` if it has none, or the failure and the servers that store it.
type TagResult = Result<Option<u64>, (Failure, Vec<String>)>;

/// Performs the action on all tags concurrently.
fn perform(action: Action, tags: &[Tag], config: &Config, pool: &PoolSpec) -> io::Result<Vec<TagResult>> {
    let limit = pool.connect_timeout + pool.request_timeout * MAX_REPLIES;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let results = LocalSet::new().block_on(&runtime, async {
        let (proxy, monitors) = pipeline::of_tags(config)?;
        let proxy = Rc::new(proxy);
        for monitor in monitors {
            let known = CancellationToken::new();
            spawn_local(monitor.run(Random::from_entropy(), known.clone()));
            known.cancelled().await;
        }
        let tasks: Vec<_> = tags
            .iter()
            .map(|tag| spawn_local(perform_one(action, tag.name.clone(), Rc::clone(&proxy), limit)))
            .collect();
        let mut results = Vec::with_capacity(tasks.len());
        for (tag, task) in tags.iter().zip(tasks) {
            let result = task.await.unwrap_or(Err(Failure::Refused));
            results.push(result.map_err(|failure| {
                (failure, proxy.tag_servers(&tag.name).into_iter().map(str::to_owned).collect())
            }));
        }
        Ok(results)
    });
    // Do not wait for host names that are still being resolved.
    runtime.shutdown_background();
    results
}

async fn perform_one(
    action: Action,
    name: TagName,
    proxy: Rc<Proxy>,
    limit: Duration,
) -> Result<Option<u64>, Failure> {
    let result = timeout(limit, async {
        match action {
            Action::Get => proxy.tag_version(&name).await,
            Action::Bump => proxy.bump_tag(name).await.map(Some),
        }
    });
    result.await.unwrap_or(Err(Failure::TimedOut))
}

fn summarize(action: Action, tags: &[Tag], results: &[TagResult], config: &Config) -> Report {
    let (mut report, mut failed) = (Report::default(), Vec::new());
    for (tag, result) in tags.iter().zip(results) {
        let version = match result {
            Ok(Some(version)) => format!("{version} {}", utc(*version).as_deref().unwrap_or("-")),
            Ok(None) => "no version: never bumped or read, or lost".to_owned(),
            Err((failure, servers)) => {
                failed.push(format!(
                    "{} ({}: {})",
                    lossy(&tag.given),
                    servers.join(" and "),
                    describe(*failure)
                ));
                continue;
            }
        };
        report.out.extend_from_slice(&tag.given);
        report.out.extend_from_slice(format!(" {version}\n").as_bytes());
    }
    report.success = failed.is_empty();
    let mut note = |line: String| report.err.push_str(&format!("kennel tag: {line}\n"));
    if !failed.is_empty() {
        let problem = match action {
            Action::Bump => "not acknowledged, so the bump may not have happened",
            Action::Get => "not read",
        };
        note(format!("{problem}: {}", failed.join(", ")));
    }
    let unused = |tag: &&Tag| !config.rules.iter().any(|rule| may_carry(&rule.kind, tag));
    let unused: Vec<_> = tags.iter().filter(unused).map(|tag| lossy(&tag.given)).collect();
    if !unused.is_empty() {
        note(format!("note: no rule gives its keys this tag: {}", unused.join(", ")));
    }
    if action == Action::Bump && !config.tags.cache.is_zero() && failed.len() < tags.len() {
        let cache = show_duration(config.tags.cache);
        note(format!(
            "note: sidecars see the bump after tags.cache ({cache}); until then they may serve invalidated values"
        ));
    }
    report
}

/// The failure, to follow the names of the servers.
fn describe(failure: Failure) -> &'static str {
    match failure {
        Failure::Down => "cannot be reached",
        Failure::TimedOut => "did not reply in time",
        Failure::Refused => "returned an error or an invalid reply",
        Failure::NoMemory => "out of memory",
        Failure::Lost => "lost an item",
        Failure::Foreign => "has an item that was stored past Kennel",
        Failure::Overloaded => "overloaded, or too many concurrent bumps of this tag",
        Failure::TooLarge => "returned more than it may",
        Failure::NoView => "is being replaced, or no sidecar of its pool runs",
        Failure::Unguarded => "cannot guard keys; run kennel check --connect for the reason",
    }
}

/// Whether a key of such a rule may carry this tag.
fn may_carry(kind: &RuleKind, tag: &Tag) -> bool {
    let RuleKind::Guarded { tags, .. } = kind else { return false };
    // The original of a folded name is unknown, or longer than a pattern may be.
    let folded = tag.given.starts_with(b"~") || tag.given != tag.name[..];
    let renders = |template: &Template| match Pattern::parse(template.text()) {
        Ok(pattern) => folded || pattern.matches(&tag.name, &mut Captures::default()),
        // A template may be no valid pattern, such as `{a}{b}`.
        Err(_) => true,
    };
    tags.iter().any(renders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::io::{BufRead, BufReader};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    fn named(names: &[&[u8]]) -> Result<Vec<Tag>, String> {
        let names: Vec<OsString> = names.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect();
        tags(&names, b"@tag:")
    }

    fn config(toml: &str) -> Config {
        Config::read("test.toml", toml, []).unwrap()
    }

    #[test]
    fn a_tag_has_the_name_that_a_rule_gives_it_and_duplicates_are_removed() {
        let long = [b'x'; 246];
        let tags = named(&[b"posts", b"\xff\x01", &long[..245], &long, b"posts"]).unwrap();
        let names: Vec<&[u8]> = tags.iter().map(|tag| &tag.name[..]).collect();
        // md5 of 246 x's, by md5sum.
        assert_eq!(names, [b"posts", &b"\xff\x01"[..], &long[..245], b"~631fb49d816c8eb5ea9763e635dca278"]);
        assert_eq!(tags[3].given, long);
    }

    #[test]
    fn all_invalid_names_are_reported_together() {
        let output = named(&[b"", b"a b", b"fine", b"a\nb", b"@tag:posts"]).unwrap_err();
        assert_eq!(output.lines().count(), 4, "{output}");
        for part in [
            "\"\": the name must not be empty",
            "\"a b\": the name must not contain a space",
            "the prefix \"@tag:\"",
        ] {
            assert!(output.contains(part), "{part:?} is not in:\n{output}");
        }
        let many = vec![OsString::from("x"); MAX_NAMES + 1];
        assert!(tags(&many, b"@tag:").unwrap_err().contains("too many tags: 16385"));
        assert_eq!(tags(&many[1..], b"@tag:").unwrap().len(), 1);
    }

    #[test]
    fn an_embedded_pool_is_refused_with_the_command_that_reaches_it() {
        let names = ["posts", "50%"].map(OsString::from);
        let refusal = |action, toml: &str| {
            let report = report(action, &names, &config(toml));
            assert!(report.out.is_empty() && !report.success);
            report.err
        };
        let embedded = "pools.main.servers = [\"embedded:1MiB\"]\n";
        let output = refusal(Action::Bump, embedded);
        let command = r"printf 'delete @tag:posts\r\ndelete @tag:50\045\r\nquit\r\n' | nc 127.0.0.1 11211";
        assert!(output.contains("\"main\"") && output.contains(command), "{output}");
        let unix = format!("{embedded}listen.tcp = []\nlisten.unix = [\"/run/k.sock\"]\n");
        let output = refusal(Action::Get, &unix);
        assert!(output.contains("get @tag:posts") && output.contains("| nc -U /run/k.sock"), "{output}");
    }

    #[test]
    fn only_tags_that_no_rule_can_give_are_noted() {
        let rule = |tags| {
            let toml =
                "[pools.main]\nservers = [\"a:11211\"]\n[[rules]]\nname = \"r\"\nmatch = \"t:{a}:{b}\"\n";
            config(&format!("{toml}tags = {tags}\n"))
        };
        let note = |config: &Config, name: &str| {
            let tags = named(&[name.as_bytes()]).unwrap();
            summarize(Action::Get, &tags, &[Ok(Some(1))], config).err
        };
        let narrow = rule("[\"posts\", \"blog:{a}\"]");
        for unused in ["post", "posts:", "blog:", "blog:7:8"] {
            let output = format!("kennel tag: note: no rule gives its keys this tag: {unused}\n");
            assert_eq!(note(&narrow, unused), output);
        }
        for known in ["posts", "blog:7", "~631fb49d816c8eb5ea9763e635dca278", &"x".repeat(246)] {
            assert_eq!(note(&narrow, known), "");
        }
        assert_eq!(note(&rule("[\"{a}{b}\"]"), "anything"), "", "not judged");
    }

    #[test]
    fn failed_tags_are_reported_with_their_servers_and_fail_the_command() {
        let config = config("tags.cache = \"100ms\"\n[pools.main]\nservers = [\"a:11211\"]\n");
        let tags = named(&[b"posts", b"blog:7", b"gone"]).unwrap();
        let servers = vec!["a:11211".to_owned(), "b:11211".to_owned()];
        let results = [Ok(Some(1_700_000_000_000)), Err((Failure::Down, servers)), Ok(None)];
        let report = summarize(Action::Bump, &tags, &results, &config);
        let out = String::from_utf8(report.out).unwrap();
        assert_eq!(
            out,
            "posts 1700000000000 2023-11-14T22:13:20.000Z\ngone no version: never bumped or read, or lost\n"
        );
        assert!(!report.success);
        assert!(
            report.err.contains("may not have happened: blog:7 (a:11211 and b:11211: cannot be reached)\n")
        );
        assert!(report.err.contains("after tags.cache (100ms)"), "{}", report.err);
        let silent = summarize(Action::Get, &tags[..1], &results[..1], &config);
        assert!(silent.success && !silent.err.contains("tags.cache"));
    }

    /// The replies of a server that can guard to the commands of a probe.
    const PROBED: [&str; 10] = [
        "VA 0 t-1 f0 c5 W\r\n\r\n",
        "NS c0\r\n",
        "EX c0\r\n",
        "HD c6\r\n",
        "EX\r\n",
        "HD\r\n",
        "VA 2 t10 f7 c7 X W\r\nab\r\n",
        "EX\r\n",
        "HD\r\n",
        "EN\r\n",
    ];

    /// The report of a bump at a server that delays each reply, and replies `stored` to each `ms`.
    fn bumped_at(delay: Duration, stored: &'static str, request_timeout: &str) -> Report {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let mut probed = PROBED.iter();
            while let Some(line) = lines.next() {
                let probe = line.contains("@probe:");
                let reply = match line.split(' ').next() {
                    _ if probe => probed.next().unwrap(),
                    Some("version") => "VERSION 1.6.45\r\n",
                    Some("mg") => "VA 1 t-1 f0 c1 s1\r\n5\r\n",
                    Some("ms") => stored,
                    _ => "END\r\n",
                };
                if line.starts_with("ms") {
                    lines.next();
                }
                // The probe is one batch, so it is delayed as one.
                if !probe {
                    thread::sleep(delay);
                }
                if stream.write_all(reply.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let pool = format!("servers = [\"{address}\"]\nrequest_timeout = \"{request_timeout}\"\n");
        report(Action::Bump, &["posts".into()], &config(&format!("[pools.main]\n{pool}")))
    }

    #[test]
    fn each_reply_of_a_distant_server_may_take_as_long_as_request_timeout_including_the_probe() {
        // Two replies together take longer than request_timeout.
        let report = bumped_at(Duration::from_millis(600), "HD c2\r\n", "1s");
        assert!(report.success, "{}", report.err);
    }

    #[test]
    fn a_bump_with_constant_conflicts_at_a_slow_server_ends() {
        // Every reply is in time, and the guard itself would retry for thirty replies.
        let report = bumped_at(Duration::from_millis(60), "EX\r\n", "120ms");
        assert!(!report.success && report.err.contains("did not reply in time"), "{}", report.err);
    }
}
