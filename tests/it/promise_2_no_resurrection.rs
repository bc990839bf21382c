//! Promise 2: once an invalidation is acknowledged, no value whose rebuild began before it is served as fresh, by any
//! sidecar, even if that rebuild ends, and stores, afterwards.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::world::{Kennel, Memcached, addresses, guarded, memcacheds, sidecar_toml, until_stale};

fn fleet(more: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let rule = guarded("hot", "hot:*", &format!("tags = [\"posts\"]\nlock_ttl = \"3s\"\n{more}"));
    let toml = sidecar_toml(&addresses(&servers), &[rule]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    (servers, sidecars)
}

#[derive(Debug, Clone, Copy)]
enum Invalidation {
    Delete,
    BumpByDelete,
    BumpByIncr,
}

impl Invalidation {
    /// Carries it out for `key` and waits for the acknowledgement.
    fn by(self, client: &mut Client, key: &str) {
        match self {
            // A stub and a stale item are absent to the client; the invalidation is carried out all the same.
            Invalidation::Delete => {
                let reply = client.delete(key);
                assert!(["DELETED", "NOT_FOUND"].contains(&&*reply), "delete {key}: {reply}");
            }
            Invalidation::BumpByDelete => assert_eq!(client.delete("@tag:posts"), "DELETED"),
            Invalidation::BumpByIncr => {
                let reply = client.ask("incr @tag:posts 1");
                let version: u64 = reply.parse().unwrap_or_else(|e| panic!("incr of a tag: {reply}: {e}"));
                assert!(version > 1_600_000_000_000, "a version is wall-clock ms, not {version}");
            }
        }
    }
}

/// One interleaving: the winner misses, `invalidation` lands, the winner stores.
fn a_late_fill_is_never_fresh(stale: bool, other_sidecar: bool, pooled: bool) {
    let (servers, sidecars) = fleet("stale_for = \"30s\"\ncold_wait = \"200ms\"");
    let all = [Invalidation::Delete, Invalidation::BumpByDelete, Invalidation::BumpByIncr];
    for invalidation in all {
        let key = format!("hot:{invalidation:?}");
        let (mut winner, mut elsewhere) = (sidecars[0].client(), sidecars[0].client());
        let mut readers = [sidecars[0].client(), sidecars[1].client()];
        if stale {
            winner.store(&key, b"old", 1);
            until_stale(&servers, &key, 30);
        }
        assert_eq!(winner.get(&key), None, "the winner of {key}");
        invalidation.by(&mut sidecars[usize::from(other_sidecar)].client(), &key);
        let filler = if pooled { &mut elsewhere } else { &mut winner };
        filler.store(&key, b"late", 60);
        // Fresh, it would be served to this reader: a miss says that somebody must build it anew.
        assert_eq!(readers[1].get(&key), None, "{key} after the late fill");
        readers[1].store(&key, b"new", 60);
        for reader in &mut readers {
            assert_eq!(reader.get(&key).as_deref(), Some(&b"new"[..]), "{key} after the second rebuild");
        }
    }
}

#[test]
fn a_cold_fill_that_began_before_an_invalidation_through_the_same_sidecar_is_never_served_fresh() {
    a_late_fill_is_never_fresh(false, false, false);
}

#[test]
fn a_cold_fill_that_began_before_an_invalidation_through_another_sidecar_is_never_served_fresh() {
    a_late_fill_is_never_fresh(false, true, false);
}

#[test]
fn a_stale_fill_that_began_before_an_invalidation_through_the_same_sidecar_is_never_served_fresh() {
    a_late_fill_is_never_fresh(true, false, false);
}

#[test]
fn a_stale_fill_that_began_before_an_invalidation_through_another_sidecar_is_never_served_fresh() {
    a_late_fill_is_never_fresh(true, true, false);
}

#[test]
fn a_pooled_client_that_fills_on_another_connection_resurrects_nothing() {
    for (stale, other_sidecar) in [(false, true), (true, true), (false, false), (true, false)] {
        a_late_fill_is_never_fresh(stale, other_sidecar, true);
    }
}

#[test]
fn a_late_fill_does_not_end_the_rebuild_that_followed_the_delete() {
    let (_servers, sidecars) = fleet("stale_for = \"30s\"\ncold_wait = \"5s\"");
    let (mut late, mut second, mut third) =
        (sidecars[0].client(), sidecars[1].client(), sidecars[0].client());
    assert_eq!(late.get("hot:k"), None);
    third.delete("hot:k");
    assert_eq!(second.get("hot:k"), None, "the delete frees the key for the next rebuild");
    late.store("hot:k", b"late", 60);
    third.send(b"get hot:k\r\n");
    third.silent_for(Duration::from_millis(300));
    second.store("hot:k", b"new", 60);
    assert_eq!(third.only_value("hot:k").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_set_by_a_client_without_a_lease_defeats_the_fill_in_flight() {
    let (_servers, sidecars) = fleet("stale_for = \"30s\"\ncold_wait = \"200ms\"");
    let (mut winner, mut other) = (sidecars[0].client(), sidecars[1].client());
    assert_eq!(winner.get("hot:k"), None);
    other.store("hot:k", b"blind", 60);
    winner.store("hot:k", b"late", 60);
    for client in [&mut winner, &mut other] {
        assert_eq!(client.get("hot:k").as_deref(), Some(&b"blind"[..]));
    }
}

#[test]
fn a_bump_leaves_the_old_value_to_all_but_one_and_a_delete_leaves_none() {
    let (_servers, sidecars) = fleet("stale_for = \"30s\"\ncold_wait = \"200ms\"");
    let (mut a, mut b) = (sidecars[0].client(), sidecars[1].client());
    a.store("hot:k", b"old", 60);
    assert_eq!(b.delete("@tag:posts"), "DELETED");
    assert_eq!(a.get("hot:k"), None, "one client rebuilds");
    assert_eq!(b.get("hot:k").as_deref(), Some(&b"old"[..]), "the others are served the old value");
    a.store("hot:k", b"new", 60);
    assert_eq!(b.get("hot:k").as_deref(), Some(&b"new"[..]));
    assert_eq!(b.delete("hot:k"), "DELETED");
    assert_eq!(a.get("hot:k"), None);
    assert_eq!(b.get("hot:k"), None, "cold: nothing is left to serve");
}

#[test]
fn with_a_tag_cache_a_bump_counts_at_once_where_it_was_made_and_after_tag_cache_elsewhere() {
    let servers = memcacheds(3);
    let rule = guarded("hot", "hot:*", "tags = [\"posts\"]\ncold_wait = \"0ms\"");
    let toml = sidecar_toml(&addresses(&servers), &[rule]) + "\n[tags]\ncache = \"400ms\"\n";
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    for bump in [Invalidation::BumpByDelete, Invalidation::BumpByIncr] {
        let [mut here, mut there] = [0, 1].map(|n: usize| sidecars[n].client());
        here.store("hot:k", b"old", 60);
        assert_eq!(here.get("hot:k").as_deref(), Some(&b"old"[..]), "the version is cached here");
        assert_eq!(there.get("hot:k").as_deref(), Some(&b"old"[..]), "and there");
        bump.by(&mut here, "");
        assert_eq!(here.get("hot:k"), None, "{bump:?} counts at once where it was made");
        here.store("hot:k", b"new", 60);
        std::thread::sleep(Duration::from_millis(450));
        assert_eq!(there.get("hot:k").as_deref(), Some(&b"new"[..]));
        bump.by(&mut here, "");
        std::thread::sleep(Duration::from_millis(450));
        assert_eq!(there.get("hot:k"), None, "{bump:?} counts everywhere after tag_cache");
        here.store("hot:k", b"newer", 60);
    }
}

/// Says that it is over when it goes out of scope.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whatever a client is given must be at least as new as the last invalidation that was acknowledged before it asked: the
/// rule leaves nothing stale behind, and nothing expires by itself while this runs.
fn nothing_older_than_the_last_invalidation_is_served(invalidate: &(dyn Fn(&mut Client) + Sync)) {
    let (_servers, sidecars) = fleet("on_tag = \"drop\"\nstale_for = \"10s\"\ncold_wait = \"20ms\"");
    let (source, acknowledged) = (AtomicU64::new(1), AtomicU64::new(0));
    let (over, wrong, served) = (AtomicBool::new(false), Mutex::new(Vec::new()), AtomicU64::new(0));
    let read = |n: usize| {
        let mut random = fastrand::Rng::with_seed(n as u64);
        let mut client = sidecars[n % 2].client();
        while !over.load(Ordering::SeqCst) {
            let floor = acknowledged.load(Ordering::SeqCst);
            match client.get("hot:k") {
                Some(value) => {
                    let value: u64 =
                        String::from_utf8_lossy(&value).parse().expect("only numbers are stored");
                    served.fetch_add(1, Ordering::SeqCst);
                    if value < floor {
                        wrong.lock().expect("no holder panics").push((value, floor));
                    }
                }
                // Won, or waited in vain: a client cannot tell, and builds.
                None => {
                    let built = source.load(Ordering::SeqCst).to_string();
                    std::thread::sleep(Duration::from_micros(random.u64(0..40_000)));
                    client.store("hot:k", built.as_bytes(), 60);
                }
            }
        }
    };
    let read = &read;
    std::thread::scope(|s| {
        (0..12).for_each(|n| drop(s.spawn(move || read(n))));
        // Also when an invalidation panics: the readers would go on for ever.
        let _over = OnDrop(&over);
        let mut random = fastrand::Rng::with_seed(99);
        let mut clients = [sidecars[0].client(), sidecars[1].client()];
        for round in 0..150 {
            let now = source.fetch_add(1, Ordering::SeqCst) + 1;
            invalidate(&mut clients[round % 2]);
            acknowledged.store(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(random.u64(0..40_000)));
        }
    });
    let wrong = wrong.into_inner().expect("no holder panics");
    assert!(wrong.is_empty(), "served, though invalidated up to: {wrong:?}");
    assert!(served.into_inner() > 100, "hardly anything was served: this run proves nothing");
}

#[test]
fn under_load_no_value_from_before_the_last_delete_is_served() {
    nothing_older_than_the_last_invalidation_is_served(&|c| Invalidation::Delete.by(c, "hot:k"));
}

#[test]
fn under_load_no_value_from_before_the_last_bump_is_served() {
    nothing_older_than_the_last_invalidation_is_served(&|c| Invalidation::BumpByDelete.by(c, "hot:k"));
}
