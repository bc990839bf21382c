//! What a structure with two copies has that one without has not, or has differently. What is the same is in the file of each kind.

use std::time::Duration;

use super::super::{rule, store, text};
use super::fleet_with_copies;
use crate::binary::packet::*;
use crate::client::Client;
use crate::world::{eventually, timed};

/// What a raw value with copies replies to a command that it does not have. So does the element of a table.
const RAW: &str = "CLIENT_ERROR a raw rule with copies has only the commands get, gets, set, add, replace, append, prepend, cas, incr, decr, touch, delete";
const TABLE: &str = "CLIENT_ERROR a table has only the commands get, delete, and any command on KEY/NAME";
const TOO_LONG: &str = "CLIENT_ERROR the key of a structure is too long for the items below it";

/// The names in a table, sorted.
fn names(client: &mut Client, key: &str) -> Vec<String> {
    let mut names: Vec<_> = text(client, key).unwrap_or_default().lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn the_element_of_a_table_has_the_commands_of_a_raw_value_with_copies() {
    let (_servers, [a, b]) = fleet_with_copies(&[rule("carts", "cart:*", "table", "")]);
    let (mut binary, mut a, mut b) = (BinaryClient::new(a.address()), a.client(), b.client());
    assert_eq!(text(&mut a, "cart:1"), None);
    assert_eq!(store(&mut a, "set cart:1/ann 7 100", "one"), "STORED");
    assert_eq!(store(&mut a, "add cart:1/bob 0 0", "5"), "STORED");
    assert_eq!(store(&mut b, "add cart:1/bob 0 0", "6"), "NOT_STORED");
    assert_eq!(names(&mut b, "cart:1"), ["ann", "bob"]);
    let (value, cas) = b.gets("cart:1/ann").expect("it is there");
    assert_eq!(value, b"one");
    assert_eq!(b.execute(&format!("cas cart:1/ann 3 0 3 {cas}\r\ntwo")), "STORED");
    assert_eq!(b.execute(&format!("cas cart:1/ann 3 0 3 {cas}\r\nbad")), "EXISTS");
    assert_eq!(store(&mut a, "append cart:1/ann 0 0", "+"), "STORED");
    assert_eq!(store(&mut a, "prepend cart:1/ann 0 0", "-"), "STORED");
    let item = &b.get_many(&["cart:1/ann"])[0];
    assert_eq!((&item.value[..], item.flags), (&b"-two+"[..], 3));
    assert_eq!(store(&mut b, "replace cart:1/ann 0 50", "three"), "STORED");
    assert_eq!((a.execute("incr cart:1/bob 37"), a.execute("decr cart:1/bob 2")), ("42".into(), "40".into()));
    assert_eq!((a.execute("touch cart:1/ann 60"), a.ttl("cart:1/ann")), ("TOUCHED".into(), Some(60)));
    // What needs an element does not create one, or name one.
    for command in ["append cart:1/cid 0 0 1\r\nx", "replace cart:1/cid 0 0 1\r\nx"] {
        assert_eq!(a.execute(command), "NOT_STORED");
    }
    for command in
        ["incr cart:1/cid 1", "touch cart:1/cid 1", "delete cart:1/cid", "cas cart:1/cid 0 0 1 1\r\nx"]
    {
        assert_eq!(a.execute(command), "NOT_FOUND");
    }
    let items = b.get_many(&["cart:1/bob", "cart:1", "cart:1/cid", "other", "cart:1/ann"]);
    assert_eq!(
        items.iter().map(|item| item.key.as_str()).collect::<Vec<_>>(),
        ["cart:1/bob", "cart:1", "cart:1/ann"]
    );
    // Meta commands, quiet ones, and those of a binary client.
    a.send(b"ms cart:1/dan 1 c T60\r\nx\r\n");
    assert!(a.line().starts_with("HD c"));
    a.send(b"ms cart:1/eve 1 q\r\nx\r\nset cart:1/fy 0 0 1 noreply\r\nx\r\nma cart:1/n N60 J8 v t\r\nma cart:1/n v\r\nmn\r\n");
    a.expect(b"VA 1 t60\r\n8\r\nVA 1\r\n9\r\nMN\r\n");
    assert_eq!(binary.set("cart:1/gus", "x"), SUCCESS);
    assert_eq!(binary.ask(Packet::count(INCREMENT, "cart:1/hits", 7, 60)).number(), 7);
    assert_eq!(binary.ask(Packet::count(INCREMENT, "cart:1/none", 7, u32::MAX)).status, NOT_FOUND);
    assert_eq!(names(&mut b, "cart:1"), ["ann", "bob", "dan", "eve", "fy", "gus", "hits", "n"]);
    b.send(b"mg cart:1/bob v f t\r\nmg cart:1/cid v\r\nmd cart:1/n\r\nmg cart:1 s\r\n");
    b.expect(b"VA 2 f0 t-1\r\n40\r\nEN\r\nHD\r\nHD s28\r\n");
    assert_eq!((a.delete("cart:1/bob"), b.delete("cart:1/bob")), ("DELETED".into(), "NOT_FOUND".into()));
    assert_eq!(names(&mut b, "cart:1"), ["ann", "dan", "eve", "fy", "gus", "hits"]);
    // A delete of the table deletes its elements, and nothing of another.
    assert_eq!(store(&mut a, "set cart:2/ann 0 0", "x"), "STORED");
    assert_eq!((a.delete("cart:1"), b.delete("cart:1")), ("DELETED".into(), "NOT_FOUND".into()));
    assert!(
        ["ann", "dan", "eve", "gus"].iter().all(|name| text(&mut b, &format!("cart:1/{name}")).is_none())
    );
    assert_eq!((text(&mut b, "cart:1"), names(&mut b, "cart:2")), (None, vec!["ann".to_owned()]));
}

#[test]
fn the_ttl_of_a_table_limits_that_of_its_elements_however_they_are_stored() {
    let (_servers, [a, b]) = fleet_with_copies(&[rule("carts", "cart:*", "table", "ttl = \"1h\"")]);
    let (mut client, mut other) = (a.client(), b.client());
    for (exptime, expected) in [(0, 3_600), (7_200, 3_600), (60, 60)] {
        for store in [
            format!("set cart:1/x 0 {exptime} 1\r\n7"),
            format!("replace cart:1/x 0 {exptime} 1\r\n7"),
            format!("touch cart:1/x {exptime}"),
            format!("ms cart:1/x 1 T{exptime}\r\n7"),
            format!("ma cart:1/n{exptime} N{exptime}"),
        ] {
            let reply = client.execute(&store);
            assert!(["STORED", "TOUCHED", "HD"].contains(&reply.as_str()), "{store:?}: {reply}");
            let key = if store.starts_with("ma") { format!("cart:1/n{exptime}") } else { "cart:1/x".into() };
            let ttl = other.ttl(&key).expect("it is there");
            assert!((expected - 5..=expected).contains(&ttl), "{store:?}: {ttl}");
        }
    }
}

#[test]
fn a_refusal_names_the_commands_of_the_table_or_of_its_element() {
    let (_servers, [a, _b]) = fleet_with_copies(&[rule("carts", "cart:*", "table", "")]);
    let mut client = a.client();
    assert_eq!(store(&mut client, "set cart:1/ann 0 0", "x"), "STORED");
    for (command, reply) in [
        ("gat 10 cart:1/ann", RAW),
        ("gats 10 session:0 cart:1/ann", RAW),
        ("gat 10 cart:1", TABLE),
        ("touch cart:1 10", TABLE),
        ("mg cart:1/new v N60", "CLIENT_ERROR a flag does not apply to the key of a structure"),
        ("md cart:1/ann C5", "CLIENT_ERROR a flag does not apply to the key of a structure"),
        ("set cart:1/ 0 0 1\r\nx", "CLIENT_ERROR what follows the / of a table must be a name"),
    ] {
        assert_eq!(client.execute(command), reply, "{command}");
    }
    let mut binary = BinaryClient::new(a.address());
    for (packet, reply) in [
        (Packet::new(GAT, "cart:1/ann").with_extras(&[60]), RAW),
        (Packet::new(GATK, "cart:1").with_extras(&[60]), TABLE),
    ] {
        let answer = binary.ask(packet.clone());
        assert_eq!(
            (answer.status, format!("CLIENT_ERROR {}", answer.text()).as_str()),
            (INVALID, reply),
            "{packet:?}"
        );
    }
    assert_eq!(text(&mut client, "cart:1/ann").as_deref(), Some("x"));
}

#[test]
fn a_key_that_leaves_no_room_for_its_copies_is_refused_and_a_shorter_one_is_not() {
    let (_servers, [a, _b]) = fleet_with_copies(&[
        rule("hits", "hits:*", "counter", ""),
        rule("lists", "list:*", "list", ""),
        rule("logs", "log:*", "log", "window = \"1h\""),
        rule("carts", "cart:*", "table", ""),
        rule("rate", "rate:*", "window", "window = \"1h\""),
        rule("online", "online:*", "window", "window = \"10s\"\nslots = 100\nunique = true"),
        rule("locks", "lock:*", "lock", ""),
        rule("fences", "fence:*", "lock", "fence = true"),
    ]);
    let mut client = a.client();
    // The prefix of the own key, what follows that key, the most bytes of it, and the command.
    let commands = [
        ("session:", "", 225, "set K 0 0 1\r\nx"),
        ("hits:", "", 225, "incr K 1"),
        ("list:", "", 201, "append K 0 0 2\r\n+x"),
        ("log:", "", 110, "append K 0 0 1\r\nx"),
        ("cart:", "/x", 201, "set K 0 0 1\r\nx"),
        ("rate:", "", 201, "incr K 1"),
        ("online:", ":x", 201, "add K 0 0 1\r\nx"),
        ("lock:", "", 201, "add K 0 0 1\r\nx"),
        ("fence:", "", 201, "add K 0 0 1\r\nx"),
    ];
    let reads = ["list:", "log:", "cart:", "rate:", "online:"];
    for (prefix, part, longest, command) in commands {
        for length in [longest, longest + 1, longest + 8, 240] {
            let own = format!("{prefix:k<length$}");
            let reply = client.execute(&command.replace('K', &format!("{own}{part}")));
            let is_done = reply == "STORED" || reply == "1";
            assert_eq!(
                (is_done, reply == TOO_LONG),
                (length == longest, length > longest),
                "{prefix} {length}: {reply}"
            );
            if reads.contains(&prefix) {
                let reply = client.execute(&format!("mg {own} s"));
                assert_eq!(
                    (reply.starts_with("HD"), reply == TOO_LONG),
                    (is_done, !is_done),
                    "{prefix} {length}: {reply}"
                );
            }
        }
    }
    // A part that is too long, of a key that is not.
    for (command, longest) in
        [("set cart:1/K 0 0 1\r\nx", 225), ("get cart:1/K", 225), ("add online:1:K 0 0 1\r\nx", 217)]
    {
        let own = command.split(' ').nth(1).expect("a key").len() - 1;
        for length in [longest, longest + 1] {
            let reply = client.execute(&command.replace('K', &"k".repeat(length - own)));
            assert_eq!(reply == TOO_LONG, length > longest, "{command} {length}: {reply}");
            assert!(!reply.starts_with("SERVER_ERROR"), "{command} {length}: {reply}");
            if reply.starts_with("VALUE") {
                assert_eq!((client.line(), client.line()), ("x".into(), "END".into()));
            }
        }
    }
}

#[test]
fn a_lock_is_renewed_on_both_servers_and_ends_by_itself_when_its_sidecar_is_killed() {
    let (_servers, [a, b]) = fleet_with_copies(&[
        rule("locks", "lock:*", "lock", "ttl = \"1s\""),
        rule("fences", "fence:*", "lock", "ttl = \"1s\"\nfence = true"),
    ]);
    let (mut first, mut second) = (a.client(), b.client());
    let take = |client: &mut Client, key: &str, owner: &str| store(client, &format!("add {key} 0 0"), owner);
    for key in ["lock:1", "fence:1"] {
        assert_eq!(take(&mut first, key, "ann"), "STORED");
    }
    let number = |client: &mut Client| -> u64 {
        let shown = text(client, "fence:1").expect("it is held");
        shown.split_once(' ').and_then(|(_, number)| number.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
    };
    let held = number(&mut second);
    // An item outlives the TTL of the lock by three seconds.
    let is_over = tokio::time::Instant::now() + Duration::from_secs(6);
    eventually("the locks have outlived their TTLs", || {
        for key in ["lock:1", "fence:1"] {
            assert_eq!(take(&mut second, key, "bob"), "NOT_STORED");
        }
        assert_eq!((text(&mut second, "lock:1").as_deref(), number(&mut second)), (Some("ann"), held));
        tokio::time::Instant::now() > is_over
    });
    a.kill();
    let ((), took) = timed(|| {
        eventually("the lock ends", || take(&mut second, "lock:1", "bob") == "STORED");
        eventually("that with a fence does too", || take(&mut second, "fence:1", "bob") == "STORED");
    });
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(number(&mut second) > held);
    assert_eq!((second.delete("lock:1"), second.delete("fence:1")), ("DELETED".into(), "DELETED".into()));
}

#[test]
fn a_binary_client_stores_a_value_with_copies_over_its_cas() {
    let (_servers, [a, b]) = fleet_with_copies(&[rule("carts", "cart:*", "table", "")]);
    let (mut client, mut other) = (BinaryClient::new(a.address()), BinaryClient::new(b.address()));
    for key in ["session:1", "cart:1/ann"] {
        let over = |opcode, cas| Packet::store(opcode, key, "new", 0).with_cas(cas);
        client.ask(Packet::new(DELETE, key));
        assert_eq!(client.ask(over(SET, 7)).status, NOT_FOUND, "{key}");
        let stored = client.ask(Packet::store(SET, key, "old", 0));
        assert!(stored.status == SUCCESS && stored.cas > 0, "{stored:?}");
        let found = other.ask(Packet::new(GET, key));
        assert_eq!((found.cas, &found.value[..]), (stored.cas, &b"old"[..]));
        assert_eq!(other.ask(over(SET, found.cas + 1)).status, EXISTS);
        let changed = other.ask(over(REPLACE, found.cas));
        assert_eq!(changed.status, SUCCESS);
        assert_eq!(client.ask(over(SET, found.cas)).status, EXISTS, "it has changed");
        assert_eq!(client.ask(over(SET, changed.cas)).status, SUCCESS);
        let refused = client.ask(Packet::new(APPEND, key).with_value("x").with_cas(changed.cas));
        assert_eq!(refused.status, INVALID, "{refused:?}");
    }
}
