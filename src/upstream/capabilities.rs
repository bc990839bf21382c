//! Which of the features that the guard needs a server has.

use std::fmt;

/// A feature that the guard needs and the server lacks, or is not known to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingFeature {
    /// `mg` is not the one of memcached 1.6.0 and later.
    Meta,
    /// `mg … N` creates no item on a miss.
    Vivify,
    /// All CAS values are 0.
    Cas,
    /// `ms` has another syntax.
    MetaSet,
    /// `ms` ignores its mode or CAS condition.
    ConditionalSet,
    /// `md` ignores its CAS condition.
    ConditionalDelete,
    /// `md … I` does not mark the item as stale.
    StaleMark,
    /// The probe was inconclusive. Until one is conclusive, no key is guarded on this server.
    Unknown(ProbeFailure),
}

/// Why a probe was inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeFailure {
    /// The server has no memory for the probe's key.
    Full,
    /// The server responded with another `SERVER_ERROR`.
    Refused,
    /// The probe's keys vanished or changed during the probe.
    Lost,
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MissingFeature::Meta => "it has no meta commands",
            MissingFeature::Vivify => "its mg does not create an item on a miss",
            MissingFeature::Cas => "it has no CAS: it was started with -C",
            MissingFeature::MetaSet => "its ms has the syntax of memcached 1.6.9 and older",
            MissingFeature::ConditionalSet => "its ms does not compare CAS values",
            MissingFeature::ConditionalDelete => {
                "its md does not compare CAS values, as in memcached 1.6.10 to 1.6.12"
            }
            MissingFeature::StaleMark => "its md does not mark items as stale",
            MissingFeature::Unknown(ProbeFailure::Full) => {
                "it is out of memory: its features are not known yet"
            }
            MissingFeature::Unknown(ProbeFailure::Refused) => {
                "it responds with SERVER_ERROR: its features are not known yet"
            }
            MissingFeature::Unknown(ProbeFailure::Lost) => {
                "it loses keys at once: its features are not known yet"
            }
        })
    }
}

/// What a probe found out about a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Its version, such as `1.6.18`.
    pub version: String,
    /// The feature whose absence keeps its keys from being guarded, if any.
    pub missing_feature: Option<MissingFeature>,
    /// Its `item_size_max` in bytes, if reported.
    pub item_size: Option<usize>,
}

impl Capabilities {
    /// Whether an `md` with `I` may keep the CAS of the item: since 1.6.27.
    pub fn keeps_cas(&self) -> bool {
        let mut numbers = self.version.split('.').map_while(|number| number.parse::<u32>().ok());
        [numbers.next(), numbers.next(), numbers.next()] >= [Some(1), Some(6), Some(27)]
    }
}
