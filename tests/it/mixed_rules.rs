//! Two sidecars in front of the same servers, of which one guards the keys and the other does not: as while a rule is introduced, or
//! after it has been removed. Each client sees its own bytes.

use crate::binary::packet::{Answer, GATK, GET, GETK, GETKQ, NOOP, NOT_FOUND, Packet, SUCCESS};
use crate::client::{Client, show};
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, raw, sidecar_toml, until_stale,
    without_failover,
};

const RULE: &str = "stale_for = \"60s\"\nlock_ttl = \"5s\"\ncold_wait = \"0ms\"";

fn toml(servers: &[Memcached], rule: String) -> String {
    without_failover(&sidecar_toml(&addresses(servers), &[rule]))
}

/// The servers, a sidecar that guards every key, and one that guards none.
fn fleet(servers: usize) -> (Vec<Memcached>, Kennel, Kennel) {
    let servers = memcacheds(servers);
    let guards = Kennel::start(&toml(&servers, guarded("pages", "*", RULE)));
    let forwards = Kennel::start(&toml(&servers, raw("everything", "*")));
    (servers, guards, forwards)
}

/// Sends a script and an `mn`, and returns everything before its `MN`.
fn run(client: &mut Client, script: &str) -> String {
    client.send(script.as_bytes());
    client.send(b"mn\r\n");
    let reply = client.until(b"MN\r\n");
    show(&reply[..reply.len() - b"MN\r\n".len()])
}

/// The token of a flag in a meta reply.
fn token(reply: &str, flag: char) -> i64 {
    let word = reply.split([' ', '\\']).find(|word| word.starts_with(flag) && word.len() > 1);
    word.and_then(|word| word[1..].parse().ok()).unwrap_or_else(|| panic!("no {flag} in {reply}"))
}

/// Every read of text clients of a key whose value is `value`, with these flags.
fn reads_as(client: &mut Client, key: &str, value: &str, flags: u32, stale: &str) {
    let length = value.len();
    let classic = show(format!("VALUE {key} {flags} {length}\r\n{value}\r\nEND\r\n").as_bytes());
    assert_eq!(run(client, &format!("get {key}\r\n")), classic);
    assert_eq!(run(client, &format!("get none {key} nothing\r\n")), classic);
    let item = client.get_many(&[key]).remove(0);
    assert_eq!((item.flags, &item.value[..]), (flags, value.as_bytes()));
    assert_eq!(client.gets(key).map(|(value, _)| value), Some(value.as_bytes().to_vec()));
    let meta = |head: &str, data: &str| show(format!("{head}{stale}\r\n{data}").as_bytes());
    let data = format!("{value}\r\n");
    assert_eq!(run(client, &format!("mg {key} v\r\n")), meta(&format!("VA {length}"), &data));
    assert_eq!(
        run(client, &format!("mg {key} s v k f Oxy\r\n")),
        meta(&format!("VA {length} s{length} k{key} f{flags} Oxy"), &data)
    );
    assert_eq!(run(client, &format!("mg {key}\r\n")), meta("HD", ""));
    assert_eq!(run(client, &format!("mg {key} q s k\r\n")), meta(&format!("HD s{length} k{key}"), ""));
}

/// Every read of text clients of a key that is absent for them.
fn reads_nothing(client: &mut Client, key: &str) {
    for command in ["get {}", "gets {}", "gets none {} nothing", "get {} {}"] {
        assert_eq!(run(client, &format!("{command}\r\n").replace("{}", key)), show(b"END\r\n"), "{command}");
    }
    assert_eq!(run(client, &format!("mg {key} v\r\n")), show(b"EN\r\n"));
    assert_eq!(run(client, &format!("mg {key} s k O1\r\n")), show(format!("EN k{key} O1\r\n").as_bytes()));
    assert_eq!(run(client, &format!("mg {key} v q\r\n")), "");
}

#[test]
fn a_client_without_a_rule_reads_a_guarded_value_without_its_header() {
    let (servers, guards, forwards) = fleet(3);
    let (mut guarded, mut raw) = (guards.client(), forwards.client());
    for (key, value) in [("a", "value".to_owned()), ("b", String::new()), ("c", "x".repeat(100_000))] {
        guarded.send(format!("set {key} 7 0 {}\r\n{value}\r\n", value.len()).as_bytes());
        guarded.expect(b"STORED\r\n");
        reads_as(&mut raw, key, &value, 7, "");
        assert_eq!(token(&run(&mut raw, &format!("mg {key} t\r\n")), 't'), -1);
    }
    // Several keys of several servers, some with a header, and in the order of the request.
    raw.store("plain", b"plain", 0);
    assert_eq!(
        run(&mut raw, "get plain a none b\r\n"),
        show(b"VALUE plain 0 5\r\nplain\r\nVALUE a 7 5\r\nvalue\r\nVALUE b 7 0\r\n\r\nEND\r\n")
    );
    // The CAS that is shown with it is that of the item.
    let (_, cas) = raw.gets("a").expect("a value");
    assert_eq!(raw.execute(&format!("cas a 3 0 3 {cas}\r\nnew")), "STORED");
    reads_as(&mut raw, "a", "new", 3, "");
    assert_eq!(guarded.get("a").as_deref(), Some(&b"new"[..]));
    drop(servers);
}

#[test]
fn a_value_out_of_date_is_read_as_a_stale_one() {
    let (servers, guards, forwards) = fleet(1);
    let (mut guarded, mut raw) = (guards.client(), forwards.client());
    guarded.store("k", b"old", 1);
    until_stale(&servers, "k", 60);
    reads_as(&mut raw, "k", "old", 0, " X");
    assert_eq!(run(&mut raw, "mg k t v\r\n"), show(b"VA 3 t0 X\r\nold\r\n"));
}

#[test]
fn the_times_that_a_client_reads_and_sets_are_those_of_its_value() {
    let (servers, guards, forwards) = fleet(1);
    let (mut guarded, mut raw, mut server) = (guards.client(), forwards.client(), direct(&servers[0]));
    guarded.store("k", b"value", 1000);
    let left = token(&run(&mut raw, "mg k t\r\n"), 't');
    assert!((940..=1000).contains(&left), "{left}");
    for (command, reply) in [
        ("gat 5000 k\r\n", "VALUE k 0 5\r\nvalue\r\nEND\r\n"),
        ("gat 4000 none k\r\n", "VALUE k 0 5\r\nvalue\r\nEND\r\n"),
        ("mg k T3000 v\r\n", "VA 5\r\nvalue\r\n"),
        ("mg k T2000 t\r\n", "HD t2000\r\n"),
    ] {
        assert_eq!(run(&mut raw, command), show(reply.as_bytes()), "{command}");
        let exptime: i64 = command.split([' ', 'T']).find_map(|word| word.parse().ok()).expect("an exptime");
        let ttl = server.ttl("k").expect("an item");
        assert!((exptime + 1..=exptime + 60).contains(&ttl), "{command}: {ttl}");
    }
    assert_eq!(run(&mut raw, "gat 0 k\r\n"), show(b"VALUE k 0 5\r\nvalue\r\nEND\r\n"));
    assert_eq!(server.ttl("k"), Some(-1));
}

#[test]
fn a_stub_is_a_miss_and_an_empty_value_is_not() {
    let (servers, guards, forwards) = fleet(1);
    let (mut winner, mut raw, mut server) = (guards.client(), forwards.client(), direct(&servers[0]));
    winner.send(b"get k\r\n");
    winner.expect(b"END\r\n");
    assert_eq!(run(&mut server, "mg k s v\r\n"), show(b"VA 0 s0 Z\r\n\r\n"));
    reads_nothing(&mut raw, "k");
    // Only who asks for it is shown it.
    assert_eq!(run(&mut raw, "mg k v N30\r\n"), show(b"VA 0 Z\r\n\r\n"));
    // Renewed.
    eventually("the stub is renewed", || token(&run(&mut server, "mg k f\r\n"), 'f') != 0);
    reads_nothing(&mut raw, "k");
    assert_eq!(run(&mut raw, "mg k v N30\r\n"), show(b"VA 0 Z\r\n\r\n"));
    raw.store("full", b"x", 0);
    assert_eq!(
        run(&mut raw, "get full k full\r\n"),
        show(b"VALUE full 0 1\r\nx\r\nVALUE full 0 1\r\nx\r\nEND\r\n")
    );
    // The build goes on.
    winner.store("k", b"built", 100);
    assert_eq!(raw.get("k").as_deref(), Some(&b"built"[..]));
    for (key, command) in
        [("d", "set d 0 0 0"), ("e", "set e 0 100 0"), ("f", "set f 5 30 0"), ("g", "ms g 0 T30")]
    {
        assert!(["STORED", "HD"].contains(&&raw.execute(&format!("{command}\r\n"))[..]));
        assert_eq!(raw.get(key).as_deref(), Some(&b""[..]), "{command}");
        assert_eq!(raw.get_many(&[key, "full", key]).len(), 3, "{command}");
        assert_eq!(run(&mut raw, &format!("mg {key} v\r\n")), show(b"VA 0\r\n\r\n"), "{command}");
    }
}

/// The next reply of the binary protocol.
fn answer(client: &mut Client) -> Answer {
    let head = client.bytes(24);
    let length = u32::from_be_bytes(head[8..12].try_into().expect("four bytes"));
    let whole = [head, client.bytes(length as usize)].concat();
    Answer::read(&whole).expect("a whole reply").0
}

#[test]
fn a_client_of_the_binary_protocol_reads_the_same() {
    let (_servers, guards, forwards) = fleet(3);
    let (mut guarded, mut winner, mut raw) = (guards.client(), guards.client(), forwards.client());
    guarded.send(b"set k 7 0 5\r\nvalue\r\n");
    guarded.expect(b"STORED\r\n");
    winner.send(b"get stub\r\n");
    winner.expect(b"END\r\n");
    let hit = |raw: &mut Client, key: &str| {
        let reply = answer(raw);
        assert_eq!(
            (reply.status, &reply.key[..], &reply.value[..]),
            (SUCCESS, key.as_bytes(), &b"value"[..])
        );
        assert_eq!(reply.extras, 7u32.to_be_bytes());
    };
    for (opcode, extras, key) in [(GET, &[][..], ""), (GETK, &[], "k"), (GATK, &[100], "k")] {
        raw.send(&Packet::new(opcode, "k").with_extras(extras).bytes());
        hit(&mut raw, key);
        raw.send(&Packet::new(opcode, "stub").with_extras(extras).bytes());
        assert_eq!(answer(&mut raw).status, NOT_FOUND);
    }
    for key in ["none", "stub", "k", "stub"] {
        raw.send(&Packet::new(GETKQ, key).bytes());
    }
    raw.send(&Packet::new(NOOP, "").bytes());
    hit(&mut raw, "k");
    assert_eq!(answer(&mut raw).opcode, NOOP);
}

#[test]
fn a_rule_that_is_removed_by_a_reload_leaves_every_client_its_bytes() {
    let (servers, guards, _) = fleet(1);
    let (mut client, mut server) = (guards.client(), direct(&servers[0]));
    client.send(b"set k 7 1000 5\r\nvalue\r\n");
    client.expect(b"STORED\r\n");
    let (status, text) = guards.reload(&toml(&servers, raw("pages", "*")));
    assert_eq!(status, 200, "{text}");
    assert!(server.get("k").expect("an item").len() > b"value".len(), "it has a header");
    reads_as(&mut client, "k", "value", 7, "");
    client.store("k", b"other", 0);
    let (status, text) = guards.reload(&toml(&servers, guarded("pages", "*", RULE)));
    assert_eq!(status, 200, "{text}");
    assert_eq!(client.get("k").as_deref(), Some(&b"other"[..]));
}
