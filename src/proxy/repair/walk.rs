//! The copies among the keys of a server, and where the other copy of each should be.

use crate::failover::View;
use crate::kinds::{INFIX, ItemKey, Side, copy_key, split_copy_key};
use crate::proxy::key::{KeyClass, StructureKey};
use crate::proxy::pipeline::Proxy;

/// What is looked for: copies of a pool's items whose other copy belongs on one of these servers.
pub(super) struct Wanted {
    pub(super) pool: usize,
    /// Where the keys of each server are.
    pub(super) views: Vec<View>,
    /// For each server, whether copies of each place may be missing there.
    pub(super) due: Vec<Vec<bool>>,
}

/// A copy on a server.
pub(super) struct FoundCopy {
    pub(super) structure: StructureKey,
    /// The item, without what the key of a copy has more.
    pub(super) item: ItemKey,
    /// The server that should have the other copy, and its key there.
    pub(super) other: (usize, ItemKey),
}

impl Wanted {
    /// Nothing is missing anywhere.
    pub(super) fn nothing(pool: usize, views: Vec<View>) -> Wanted {
        let due = vec![vec![false; views.len()]; views.len()];
        Wanted { pool, views, due }
    }

    /// Copies of these places may be missing on this server.
    pub(super) fn add(&mut self, server: usize, places: &[usize]) {
        places.iter().for_each(|home| self.due[server][*home] = true);
    }

    /// The servers whose keys must be walked: copies of what is missing may be on them.
    pub(super) fn sources(&self) -> Vec<usize> {
        let is_wanted_elsewhere =
            |at: usize| self.due.iter().enumerate().any(|(server, due)| server != at && due.contains(&true));
        (0..self.views.len()).filter(|at| !self.views[*at].standby && is_wanted_elsewhere(*at)).collect()
    }

    /// What this key of the server with the index `at` is a copy of; `None` if it is none, if nobody reads it any longer, or if its other
    /// copy is not looked for.
    pub(super) fn copy(&self, proxy: &Proxy, at: usize, key: &[u8]) -> Option<FoundCopy> {
        let (item, side, fence) = split_copy_key(key)?;
        let own = &item[..memchr::memmem::find(item, INFIX).unwrap_or(item.len())];
        let KeyClass::Structure(structure) = proxy.class(own) else { return None };
        let plan = &proxy.plan.structures[structure.structure];
        if plan.pool != self.pool || !plan.kind.is_copied() {
            return None;
        }
        let own = structure.own_key();
        let place = |side| self.place(proxy, own, side);
        let other = if side == Side::First { Side::Second } else { Side::First };
        let ((_, server), (home, elsewhere)) = (place(side), place(other));
        let is_current = server == at && fence == self.fence(proxy, own, side);
        if !is_current || elsewhere == at || !self.due[elsewhere][home] {
            return None;
        }
        let other = copy_key(item, other, self.fence(proxy, own, other)).ok()?;
        Some(FoundCopy { item: ItemKey::from_slice(item), other: (elsewhere, other), structure })
    }

    /// The server that the ring names for a copy, and the one that has it.
    fn place(&self, proxy: &Proxy, own: &[u8], side: Side) -> (usize, usize) {
        let (pool, copy) = (&proxy.pools[self.pool], side == Side::Second);
        let home = if copy { pool.second_server_index(own) } else { pool.server_index(own) };
        (home, if self.views[home].standby { pool.standby_of_copy(own, copy) } else { home })
    }

    fn fence(&self, proxy: &Proxy, own: &[u8], side: Side) -> u64 {
        self.views[self.place(proxy, own, side).0].fence
    }
}
