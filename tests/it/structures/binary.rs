//! Structures for binary clients: the commands of each kind, and an error that names them for any other.

use super::{Fleet, rule, text, with_one_copy_and_two};
use crate::binary::packet::*;

with_one_copy_and_two!(a_binary_client_has_the_commands_of_each_kind_and_no_other,);

const COUNTER: &str = "a counter has only the commands incr, decr, get, set, add, delete";
const WINDOW: &str = "a window has only the commands incr, get, delete";
const LIST: &str = "a list has only the commands append, get, get KEY@ELEMENT, delete";
const TABLE: &str = "a table has only the commands get, delete, and any command on KEY/NAME";
const LOCK: &str = "a lock has only the commands add, get, delete";

fn a_binary_client_has_the_commands_of_each_kind_and_no_other(fleet: Fleet) {
    let rules = [
        rule("hits", "hits:*", "counter", "ttl = \"1h\""),
        rule("rate", "rate:*", "window", "window = \"1h\""),
        rule("online", "online:*", "window", "window = \"1h\"\nunique = true"),
        rule("lists", "list:*", "list", ""),
        rule("carts", "cart:*", "table", ""),
        rule("locks", "lock:*", "lock", "ttl = \"1h\""),
    ];
    let (_servers, sidecars) = fleet(&rules);
    let mut client = BinaryClient::new(sidecars[0].address());
    let mut other = BinaryClient::new(sidecars[1].address());
    let mut classic = sidecars[0].client();
    let never = u32::MAX;

    // Counters. An exptime that creates nothing elsewhere creates a counter as `incr` does.
    assert_eq!(client.ask(Packet::count(INCREMENT, "hits:1", 7, never)).number(), 1);
    assert_eq!(other.ask(Packet::count(INCREMENT, "hits:1", 7, never)).number(), 2);
    assert_eq!(client.ask(Packet::count(INCREMENT, "hits:2", 70, 0)).number(), 70);
    assert!(classic.ttl("hits:2").is_some_and(|ttl| (3000..=3600).contains(&ttl)), "the rule's");
    assert_eq!(client.ask(Packet::count(DECREMENT, "hits:2", 70, 0)).number(), 69);
    assert_eq!(classic.execute("incr hits:2 1"), "70");
    assert_eq!(client.get("hits:1").as_deref(), Some("2"));
    assert_eq!((client.set("hits:3", "9"), client.set("hits:3", "x")), (SUCCESS, INVALID));
    assert_eq!(client.ask(Packet::store(ADD, "hits:3", "1", 0)).status, EXISTS);
    assert_eq!(client.ask(Packet::new(DELETE, "hits:3")).status, SUCCESS);
    assert_eq!(client.ask(Packet::new(DELETE, "hits:3")).status, NOT_FOUND);

    // Windows.
    for sum in 1..=3 {
        assert_eq!(client.ask(Packet::count(INCREMENT, "rate:1", 50, 0)).number(), sum);
    }
    assert_eq!(other.get("rate:1").as_deref(), Some("3"));
    assert_eq!(client.ask(Packet::store(ADD, "online:1:ann", "", 0)).status, SUCCESS);
    assert_eq!(other.ask(Packet::store(ADD, "online:1:ann", "", 0)).status, EXISTS);
    assert_eq!(client.get("online:1").as_deref(), Some("1"));
    assert_eq!(client.ask(Packet::new(DELETE, "rate:1")).status, SUCCESS);

    // Lists.
    let append = |lines: &str| Packet::new(APPEND, "list:1").with_value(lines);
    assert_eq!(client.ask(append("+ann\n+bob\n")).status, SUCCESS);
    assert_eq!(client.ask(append("-bob\n")).status, SUCCESS);
    assert_eq!(other.get("list:1").as_deref(), Some("ann\n"));
    assert_eq!((other.get("list:1@ann").as_deref(), other.get("list:1@bob")), (Some("1"), None));
    let answer = client.ask(append("bob\n"));
    assert_eq!(answer.status, INVALID);
    assert!(answer.text().starts_with("each line of a list must be + or -"), "{answer:?}");
    assert_eq!(client.ask(Packet::new(DELETE, "list:1")).status, SUCCESS);
    assert_eq!(client.ask(Packet::new(DELETE, "list:1")).status, NOT_FOUND);

    // Tables.
    assert_eq!(client.set("cart:1/ann", "one"), SUCCESS);
    assert_eq!(client.ask(Packet::store(ADD, "cart:1/ann", "x", 0)).status, EXISTS);
    assert_eq!(client.ask(Packet::count(INCREMENT, "cart:1/n", 7, 0)).number(), 7);
    assert_eq!(client.ask(Packet::count(INCREMENT, "cart:1/none", 7, never)).status, NOT_FOUND);
    assert_eq!(client.ask(Packet::new(APPEND, "cart:1/ann").with_value("+")).status, SUCCESS);
    assert_eq!(other.get("cart:1/ann").as_deref(), Some("one+"));
    let listed = other.get("cart:1").expect("a listing");
    assert!(["ann\nn\n", "n\nann\n"].contains(&listed.as_str()), "{listed}");
    assert_eq!(client.set("cart:1/a b", "x"), INVALID);
    assert_eq!(client.ask(Packet::new(DELETE, "cart:1/n")).status, SUCCESS);
    assert_eq!(client.ask(Packet::new(DELETE, "cart:1")).status, SUCCESS);
    assert_eq!((client.get("cart:1/ann"), client.get("cart:1")), (None, None));

    // Locks.
    assert_eq!(client.ask(Packet::store(ADD, "lock:1", "ann", 0)).status, SUCCESS);
    assert_eq!(other.ask(Packet::store(ADD, "lock:1", "bob", 0)).status, EXISTS);
    assert_eq!(other.get("lock:1").as_deref(), Some("ann"));
    assert_eq!(other.ask(Packet::new(DELETE, "lock:1")).status, NOT_FOUND);
    assert_eq!(client.ask(Packet::new(DELETE, "lock:1")).status, SUCCESS);
    assert_eq!(text(&mut classic, "lock:1"), None);

    // What a kind does not have.
    let touch = |opcode, key| Packet::new(opcode, key).with_extras(&[60]);
    let no_cas = "a command on the key of a structure cannot name a CAS";
    for (packet, error) in [
        (Packet::new(APPEND, "hits:1").with_value("1"), COUNTER),
        (Packet::store(REPLACE, "hits:1", "1", 0), COUNTER),
        (touch(TOUCH, "hits:1"), COUNTER),
        (touch(GAT, "hits:1"), COUNTER),
        (touch(GATKQ, "hits:1"), COUNTER),
        (Packet::store(SET, "rate:1", "1", 0), WINDOW),
        (touch(GAT, "rate:1"), WINDOW),
        (Packet::count(DECREMENT, "rate:1", 0, 0), "the window has only counts that increase"),
        (
            Packet::count(INCREMENT, "online:1", 0, 0),
            "a window with unique has only the commands add KEY:VISITOR, get, delete",
        ),
        (Packet::store(SET, "list:1", "+a\n", 0), LIST),
        (touch(TOUCH, "list:1"), LIST),
        (Packet::count(INCREMENT, "list:1", 0, 0), LIST),
        (Packet::new(APPEND, "list:1").with_value("+a\n").with_cas(5), no_cas),
        (Packet::store(SET, "cart:1", "x", 0), TABLE),
        (touch(GAT, "cart:1"), TABLE),
        (Packet::store(SET, "lock:1", "ann", 0), LOCK),
        (Packet::count(INCREMENT, "lock:1", 0, 0), LOCK),
        (touch(TOUCH, "lock:1"), LOCK),
        (Packet::store(SET, "hits:1", "1", 0).with_cas(5), no_cas),
        (Packet::new(DELETE, "hits:1").with_cas(5), no_cas),
        (Packet::new(GET, "hits: 1"), "the key of a structure must be text"),
        (Packet::count(INCREMENT, "hits: 1", 0, 0), "the key of a structure must be text"),
        (Packet::new(GET, "hits:1@kennel:x"), "keys that contain @kennel: are reserved"),
        (Packet::new(DELETE, "hits:1@kennel:x"), "keys that contain @kennel: are reserved"),
    ] {
        let answer = client.ask(packet.clone().with_opaque(9));
        assert_eq!((answer.status, answer.text().as_str()), (INVALID, error), "{packet:?}");
        assert_eq!((answer.opcode, answer.opaque), (packet.opcode, 9));
    }
    assert_eq!(client.get("hits:1").as_deref(), Some("2"), "nothing of it was carried out");

    // Of several gets, each has its own reply. The key without a value has none.
    let keys = ["hits:1", "hits:none", "hits:1@kennel:x", "raw:none", "rate:none", "hits:2"];
    let gets: Vec<_> = (1..).zip(keys).map(|(n, key)| Packet::new(GETKQ, key).with_opaque(n)).collect();
    let answers = client.pipeline(&gets);
    let shown: Vec<_> = answers.iter().map(|answer| (answer.opaque, answer.status, answer.text())).collect();
    let value = |n, value: &str| (n, SUCCESS, value.to_owned());
    let refused = (3, INVALID, "keys that contain @kennel: are reserved".to_owned());
    assert_eq!(shown, [value(1, "2"), refused, value(5, "0"), value(6, "70")]);
}
