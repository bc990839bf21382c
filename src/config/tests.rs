use std::collections::HashSet;
use std::time::Duration;

use config::{FileFormat, Map, Source, Value, ValueKind};

use super::errors::ConfigErrors;
use super::file::{
    self, Admin, Discovery, Health, Listen, Near, Pool, Repair, Rule, Server, Tags, ValueType,
};
use super::settings::{self, Config, RuleKind};
use crate::guard::{OnInvalidate, Policy};
use crate::listener::{ListenAddress, ListenerSpec};
use crate::proxy::MetaWinner;
use crate::upstream::{Address, Distribution, Hash};

const POOL: &str = "[pools.main]\nservers = [\"10.0.0.1:11211\"]\n";

fn env(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn read(text: &str) -> Result<Config, ConfigErrors> {
    Config::read("k.toml", text, [])
}

/// The only error in `text`.
fn error(text: &str) -> String {
    let errors = read(text).expect_err(text).without_places();
    assert_eq!(errors.len(), 1, "{text}\n{errors:#?}");
    errors[0].clone()
}

#[test]
fn an_error_names_the_line_of_its_key_or_of_the_table_that_lacks_it() {
    let text = "[pools.main]\nservers = [\n  \"a:1\",\n  \"b\",\n]\nhash = \"x\"\n\n[[rules]]\nname = \"r\"\n[[rules]]\nname = \"s\"\nmatch = \"*\"\nkinf = \"raw\"\n";
    let errors = read(text).unwrap_err();
    let places = errors.lines().iter().map(|line| &line[..line.match_indices(": ").nth(1).unwrap().0]);
    let expected = ["k.toml: line 4", "k.toml: line 6", "k.toml: line 8", "k.toml: line 13"];
    assert_eq!(places.collect::<Vec<_>>(), expected, "{errors}");
    let by_variable = Config::read("k.toml", POOL, env(&[("KENNEL_TAGS__CACHE", "1")])).unwrap_err();
    assert!(by_variable.lines()[0].starts_with("KENNEL_TAGS__CACHE: tags.cache"), "{by_variable}");
}

/// A file with one rule that has these keys besides its name.
fn rule(keys: &str) -> String {
    format!("{POOL}[[rules]]\nname = \"user\"\n{keys}")
}

fn shipped(name: &str) -> (String, String) {
    let path = format!("{}/config/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

fn raw_table(text: &str) -> Map<String, Value> {
    config::File::from_str(text, FileFormat::Toml).collect().unwrap()
}

#[test]
fn the_reference_parses_to_the_defaults() {
    let (path, text) = shipped("kennel.toml");
    let reference = Config::read(&path, &text, []).unwrap();
    let least = r#"
        [pools.main]
        servers = ["10.0.0.1:11211", { address = "10.0.0.2:11211", name = "b" }, "10.0.0.3:11211"]
        [[rules]]
        name = "blog-pages"
        match = "blog:{blog}:page:*"
    "#;
    assert_eq!(reference, read(least).unwrap());
}

#[test]
fn the_reference_has_every_key() {
    fn keys_of(value: Option<&Value>) -> HashSet<String> {
        match value.map(|v| &v.kind) {
            Some(ValueKind::Table(table)) => table.keys().cloned().collect(),
            other => panic!("not a table: {other:?}"),
        }
    }
    fn inside<'v>(value: Option<&'v Value>, key: &str) -> Option<&'v Value> {
        match &value?.kind {
            ValueKind::Table(table) => table.get(key),
            ValueKind::Array(parts) => parts.get(key.parse::<usize>().ok()?),
            _ => None,
        }
    }
    let text = shipped("kennel.toml").1;
    let root = raw_table(&text);
    let main = inside(root.get("pools"), "main");
    let tables: [(_, &[(&str, ValueType)]); 11] = [
        (root.get("log"), file::Log::KEYS),
        (root.get("listen"), Listen::KEYS),
        (root.get("admin"), Admin::KEYS),
        (main, Pool::KEYS),
        (inside(main, "health"), Health::KEYS),
        (inside(main, "repair"), Repair::KEYS),
        (inside(inside(main, "servers"), "1"), Server::KEYS),
        (root.get("tags"), Tags::KEYS),
        (root.get("near"), Near::KEYS),
        (root.get("discovery"), Discovery::KEYS),
        (inside(root.get("rules"), "0"), Rule::KEYS),
    ];
    for (table, keys) in tables {
        let mut found = keys_of(table);
        if found.remove("health") && found.remove("repair") {
            // Tables of their own. And these exclude each other, so they are comments.
            let others = ["other_distribution", "other_hash", "other_hash_tag", "other_unhashed_prefixes"];
            for key in
                ["next", "previous", "take_over", "hash_tag", "unhashed_prefixes"].into_iter().chain(others)
            {
                assert!(text.contains(&format!("\n# {key} = ")), "{key}");
                found.insert(key.to_owned());
            }
        }
        // The reference rule is guarded, so the keys of structures are comments.
        if found.contains("match") {
            let structures = keys.iter().filter(|(key, _)| text.contains(&format!("\n# {key} = ")));
            found.extend(structures.map(|(key, _)| (*key).to_owned()));
        }
        if found.contains("explain") {
            // The files are examples.
            for key in ["tls", "auth_file", "token_file"] {
                assert!(text.contains(&format!("\n# {key} = ")), "{key}");
                found.insert(key.to_owned());
            }
        }
        assert_eq!(found, keys.iter().map(|(key, _)| key.to_string()).collect());
    }
    assert_eq!(root.keys().map(String::as_str).collect::<HashSet<_>>(), HashSet::from(file::ROOT));
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let config = read(&rule("match = \"user:{id}\"")).unwrap();
    let address = ListenAddress { host: "127.0.0.1".into(), port: 11211 };
    assert_eq!(
        config.listen.tcp,
        [ListenerSpec { address, requirements: Default::default(), clients: Default::default() }]
    );
    assert_eq!((config.listen.unix_mode, config.listen.max_connections), (0o660, 10_000));
    assert_eq!((config.listen.idle_timeout, config.listen.max_buffered), (Duration::ZERO, 512 << 20));
    assert_eq!(config.admin.unwrap().listen.to_string(), "127.0.0.1:9111");
    assert_eq!(
        config.tags,
        settings::Tags { prefix: b"@tag:".to_vec(), cache: Duration::ZERO, pool: 0, replicas: 1 }
    );
    assert_eq!(config.near, settings::Near { memory: 64 << 20 });
    let pool = &config.pools[0];
    assert_eq!((pool.scheme.distribution, pool.scheme.hash), (Distribution::Ketama, Hash::Md5));
    assert_eq!(pool.connect_timeout + pool.request_timeout, Duration::from_millis(700));
    let RuleKind::Guarded { policy, tags, tags_in_key: false, meta_winner: MetaWinner::Miss } =
        &config.rules[0].kind
    else {
        panic!("{:?}", config.rules[0].kind)
    };
    assert!(tags.is_empty());
    let s = Duration::from_secs;
    let expected = Policy {
        stale_for: s(60),
        stale_before_expiry: false,
        lock_ttl: s(5),
        max_rebuild: s(60),
        stale_wait: s(0),
        cold_wait: s(2),
        cold_limit: s(10),
        outage_ttl: s(1),
        on_tag: OnInvalidate::Stale,
        on_delete: OnInvalidate::Drop,
        early_beta: 0.0,
        max_ttl: s(0),
        near: s(0),
        plan: 0,
    };
    assert_eq!(*policy, expected);
}

#[test]
fn without_a_file_everything_is_guarded_by_an_embedded_memcached() {
    let config = Config::load(None, []).unwrap();
    assert_eq!(config.listen.tcp[0].address.to_string(), "127.0.0.1:11211");
    assert_eq!(config.admin.unwrap().listen.to_string(), "127.0.0.1:9111");
    assert_eq!(config.pools[0].servers[0].address, Address::Embedded { limit: 64 << 20 });
    let [rule] = &config.rules[..] else { panic!("{:?}", config.rules) };
    assert_eq!((rule.name.as_str(), rule.pattern.is_everything()), ("everything", true));
    assert!(matches!(rule.kind, RuleKind::Guarded { .. }));
    assert_eq!(config.warnings, [] as [String; 0]);
}

#[test]
fn all_errors_are_reported_together() {
    let text = r#"
        color = "red"
        [listen]
        tcp = ["127.0.0.1"]
        workers = "many"
        [pools.main]
        servers = ["10.0.0.1"]
        request_timeout = 5
        [tags]
        cache = "2h"
        pool = "mian"
        [[rules]]
        name = "user"
        match = "user:{id}{x}"
        stale_fro = "5s"
        lock_ttl = "90s"
        tags = ["t t"]
        [[rules]]
        match = "x"
        kind = "rw"
    "#;
    let errors = read(text).unwrap_err();
    let expected = [
        r#"k.toml: color is not a known key: must be one of reload, log, listen, admin, pools, tags, near, observe, discovery, rules"#,
        r#"k.toml: listen.tcp[0] ("127.0.0.1") must be host:port, as in "127.0.0.1:11211""#,
        r#"k.toml: listen.workers ("many") must be a whole number from 0 to 64"#,
        r#"k.toml: pools.main.servers[0] ("10.0.0.1") has no port: add :11211"#,
        r#"k.toml: pools.main.request_timeout (5) must be a whole number with a unit, in quotes: "250ms", "5s""#,
        r#"k.toml: tags.cache ("2h") must be at most 60s"#,
        r#"k.toml: tags.pool ("mian") is not a pool: must be one of "main""#,
        r#"k.toml: rules[0] "user": stale_fro is not a known key: did you mean stale_for?"#,
        r#"k.toml: rules[0] "user": match ("user:{id}{x}") is not a valid pattern: character 10: a {name} or * directly behind another is ambiguous: put literal text between them"#,
        r#"k.toml: rules[0] "user": lock_ttl ("90s") must be below max_rebuild ("60s", the default)"#,
        r#"k.toml: rules[1] "x": name is missing: metrics show it, add name = "pages""#,
        r#"k.toml: rules[1] "x": kind ("rw") must be "guarded" or "raw" or "observe" or "counter" or "list" or "lock" or "log" or "table" or "window""#,
    ];
    assert_eq!(errors.without_places(), expected, "{errors}");
    assert_eq!(errors.to_string(), errors.lines().join("\n"));
}

#[test]
fn a_lock_must_end_before_the_rebuild() {
    let found = error(&rule("match = \"user:*\"\nlock_ttl = \"90s\"\nmax_rebuild = \"60s\""));
    assert_eq!(found, r#"k.toml: rules[0] "user": lock_ttl ("90s") must be below max_rebuild ("60s")"#);
    let found = error(&rule("match = \"user:*\"\nmax_rebuild = \"5s\""));
    assert_eq!(
        found,
        r#"k.toml: rules[0] "user": max_rebuild ("5s") must be above lock_ttl ("5s", the default)"#
    );
}

/// The last value that is accepted and the first that is not.
#[test]
fn every_limit_is_where_the_reference_says() {
    let nameservers = |n: usize| {
        let all: Vec<String> = (1..=n).map(|n| format!("10.0.0.{n}")).collect();
        format!("[discovery]\nnameservers = {all:?}")
    };
    let listen = |keys: &str| format!("{POOL}[listen]\n{keys}");
    let guarded = |keys: &str| rule(&format!("match = \"user:{{id}}\"\n{keys}"));
    let counter = |keys: &str| rule(&format!("match = \"user:*\"\nkind = \"counter\"\n{keys}"));
    let list = |keys: &str| rule(&format!("match = \"user:*\"\nkind = \"list\"\n{keys}"));
    let lock = |keys: &str| rule(&format!("match = \"user:*\"\nkind = \"lock\"\n{keys}"));
    let window = |keys: &str| rule(&format!("match = \"user:*\"\nkind = \"window\"\n{keys}"));
    let log = |keys: &str| rule(&format!("match = \"user:*\"\nkind = \"log\"\n{keys}"));
    let pool = |keys: &str| format!("{POOL}{keys}");
    let servers = |one: &str| format!("[pools.main]\nservers = [{one}]\n");
    let failover = |keys: &str| format!("{}{keys}", servers("\"a:1\", \"b:1\", \"c:1\""));
    let many = |n: usize, one: fn(usize) -> String| (0..n).map(one).collect::<Vec<_>>().join(", ");
    let table = |s: &str| format!("{{ address = \"a:1\", {s} }}");
    let pools = |n: usize| {
        let more = (1..n).map(|i| format!("[pools.p{i}]\nservers = [\"a:1\"]\n"));
        format!("{POOL}{}", more.collect::<String>())
    };
    let rules = |n: usize| {
        let each = |i| format!("[[rules]]\nname = \"r{i}\"\nmatch = \"r{i}\"\nkind = \"raw\"\n");
        format!("{POOL}{}", (0..n).map(each).collect::<String>())
    };
    let long = |n: usize| "x".repeat(n);
    let prefixes = |n: usize| {
        let all: Vec<String> = (0..n).map(|n| format!("app{n}:")).collect();
        format!("unhashed_prefixes = {all:?}")
    };
    for (good, bad) in [
        (format!("{POOL}[log]\nslow = \"0s\""), format!("{POOL}[log]\nslow = 0")),
        (format!("{POOL}[log]\nslow = \"60s\""), format!("{POOL}[log]\nslow = \"60001ms\"")),
        (format!("{POOL}[log]\nkeys = \"hash\""), format!("{POOL}[log]\nkeys = \"none\"")),
        (format!("{POOL}[log]\nkeys = \"prefix:0\""), format!("{POOL}[log]\nkeys = \"prefix:\"")),
        (format!("{POOL}[log]\nkeys = \"prefix:250\""), format!("{POOL}[log]\nkeys = \"prefix:251\"")),
        (listen("max_connections = 1"), listen("max_connections = 0")),
        (listen("max_connections = 1000000"), listen("max_connections = 1000001")),
        (listen("flush_all = \"refuse\""), listen("flush_all = \"deny\"")),
        (listen("flush_all = \"allow\""), listen("flush_all = false")),
        (listen("idle_timeout = \"1d\""), listen("idle_timeout = \"86401s\"")),
        (listen("max_buffered = \"16MiB\""), listen("max_buffered = \"15MiB\"")),
        (listen("max_buffered = \"1024GiB\""), listen("max_buffered = \"1025GiB\"")),
        (listen("max_buffered = \"64MiB\""), listen("max_buffered = 67108864")),
        (listen("workers = 64"), listen("workers = 65")),
        (listen("workers = 0"), listen("workers = -1")),
        (listen("unix_mode = \"0777\""), listen("unix_mode = \"1777\"")),
        (listen("unix_mode = \"0600\""), listen("unix_mode = 0o600")),
        (listen(&format!("unix = [\"/{}\"]", long(106))), listen(&format!("unix = [\"/{}\"]", long(107)))),
        (guarded("lock_ttl = \"1s\""), guarded("lock_ttl = \"0s\"")),
        (counter("ttl = \"3650d\""), counter("ttl = \"3651d\"")),
        (counter("ttl = \"0s\""), counter("ttl = \"1ms\"")),
        (list("ttl = \"3650d\""), list("ttl = \"3651d\"")),
        (lock("ttl = \"1s\""), lock("ttl = \"0s\"")),
        (lock("ttl = \"1d\""), lock("ttl = \"86401s\"")),
        (lock("fence = true"), lock("fence = \"true\"")),
        (window("window = \"30d\""), window("window = \"31d\"")),
        (log("window = \"100s\"\nslot = \"1s\""), log("window = \"101s\"\nslot = \"1s\"")),
        (log("window = \"1s\"\nslot = \"1s\""), log("window = \"1s\"\nslot = \"999ms\"")),
        (window("window = \"1s\""), window("window = \"999ms\"\nslots = 2")),
        (window("window = \"1m\"\nslots = 100"), window("window = \"1m\"\nslots = 101")),
        (window("window = \"1m\"\nslots = 2"), window("window = \"1m\"\nslots = 1")),
        (guarded("lock_ttl = \"2000ms\""), guarded("lock_ttl = \"1500ms\"")),
        (
            guarded("lock_ttl = \"1h\"\nmax_rebuild = \"1d\""),
            guarded("lock_ttl = \"3601s\"\nmax_rebuild = \"1d\""),
        ),
        (guarded("max_rebuild = \"86400s\""), guarded("max_rebuild = \"86401s\"")),
        (guarded("max_rebuild = \"5001ms\""), guarded("max_rebuild = \"5000ms\"")),
        (guarded("stale_for = \"30d\""), guarded("stale_for = \"2592001s\"")),
        (guarded("stale_for = \"0s\""), guarded("stale_for = \"1ms\"")),
        (guarded("cold_wait = \"60s\""), guarded("cold_wait = \"60001ms\"")),
        (guarded("cold_limit = \"300s\""), guarded("cold_limit = \"300001ms\"")),
        (guarded("cold_limit = \"2s\""), guarded("cold_limit = \"1999ms\"")),
        (guarded("outage_ttl = \"60s\""), guarded("outage_ttl = \"60001ms\"")),
        (guarded("stale_wait = \"60s\""), guarded("stale_wait = \"60001ms\"")),
        (guarded("early_beta = 100"), guarded("early_beta = 100.1")),
        (guarded("early_beta = 0.0"), guarded("early_beta = -0.1")),
        (guarded("early_beta = 1.0"), guarded("early_beta = nan")),
        (guarded("early_beta = 1"), guarded("early_beta = inf")),
        (guarded("max_ttl = \"3650d\""), guarded("max_ttl = \"3651d\"")),
        (guarded("near = \"10s\""), guarded("near = \"10001ms\"")),
        (guarded("near = \"1ms\""), guarded("near = 50")),
        (pool("[discovery]\ninterval = \"1s\""), pool("[discovery]\ninterval = \"999ms\"")),
        (pool("[discovery]\ninterval = \"1h\""), pool("[discovery]\ninterval = \"3601s\"")),
        (pool("[discovery]\nsettle = \"60s\""), pool("[discovery]\nsettle = \"59s\"")),
        (pool("[discovery]\nsettle = \"1d\""), pool("[discovery]\nsettle = \"86401s\"")),
        (pool(&nameservers(8)), pool(&nameservers(9))),
        (pool("[near]\nmemory = \"1MiB\""), pool("[near]\nmemory = \"1023KiB\"")),
        (pool("[near]\nmemory = \"1024GiB\""), pool("[near]\nmemory = \"1025GiB\"")),
        (guarded("max_ttl = \"1s\""), guarded("max_ttl = \"1001ms\"")),
        (
            guarded(&format!("tags = [{}]", many(16, |i| format!("\"t{i}\"")))),
            guarded(&format!("tags = [{}]", many(17, |i| format!("\"t{i}\"")))),
        ),
        (pool("connect_timeout = \"1ms\""), pool("connect_timeout = \"0ms\"")),
        (pool("request_timeout = \"60s\""), pool("request_timeout = \"61s\"")),
        (servers(&table("weight = 65535")), servers(&table("weight = 65536"))),
        (servers(&table("weight = 1")), servers(&table("weight = 0"))),
        (servers(&table("name = \"b\"")), servers(&table("name = \"b b\""))),
        (
            servers(&many(1024, |i| format!("\"a:{}\"", i + 1))),
            servers(&many(1025, |i| format!("\"a:{}\"", i + 1))),
        ),
        (failover("window = \"200ms\""), failover("window = \"199ms\"")),
        (failover("fail_after = \"300s\""), failover("fail_after = \"301s\"")),
        (failover("recover_after = \"5m\""), failover("recover_after = \"6m\"")),
        (failover("standby_ttl = \"1s\""), failover("standby_ttl = \"1500ms\"")),
        (failover("standby_ttl = \"1d\""), failover("standby_ttl = \"86401s\"")),
        (failover("failover = true"), pool("failover = true")),
        (pool("next = [\"b:1\"]"), pool("next = [\"127.0.0.1:11212\"]\nprevious = [\"b:1\"]")),
        (pool("previous = [\"b:1\", \"c:1\"]"), pool("previous = []")),
        (pool("previous = [\"b:1\"]\ntake_over = false"), pool("next = [\"b:1\"]\ntake_over = false")),
        (pool(""), pool("take_over = true")),
        (pool("next = [\"b:1\"]"), pool("next = [\"embedded:1MiB\"]")),
        (failover("next = [\"a:1\", \"b:1\", \"d:1\"]"), failover("next = [\"a:1\", \"b:1\", \"c:1\"]")),
        (
            servers("{ address = \"a:1\", name = \"a\" }") + "next = [{ address = \"b:1\", name = \"b\" }]",
            servers("{ address = \"a:1\", name = \"a\" }") + "next = [{ address = \"b:1\", name = \"a\" }]",
        ),
        (failover("previous = [\"a:1\"]\nfailover = false"), failover("previous = [\"a:1\"]")),
        (servers("\"a:1\""), servers("")),
        (servers("\"a:65535\""), servers("\"a:0\"")),
        (servers("\"embedded:1MiB\""), servers("\"embedded:1023KiB\"")),
        (servers("\"embedded:64GiB\""), servers("\"embedded:65GiB\"")),
        (pools(64), pools(65)),
        (rules(10_000), rules(10_001)),
        (pool("[tags]\ncache = \"60s\""), pool("[tags]\ncache = \"61s\"")),
        (
            pool(&format!("[tags]\nprefix = \"{}\"", long(32))),
            pool(&format!("[tags]\nprefix = \"{}\"", long(33))),
        ),
        (pool("[tags]\nprefix = \"t\""), pool("[tags]\nprefix = \"\"")),
        (pool("[tags]\nprefix = \"é\""), pool("[tags]\nprefix = \"a b\"")),
        (pool("distribution = \"ketama\"\nhash = \"fnv1a_64\""), pool("hash = \"murmur3\"")),
        (
            pool(
                "distribution = \"modula_sorted\"\nhash = \"crc32a\"\nprevious = [{ address = \"b:1\", weight = 2 }]",
            ),
            pool("distribution = \"modula\"\nprevious = [{ address = \"b:1\", weight = 2 }]"),
        ),
        (pool(&prefixes(64)), pool(&prefixes(65))),
        (pool("distribution = \"jump\""), pool("distribution = \"jump\"\nhash = \"fnv1a_32\"")),
    ] {
        let short = |text: &str| text.chars().take(200).collect::<String>();
        assert!(read(&good).is_ok(), "{}\n{}", short(&good), read(&good).unwrap_err());
        let errors = read(&bad).err().unwrap_or_else(|| panic!("accepted: {}", short(&bad)));
        assert_eq!(errors.without_places().len(), 1, "{}\n{errors}", short(&bad));
    }
}

#[test]
fn duplicates_are_refused() {
    let twice = |list: &str| error(&format!("[pools.main]\nservers = {list}"));
    assert!(twice(r#"["a:1", "A:1"]"#).contains("servers[1] (\"A:1\") is the same as servers[0]"));
    let named = r#"[{ address = "a:1", name = "x" }, { address = "b:1", name = "x" }]"#;
    assert!(twice(named).contains("has the same ring name as servers[0], \"x\""));
    let as_host = r#"["a:11211", { address = "b:1", name = "a" }]"#;
    assert!(twice(as_host).contains("has the same ring name as servers[0], \"a\""));
    assert!(
        twice(r#"["embedded:64MiB", "embedded:64MiB"]"#)
            .contains("(\"embedded:64MiB\") has the same ring name as servers[0], \"embedded:64MiB\"")
    );
    let listen = |keys: &str| format!("{POOL}[listen]\n{keys}");
    assert!(
        error(&listen("tcp = [\"a:1\", \"A:1\"]"))
            .contains("listen.tcp[1] (\"A:1\") conflicts with listen.tcp[0]")
    );
    assert!(error(&listen("unix = [\"/a\", \"/a\"]")).contains("listen.unix[1]"));
    assert!(read(&listen("tcp = [\"a:0\", \"a:0\"]")).is_ok());
    let admin = format!("{POOL}[admin]\nlisten = \"127.0.0.1:11211\"");
    assert!(error(&admin).contains("conflicts with listen.tcp[0]"));
    let rules = "[[rules]]\nname = \"a\"\nmatch = \"x\"\n[[rules]]\nname = \"a\"\nmatch = \"y\"";
    assert!(
        error(&format!("{POOL}{rules}"))
            .contains("rules[1] \"a\": name (\"a\") is already the name of rules[0]")
    );
    assert!(error(&rule("match = \"x\"\ntags = [\"t\", \"t\"]")).contains("tags[1] is the same as tags[0]"));
}

#[test]
fn sizes_follow_the_memory_limit_of_the_process_unless_they_are_set() {
    let sizes = |memory: Option<u64>, text: &str| {
        let config = super::load::read_within(memory, "k.toml", text, []).unwrap().config;
        (config.listen.max_buffered >> 20, config.near.memory >> 20)
    };
    let auto = format!("[listen]\nmax_buffered = \"auto\"\n{POOL}[near]\nmemory = \"auto\"\n");
    for text in [POOL, &auto] {
        for (limit, expected) in
            [(None, (512, 64)), (Some(128), (32, 8)), (Some(1), (16, 1)), (Some(1 << 20), (512, 64))]
        {
            assert_eq!(sizes(limit.map(|mib: u64| mib << 20), text), expected, "{limit:?}");
        }
    }
    let set = auto.replacen("auto", "1GiB", 1).replacen("auto", "2MiB", 1);
    assert_eq!(sizes(Some(128 << 20), &set), (1024, 2));
    let wrong = error(&auto.replacen("auto", "much", 1));
    assert!(wrong.contains("listen.max_buffered") && wrong.ends_with(", or \"auto\""), "{wrong}");
}

#[test]
fn the_pool_main_is_required() {
    for text in ["", "[pools]", "[pools.other]\nservers = [\"a:1\"]"] {
        let found = error(text);
        assert!(found.starts_with("k.toml: pools.main is missing"), "{found}");
        assert!(found.contains("add [pools.main] with servers = ["), "{found}");
    }
    let given = env(&[("KENNEL_POOLS__MAIN__SERVERS", "a:1")]);
    assert!(Config::read("k.toml", "", given).is_ok());
}

#[test]
fn pools_are_indexed_with_main_first() {
    let text = r#"
        [pools.aux]
        servers = ["a:1"]
        [pools.main]
        servers = ["b:1"]
        [pools.web]
        servers = ["c:1"]
        distribution = "modula"
        [tags]
        pool = "aux"
        [[rules]]
        name = "r"
        match = "*"
        pool = "web"
    "#;
    let config = read(text).unwrap();
    assert_eq!(config.pools.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["main", "aux", "web"]);
    assert_eq!((config.tags.pool, config.rules[0].pool), (1, 2));
    assert_eq!(config.pools[2].scheme.hash, Hash::Crc32);
}

#[test]
fn a_pool_with_errors_is_not_also_reported_missing() {
    let text = "[pools.main]\nservers = [\"a\"]\n[[rules]]\nname = \"r\"\nmatch = \"*\"\npool = \"main\"";
    assert!(error(text).contains("add :11211"));
}

#[test]
fn tag_keys_collide_neither_with_lock_keys_nor_with_records() {
    let prefix = |prefix| format!("{POOL}[tags]\nprefix = \"{prefix}\"");
    for bad in ["@", "@l", "@lock", "@lock:", "@lock:#", "@lock:tag:"] {
        let found = format!(
            "k.toml: tags.prefix ({bad:?}) must not begin with \"@lock:\" or be a prefix of it: tag keys would \
             collide with lock keys"
        );
        assert_eq!(error(&prefix(bad)), found);
    }
    for bad in ["@k", "@kennel", "@kennel:", "@kennel:tag:"] {
        let found = format!(
            "k.toml: tags.prefix ({bad:?}) must not begin with \"@kennel:\" or be a prefix of it: tag keys would \
             collide with the records of failover"
        );
        assert_eq!(error(&prefix(bad)), found);
    }
    for (bad, what) in [("@long:x", "keys that are shortened"), ("@probe:", "the keys of probes")] {
        assert!(error(&prefix(bad)).ends_with(what), "{bad}");
    }
    for good in ["@lock;", "@locks:", "@tag:", "lock:", "@@lock:", "@kennels:"] {
        assert!(read(&prefix(good)).is_ok(), "{good}");
    }
}

#[test]
fn wrong_types_are_errors_like_others() {
    for (text, found) in [
        ("listen = 3", "k.toml: listen (3) must be a table: [listen]"),
        ("rules = \"x\"", "k.toml: rules (\"x\") must be a list of tables"),
        ("rules = [1]", "k.toml: rules[0] (1) must be a table"),
        ("[tags]\nprefix = 3", "k.toml: tags.prefix (3) must be a string in quotes"),
        ("[listen]\ntcp = \"a:1\"", "k.toml: listen.tcp (\"a:1\") must be a list"),
        ("[listen]\nworkers = 1.5", "k.toml: listen.workers (1.5) must be a whole number"),
        ("[admin]\nlisten = false", "k.toml: admin.listen (false) must be a string in quotes"),
    ] {
        let whole = format!("{text}\n{POOL}");
        assert!(error(&whole).starts_with(found), "{}", error(&whole));
    }
    let server = "[pools.main]\nservers = [7]";
    assert!(error(server).starts_with("k.toml: pools.main.servers[0] (7) must be \"host:port\" or {"));
    let typo = "[pools.main]\nservers = [{ address = \"a:1\", wieght = 2 }]";
    assert_eq!(error(typo), "k.toml: pools.main.servers[0].wieght is not a known key: did you mean weight?");
    let stray = format!("[pools]\nservers = [\"a:1\"]\n{POOL}");
    assert_eq!(
        error(&stray),
        "k.toml: pools.servers (a list) must be in the table of a pool, such as [pools.main]"
    );
    assert!(error("pools = 1").starts_with("k.toml: pools (1) must be a table"));
}

#[test]
fn a_raw_rule_has_no_keys_of_the_guard() {
    let found = error(&rule("match = \"x\"\nkind = \"raw\"\nstale_for = \"5s\""));
    assert!(found.contains("stale_for (\"5s\") has no effect in a raw rule"), "{found}");
    let found = error(&rule("match = \"x\"\nkind = \"raw\"\nnear = \"50ms\""));
    assert!(found.contains("near (\"50ms\") has no effect in a raw rule"), "{found}");
}

#[test]
fn a_key_of_another_kind_is_rejected_with_the_kinds_that_have_it() {
    for (keys, problem) in [
        (
            "kind = \"counter\"\nstale_for = \"5s\"",
            "stale_for (\"5s\") has no effect in a counter rule: remove it, or set kind = \"guarded\"",
        ),
        (
            "kind = \"counter\"\ntags = [\"t\"]",
            "tags (a list) has no effect in a counter rule: remove it, or set kind = \"guarded\"",
        ),
        (
            "ttl = \"5s\"",
            "ttl (\"5s\") has no effect in a guarded rule: remove it, or set kind = \"counter\" or kind = \"list\" or kind = \"lock\" or kind = \"table\" or kind = \"window\"",
        ),
        (
            "kind = \"raw\"\nttl = \"5s\"",
            "ttl (\"5s\") has no effect in a raw rule: remove it, or set kind = \"counter\" or kind = \"list\" or kind = \"lock\" or kind = \"table\" or kind = \"window\"",
        ),
        (
            "kind = \"conter\"",
            "kind (\"conter\") must be \"guarded\" or \"raw\" or \"observe\" or \"counter\" or \"list\" or \"lock\" or \"log\" or \"table\" or \"window\"",
        ),
        ("kind = \"window\"", "window is missing: add window = \"5m\""),
        (
            "kind = \"window\"\nwindow = \"1s\"\nslots = 11",
            "window (\"1s\") must be at least 100ms for each of the 11 slots",
        ),
        ("kind = \"log\"\nwindow = \"101m\"", "window (\"101m\") must be 1 to 100 times slot: 60s to 100m"),
        (
            "kind = \"lock\"\nwindow = \"1s\"",
            "window (\"1s\") has no effect in a lock rule: remove it, or set kind = \"log\" or kind = \"window\"",
        ),
    ] {
        let found = error(&rule(&format!("match = \"x\"\n{keys}")));
        assert_eq!(found, format!("k.toml: rules[0] \"user\": {problem}"));
    }
}

#[test]
fn syntax_errors_have_line_and_column() {
    assert_eq!(error("[listen]\ntcp = [\n"), "k.toml: line 2, column 8: unclosed array, expected `]`");
    assert_eq!(error("a = 1\na = 2\n"), "k.toml: line 2, column 1: duplicate key");
    for (text, place) in
        [("a = \"\"\"\n\n", "line "), ("\n]\n", "line 2, column 1: "), ("a = 1 | 2", "line 1, column ")]
    {
        let found = error(text);
        let what = found.strip_prefix("k.toml: ").and_then(|s| s.strip_prefix(place)).unwrap();
        assert!(!found.contains('\n') && what.len() > 12 && !what.contains(" | "), "{found}");
    }
}

#[test]
fn a_number_beyond_64_bits_is_reported_with_its_position_and_hides_no_other_error() {
    let text = "[pools.main]\nservers = [\"a:1\"] # 99999999999999999999\n[listen]\nmax_connections = 99999999999999999999\n\
                workers = 0x1_0000_0000_0000_0000_0000\ntcp = [\"99999999999999999999\"]\n[tags]\nprefix = -99999999999999999999\n\
                [[rules]]\nname = \"ü\"\nmatch = [99999999999999999999]\nearly_beta = 1e999\n";
    let found = read(text).unwrap_err().without_places();
    for line in [
        "k.toml: line 4, column 19: 99999999999999999999 does not fit in 64 bits",
        "k.toml: line 5, column 11: 0x1_0000_0000_0000_0000_0000 does not fit in 64 bits",
        "k.toml: line 8, column 10: -99999999999999999999 does not fit in 64 bits",
        "k.toml: line 11, column 10: 99999999999999999999 does not fit in 64 bits",
        "k.toml: line 12, column 14: 1e999 does not fit in 64 bits",
        "k.toml: listen.tcp[0] (\"99999999999999999999\") must be host:port, as in \"127.0.0.1:11211\"",
        "k.toml: rules[0] \"ü\": name (\"ü\") must be 1 to 64 of the characters A-Z a-z 0-9 _ . -",
    ] {
        assert!(found.iter().any(|found| found == line), "{line:?} is not in {found:#?}");
    }
    // It is an error even where any string is valid.
    let name = "[pools.main]\nservers = [\"a:1\"]\n[[rules]]\nmatch = \"*\"\nname = 99999999999999999999\n";
    assert_eq!(error(name), "k.toml: line 5, column 8: 99999999999999999999 does not fit in 64 bits");
    for fits in ["9223372036854775807", "-9223372036854775808", "0x7fff_ffff_ffff_ffff", "inf", "1e308"] {
        let found = error(&rule(&format!("match = \"x\"\nearly_beta = {fits}")));
        assert!(found.contains("must be a number from 0.0 to 100.0"), "{found}");
    }
}

#[test]
fn conflicting_listeners_are_all_reported_whatever_else_is_wrong() {
    let text = "[listen]\ntcp = [\"0.0.0.0:1\", \"127.0.0.1:1\", \"no port\", \"[::]:2\", \"10.0.0.1:2\", \"[::1]:1\", \"LOCALHOST:3\", \
                \"127.0.0.1:3\", \"a:4\", \"A:4\"]\nunix = [\"/run/k\", \"x\", \"/run//k\"]\n[admin]\nlisten = \"127.0.0.1:2\"\n\
                [pools.main]\nservers = [\"127.0.0.1:1\", \"unix:/run/k\"]\n[pools.b]\nservers = []\n";
    let found = read(text).unwrap_err();
    let expected = [
        "k.toml: listen.tcp[2] (\"no port\") must be host:port, as in \"127.0.0.1:11211\"",
        "k.toml: listen.unix[1] (\"x\") must be an absolute path",
        "k.toml: listen.tcp[1] (\"127.0.0.1:1\") conflicts with listen.tcp[0] (\"0.0.0.0:1\"): remove one, or use another port",
        "k.toml: listen.tcp[4] (\"10.0.0.1:2\") conflicts with listen.tcp[3] (\"[::]:2\"): remove one, or use another port",
        "k.toml: listen.tcp[7] (\"127.0.0.1:3\") conflicts with listen.tcp[6] (\"LOCALHOST:3\"): remove one, or use another port",
        "k.toml: listen.tcp[9] (\"A:4\") conflicts with listen.tcp[8] (\"a:4\"): remove one, or use another port",
        "k.toml: listen.unix[2] (\"/run//k\") conflicts with listen.unix[0] (\"/run/k\"): remove one",
        "k.toml: admin.listen (\"127.0.0.1:2\") conflicts with listen.tcp[3] (\"[::]:2\"): use another port, or \"\" to turn the admin listener off",
        "k.toml: pools.b.servers must contain at least one server: [\"10.0.0.1:11211\"]",
        "k.toml: pools.main.servers[0] (\"127.0.0.1:1\") is Kennel's own listener listen.tcp[0]: change one of the two addresses",
        "k.toml: pools.main.servers[1] (\"unix:/run/k\") is Kennel's own listener listen.unix[0]: change one of the two addresses",
    ];
    assert_eq!(found.without_places(), expected);
}

#[test]
fn listeners_with_different_addresses_or_ports_do_not_conflict() {
    for tcp in [
        "[\"127.0.0.1:1\", \"127.0.0.2:1\", \"[::1]:1\", \"10.0.0.1:1\"]",
        "[\"0.0.0.0:1\", \"127.0.0.1:2\", \"[::1]:1\"]",
        "[\"0.0.0.0:0\", \"127.0.0.1:0\", \"127.0.0.1:0\"]",
        "[\"a:1\", \"b:1\", \"127.0.0.1:1\"]",
    ] {
        let text = format!("[listen]\ntcp = {tcp}\n[pools.main]\nservers = [\"10.0.0.9:9\"]\n");
        assert!(read(&text).is_ok(), "{tcp}: {}", read(&text).unwrap_err());
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let path = std::env::temp_dir().join(format!("kennel-config-{}.toml", std::process::id()));
    let found = || Config::load(Some(&path), []).unwrap_err().to_string();
    assert!(found().contains("cannot be read: No such file"), "{}", found());
    std::fs::write(&path, b"# \xff").unwrap();
    let not_utf8 = found();
    std::fs::remove_file(&path).unwrap();
    assert!(not_utf8.ends_with("is not valid UTF-8: byte 3 is invalid"), "{not_utf8}");
    assert!(
        Config::load(Some(&std::env::temp_dir()), []).unwrap_err().to_string().contains("cannot be read")
    );
}

#[test]
fn a_rule_whose_keys_all_match_an_earlier_one_is_a_warning() {
    let text = "[[rules]]\nname = \"all\"\nmatch = \"*\"\n[[rules]]\nname = \"late\"\nmatch = \"x\"\n";
    let config = read(&format!("{POOL}{text}")).unwrap();
    assert_eq!(
        config.warnings,
        ["rules[1] \"late\" never applies: rules[0] \"all\" matches all its keys first"]
    );
    let tag = read(&rule("match = \"@tag:x:*\"")).unwrap();
    assert!(tag.warnings[0].contains("tags.prefix"), "{:?}", tag.warnings);
}

#[test]
fn a_server_whose_weight_is_too_small_for_the_ring_is_a_warning() {
    let text = "[pools.main]\nservers = [\"a:1\", { address = \"b:1\", weight = 60000 }]";
    let warnings = read(text).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("servers[0] (a:1) receives no keys"), "{warnings:?}");
}
