//! `[pools.<name>.repair]`: how fast lost copies are stored again.

use config::{Value, ValueKind};
use serde::Deserialize;

use super::file;
use super::validator::{KeyPath, Validator, integer, keys};

/// The default: a million values that a server has lost are stored again in about eight minutes.
const RATE: i64 = 2_000;

/// Copies per second, by the table of the pool at `pool`.
pub(super) fn repair_rate(v: &mut Validator<'_>, pool: &KeyPath, value: Option<&Value>) -> Option<u32> {
    let table = match value {
        None => file::Repair::default(),
        Some(value) if matches!(value.kind, ValueKind::Table(_)) => {
            file::Repair::deserialize(value.clone()).unwrap_or_default() // cannot fail for a table
        }
        Some(value) => {
            v.error(pool, "repair", Some(value), "must be a table, such as [pools.main.repair]");
            return None;
        }
    };
    let at = pool.inside("repair");
    v.unknown(&at, &table.rest, keys(file::Repair::KEYS));
    let rate = v.value(&at, "rate", &table.rate, RATE, integer(0..=1_000_000))?;
    u32::try_from(rate).ok()
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn copies_are_repaired_at_a_rate_and_zero_means_on_demand() {
        let read = |repair: &str| {
            let pool = "servers = [\"a:1\", \"b:1\", \"c:1\"]";
            Config::read("k.toml", &format!("[pools.main]\n{pool}\n{repair}"), [])
        };
        let rate = |repair: &str| read(repair).unwrap().pools[0].repair_rate;
        assert_eq!(
            [rate(""), rate("repair.rate = 0"), rate("repair.rate = 1_000_000")],
            [2_000, 0, 1_000_000]
        );
        for bad in ["repair = 7", "repair.rate = -1", "repair.rate = 1_000_001", "repair.rat = 1"] {
            let errors = read(bad).unwrap_err().to_string();
            assert!(errors.contains("pools.main.repair"), "{bad}: {errors}");
        }
    }
}
