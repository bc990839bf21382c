//! Versions of tags that may be reused for `tags.cache` without asking the server.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::key_hash::KeyHasher;
use crate::generations::Generations;
use crate::guard::TagName;

/// The most versions that a worker keeps. When it is reached, those put first are removed.
const MAX_ENTRIES: usize = 64 * 1024;
/// The number of write counters. Tags whose hashes share a counter invalidate each other.
const WRITES: usize = 256;

/// One worker's cache. A clone is the empty cache of another worker that shares the write counters, so a bump through this
/// sidecar takes effect in all its workers at once. Readers take no lock: they compare a counter.
#[derive(Debug)]
pub struct TagCache {
    /// How long a version may be reused, in ms. 0 turns the cache off.
    keep: u64,
    hashes: KeyHasher,
    /// How often any worker has written a tag of this counter.
    writes: Arc<[AtomicU64; WRITES]>,
    versions: RefCell<Generations<TagName, CachedVersion, KeyHasher>>,
}

#[derive(Debug, Clone, Copy)]
struct CachedVersion {
    version: u64,
    /// Stands for the fences that it was read under.
    fences: u64,
    /// When it was requested, in ms on the monotonic clock.
    requested_at: u64,
    /// The value of its write counter at that time.
    writes: u64,
}

fn versions(hashes: KeyHasher) -> RefCell<Generations<TagName, CachedVersion, KeyHasher>> {
    RefCell::new(Generations::with_hasher(MAX_ENTRIES / 2, hashes))
}

impl Clone for TagCache {
    fn clone(&self) -> TagCache {
        TagCache {
            keep: self.keep,
            hashes: self.hashes,
            writes: Arc::clone(&self.writes),
            versions: versions(self.hashes),
        }
    }
}

impl TagCache {
    /// A cache that reuses a version for `keep` after it was requested.
    pub fn new(keep: Duration) -> TagCache {
        let hashes = KeyHasher::new();
        TagCache {
            keep: u64::try_from(keep.as_millis()).unwrap_or(u64::MAX),
            hashes,
            writes: Arc::new([const { AtomicU64::new(0) }; WRITES]),
            versions: versions(hashes),
        }
    }

    /// An empty cache that reuses a version for `keep`, and shares the write counters.
    pub fn with_keep(&self, keep: Duration) -> TagCache {
        TagCache { keep: u64::try_from(keep.as_millis()).unwrap_or(u64::MAX), ..self.clone() }
    }

    /// Whether versions are cached.
    pub(crate) fn is_on(&self) -> bool {
        self.keep > 0
    }

    /// The version of a tag if it was requested less than `tags.cache` ago, under the same fences, and not written since. `fences`
    /// is a number for them; `now` is in ms.
    pub fn get(&self, name: &TagName, fences: u64, now: u64) -> Option<u64> {
        if !self.is_on() {
            return None;
        }
        let cached = *self.versions.borrow().get(&name[..])?;
        let is_usable = cached.fences == fences && cached.writes == self.writes(name);
        (now < cached.requested_at + self.keep && is_usable).then_some(cached.version)
    }

    /// The write counter of a tag. It must be read before the version is requested.
    pub fn writes(&self, name: &TagName) -> u64 {
        if self.is_on() { self.count(name).load(Ordering::Acquire) } else { 0 }
    }

    /// Stores a version that was requested at `requested_at`, unless the tag has been written through this sidecar since. A
    /// reply that is older than another sidecar's bump does not replace the newer version.
    pub fn put_unless_written(
        &self,
        name: &TagName,
        version: u64,
        fences: u64,
        requested_at: u64,
        writes: u64,
    ) {
        if !self.is_on() || writes != self.writes(name) {
            return;
        }
        let cached = CachedVersion { version, fences, requested_at, writes };
        self.versions.borrow_mut().put(&name[..], cached, |known, cached| {
            let is_as_new = known.writes == writes && known.fences == fences;
            // A tag that was lost and created again may have a smaller version later.
            let is_newer = version < known.version && requested_at < known.requested_at + self.keep;
            if is_as_new && is_newer { known } else { cached }
        });
    }

    /// Invalidates a tag's version in all workers, because it was written or found to be newer. The next reader requests the
    /// version: another worker may have written the tag again in the meantime.
    pub fn written(&self, name: &TagName) {
        // Counted even if this cache is off: that of the next configuration may be on.
        self.count(name).fetch_add(1, Ordering::AcqRel);
    }

    fn count(&self, name: &[u8]) -> &AtomicU64 {
        &self.writes[self.hashes.hash(name) as usize % WRITES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::looked_at;

    /// Stores a version that was requested after the last write.
    fn put(cache: &TagCache, name: &TagName, version: u64, requested_at: u64) {
        cache.put_unless_written(name, version, 0, requested_at, cache.writes(name));
    }

    fn tag(name: &str) -> TagName {
        TagName::from_slice(name.as_bytes())
    }

    #[test]
    fn a_version_is_reused_for_its_time_and_an_older_reply_does_not_replace_a_newer_one() {
        let cache = TagCache::new(Duration::from_millis(100));
        let posts = tag("posts");
        put(&cache, &posts, 7, 1_000);
        assert_eq!((cache.get(&posts, 0, 1_099), cache.get(&posts, 0, 1_100)), (Some(7), None));
        put(&cache, &posts, 6, 1_050);
        assert_eq!(cache.get(&posts, 0, 1_099), Some(7));
        put(&cache, &posts, 6, 1_100);
        assert_eq!(cache.get(&posts, 0, 1_100), Some(6));
        let off = TagCache::new(Duration::ZERO);
        put(&off, &posts, 7, 1_000);
        assert_eq!(off.get(&posts, 0, 1_000), None);
    }

    #[test]
    fn a_write_by_one_worker_invalidates_the_version_in_all_workers() {
        let one = TagCache::new(Duration::from_millis(100));
        let (other, posts) = (one.clone(), tag("posts"));
        put(&other, &posts, 7, 1_000);
        let before = other.writes(&posts);
        put(&one, &posts, 7, 1_000);
        one.written(&posts);
        assert_eq!((one.get(&posts, 0, 1_020), other.get(&posts, 0, 1_020)), (None, None));
        // A reply to a request from before the write may be older than the write.
        other.put_unless_written(&posts, 7, 0, 1_005, before);
        assert_eq!(other.get(&posts, 0, 1_020), None);
        other.put_unless_written(&posts, 9, 0, 1_020, other.writes(&posts));
        assert_eq!(other.get(&posts, 0, 1_020), Some(9));
        // It does not replace a version that was read later.
        other.put_unless_written(&posts, 7, 0, 1_005, before);
        assert_eq!(other.get(&posts, 0, 1_020), Some(9));
        // The tag was lost and created again by a clock that is behind.
        one.written(&posts);
        put(&other, &posts, 5, 1_030);
        assert_eq!(other.get(&posts, 0, 1_040), Some(5));
    }

    #[test]
    fn the_number_of_cached_versions_is_bounded_and_one_more_costs_no_more() {
        let cache = TagCache::new(Duration::from_millis(100));
        let mut costs = Vec::new();
        for i in 0..2 * MAX_ENTRIES as u64 {
            costs.push(looked_at::during(|| put(&cache, &tag(&i.to_string()), i, 1_000 + i % 2 * 100)));
        }
        costs.dedup();
        assert_eq!(costs.len(), 1, "{costs:?}");
        let kept = |i: u64| cache.get(&tag(&i.to_string()), 0, 1_099) == Some(i);
        let (last, entries) = (2 * MAX_ENTRIES as u64 - 1, MAX_ENTRIES as u64);
        assert!(kept(last) && kept(last - entries / 2) && !kept(last - entries));
    }
}
