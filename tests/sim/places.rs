//! Servers whose keys move to a standby server and back, as docs/wire-format.md ("Fence") describes. That all sidecars agree on a
//! place, and that no two places are in use at the same time, is given here: `src/failover/` promises it.

use std::time::Duration;

use kennel::error::Failure;
use kennel::failover::View;
use kennel::guard::{Bump, Delete, Modify};
use kennel::guard::{ItemRef, Machine, Operation, ServerReply, Set, TagName};

use super::mutants::Mutant;
use super::operation::{End, Op, Task};
use super::plan::{Faults, Plan, tag_of};
use super::world::{Event, World};

/// Where an item is, by the view of a sidecar at the time at which an operation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub server: usize,
    home: usize,
    /// `None`: no valid view.
    fence: Option<u64>,
}

impl Place {
    pub fn fence(&self) -> u64 {
        self.fence.unwrap_or(0)
    }

    pub fn is_known(&self) -> bool {
        self.fence.is_some()
    }
}

/// The places change often, servers are suspended and resume with their contents, and commands arrive late.
pub fn plan_places(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::new(seed, true, mutant);
    let faults = Faults { stall: 2000, stop: 2000, lost: plan.faults.lost, ..Faults::default() };
    let keys = plan.keys.into_iter().map(|mut guarded| {
        if seed.is_multiple_of(5) {
            guarded.policy.near = Duration::from_millis(150);
        }
        guarded
    });
    Plan {
        keys: keys.collect(),
        servers: 3,
        sidecars: plan.sidecars.max(2),
        faulty_server: None,
        moves: [200, 200, 900][(seed % 3) as usize],
        max_value: 1 << 20,
        blind: 10,
        tag_cache: [0, 0, 0, 200][(seed % 4) as usize],
        invalidators: (2, 900),
        longest: 1500,
        faults,
        ..plan
    }
}

impl World {
    fn placed(&self, sidecar: usize, home: usize, standby: usize) -> Place {
        if self.plan.moves == 0 {
            return Place { server: home, home, fence: Some(0) };
        }
        match self.views[sidecar][home] {
            Some(View { fence, standby: true, .. }) => Place { server: standby, home, fence: Some(fence) },
            view => Place { server: home, home, fence: view.map(|view| view.fence) },
        }
    }

    /// Where a key is kept.
    pub fn place_of_key(&self, sidecar: usize, key: usize) -> Place {
        let home = key % self.plan.servers;
        self.placed(sidecar, home, (home + 1) % self.plan.servers)
    }

    /// Where a tag and its copy are kept.
    pub fn places_of_tag(&self, sidecar: usize, name: &TagName) -> [Place; 2] {
        let servers = self.plan.servers;
        let home = tag_of(name) % servers;
        let (copy, other) = ((home + 1) % servers, (home + 2) % servers);
        [home, copy].map(|home| self.placed(sidecar, home, other))
    }

    /// The fences of tags.
    pub fn tag_fences(&self, sidecar: usize, tags: &[TagName]) -> Vec<[u64; 2]> {
        if self.plan.moves == 0 {
            return Vec::new();
        }
        tags.iter().map(|tag| self.places_of_tag(sidecar, tag).map(|place| place.fence())).collect()
    }

    /// A number for the fences of a key and its tags.
    pub fn fences(&self, sidecar: usize, key: usize) -> u64 {
        let tags = self.tag_fences(sidecar, &self.plan.keys[key].tags);
        tags.into_iter().flatten().fold(self.place_of_key(sidecar, key).fence(), mixed)
    }

    /// The same for the n-th tag of an operation.
    pub fn fences_of_tag(&self, op: &Op, tag: usize) -> u64 {
        op.tag_places[tag].iter().fold(0, |sum, place| mixed(sum, place.fence()))
    }

    /// What a sidecar replies in place of a server if the place no longer has the fence that it had.
    pub fn refusal(&self, op: &Op, item: ItemRef, operation: &Operation) -> Option<ServerReply> {
        let conditional = kennel::proxy::wire::depends_on(operation).is_some();
        let of_place = |place: &Place| {
            let now = self.views[op.sidecar].get(place.home).copied().flatten();
            match (place.fence, now) {
                _ if self.plan.moves == 0 => None,
                (Some(fence), Some(view)) if fence == view.fence => None,
                (Some(_), Some(_)) if conditional => Some(ServerReply::Exists),
                _ => Some(ServerReply::Failed(Failure::NoView)),
            }
        };
        let both = kennel::proxy::wire::needs_both_places(operation);
        match item {
            ItemRef::Tag(tag) | ItemRef::TagCopy(tag) if both && self.plan.copies => {
                op.tag_places[usize::from(tag)].iter().find_map(of_place)
            }
            item => of_place(&op.place_of(item)),
        }
    }

    /// A change is acknowledged only if it was carried out where the key, or the tag, still is.
    pub fn confirmed(&self, op: &Op, end: End) -> End {
        if self.plan.moves == 0 {
            return end;
        }
        let copies = if self.plan.copies { 2 } else { 1 };
        let places = match &op.doing {
            Task::Bump(_) => &op.tag_places[0][..copies],
            _ => &[op.place][..],
        };
        let is_valid = |place: &Place| {
            self.views[op.sidecar][place.home].map(|view| view.fence) == place.fence && place.fence.is_some()
        };
        if places.iter().all(is_valid) {
            return end;
        }
        let failed = match &end {
            End::Set(_) => Set::failed(Failure::NoView).map(End::Set),
            End::Modify(_) => Modify::failed(Failure::NoView).map(End::Modify),
            End::Delete(_) => Delete::failed(Failure::NoView).map(End::Delete),
            End::Bump(_) => Bump::failed(Failure::NoView).map(End::Bump),
            End::Read(_) | End::Fill(_) | End::Direct(_) => None,
        };
        failed.unwrap_or(end)
    }

    /// A key's place is another one than that of an operation.
    pub fn is_replaced(&self, sidecar: usize, place: Place) -> bool {
        let now = self.views[sidecar].get(place.home).copied().flatten();
        self.plan.moves > 0 && now.is_some_and(|view| Some(view.fence) != place.fence)
    }

    /// All sidecars have a view of each server.
    pub fn first_views(&mut self) {
        let views =
            (0..self.plan.servers).map(|server| Some(View { fence: 1 + server as u64, ..View::default() }));
        self.views = vec![views.collect(); self.plan.sidecars];
        self.fence = 100;
        self.moving = vec![0; self.plan.servers];
    }

    /// The place of a server changes: first every sidecar loses its view, then each has the next one.
    pub fn move_place(&mut self, server: usize) {
        if self.now < self.moving[server] {
            return;
        }
        let was = self.views.iter().find_map(|views| views[server]);
        let stays = self.below(5) == 0;
        self.fence += 1;
        // The longest time between the first and the last sidecar that lose a view, or that have the next one.
        let spread = self.plan.moves / 4;
        let view =
            View { fence: self.fence, standby: was.is_some_and(|was| was.standby == stays), inherited: 0 };
        self.trace(|| format!("the keys of server {server} move: {view:?}"));
        for sidecar in 0..self.plan.sidecars {
            let (lost, found) = (self.below(spread), spread + self.below(spread));
            let found = match self.plan.is(Mutant::ViewOutlivesItself) && sidecar == 0 {
                true => found + 1000,
                false => {
                    self.at(lost, Event::View { sidecar, server, view: None });
                    found
                }
            };
            self.at(found, Event::View { sidecar, server, view: Some(view) });
        }
        self.moving[server] = self.now + 2 * spread;
        self.checker.coverage.moves += 1;
    }
}

/// Adds a fence to a number that stands for several.
pub fn mixed(sum: u64, fence: u64) -> u64 {
    sum.wrapping_mul(1_000_003).wrapping_add(fence)
}

impl Op {
    pub fn place_of(&self, item: ItemRef) -> Place {
        match item {
            ItemRef::Value | ItemRef::Lock => self.place,
            ItemRef::Tag(tag) => self.tag_places[usize::from(tag)][0],
            ItemRef::TagCopy(tag) => self.tag_places[usize::from(tag)][1],
        }
    }
}
