//! What the table knows of one key, for operators.

use crate::guard::inputs::Now;

use super::Outages;

/// What the table knows of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutageLook {
    /// The clients that build it.
    pub builders: usize,
    /// The requests that wait for them.
    pub waiters: usize,
    /// For how many milliseconds a value is kept, and its bytes.
    pub kept: Option<(u64, usize)>,
}

impl<W> Outages<W> {
    /// What is known of this key, for operators. Changes nothing.
    pub fn look(&self, key: &[u8], now: Now) -> Option<OutageLook> {
        let state = self.keys.get(key)?;
        let builders = state.builders.iter().filter(|builder| now.mono < builder.until).count();
        let kept = state.kept.as_ref().filter(|kept| now.mono < kept.until);
        let kept = kept.map(|kept| (kept.until - now.mono, kept.value.payload.len()));
        Some(OutageLook { builders, waiters: state.waiters.len(), kept })
    }
}
