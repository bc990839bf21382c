//! The result of one run.

use super::database::LoadChange;
use super::history::Figures;

/// One run, as measured by the clients, the database and the sidecars.
pub(super) struct Measurement {
    /// What the clients saw.
    pub(super) clients: Figures,
    /// The concurrent rebuilds at the database.
    pub(super) load: Vec<LoadChange>,
    /// The most concurrent rebuilds of one key.
    pub(super) most_of_one: usize,
    /// Stale values that the sidecars served.
    pub(super) stale: usize,
}
