use super::*;

const MAX: usize = 1 << 20;

fn part(stream: &str, keys: &[u64]) -> Result<Frame, Garbage> {
    Framer::new(Shape::Part, MAX).frame(stream.as_bytes(), keys)
}

fn whole(shape: Shape, reply: &[u8]) -> usize {
    match frame(shape, reply, MAX) {
        Ok(Frame::Whole(length)) => length,
        other => panic!("{other:?} of {}", String::from_utf8_lossy(reply)),
    }
}

#[test]
fn a_line_ends_at_its_crlf_before_the_next_reply() {
    for reply in ["STORED", "18446744073709551615", "VERSION 1.6.18", "CLIENT_ERROR bad data chunk", "BUSY x"]
    {
        let stream = format!("{reply}\r\nEND\r\n");
        assert_eq!(whole(Shape::Line, stream.as_bytes()), reply.len() + 2);
    }
}

#[test]
fn what_no_server_sends_is_garbage_in_every_shape() {
    let lines =
        ["", "STORE", "STOREDX", "STORED x", " STORED", "12x", "18446744073709551616", "HTTP/1.1 400"];
    for line in lines {
        let reply = format!("{line}\r\n");
        for shape in [Shape::Line, Shape::Values, Shape::Meta] {
            assert!(frame(shape, reply.as_bytes(), MAX).is_err(), "{line:?} as {shape:?}");
        }
    }
    for (shape, reply) in [
        (Shape::Line, "STORED\n"),
        (Shape::Line, "END\r\n"),
        (Shape::Values, "VALUE k 0 1\r\nabc\r\nEND\r\n"),
        (Shape::Values, "VALUE k 0 -1\r\n"),
        (Shape::Values, "VALUE k 4294967296 1\r\n"),
        (Shape::Values, "VALUE k 0 1 2 3\r\n"),
        (Shape::Values, "VALUE  0 1\r\n"),
        (Shape::Values, "VALUE k 0\r\n"),
        (Shape::Values, "VALUE k 0 1048577\r\n"),
        (Shape::Values, "VALUE k 0 18446744073709551615\r\n"),
        (Shape::Values, "VALUE k 0 1\r\na\r\nSERVER_ERROR out of memory\r\n"),
        (Shape::Meta, "VA\r\n"),
        (Shape::Meta, "VA x\r\n"),
        (Shape::Meta, "VA 1048577\r\n"),
        (Shape::Meta, "VA 1\r\nab\r\n"),
        (Shape::Meta, "HDX\r\n"),
        (Shape::Meta, "OK\r\n"),
    ] {
        assert!(frame(shape, reply.as_bytes(), MAX).is_err(), "{reply:?} as {shape:?}");
    }
}

#[test]
fn a_line_that_never_ends_is_garbage_after_2_kib() {
    let reply = [b"CLIENT_ERROR ".as_slice(), &[b'x'; MAX_LINE]].concat();
    for shape in [Shape::Line, Shape::Values, Shape::Meta, Shape::Stats] {
        assert_eq!(frame(shape, &reply[..MAX_LINE - 1], MAX), Ok(PARTIAL), "{shape:?}");
        assert!(frame(shape, &reply[..MAX_LINE], MAX).is_err(), "{shape:?}");
    }
}

#[test]
fn a_value_that_contains_replies_is_still_one_value() {
    let reply = b"VALUE a 7 12 9\r\nEND\r\nVALUE x\r\nVALUE b\r 0 0\r\n\r\nEND\r\nSTORED\r\n";
    assert_eq!(whole(Shape::Values, reply), reply.len() - 8);
    let values: Vec<_> = values(&reply[..reply.len() - 8]).collect();
    assert_eq!(values.len(), 2);
    assert_eq!((values[0].key, values[0].flags, values[0].cas), (&b"a"[..], 7, Some(9)));
    assert_eq!(values[0].data, b"END\r\nVALUE x");
    assert_eq!(values[0].raw, b"VALUE a 7 12 9\r\nEND\r\nVALUE x\r\n");
    assert_eq!((values[1].key, values[1].flags, values[1].cas), (&b"b\r"[..], 0, None));
    assert_eq!(values[1].raw, b"VALUE b\r 0 0\r\n\r\n");
}

#[test]
fn a_miss_and_an_error_hold_no_values() {
    for reply in ["END\r\n", "SERVER_ERROR out of memory writing get response\r\n"] {
        assert_eq!(whole(Shape::Values, reply.as_bytes()), reply.len());
        assert_eq!(values(reply.as_bytes()).next(), None);
    }
}

#[test]
fn a_meta_reply_has_a_block_only_behind_va() {
    let reply = b"VA 5 kk s5 t-1 c86 f0 Ox X W\r\nHD\r\nx\r\nHD\r\n";
    assert_eq!(whole(Shape::Meta, reply), reply.len() - 4);
    let hit = meta(&reply[..reply.len() - 4]);
    assert_eq!((hit.status, hit.data), (Status::Va, &b"HD\r\nx"[..]));
    let letters: Vec<u8> = hit.tokens().map(|(letter, _)| letter).collect();
    assert_eq!(letters, b"kstcfOXW");
    assert_eq!((hit.token(b't'), hit.number(b't')), (Some(&b"-1"[..]), None));
    assert_eq!((hit.number(b'c'), hit.token(b'W'), hit.token(b'Z')), (Some(86), Some(&b""[..]), None));
    for (reply, status, flags) in [
        ("HD c7 O1\r\n", Status::Hd, "c7 O1"),
        ("EN\r\n", Status::En, ""),
        ("NF\r\n", Status::Nf, ""),
        ("NS\r\n", Status::Ns, ""),
        ("EX\r\n", Status::Ex, ""),
        ("MN\r\n", Status::Mn, ""),
        ("ME k exp=-1\r\n", Status::Me, "k exp=-1"),
    ] {
        assert_eq!(whole(Shape::Meta, reply.as_bytes()), reply.len());
        let expected = MetaReply { status, flags: flags.as_bytes(), data: b"" };
        assert_eq!(meta(reply.as_bytes()), expected);
    }
    let error = meta(b"CLIENT_ERROR invalid flag\r\n");
    assert_eq!((error.status, error.data), (Status::Error, &b"CLIENT_ERROR invalid flag"[..]));
}

#[test]
fn statistics_end_at_end_or_are_one_line_and_have_a_limit() {
    for reply in ["STAT pid 1\r\nSTAT OK 1\r\nEND\r\n", "END\r\n", "RESET\r\n", "OK\r\n", "ERROR\r\n"] {
        assert_eq!(whole(Shape::Stats, reply.as_bytes()), reply.len());
    }
    let endless = b"STAT a 1\r\n".repeat(MAX_STATS / 10 + 1);
    assert!(frame(Shape::Stats, &endless, MAX).is_err());
}

#[test]
fn an_incomplete_reply_is_partial_and_at_least_never_exceeds_what_is_missing() {
    let replies: [(Shape, &[u8]); 4] = [
        (Shape::Line, b"NOT_FOUND\r\n"),
        (Shape::Values, b"VALUE a 0 3 1\r\nabc\r\nVALUE b 0 0\r\n\r\nVALUE c 0 2\r\n\r\n\r\nEND\r\n"),
        (Shape::Meta, b"VA 7 W s7\r\nabc\r\n\r\n\r\n"),
        (Shape::Stats, b"STAT a 1\r\nSTAT b 2\r\nEND\r\n"),
    ];
    for (shape, reply) in replies {
        let mut framer = Framer::new(shape, MAX);
        for end in 0..reply.len() {
            for outcome in [frame(shape, &reply[..end], MAX), framer.frame(&reply[..end], &[])] {
                let Ok(Frame::Partial { at_least }) = outcome else { panic!("{outcome:?} at {end}") };
                assert!((1..=reply.len() - end).contains(&at_least), "{at_least} at {end} of {shape:?}");
            }
        }
        assert_eq!(framer.frame(reply, &[]), Ok(Frame::Whole(reply.len())), "{shape:?}");
    }
}

#[test]
fn values_already_framed_are_not_read_again() {
    let mut reply = Vec::new();
    for key in 0..500 {
        reply.extend_from_slice(format!("VALUE key{key} 0 100\r\n").as_bytes());
        reply.extend_from_slice(&[b'x'; 100]);
        reply.extend_from_slice(b"\r\n");
    }
    let mut framer = Framer::new(Shape::Values, MAX);
    assert_eq!(framer.frame(&reply, &[]), Ok(PARTIAL));
    assert_eq!(framer.done, reply.len());
    let length = reply.len() + 5;
    reply.fill(0);
    reply.extend_from_slice(b"END\r\n");
    assert_eq!(framer.frame(&reply, &[]), Ok(Frame::Whole(length)));
}

#[test]
fn one_key_has_at_most_one_value_which_is_its_own() {
    for reply in ["VALUE k 0 1\r\nx\r\nEND\r\n", "VALUE k 0 0 7\r\n\r\nEND\r\n", "END\r\n", "ERROR\r\n"] {
        assert_eq!(whole(Shape::Value, reply.as_bytes()), reply.len());
        assert!(is_of(reply.as_bytes(), b"k"), "{reply:?}");
    }
    let two = b"VALUE k 0 1\r\nx\r\nVALUE k 0 1\r\nx\r\nEND\r\n";
    assert_eq!(frame(Shape::Value, two, MAX), Err(Garbage("two values of one key")));
    for other in ["VALUE j 0 1\r\nx\r\nEND\r\n", "VALUE kk 0 0\r\n\r\nEND\r\n"] {
        assert!(!is_of(other.as_bytes(), b"k"), "{other:?}");
    }
    assert!(!is_of(b"VALUE k 0 0\r\n\r\nEND\r\n", b"kk"));
}

#[test]
fn each_part_of_a_batch_receives_its_own_value_or_nothing_or_the_shared_error() {
    let keys = ["a", "b", "c"].map(|key| digest(key.as_bytes()));
    let parts = |mut stream: &'static str| {
        let mut parts = Vec::new();
        for key in keys.iter().map(Some).chain([None]) {
            let frame = match key {
                Some(key) => part(stream, &[*key]),
                None => frame(Shape::Value, stream.as_bytes(), MAX),
            };
            let length = match frame {
                Ok(Frame::Nothing) => 0,
                Ok(Frame::Shared(length)) => {
                    parts.push(&stream[..length]);
                    continue;
                }
                Ok(Frame::Whole(length)) => length,
                other => panic!("{other:?} of {stream:?}"),
            };
            parts.push(&stream[..length]);
            stream = &stream[length..];
        }
        assert_eq!(stream, "HD\r\n");
        parts
    };
    let (a, c, d) = ("VALUE a 0 5\r\nEND\r\n\r\n", "VALUE c 0 1 9\r\nx\r\n", "VALUE d 0 0\r\n\r\nEND\r\n");
    assert_eq!(
        parts("VALUE a 0 5\r\nEND\r\n\r\nVALUE c 0 1 9\r\nx\r\nVALUE d 0 0\r\n\r\nEND\r\nHD\r\n"),
        [a, "", c, d]
    );
    assert_eq!(parts("END\r\nHD\r\n"), ["", "", "", "END\r\n"]);
    assert_eq!(parts("VALUE c 0 1 9\r\nx\r\nEND\r\nHD\r\n"), ["", "", c, "END\r\n"]);
    assert_eq!(parts("SERVER_ERROR no\r\nHD\r\n"), ["SERVER_ERROR no\r\n"; 4]);
    let missing = |have: usize| part(&a[..have], &keys[..1]);
    assert_eq!(missing(14), Ok(Frame::Partial { at_least: 6 }));
    assert_eq!(missing(6), Ok(PARTIAL));
    assert_eq!(missing(0), Ok(PARTIAL));
    let nonsense = part("VALUE a 0 1\r\nxyz", &keys[..1]);
    assert_eq!(nonsense, Err(Garbage("a data block without a CRLF behind it")));
}

#[test]
fn a_part_of_several_keys_contains_those_that_come_next_and_no_others() {
    let keys = ["a", "b", "c", "b"].map(|key| digest(key.as_bytes()));
    let (a, b, c, d) =
        ("VALUE a 0 0\r\n\r\n", "VALUE b 0 1\r\nx\r\n", "VALUE c 0 0\r\n\r\n", "VALUE d 0 0\r\n\r\n");
    // After the last of its keys, no further bytes are needed.
    for (values, behind, needed) in [
        (&[a, b, c, b][..], d, 0),
        (&[a, b, c], "END\r\n", 5),
        (&[b, c], d, 13),
        (&[b, c, b], b, 0),
        (&[c], a, 13),
        (&[b, b], c, 0),
        (&[], d, 13),
        (&[], "END\r\n", 5),
    ] {
        let whole = values.concat().len();
        let stream = values.concat() + behind;
        let mut framer = Framer::new(Shape::Part, MAX);
        for end in 0..=stream.len() {
            let found = framer.frame(&stream.as_bytes()[..end], &keys);
            assert_eq!(found, part(&stream[..end], &keys), "the result depends on the reads");
            match found {
                Ok(Frame::Partial { at_least }) => {
                    assert!(end + at_least <= whole + needed, "{stream:?}")
                }
                found => {
                    let all = if whole == 0 { Frame::Nothing } else { Frame::Whole(whole) };
                    assert_eq!((found, end >= whole + needed), (Ok(all), true), "{stream:?} after {end}");
                }
            }
        }
    }
    assert_eq!(part(&[a, "SERVER_ERROR no\r\n"].concat(), &keys), Err(Garbage("an error behind a value")));
    assert_eq!(part("SERVER_ERROR no\r\n", &keys), Ok(Frame::Shared(17)));
}

#[test]
fn a_value_line_has_all_its_words_separated_by_one_space() {
    let read = |line: &'static str| {
        let of = ValueLine::read(line.as_bytes())?;
        Some((of.key, of.flags, of.length, of.cas))
    };
    assert_eq!(read("VALUE k 4294967295 3"), Some((&b"k"[..], u32::MAX, 3, None)));
    assert_eq!(
        read("VALUE k:\u{fc} 0 0 18446744073709551615"),
        Some(("k:\u{fc}".as_bytes(), 0, 0, Some(u64::MAX)))
    );
    for line in [
        "VALUE k 0",
        "VALUE  0 3",
        "VALUE k  0 3",
        "VALUE k 0 3 ",
        "VALUE k 0 3 7 ",
        "VALUE k 0 3 7 8",
        "VALUE k 0x 3",
        "VALUE k 4294967296 3",
        "VALUE k 0 18446744073709551616",
        "VALUE k 0 -1",
        "VALUES k 0 3",
        "VALUE k",
        "VALUE ",
    ] {
        assert_eq!(read(line), None, "{line:?}");
    }
}

#[test]
fn thousands_of_keys_that_differ_in_a_number_have_different_digests() {
    let texts: [fn(usize) -> String; 4] = [
        |i| format!("mg key:{i} v\r\n"),
        |i| format!("shop:{}:page:{i}", i / 10),
        |i| format!("page:{i}"),
        |i| format!("k{i}"),
    ];
    for text in texts {
        let digests: std::collections::HashSet<u64> =
            (0..10_000).map(|i| digest(text(i).as_bytes())).collect();
        assert_eq!(digests.len(), 10_000, "{}", text(0));
    }
}

#[test]
fn a_line_of_a_value_that_is_read_in_one_pass_is_read_as_any_other_line() {
    let key = "k".repeat(250);
    let long = format!("VALUE {} 1 2", "k".repeat(MAX_LINE - b"VALUE  1 2\r\n".len()));
    let lines = [
        ("VALUE a 0 0", true),
        ("VALUE a\rb 4294967295 1844674407370955161", true),
        (&format!("VALUE {key} 007 10"), true),
        (&long, true),
        (&long.replace("VALUE ", "VALUE k"), false),
        ("VALUE a 4294967296 1", false),
        ("VALUE a 1 18446744073709551615", false),
        ("VALUE a 1 18446744073709551616", false),
        ("VALUE a 1 100000000000000000000000", false),
        ("VALUE a 0 1 9", false),
        ("VALUE a 0 1 ", false),
        ("VALUE a 0  1", false),
        ("VALUE a\nb 0 1", false),
        ("VALUE  0 1", false),
        ("VALUE a 0", false),
        ("VALUE a -1 1", false),
        ("VALUEa 0 1", false),
        ("END", false),
    ];
    for (text, is_read) in lines {
        let buffer = [text.as_bytes(), b"\r\nx\r\n"].concat();
        let fields = |value: ValueLine<'_>| (value.key.to_vec(), value.flags, value.length, value.cas);
        let found = ValueLine::at(&buffer).map(|(value, start)| (fields(value), start));
        assert_eq!(found.is_some(), is_read, "{text:?}");
        let line = line(&buffer).ok().flatten().unwrap_or_default();
        let read = ValueLine::read(line).map(|value| (fields(value), line.len() + 2));
        assert!(found.is_none() || found == read, "{text:?}: {found:?}, {read:?}");
        for length in 0..=text.len() + 1 {
            assert!(ValueLine::at(&buffer[..length]).is_none(), "{length} bytes of {text:?}");
        }
    }
}
