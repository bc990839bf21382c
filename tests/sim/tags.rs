//! Tags that values name, and tags that exist before the run.

use bytes::Bytes;
use kennel::guard::envelope::{Header, Opened};
use kennel::guard::{ItemRef, Operation, ServerCommand, StoreMode, Stored, TagName, TagNames};

use super::checker::Coverage;
use super::plan::tag_name;
use super::world::World;
use super::writes::PendingStore;

/// How long before the run the existing tags were bumped, in ms. Longer than clocks may differ.
const AGE: u64 = 100_000;
/// In ms.
const DAY: u64 = 24 * 60 * 60 * 1000;

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
            for server in self.plan.tag_servers(&name) {
                self.write_tag(server, &name, (wall - AGE).to_string(), 0);
            }
        }
    }

    /// Stores something under the key of a tag, past Kennel.
    fn write_tag(&mut self, server: usize, name: &TagName, value: String, flags: u32) {
        let operation = Operation::Store {
            mode: StoreMode::Set,
            value: Stored::plain(value.into()),
            flags,
            exptime: 0,
            cas: None,
            explicit: None,
        };
        let command = ServerCommand { item: ItemRef::Tag(0), operation };
        let (key, wall) = (self.tag_key(name), self.wall());
        self.servers[server].execute(&command, &key, self.plan.max_value, wall);
    }

    /// A program that bypasses Kennel stores what is no version, or one that no bump may leave, or a later one than any.
    pub fn spoil_tag(&mut self) {
        if self.plan.all_tags() == 0 {
            return;
        }
        let tag = self.below(self.plan.all_tags() as u64) as usize;
        let (name, wall) = (tag_name(tag), self.wall());
        let (flags, is_version, value) = match self.below(7) {
            0 => (0, false, "17592186044415".to_owned()),
            1 => (0, false, "99999999999999999999".to_owned()),
            2 => (0, false, "garbage".to_owned()),
            3 => (0, false, (wall + 7 * DAY).to_string()),
            4 => (1 << 20, false, wall.to_string()),
            5 => (0, false, "0".to_owned()),
            _ => (0, true, (wall + DAY / 2 + self.below(DAY / 4)).to_string()),
        };
        let servers = self.plan.tag_servers(&name);
        match self.plan.faulty_server {
            None => self.write_tag(servers[0], &name, value, flags),
            Some(faulty) if servers.contains(&faulty) => self.write_tag(faulty, &name, value, flags),
            Some(_) => return,
        }
        self.checker.coverage.tags_spoilt += 1;
        // A copy without a version is lost alone.
        if is_version || !self.plan.copies {
            self.tag_lost(tag);
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
