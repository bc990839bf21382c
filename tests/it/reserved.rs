//! Keys that Kennel itself stores: no client may use them, whatever the rules, the command and the protocol.

use crate::binary::packet::*;
use crate::client::Client;
use crate::world::{Kennel, addresses, direct, guarded, memcacheds, raw, sidecar_toml};

const KEYS: [(&str, &str); 5] = [
    ("@lock:g:1", "keys that begin with @lock: are reserved"),
    ("@long:0cc9cd4dd26c5137b675a0d819cb9ab0", "keys that begin with @long: are reserved"),
    ("@probe:1", "keys that begin with @probe: are reserved"),
    ("@kennel:marks:main", "keys that contain @kennel: are reserved"),
    ("list:1@kennel:e0", "keys that contain @kennel: are reserved"),
];

fn store(client: &mut Client, command: &str) -> String {
    client.send(format!("{command} 1\r\nx\r\n").as_bytes());
    client.line()
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of = |chunk: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(*chunk.get(at).unwrap_or(&0)));
        let digit = |at: usize| match at <= chunk.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    text.as_bytes().chunks(3).map(of).collect()
}

#[test]
fn no_client_may_use_the_keys_that_kennel_stores() {
    for rules in [
        &[][..],
        &[raw("all", "*")],
        &[guarded("all", "*", "")],
        &[guarded("g", "g:*", "tags = [\"t\"]"), raw("rest", "*")],
        &["[[rules]]\nname = \"cart\"\nmatch = \"*\"\nkind = \"table\"\n".to_owned()],
        &["[[rules]]\nname = \"hits\"\nmatch = \"*\"\nkind = \"counter\"\n".to_owned()],
    ] {
        let servers = memcacheds(1);
        let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), rules));
        let mut client = kennel.client();
        for (key, error) in KEYS {
            let refused = format!("CLIENT_ERROR {error}");
            for command in ["set", "add", "replace", "append", "prepend"] {
                assert_eq!(store(&mut client, &format!("{command} {key} 0 0")), refused, "{command}");
            }
            client.send(format!("cas {key} 0 0 1 7\r\nx\r\n").as_bytes());
            assert_eq!(client.line(), refused);
            let encoded = base64(key);
            for command in [
                format!("get {key}"),
                format!("gets a {key} b"),
                format!("gat 10 {key}"),
                format!("gats 10 {key}"),
                format!("incr {key} 1"),
                format!("decr {key} 1"),
                format!("touch {key} 10"),
                format!("delete {key}"),
                format!("mg {key} v"),
                format!("mg {key} v N30"),
                format!("ma {key} N30"),
                format!("md {key}"),
                format!("me {key}"),
                format!("mg {encoded} b v N30"),
                format!("ma {encoded} b N30"),
                format!("md {encoded} b"),
            ] {
                assert_eq!(client.execute(&command), refused, "{command}");
            }
            for command in [format!("ms {key}"), format!("ms {encoded}")] {
                let flags = if command.ends_with(key) { "" } else { " b" };
                client.send(format!("{command} 1{flags}\r\nx\r\n").as_bytes());
                assert_eq!(client.line(), refused, "{command}");
            }
            let mut binary = BinaryClient::new(kennel.address());
            for packet in [
                Packet::new(GET, key),
                Packet::store(SET, key, "x", 0),
                Packet::store(ADD, key, "x", 0),
                Packet::new(APPEND, key).with_value("x"),
                Packet::count(INCREMENT, key, 1, 0),
                Packet::new(DELETE, key),
                Packet::new(TOUCH, key).with_extras(&[60]),
                Packet::new(GAT, key).with_extras(&[60]),
            ] {
                let answer = binary.ask(packet.clone());
                assert_eq!((answer.status, answer.text().as_str()), (INVALID, error), "{packet:?}");
            }
        }
        let mut server = direct(&servers[0]);
        for (key, _) in KEYS.iter().filter(|(key, _)| !key.starts_with("@kennel:marks:")) {
            assert_eq!(server.get(key), None, "{key}");
        }
        assert_eq!(client.execute("mn"), "MN");
    }
}

#[test]
fn an_item_that_is_no_lease_or_an_old_one_stops_no_rebuild() {
    let servers = memcacheds(1);
    let rules = [guarded("g", "g:*", "tags = [\"t\"]")];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let (mut client, mut server) = (kennel.client(), direct(&servers[0]));
    // A lease that was granted in 1970, of sidecar 7, without tags.
    let old = [&[1u8][..], &1u64.to_le_bytes(), &7u64.to_le_bytes(), &[0]].concat();
    for lock in [&b"x"[..], b"", b"\x01\0", &old] {
        client.store("g:1", b"value", 600);
        server.store("@lock:g:1", lock, 0);
        assert_eq!(client.delete("@tag:t"), "DELETED");
        // The winner receives a miss, everybody else the stale value.
        assert_eq!(client.get("g:1"), None, "{}", lock.escape_ascii());
        assert!(kennel.client().get("g:1").is_some(), "it is being rebuilt");
        client.store("g:1", b"value", 600);
    }
}
