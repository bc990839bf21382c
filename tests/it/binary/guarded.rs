//! The guard's promises for binary clients: leases, tags, quiet commands and sequences of gets.

use std::time::Duration;

use super::packet::*;
use crate::world::{
    Kennel, Memcached, addresses, eventually, guarded, memcacheds, raw, sidecar_toml, timed, until_stale,
    without_failover,
};

/// A sidecar with raw keys and guarded ones, whose tag is `all`.
fn sidecar(servers: &[Memcached], more: &str) -> Kennel {
    let rules =
        [guarded("hot", "hot:*", &format!("tags = [\"all\"]\nstale_for = \"60s\"\n{more}")), raw("raw", "*")];
    Kennel::start(&without_failover(&sidecar_toml(&addresses(servers), &rules)))
}

fn client(kennel: &Kennel) -> BinaryClient {
    BinaryClient::new(kennel.address())
}

fn gets(opcode: u8, keys: &[&str]) -> Vec<Packet> {
    keys.iter().zip(1..).map(|(key, opaque)| Packet::new(opcode, key).with_opaque(opaque)).collect()
}

#[test]
fn one_client_rebuilds_while_another_waits_for_its_value() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "cold_wait = \"10s\"");
    let mut winner = client(&kennel);
    assert_eq!(winner.get("hot:k"), None);
    let mut reader = client(&kennel);
    // A sequence of gets waits as a text get of several keys does, although the `noop` is behind it.
    reader.send(&[&gets(GETKQ, &["hot:k"])[..], &[Packet::new(NOOP, b"")]].concat());
    eventually("the reader waits", || kennel.metrics().sum("kennel_waiters", &[]) == 1.0);
    assert_eq!(winner.set("hot:k", "built"), SUCCESS);
    let (hit, noop) = (reader.receive(), reader.receive());
    assert_eq!((hit.opcode, hit.opaque, hit.text()), (GETKQ, 1, "built".to_owned()));
    assert_eq!(noop.opcode, NOOP);
    assert_eq!(kennel.metrics().sum("kennel_requests_total", &["outcome=\"miss_won\""]), 1.0);
}

#[test]
fn a_noop_that_arrives_later_ends_a_sequence_that_waits() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "cold_wait = \"10s\"");
    let mut winner = client(&kennel);
    assert_eq!(winner.get("hot:k"), None);
    let mut reader = client(&kennel);
    reader.send(&gets(GETQ, &["hot:k", "hot:none"])[..1]);
    eventually("the reader waits", || kennel.metrics().sum("kennel_waiters", &[]) == 1.0);
    reader.send(&[Packet::new(NOOP, b"").with_opaque(9)]);
    winner.0.silent_for(Duration::from_millis(50));
    assert_eq!(kennel.metrics().sum("kennel_waiters", &[]), 1.0, "the noop has not ended the wait");
    assert_eq!(winner.set("hot:k", "built"), SUCCESS);
    assert_eq!(reader.receive().text(), "built");
    assert_eq!(reader.receive().opaque, 9);
}

#[test]
fn a_silent_miss_wins_the_lease() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "cold_wait = \"0ms\"");
    let mut client = client(&kennel);
    assert_eq!(client.pipeline(&gets(GETQ, &["hot:k"])), []);
    let outcome = |outcome: &str| kennel.metrics().sum("kennel_requests_total", &[outcome]);
    assert_eq!(outcome("outcome=\"miss_won\""), 1.0);
    assert_eq!(client.pipeline(&[Packet::store(SETQ, "hot:k", "v", 60)]), []);
    assert_eq!(kennel.metrics().sum("kennel_leases_total", &["end=\"filled\""]), 1.0);
    assert_eq!(client.get("hot:k").as_deref(), Some("v"));
}

#[test]
fn a_quiet_set_whose_key_was_deleted_meanwhile_is_dropped() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "cold_wait = \"0ms\"");
    let (mut builder, mut other) = (client(&kennel), client(&kennel));
    for deletes in [DELETE, DELETEQ] {
        assert_eq!(builder.pipeline(&gets(GETQ, &["hot:k"])), []);
        let deleted = other.pipeline(&[Packet::new(deletes, "hot:k")]);
        assert_eq!(deleted[0].status, NOT_FOUND);
        assert_eq!(builder.pipeline(&[Packet::store(SETQ, "hot:k", "old", 60)]), []);
        assert_eq!(other.get("hot:k"), None, "what was read before the delete is not served");
        assert_eq!(other.set("hot:k", "new"), SUCCESS);
        assert_eq!(builder.get("hot:k").as_deref(), Some("new"));
        other.ask(Packet::new(DELETE, "hot:k"));
    }
    assert!(kennel.metrics().sum("kennel_fills_dropped_total", &[]) >= 2.0);
}

#[test]
fn a_tag_is_read_and_bumped_through_its_reserved_key() {
    let servers = memcacheds(2);
    let kennel = sidecar(&servers, "cold_wait = \"0ms\"\non_tag = \"drop\"");
    let mut client = client(&kennel);
    let bumps: [(&str, Packet); 4] = [
        ("delete", Packet::new(DELETE, "@tag:all")),
        ("deleteq", Packet::new(DELETEQ, "@tag:all")),
        ("increment", Packet::count(INCREMENT, "@tag:all", 0, u32::MAX)),
        ("incrementq", Packet::count(0x15, "@tag:all", 0, 0)),
    ];
    for (name, bump) in bumps {
        assert_eq!(client.set("hot:k", name), SUCCESS);
        assert_eq!(client.get("hot:k").as_deref(), Some(name));
        let before: u64 = client.get("@tag:all").expect("the set has created it").parse().expect("a version");
        let answers = client.pipeline(&[bump]);
        let after: u64 = client.get("@tag:all").expect("it has a version").parse().expect("a version");
        assert!(after > before, "{name}");
        match name {
            "delete" => assert_eq!((answers[0].status, answers[0].value.len()), (SUCCESS, 0)),
            "increment" => assert_eq!(answers[0].number(), after),
            _ => assert_eq!(answers, []),
        }
        assert_eq!(client.get("hot:k"), None, "{name}");
    }
    for refused in [
        Packet::count(DECREMENT, "@tag:all", 0, 0),
        Packet::store(SET, "@tag:all", "1", 0),
        Packet::store(SETQ, "@tag:all", "1", 0),
        Packet::new(TOUCH, "@tag:all").with_extras(&[1]),
        Packet::new(APPEND, "@tag:all").with_value("1"),
    ] {
        let answer = client.ask(refused);
        assert_eq!(answer.status, INVALID);
        assert!(answer.text().starts_with("this key is a tag"), "{}", answer.text());
    }
    let with_key = client.pipeline(&gets(GETKQ, &["@tag:all", "@tag:none"]));
    assert_eq!(with_key.len(), 1);
    assert_eq!(with_key[0].key, b"@tag:all");
}

#[test]
fn a_stale_value_is_served_to_all_but_the_winner() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "");
    let mut first = client(&kennel);
    assert_eq!(first.ask(Packet::store(SET, "hot:k", "old", 1)).status, SUCCESS);
    until_stale(&servers, "hot:k", 60);
    let mut second = client(&kennel);
    assert_eq!(first.get("hot:k"), None, "it rebuilds");
    assert_eq!(second.get("hot:k").as_deref(), Some("old"));
    assert_eq!(second.pipeline(&gets(GETQ, &["hot:k"]))[0].text(), "old");
    assert_eq!(first.set("hot:k", "new"), SUCCESS);
    assert_eq!(second.get("hot:k").as_deref(), Some("new"));
}

#[test]
fn a_cas_is_valid_until_the_item_changes() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "cold_wait = \"0ms\"");
    let mut client = client(&kennel);
    for key in ["hot:k", "raw:k", "raw k\n"] {
        let stored = client.ask(Packet::store(SET, key, "10", 60)).cas;
        let read = client.ask(Packet::new(GET, key)).cas;
        assert!(stored != 0 && stored == read, "{key}: {stored} {read}");
        for opcode in [SET, ADD, REPLACE] {
            let wrong = Packet::store(opcode, key, "x", 60).with_cas(read + 1000);
            assert_eq!(client.ask(wrong).status, EXISTS, "{key}");
        }
        assert_eq!(client.ask(Packet::new(DELETE, key).with_cas(read + 1000)).status, EXISTS, "{key}");
        assert_eq!(client.ask(Packet::count(INCREMENT, key, 0, 0).with_cas(read + 1000)).status, EXISTS);
        let counted = client.ask(Packet::count(INCREMENT, key, 0, 0).with_cas(read));
        assert_eq!((counted.status, counted.number()), (SUCCESS, 11), "{key}");
        let appended = client.ask(Packet::new(APPEND, key).with_value("2").with_cas(counted.cas));
        assert_eq!(appended.status, SUCCESS, "{key}");
        let stale = Packet::new(PREPEND, key).with_value("3").with_cas(counted.cas);
        assert_eq!(client.ask(stale).status, EXISTS, "{key}");
        assert_eq!(client.get(key).as_deref(), Some("112"));
        let replaced = client.ask(Packet::store(REPLACE, key, "y", 60).with_cas(appended.cas));
        assert_eq!(replaced.status, SUCCESS, "{key}");
        assert_eq!(client.ask(Packet::new(DELETE, key).with_cas(replaced.cas)).status, SUCCESS);
        assert_eq!(client.ask(Packet::new(DELETE, key).with_cas(replaced.cas)).status, NOT_FOUND);
    }
}

#[test]
fn a_sequence_of_gets_over_all_kinds_of_keys_is_answered_in_order() {
    let servers = memcacheds(3);
    let kennel = sidecar(&servers, "cold_wait = \"0ms\"");
    let mut client = client(&kennel);
    let mut packets = Vec::new();
    let mut expected = Vec::new();
    for n in 0..400u32 {
        let key = match n % 5 {
            0 => format!("hot:{n}"),
            1 => format!("with space {n}"),
            2 => format!("hot:with space {n}"),
            _ => format!("raw:{n}"),
        };
        if n % 3 != 0 {
            assert_eq!(client.set(&key, &n.to_string()), SUCCESS);
            expected.push((n, key.clone(), n.to_string()));
        }
        packets.push(Packet::new(GETKQ, &key).with_opaque(n));
    }
    for _ in 0..2 {
        let shown = client.pipeline(&packets).into_iter().map(|answer| {
            let key = String::from_utf8_lossy(&answer.key).into_owned();
            (answer.opaque, key, answer.text())
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn many_gets_one_behind_the_other_are_one_read_for_the_servers() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "");
    let mut client = client(&kennel);
    assert_eq!(client.set("raw:0", "v"), SUCCESS);
    let requests = || kennel.metrics().sum("kennel_upstream_requests_total", &[]);
    let before = requests();
    let keys: Vec<String> = (0..100).map(|n| format!("raw:{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(client.pipeline(&gets(GETKQ, &keys)).len(), 1);
    assert_eq!(requests() - before, 1.0);
}

#[test]
fn without_its_server_a_read_is_a_miss_and_a_write_an_error_even_if_it_is_quiet() {
    let mut servers = memcacheds(1);
    let kennel = sidecar(&servers, "cold_wait = \"0ms\"");
    let mut client = client(&kennel);
    assert_eq!(client.set("raw:k", "v"), SUCCESS);
    servers.clear();
    eventually("the server is down", || kennel.metrics().sum("kennel_upstream_up", &[]) == 0.0);
    for key in ["raw:k", "raw k", "hot:k"] {
        assert_eq!(client.get(key), None, "{key}");
        assert_eq!(client.pipeline(&gets(GETQ, &[key, key])), [], "{key}");
        for write in [
            Packet::store(SETQ, key, "v", 0),
            Packet::new(DELETEQ, key),
            Packet::new(APPEND, key).with_value("v"),
            Packet::count(INCREMENT, key, 1, 0),
            Packet::new(TOUCH, key).with_extras(&[1]),
        ] {
            let (answer, took) = timed(|| client.ask(write.clone()));
            assert_eq!((answer.status, answer.opcode), (SERVER_ERROR, write.opcode), "{answer:?}");
            assert!(answer.text().contains("server"), "{}", answer.text());
            assert!(took < Duration::from_secs(5));
        }
    }
    assert_eq!(client.ask(Packet::new(FLUSH, b"")).status, SERVER_ERROR);
    assert_eq!(client.ask(Packet::new(VERSION, b"")).text(), "1.6.45");
}

#[test]
fn a_set_that_is_too_large_deletes_the_old_value_and_no_other_command_does() {
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, "cold_wait = \"0ms\"");
    let mut client = client(&kennel);
    // The first size is below the limit of the parser, and above that of the server.
    for (key, size) in
        [("raw:k", 1_048_576), ("raw k", 1_048_576), ("raw:k", 3_000_000), ("hot:k", 3_000_000)]
    {
        let value = vec![b'v'; size];
        for (opcode, deletes) in
            [(SET, true), (SETQ, true), (REPLACE, false), (APPEND, false), (PREPEND, false)]
        {
            assert_eq!(client.set(key, "old"), SUCCESS);
            let store = match opcode {
                APPEND | PREPEND => Packet::new(opcode, key).with_value(&value),
                _ => Packet::store(opcode, key, &value, 60),
            };
            let answers = client.pipeline(&[store]);
            assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [TOO_LARGE]);
            assert_eq!(client.get(key).is_none(), deletes, "{key} {size} {opcode:#x}");
        }
    }
}

#[test]
fn statistics_are_those_of_text_and_end_with_an_empty_packet() {
    let servers = memcacheds(2);
    let kennel = sidecar(&servers, "");
    let mut client = client(&kennel);
    let mut statistics = |what: &str| {
        let answers = client.pipeline(&[Packet::new(STAT, what).with_opaque(7)]);
        assert!(answers.iter().all(|answer| (answer.opaque, answer.status) == (7, SUCCESS)), "{answers:?}");
        let (last, all) = answers.split_last().expect("at least one");
        assert!(last.key.is_empty() && last.value.is_empty());
        all.iter().map(|answer| (String::from_utf8_lossy(&answer.key).into_owned(), answer.text())).collect()
    };
    let all: Vec<(String, String)> = statistics("");
    let value = |name: &str| all.iter().find(|(key, _)| key == name).map(|(_, value)| &value[..]);
    assert_eq!((value("version"), value("kennel_servers")), (Some("1.6.45"), Some("2")));
    assert!(statistics("settings").iter().any(|(key, _)| key == "maxconns"));
    for what in ["items", "slabs", "sizes", "reset", "detail on", "detail off"] {
        statistics(what);
    }
    assert_eq!(statistics("detail dump"), [("detailed".to_owned(), "END\r\n".to_owned())]);
    for what in ["conns", "cachedump 1 1", "nonsense", "detail"] {
        assert_eq!(client.ask(Packet::new(STAT, what)).status, NOT_FOUND, "{what}");
    }
}

#[test]
fn flush_empties_every_server_unless_it_is_disabled() {
    let servers = memcacheds(2);
    let rules = [guarded("hot", "hot:*", "cold_wait = \"0ms\""), raw("raw", "*")];
    let toml = without_failover(&sidecar_toml(&addresses(&servers), &rules));
    let kennel = Kennel::start(&toml);
    let mut client = client(&kennel);
    for flush in [Packet::new(FLUSH, b""), Packet::new(0x18, b"").with_extras(&[0])] {
        assert_eq!((client.set("raw:k", "v"), client.set("hot:k", "v")), (SUCCESS, SUCCESS));
        assert_eq!(client.pipeline(std::slice::from_ref(&flush)).len(), usize::from(flush.opcode == FLUSH));
        assert_eq!((client.get("raw:k"), client.get("hot:k")), (None, None));
    }
    let kennel = Kennel::start(&toml.replace("[listen]\n", "[listen]\nflush_all = \"refuse\"\n"));
    let mut client = BinaryClient::new(kennel.address());
    for opcode in [FLUSH, 0x18] {
        assert_eq!(client.ask(Packet::new(opcode, b"")).status, AUTH_ERROR);
    }
}
