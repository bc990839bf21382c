//! Tags that values name, and tags that exist before the run.

use bytes::Bytes;
use kennel::guard::envelope::{Header, Opened};
use kennel::guard::{ItemRef, Operation, ServerCommand, StoreMode, Stored, TagNames};

use super::checker::Coverage;
use super::plan::tag_name;
use super::world::World;
use super::writes::PendingStore;

/// How long before the run the existing tags were bumped, in ms. Longer than clocks may differ.
const AGE: u64 = 100_000;

/// The names of tags.
pub fn named(tags: &[usize]) -> TagNames {
    tags.iter().map(|tag| tag_name(*tag)).collect()
}

impl World {
    /// Creates tags that were bumped long ago: a value that names one for the first time may be fresh.
    pub fn create_aged_tags(&mut self) {
        if !self.plan.aged {
            return;
        }
        let wall = self.wall();
        for name in (0..self.plan.all_tags()).map(tag_name) {
            let value = Stored::plain(Bytes::from((wall - AGE).to_string()));
            let operation = Operation::Store {
                mode: StoreMode::Set,
                value,
                flags: 0,
                exptime: 0,
                cas: None,
                explicit: None,
            };
            let command = ServerCommand { item: ItemRef::Tag(0), operation };
            let key = self.tag_key(&name);
            for server in self.plan.tag_servers(&name) {
                self.servers[server].execute(&command, &key, self.plan.max_value, wall);
            }
        }
    }

    /// Concurrent creators of a tag with two copies may store a different version on each server, of which the larger counts: one
    /// value is stale if a server cannot be reached meanwhile, any number if versions are cached.
    pub fn may_create(&mut self, command: &ServerCommand, key: &Bytes) {
        let times = match self.plan.tag_cache {
            0 => u64::from(self.plan.faults_matter()),
            _ => 32,
        };
        if !self.plan.copies || times == 0 || !matches!(command.operation, Operation::Store { .. }) {
            return;
        }
        let tag = self.tag_keys.iter().position(|tag| tag == key);
        if let Some(tag) = tag.filter(|tag| !self.created[*tag]) {
            self.created[tag] = true;
            let lasts = 8 * self.plan.trip() + self.plan.tag_cache + 5 * self.checker.grace();
            for key in self.plan.tagged(tag) {
                (0..times).for_each(|_| self.lost(key, lasts));
            }
        }
    }

    /// The tags that a client names with a value of this key: they depend on the source's version.
    pub fn tags_named_with(&self, client: usize, key: usize) -> Vec<usize> {
        let extra = &self.plan.keys[key].extra;
        match self.checker.source[key] % 3 {
            _ if !self.clients[client].names => Vec::new(),
            0 => extra.iter().take(1).copied().collect(),
            _ => extra.clone(),
        }
    }
}

impl PendingStore {
    /// Inspects the value about to be stored: sealed with version 0, which no tag has, it is stale from the start.
    pub fn check_seal(&mut self, value: &Stored, explicit: bool, coverage: &mut Coverage) {
        let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { return };
        self.stale_from_start = envelope.tags().any(|(_, version)| version == 0);
        coverage.unmoved += u64::from(explicit && !self.stale_from_start);
    }

    /// Sets the latest arrival of its commands.
    pub fn with_latest_arrival(mut self, late: u64) -> PendingStore {
        self.late = late;
        self
    }
}
