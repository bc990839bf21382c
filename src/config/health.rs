//! `[pools.<name>.health]`: when a server is too slow to be used.

use std::time::Duration;

use config::{Value, ValueKind};
use serde::Deserialize;

use super::file;
use super::validator::{KeyPath, MINUTE, Validator, boolean, duration, integer, keys};
use crate::upstream::HealthSpec;

const MS: Duration = Duration::from_millis(1);

/// The table of the pool at `pool`, whose `request_timeout` is given.
pub(super) fn health(
    v: &mut Validator<'_>,
    pool: &KeyPath,
    value: Option<&Value>,
    request_timeout: Duration,
) -> Option<HealthSpec> {
    let table = match value {
        None => file::Health::default(),
        Some(value) if matches!(value.kind, ValueKind::Table(_)) => {
            file::Health::deserialize(value.clone()).unwrap_or_default() // cannot fail for a table
        }
        Some(value) => {
            v.error(pool, "health", Some(value), "must be a table, such as [pools.main.health]");
            return None;
        }
    };
    let at = pool.inside("health");
    v.unknown(&at, &table.rest, keys(file::Health::KEYS));
    let d = HealthSpec::for_timeout(request_timeout);
    let share = |value: &Value| match value.kind {
        ValueKind::Float(share) if share > 0.0 && share <= 1.0 => Ok(share),
        ValueKind::I64(1) => Ok(1.0),
        _ => Err("must be a number above 0, at most 1: 0.5".to_owned()),
    };
    let enabled = v.value(&at, "enabled", &table.enabled, d.enabled, boolean);
    let failures = v.value(&at, "failures", &table.failures, i64::from(d.failures), integer(1..=1000));
    let slow = v.value(&at, "slow", &table.slow, d.slow, duration(MS..=MINUTE));
    let slow_share = v.value(&at, "slow_share", &table.slow_share, d.slow_share, share);
    let min_requests = v.value(&at, "min_requests", &table.min_requests, 10, integer(1..=1_000_000));
    let pause = || duration(10 * MS..=MINUTE);
    let interval = v.value(&at, "probe_interval", &table.probe_interval, d.probe_interval, pause());
    let longest = d.probe_max_interval.max(interval.unwrap_or_default());
    let longest = v.value(&at, "probe_max_interval", &table.probe_max_interval, longest, pause());
    let recover_probes = v.value(&at, "recover_probes", &table.recover_probes, 3, integer(1..=100));
    if slow? > request_timeout {
        let message = "must not be longer than request_timeout: a request times out first";
        v.error(&at, "slow", table.slow.as_ref(), message);
        return None;
    }
    if longest? < interval? {
        let message = "must not be shorter than probe_interval";
        v.error(&at, "probe_max_interval", table.probe_max_interval.as_ref(), message);
        return None;
    }
    Some(HealthSpec {
        enabled: enabled?,
        failures: failures? as u32,
        slow: slow?,
        slow_share: slow_share?,
        min_requests: min_requests? as u64,
        probe_interval: interval?,
        probe_max_interval: longest?,
        recover_probes: recover_probes? as u32,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::Config;
    use crate::upstream::HealthSpec;

    fn read(health: &str) -> Result<HealthSpec, String> {
        let pool = "[pools.main]\nservers = [\"a:1\"]\nrequest_timeout = \"400ms\"\n";
        let config = Config::read("k.toml", &format!("{pool}{health}"), []);
        config.map(|config| config.pools[0].health).map_err(|errors| errors.to_string())
    }

    #[test]
    fn slow_is_half_of_request_timeout_unless_set() {
        let ms = Duration::from_millis;
        assert_eq!(read("").unwrap(), HealthSpec::for_timeout(ms(400)));
        let set = read("[pools.main.health]\nslow = \"300ms\"\nslow_share = 1\nenabled = false").unwrap();
        assert_eq!((set.slow, set.slow_share, set.enabled), (ms(300), 1.0, false));
    }

    #[test]
    fn values_that_contradict_each_other_or_are_unknown_are_errors() {
        for (table, expected) in [
            ("slow = \"401ms\"", "must not be longer than request_timeout"),
            (
                "probe_interval = \"2s\"\nprobe_max_interval = \"1s\"",
                "must not be shorter than probe_interval",
            ),
            ("slow_share = 0", "must be a number above 0, at most 1"),
            ("slow_share = 1.5", "must be a number above 0, at most 1"),
            ("failures = 0", "failures"),
            ("slwo = 1", "slwo"),
        ] {
            let errors = read(&format!("[pools.main.health]\n{table}")).unwrap_err();
            assert!(errors.contains("pools.main.health.") && errors.contains(expected), "{errors}");
        }
        assert!(read("health = 1").unwrap_err().contains("must be a table"));
    }
}
