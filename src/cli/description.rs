//! A configuration in words: the output of `kennel check`.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::memory::Memory;
use super::structures;
use super::unprotected::Unprotected;
use crate::admin::AdminSpec;
use crate::config::units::{show_duration, show_size};
use crate::config::{Config, Discovery, Rule, RuleKind};
use crate::guard::{OnInvalidate, Policy};
use crate::handshake::Requirements;
use crate::listener::FlushAll;
use crate::monitor::step;
use crate::proxy::MetaWinner;
use crate::rule::Template;
use crate::upstream::{
    Address, FailoverSpec, Lookup, OnError, OtherKind, PoolSpec, SecuritySpec, ServerSpec, UnknownPlacement,
};

/// Displays a configuration in words, on several lines.
pub(super) struct Description<'a>(pub(super) &'a Config);

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.0;
        listeners(f, config)?;
        for pool in &config.pools {
            f.write_char('\n')?;
            write_pool(f, pool)?;
        }
        let tags = &config.tags;
        let prefix = String::from_utf8_lossy(&tags.prefix);
        write!(f, "\nTags: keys with the prefix {prefix:?}, in pool {}", config.pools[tags.pool].name)?;
        if tags.replicas > 1 {
            f.write_str(", on two of its servers each")?;
        }
        match tags.cache {
            Duration::ZERO => writeln!(f, "; versions are not cached."),
            cache => writeln!(f, "; versions are cached for {}.", show_duration(cache)),
        }?;
        if config.uses_near_cache() {
            let memory = show_size(config.near.memory as u64);
            writeln!(f, "Near cache: at most {memory}.")?;
        }
        write_discovery(f, config)?;
        writeln!(f, "{}", Memory::of(config))?;
        f.write_str("\nRules; the first that matches applies:\n")?;
        for (i, rule) in config.rules.iter().enumerate() {
            write_rule(f, i, rule, &config.pools[rule.pool].name)?;
        }
        f.write_str("  all other keys: raw, in pool main\n")?;
        write!(f, "{}", Unprotected(config))?;
        for (i, warning) in config.warnings.iter().enumerate() {
            writeln!(f, "{}warning: {warning}", if i == 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

fn listeners(f: &mut fmt::Formatter<'_>, config: &Config) -> fmt::Result {
    let listen = &config.listen;
    let tcp = listen.tcp.iter().map(|e| format!("{}{}", e.address, requirements(&e.requirements)));
    let unix = listen.unix.iter().map(|e| {
        format!(
            "unix:{} (mode {:04o}){}",
            e.address.display(),
            listen.unix_mode,
            requirements(&e.requirements)
        )
    });
    let all = tcp.chain(unix).collect::<Vec<_>>().join(", ");
    let workers = match listen.workers {
        0 => "one worker per core, at most 4".to_owned(),
        1 => "1 worker".to_owned(),
        n => format!("{n} workers"),
    };
    let most = listen.max_connections;
    writeln!(f, "Listens on {all}; at most {most} clients; {workers}.")?;
    if listen.flush_all == FlushAll::Refuse {
        writeln!(f, "Clients' flush_all is refused.")?;
    }
    let buffered = show_size(listen.max_buffered as u64);
    match listen.idle_timeout {
        Duration::ZERO => write!(f, "Idle clients stay connected"),
        idle => write!(f, "Clients are disconnected after {} without activity", show_duration(idle)),
    }?;
    writeln!(f, "; requests and replies use at most {buffered}.")?;
    match &config.admin {
        Some(admin) => writeln!(f, "{}", admin_address(admin)),
        None => writeln!(f, "Admin address: none."),
    }
}

fn admin_address(admin: &AdminSpec) -> String {
    let AdminSpec { listen, requirements: required, token_file, explain, trace, hot } = admin;
    let scheme = if required.tls.is_some() { "https" } else { "http" };
    let changes =
        if token_file.is_some() { "POST needs a token" } else { "POST by programs on this host only" };
    let switches = [
        (explain, "; keys are not explained"),
        (trace, "; requests are not traced"),
        (hot, "; hot keys are not shown"),
    ];
    let off: String = switches.into_iter().filter(|(on, _)| !**on).map(|(_, off)| off).collect();
    format!("Admin address: {scheme}://{listen}/{}; {changes}{off}.", requirements(required))
}

/// What a listener requires of its clients, as a suffix of its address.
fn requirements(required: &Requirements) -> &'static str {
    let certificate = required.tls.as_ref().map(|tls| tls.client_ca.is_some());
    match (certificate, required.auth_file.is_some()) {
        (None, false) => "",
        (None, true) => " with a password",
        (Some(false), false) => " over TLS",
        (Some(false), true) => " over TLS with a password",
        (Some(true), false) => " over TLS with a certificate",
        (Some(true), true) => " over TLS with a certificate and a password",
    }
}

/// What protects the connections to the servers of a pool.
fn security(f: &mut fmt::Formatter<'_>, SecuritySpec { tls, auth }: &SecuritySpec) -> fmt::Result {
    if let Some(tls) = tls {
        let cas = match &tls.ca {
            Some(ca) => format!("the CAs of {}", ca.display()),
            None => "the CAs of the system".to_owned(),
        };
        let name = match &tls.server_name {
            Some(name) => format!(" for {name}"),
            None => String::new(),
        };
        let own = if tls.cert.is_some() { "; with a client certificate" } else { "" };
        writeln!(f, "  over TLS, verified by {cas}{name}{own}")?;
    }
    match auth {
        Some(auth) => {
            writeln!(f, "  with the password of {:?} in {}", auth.user, auth.password_file.display())
        }
        None => Ok(()),
    }
}

fn write_pool(f: &mut fmt::Formatter<'_>, pool: &PoolSpec) -> fmt::Result {
    let scheme = &pool.scheme;
    let on_error = match pool.on_error {
        OnError::Miss => "a miss",
        OnError::Error => "an error",
        OnError::Standby => "a miss until raw keys follow to the standby server",
    };
    let (n, s) = (pool.servers.len(), if pool.servers.len() == 1 { "" } else { "s" });
    let is_discovered = pool.lookups().next().is_some();
    match is_discovered {
        true => writeln!(f, "Pool {}: discovered servers, {scheme}.", pool.name)?,
        false => writeln!(f, "Pool {}: {n} server{s}, {scheme}.", pool.name)?,
    }
    let (connect, request) = (show_duration(pool.connect_timeout), show_duration(pool.request_timeout));
    writeln!(
        f,
        "  connect timeout {connect}, request timeout {request}; a get on a server that is down is {on_error}."
    )?;
    security(f, &pool.security)?;
    let total: f64 = pool.servers.iter().map(|s| f64::from(s.weight)).sum();
    for server in &pool.servers {
        let address = server.address.to_string();
        let name = server.name.as_ref().map(|n| format!(", ring name {n:?}")).unwrap_or_default();
        if is_discovered {
            let weight =
                if server.weight == 1 { String::new() } else { format!(", weight {}", server.weight) };
            let each = if server.lookup().is_some() && server.weight != 1 { " each" } else { "" };
            let meaning = server.lookup().map(|lookup| format!(": {}", meaning(lookup))).unwrap_or_default();
            writeln!(f, "  {address}{name}{meaning}{weight}{each}")?;
            continue;
        }
        let share = 100.0 * f64::from(server.weight) / total;
        writeln!(f, "  {share:5.1}% of the keys: {address}{name}")?;
    }
    write_change(f, pool)?;
    write_failover(f, pool)?;
    write_placement(f, pool)
}

/// What an entry stands for.
fn meaning(lookup: &Lookup) -> &'static str {
    match lookup {
        Lookup::Addresses { .. } => "each address of the name is a server, named by its address",
        Lookup::Services { .. } => "each SRV record is a server, named by its target",
        Lookup::Cluster { .. } => {
            "each server that this configuration endpoint names, which is asked with the settings of the pool"
        }
    }
}

/// How servers are discovered, if there are any to discover.
fn write_discovery(f: &mut fmt::Formatter<'_>, config: &Config) -> fmt::Result {
    if config.pools.iter().all(|pool| pool.lookups().next().is_none()) {
        return Ok(());
    }
    let Discovery { nameservers, interval, settle } = &config.discovery;
    let (interval, settle) = (show_duration(*interval), show_duration(*settle));
    let servers: Vec<_> = nameservers.iter().map(ToString::to_string).collect();
    let servers =
        if servers.is_empty() { "the DNS servers of the system".into() } else { servers.join(", ") };
    writeln!(
        f,
        "Discovery: servers are looked up within their TTL, at least every {interval}, with {servers}.\n  A change takes three \
         steps of {settle} each."
    )
}

/// The step of a change of the servers.
fn write_change(f: &mut fmt::Formatter<'_>, pool: &PoolSpec) -> fmt::Result {
    let Some(other) = &pool.other else { return Ok(()) };
    let step = match other.kind {
        OtherKind::Next => {
            "step 1 of 4: keys are kept by the servers above, and invalidated in both lists; next"
        }
        OtherKind::Previous { take_over: true } => {
            "step 2 of 4: keys are kept by the servers above, what they lack is taken over from the previous ones as stale, and \
             keys are invalidated in both lists; previous"
        }
        OtherKind::Previous { take_over: false } => {
            "step 3 of 4: keys are kept by the servers above, and invalidated in both lists; previous"
        }
    };
    let addresses: Vec<_> = other.servers.iter().map(|server| server.address.to_string()).collect();
    let spread = match other.scheme == pool.scheme {
        true => String::new(),
        false => format!(", {}", other.scheme),
    };
    writeln!(f, "  the servers change, {step} servers{spread}:\n    {}", addresses.join(", "))
}

fn write_placement(f: &mut fmt::Formatter<'_>, pool: &PoolSpec) -> fmt::Result {
    let is_embedded = |server: &ServerSpec| matches!(server.address, Address::Embedded { .. });
    if pool.servers.iter().all(is_embedded) || pool.lookups().next().is_some() {
        return Ok(());
    }
    let effect = match pool.unknown_placement {
        UnknownPlacement::Warn => "warns",
        UnknownPlacement::Miss => "serves no guarded key",
    };
    writeln!(
        f,
        "  placement {}: {effect} while another sidecar of keyspace {} uses one that is not adjacent",
        step(pool),
        pool.keyspace
    )
}

fn write_failover(f: &mut fmt::Formatter<'_>, pool: &PoolSpec) -> fmt::Result {
    let Some(FailoverSpec { window, fail_after, recover_after, standby_ttl }) = &pool.failover else {
        let why = match pool.servers.len() {
            _ if pool.servers.iter().any(|server| matches!(server.address, Address::Embedded { .. })) => {
                " with an embedded server"
            }
            1 | 2 => " with fewer than three servers, because three of them keep a record of where keys are",
            _ => " (failover = false)",
        };
        return writeln!(
            f,
            "  no failover{why}:\n    values of a server that is down are not stored; each sidecar lets one client at a time \
             rebuild a key"
        );
    };
    let show = |duration: &Duration| show_duration(*duration);
    let (window, fail_after) = (show(window), show(fail_after));
    let (recover_after, standby_ttl) = (show(recover_after), show(standby_ttl));
    if pool.lookups().next().is_some() {
        writeln!(f, "  with three or more servers:")?;
    }
    let keys = if pool.on_error == OnError::Standby { "all keys" } else { "guarded keys and tags" };
    writeln!(
        f,
        "  failover: {keys} of a server that does not reply for {fail_after} move to the other servers, for at most \
         {standby_ttl} each,\n    and back once it has replied for {recover_after}; window {window}"
    )
}

fn write_rule(f: &mut fmt::Formatter<'_>, i: usize, rule: &Rule, pool: &str) -> fmt::Result {
    let Rule { name, pattern, kind, share, invalidates, .. } = rule;
    match kind {
        RuleKind::Raw => writeln!(f, "  rules[{i}] {name}: {pattern}, raw, in pool {pool}")?,
        RuleKind::Observed => {
            writeln!(f, "  rules[{i}] {name}: {pattern}, raw and observed, in pool {pool}")?;
        }
        RuleKind::Guarded { policy, tags, tags_in_key, meta_winner } => {
            writeln!(f, "  rules[{i}] {name}: {pattern}, guarded, in pool {pool}")?;
            if let Some(share) = share {
                writeln!(
                    f,
                    "    share: {share} of the keys, the same on every sidecar; the others are raw and observed"
                )?;
            }
            write_tags(f, "tags", tags)?;
            if *tags_in_key {
                writeln!(f, "    further tags: named before the key, as in @tags:NAME,NAME:KEY")?;
            }
            write_policy(f, policy)?;
            if *meta_winner == MetaWinner::Stale {
                writeln!(
                    f,
                    "    meta clients: the winner receives the old value with W, whatever flags it sent"
                )?;
            }
        }
        RuleKind::Structure(kind) => {
            writeln!(f, "  rules[{i}] {name}: {pattern}, {}, in pool {pool}", kind.word())?;
            structures::write(f, kind)?;
        }
    }
    write_tags(f, "a change bumps", invalidates)
}

fn write_tags(f: &mut fmt::Formatter<'_>, what: &str, tags: &[Template]) -> fmt::Result {
    if tags.is_empty() {
        return Ok(());
    }
    let tags: Vec<&str> = tags.iter().map(Template::text).collect();
    writeln!(f, "    {what}: {}", tags.join(", "))
}

fn write_policy(f: &mut fmt::Formatter<'_>, p: &Policy) -> fmt::Result {
    let show = show_duration;
    match (p.stale_for, p.on_tag) {
        (Duration::ZERO, OnInvalidate::Drop) => writeln!(f, "    stale: never served")?,
        (Duration::ZERO, OnInvalidate::Stale) => {
            writeln!(f, "    stale: served until its expiry if a tag was bumped{}", after(p.stale_wait))?
        }
        (d, _) if p.stale_before_expiry => {
            let wait = after(p.stale_wait);
            writeln!(
                f,
                "    stale: served for the last {} before its expiry, at most half of its time{wait}",
                show(d)
            )?
        }
        (d, _) => writeln!(f, "    stale: served for {} after its expiry{}", show(d), after(p.stale_wait))?,
    }
    let (lock, most) = (show(p.lock_ttl), show(p.max_rebuild));
    writeln!(
        f,
        "    rebuild: by one client, at most {most}; the lock of a dead sidecar expires after {lock}"
    )?;
    match p.cold_wait {
        Duration::ZERO => writeln!(f, "    cold: clients other than the winner receive a miss at once")?,
        d => writeln!(
            f,
            "    cold: clients other than the winner wait {} for the value, then receive a miss; one more builds every {}",
            show(p.cold_limit),
            show(d)
        )?,
    }
    let leaves = |on_invalidate| match on_invalidate {
        OnInvalidate::Stale => "a stale value",
        OnInvalidate::Drop => "no value",
    };
    // With stale_for = "0s", the value that a delete leaves has expired.
    let on_delete = if p.stale_for.is_zero() { OnInvalidate::Drop } else { p.on_delete };
    writeln!(f, "    a bumped tag leaves {}, a delete leaves {}", leaves(p.on_tag), leaves(on_delete))?;
    if p.early_beta > 0.0 {
        writeln!(f, "    early refresh: by one client at a time (beta {})", p.early_beta)?;
    }
    if !p.near.is_zero() {
        let near = show(p.near);
        writeln!(
            f,
            "    near: hits are reused for {near}; changes through other sidecars are seen up to {near} later"
        )?;
    }
    if !p.max_ttl.is_zero() {
        writeln!(f, "    max_ttl: stale after {} at the latest, whatever its exptime", show(p.max_ttl))?;
    }
    Ok(())
}

/// The suffix for `stale_wait`.
fn after(wait: Duration) -> String {
    match wait {
        Duration::ZERO => String::new(),
        d => format!(", after waiting {} for the fresh value", show_duration(d)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(text: &str) -> String {
        let config = Config::read("test.toml", text, []).unwrap();
        Description(&config).to_string()
    }

    #[test]
    fn shares_of_the_keys_follow_the_weights() {
        let text = describe(
            r#"
            pools.main.servers = ["a:11211", { address = "b:11211", weight = 3, name = "bee" }]
            pools.dev.servers = ["embedded:64MiB"]
            pools.dev.distribution = "modula"
            pools.other.servers = ["a:11211"]
            pools.other.keyspace = "shop"
            pools.other.unknown_placement = "miss"
            "#,
        );
        assert_eq!(text.matches("  placement ").count(), 2, "{text}");
        for line in [
            ": warns while another sidecar of keyspace main uses one that is not adjacent\n",
            ": serves no guarded key while another sidecar of keyspace shop uses one that is not adjacent\n",
            "Pool main: 2 servers, distribution ketama, hash md5.",
            "   25.0% of the keys: a:11211\n",
            "   75.0% of the keys: b:11211, ring name \"bee\"\n",
            "Pool dev: 1 server, distribution modula, hash crc32.",
            "  100.0% of the keys: embedded:64MiB\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in:\n{text}");
        }
    }

    #[test]
    fn the_step_of_a_change_is_described_with_the_other_servers() {
        let describe = |keys: &str| describe(&format!("[pools.main]\nservers = [\"a:1\"]\n{keys}"));
        for (keys, line) in [
            ("next = [\"b:1\", \"c:1\"]", "step 1 of 4"),
            ("previous = [\"b:1\", \"c:1\"]", "step 2 of 4"),
            ("previous = [\"b:1\", \"c:1\"]\ntake_over = false", "step 3 of 4"),
        ] {
            let text = describe(keys);
            assert!(text.contains(line) && text.contains("servers:\n    b:1, c:1\n"), "{text}");
        }
        assert!(!describe("").contains("step"));
    }

    #[test]
    fn rules_are_described_in_order() {
        let text = describe(
            r#"
            tags.cache = "100ms"
            listen.flush_all = "refuse"
            [pools.main]
            servers = ["a:11211"]
            [[rules]]
            name = "sessions"
            match = "sess:*"
            kind = "raw"
            [[rules]]
            name = "pages"
            match = "blog:{blog}:*"
            tags = ["blog:{blog}", "all"]
            stale_for = "5m"
            stale_wait = "2s"
            early_beta = 1.5
            max_ttl = "1h"
            near = "50ms"
            meta_winner = "stale"
            [[rules]]
            name = "late"
            match = "sess:{id}"
            "#,
        );
        let mut rest = text.as_str();
        for part in [
            "on 127.0.0.1:11211; at most 10000 clients; 1 worker",
            "flush_all is refused",
            "http://127.0.0.1:9111/",
            "cached for 100ms",
            "Near cache: at most 64MiB.\n",
            "rules[0] sessions: sess:*, raw, in pool main\n",
            "rules[1] pages: blog:{blog}:*, guarded, in pool main\n    tags: blog:{blog}, all\n",
            "served for 300s after its expiry, after waiting 2s",
            "at most 60s; the lock of a dead sidecar expires after 5s",
            "wait 10s",
            "one more builds every 2s",
            "leaves a stale value, a delete leaves no value",
            "beta 1.5",
            "near: hits are reused for 50ms",
            "stale after 1h at the latest",
            "meta clients: the winner receives the old value with W",
            "all other keys: raw, in pool main",
            "Without protection in pool main: rule sessions (raw), keys that match no rule (raw).",
            "warning: rules[2] \"late\" never applies: rules[0] \"sessions\"",
        ] {
            let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} does not follow in:\n{text}"));
            rest = &rest[at + part.len()..];
        }
    }

    #[test]
    fn a_delete_leaves_no_value_without_stale_for() {
        let rule = |keys: &str| {
            let rule = "[[rules]]\nname = \"r\"\nmatch = \"*\"\nstale_for = \"0s\"\non_delete = \"stale\"\n";
            describe(&format!("[pools.main]\nservers = [\"a:11211\"]\n{rule}{keys}"))
        };
        let dropped = rule("on_tag = \"drop\"");
        for line in [
            "    stale: never served\n",
            "    a bumped tag leaves no value, a delete leaves no value\n",
            "\nwarning: rules[0] \"r\": on_delete = \"stale\" has no effect with stale_for = \"0s\"",
        ] {
            assert!(dropped.contains(line), "{line:?} is not in:\n{dropped}");
        }
        let kept = rule("on_tag = \"stale\"\nstale_wait = \"2s\"\ntags = [\"t\"]");
        for line in [
            "    stale: served until its expiry if a tag was bumped, after waiting 2s",
            "    a bumped tag leaves a stale value, a delete leaves no value\n",
        ] {
            assert!(kept.contains(line), "{line:?} is not in:\n{kept}");
        }
    }
}
