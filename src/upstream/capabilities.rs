//! What a server can do, as far as Kennel has to know.

use std::fmt;

/// What a server cannot do, or is not known to do, though the guard needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingFeature {
    /// It answers `mg` as no memcached since 1.6.0 does.
    Meta,
    /// `mg … N` leaves no item for the first who asks.
    Vivify,
    /// All CAS values are 0.
    Cas,
    /// `ms` has another syntax.
    MetaSet,
    /// `ms` stores though the CAS is another or the item is there, or does not though it should.
    ConditionalSet,
    /// `md` deletes or marks though the CAS is another, or does not though it should.
    ConditionalDelete,
    /// `md … I` leaves an item that is not stale.
    StaleMark,
    /// What it can do is not known, for this reason. Until it is, nothing is guarded there.
    Unknown(ProbeFailure),
}

/// Why a probe could not tell what a server can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeFailure {
    /// The server has no memory for the probe's key.
    Full,
    /// The server answers with another `SERVER_ERROR`.
    Refused,
    /// The probe's keys are gone, or changed, before the probe is over.
    Lost,
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MissingFeature::Meta => "it does not know the meta commands",
            MissingFeature::Vivify => "its mg leaves no item for the first who asks",
            MissingFeature::Cas => "it has no CAS: it was started with -C",
            MissingFeature::MetaSet => {
                "it does not know ms as newer ones do: memcached 1.6.9 and older have another syntax"
            }
            MissingFeature::ConditionalSet => "its ms does not compare CAS values",
            MissingFeature::ConditionalDelete => {
                "its md does not compare CAS values, as in memcached 1.6.10 to 1.6.12"
            }
            MissingFeature::StaleMark => "its md does not mark items as stale",
            MissingFeature::Unknown(ProbeFailure::Full) => "it is full: what it can do is not known yet",
            MissingFeature::Unknown(ProbeFailure::Refused) => {
                "it answers SERVER_ERROR: what it can do is not known yet"
            }
            MissingFeature::Unknown(ProbeFailure::Lost) => {
                "it loses keys at once: what it can do is not known yet"
            }
        })
    }
}

/// What a server has shown of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// As it calls itself: `1.6.18`.
    pub version: String,
    /// Why its keys cannot be guarded, if so.
    pub missing_feature: Option<MissingFeature>,
    /// Its `item_size_max`, if it says so.
    pub item_size: Option<usize>,
}
