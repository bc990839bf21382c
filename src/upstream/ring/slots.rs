//! Numbered slots: each server has as many as its weight.

use super::identity::identity;
use crate::upstream::spec::ServerSpec;

/// Every server repeated `weight` times, stored as the end of each server's run.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    pub(super) runs: Vec<(u64, usize)>,
}

impl Slots {
    /// Servers in the order of the configuration.
    pub(super) fn listed(servers: &[ServerSpec]) -> Slots {
        Slots::new(servers, 0..servers.len())
    }

    /// The order of twemproxy's modula: shorter identities first, those of equal length by their bytes.
    pub(super) fn sorted(servers: &[ServerSpec]) -> Slots {
        let names: Vec<_> =
            servers.iter().enumerate().map(|(index, server)| identity(index, server)).collect();
        let mut order: Vec<_> = (0..servers.len()).collect();
        order.sort_by_key(|index| (names[*index].len(), &names[*index]));
        Slots::new(servers, order)
    }

    fn new(servers: &[ServerSpec], order: impl IntoIterator<Item = usize>) -> Slots {
        let run = |end: &mut u64, index: usize| {
            *end += u64::from(servers[index].weight);
            Some((*end, index))
        };
        Slots { runs: order.into_iter().scan(0, run).collect() }
    }

    pub(super) fn count(&self) -> u64 {
        self.runs[self.runs.len() - 1].0
    }

    pub(super) fn server(&self, slot: u64) -> usize {
        self.runs[self.runs.partition_point(|(end, _)| *end <= slot)].1
    }

    /// The server of a slot among those of the other servers; `slot` selects one, given how many there are.
    pub(super) fn server_without(&self, without: &[usize], slot: impl FnOnce(u64) -> u64) -> usize {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|(end, _)| *end));
        let runs = starts.zip(&self.runs).map(|(start, (end, server))| (end - start, *server));
        let others = || runs.clone().filter(|(_, server)| !without.contains(server));
        let mut slot = slot(others().map(|(weight, _)| weight).sum::<u64>().max(1));
        let found = others().find(|(weight, _)| {
            let here = slot < *weight;
            slot = slot.saturating_sub(*weight);
            here
        });
        found.map_or(0, |(_, server)| server)
    }
}

/// Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm" (2014). Only the last slot can be removed
/// without moving keys of the others.
pub(super) fn jump(mut key: u64, slots: u64) -> u64 {
    let (mut slot, mut next) = (0, 0);
    while next < slots {
        slot = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((slot + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as u64;
    }
    slot
}
