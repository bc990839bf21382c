use super::*;
use crate::config::load;

const RULE: &str = "[[rules]]\nname = \"pages\"\nmatch = \"page:*\"\n";

fn loaded(text: &str) -> Loaded {
    load::read("k.toml", text, []).unwrap()
}

fn pool(keys: &str) -> String {
    format!("[pools.main]\n{keys}\n")
}

fn servers(names: &str) -> String {
    let list = |names: &str| names.chars().map(|c| format!("\"{c}:1\"")).collect::<Vec<_>>().join(", ");
    let other = |(key, names): (&str, &str)| format!("{key} = [{}]", list(names));
    names
        .split(' ')
        .map(|part| other(part.split_once('=').unwrap_or(("servers", part))))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The changes from one text to another: the effect of each, and its text.
fn between(old: &str, new: &str) -> Vec<(Effect, String)> {
    let changes = Changes::between(&loaded(old), &loaded(new));
    changes.all().iter().map(|change| (change.effect, change.text.clone())).collect()
}

fn only(old: &str, new: &str) -> (Effect, String) {
    let all = between(old, new);
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

#[test]
fn servers_that_change_in_one_step_are_refused_with_the_steps() {
    for (from, to) in [("abc", "abd"), ("abc", "abcd"), ("abc", "ab"), ("a", "b")] {
        let (old, new) = (pool(&servers(from)), pool(&servers(to)));
        let changes = Changes::between(&loaded(&old), &loaded(&new));
        assert!(changes.lose_something(), "{from} {to}");
        let lines = changes.losses();
        let list = |names: &str| names.chars().map(|c| format!("\"{c}:1\"")).collect::<Vec<_>>().join(", ");
        let (from, to) = (list(from), list(to));
        let steps = [
            format!("  1. servers = [{from}], next = [{to}]    then: kennel reload"),
            format!("  2. servers = [{to}], previous = [{from}]    then: kennel reload"),
            format!("  3. servers = [{to}], previous = [{from}], take_over = false    then: kennel reload"),
            format!("  4. servers = [{to}]    then: kennel reload"),
        ];
        assert_eq!(lines[2..6], steps);
        assert!(changes.report().starts_with("Would lose something"), "{}", changes.report());
    }
}

#[test]
fn the_steps_of_a_change_are_harmless_and_none_may_be_skipped() {
    let take_over = "take_over = false";
    let steps = ["abc", "abc next=abd", "abd previous=abc", "abd previous=abc", "abd"].map(servers);
    let step = |at: usize| pool(&format!("{}\n{}", steps[at], if at == 3 { take_over } else { "" }));
    for from in 0..5_usize {
        for to in 0..5 {
            let changes = Changes::between(&loaded(&step(from)), &loaded(&step(to)));
            assert_eq!(changes.lose_something(), from.abs_diff(to) > 1, "{from} {to}");
            assert_eq!(changes.all().is_empty(), from == to, "{from} {to}");
        }
    }
    let skipped = Changes::between(&loaded(&step(1)), &loaded(&step(4))).losses();
    assert!(skipped[1].contains("in step 1: end it first"), "{skipped:?}");
    assert!(skipped[2].starts_with("  2. servers = [\"a:1\", \"b:1\", \"d:1\"], previous = "), "{skipped:?}");
}

#[test]
fn the_order_of_servers_and_moved_names_and_embedded_servers_lose_nothing() {
    assert_eq!(between(&pool(&servers("abc")), &pool(&servers("cab"))), []);
    let named = |address: &str| pool(&format!("servers = [{{ address = {address:?}, name = \"one\" }}]"));
    let (effect, text) = only(&named("a:1"), &named("b:1"));
    assert_eq!(effect, Effect::BuildsAgain);
    assert!(text.contains("the servers one keep their names"), "{text}");
    let embedded = |size| pool(&format!("servers = [\"embedded:{size}MiB\"]"));
    assert_eq!(only(&embedded(1), &embedded(2)).0, Effect::BuildsAgain);
}

#[test]
fn another_distribution_is_refused_with_steps_that_are_accepted() {
    let of = |distribution: &str| pool(&format!("{}\ndistribution = {distribution:?}", servers("abc")));
    for other in ["modula", "jump", "rendezvous", "dalli"] {
        for (old, new) in [("ketama", other), (other, "ketama")] {
            let (effect, text) = only(&of(old), &of(new));
            assert_eq!(effect, Effect::Loses, "{text}");
            assert!(text.contains("almost every key"), "{text}");
        }
    }
    let keys = |keys: &str| pool(&format!("{}\n{keys}", servers("abc")));
    for (old, new) in [
        ("distribution = \"modula\"\nhash = \"crc32\"", "distribution = \"modula\"\nhash = \"md5\""),
        ("hash = \"fnv1a_64\"\nhash_tag = \"{}\"", "hash = \"fnv1a_64\""),
        ("unhashed_prefixes = [\"p:\"]", "distribution = \"rendezvous\""),
        ("distribution = \"dalli\"", "servers_also_change"),
    ] {
        let new = if new == "servers_also_change" { pool(&servers("abd")) } else { keys(new) };
        let changes = Changes::between(&loaded(&keys(old)), &loaded(&new));
        assert!(changes.lose_something());
        let lines = changes.losses();
        let steps: Vec<_> =
            lines.iter().filter_map(|line| line.split_once(". ")?.1.split_once("    then:")).collect();
        assert_eq!(steps.len(), 4, "{lines:#?}");
        // The steps as they are printed, each a reload after the one before.
        let mut before = keys(old);
        for (step, _) in steps {
            let keys = ["distribution", "hash", "hash_tag", "unhashed_prefixes"];
            let others = keys.map(|key| format!("other_{key}"));
            let all = keys.into_iter().chain(others.iter().map(String::as_str)).chain([
                "next",
                "previous",
                "take_over",
            ]);
            let text = all.fold(step.to_owned(), |text, key| {
                text.replace(&format!(", {key} = "), &format!("\n{key} = "))
            });
            let after = pool(&text);
            assert_eq!(only(&before, &after).0, Effect::Harmless, "{before}\n{after}");
            before = after;
        }
        assert!(between(&before, &new).is_empty(), "{before}\n{new}");
    }
}

#[test]
fn a_rule_that_stops_having_tags_is_refused_by_its_name() {
    let pool = pool(&servers("abc"));
    let with = |keys: &str| format!("{pool}{RULE}{keys}\n");
    for (old, new, effect) in [
        ("tags = [\"a\"]", "", Effect::Loses),
        ("tags = [\"a\", \"b\"]", "tags = [\"b\"]", Effect::Loses),
        ("tags_in_key = true", "", Effect::Loses),
        ("tags = [\"a\"]", "tags = [\"b\"]", Effect::BuildsAgain),
        ("", "tags = [\"b\"]", Effect::BuildsAgain),
        ("tags = [\"a\"]", "kind = \"raw\"", Effect::BuildsAgain),
    ] {
        let (found, text) = only(&with(old), &with(new));
        assert_eq!(found, effect, "{old} {new}: {text}");
        assert!(text.starts_with("rule \"pages\"") && !text.contains("rules["), "{text}");
    }
    // Whatever its index and its name are.
    let other = "[[rules]]\nname = \"first\"\nmatch = \"f:*\"\nkind = \"raw\"\n";
    let (old, new) =
        (with("tags = [\"a\"]"), format!("{pool}{other}{}", RULE.replace("\"pages\"", "\"renamed\"")));
    let all = between(&old, &new);
    assert_eq!(all.iter().filter(|(effect, _)| *effect == Effect::Loses).count(), 1, "{all:?}");
    assert!(all[0].1.starts_with("rule \"renamed\" stops having the tags \"a\""), "{all:?}");
}

#[test]
fn where_tags_are_may_not_change_while_a_rule_is_guarded() {
    let pools = pool(&servers("abc")) + "[pools.tags]\nservers = [\"t:1\"]\n";
    let guarded = format!("{pools}{RULE}");
    for keys in ["prefix = \"t:\"", "pool = \"tags\""] {
        let (effect, text) = only(&guarded, &format!("{guarded}[tags]\n{keys}\n"));
        assert_eq!(effect, Effect::Loses, "{text}");
        let raw = format!("{guarded}kind = \"raw\"\n");
        assert_eq!(between(&raw, &format!("{raw}[tags]\n{keys}\n")), []);
    }
}

#[test]
fn a_pool_goes_only_after_the_rules_with_copies_there() {
    let other = "[pools.other]\nservers = [\"d:1\", \"e:1\", \"f:1\"]\n";
    let rule =
        |more: &str| format!("[[rules]]\nname = \"carts\"\nmatch = \"cart:*\"\npool = \"other\"\n{more}\n");
    let main = pool(&servers("abc"));
    for kind in ["raw", "counter", "list", "lock", "table"] {
        let copied = rule(&format!("kind = {kind:?}\ncopies = 2"));
        let all = between(&format!("{main}{other}{copied}"), &main);
        assert_eq!(all[0].0, Effect::Loses, "{all:?}");
        assert!(all[0].1.contains("pool \"other\" goes") && all[0].1.contains("\"carts\""), "{all:?}");
        // First the rule, then the pool.
        let all = between(&format!("{main}{other}{copied}"), &format!("{main}{other}"));
        assert!(all.iter().all(|(effect, _)| *effect != Effect::Loses), "{all:?}");
        assert_eq!(only(&format!("{main}{other}"), &main).0, Effect::Harmless);
    }
    let all = between(&format!("{main}{other}{}", rule("")), &main);
    assert!(all.iter().all(|(effect, _)| *effect == Effect::BuildsAgain), "{all:?}");
}

#[test]
fn a_rule_that_moves_to_another_pool_is_refused() {
    let pools = pool(&servers("abc")) + "[pools.other]\nservers = [\"d:1\"]\n";
    let (effect, text) = only(&format!("{pools}{RULE}"), &format!("{pools}{RULE}pool = \"other\"\n"));
    assert_eq!(effect, Effect::Loses);
    assert!(text.contains("rule \"pages\": pool \"main\" → \"other\""), "{text}");
}

#[test]
fn what_is_built_again_and_what_clients_notice_is_told_by_the_name_of_the_rule() {
    let pool = pool(&servers("abc"));
    let base = format!("{pool}{RULE}");
    let raw = format!("{base}kind = \"raw\"\n");
    let without_failover = |text: &str| text.replace("[pools.main]\n", "[pools.main]\nfailover = false\n");
    for (old, new, effect, expected) in [
        (&raw, &base, Effect::BuildsAgain, "each value that was stored raw is stale"),
        (
            &without_failover(&raw),
            &without_failover(&base),
            Effect::Harmless,
            "stored raw are hits until they expire",
        ),
        (&base, &raw, Effect::BuildsAgain, "kind guarded → raw"),
        (&base, &pool, Effect::BuildsAgain, "rule \"pages\" (match = \"page:*\") goes"),
        (&pool, &base, Effect::BuildsAgain, "rule \"pages\" (match = \"page:*\", kind = guarded) is new"),
        (&base, &without_failover(&base), Effect::BuildsAgain, "no longer fails over"),
        (
            &base,
            &format!("{base}stale_for = \"30s\"\n"),
            Effect::Harmless,
            "stale_for: not set → \"30s\" (how long",
        ),
        (&base, &base.replace("page:*", "p:*"), Effect::Harmless, "match \"page:*\" → \"p:*\""),
        (&base, &base.replace("\"pages\"", "\"other\""), Effect::Harmless, "\"pages\" is called \"other\""),
        (&base, &format!("{base}kind = \"counter\"\n"), Effect::Harmless, ""),
        (&base, &format!("[log]\nslow = \"1s\"\n{base}"), Effect::Harmless, "log.slow: not set → \"1s\""),
    ] {
        if expected.is_empty() {
            continue;
        }
        let (found, text) = only(old, new);
        assert_eq!(found, effect, "{text}");
        assert!(text.contains(expected) && !text.contains("rules["), "{text}");
    }
    let counter = only(&base, &format!("{base}kind = \"counter\"\n"));
    assert!(counter.0 == Effect::BuildsAgain && counter.1.contains("guarded → counter"), "{counter:?}");
    let observed = format!("{base}kind = \"observe\"\n");
    let (effect, text) = only(&raw, &observed);
    assert!(effect == Effect::Harmless && text.contains("kind raw → observe"), "{text}");
    assert_eq!(only(&base, &observed).0, Effect::BuildsAgain);
    let two = "[[rules]]\nname = \"b\"\nmatch = \"b:*\"\nkind = \"raw\"\n";
    let order = only(&format!("{pool}{two}{RULE}"), &format!("{pool}{RULE}{two}"));
    assert!(order.1.contains("the order of the rules"), "{order:?}");
    assert_eq!(Changes::between(&loaded(&base), &loaded(&base)).report(), "nothing changes\n");
}

#[test]
fn a_file_that_was_read_again_is_named_and_not_shown() {
    let path = std::env::temp_dir().join(format!("kennel-changes-{}", std::process::id()));
    let text =
        format!("[pools.main]\n{}\nauth = {{ user = \"ann\", password_file = {path:?} }}\n", servers("abc"));
    std::fs::write(&path, "s3cret\n").unwrap();
    let old = loaded(&text);
    std::fs::write(&path, "0ther\n").unwrap();
    let new = loaded(&text);
    std::fs::remove_file(&path).unwrap();
    let changes = Changes::between(&old, &new);
    let expected = format!("the password or token file {} was read again: it has changed", path.display());
    assert_eq!(changes.all(), [Change::new(Effect::Harmless, expected)]);
    assert_eq!(Changes::between(&old, &old).all(), []);
    assert!(!format!("{old:?}{}", changes.report()).contains("s3cret"));
}
