//! Commands that change a key, through a sidecar without the rule for it, on what a sidecar with the rule has stored: each replies and
//! does what a memcached would that has what the client sees.

use crate::binary::packet::{
    ADD, APPEND, Answer, DECREMENT, DELETE, INCREMENT, PREPEND, Packet, REPLACE, SET, TOUCH,
};
use crate::client::{Client, show};
use crate::world::{
    Kennel, Memcached, addresses, direct, guarded, memcacheds, raw, sidecar_toml, until_stale,
    without_failover,
};

const RULE: &str =
    "stale_for = \"60s\"\nlock_ttl = \"50s\"\ncold_wait = \"0ms\"\ntags = [\"t\"]\non_tag = \"drop\"";

/// What a guard has stored under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// This value.
    Fresh(&'static str),
    /// The same, past its soft expiry.
    Stale(&'static str),
    Placeholder,
    Stub,
}

const ALL: [Stored; 6] = [
    Stored::Fresh("41"),
    Stored::Fresh("text"),
    Stored::Fresh(""),
    Stored::Stale("9"),
    Stored::Placeholder,
    Stored::Stub,
];

/// A client of a sidecar without the rule, and one of a memcached that has what the former sees.
struct Sides {
    servers: Vec<Memcached>,
    _reference: Memcached,
    guards: Kennel,
    _forwards: Kennel,
    raw: Client,
    plain: Client,
    server: Client,
    /// Its misses are not filled.
    winner: Client,
}

impl Sides {
    fn start() -> Sides {
        let (servers, reference) = (memcacheds(1), Memcached::start(&[]));
        let toml = |rule| without_failover(&sidecar_toml(&addresses(&servers), &[rule]));
        let guards = Kennel::start(&toml(guarded("pages", "*", RULE)));
        let forwards = Kennel::start(&toml(raw("everything", "*")));
        let (raw, plain, server, winner) =
            (forwards.client(), direct(&reference), direct(&servers[0]), guards.client());
        Sides { servers, _reference: reference, guards, _forwards: forwards, raw, plain, server, winner }
    }

    /// Stores what a guard stores under each key, and in the memcached what the client sees of it.
    fn prepare(&mut self, keys: &[(String, Stored)]) {
        let mut client = self.guards.client();
        let set = |client: &mut Client, key: &str, value: &str, exptime: i64| {
            client.send(format!("set {key} 7 {exptime} {}\r\n{value}\r\n", value.len()).as_bytes());
            client.expect(b"STORED\r\n");
        };
        for (key, stored) in keys {
            if *stored == Stored::Placeholder {
                set(&mut client, key, "old", 1000);
            }
        }
        assert!(["NOT_FOUND", "DELETED", "HD", "NF"].contains(&&client.execute("delete @tag:t")[..]));
        for (key, stored) in keys {
            match *stored {
                Stored::Fresh(value) => {
                    set(&mut client, key, value, 1000);
                    set(&mut self.plain, key, value, 1000);
                }
                Stored::Stale(value) => {
                    set(&mut client, key, value, 1);
                    set(&mut self.plain, key, value, 60);
                }
                Stored::Placeholder | Stored::Stub => {
                    self.winner.send(format!("get {key}\r\n").as_bytes());
                    self.winner.expect(b"END\r\n");
                    let size = self.server.get(key).expect("an item").len();
                    assert_eq!(size > 0, *stored == Stored::Placeholder, "{key}: {size}");
                }
            }
        }
        for (key, stored) in keys {
            if matches!(stored, Stored::Stale(_)) {
                until_stale(&self.servers, key, 60);
            }
        }
    }

    /// What both clients see of a key.
    fn compare(&mut self, key: &str, what: &str) {
        let read = |client: &mut Client| client.get_many(&[key]).pop().map(|item| (item.flags, item.value));
        let (raw, plain) = (read(&mut self.raw), read(&mut self.plain));
        assert_eq!(raw, plain, "{what}");
        let size = |client: &mut Client| {
            let line = client.execute(&format!("mg {key} s"));
            line.split(' ').find(|word| word.starts_with('s')).map(str::to_owned)
        };
        assert_eq!(size(&mut self.raw), size(&mut self.plain), "{what}");
    }

    /// The times that both clients see, which may differ by a second for each command that reads and writes one.
    fn compare_times(&mut self, key: &str, what: &str) {
        let (raw, plain) = (self.raw.ttl(key), self.plain.ttl(key));
        let near = raw.zip(plain).is_none_or(|(raw, plain)| (raw - plain).abs() <= 3);
        assert!(raw.is_some() == plain.is_some() && near, "{what}: {raw:?} instead of {plain:?}");
    }
}

/// Prepares each kind of item for each command, and calls `run` with the key.
fn each<T: AsRef<str>>(
    commands: &[T],
    sides: &mut Sides,
    run: impl Fn(&mut Sides, &str, &str, Stored, &str),
) {
    let key = |command: usize, stored: usize| format!("k{command}:{stored}");
    let all = || {
        commands.iter().enumerate().flat_map(|(at, command)| {
            ALL.iter().enumerate().map(move |(kind, stored)| (at, command, kind, *stored))
        })
    };
    let keys: Vec<_> = all().map(|(at, _, kind, stored)| (key(at, kind), stored)).collect();
    sides.prepare(&keys);
    for (at, command, kind, stored) in all() {
        let (command, key) = (command.as_ref(), key(at, kind));
        run(sides, command, &key, stored, &format!("{command:?} on {stored:?}"));
    }
}

/// The replies to a script, up to an `mn`.
fn run(client: &mut Client, script: &str) -> String {
    client.send(format!("{script}\r\nmn\r\n").as_bytes());
    let reply = client.until(b"MN\r\n");
    show(&reply[..reply.len() - b"MN\r\n".len()])
}

/// What is not exact, as the page says: a delete removes what the client does not see, and says so.
fn deletes_unseen(command: &str, stored: Stored) -> bool {
    (command.starts_with("delete") || command.starts_with("md"))
        && matches!(stored, Stored::Placeholder | Stored::Stub)
}

#[test]
fn text_commands_of_a_key_without_the_rule_do_what_memcached_does_with_what_the_client_sees() {
    let commands = [
        "set KEY 3 500 3\r\nnew",
        "add KEY 3 500 3\r\nnew",
        "add KEY 3 500 3 noreply\r\nnew",
        "replace KEY 3 500 3\r\nnew",
        "append KEY 0 0 3\r\nnew",
        "append KEY 0 0 0\r\n",
        "prepend KEY 0 0 3\r\nnew",
        "prepend KEY 0 0 3 noreply\r\nnew",
        "cas KEY 3 500 3 1\r\nnew",
        "incr KEY 1",
        "incr KEY 100",
        "decr KEY 1",
        "touch KEY 300",
        "touch KEY 0",
        "touch KEY 300\r\ndecr KEY 35",
        "gat 300 KEY",
        "delete KEY",
        "prepend KEY 0 0 1\r\na\r\nset KEY 0 0 1\r\n7\r\nprepend KEY 0 0 1\r\n8\r\nincr KEY 1",
        "ms KEY 3 T500 F3 c ME\r\nnew",
        "ms KEY 3 T500 F3 ME k Oop q\r\nnew",
        "ms KEY 3 T500 F3 MR k Oop\r\nnew",
        "ms KEY 3 MA k Oop\r\nnew",
        "ms KEY 3 MA N500\r\nnew",
        "ms KEY 3 MP k Oop\r\nnew",
        "ms KEY 3 MP N500\r\nnew",
        "ms KEY 3 MP C1 Oop\r\nnew",
        "ms KEY 3 C1 k\r\nnew",
        "md KEY k Oop",
        "md KEY C1 Oop",
        "ma KEY v",
        "ma KEY v t k Oop D5",
        "ma KEY v N500 J13",
        "ma KEY v MD D2 q",
        "ma KEY v C1 Oop",
        "mg KEY T300 s",
    ];
    let mut sides = Sides::start();
    each(&commands, &mut sides, |sides, command, key, stored, what| {
        let script = command.replace("KEY", key);
        let (raw, plain) = (run(&mut sides.raw, &script), run(&mut sides.plain, &script));
        // The numbers of CAS differ, and times by a second.
        let shown = |reply: &str| {
            let is_number = |word: &str| {
                (word.starts_with('c') || word.starts_with('t'))
                    && word[1..].starts_with(|first: char| first.is_ascii_digit())
            };
            reply
                .replace("\\r\\n", " \\r\\n")
                .split(' ')
                .filter(|word| !is_number(word) && *word != "X")
                .collect::<Vec<_>>()
                .join(" ")
        };
        match deletes_unseen(command, stored) && !command.contains("C1") {
            true => assert!(raw.contains("DELETED") || raw.starts_with("HD"), "{what}: {raw}"),
            false => assert_eq!(shown(&raw), shown(&plain), "{what}"),
        }
        sides.compare(key, what);
        // `gat` and `mg T` of a stub leave it the time until it is renewed, as the page says.
        if !matches!(stored, Stored::Stale(_)) {
            sides.compare_times(key, what);
        }
    });
}

#[test]
fn a_cas_that_a_client_without_the_rule_has_read_is_that_of_the_value_that_it_sees() {
    let commands = [
        "cas KEY 3 500 3 CAS\r\nnew",
        "ms KEY 3 CCAS MP\r\nnew",
        "ms KEY 3 CCAS MA\r\nnew",
        "ms KEY 3 CCAS\r\nnew",
        "ma KEY CCAS v",
        "ma KEY CCAS v N0 J5",
        "md KEY CCAS",
    ];
    let mut sides = Sides::start();
    each(&commands, &mut sides, |sides, command, key, _, what| {
        let run = |client: &mut Client| {
            let cas = client.gets(key).map_or(1, |(_, cas)| cas).to_string();
            run(client, &command.replace("CAS", &cas).replace("KEY", key))
        };
        assert_eq!(run(&mut sides.raw), run(&mut sides.plain), "{what}");
        sides.compare(key, what);
    });
}

/// The next reply of the binary protocol, without its CAS.
fn answer(client: &mut Client) -> Answer {
    let head = client.bytes(24);
    let length = u32::from_be_bytes(head[8..12].try_into().expect("four bytes"));
    let whole = [head, client.bytes(length as usize)].concat();
    Answer { cas: 0, ..Answer::read(&whole).expect("a whole reply").0 }
}

#[test]
fn binary_commands_of_a_key_without_the_rule_do_the_same() {
    let names = [
        "set",
        "add",
        "replace",
        "append",
        "prepend",
        "increment",
        "increment or 5",
        "decrement",
        "touch",
        "delete",
        "set cas",
        "prepend cas",
        "increment cas",
        "delete cas",
    ];
    let mut sides = Sides::start();
    let (mut raw, mut plain) = (sides._forwards.client(), direct(&sides._reference));
    let clients = std::cell::RefCell::new((&mut raw, &mut plain));
    each(&names, &mut sides, |sides, name, key, stored, what| {
        let never = u32::MAX;
        let packet = match name {
            "set" => Packet::store(SET, key, "new", 500),
            "add" => Packet::store(ADD, key, "new", 500),
            "replace" => Packet::store(REPLACE, key, "new", 500),
            "append" => Packet::new(APPEND, key).with_value("new"),
            "prepend" => Packet::new(PREPEND, key).with_value("new"),
            "increment" => Packet::count(INCREMENT, key, 5, never),
            "increment or 5" => Packet::count(INCREMENT, key, 5, 500),
            "decrement" => Packet::count(DECREMENT, key, 5, never),
            "touch" => Packet::new(TOUCH, key).with_extras(&[300]),
            "delete" => Packet::new(DELETE, key),
            "set cas" => Packet::store(SET, key, "new", 500).with_cas(1),
            "prepend cas" => Packet::new(PREPEND, key).with_value("new").with_cas(1),
            "increment cas" => Packet::count(INCREMENT, key, 5, never).with_cas(1),
            _ => Packet::new(DELETE, key).with_cas(1),
        };
        let (raw, plain) = &mut *clients.borrow_mut();
        raw.send(&packet.bytes());
        plain.send(&packet.bytes());
        let (raw, plain) = (answer(raw), answer(plain));
        match name == "delete" && deletes_unseen(name, stored) {
            true => assert_eq!(raw.status, 0, "{what}"),
            false => assert_eq!((raw.status, raw.value), (plain.status, plain.value), "{what}"),
        }
        sides.compare(key, what);
    });
}

#[test]
fn a_guarded_client_reads_what_a_client_without_the_rule_has_changed() {
    let mut sides = Sides::start();
    let commands = [
        "incr KEY 1",
        "prepend KEY 0 0 1\r\n1",
        "append KEY 0 0 1\r\n1",
        "touch KEY 300",
        "add KEY 0 0 1\r\n5",
    ];
    each(&commands, &mut sides, |sides, command, key, stored, what| {
        run(&mut sides.raw, &command.replace("KEY", key));
        let seen = sides.raw.get(key);
        if matches!(stored, Stored::Fresh(_)) || command.starts_with("add") && seen.as_deref() == Some(b"5") {
            assert_eq!(sides.guards.client().get(key), seen, "{what}");
        }
    });
}
