//! Frameworks whose cached functions build a value when it has expired, with ten processes at once. Some keep an expiry of their own
//! inside the value, and see through a value that is served stale after its exptime: then all of them build it. A rule's `preset`
//! lets one at a time build it.

use std::process::{Command, Stdio};

use crate::libraries::{php, python, root, ruby};
use crate::world::{
    Kennel, addresses, clients_are, guarded, memcacheds, sidecar_toml, until_stale, without_failover,
};

const PROCESSES: usize = 10;
/// Longer than two expiries of 4 s.
const SECONDS: u32 = 11;

/// A program next to this file, with the library that it uses.
struct Framework {
    script: &'static str,
    library: &'static str,
    runtime: fn() -> Command,
    /// One process alone builds the value first: a cold one is two keys, of which two processes may win one each.
    is_warmed: bool,
}

const RAILS: Framework = Framework { script: "rails.rb", library: "", runtime: ruby, is_warmed: false };
/// Its `race_condition_ttl` in seconds.
const RAILS_RACING: Framework = Framework { library: "2", ..RAILS };
const LARAVEL: Framework =
    Framework { script: "laravel.php", library: "remember", runtime: php, is_warmed: false };
const LARAVEL_FLEXIBLE: Framework = Framework { library: "flexible", is_warmed: true, ..LARAVEL };
const WORDPRESS: Framework =
    Framework { script: "wordpress.php", library: "", runtime: php, is_warmed: false };
/// Its default.
const SYMFONY: Framework = Framework { script: "symfony.php", library: "1", runtime: php, is_warmed: false };
const SYMFONY_WITHOUT_CHANCE: Framework = Framework { library: "0", ..SYMFONY };
const DJANGO: Framework =
    Framework { script: "python.py", library: "django", runtime: python, is_warmed: false };
const DOGPILE: Framework =
    Framework { script: "python.py", library: "dogpile", runtime: python, is_warmed: false };
const DOGPILE_LOCKED: Framework = Framework { library: "dogpile_locked", ..DOGPILE };
const DOGPILE_ENDLESS: Framework = Framework { library: "dogpile_endless", ..DOGPILE };

/// What the processes did.
struct Builds {
    all: usize,
    /// Further ones, which the library has begun by chance, before the expiry: no miss is the reason.
    early: usize,
    /// Seconds from the first to the last.
    took: u64,
    most_at_once: usize,
    /// Deletes and builds of a value that had just been served as stale.
    rejected: f64,
}

/// Runs the processes through a rule with these settings.
fn builds(framework: &Framework, rule: &str) -> Builds {
    let servers = memcacheds(3);
    // Longer than a build on a busy machine.
    let rule = format!("cold_wait = \"5s\"\n{rule}");
    let toml = sidecar_toml(&addresses(&servers), &[guarded("pages", "*", &rule)]);
    // A machine that stands still for a second is no outage, after which everybody would build.
    let toml = without_failover(&toml.replace("request_timeout = \"500ms\"", "request_timeout = \"10s\""));
    let kennel = Kennel::start(&toml);
    let address = kennel.address();
    let start = |seconds: u32| {
        let mut command = (framework.runtime)();
        command.arg(root().join("tests/it/frameworks").join(framework.script));
        command.args([&address.ip().to_string(), &address.port().to_string(), &seconds.to_string()]);
        command.args(Some(framework.library).filter(|library| !library.is_empty()));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("its interpreter")
    };
    if framework.is_warmed {
        start(1).wait().expect("its exit");
    }
    let processes: Vec<_> = (0..PROCESSES).map(|_| start(SECONDS)).collect();
    let (mut events, mut early): (Vec<(u64, i32)>, usize) = Default::default();
    for process in processes {
        let output = process.wait_with_output().expect("its output");
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success(),
            "{}: {stderr}\nscripts/test installs what it needs",
            framework.script
        );
        for line in stdout.lines() {
            let (what, at) = line.split_once(' ').expect("an event and its time");
            match what {
                "early" => early += 1,
                _ => events.push((at.parse().expect("a time"), if what == "begin" { 1 } else { -1 })),
            }
        }
    }
    events.sort_unstable();
    let at_once = events.iter().scan(0, |now, (_, change)| {
        *now += change;
        Some(*now)
    });
    let most_at_once = usize::try_from(at_once.max().unwrap_or(0)).expect("as many ends as begins");
    let [first, last] = [events.first(), events.last()].map(|event| event.map_or(0, |(at, _)| *at));
    let took = (last - first) / 1_000_000_000;
    let rejected = kennel.metrics().sum("kennel_stale_rejected_total", &[]);
    Builds { all: events.len() / 2, early, took, most_at_once, rejected }
}

/// Nine that wait for the first are not among them.
fn is_built_by_one_at_a_time(framework: &Framework, rule: &str) -> Builds {
    let built = builds(framework, rule);
    let Builds { all, early, took, most_at_once, rejected } = built;
    assert_eq!(most_at_once, 1, "{all} builds in all");
    assert!(rejected <= early as f64, "{all} builds in all, {early} early, {rejected} rejected");
    // memcached's seconds may be up to one too short: a value is fresh for one second at least.
    assert!(all + early >= 2 && all as u64 <= took + 2, "{all} builds in {took} s, {early} early");
    built
}

/// Shows that the framework needs its preset, and that Kennel notices. Several build at once if the library deletes nothing.
fn sees_through_what_is_stale_after_its_exptime(framework: &Framework, at_once: bool) {
    let Builds { all, most_at_once, rejected, .. } = builds(framework, "");
    assert!(rejected > 0.0, "{all} builds, {most_at_once} at once");
    assert!(!at_once || most_at_once > 1, "the preset has become superfluous: {all} builds, one at a time");
}

#[test]
fn rails_fetch_builds_one_at_a_time_with_its_preset() {
    is_built_by_one_at_a_time(&RAILS, "preset = \"rails\"");
}

#[test]
fn rails_fetch_with_race_condition_ttl_builds_one_at_a_time_with_its_preset_and_max_ttl() {
    is_built_by_one_at_a_time(&RAILS_RACING, "preset = \"rails\"\nmax_ttl = \"4s\"");
}

#[test]
fn rails_fetch_sees_through_a_value_that_is_stale_after_its_exptime() {
    sees_through_what_is_stale_after_its_exptime(&RAILS, false);
}

#[test]
fn dogpile_cache_builds_one_at_a_time_with_its_preset() {
    is_built_by_one_at_a_time(&DOGPILE, "preset = \"dogpile\"");
}

#[test]
fn dogpile_cache_with_its_own_lock_builds_one_at_a_time_with_its_preset() {
    is_built_by_one_at_a_time(&DOGPILE_LOCKED, "preset = \"dogpile\"");
}

#[test]
fn dogpile_cache_without_exptimes_builds_one_at_a_time_with_its_preset_and_max_ttl() {
    is_built_by_one_at_a_time(&DOGPILE_ENDLESS, "preset = \"dogpile\"\nmax_ttl = \"4s\"");
}

#[test]
fn dogpile_cache_sees_through_a_value_that_is_stale_after_its_exptime() {
    sees_through_what_is_stale_after_its_exptime(&DOGPILE, true);
}

#[test]
fn dogpile_cache_with_its_own_lock_needs_no_preset() {
    let Builds { all, most_at_once, .. } = builds(&DOGPILE_LOCKED, "");
    assert_eq!(most_at_once, 1, "{all} builds in all");
}

/// They outlive the library's expiry, so Kennel cannot tell from the exptime that they are stale.
#[test]
fn dogpile_cache_without_exptimes_is_built_by_every_process_without_max_ttl() {
    let Builds { all, most_at_once, .. } = builds(&DOGPILE_ENDLESS, "preset = \"dogpile\"");
    assert!(most_at_once > PROCESSES / 2, "{all} builds, {most_at_once} at once");
}

#[test]
fn symfonys_get_builds_one_at_a_time_with_its_preset_except_by_chance() {
    is_built_by_one_at_a_time(&SYMFONY, "preset = \"symfony\"");
}

#[test]
fn symfonys_get_with_beta_0_builds_one_at_a_time_with_its_preset() {
    let Builds { early, .. } = is_built_by_one_at_a_time(&SYMFONY_WITHOUT_CHANCE, "preset = \"symfony\"");
    assert_eq!(early, 0);
}

#[test]
fn laravels_remember_builds_one_at_a_time() {
    is_built_by_one_at_a_time(&LARAVEL, "");
}

/// Its own lock lets one build. It is an ordinary key.
#[test]
fn laravels_flexible_builds_one_at_a_time() {
    is_built_by_one_at_a_time(&LARAVEL_FLEXIBLE, "");
}

#[test]
fn wordpress_transients_are_built_one_at_a_time() {
    is_built_by_one_at_a_time(&WORDPRESS, "");
}

/// The real ones, which scripts/suites fetches. Their timeout is 1 s.
#[test]
#[ignore = "needs the drop-ins that `scripts/suites wordpress` fetches from GitHub"]
fn wordpress_transients_by_two_drop_ins_are_built_one_at_a_time() {
    for drop_in in ["wordpress_memcache", "wordpress_memcached"] {
        let drop_in = root().join(format!("target/suites/src/{drop_in}/object-cache.php"));
        let library: &'static str = drop_in.display().to_string().leak();
        is_built_by_one_at_a_time(&Framework { library, ..WORDPRESS }, "");
    }
}

#[test]
fn djangos_get_or_set_builds_one_at_a_time() {
    is_built_by_one_at_a_time(&DJANGO, "");
}

#[test]
fn a_client_that_deletes_or_sets_what_it_is_served_as_stale_is_counted_and_the_remedy_is_logged_once() {
    let servers = memcacheds(3);
    let kennel =
        Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("pages", "*", "stale_for = \"60s\"")]));
    let (mut winner, mut reader) = (kennel.client(), kennel.client());
    let remedy = "set preset or stale_before_expiry in this rule";
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    keys.iter().for_each(|key| winner.store(key, b"old", 1));
    for (done, key) in keys.iter().enumerate() {
        until_stale(&servers, key, 60);
        assert_eq!(winner.get(key), None);
        assert_eq!(kennel.log().contains(remedy), done >= 10, "after {done}");
        assert_eq!(reader.get(key).as_deref(), Some(&b"old"[..]), "{key}");
        // Another key does not follow from it.
        reader.delete("other");
        match done % 2 {
            0 => drop(reader.delete(key)),
            _ => reader.store(key, b"new", 100),
        }
        let seen = || kennel.metrics().sum("kennel_stale_rejected_total", &["rule=\"pages\""]);
        assert_eq!(seen(), done as f64 + 1.0, "{key}");
        reader.delete(key);
        assert_eq!(seen(), done as f64 + 1.0, "{key} once");
    }
    assert_eq!(kennel.log().matches(remedy).count(), 1, "{}", kennel.log());
}

#[test]
fn a_pool_that_deletes_on_one_connection_what_another_was_served_as_stale_is_counted() {
    for (clients, expected) in [("pooled", 1.0), ("single", 0.0)] {
        let servers = memcacheds(1);
        let rule = guarded("pages", "*", "stale_for = \"60s\"\ncold_wait = \"0ms\"");
        let toml = clients_are(clients, &sidecar_toml(&addresses(&servers), &[rule]));
        let kennel = Kennel::start(&toml);
        let [mut winner, mut reader, mut other] = [(); 3].map(|()| kennel.client());
        winner.store("page", b"old", 1);
        assert_eq!(other.get("another"), None);
        until_stale(&servers, "page", 60);
        assert_eq!(winner.get("page"), None);
        assert_eq!(reader.get("page").as_deref(), Some(&b"old"[..]));
        (0..2).for_each(|_| drop(other.delete("page")));
        let seen = kennel.metrics().sum("kennel_stale_rejected_total", &["rule=\"pages\""]);
        assert_eq!(seen, expected, "{clients}");
    }
}
