//! The keys of `[pools.<name>]` that set whether and how a pool's servers fail over.

use std::time::Duration;

use super::file;
use super::units::show_duration;
use super::validator::{DAY, KeyPath, MINUTE, Validator, boolean, duration, whole_seconds};
use crate::upstream::{Address, FailoverSpec, OnError, OtherPlacement, ServerSpec};

/// Each record has three copies on three servers.
pub(crate) const LEAST_SERVERS: usize = 3;
/// The allowed values of `window`. Records are read four times per window, so the shortest one costs 20 reads per second.
const WINDOW: (Duration, Duration) = (Duration::from_millis(200), MINUTE);
/// The default of `request_timeout`.
pub(super) const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
const DEFAULT_WINDOW: Duration = Duration::from_millis(1500);
/// The longest time before a failing server is left or returned to. Returning is delayed by at most this much.
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);

/// Whether and how the pool fails over. The outer `None`: there is an error, here or in the servers.
pub(super) fn failover(
    v: &mut Validator<'_>,
    at: &KeyPath,
    table: &file::Pool,
    servers: Option<&[ServerSpec]>,
    other: Option<&OtherPlacement>,
    request_timeout: Option<Duration>,
) -> Option<Option<FailoverSpec>> {
    let spec = durations(v, at, table);
    let configured = v.value(at, "failover", &table.failover, None, |value| boolean(value).map(Some))?;
    let (spec, servers) = (spec?, servers?);
    let obstacles =
        [Some(servers), other.map(|other| &other.servers[..])].map(|list| list.and_then(obstacle));
    if let (None, Some(other), [None, Some(why)] | [Some(why), None]) = (configured, other, &obstacles) {
        let key = other.kind.key();
        v.error(
            at,
            "failover",
            None,
            format_args!(
                "must be false during and after this change, because only one of servers and {key} can fail over: it {why}"
            ),
        );
        return None;
    }
    let obstacle = obstacles.into_iter().flatten().next();
    if let (Some(true), Some(why)) = (configured, &obstacle) {
        v.error(at, "failover", table.failover.as_ref(), why);
        return None;
    }
    if configured == Some(false) || obstacle.is_some() {
        return Some(None);
    }
    // A read of the records may take a quarter of a window. By default that is less than the time limit of other requests.
    let is_default = |request| spec.window >= DEFAULT_WINDOW && request <= DEFAULT_REQUEST_TIMEOUT;
    if let Some(request) = request_timeout.filter(|limit| *limit > spec.window / 4 && !is_default(*limit)) {
        let (quarter, request) = (show_duration(spec.window / 4), show_duration(request));
        v.warn(
            at,
            format_args!(
                "window: a server that takes longer than a quarter of it ({quarter}) to reply counts as one that does not \
                 reply, although request_timeout is {request}"
            ),
        );
    }
    Some(Some(spec))
}

/// Reports what cannot work without failover. `failover` is that of [`failover`].
pub(super) fn needed_failover(
    v: &mut Validator<'_>,
    at: &KeyPath,
    table: &file::Pool,
    on_error: Option<OnError>,
    failover: &Option<Option<FailoverSpec>>,
) {
    if (on_error, failover) == (Some(OnError::Standby), &Some(None)) {
        v.error(
            at,
            "on_error",
            table.on_error.as_ref(),
            "needs failover, which needs at least three servers, none of them embedded, and failover not to be false",
        );
    }
}

/// Why these servers cannot fail over, if so.
fn obstacle(servers: &[ServerSpec]) -> Option<String> {
    let embedded = |server: &ServerSpec| matches!(server.address, Address::Embedded { .. });
    if servers.iter().any(embedded) {
        return Some(
            "is impossible with an embedded server: other sidecars cannot reach it, and it ends with this process".into(),
        );
    }
    if servers.iter().any(|server| server.lookup().is_some()) {
        return None; // their number is not known
    }
    let n = servers.len();
    (n < LEAST_SERVERS).then(|| {
        format!("needs at least three servers, because three of them keep a record of where keys are: there are {n}")
    })
}

fn durations(v: &mut Validator<'_>, at: &KeyPath, table: &file::Pool) -> Option<FailoverSpec> {
    let ms = Duration::from_millis;
    let window = v.value(at, "window", &table.window, DEFAULT_WINDOW, duration(WINDOW.0..=WINDOW.1));
    let waits = || duration(WINDOW.0..=LONGEST_WAIT);
    let fail_after = v.value(at, "fail_after", &table.fail_after, ms(2000), waits());
    let recover_after = v.value(at, "recover_after", &table.recover_after, ms(10_000), waits());
    let ttl = whole_seconds(Duration::from_secs(1)..=DAY);
    let standby_ttl = v.value(at, "standby_ttl", &table.standby_ttl, 5 * MINUTE, ttl);
    let (window, fail_after, recover_after) = (window?, fail_after?, recover_after?);
    let mut valid = true;
    for (key, value, configured) in [
        ("fail_after", fail_after, &table.fail_after),
        ("recover_after", recover_after, &table.recover_after),
    ] {
        if value >= window {
            continue;
        }
        valid = false;
        let (shown, shown_window) = (show_duration(value), show_duration(window));
        if configured.is_some() {
            let default = if table.window.is_none() { ", the default" } else { "" };
            let message = format_args!("must be at least window ({shown_window:?}{default})");
            v.error(at, key, configured.as_ref(), message);
        } else {
            let message = format_args!("must be at most {key} ({shown:?}, the default)");
            v.error(at, "window", table.window.as_ref(), message);
        }
    }
    let spec = FailoverSpec { window, fail_after, recover_after, standby_ttl: standby_ttl? };
    valid.then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigErrors};

    /// A pool of this many servers with these keys.
    fn read(servers: usize, keys: &str) -> Result<Config, ConfigErrors> {
        let servers: Vec<String> = (1..=servers).map(|n| format!("10.0.0.{n}:11211")).collect();
        Config::read("k.toml", &format!("[pools.main]\nservers = {servers:?}\n{keys}"), [])
    }

    fn spec(servers: usize, keys: &str) -> Option<FailoverSpec> {
        read(servers, keys).unwrap().pools[0].failover.clone()
    }

    /// The message of a configuration that must have exactly one mistake.
    fn error(servers: usize, keys: &str) -> String {
        let errors = read(servers, keys).expect_err(keys);
        assert_eq!(errors.without_places().len(), 1, "{errors}");
        errors.without_places()[0].clone()
    }

    #[test]
    fn three_servers_fail_over_unless_the_configuration_says_no_and_fewer_never_do() {
        let s = Duration::from_secs;
        let default = FailoverSpec {
            window: DEFAULT_WINDOW,
            fail_after: s(2),
            recover_after: s(10),
            standby_ttl: s(300),
        };
        assert_eq!([spec(3, ""), spec(4, "failover = true")], [Some(default.clone()), Some(default)]);
        for (servers, keys) in [(3, "failover = false"), (2, "failover = false"), (2, ""), (1, "")] {
            assert_eq!(spec(servers, keys), None);
        }
        let found = error(2, "failover = true");
        let expected = "k.toml: pools.main.failover (true) needs at least three servers, because three of them keep a \
            record of where keys are: there are 2";
        assert_eq!(found, expected);
        let embedded = |keys: &str| {
            let servers = "[\"a:1\", \"b:1\", \"c:1\", \"embedded:1MiB\"]";
            Config::read("k.toml", &format!("[pools.main]\nservers = {servers}\n{keys}"), [])
        };
        assert_eq!(embedded("").unwrap().pools[0].failover, None);
        let found = embedded("failover = true").unwrap_err().to_string();
        assert!(found.contains("failover (true) is impossible with an embedded server"), "{found}");
        assert!(error(3, "failover = \"yes\"").contains("must be true or false"));
    }

    #[test]
    fn waits_last_at_least_a_window_and_the_message_names_the_key_that_is_configured() {
        for (keys, expected) in [
            ("fail_after = \"1s\"", r#"fail_after ("1s") must be at least window ("1500ms", the default)"#),
            (
                "window = \"3s\"\nfail_after = \"2999ms\"",
                r#"fail_after ("2999ms") must be at least window ("3s")"#,
            ),
            (
                "recover_after = \"1s\"",
                r#"recover_after ("1s") must be at least window ("1500ms", the default)"#,
            ),
            ("window = \"3s\"", r#"window ("3s") must be at most fail_after ("2s", the default)"#),
        ] {
            assert_eq!(error(3, keys), format!("k.toml: pools.main.{expected}"));
        }
        assert!(read(3, "window = \"3s\"\nfail_after = \"3s\"\nrecover_after = \"3s\"").is_ok());
    }

    #[test]
    fn raw_keys_follow_to_a_standby_server_only_with_failover() {
        assert_eq!(read(3, "on_error = \"standby\"").unwrap().pools[0].on_error, OnError::Standby);
        let expected = "k.toml: pools.main.on_error (\"standby\") needs failover, which needs at least three servers, none \
            of them embedded, and failover not to be false";
        for (servers, keys) in [(2, ""), (3, "failover = false\n")] {
            assert_eq!(error(servers, &format!("{keys}on_error = \"standby\"")), expected);
        }
    }

    #[test]
    fn what_takes_too_long_is_warned_of() {
        let warnings = |servers, keys: &str| read(servers, keys).unwrap().warnings;
        for (servers, keys) in [
            (3, ""),
            (3, "request_timeout = \"500ms\""),
            (3, "window = \"2s\""),
            (3, "failover = false\nrequest_timeout = \"1s\""),
            (2, "request_timeout = \"1s\""),
        ] {
            assert_eq!(warnings(servers, keys), [] as [&str; 0], "{keys}");
        }
        for (keys, limit, request) in
            [("request_timeout = \"501ms\"", "(375ms)", "501ms"), ("window = \"1s\"", "(250ms)", "500ms")]
        {
            let [warning] = &warnings(3, keys)[..] else { panic!("not one: {keys}") };
            let shows = warning.contains(limit) && warning.contains(&format!("request_timeout is {request}"));
            assert!(shows, "{warning}");
        }
    }
}
