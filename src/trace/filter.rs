//! Which events a watcher wants.

use std::sync::Arc;
use std::time::Duration;

use super::event::{Peer, Sighting};
use super::glob::Glob;
use super::shown::shown_key;
use crate::metrics::{LeaseEnd, Outcome};

/// The largest denominator of `sample`.
pub const MAX_SAMPLE: u32 = 1_000_000;

/// Which events a watcher wants. The default is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// What is shown of the key matches, or it is this key.
    pub key: Option<Glob>,
    /// One of these is the name of the rule.
    pub rules: Vec<String>,
    /// One of these is the kind of the rule.
    pub kinds: Vec<String>,
    /// One of these is the name of the server, or `pool/server`.
    pub servers: Vec<String>,
    /// One of these matches the client as it is shown, or its address without the port.
    pub clients: Vec<Glob>,
    /// The outcome matches one of these.
    pub outcomes: Vec<Glob>,
    /// It took at least this long.
    pub slower: Duration,
    /// Of so many events that match everything else (the second number), this many, at random.
    pub sample: Option<(u32, u32)>,
}

/// The kinds that a rule may have, and that of keys without a rule.
pub const KINDS: [&str; 10] =
    ["guarded", "raw", "counter", "window", "log", "list", "table", "lock", "observe", "none"];

/// The most names that an error lists.
const MAX_LISTED: usize = 16;

/// The names that conditions may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Those of the rules, without `none`.
    pub rules: Vec<Arc<str>>,
    /// Those of the servers, each with its pool.
    pub servers: Vec<(String, String)>,
}

impl Names {
    /// Whether this is the name of a rule, or `none`.
    ///
    /// # Errors
    /// It is not: a text that completes a sentence which begins with the name.
    pub fn check_rule(&self, rule: &str) -> Result<(), String> {
        if rule == "none" || self.rules.iter().any(|known| **known == *rule) {
            return Ok(());
        }
        let rules = self.rules.iter().map(|rule| &**rule).chain(["none"]);
        Err(format!("is no rule: use {}", listed(rules)))
    }

    fn check_server(&self, name: &str) -> Result<(), String> {
        let is_named = |(pool, server): &(String, String)| {
            server == name || name.split_once('/').is_some_and(|(of, rest)| of == pool && rest == server)
        };
        if self.servers.iter().any(is_named) {
            return Ok(());
        }
        let servers = self.servers.iter().map(|(_, server)| &**server);
        Err(format!("is no server: use {}, or pool/name", listed(servers)))
    }
}

/// The names with commas between them, and how many are left out.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" or {more} more"),
    };
    names[..names.len().min(MAX_LISTED)].join(", ") + &more
}

impl Filter {
    /// Whether there are such rules and servers as it names.
    ///
    /// # Errors
    /// One does not exist: a sentence that names it.
    pub fn check(&self, names: &Names) -> Result<(), String> {
        let rules = self.rules.iter().map(|rule| (rule, "rule", names.check_rule(rule)));
        let servers = self.servers.iter().map(|server| (server, "server", names.check_server(server)));
        rules.chain(servers).try_for_each(|(name, condition, result)| {
            result.map_err(|why| format!("{condition}={} {why}", shown_key(name.as_bytes())))
        })
    }

    /// Sets one condition by its name in a query or on the command line. A later value of the same name replaces the earlier one.
    ///
    /// # Errors
    /// The name is unknown or the value is invalid: a sentence that names both.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let text = || str::from_utf8(value).map_err(|_| "is not UTF-8".to_owned());
        let list = || Ok(text()?.split(',').map(str::to_owned).collect::<Vec<_>>());
        let result: Result<(), String> = match name {
            "key" => Glob::parse(value).map(|glob| self.key = Some(glob)),
            "rule" => list().map(|rules| self.rules = rules),
            "kind" => list().and_then(kinds).map(|kinds| self.kinds = kinds),
            "server" => list().map(|servers| self.servers = servers),
            "client" => list().and_then(|words| globs(&words)).map(|globs| self.clients = globs),
            "outcome" => list().and_then(|words| outcomes(&words)).map(|globs| self.outcomes = globs),
            "slower" => text().and_then(duration).map(|slower| self.slower = slower),
            "sample" => text().and_then(sample).map(|sample| self.sample = Some(sample)),
            _ => {
                return Err(format!(
                    "{name} is no condition: use key, rule, kind, server, client, outcome, slower or sample"
                ));
            }
        };
        result.map_err(|why| format!("{name}={} {why}", shown_key(value)))
    }

    /// Whether an event meets all conditions but `sample`. `shown` returns what watchers see of the key: a pattern is
    /// judged on that, because patterns that match the key itself would reveal it byte by byte. One without wildcards also means the
    /// whole key.
    pub fn matches<S: AsRef<[u8]>>(&self, seen: &Sighting<'_>, shown: impl FnOnce() -> S) -> bool {
        let is_rule = |rule: &String| **rule == **seen.rule;
        let is_server = |wanted: &String| {
            seen.server.is_some_and(|server| {
                *wanted == server
                    || wanted
                        .strip_prefix(&**seen.pool)
                        .and_then(|rest| rest.strip_prefix('/'))
                        .is_some_and(|rest| rest == server)
            })
        };
        seen.took >= self.slower
            && (self.rules.is_empty() || self.rules.iter().any(is_rule))
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == seen.kind))
            && (self.servers.is_empty() || self.servers.iter().any(is_server))
            && (self.outcomes.is_empty()
                || self.outcomes.iter().any(|glob| glob.matches(seen.happened.outcome().as_bytes())))
            && (self.clients.is_empty() || self.clients.iter().any(|glob| is_client(glob, seen.client)))
            && self.key.as_ref().is_none_or(|glob| {
                (glob.is_literal() && glob.matches(seen.key)) || glob.matches(shown().as_ref())
            })
    }
}

/// A list of kinds, each of which must exist.
fn kinds(words: Vec<String>) -> Result<Vec<String>, String> {
    match words.iter().all(|word| KINDS.contains(&&**word)) {
        true => Ok(words),
        false => Err(format!("is no kind: use {}", KINDS.join(", "))),
    }
}

fn globs(patterns: &[String]) -> Result<Vec<Glob>, String> {
    patterns.iter().map(|pattern| Glob::parse(pattern.as_bytes())).collect()
}

fn is_client(glob: &Glob, client: Peer) -> bool {
    let host = match client {
        Peer::Tcp(address) => Some(address.ip().to_string()),
        Peer::Unix(_) | Peer::Sidecar => None,
    };
    let shown = client.to_string();
    [Some(shown), host].iter().flatten().any(|text| glob.matches(text.as_bytes()))
}

/// A list of patterns of outcomes, each of which must match at least one word.
fn outcomes(patterns: &[String]) -> Result<Vec<Glob>, String> {
    let words = || {
        let ends = LeaseEnd::ALL.iter().map(|end| end.word());
        Outcome::ALL.iter().map(|outcome| outcome.word()).chain(ends)
    };
    let glob = |pattern: &String| {
        let glob = Glob::parse(pattern.as_bytes())?;
        match words().any(|word| glob.matches(word.as_bytes())) {
            true => Ok(glob),
            false => Err(format!(
                "is no outcome: use {}, or a pattern as miss*",
                words().collect::<Vec<_>>().join(", ")
            )),
        }
    };
    patterns.iter().map(glob).collect()
}

/// `10ms`, `250us`, `1s`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "must be an integer with a unit (us, ms, s): 10ms".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let micros = match &text[digits..] {
        "us" | "µs" => Some(number),
        "ms" => number.checked_mul(1_000),
        "s" => number.checked_mul(1_000_000),
        _ => None,
    };
    micros.map(Duration::from_micros).ok_or_else(wrong)
}

/// `1/100`.
fn sample(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('/').and_then(|(of, all)| Some((of.parse().ok()?, all.parse().ok()?)));
    match parts {
        Some((of, all)) if 0 < of && of <= all && all <= MAX_SAMPLE => Ok((of, all)),
        _ => Err(format!(
            "must be a fraction of at most 1, as 1/100, with a denominator of at most {MAX_SAMPLE}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::Command;
    use crate::trace::event::{Happened, Marks};

    fn filter(conditions: &[(&str, &str)]) -> Result<Filter, String> {
        let mut filter = Filter::default();
        conditions.iter().try_for_each(|(name, value)| filter.set(name, value.as_bytes()))?;
        Ok(filter)
    }

    #[test]
    fn an_event_must_meet_all_conditions() {
        let (rule, pool) = (Arc::from("pages"), Arc::from("main"));
        let seen = Sighting {
            key: b"blog:1:page:7",
            rule: &rule,
            kind: "guarded",
            server: Some("10.0.0.1:11211"),
            pool: &pool,
            client: Peer::Unix(None),
            happened: Happened::Answered(Command::Get, Outcome::MissWon),
            took: Duration::from_millis(10),
            bytes: 0,
            marks: Marks::default(),
        };
        for conditions in [
            &[][..],
            &[("key", "blog:*")],
            &[("rule", "other,pages")],
            &[("kind", "guarded")],
            &[("kind", "counter,guarded"), ("rule", "pages")],
            &[("server", "10.0.0.1:11211")],
            &[("server", "main/10.0.0.1:11211")],
            &[("outcome", "miss*")],
            &[("outcome", "hit,miss_won")],
            &[("slower", "10ms")],
            &[("key", "*7"), ("rule", "pages"), ("outcome", "miss_won"), ("slower", "9999us")],
        ] {
            assert!(filter(conditions).unwrap().matches(&seen, || seen.key), "{conditions:?}");
        }
        for conditions in [
            &[("key", "blog:2*")][..],
            &[("rule", "page")],
            &[("kind", "raw,counter,none")],
            &[("kind", "guarded"), ("rule", "page")],
            &[("server", "10.0.0.2:11211")],
            &[("server", "other/10.0.0.1:11211")],
            &[("outcome", "hit")],
            &[("slower", "11ms")],
            &[("key", "blog:*"), ("outcome", "hit")],
        ] {
            assert!(!filter(conditions).unwrap().matches(&seen, || seen.key), "{conditions:?}");
        }
        let from = |client: Peer, condition: &str| {
            filter(&[("client", condition)]).unwrap().matches(&Sighting { client, ..seen }, || seen.key)
        };
        let tcp = Peer::Tcp("10.0.0.7:4711".parse().unwrap());
        for condition in ["10.0.0.7", "10.0.0.7:4711", "10.0.0.*", "unix,10.0.0.7:*"] {
            assert!(from(tcp, condition), "{condition}");
        }
        assert!(!from(tcp, "10.0.0.70") && !from(tcp, "4711") && !from(tcp, "unix*"));
        assert!(from(Peer::Unix(Some(7)), "unix:7") && from(Peer::Unix(Some(7)), "unix*"));
        assert!(!from(Peer::Unix(Some(7)), "unix") && !from(Peer::Sidecar, "10.0.0.7"));
        let near = Sighting { server: None, ..seen };
        assert!(!filter(&[("server", "10.0.0.1:11211")]).unwrap().matches(&near, || near.key));
    }

    #[test]
    fn a_rule_or_server_that_does_not_exist_is_named_with_those_that_do() {
        let names = Names {
            rules: vec!["pages".into(), "raw".into()],
            servers: vec![("main".into(), "unix:/a/b".into()), ("other".into(), "c:1".into())],
        };
        for right in ["pages", "raw,none", "none"] {
            assert_eq!(filter(&[("rule", right)]).unwrap().check(&names), Ok(()));
        }
        for right in ["unix:/a/b", "main/unix:/a/b,c:1"] {
            assert_eq!(filter(&[("server", right)]).unwrap().check(&names), Ok(()));
        }
        let error = |name, value| filter(&[(name, value)]).unwrap().check(&names).unwrap_err();
        assert_eq!(error("rule", "pages,page"), "rule=page is no rule: use pages, raw, none");
        assert_eq!(
            error("server", "main/c:1"),
            "server=main/c:1 is no server: use unix:/a/b, c:1, or pool/name"
        );
        let many = Names { rules: (0..MAX_LISTED + 3).map(|n| n.to_string().into()).collect(), ..names };
        let error = many.check_rule("x").unwrap_err();
        assert!(error.ends_with(", 14, 15 or 4 more"), "{error}");
    }

    #[test]
    fn a_mistake_is_named_with_what_would_be_right() {
        for (name, value, expected) in [
            ("kay", "x", "kay is no condition: use key, rule, kind,"),
            ("outcome", "mis", "outcome=mis is no outcome: use hit, stale,"),
            (
                "kind",
                "counter,windows",
                "kind=counter,windows is no kind: use guarded, raw, counter, window,",
            ),
            ("kind", "", "kind= is no kind:"),
            ("slower", "10", "slower=10 must be an integer with a unit"),
            ("slower", "10m", "slower=10m must be"),
            ("sample", "2/1", "sample=2/1 must be a fraction"),
            ("sample", "0/1", "sample=0/1 must be"),
            ("sample", "1/1000001", "sample=1/1000001 must be"),
            ("key", "", "key= must have 1 to"),
        ] {
            let error = filter(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(filter(&[("sample", "1/100")]).unwrap().sample, Some((1, 100)));
        assert!(Filter::default().set("rule", b"\xff").unwrap_err().starts_with("rule=\\xff is not UTF-8"));
    }
}
