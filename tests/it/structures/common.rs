//! What all kinds have in common.

use super::{fleet, rule, store, text};
use crate::world::{guarded, raw};

#[test]
fn one_get_may_name_structures_raw_and_guarded_keys_and_answers_in_order() {
    let rules = [rule("hits", "hits:*", "counter", ""), guarded("pages", "page:*", ""), raw("rest", "r:*")];
    let (_servers, [a, b]) = fleet(&rules);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(a.execute("incr hits:1 4"), "4");
    a.store("r:1", b"raw", 0);
    a.store("page:1", b"guarded", 60);
    a.store("other", b"no rule", 0);
    let items = b.get_many(&["hits:1", "r:1", "hits:none", "page:1", "other", "hits:1"]);
    let found: Vec<_> =
        items.iter().map(|item| (item.key.as_str(), std::str::from_utf8(&item.value).unwrap())).collect();
    let expected =
        [("hits:1", "4"), ("r:1", "raw"), ("page:1", "guarded"), ("other", "no rule"), ("hits:1", "4")];
    assert_eq!(found, expected);
    // A long get is answered in parts.
    let many: Vec<String> = (0..400).flat_map(|n| [format!("r:{n}"), format!("hits:{n}")]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let found: Vec<String> = b.get_many(&many).into_iter().map(|item| item.key).collect();
    assert_eq!(found, ["r:1", "hits:1"]);
}

#[test]
fn keys_of_items_below_a_structure_are_refused_in_every_command() {
    let (_servers, [a, _b]) = fleet(&[rule("hits", "hits:*", "counter", ""), raw("rest", "r:*")]);
    let mut client = a.client();
    const REFUSED: &str = "CLIENT_ERROR keys that contain @kennel: are reserved";
    for key in ["hits:1@kennel:x", "r:1@kennel:x", "else@kennel:", "@kennel:x"] {
        assert_eq!(client.execute(&format!("get {key}")), REFUSED);
        assert_eq!(client.execute(&format!("get r:1 {key} hits:1")), REFUSED);
        assert_eq!(client.execute(&format!("gat 10 {key}")), REFUSED);
        assert_eq!(store(&mut client, &format!("set {key} 0 0"), "1"), REFUSED);
        assert_eq!(client.execute(&format!("incr {key} 1")), REFUSED);
        assert_eq!(client.execute(&format!("delete {key}")), REFUSED);
        assert_eq!(client.execute(&format!("touch {key} 1")), REFUSED);
        assert_eq!(client.execute(&format!("mg {key} v")), REFUSED);
        assert_eq!(client.execute(&format!("ma {key}")), REFUSED);
        assert_eq!(client.execute(&format!("md {key}")), REFUSED);
        assert_eq!(store(&mut client, &format!("ms {key}"), "1"), REFUSED);
    }
    // In a get of many parts it ends the reply.
    let many: String = (0..400).map(|n| format!(" r:{n}")).collect();
    assert_eq!(client.execute(&format!("get{many} hits:1@kennel:x")), REFUSED);
    assert_eq!(client.execute("mn"), "MN");
}

#[test]
fn without_a_structure_no_key_is_reserved() {
    let (_servers, [a, b]) = fleet(&[raw("rest", "r:*")]);
    a.client().store("r:1@kennel:x", b"1", 0);
    assert_eq!(text(&mut b.client(), "r:1@kennel:x").as_deref(), Some("1"));
}

#[test]
fn quiet_commands_are_quiet_and_their_errors_are_not() {
    let (_servers, [a, b]) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let (mut a, mut b) = (a.client(), b.client());
    a.send(b"incr hits:1 1 noreply\r\nset hits:2 0 0 1 noreply\r\n7\r\nappend hits:2 0 0 1 noreply\r\n7\r\n");
    a.send(b"delete hits:3 noreply\r\ntouch hits:1 0 noreply\r\nma hits:1 q v\r\nms hits:2 1 q\r\n8\r\n");
    a.send(b"mg hits:none v q\r\nmn\r\n");
    assert_eq!(a.line(), "MN");
    assert_eq!((text(&mut b, "hits:1"), text(&mut b, "hits:2")), (Some("2".into()), Some("8".into())));
    a.send(b"ms hits:2 1 q\r\nx\r\nmn\r\n");
    assert!(a.line().starts_with("CLIENT_ERROR a counter can only be set to a number"));
    assert_eq!(a.line(), "MN");
}

#[test]
fn pipelined_commands_of_one_client_take_effect_in_order() {
    let (_servers, [a, _b]) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let mut client = a.client();
    let mut sent = String::new();
    let mut expected = String::new();
    for n in 1..=200 {
        sent += "incr hits:1 1\r\nget hits:1\r\nget hits:1 hits:1\r\n";
        let value = format!("VALUE hits:1 0 {}\r\n{n}\r\n", n.to_string().len());
        expected += &format!("{n}\r\n{value}END\r\n{value}{value}END\r\n");
    }
    client.send(sent.as_bytes());
    client.expect(expected.as_bytes());
}
