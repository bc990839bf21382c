//! `kennel tag`: makes tags grow, or says when they last did, for the whole fleet. It asks the servers as a sidecar does, and needs
//! none to be running.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, timeout};

use crate::clock::{Clock, unix_ms};
use crate::config::units::{show_address, show_duration};
use crate::config::{self, Config, RuleKind};
use crate::error::Failure;
use crate::guard::near::Changes;
use crate::guard::{BumpEnd, TagName};
use crate::metrics::{Metrics, ServerName};
use crate::proxy::{LeaseTable, Plan, Proxy, ServerInfo, Shared, TagCache};
use crate::random::Random;
use crate::rule::{Captures, Pattern, Rules, Template, fold_tag};
use crate::upstream::pool::{Pool, SharedPool};
use crate::upstream::{Address, PoolSpec};

/// The most tags of one command: all are asked for at once, and one connection takes no more than 65,536 commands.
const MAX_NAMES: usize = 16 * 1024;
/// In how many `request_timeout`s a tag is done or given up. A bump takes nine answers, the six to the greeting among them; more if
/// others bump the same tag meanwhile.
const ANSWERS: u32 = 13;
/// The last millisecond of the year 9999. A later version is no moment.
const LAST_MOMENT: u64 = 253_402_300_799_999;

/// What is done with the tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Everything that carries them becomes stale.
    Bump,
    /// Their versions are said.
    Get,
}

/// Does it with the tags of these names, in the pool and under the prefix of the configuration at `path`, or of the built-in one.
/// A line for each tag goes to stdout, `NAME VERSION TIME`. Exit code 0 if all of it was done; else 1, and stderr says of which
/// tags it is not known.
pub fn run(action: Action, names: &[OsString], path: Option<&Path>) -> ExitCode {
    let report = match Config::load(path, config::environment()) {
        Ok(config) => report(action, names, &config),
        Err(mistakes) => Report::refusal(mistakes.to_string()),
    };
    // The notes are worth less than the exit code.
    let _ = io::stderr().write_all(report.err.as_bytes());
    match io::stdout().write_all(&report.out) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ if report.done => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// What is said, and whether all was done.
#[derive(Debug, Default)]
struct Report {
    out: Vec<u8>,
    err: String,
    done: bool,
}

impl Report {
    /// Nothing was asked of any server.
    fn refusal(why: String) -> Report {
        Report { err: why + "\n", ..Report::default() }
    }
}

/// A tag that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag {
    /// As it was written.
    given: Vec<u8>,
    /// What stands behind the prefix in its key.
    name: TagName,
}

fn report(action: Action, names: &[OsString], config: &Config) -> Report {
    let tags = match tags(names, &config.tags.prefix) {
        Ok(tags) => tags,
        Err(mistakes) => return Report::refusal(mistakes),
    };
    let pool = &config.pools[config.tags.pool];
    if pool.servers.iter().any(|server| matches!(server.address, Address::Embedded { .. })) {
        return Report::refusal(out_of_reach(action, &tags, config));
    }
    match ask(action, &tags, config, pool) {
        Ok(answers) => told(action, &tags, &answers, config),
        Err(error) => Report::refusal(format!("kennel tag: {error}")),
    }
}

/// The tags of these names, each once, or all that is wrong with them.
fn tags(names: &[OsString], prefix: &[u8]) -> Result<Vec<Tag>, String> {
    if names.len() > MAX_NAMES {
        return Err(format!("kennel tag: {} tags are too many: at most {MAX_NAMES} at a time", names.len()));
    }
    let (mut tags, mut mistakes) = (Vec::<Tag>::new(), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for name in names {
        let given = name.as_bytes();
        let mut wrong = |why: &str| mistakes.push(format!("kennel tag: {:?}: {why}", lossy(given)));
        if given.is_empty() {
            wrong("a tag's name has at least one byte");
        } else if given.iter().any(|byte| b" \r\n\0".contains(byte)) {
            wrong("a tag's name has no space, CR, LF or NUL");
        } else if given.starts_with(prefix) {
            wrong(&format!("leave out {:?}, which tags.prefix puts before every name", lossy(prefix)));
        } else {
            let mut key = [prefix, given].concat();
            fold_tag(&mut key, prefix.len());
            let name = TagName::from_slice(&key[prefix.len()..]);
            if seen.insert(name.clone()) {
                tags.push(Tag { given: given.to_vec(), name });
            }
        }
    }
    if mistakes.is_empty() { Ok(tags) } else { Err(mistakes.join("\n")) }
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Where the embedded memcached can be asked instead.
fn out_of_reach(action: Action, tags: &[Tag], config: &Config) -> String {
    let command = match action {
        Action::Bump => "delete",
        Action::Get => "get",
    };
    let mut lines = String::new();
    for tag in tags {
        let key = [&config.tags.prefix, &tag.name[..]].concat();
        // Into String: cannot fail.
        let _ = write!(lines, "{command} {}\\r\\n", quoted(&key));
    }
    let at = match (config.listen.tcp.first(), config.listen.unix.first()) {
        (Some(entrance), _) => format!("{} {}", entrance.at.host, entrance.at.port),
        (None, Some(entrance)) => format!("-U {}", entrance.at.display()),
        (None, None) => String::new(), // no configuration is without a listener
    };
    format!(
        "kennel tag: the pool {:?} is inside the sidecar's process, which no other can reach. Give the sidecars' configuration \
         with --config FILE, or ask the running sidecar:\n  printf '{lines}quit\\r\\n' | nc {at}",
        config.pools[config.tags.pool].name
    )
}

/// A key as a POSIX `printf '…'` takes it.
fn quoted(key: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@:._-~/+=,#".contains(&byte);
    key.iter()
        .map(|&byte| if plain(byte) { char::from(byte).to_string() } else { format!("\\{byte:03o}") })
        .collect()
}

/// A tag's version; none, if it has none; or why it is not known, and which servers keep it.
type Answered = Result<Option<u64>, (Failure, Vec<String>)>;

/// Asks the servers about all tags at once.
fn ask(action: Action, tags: &[Tag], config: &Config, pool: &PoolSpec) -> io::Result<Vec<Answered>> {
    let limit = pool.connect_timeout + pool.request_timeout * ANSWERS;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let proxy = Rc::new(proxy(config, pool)?);
    let answers = LocalSet::new().block_on(&runtime, async {
        proxy.drive_connections();
        let asked: Vec<_> = tags
            .iter()
            .map(|tag| spawn_local(ask_one(action, tag.name.clone(), Rc::clone(&proxy), limit)))
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for (tag, asked) in tags.iter().zip(asked) {
            let answer = asked.await.unwrap_or(Err(Failure::Refused));
            answers.push(answer.map_err(|failure| {
                (failure, proxy.tag_servers(&tag.name).into_iter().map(show_address).collect())
            }));
        }
        answers
    });
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    Ok(answers)
}

async fn ask_one(
    action: Action,
    name: TagName,
    proxy: Rc<Proxy>,
    limit: Duration,
) -> Result<Option<u64>, Failure> {
    let answer = timeout(limit, async {
        match action {
            Action::Get => proxy.tag_version(&name).await,
            Action::Bump => match proxy.bump_tag(name).await {
                BumpEnd::Bumped(version) => Ok(Some(version)),
                BumpEnd::Failed(failure) => Err(failure),
            },
        }
    });
    answer.await.unwrap_or(Err(Failure::TimedOut))
}

/// A pipeline without clients or rules, to the pool of the tags alone.
fn proxy(config: &Config, pool: &PoolSpec) -> io::Result<Proxy> {
    let tags = &config.tags;
    let server = |server: &Address| ServerName { pool: pool.name.clone(), server: show_address(server) };
    let servers = pool.servers.iter().map(|spec| server(&spec.address)).collect();
    let metrics = Arc::new(Metrics::new(Vec::new(), servers, 1));
    let rules = Rules::new(Vec::new());
    let plan = Plan::new(rules, Vec::new(), Vec::new(), 0, tags.prefix.clone(), 0, tags.replicas > 1);
    let mut chance = Random::from_entropy();
    let shared = Shared {
        plan: Arc::new(plan),
        desk: Arc::new(LeaseTable::new(0)),
        tag_cache: TagCache::new(Duration::ZERO),
        changes: Arc::new(Changes::new(false)),
        near_memory: 0,
        sidecar: chance.below(u64::MAX),
        clock: Clock::system(),
        start: Instant::now(),
        front: Arc::new(ServerInfo {
            metrics: Arc::clone(&metrics),
            max_connections: 0,
            workers: 1,
            tcp: None,
            unix: None,
            unix_mode: 0,
            flush_all: false,
            baseline: Mutex::default(),
        }),
    };
    let counts = metrics.worker(0);
    let pool = Pool::new(Arc::new(SharedPool::new(pool, 0, unix_ms)?).for_worker(), &counts);
    Ok(Proxy::new(shared, vec![pool], chance, counts))
}

fn told(action: Action, tags: &[Tag], answers: &[Answered], config: &Config) -> Report {
    let (mut report, mut unknown) = (Report::default(), Vec::new());
    for (tag, answer) in tags.iter().zip(answers) {
        let says = match answer {
            Ok(Some(version)) => format!("{version} {}", utc(*version).as_deref().unwrap_or("-")),
            Ok(None) => "no version: never bumped or read, or lost".to_owned(),
            Err((failure, servers)) => {
                unknown.push(format!("{} ({} {})", lossy(&tag.given), servers.join(" and "), why(*failure)));
                continue;
            }
        };
        report.out.extend_from_slice(&tag.given);
        report.out.extend_from_slice(format!(" {says}\n").as_bytes());
    }
    report.done = unknown.is_empty();
    let mut say = |line: String| report.err.push_str(&format!("kennel tag: {line}\n"));
    if !unknown.is_empty() {
        let what = match action {
            Action::Bump => "not acknowledged, so it may not have happened",
            Action::Get => "not read",
        };
        say(format!("{what}: {}", unknown.join(", ")));
    }
    let unheard = |tag: &&Tag| !config.rules.iter().any(|rule| may_carry(&rule.kind, tag));
    let strangers: Vec<_> = tags.iter().filter(unheard).map(|tag| lossy(&tag.given)).collect();
    if !strangers.is_empty() {
        say(format!("note: no rule gives its keys a tag of this name: {}", strangers.join(", ")));
    }
    if action == Action::Bump && !config.tags.cache.is_zero() && unknown.len() < tags.len() {
        let cache = show_duration(config.tags.cache);
        say(format!(
            "note: sidecars see it after tags.cache, {cache}; until then they may serve what it invalidates"
        ));
    }
    report
}

/// What is wrong with the servers, behind their names.
fn why(failure: Failure) -> &'static str {
    match failure {
        Failure::Down => "cannot be reached",
        Failure::TimedOut => "did not answer in time",
        Failure::Refused => "refused it",
        Failure::Overloaded => "is overloaded, or too many bump this tag at once",
        Failure::Unguarded => "cannot guard keys: kennel check --connect says why",
    }
}

/// Whether a key of such a rule may carry this tag.
fn may_carry(kind: &RuleKind, tag: &Tag) -> bool {
    let RuleKind::Guarded { tags, .. } = kind else { return false };
    // What a folded name was made of is not known, or is longer than a pattern may be.
    let folded = tag.given.starts_with(b"~") || tag.given != tag.name[..];
    let renders = |template: &Template| match Pattern::parse(template.text()) {
        Ok(pattern) => folded || pattern.matches(&tag.name, &mut Captures::default()),
        // A template may be what no pattern is, `{a}{b}`.
        Err(_) => true,
    };
    tags.iter().any(renders)
}

/// A version as the moment it is, RFC 3339; `None` after the year 9999.
fn utc(ms: u64) -> Option<String> {
    if ms > LAST_MOMENT {
        return None;
    }
    let (seconds, mut day, mut year) = (ms / 1000, ms / 86_400_000, 1970);
    let months = loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = 365 + u64::from(leap);
        if day < days {
            break [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        }
        day -= days;
        year += 1;
    };
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    let (month, day) = (month + 1, day + 1);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000))
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
    fn a_tag_is_named_as_a_rule_would_name_it_and_done_once() {
        let long = [b'x'; 246];
        let tags = named(&[b"posts", b"\xff\x01", &long[..245], &long, b"posts"]).unwrap();
        let names: Vec<&[u8]> = tags.iter().map(|tag| &tag.name[..]).collect();
        // md5 of 246 x's, by md5sum.
        assert_eq!(names, [b"posts", &b"\xff\x01"[..], &long[..245], b"~631fb49d816c8eb5ea9763e635dca278"]);
        assert_eq!(tags[3].given, long);
    }

    #[test]
    fn what_is_no_name_is_refused_all_at_once() {
        let said = named(&[b"", b"a b", b"fine", b"a\nb", b"@tag:posts"]).unwrap_err();
        assert_eq!(said.lines().count(), 4, "{said}");
        for part in
            ["\"\": a tag's name has at least", "\"a b\": a tag's name has no space", "leave out \"@tag:\""]
        {
            assert!(said.contains(part), "{part:?} is not in:\n{said}");
        }
        let many = vec![OsString::from("x"); MAX_NAMES + 1];
        assert!(tags(&many, b"@tag:").unwrap_err().contains("16385 tags are too many"));
        assert_eq!(tags(&many[1..], b"@tag:").unwrap().len(), 1);
    }

    #[test]
    fn a_version_is_said_as_the_moment_it_is() {
        // By `date -u -d @…`.
        for (ms, said) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST_MOMENT, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(utc(ms).as_deref(), Some(said));
        }
        assert_eq!(utc(LAST_MOMENT + 1), None);
    }

    #[test]
    fn an_embedded_pool_is_refused_with_the_command_that_reaches_it() {
        let names = ["posts", "50%"].map(OsString::from);
        let says = |action, toml: &str| {
            let report = report(action, &names, &config(toml));
            assert!(report.out.is_empty() && !report.done);
            report.err
        };
        let embedded = "pools.main.servers = [\"embedded:1MiB\"]\n";
        let said = says(Action::Bump, embedded);
        let command = r"printf 'delete @tag:posts\r\ndelete @tag:50\045\r\nquit\r\n' | nc 127.0.0.1 11211";
        assert!(said.contains("\"main\"") && said.contains(command), "{said}");
        let unix = format!("{embedded}listen.tcp = []\nlisten.unix = [\"/run/k.sock\"]\n");
        let said = says(Action::Get, &unix);
        assert!(said.contains("get @tag:posts") && said.contains("| nc -U /run/k.sock"), "{said}");
    }

    #[test]
    fn names_that_no_rule_gives_are_told_and_those_it_may_give_are_not() {
        let rule = |tags| {
            let toml =
                "[pools.main]\nservers = [\"a:11211\"]\n[[rules]]\nname = \"r\"\nmatch = \"t:{a}:{b}\"\n";
            config(&format!("{toml}tags = {tags}\n"))
        };
        let note = |config: &Config, name: &str| {
            let tags = named(&[name.as_bytes()]).unwrap();
            told(Action::Get, &tags, &[Ok(Some(1))], config).err
        };
        let narrow = rule("[\"posts\", \"blog:{a}\"]");
        for stranger in ["post", "posts:", "blog:", "blog:7:8"] {
            let said = format!("kennel tag: note: no rule gives its keys a tag of this name: {stranger}\n");
            assert_eq!(note(&narrow, stranger), said);
        }
        for known in ["posts", "blog:7", "~631fb49d816c8eb5ea9763e635dca278", &"x".repeat(246)] {
            assert_eq!(note(&narrow, known), "");
        }
        assert_eq!(note(&rule("[\"{a}{b}\"]"), "anything"), "", "not judged");
    }

    #[test]
    fn those_that_are_not_known_are_named_with_their_servers_and_fail_the_command() {
        let config = config("tags.cache = \"100ms\"\n[pools.main]\nservers = [\"a:11211\"]\n");
        let tags = named(&[b"posts", b"blog:7", b"gone"]).unwrap();
        let servers = vec!["a:11211".to_owned(), "b:11211".to_owned()];
        let answers = [Ok(Some(1_700_000_000_000)), Err((Failure::Down, servers)), Ok(None)];
        let report = told(Action::Bump, &tags, &answers, &config);
        let out = String::from_utf8(report.out).unwrap();
        assert_eq!(
            out,
            "posts 1700000000000 2023-11-14T22:13:20.000Z\ngone no version: never bumped or read, or lost\n"
        );
        assert!(!report.done);
        assert!(
            report.err.contains("may not have happened: blog:7 (a:11211 and b:11211 cannot be reached)\n")
        );
        assert!(report.err.contains("see it after tags.cache, 100ms"), "{}", report.err);
        let silent = told(Action::Get, &tags[..1], &answers[..1], &config);
        assert!(silent.done && !silent.err.contains("tags.cache"));
    }

    /// What a server that can guard answers to each command of a probe.
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

    /// What a bump says at a server that takes so long to answer anything, and answers this to what is to be stored.
    fn bumped_at(delay: Duration, stored: &'static str, request_timeout: &str) -> Report {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let mut probed = PROBED.iter();
            while let Some(line) = lines.next() {
                let probe = line.contains("@probe:");
                let answer = match line.split(' ').next() {
                    _ if probe => probed.next().unwrap(),
                    Some("version") => "VERSION 1.6.45\r\n",
                    Some("mg") => "VA 1 t-1 f0 c1 s1\r\n5\r\n",
                    Some("ms") => stored,
                    _ => "END\r\n",
                };
                if line.starts_with("ms") {
                    lines.next();
                }
                // What goes together is answered together.
                if !probe {
                    thread::sleep(delay);
                }
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let pool = format!("servers = [\"{address}\"]\nrequest_timeout = \"{request_timeout}\"\n");
        report(Action::Bump, &["posts".into()], &config(&format!("[pools.main]\n{pool}")))
    }

    #[test]
    fn a_server_far_away_may_take_its_time_for_each_answer_the_greeting_too() {
        // Twice that is more than one answer may take.
        let report = bumped_at(Duration::from_millis(600), "HD c2\r\n", "1s");
        assert!(report.done, "{}", report.err);
    }

    #[test]
    fn a_bump_that_others_keep_overtaking_at_a_slow_server_comes_to_an_end() {
        // Every answer comes in time, and by the guard's own count there would be thirty.
        let report = bumped_at(Duration::from_millis(60), "EX\r\n", "120ms");
        assert!(!report.done && report.err.contains("did not answer in time"), "{}", report.err);
    }
}
