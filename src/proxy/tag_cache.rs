//! Versions of tags that may be used again for `tags.cache` without asking.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::guard::TagName;

/// The most versions that are remembered; at this many, the old ones are forgotten, then all.
const MAX_ENTRIES: usize = 64 * 1024;

/// Shared by all workers, so that a bump through this sidecar takes effect in all of them at once.
pub struct TagCache {
    /// For how long, in ms. 0: nothing is kept.
    keep: u64,
    versions: Mutex<HashMap<TagName, (u64, u64)>>,
}

impl TagCache {
    /// One that reuses a version for so long after it was asked for.
    pub fn new(keep: Duration) -> TagCache {
        let keep = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        TagCache { keep, versions: Mutex::default() }
    }

    /// The version of a tag, if it was asked for less than that ago.
    pub fn get(&self, name: &TagName, now: u64) -> Option<u64> {
        if self.keep == 0 {
            return None;
        }
        let versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.get(name).filter(|(_, asked)| now < asked + self.keep).map(|(version, _)| *version)
    }

    /// Notes a version that was asked for at that moment. An answer that a bump has overtaken does not undo it.
    pub fn put(&self, name: &TagName, version: u64, asked: u64) {
        if self.keep == 0 {
            return;
        }
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        if versions.len() >= MAX_ENTRIES {
            versions.retain(|_, (_, then)| asked < *then + self.keep);
            if versions.len() >= MAX_ENTRIES {
                versions.clear();
            }
        }
        match versions.get_mut(name) {
            Some((known, then)) if version < *known && asked < *then + self.keep => {}
            Some(entry) => *entry = (version, asked),
            None => {
                versions.insert(name.clone(), (version, asked));
            }
        }
    }
}
