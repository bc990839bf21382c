//! From the file as parsed to the settings: calls the checks of each table and collects every error.

use std::ops::RangeInclusive;
use std::time::Duration;

use config::Value;

use super::addresses::overlap;
use super::discovery::discovery;
use super::environment::Overrides;
use super::errors::ConfigErrors;
use super::file::{self, ConfigFile, Section};
use super::lines::Lines;
use super::listen::{Listeners, absolute_path, listen, requirements, valid};
use super::pools::{pool_index, pools};
use super::rules::rules;
use super::settings::{Config, ControlPath, Log, Near, Reload, Tags};
use super::units;
use super::validator::{
    KeyPath, MINUTE, Validator, automatic_size, boolean, duration, integer, keys, text, word,
};
use crate::admin::AdminSpec;
use crate::auth::Token;
use crate::listener::ListenAddress;
use crate::proxy::RESERVED;
use crate::trace::ShownKeys;
use crate::upstream::PoolSpec;

/// The allowed lengths of `log.keys = "prefix:…"`.
const SHOWN_PREFIX: RangeInclusive<usize> = 0..=250;
/// The allowed values of `near.memory`.
const NEAR_MEMORY: RangeInclusive<u64> = 1 << 20..=1 << 40;

/// Validates a whole configuration.
///
/// # Errors
/// All errors, including those of the environment.
pub(super) fn validate(
    file: &str,
    memory: Option<u64>,
    lines: Lines,
    root: ConfigFile,
    overrides: Overrides,
) -> Result<Config, ConfigErrors> {
    let Overrides { variables, errors, warnings } = overrides;
    let mut validator = Validator { file, memory, lines, variables, errors, warnings };
    let v = &mut validator;
    v.unknown(&KeyPath::top(), &root.rest, file::ROOT);
    let reload = reload(v, &root.reload);
    let log = log(v, root.log);
    let (listen, listeners) = listen(v, root.listen);
    let control = control(v, &root.admin, &listeners);
    let admin = admin(v, root.admin, &listeners);
    let discovery = discovery(v, root.discovery);
    let nameservers = discovery.as_ref().map(|discovery| &discovery.nameservers[..]).unwrap_or_default();
    let (specs, names) = pools(v, root.pools, &listeners, nameservers);
    let tags = tags(v, root.tags, &names, specs.as_deref());
    let near = near(v, root.near);
    let observe_all = observe(v, root.observe);
    let rules = rules(v, root.rules, &names, specs.as_deref(), tags.as_ref());
    let Validator { errors, warnings, .. } = validator;
    match (reload, log, listen, admin, control, specs, tags, near, observe_all, discovery, rules) {
        (
            Some(reload),
            Some(log),
            Some(listen),
            Some(admin),
            Some(control),
            Some(pools),
            Some(tags),
            Some(near),
            Some(observe_all),
            Some(discovery),
            Some(rules),
        ) if errors.is_empty() => Ok(Config {
            reload,
            log,
            listen,
            admin,
            control,
            pools,
            tags,
            near,
            observe_all,
            discovery,
            rules,
            warnings,
        }),
        _ => Err(ConfigErrors::new(errors)),
    }
}

/// `reload`
fn reload(v: &mut Validator<'_>, value: &Option<Value>) -> Option<Reload> {
    let words = [("signal", Reload::Signal), ("watch", Reload::Watch)];
    v.value(&KeyPath::top(), "reload", value, Reload::Signal, word(&words))
}

/// `[log]`
fn log(v: &mut Validator<'_>, section: Section<file::Log>) -> Option<Log> {
    let table = v.table("log", section)?;
    let at = KeyPath::table("log".to_owned());
    v.unknown(&at, &table.rest, keys(file::Log::KEYS));
    let level = v.value(&at, "level", &table.level, "info".to_owned(), |value| {
        let directives = text(value)?;
        crate::log::check_filter(directives).map_err(|why| {
            let levels = crate::log::LEVELS.join(", ");
            format!("must be a level ({levels}) or a list by module, as \"info,kennel::guard=debug\": {why}")
        })?;
        Ok(directives.to_owned())
    });
    let slow =
        v.value(&at, "slow", &table.slow, Duration::from_millis(100), duration(Duration::ZERO..=MINUTE));
    let keys = v.value(&at, "keys", &table.keys, ShownKeys::Full, |value| shown_keys(text(value)?));
    Some(Log {
        level: level?,
        slow: slow.map(|slow| Some(slow).filter(|slow| !slow.is_zero()))?,
        keys: keys?,
    })
}

/// `"full"`, `"hash"` or `"prefix:N"`.
fn shown_keys(text: &str) -> Result<ShownKeys, String> {
    let prefix = || text.strip_prefix("prefix:")?.parse().ok().filter(|length| SHOWN_PREFIX.contains(length));
    match (text, prefix()) {
        ("full", _) => Ok(ShownKeys::Full),
        ("hash", _) => Ok(ShownKeys::Hash),
        (_, Some(length)) => Ok(ShownKeys::Prefix(length)),
        _ => Err(format!(
            "must be \"full\", \"hash\", or \"prefix:\" and a number of bytes from {} to {}",
            SHOWN_PREFIX.start(),
            SHOWN_PREFIX.end()
        )),
    }
}

/// `[admin]`. The inner `None` means that the admin listener is turned off.
fn admin(
    v: &mut Validator<'_>,
    section: Section<file::Admin>,
    listeners: &Listeners,
) -> Option<Option<AdminSpec>> {
    let table = v.table("admin", section)?;
    let at = KeyPath::table("admin".to_owned());
    v.unknown(&at, &table.rest, keys(file::Admin::KEYS));
    let default = Some(ListenAddress { host: "127.0.0.1".to_owned(), port: 9111 });
    let address = v.value(&at, "listen", &table.listen, default, |value| match text(value)? {
        "" => Ok(None),
        address => units::listen_address(address).map(Some),
    })?;
    let mut tcp = valid(&listeners.tcp);
    let conflict = address.as_ref().and_then(|a| tcp.find(|(_, listener)| overlap(a, &listener.address)));
    if let Some((i, other)) = conflict {
        let message = format!(
            "conflicts with listen.tcp[{i}] ({:?}): use another port, or \"\" to turn the admin listener off",
            other.address.to_string()
        );
        v.error(&at, "listen", table.listen.as_ref(), message);
        return None;
    }
    let requirements = requirements(v, &at, &table.tls, &table.auth_file);
    let token_file = v.value(&at, "token_file", &table.token_file, None, |value| {
        let path = absolute_path(value)?;
        path.as_deref().map_or(Ok(()), |path| Token::read(path).map(drop))?;
        Ok(path)
    });
    let explain = v.value(&at, "explain", &table.explain, true, boolean);
    let trace = v.value(&at, "trace", &table.trace, true, boolean);
    let hot = v.value(&at, "hot", &table.hot, true, boolean);
    let (requirements, token_file) = (requirements?, token_file?);
    let (explain, trace, hot) = (explain?, trace?, hot?);
    Some(address.map(|listen| AdminSpec { listen, requirements, token_file, explain, trace, hot }))
}

/// `admin.control`
fn control(
    v: &mut Validator<'_>,
    section: &Section<file::Admin>,
    listeners: &Listeners,
) -> Option<ControlPath> {
    let at = KeyPath::table("admin".to_owned());
    let value = if let Section::Present(table) = section { &table.control } else { &None };
    let control = v.value(&at, "control", value, ControlPath::Automatic, |value| match text(value)? {
        "auto" => Ok(ControlPath::Automatic),
        "" => Ok(ControlPath::Off),
        path => units::unix_path(path).map(ControlPath::At),
    })?;
    let conflict = valid(&listeners.unix).find(|(_, unix)| control == ControlPath::At(unix.address.clone()));
    if let Some((i, _)) = conflict {
        v.error(&at, "control", value.as_ref(), format!("is listen.unix[{i}] too: use another path"));
        return None;
    }
    Some(control)
}

/// `[tags]`
fn tags(
    v: &mut Validator<'_>,
    section: Section<file::Tags>,
    pools: &[String],
    specs: Option<&[PoolSpec]>,
) -> Option<Tags> {
    let table = v.table("tags", section)?;
    let at = KeyPath::table("tags".to_owned());
    v.unknown(&at, &table.rest, keys(file::Tags::KEYS));
    let prefix = v.value(&at, "prefix", &table.prefix, b"@tag:".to_vec(), |value| {
        let prefix = text(value)?.as_bytes();
        if !(1..=32).contains(&prefix.len()) || prefix.iter().any(|b| b" \r\n\0".contains(b)) {
            return Err("must be 1 to 32 bytes that are legal in a key, without spaces: \"@tag:\"".to_owned());
        }
        let collides = |reserved: &[u8]| prefix.starts_with(reserved) || reserved.starts_with(prefix);
        if let Some((reserved, what)) = RESERVED.into_iter().find(|(reserved, _)| collides(reserved)) {
            let reserved = String::from_utf8_lossy(reserved);
            return Err(format!(
                "must not begin with {reserved:?} or be a prefix of it: tag keys would collide with {what}"
            ));
        }
        Ok(prefix.to_vec())
    });
    let cache = v.value(&at, "cache", &table.cache, Duration::ZERO, duration(Duration::ZERO..=MINUTE));
    let pool = pool_index(v, &at, &table.pool, pools);
    let replicas = v.value(&at, "replicas", &table.replicas, 1, integer(1..=2))? as usize;
    let pool = pool?;
    let specs = specs.and_then(|specs| specs.get(pool)).filter(|spec| spec.lookups().next().is_none());
    let servers = specs.map_or(replicas, |spec| {
        spec.other.iter().map(|other| other.servers.len()).chain([spec.servers.len()]).min().unwrap_or(0)
    });
    if servers < replicas {
        let message = format!("must not exceed the number of servers of pool {:?}, which is 1", pools[pool]);
        v.error(&at, "replicas", table.replicas.as_ref(), message);
        return None;
    }
    Some(Tags { prefix: prefix?, cache: cache?, pool, replicas })
}

/// `[observe]`: whether all raw keys are observed.
fn observe(v: &mut Validator<'_>, section: Section<file::Observe>) -> Option<bool> {
    let table = v.table("observe", section)?;
    let at = KeyPath::table("observe".to_owned());
    v.unknown(&at, &table.rest, keys(file::Observe::KEYS));
    v.value(&at, "all", &table.all, false, boolean)
}

/// `[near]`
fn near(v: &mut Validator<'_>, section: Section<file::Near>) -> Option<Near> {
    let table = v.table("near", section)?;
    let at = KeyPath::table("near".to_owned());
    v.unknown(&at, &table.rest, keys(file::Near::KEYS));
    let (automatic, size) = automatic_size(NEAR_MEMORY, 16, 64 << 20, v.memory);
    let memory = v.value(&at, "memory", &table.memory, automatic, size)?;
    Some(Near { memory: memory as usize })
}
