use super::*;
use crate::protocol::binary::reply;
use bytes::BytesMut;

const LIMITS: Limits = Limits { max_value: 1000, access: Access::Open };

/// A packet whose lengths are those of its parts.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut packet = vec![REQUEST, opcode];
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    packet.extend_from_slice(&body.to_be_bytes());
    packet.extend_from_slice(b"opaq");
    packet.extend_from_slice(&cas.to_be_bytes());
    [&packet[..], extras, key, value].concat()
}

/// The same with another body length.
fn lying(packet: Vec<u8>, body: u32) -> Vec<u8> {
    let mut packet = packet;
    packet[8..12].copy_from_slice(&body.to_be_bytes());
    packet
}

fn command(packet: &[u8]) -> Command<'_> {
    match parse(packet, &LIMITS) {
        Parsed::Request { request, consumed } => {
            assert_eq!((consumed, &request.head.opaque), (packet.len(), b"opaq"));
            request.command
        }
        other => panic!("{other:?}"),
    }
}

fn refused<'a>(packet: &'a [u8], limits: &Limits) -> Refused<'a> {
    match parse(packet, limits) {
        Parsed::Refused(refused) => refused,
        other => panic!("{other:?}"),
    }
}

fn extras(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

#[test]
fn every_command_has_its_arguments() {
    let key = &b"a key\r\n\0"[..];
    for opcode in [0x00, 0x09, 0x0c, 0x0d] {
        assert_eq!(command(&packet(opcode, b"", key, b"", 0)), Command::Get { key, exptime: None });
    }
    for opcode in [0x1d, 0x1e, 0x23, 0x24] {
        let get = packet(opcode, &extras(&[7]), key, b"", 0);
        assert_eq!(command(&get), Command::Get { key, exptime: Some(7) });
    }
    assert_eq!(command(&packet(0x1c, &extras(&[0]), key, b"", 0)), Command::Touch { key, exptime: 0 });
    for (opcode, verb) in [
        (0x01, Verb::Set),
        (0x11, Verb::Set),
        (0x02, Verb::Add),
        (0x12, Verb::Add),
        (0x03, Verb::Replace),
        (0x13, Verb::Replace),
    ] {
        let store = Store { verb, key, flags: 5, exptime: 60, data: b"value", cas: 9 };
        assert_eq!(command(&packet(opcode, &extras(&[5, 60]), key, b"value", 9)), Command::Store(store));
    }
    for (opcode, verb) in
        [(0x0e, Verb::Append), (0x19, Verb::Append), (0x0f, Verb::Prepend), (0x1a, Verb::Prepend)]
    {
        let store = Store { verb, key, flags: 0, exptime: 0, data: b"", cas: 9 };
        assert_eq!(command(&packet(opcode, b"", key, b"", 9)), Command::Store(store));
    }
    for opcode in [0x04, 0x14] {
        assert_eq!(command(&packet(opcode, b"", key, b"", 9)), Command::Delete { key, cas: 9 });
    }
    for (opcode, decr) in [(0x05, false), (0x15, false), (0x06, true), (0x16, true)] {
        let count = |create| Command::Count { key, decr, delta: 1 << 32 | 2, create, cas: 9 };
        let sent = |exptime| packet(opcode, &extras(&[1, 2, 3, 4, exptime]), key, b"", 9);
        assert_eq!(command(&sent(60)), count(Some((60, 3 << 32 | 4))));
        assert_eq!(command(&sent(u32::MAX)), count(None));
        assert_eq!(command(&sent(u32::MAX - 1)), count(Some((0, 3 << 32 | 4))));
    }
    for opcode in [0x08, 0x18] {
        assert_eq!(command(&packet(opcode, b"", b"", b"", 0)), Command::Flush { delay: 0 });
        let delayed = packet(opcode, &extras(&[u32::MAX]), b"", b"", 0);
        assert_eq!(command(&delayed), Command::Flush { delay: i32::MAX.into() });
    }
    assert_eq!(command(&packet(0x0a, b"", b"", b"", 0)), Command::Noop);
    assert_eq!(command(&packet(0x0b, b"", b"", b"", 0)), Command::Version);
    assert_eq!(command(&packet(0x10, b"", b"items", b"", 0)), Command::Stat { what: b"items" });
    assert_eq!(command(&packet(0x07, b"", b"", b"", 0)), Command::Quit);
    assert_eq!(command(&packet(0x17, b"", b"", b"", 0)), Command::Quit);
}

#[test]
fn an_exptime_that_no_text_command_can_name_is_none() {
    for (sent, exptime) in [(1, 1), (i32::MAX as u32, i32::MAX.into()), (1 << 31, 0), (u32::MAX, 0)] {
        let touch = packet(0x1c, &extras(&[sent]), b"k", b"", 0);
        assert_eq!(command(&touch), Command::Touch { key: b"k", exptime });
    }
}

#[test]
fn a_header_with_lengths_that_are_not_those_of_its_command_closes_the_connection() {
    let long = [b'k'; MAX_KEY + 1];
    let invalid = [
        packet(0x00, b"", b"", b"", 0),
        packet(0x00, b"1234", b"k", b"", 0),
        packet(0x00, b"", b"k", b"v", 0),
        packet(0x00, b"", &long, b"", 0),
        packet(0x01, b"", b"k", b"v", 0),
        packet(0x01, &[0; 8], b"", b"v", 0),
        packet(0x04, b"", b"k", b"v", 0),
        packet(0x05, &[0; 20], b"k", b"v", 0),
        packet(0x05, &[0; 19], b"k", b"", 0),
        packet(0x07, b"", b"k", b"", 0),
        packet(0x08, &[0; 5], b"", b"", 0),
        packet(0x0a, b"", b"", b"v", 0),
        packet(0x0b, b"", b"k", b"", 0),
        packet(0x0e, &[0; 1], b"k", b"v", 0),
        packet(0x10, &[0; 1], b"", b"", 0),
        packet(0x1c, b"", b"k", b"", 0),
        packet(0x20, b"", b"k", b"", 0),
        packet(0x21, b"", b"", b"v", 0),
        lying(packet(0x01, &[0; 8], b"k", b"", 0), MAX_BODY + 1),
        lying(packet(0x33, b"", b"", b"", 0), u32::MAX),
    ];
    for packet in invalid {
        // The header suffices.
        let refused = refused(&packet[..HEADER], &LIMITS);
        assert_eq!((refused.status, refused.close), (Status::Invalid, true), "{packet:?}");
    }
    for packet in [lying(packet(0x00, b"", b"key", b"", 0), 2), lying(packet(0x01, &[0; 8], b"k", b"", 0), 8)]
    {
        let refused = refused(&packet[..HEADER], &LIMITS);
        assert_eq!((refused.status, refused.close), (Status::UnknownCommand, true), "{packet:?}");
    }
}

#[test]
fn an_unknown_command_is_discarded_with_its_body() {
    for opcode in [0x1b, 0x1f, 0x25, 0x33, 0xff] {
        let packet = packet(opcode, b"ext", b"key", b"value", 0);
        let refused = refused(&packet[..HEADER], &LIMITS);
        let Refused { status, consumed, skip_data, close, .. } = refused;
        assert_eq!((status, consumed, skip_data, close), (Status::UnknownCommand, HEADER, 11, false));
    }
}

#[test]
fn a_value_that_is_too_large_is_discarded_and_a_set_deletes_the_old_one() {
    for (opcode, extras, deletes) in
        [(0x01, 8, true), (0x11, 8, true), (0x02, 8, false), (0x03, 8, false), (0x0e, 0, false)]
    {
        let packet = packet(opcode, &[0; 8][..extras], b"k", &[b'v'; 1001], 0);
        let refused = refused(&packet[..HEADER + extras + 1], &LIMITS);
        assert_eq!((refused.status, refused.skip_data, refused.close), (Status::TooLarge, 1001, false));
        assert_eq!(refused.consumed, HEADER + extras + 1);
        assert_eq!(refused.deletes, deletes.then_some(&b"k"[..]), "{opcode:#x}");
    }
    assert!(matches!(command(&packet(0x01, &[0; 8], b"k", &[b'v'; 1000], 0)), Command::Store(_)));
}

#[test]
fn what_follows_the_key_of_a_touch_or_stat_is_the_next_packet() {
    for (opcode, extras) in [(0x1c, 4), (0x1d, 4), (0x10, 0)] {
        let packet = packet(opcode, &[0; 4][..extras], b"k", b"rest", 0);
        let Parsed::Request { consumed, .. } = parse(&packet, &LIMITS) else { panic!("{opcode:#x}") };
        assert_eq!(consumed, packet.len() - 4);
    }
}

#[test]
fn a_byte_that_begins_no_packet_ends_the_connection() {
    for bytes in [&b"get k\r\n"[..], b"\x81", b"\0"] {
        assert_eq!(parse(bytes, &LIMITS), Parsed::NoPacket);
    }
}

#[test]
fn without_passwords_sasl_is_an_unknown_command() {
    for (packet, skip) in [
        (packet(0x20, b"", b"", b"", 0), 0),
        (packet(0x21, b"", b"PLAIN", b"\0u\0p", 0), 4),
        (packet(0x22, b"", b"PLAIN", &[0; 5000], 0), 5000),
    ] {
        let refused = refused(&packet, &LIMITS);
        assert_eq!((refused.status, refused.skip_data, refused.close), (Status::UnknownCommand, skip, false));
    }
}

#[test]
fn before_the_password_only_sasl_and_version_are_accepted() {
    let limits = Limits { access: Access::Unauthenticated, ..LIMITS };
    let accepted = |packet: &[u8]| matches!(parse(packet, &limits), Parsed::Request { .. });
    assert!(accepted(&packet(0x0b, b"", b"", b"", 0)) && accepted(&packet(0x20, b"", b"", b"", 0)));
    assert!(accepted(&packet(0x21, b"", b"PLAIN", b"\0u\0p", 0)));
    assert!(accepted(&packet(0x22, b"", b"PLAIN", b"\0u\0p", 0)));
    for packet in
        [packet(0x00, b"", b"k", b"", 0), packet(0x0a, b"", b"", b"", 0), packet(0x33, b"", b"", b"", 0)]
    {
        let refused = refused(&packet, &limits);
        assert_eq!((refused.status, refused.close), (Status::AuthError, true));
    }
    let long = packet(0x21, b"", &[b'm'; MAX_MECHANISM + 1], b"x", 0);
    assert_eq!(refused(&long, &limits).status, Status::Invalid);
    let large = packet(0x21, b"", b"PLAIN", &[0; MAX_MESSAGE + 1], 0);
    let Refused { status, skip_data, close, .. } = refused(&large, &limits);
    assert_eq!((status, skip_data, close), (Status::ServerError, MAX_MESSAGE as u64 + 1, false));
}

#[test]
fn a_packet_is_the_same_however_it_is_split() {
    let packets = [
        packet(0x01, &[0; 8], b"key", b"value", 0),
        packet(0x00, b"", b"key", b"", 0),
        packet(0x05, &[0; 20], b"key", b"", 0),
        packet(0x0a, b"", b"", b"", 0),
    ];
    for packet in packets {
        let whole = parse(&packet, &LIMITS);
        for length in 1..packet.len() {
            let Parsed::Incomplete { at_least } = parse(&packet[..length], &LIMITS) else {
                panic!("{length} bytes of {packet:?}")
            };
            assert!((1..=packet.len() - length).contains(&at_least));
        }
        let followed = [&packet[..], &[0x80, 0xff]].concat();
        let (Parsed::Request { request, consumed }, Parsed::Request { request: other, consumed: same }) =
            (whole, parse(&followed, &LIMITS))
        else {
            panic!("{packet:?}")
        };
        assert_eq!((request, consumed), (other, same));
    }
}

/// The reply to this opcode.
fn reply(opcode: u8, write: impl Fn(Head, &mut BytesMut)) -> Vec<u8> {
    let mut out = BytesMut::new();
    write(Head { opcode: Opcode(opcode), opaque: *b"opaq" }, &mut out);
    out.to_vec()
}

#[test]
fn a_reply_repeats_the_opcode_and_the_opaque() {
    let hit = reply(0x0c, |head, out| reply::put_hit(head, b"k", 5, 9, 3, out));
    let expected: &[u8] = b"\x81\x0c\0\x01\x04\0\0\0\0\0\0\x08opaq\0\0\0\0\0\0\0\x09\0\0\0\x05k";
    assert_eq!(hit, expected);
    let miss = reply(0x00, |head, out| reply::put_miss(head, b"k", out));
    assert_eq!(miss, b"\x81\0\0\0\0\0\0\x01\0\0\0\x09opaq\0\0\0\0\0\0\0\0Not found");
    let miss = reply(0x0c, |head, out| reply::put_miss(head, b"k", out));
    assert_eq!(miss, b"\x81\x0c\0\x01\0\0\0\x01\0\0\0\x01opaq\0\0\0\0\0\0\0\0k");
}

#[test]
fn a_quiet_read_hides_misses_and_a_quiet_write_success_but_neither_an_error() {
    for opcode in [0x09, 0x0d, 0x1e, 0x24] {
        assert!(reply(opcode, |head, out| reply::put_miss(head, b"k", out)).is_empty());
        assert!(!reply(opcode, |head, out| reply::put_hit(head, b"k", 0, 1, 0, out)).is_empty());
    }
    for opcode in 0x11..=0x1a {
        assert!(reply(opcode, |head, out| reply::put_done(head, 1, out)).is_empty());
        assert!(reply(opcode, |head, out| reply::put_number(head, 1, 1, out)).is_empty());
        assert!(!reply(opcode, |head, out| reply::put_error(head, Status::NotFound, out)).is_empty());
    }
    let quiet = (0..=255).filter(|opcode| Opcode(*opcode).is_quiet()).count();
    assert_eq!(quiet, 14);
}

#[test]
fn the_lines_of_text_replies_become_packets() {
    let translated = |text: &[u8]| reply(0x10, |head, out| reply::put_translated(head, text, out));
    let packets = translated(b"STAT a 1\r\nSTAT b c d\r\nEND\r\n");
    let each = [
        reply(0x10, |head, out| reply::put_statistic(head, b"a", b"1", out)),
        reply(0x10, |head, out| reply::put_statistic(head, b"b", b"c d", out)),
        reply(0x10, |head, out| reply::put_statistic(head, b"", b"", out)),
    ];
    assert_eq!(packets, each.concat());
    for (line, status, text) in [
        (&b"ERROR\r\n"[..], Status::UnknownCommand, &b"Unknown command"[..]),
        (b"SERVER_ERROR server is down\r\n", Status::ServerError, b"server is down"),
        (b"SERVER_ERROR object too large for cache\r\n", Status::TooLarge, b"Too large."),
        (b"CLIENT_ERROR bad tags\r\n", Status::Invalid, b"bad tags"),
        (
            b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            Status::NotANumber,
            Status::NotANumber.text(),
        ),
    ] {
        let packet = translated(line);
        assert_eq!(packet[6..8], status.number().to_be_bytes());
        assert_eq!(&packet[HEADER..], text);
        assert!(reply::has_status(&packet, status));
    }
    assert_eq!(translated(b"OK\r\n").len(), HEADER);
}
