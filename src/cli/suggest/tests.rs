//! Recordings of generated traffic, with the rules that fit it.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::page::{self, Looked};
use super::propose::{Proposal, ProposedKind, ProposedPreset, propose};
use super::recording::Recording;
use crate::clock::utc;
use crate::config::Config;
use crate::observed::{Families, Family};

/// What a recording has, line by line.
#[derive(Default)]
struct Traffic {
    text: String,
    now_ms: u64,
}

impl Traffic {
    fn event(&mut self, client: u32, command: &str, outcome: &str, key: &str) {
        let time = utc(1_795_000_000_000 + self.now_ms).unwrap();
        let _ = writeln!(
            self.text,
            "{{\"time\":\"{time}\",\"client\":\"127.0.0.1:{client}\",\"command\":\"{command}\",\"key\":\"{key}\",\"rule\":\"none\",\
             \"kind\":\"none\",\"outcome\":\"{outcome}\",\"pool\":\"main\",\"server\":\"a:1\",\"us\":200,\"bytes\":0,\"letters\":\"\"}}"
        );
    }

    /// So many clients miss the key and build it, each in so many ms.
    fn build(&mut self, clients: u32, ms: u64, key: &str) {
        (0..clients).for_each(|client| self.event(client, "get", "miss", key));
        self.now_ms += ms;
        (0..clients).for_each(|client| self.event(client, "set", "stored", key));
        self.now_ms += 5;
        (0..10).for_each(|client| self.event(client, "get", "hit", key));
    }

    fn propose(&self) -> Vec<Proposal> {
        let recording = Recording::read(self.text.as_bytes()).unwrap();
        propose(&recording.families, &BTreeSet::new())
    }
}

fn blog() -> Traffic {
    let mut traffic = Traffic::default();
    for n in 0..60_u32 {
        traffic.build(3, 40, &format!("post:{n}"));
        traffic.build(2, 100, &format!("post:{n}:comments"));
        traffic.build(8, 400, "front");
        traffic.event(
            1,
            "set",
            "stored",
            &format!("session:{:032x}", u128::from(n).wrapping_mul(0x9f86_d081_884c_7d65_9a2f_eaa0)),
        );
        traffic.build(1, 20, &format!("title:{}", "abcdefghijklmnopqrst".split_at(n as usize % 20).1));
    }
    traffic
}

fn shop() -> Traffic {
    let mut traffic = Traffic::default();
    for n in 0..40_u32 {
        let product = format!("{:08x}-2fa1-11d2-883f-0016d3cca427", n.wrapping_mul(0x9e37_79b9));
        traffic.build(4, 250, &format!("product:{product}"));
        traffic.build(2, 30, &format!("products:{product}:price"));
        traffic.build(1, 2000, "menu_main");
        for _ in 0..3 {
            traffic.event(2, "incr", "counted", &format!("stock:{n}"));
        }
        traffic.event(1, "add", "stored", &format!("lock:order:{n}"));
        traffic.event(2, "add", "not_stored", &format!("lock:order:{n}"));
        traffic.now_ms += 30;
        traffic.event(1, "delete", "deleted", &format!("lock:order:{n}"));
        traffic.event(1, "append", "stored", "orders-2026-11-27");
    }
    traffic
}

fn rate_limiter() -> Traffic {
    let mut traffic = Traffic::default();
    for n in 0..200_u32 {
        let key = format!("rate:10.0.{}.{}:{}", n % 7, n % 50, 29_384 + n / 20);
        traffic.event(1, "incr", "not_found", &key);
        traffic.event(1, "add", "stored", &key);
        traffic.event(2, "incr", "counted", &key);
        traffic.now_ms += 50;
    }
    traffic
}

/// Three applications whose values expire after 300 s by the clients, and later by memcached, or are updated at any time.
fn libraries() -> Traffic {
    let mut traffic = Traffic::default();
    let keys = ["rails:1", "dogpile:1", "profile:1", "cart:1"];
    keys.iter().for_each(|key| traffic.build(2, 100, key));
    let mut random = crate::random::Random::seeded(7);
    for n in 0..40_u32 {
        let reader = n % 3;
        traffic.now_ms += 300_000 + u64::from(n % 10) * 500;
        traffic.event(reader, "get", "hit", "rails:1");
        traffic.event(reader, "delete", "deleted", "rails:1");
        // Another one misses it meanwhile, and two see the same value of dogpile.cache.
        traffic.event(5, "get", "miss", "rails:1");
        [reader, 6].iter().for_each(|client| traffic.event(*client, "get", "hit", "dogpile:1"));
        traffic.now_ms += 100;
        traffic.event(5, "set", "stored", "rails:1");
        traffic.event(reader, "set", "stored", "rails:1");
        [reader, 6].iter().for_each(|client| traffic.event(*client, "set", "stored", "dogpile:1"));
    }
    for _ in 0..200_u32 {
        traffic.now_ms += random.below(20_000);
        traffic.event(1, "get", "hit", "profile:1");
        if random.below(4) == 0 {
            traffic.event(1, "set", "stored", "profile:1");
        }
        // Whoever reads next misses it and builds it.
        if random.below(8) == 0 {
            traffic.event(1, "delete", "deleted", "cart:1");
            traffic.build(2, 100, "cart:1");
        }
    }
    traffic
}

#[test]
fn a_preset_is_proposed_for_libraries_that_judge_the_age_of_a_value_and_for_no_other_updates() {
    let traffic = libraries();
    let proposals = traffic.propose();
    let preset = |pattern: &str| {
        let kind = &proposals.iter().find(|proposal| proposal.pattern == pattern).unwrap().kind;
        let ProposedKind::Guarded { preset, .. } = kind else { panic!("{pattern}: {kind:?}") };
        *preset
    };
    assert_eq!(preset("rails:{rail}"), Some(ProposedPreset::Rails));
    let Some(ProposedPreset::Dogpile { max_ttl }) = preset("dogpile:{dogpile}") else { panic!("no dogpile") };
    assert!((200..=300).contains(&max_ttl.as_secs()), "{max_ttl:?}");
    assert_eq!([preset("profile:{profile}"), preset("cart:{cart}")], [None; 2]);
    let text = page::text(&proposals, &Looked { at: "x".to_owned(), lasted: Default::default(), dropped: 0 });
    for reason in [
        "40 times, a client that had not missed the key deleted the value and stored a new one, most at an age of",
        "40 times, a client that had not missed the key stored a new value, most at an age of",
    ] {
        assert!(text.contains(reason), "{text}");
    }
}

fn pattern_and_kind(proposals: &[Proposal]) -> Vec<(&str, &'static str)> {
    let kind = |proposal: &Proposal| match proposal.kind {
        ProposedKind::Guarded { .. } => "guarded",
        ProposedKind::Counter => "counter",
        ProposedKind::Lock => "lock",
        ProposedKind::Log => "log",
        ProposedKind::None => "none",
    };
    let mut all: Vec<_> = proposals.iter().map(|proposal| (&*proposal.pattern, kind(proposal))).collect();
    all.sort_unstable();
    all
}

fn tags<'p>(proposals: &'p [Proposal], pattern: &str) -> &'p [String] {
    match &proposals.iter().find(|proposal| proposal.pattern == pattern).unwrap().kind {
        ProposedKind::Guarded { tags, .. } => tags,
        _ => panic!("{pattern} is not guarded"),
    }
}

#[test]
fn of_a_blog_posts_and_their_comments_are_guarded_with_one_tag() {
    let proposals = blog().propose();
    let expected = [
        ("front", "guarded"),
        ("post:{post}", "guarded"),
        ("post:{post}:comments", "guarded"),
        ("session:{session}", "none"),
        ("title:{title}", "guarded"),
    ];
    assert_eq!(pattern_and_kind(&proposals), expected);
    assert_eq!(tags(&proposals, "post:{post}"), ["post:{post}"]);
    assert_eq!(tags(&proposals, "post:{post}:comments"), ["post:{post}"]);
    assert!(tags(&proposals, "front").is_empty() && tags(&proposals, "title:{title}").is_empty());
    let of = |pattern: &str| &proposals.iter().find(|proposal| proposal.pattern == pattern).unwrap().family;
    let Family { builds, spared, at_once, .. } = of("post:{post}");
    assert_eq!((*builds, *spared, *at_once), (180, 120, 3));
    let Family { builds, spared, at_once, .. } = of("front");
    assert_eq!((*builds, *spared, *at_once), (480, 420, 8));
    assert!(of("title:{title}").spared == 0);
}

#[test]
fn of_a_shop_stock_is_a_counter_an_order_has_a_lock_and_events_are_a_log() {
    let proposals = shop().propose();
    let expected = [
        ("lock:order:{order}", "lock"),
        ("menu_main", "guarded"),
        ("orders-{date}", "log"),
        ("product:{product}", "guarded"),
        ("products:{product}:price", "guarded"),
        ("stock:{stock}", "counter"),
    ];
    assert_eq!(pattern_and_kind(&proposals), expected);
    assert_eq!(tags(&proposals, "product:{product}"), ["product:{product}"]);
    assert_eq!(tags(&proposals, "products:{product}:price"), ["product:{product}"]);
    let slow = proposals.iter().find(|proposal| proposal.pattern == "menu_main").unwrap();
    let ProposedKind::Guarded { stale_for, cold_wait, .. } = &slow.kind else { panic!("not guarded") };
    // A build takes 2 s.
    assert!((40..=60).contains(&stale_for.as_secs()), "{stale_for:?}");
    assert!((4..=6).contains(&cold_wait.as_secs()), "{cold_wait:?}");
}

#[test]
fn a_rate_limiter_is_a_counter() {
    assert_eq!(pattern_and_kind(&rate_limiter().propose()), [("rate:{address}:{n}", "counter")]);
}

#[test]
fn what_is_proposed_is_a_configuration_with_its_figures_as_comments() {
    for (traffic, rules) in [(blog(), 4), (shop(), 6), (rate_limiter(), 1), (libraries(), 4)] {
        let proposals = traffic.propose();
        let looked =
            Looked { at: "a test".to_owned(), lasted: std::time::Duration::from_secs(3599), dropped: 3 };
        let text = page::text(&proposals, &looked);
        let config = format!("[pools.main]\nservers = [\"10.0.0.1:11211\"]\n\n{text}");
        let config = Config::read("k.toml", &config, []).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!((config.rules.len(), config.warnings), (rules, Vec::new()), "{text}");
        assert!(text.contains("over 59 min 59 s.") && text.contains("cannot know"), "{text}");
        assert!(text.contains("3 events are missing"), "{text}");
    }
    let text =
        page::text(&blog().propose(), &Looked { at: "x".to_owned(), lasted: Default::default(), dropped: 0 });
    assert!(text.contains("# 180 builds; a guard would have spared 120 (66 %)"), "{text}");
    assert!(text.contains("# session:{session}: 0 misses, 60 sets, 0 adds, 0 deletes"), "{text}");
}

#[test]
fn names_of_rules_are_unique_and_valid() {
    let mut families = Families::default();
    for key in ["user:1", "user-1", "user.1", "1:2:3", "x:{odd}", &"long-word:".repeat(20)] {
        let build =
            crate::observed::Build { took: Default::default(), spared: false, at_once: 1, of_other: false };
        families.note(key.as_bytes(), None, Some(&build));
    }
    let proposals = propose(&families, &BTreeSet::from(["user".to_owned()]));
    let names: BTreeSet<&str> = proposals.iter().map(|proposal| &*proposal.name).collect();
    assert_eq!(names.len(), 6);
    assert!(!names.contains("user") && names.contains("user-2"), "{names:?}");
    let text = page::text(&proposals, &Looked { at: "x".to_owned(), lasted: Default::default(), dropped: 0 });
    let config = format!("[pools.main]\nservers = [\"10.0.0.1:11211\"]\n\n{text}");
    assert!(Config::read("k.toml", &config, []).is_ok(), "{text}");
}

#[test]
fn what_is_no_recording_is_refused_with_the_line() {
    for (text, expected) in [
        ("", "it has no events"),
        ("\n\n", "it has no events"),
        ("{\"dropped\":5}\n", "it has no events"),
        ("hello\n", "line 1 is no event of kennel trace --json"),
        ("[pools.main]\n", "line 1 is no event of kennel trace --json"),
        ("{\"a\":1}\n", "line 1 is no event of kennel trace --json"),
    ] {
        let why = Recording::read(text.as_bytes()).unwrap_err();
        assert!(why.starts_with(expected), "{text}: {why}");
    }
    let cut = format!("{}{{\"time\":\"2026", rate_limiter().text);
    assert!(Recording::read(cut.as_bytes()).unwrap_err().starts_with("line 601 is no event"));
    let wrong = rate_limiter().text.replacen("2026-", "yesterday ", 1);
    assert!(Recording::read(wrong.as_bytes()).unwrap_err().contains("is no time"));
}
