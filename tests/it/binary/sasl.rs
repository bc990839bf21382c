//! Passwords in the binary protocol: SASL with the mechanism PLAIN, against the `auth_file` of the listener.

use std::path::PathBuf;

use super::packet::*;
use crate::world::{Kennel, addresses, guarded, memcacheds, raw, sidecar_toml, temp_dir};

/// A sidecar whose only listener requires a password of `ann` or `bob`, and the directory with the file.
struct Protected {
    kennel: Kennel,
    _servers: Vec<crate::world::Memcached>,
    directory: PathBuf,
}

impl Protected {
    fn start() -> Protected {
        let directory = temp_dir();
        std::fs::write(directory.join("users"), "ann:s3cret\nbob:a:b\n").expect("write the file");
        let servers = memcacheds(1);
        let rules = [guarded("hot", "hot:*", "cold_wait = \"0ms\""), raw("raw", "*")];
        let listener = format!(
            "{{ address = \"127.0.0.1:0\", auth_file = {:?} }}",
            directory.join("users").display().to_string()
        );
        let toml = sidecar_toml(&addresses(&servers), &rules).replacen("\"127.0.0.1:0\"", &listener, 1);
        Protected { kennel: Kennel::start(&toml), _servers: servers, directory }
    }

    fn client(&self) -> BinaryClient {
        BinaryClient::new(self.kennel.address())
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn auth(message: &str) -> Packet {
    Packet::new(SASL_AUTH, "PLAIN").with_value(message).with_opaque(3)
}

fn step(message: &str) -> Packet {
    Packet::new(SASL_STEP, "PLAIN").with_value(message).with_opaque(4)
}

#[test]
fn a_client_authenticates_with_plain_and_may_then_send_anything() {
    let protected = Protected::start();
    for message in ["\0ann\0s3cret", "ann\0ann\0s3cret", "\0bob\0a:b"] {
        let mut client = protected.client();
        let list = client.ask(Packet::new(SASL_LIST, b"").with_opaque(1));
        assert_eq!((list.status, list.text(), list.opaque), (SUCCESS, "PLAIN".to_owned(), 1));
        assert_eq!(client.ask(Packet::new(VERSION, b"")).text(), "1.6.45");
        let accepted = client.ask(auth(message));
        assert_eq!(
            (accepted.status, accepted.text(), accepted.opaque),
            (SUCCESS, "Authenticated".to_owned(), 3)
        );
        assert_eq!(client.set("raw:k", "v"), SUCCESS);
        assert_eq!(client.get("hot:k"), None);
        assert_eq!(client.set("hot:k", "w"), SUCCESS);
        assert_eq!(client.get("hot:k").as_deref(), Some("w"));
        client.ask(Packet::new(DELETE, "hot:k"));
    }
    let accepted = protected.kennel.metrics().sum("kennel_authentications_total", &["outcome=\"accepted\""]);
    assert_eq!(accepted, 3.0);
}

#[test]
fn the_password_may_follow_in_a_step() {
    let protected = Protected::start();
    let mut client = protected.client();
    let continued = client.ask(auth(""));
    assert_eq!((continued.status, continued.value.len()), (AUTH_CONTINUE, 0));
    assert_eq!(client.ask(step("\0ann\0s3cret")).text(), "Authenticated");
    assert_eq!(client.get("raw:none"), None);
}

#[test]
fn a_wrong_password_is_refused_and_the_next_attempt_may_succeed() {
    let protected = Protected::start();
    let mut client = protected.client();
    for message in [
        auth("\0ann\0wrong"),
        auth("\0nobody\0s3cret"),
        auth("bob\0ann\0s3cret"),
        auth("no parts"),
        auth("\0ann\0"),
        step("\0ann\0s3cret"),
        Packet::new(SASL_AUTH, "CRAM-MD5").with_value("\0ann\0s3cret"),
    ] {
        let answer = client.ask(message.clone());
        assert_eq!((answer.status, answer.text()), (AUTH_ERROR, "Auth failure.".to_owned()), "{message:?}");
        assert_eq!((answer.opcode, answer.opaque), (message.opcode, message.opaque));
    }
    // Messages that are too long, or lie, are refused and discarded.
    assert_eq!(client.ask(auth(&"x".repeat(20_000))).status, SERVER_ERROR);
    assert_eq!(client.ask(Packet::new(SASL_AUTH, [b'P'; 40]).with_value("x")).status, INVALID);
    assert_eq!(client.ask(auth("\0ann\0s3cret")).status, SUCCESS);
    assert_eq!(client.get("raw:none"), None);
    let metrics = protected.kennel.metrics();
    let outcome = |label: &str| metrics.sum("kennel_authentications_total", &[label]);
    assert_eq!(outcome("outcome=\"wrong\""), 2.0);
    assert!(outcome("outcome=\"malformed\"") >= 4.0);
}

#[test]
fn nothing_of_a_client_without_a_password_is_carried_out() {
    let protected = Protected::start();
    let mut known = protected.client();
    assert_eq!(known.ask(auth("\0ann\0s3cret")).status, SUCCESS);
    assert_eq!(known.set("raw:k", "v"), SUCCESS);
    for packet in [
        Packet::new(GET, "raw:k"),
        Packet::new(GETQ, "raw:k"),
        Packet::new(DELETE, "raw:k"),
        Packet::new(FLUSH, b""),
        Packet::new(NOOP, b""),
        Packet::new(STAT, b""),
        Packet::new(QUIT, b""),
        Packet::store(SETQ, "raw:k", "other", 0),
        Packet::new(0x40, b""),
    ] {
        let mut client = protected.client();
        client.send(&[packet.clone(), Packet::new(DELETE, "raw:k")]);
        let answers = Answer::read_all(&client.0.rest());
        assert_eq!(answers.len(), 1, "{packet:?}: the connection is closed behind the error");
        assert_eq!((answers[0].status, answers[0].opcode), (AUTH_ERROR, packet.opcode));
    }
    assert_eq!(known.get("raw:k").as_deref(), Some("v"));
    let missing = protected.kennel.metrics().sum("kennel_authentications_total", &["outcome=\"missing\""]);
    assert_eq!(missing, 9.0);
}

#[test]
fn another_message_ends_the_authentication() {
    let protected = Protected::start();
    for message in [Packet::new(SASL_LIST, b""), auth("\0ann\0wrong"), auth("")] {
        let mut client = protected.client();
        assert_eq!(client.ask(auth("\0ann\0s3cret")).status, SUCCESS);
        assert_eq!(client.set("raw:k", "v"), SUCCESS);
        client.ask(message);
        client.send(&[Packet::new(GET, "raw:k")]);
        let answers = Answer::read_all(&client.0.rest());
        assert_eq!((answers.len(), answers[0].status), (1, AUTH_ERROR));
    }
}

#[test]
fn what_is_pipelined_behind_the_password_is_served_however_it_is_split() {
    let protected = Protected::start();
    let packets = [
        Packet::new(SASL_LIST, b""),
        auth("\0ann\0s3cret"),
        Packet::store(SET, "raw:k", "v", 0),
        Packet::new(GETK, "raw:k"),
        Packet::new(QUIT, b""),
    ];
    let bytes: Vec<u8> = packets.iter().flat_map(Packet::bytes).collect();
    let mut whole = protected.client();
    whole.0.send(&bytes);
    let mut split = protected.client();
    bytes.iter().for_each(|byte| split.0.send(&[*byte]));
    for client in [&mut whole, &mut split] {
        let answers = Answer::read_all(&client.0.rest());
        let opcodes: Vec<u8> = answers.iter().map(|answer| answer.opcode).collect();
        assert_eq!(opcodes, [SASL_LIST, SASL_AUTH, SET, GETK, QUIT]);
        assert_eq!(answers[3].text(), "v");
    }
}

#[test]
fn an_authenticated_binary_connection_does_not_become_a_text_one() {
    let protected = Protected::start();
    let mut client = protected.client();
    assert_eq!(client.ask(auth("\0ann\0s3cret")).status, SUCCESS);
    client.0.send(b"version\r\n");
    assert_eq!(client.0.rest(), b"");
    // And a text client still authenticates in its own way.
    let mut client = protected.kennel.client();
    client.send(b"set auth 0 0 10\r\nann s3cret\r\nversion\r\n");
    assert_eq!((client.line(), client.line()), ("STORED".to_owned(), "VERSION 1.6.45".to_owned()));
}

#[test]
fn without_passwords_sasl_is_unknown_as_in_memcached() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("raw", "*")]));
    let mut client = BinaryClient::new(kennel.address());
    for packet in [Packet::new(SASL_LIST, b""), auth("\0ann\0s3cret"), step("x")] {
        let answer = client.ask(packet);
        assert_eq!((answer.status, answer.text()), (UNKNOWN_COMMAND, "Unknown command".to_owned()));
    }
    assert_eq!(client.get("none"), None);
}
