//! `kennel check FILE`: is it right, and what does it mean? With `--connect`: and are its servers?

use std::fmt::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::connect::{Found, connect};
use crate::app::workers;
use crate::config::units::{show_address, show_duration, show_size};
use crate::config::{self, Config, Rule, RuleKind};
use crate::guard::{OnInvalidate, Policy};
use crate::handshake::Requirements;
use crate::listener::FlushAll;
use crate::open_files::{self, Budget};
use crate::proxy::MetaWinner;
use crate::rule::Template;
use crate::upstream::{Distribution, Hash, OnError, PoolSpec};

/// Checks the file together with this process's `KENNEL_…` variables, as serving it would. All mistakes go to
/// stderr, with exit code 1; otherwise what is meant goes to stdout, with exit code 0. With `servers`, each server is then
/// connected to: those that are not as they must be go to stderr, with exit code 1.
pub fn run(path: &Path, servers: bool) -> ExitCode {
    let config = match Config::load(Some(path), config::environment()) {
        Ok(config) => config,
        Err(mistakes) => return out(&mut std::io::stderr(), &format!("{mistakes}\n"), ExitCode::FAILURE),
    };
    let mut config = config;
    // The limit is this process's, and a service may have another.
    config.warnings.extend(Budget::new(open_files::raise(), &config, workers(&config)).warning());
    let meaning = meaning(path, &config);
    if !servers {
        return out(&mut std::io::stdout(), &meaning, ExitCode::SUCCESS);
    }
    let (good, bad) = match connect(&config) {
        Ok(Found { good, bad }) => (good, bad),
        Err(error) => (String::new(), format!("cannot connect: {error}\n")),
    };
    let title = if good.is_empty() { "" } else { "\nServers:\n" };
    let code = out(&mut std::io::stdout(), &format!("{meaning}{title}{good}"), ExitCode::SUCCESS);
    if bad.is_empty() { code } else { out(&mut std::io::stderr(), &bad, ExitCode::FAILURE) }
}

/// A reader that went away (`kennel check f | head -1`) is no news about the file.
fn out(to: &mut impl std::io::Write, text: &str, code: ExitCode) -> ExitCode {
    match to.write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What the file at `path` means under `env`, or all that is wrong with it.
pub fn check(
    path: &Path,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<String, config::ConfigErrors> {
    Ok(meaning(path, &Config::load(Some(path), env)?))
}

fn meaning(path: &Path, config: &Config) -> String {
    format!("{} is right. It means:\n\n{}", path.display(), Meaning(config))
}

/// A configuration in plain words, some lines.
pub struct Meaning<'a>(pub &'a Config);

impl fmt::Display for Meaning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.0;
        listeners(f, config)?;
        for pool in &config.pools {
            f.write_char('\n')?;
            write_pool(f, pool)?;
        }
        let tags = &config.tags;
        let prefix = String::from_utf8_lossy(&tags.prefix);
        write!(
            f,
            "\nTags are the keys that begin with {prefix:?}, in pool {}; ",
            config.pools[tags.pool].name
        )?;
        if tags.replicas > 1 {
            f.write_str("two of its servers keep each; ")?;
        }
        match tags.cache {
            Duration::ZERO => writeln!(f, "their versions are read anew each time."),
            cache => writeln!(f, "a version that was read is used for {} more.", show_duration(cache)),
        }?;
        if config.uses_near_cache() {
            let memory = show_size(config.near.memory as u64);
            writeln!(f, "Hits that are kept near take at most {memory}.")?;
        }
        f.write_str("\nRules, of which the first that matches wins:\n")?;
        for (i, rule) in config.rules.iter().enumerate() {
            write_rule(f, i, rule, &config.pools[rule.pool].name)?;
        }
        f.write_str("  all other keys: raw, in pool main\n")?;
        for (i, warning) in config.warnings.iter().enumerate() {
            writeln!(f, "{}warning: {warning}", if i == 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

fn listeners(f: &mut fmt::Formatter<'_>, config: &Config) -> fmt::Result {
    let listen = &config.listen;
    let tcp = listen.tcp.iter().map(|e| format!("{}{}", e.at, asked(&e.terms)));
    let unix = listen
        .unix
        .iter()
        .map(|e| format!("unix:{} (mode {:04o}){}", e.at.display(), listen.unix_mode, asked(&e.terms)));
    let all = tcp.chain(unix).collect::<Vec<_>>().join(", ");
    let workers = match listen.workers {
        0 => "one worker per core, at most 4".to_owned(),
        1 => "1 worker".to_owned(),
        n => format!("{n} workers"),
    };
    let most = listen.max_connections;
    writeln!(f, "Clients come in at {all}: at most {most} at a time, on {workers}.")?;
    if listen.flush_all == FlushAll::Refuse {
        writeln!(f, "Their flush_all is refused.")?;
    }
    let buffered = show_size(listen.max_buffered as u64);
    match listen.idle_timeout {
        Duration::ZERO => write!(f, "None is closed for being idle"),
        idle => write!(f, "One that does nothing for {} is closed", show_duration(idle)),
    }?;
    writeln!(f, "; all of them together may make it hold {buffered}.")?;
    match &config.admin {
        Some(address) => writeln!(f, "Metrics, health and the page are at http://{address}/."),
        None => writeln!(f, "Metrics, health and the page are turned off."),
    }
}

/// What a client must show, behind where it comes in.
fn asked(terms: &Requirements) -> &'static str {
    let certificate = terms.tls.as_ref().map(|tls| tls.client_ca.is_some());
    match (certificate, terms.auth_file.is_some()) {
        (None, false) => "",
        (None, true) => " with a password",
        (Some(false), false) => " over TLS",
        (Some(false), true) => " over TLS with a password",
        (Some(true), false) => " over TLS with a certificate",
        (Some(true), true) => " over TLS with a certificate and a password",
    }
}

fn write_pool(f: &mut fmt::Formatter<'_>, pool: &PoolSpec) -> fmt::Result {
    let distribution = match pool.distribution {
        Distribution::Ketama => "ketama",
        Distribution::Modula => "modula",
        Distribution::Jump => "jump",
        Distribution::Rendezvous => "rendezvous",
    };
    let hash = match pool.hash {
        Hash::Md5 => "md5",
        Hash::Crc32 => "crc32",
        Hash::Crc32a => "crc32a",
        Hash::Fnv1a32 => "fnv1a_32",
    };
    let on_error = match pool.on_error {
        OnError::Miss => "a miss",
        OnError::Error => "an error",
    };
    let (n, s) = (pool.servers.len(), if pool.servers.len() == 1 { "" } else { "s" });
    writeln!(f, "Pool {}: {n} server{s}, keys spread by {distribution} ({hash}).", pool.name)?;
    let (connect, request) = (show_duration(pool.connect_timeout), show_duration(pool.request_timeout));
    writeln!(f, "  {connect} to connect, {request} to answer; a get on a dead server is {on_error}.")?;
    let total: f64 = pool.servers.iter().map(|s| f64::from(s.weight)).sum();
    for server in &pool.servers {
        let address = show_address(&server.address);
        let name = server.name.as_ref().map(|n| format!(", on the ring as {n:?}")).unwrap_or_default();
        let share = 100.0 * f64::from(server.weight) / total;
        writeln!(f, "  {share:5.1}% of the keys: {address}{name}")?;
    }
    Ok(())
}

fn write_rule(f: &mut fmt::Formatter<'_>, i: usize, rule: &Rule, pool: &str) -> fmt::Result {
    let Rule { name, pattern, kind, invalidates, .. } = rule;
    match kind {
        RuleKind::Raw => writeln!(f, "  rules[{i}] {name}: keys like {pattern} are raw, in pool {pool}")?,
        RuleKind::Guarded { policy, tags, tags_in_key, meta_winner } => {
            writeln!(f, "  rules[{i}] {name}: keys like {pattern} are guarded, in pool {pool}")?;
            write_tags(f, "tags", tags)?;
            if *tags_in_key {
                writeln!(f, "    more tags: before the key, as in @tags:NAME,NAME:KEY")?;
            }
            write_policy(f, policy)?;
            if *meta_winner == MetaWinner::Stale {
                writeln!(
                    f,
                    "    meta clients: the one rebuilding is given the old value with W, whatever it asked with"
                )?;
            }
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
            writeln!(f, "    stale: served until its expiry, if a tag was bumped{}", after(p.stale_wait))?
        }
        (d, _) => writeln!(f, "    stale: served for {} after its expiry{}", show(d), after(p.stale_wait))?,
    }
    let (lock, most) = (show(p.lock_ttl), show(p.max_rebuild));
    writeln!(f, "    rebuild: one client, within {most}; a dead sidecar's lock lasts {lock}")?;
    match p.cold_wait {
        Duration::ZERO => writeln!(f, "    cold: everyone but the one rebuilding is told a miss at once")?,
        d => writeln!(f, "    cold: others wait {} for the one rebuilding, then are told a miss", show(d))?,
    }
    let leaves = |what| match what {
        OnInvalidate::Stale => "a value to serve as stale",
        OnInvalidate::Drop => "nothing",
    };
    // Without time to be stale in, whatever a delete is to leave has ended.
    let on_delete = if p.stale_for.is_zero() { OnInvalidate::Drop } else { p.on_delete };
    writeln!(f, "    a bumped tag leaves {}, a delete leaves {}", leaves(p.on_tag), leaves(on_delete))?;
    if p.early_beta > 0.0 {
        writeln!(f, "    refreshed early, by one client at a time (beta {})", p.early_beta)?;
    }
    if !p.near.is_zero() {
        let near = show(p.near);
        writeln!(
            f,
            "    near: a hit is served again for {near}; other sidecars' changes are seen that much later"
        )?;
    }
    if !p.max_ttl.is_zero() {
        writeln!(f, "    stale after {} at the latest, whatever exptime it is stored with", show(p.max_ttl))?;
    }
    Ok(())
}

fn after(wait: Duration) -> String {
    match wait {
        Duration::ZERO => String::new(),
        d => format!(", once {} of waiting for the fresh value are over", show_duration(d)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(text: &str) -> String {
        let config = Config::read("test.toml", text, []).unwrap();
        Meaning(&config).to_string()
    }

    #[test]
    fn shares_of_the_keys_follow_the_weights() {
        let said = meaning(
            r#"
            pools.main.servers = ["a:11211", { address = "b:11211", weight = 3, name = "bee" }]
            pools.dev.servers = ["embedded:64MiB"]
            pools.dev.distribution = "modula"
            "#,
        );
        for line in [
            "Pool main: 2 servers, keys spread by ketama (md5).",
            "   25.0% of the keys: a:11211\n",
            "   75.0% of the keys: b:11211, on the ring as \"bee\"\n",
            "Pool dev: 1 server, keys spread by modula (crc32).",
            "  100.0% of the keys: embedded:64MiB\n",
        ] {
            assert!(said.contains(line), "{line:?} is not in:\n{said}");
        }
    }

    #[test]
    fn rules_are_told_in_order_with_what_they_do() {
        let said = meaning(
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
        let mut rest = said.as_str();
        for part in [
            "at 127.0.0.1:11211: at most 10000",
            "flush_all is refused",
            "http://127.0.0.1:9111/",
            "used for 100ms more",
            "Hits that are kept near take at most 64MiB.\n",
            "rules[0] sessions: keys like sess:* are raw, in pool main\n",
            "rules[1] pages: keys like blog:{blog}:* are guarded, in pool main\n    tags: blog:{blog}, all\n",
            "served for 300s after its expiry, once 2s of waiting",
            "within 60s; a dead sidecar's lock lasts 5s",
            "wait 2s",
            "leaves a value to serve as stale, a delete leaves nothing",
            "beta 1.5",
            "near: a hit is served again for 50ms",
            "stale after 1h at the latest",
            "meta clients: the one rebuilding is given the old value with W",
            "all other keys: raw, in pool main",
            "warning: rules[2] \"late\" is never reached: rules[0] \"sessions\"",
        ] {
            let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} does not follow in:\n{said}"));
            rest = &rest[at + part.len()..];
        }
    }

    #[test]
    fn what_is_never_stale_is_not_said_to_be_left_as_stale() {
        let rule = |keys: &str| {
            let rule = "[[rules]]\nname = \"r\"\nmatch = \"*\"\nstale_for = \"0s\"\non_delete = \"stale\"\n";
            meaning(&format!("[pools.main]\nservers = [\"a:11211\"]\n{rule}{keys}"))
        };
        let dropped = rule("on_tag = \"drop\"");
        for line in [
            "    stale: never served\n",
            "    a bumped tag leaves nothing, a delete leaves nothing\n",
            "\nwarning: rules[0] \"r\": on_delete = \"stale\" does nothing with stale_for = \"0s\"",
        ] {
            assert!(dropped.contains(line), "{line:?} is not in:\n{dropped}");
        }
        let kept = rule("on_tag = \"stale\"\nstale_wait = \"2s\"\ntags = [\"t\"]");
        for line in [
            "    stale: served until its expiry, if a tag was bumped, once 2s of waiting",
            "    a bumped tag leaves a value to serve as stale, a delete leaves nothing\n",
        ] {
            assert!(kept.contains(line), "{line:?} is not in:\n{kept}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_a_clear_mistake() {
        let mistakes = check(Path::new("/nowhere/kennel.toml"), []).unwrap_err().to_string();
        assert!(mistakes.starts_with("/nowhere/kennel.toml: cannot be read: No such file"), "{mistakes}");
        assert_eq!(run(Path::new("/nowhere/kennel.toml"), false), ExitCode::FAILURE);
    }

    #[test]
    fn the_sidecar_that_is_shipped_passes() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/sidecar.toml"));
        let said = check(path, []).unwrap();
        assert_eq!(said.matches("33.3% of the keys").count(), 3, "{said}");
        assert_eq!(run(path, false), ExitCode::SUCCESS);
        assert!(said.contains("tags: blog:{blog}, pages") && !said.contains("warning"), "{said}");
    }
}
