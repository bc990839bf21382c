//! The expected replies are those of memcached 1.6.45.

use super::*;
use crate::protocol::MAX_KEY;
use crate::protocol::request::Meta;

const LIMITS: Limits = Limits { max_value: 1000 };

/// The longest multi-get in bytes.
const MAX_GET: usize = 1 << 20;

/// Feeds `stream` in pieces that end at `cuts`. Returns one line per outcome.
fn run(stream: &[u8], cuts: impl IntoIterator<Item = usize>) -> Vec<String> {
    let mut outcomes = Vec::new();
    let (mut start, mut wanted) = (0, 0);
    for end in cuts.into_iter().chain([stream.len()]) {
        while start < end {
            let (consumed, close) = match parse(&stream[start..end], &LIMITS) {
                Parsed::Incomplete { at_least } => {
                    assert!(at_least > 0);
                    wanted = end + at_least;
                    break;
                }
                Parsed::Request { request, consumed } => {
                    outcomes.push(format!("{request:?}"));
                    (consumed, false)
                }
                Parsed::Refused(refused) => {
                    let Refused { reply, consumed, skip_data, close, deletes, .. } = refused;
                    let reply = reply.escape_ascii();
                    outcomes.push(format!("{reply} skip_data={skip_data} close={close} {deletes:?}"));
                    (consumed + skip_data as usize, close)
                }
            };
            assert!(wanted <= end, "at_least was too large");
            assert!(consumed > 0);
            if close {
                return outcomes;
            }
            start += consumed;
        }
    }
    outcomes
}

/// Parses `line` as exactly one request.
fn request(line: &[u8]) -> Request<'_> {
    match parse(line, &LIMITS) {
        Parsed::Request { request, consumed } if consumed == line.len() => request,
        other => panic!("{other:?} of {:?}", line.escape_ascii().to_string()),
    }
}

/// Checks that `line` is refused with `reply`, that exactly the line is consumed and that the connection stays open.
#[track_caller]
fn assert_refused(line: &[u8], reply: &str) {
    let stream = [line, b"\r\nabc\r\n"].concat();
    let expected = refuse(line.len() + 2, b"");
    match parse(&stream, &LIMITS) {
        Parsed::Refused(refused) => {
            let what = line.escape_ascii().to_string();
            assert_eq!(
                refused.reply.escape_ascii().to_string(),
                reply.escape_default().to_string(),
                "{what}"
            );
            assert_eq!(Parsed::Refused(Refused { reply: b"", ..refused }), expected, "{what}");
        }
        other => panic!("{other:?}"),
    }
}

/// Checks that the storage command `line` is refused with `reply` and that its data block of three bytes is discarded.
#[track_caller]
fn assert_discarded(line: &[u8], reply: &str) {
    let outcomes = run(&[line, b"\r\nabc\r\nmn\r\n"].concat(), []);
    let expected = format!("{} skip_data=5 close=false None", reply.escape_default());
    assert_eq!((outcomes.len(), &outcomes[0]), (2, &expected), "{}", line.escape_ascii());
}

fn keys<'a>(request: Request<'a>) -> Vec<&'a [u8]> {
    match request {
        Request::Get { keys, .. } | Request::GetAndTouch { keys, .. } => keys.iter().collect(),
        other => panic!("{other:?}"),
    }
}

fn long_key() -> Vec<u8> {
    vec![b'k'; MAX_KEY + 1]
}

#[test]
fn a_line_ends_at_lf_or_crlf_and_has_at_least_four_bytes() {
    for line in ["get k\r\n", "get k\n", "get   k \r\n"] {
        assert_eq!(keys(request(line.as_bytes())), [b"k"], "{line:?}");
    }
    assert_eq!(keys(request(b"get k\r\r\n")), [b"k\r"]);
    assert_eq!(keys(request(b"gets k\ty \xc3\xa9\x01  k\ty\r\n")), [&b"k\ty"[..], b"\xc3\xa9\x01", b"k\ty"]);
    for line in ["\r\n", "\n", " \r\n", "x\r\n", "mn\n", "ab\n"] {
        assert_eq!(parse(line.as_bytes(), &LIMITS), refuse(line.len(), BAD_FORMAT), "{line:?}");
    }
}

#[test]
fn a_line_with_a_nul_is_refused() {
    for line in [
        &b"get k\0"[..],
        b"get a k\0 b",
        b"gat 0 k\0",
        b"incr k\0 1",
        b"incr k 1 \0",
        b"touch k 0 \0",
        b"delete \0",
        b"mg k v\0",
        b"md k\0",
        b"ma k O\0",
        b"me k\0",
        b"set k 0 0 3\0",
    ] {
        assert_refused(line, "CLIENT_ERROR bad command line format\r\n");
    }
    let long = [b"get ".as_slice(), &b"key ".repeat(1000), b"k\0\r\n"].concat();
    assert_eq!(parse(&long, &LIMITS), refuse(long.len(), BAD_FORMAT));
    for line in [&b"set k\0 0 0 3"[..], b"set k 0 0\0 3", b"cas k 0 0 3 1 \0", b"ms k 3 O\0", b"ms k\0 3"] {
        assert_discarded(line, "CLIENT_ERROR bad command line format\r\n");
    }
    assert_discarded(b"set k\0 0 0 3 noreply", "");
}

#[test]
fn a_single_key_is_recognized_and_several_are_counted() {
    let (Request::Get { keys: one, cas: false }, Request::Get { keys: three, cas: true }) =
        (request(b"get  k \r\n"), request(b"gets a  b c\r\n"))
    else {
        panic!("no get")
    };
    assert_eq!((one.single(), one.len()), (Some(&b"k"[..]), 1));
    assert_eq!((three.single(), three.len()), (None, 3));
}

#[test]
fn an_unknown_command_is_an_error_unless_it_ends_in_noreply() {
    let lines = [
        "  ",
        "GET k",
        "get\tk",
        "getx k",
        "bget k",
        " get k",
        "  set k 0 0 3",
        "mx",
        "xyz",
        "flush_allx",
        "\u{81}",
    ];
    for line in lines {
        assert_refused(line.as_bytes(), "ERROR\r\n");
        assert_refused(format!("{line} noreply").as_bytes(), "");
    }
    assert_refused(b"noreply", "");
}

#[test]
fn a_command_with_too_few_words_has_a_bad_format_even_with_noreply() {
    for line in [
        "get",
        "get ",
        "gets",
        "gat",
        "gat 1",
        "gat x",
        "set",
        "set k 0 0",
        "set k 0 noreply",
        "cas k 0 0",
        "incr k",
        "touch k",
        "delete",
        "mg",
        "ms",
        "ms k",
        "md",
        "ma",
        "me",
        "verbosity",
    ] {
        assert_refused(line.as_bytes(), "CLIENT_ERROR bad command line format\r\n");
    }
    assert_refused(b"incr k noreply", "");
    assert_refused(b"set k 0 0 noreply", "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn words_behind_a_complete_command_are_ignored() {
    let many = " x".repeat(40);
    for line in ["incr k 1", "touch k 0", "delete k", "flush_all 0", "verbosity 1"] {
        assert_eq!(
            request(format!("{line}{many}\r\n").as_bytes()),
            request(format!("{line}\r\n").as_bytes())
        );
    }
    let store = request(b"set k 0 0 3\r\nabc\r\n");
    assert_eq!(request(format!("set k 0 0 3{many} noreply\r\nabc\r\n").as_bytes()), store);
    // memcached reads 23 words.
    let Request::Store(Store { noreply: true, .. }) =
        request(format!("set k 0 0 3{} noreply x\r\nabc\r\n", " x".repeat(17)).as_bytes())
    else {
        panic!()
    };
}

#[test]
fn one_long_key_refuses_a_whole_multi_get_with_one_line() {
    let long = long_key();
    for command in [&b"get a "[..], b"gets ", b"gat 0 ", b"mg ", b"md ", b"me ", b"delete "] {
        let line = [command, &long, if command[0] == b'g' { b" b" } else { b"" }].concat();
        assert_refused(&line, "CLIENT_ERROR bad command line format\r\n");
    }
    let longest = [b"get a ".as_slice(), &long[1..], b"\r\n"].concat();
    assert_eq!(keys(request(&longest)).len(), 2);
}

#[test]
fn gat_requires_an_exptime_and_a_key() {
    assert_refused(b"gat x k", "CLIENT_ERROR invalid exptime argument\r\n");
    assert_refused(b"gat 4294967296 k", "CLIENT_ERROR invalid exptime argument\r\n");
    let Request::GetAndTouch { exptime: -1, keys, cas: true } = request(b"gats -1 a b\r\n") else { panic!() };
    assert_eq!(keys.len(), 2);
}

#[test]
fn a_store_is_read_as_memcached_reads_it() {
    let store = Store { verb: Verb::Set, key: b"k", flags: 0, exptime: 0, data: b"abc", noreply: false };
    for (line, expected) in [
        ("set k 0 0 3\r\nabc\r\n", store),
        ("set k 0 0 3\nabc\r\n", store),
        ("set k 4294967296 -1 3 noreply\r\nabc\r\n", Store { exptime: -1, noreply: true, ..store }),
        ("set k +7 4294967299 3\r\nabc\r\n", Store { flags: 7, exptime: 3, ..store }),
        // A word of whitespace only is not a number, so C reads on.
        ("set k \t \t 3\r\nabc\r\n", Store { flags: 3, exptime: 3, ..store }),
        ("add k 4294967295 0 3 x\r\nabc\r\n", Store { verb: Verb::Add, flags: u32::MAX, ..store }),
        (
            "replace k 0 2592001 00000000003\r\nabc\r\n",
            Store { verb: Verb::Replace, exptime: 2_592_001, ..store },
        ),
        ("append k 0 0 3\r\nabc\r\n", Store { verb: Verb::Append, ..store }),
        ("prepend k 0 0 -\r\n\r\n", Store { verb: Verb::Prepend, data: b"", ..store }),
        (
            "cas k 0 0 3 18446744073709551615\r\n\r\n\n\r\n",
            Store { verb: Verb::Cas(u64::MAX), data: b"\r\n\n", ..store },
        ),
    ] {
        assert_eq!(request(line.as_bytes()), Request::Store(expected), "{line:?}");
    }
}

#[test]
fn the_data_block_of_a_refused_store_is_never_executed() {
    let long = String::from_utf8(long_key()).unwrap();
    for line in [
        "set k x 0 3",
        "set k -1 0 3",
        "set k 0 x 3",
        "set k 0 9223372036854775808 3",
        "set LONG 0 0 3",
        "cas k 0 0 3",
        "cas k 0 0 3 x",
        "cas k 0 0 3 -1",
        "cas k 0 0 3 +1",
        "cas k 0 0 3 18446744073709551616",
    ] {
        let line = line.replace("LONG", &long);
        assert_discarded(line.as_bytes(), "CLIENT_ERROR bad command line format\r\n");
        assert_discarded(format!("{line} noreply").as_bytes(), "");
    }
}

#[test]
fn a_store_without_a_valid_length_has_no_block_and_ignores_noreply() {
    for length in [
        "x",
        "-1",
        "3x",
        "+3",
        "\t3",
        "2147483646",
        "2147483648",
        "4294967299",
        "000000000003",
        "18446744073709551616",
    ] {
        for tail in ["", " noreply"] {
            let line = format!("set k 0 0 {length}{tail}");
            assert_refused(line.as_bytes(), "CLIENT_ERROR bad command line format\r\n");
        }
        assert_refused(format!("ms k {length} q").as_bytes(), "CLIENT_ERROR bad command line format\r\n");
    }
}

#[test]
fn a_bad_data_chunk_consumes_exactly_two_bytes_more_than_announced() {
    for (stream, replies) in [
        ("set k 0 0 3\r\nabcdefg\r\n", vec!["CLIENT_ERROR bad data chunk\\r\\n", "ERROR\\r\\n"]),
        ("set k 0 0 3 noreply\r\nabcdefg\r\n", vec!["", "ERROR\\r\\n"]),
        (
            "set k 0 0 3\r\nabc\rx\r\n",
            vec!["CLIENT_ERROR bad data chunk\\r\\n", "CLIENT_ERROR bad command line format\\r\\n"],
        ),
        (
            "set k 0 0 3\r\nabcx\n\r\n",
            vec!["CLIENT_ERROR bad data chunk\\r\\n", "CLIENT_ERROR bad command line format\\r\\n"],
        ),
        ("set k 0 0 3\r\nabc\nxyz\r\n", vec!["CLIENT_ERROR bad data chunk\\r\\n", "ERROR\\r\\n"]),
        ("ms k 3 q\r\nabcdefg\r\n", vec!["CLIENT_ERROR bad data chunk\\r\\n", "ERROR\\r\\n"]),
    ] {
        let expected: Vec<_> =
            replies.iter().map(|reply| format!("{reply} skip_data=0 close=false None")).collect();
        assert_eq!(run(stream.as_bytes(), []), expected, "{stream:?}");
    }
}

#[test]
fn a_value_too_large_is_discarded_and_only_set_and_ms_delete_the_old_value() {
    for (line, reply, deletes, base64) in [
        ("set k 0 0 1001", TOO_LARGE, true, false),
        ("set k 0 0 1001 noreply", b"", true, false),
        ("add k 0 0 1001", TOO_LARGE, false, false),
        ("append k 0 0 1001", TOO_LARGE, false, false),
        ("cas k 0 0 1001 7", TOO_LARGE, false, false),
        ("ms k 1001 q", TOO_LARGE, true, false),
        ("ms aw== 1001 b ME", TOO_LARGE, true, true),
    ] {
        let deletes = deletes.then_some(if base64 { b"aw==".as_slice() } else { b"k" });
        let expected = Refused {
            reply,
            consumed: line.len() + 2,
            skip_data: 1003,
            close: false,
            deletes,
            deletes_base64: base64,
            touches: None,
        };
        let stream = format!("{line}\r\nxxx");
        assert_eq!(parse(stream.as_bytes(), &LIMITS), Parsed::Refused(expected), "{line}");
    }
    let Parsed::Refused(Refused { skip_data, .. }) = parse(b"set k 0 0 2147483645\r\n", &LIMITS) else {
        panic!()
    };
    assert_eq!(skip_data, 2_147_483_647);
}

#[test]
fn noreply_is_the_last_word_even_in_the_position_of_a_key_or_a_number() {
    let Request::Delete { key: b"noreply", noreply: true } = request(b"delete noreply\r\n") else { panic!() };
    for line in
        ["incr k noreply", "incr k x noreply", "touch k noreply", "verbosity noreply", "flush_all x noreply"]
    {
        assert_refused(line.as_bytes(), "");
    }
    assert_eq!(
        request(b"decr k 18446744073709551615 noreply\r\n"),
        Request::Arith { key: b"k", decr: true, delta: u64::MAX, noreply: true }
    );
    assert_eq!(request(b"touch k -1 x\r\n"), Request::Touch { key: b"k", exptime: -1, noreply: false });
    for delta in ["-1", "+1", "x", "\t1", "18446744073709551616"] {
        let line = format!("incr k {delta}");
        assert_refused(line.as_bytes(), "CLIENT_ERROR invalid numeric delta argument\r\n");
    }
    for exptime in ["x", "+1", "2147483648"] {
        let line = format!("touch k {exptime}");
        assert_refused(line.as_bytes(), "CLIENT_ERROR invalid exptime argument\r\n");
    }
}

#[test]
fn delete_accepts_any_words_behind_the_key() {
    for (line, quiet) in [
        ("delete k\r\n", false),
        ("delete k 0\r\n", false),
        ("delete k 5\r\n", false),
        ("delete k noreply 0\r\n", false),
        ("delete k noreply\r\n", true),
        ("delete k 5 noreply\r\n", true),
    ] {
        assert_eq!(request(line.as_bytes()), Request::Delete { key: b"k", noreply: quiet }, "{line:?}");
    }
}

#[test]
fn commands_without_a_key_are_parsed() {
    assert_eq!(request(b"flush_all\r\n"), Request::FlushAll { delay: 0, noreply: false });
    assert_eq!(request(b"flush_all -1 noreply\r\n"), Request::FlushAll { delay: 0, noreply: true });
    assert_eq!(request(b"flush_all 30 x\r\n"), Request::FlushAll { delay: 30, noreply: false });
    assert_eq!(request(b"  flush_all 0 noreply x\r\n"), Request::FlushAll { delay: 0, noreply: false });
    assert_refused(b"flush_all noreply x", "CLIENT_ERROR invalid exptime argument\r\n");
    assert_eq!(request(b"verbosity 1 noreply\r\n"), Request::Verbosity { noreply: true });
    assert_eq!(request(b"version noreply\r\n"), Request::Version);
    assert_eq!(request(b"stats\r\n"), Request::Stats { what: b"" });
    assert_eq!(request(b"stats  detail on \r\n"), Request::Stats { what: b"detail on" });
    assert_eq!(request(b"quit now\r\n"), Request::Quit);
}

#[test]
fn commands_for_a_single_server_are_refused_and_the_connection_stays_open() {
    for (line, reply) in [
        ("shutdown", "SERVER_ERROR: shutdown not enabled\r\n"),
        ("watch mutations", "CLIENT_ERROR watch commands not allowed\r\n"),
        ("lru_crawler metadump all", "CLIENT_ERROR lru crawler disabled\r\n"),
        ("lru_crawler", "ERROR\r\n"),
        ("cache_memlimit 64", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
        ("cache_memlimit 64 noreply", ""),
        ("slabs reassign 1 2", "CLIENT_ERROR slab reassignment disabled\r\n"),
    ] {
        assert_refused(line.as_bytes(), reply);
    }
}

#[test]
fn an_http_request_closes_the_connection() {
    let closes = |stream: &str| vec![stream.to_owned()];
    for line in ["GET / HTTP/1.1\r\n", "POST /x HTTP/1.0\r\n", "x HTTP/1.1\n", " get x HTTP/1\r\n"] {
        assert_eq!(run(line.as_bytes(), []), closes(" skip_data=0 close=true None"), "{line:?}");
    }
    for line in ["get / HTTP/1.1\r\n", "HTTP/1.1\r\n", "GET / HTTP/1.1 x\r\n", "slabs HTTP/1.1\r\n"] {
        assert!(run(line.as_bytes(), []).iter().all(|outcome| !outcome.contains("close=true")), "{line:?}");
    }
}

#[test]
fn on_a_text_connection_a_binary_request_is_an_ordinary_line() {
    assert_refused(b"\x80\x01", "ERROR\r\n");
    assert_refused(b"\x80 noreply", "");
    assert_eq!(parse(b"\x80\x0a\0\0", &LIMITS), refuse(2, BAD_FORMAT));
    assert_eq!(parse(b"\x80\x0b\0\0", &LIMITS), Parsed::Incomplete { at_least: 1 });
}

#[test]
fn a_gat_with_too_long_a_key_touches_those_before_it() {
    let long = "k".repeat(251);
    let touches = |line: &str| match parse(line.as_bytes(), &LIMITS) {
        Parsed::Refused(refused) => refused
            .touches
            .map(|(exptime, keys)| (exptime, keys.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())),
        _ => panic!("it is refused"),
    };
    let both = Some((-1, vec![b"a".to_vec(), b"b".to_vec()]));
    assert_eq!(touches(&format!("gat -1 a  b {long} c\r\n")), both);
    assert_eq!(touches(&format!("gats -1 a b {long}\r\n")), both);
    assert_eq!(touches(&format!("gat -1 {long} a\r\n")), None);
    assert_eq!(touches(&format!("get a {long}\r\n")), None);
    // The touches are sent together, so only as many are made as fit into a line that is not a get.
    assert_eq!(touches(&format!("gat -1{} {long}\r\n", " a".repeat(1000))), None);
}

#[test]
fn only_a_multi_get_may_have_a_line_over_2_kib() {
    let words = b" key".repeat(1000);
    for (command, accepted) in
        [("get", true), ("gets", true), ("gat 0", true), ("mg", false), ("delete", false)]
    {
        let line = [command.as_bytes(), &words].concat();
        for stream in [&line[..], &[&line[..], b"\r\n"].concat()] {
            let closed =
                matches!(parse(stream, &LIMITS), Parsed::Refused(Refused { close: true, reply: b"", .. }));
            assert_eq!(closed, !accepted, "{command}");
        }
    }
    let endless = [b"get".as_slice(), &b" key".repeat(MAX_GET / 4)].concat();
    assert_eq!(parse(&endless[..MAX_GET], &LIMITS), Parsed::Incomplete { at_least: 1 });
    let Parsed::Refused(refused) = parse(&endless, &LIMITS) else { panic!("accepted") };
    assert_eq!((refused.reply, refused.close), (&b"CLIENT_ERROR line too long\r\n"[..], true));
}

#[test]
fn meta_flags_are_kept_as_sent() {
    let Request::Meta(meta) = request(b"mg  k  v t  O12 \r\n") else { panic!("no meta") };
    assert_eq!(meta, Meta { verb: MetaVerb::Get, key: b"k", flags: b"v t  O12", data: b"" });
    let tokens: Vec<_> = meta.tokens().collect();
    assert_eq!(tokens, [(b'v', &b""[..]), (b't', b""), (b'O', b"12")]);
    assert_eq!((meta.token(b'O'), meta.token(b'q')), (Some(&b"12"[..]), None));
    let Request::Meta(meta) = request(b"ms k 3 T5 ME\r\nab\n\r\n") else { panic!("no meta") };
    assert_eq!(meta, Meta { verb: MetaVerb::Set, key: b"k", flags: b"T5 ME", data: b"ab\n" });
    for line in ["mn\r\n", "mn x\r\n"] {
        let Request::Meta(meta) = request(line.as_bytes()) else { panic!("no meta") };
        assert_eq!(meta, Meta { verb: MetaVerb::Noop, key: b"", flags: b"", data: b"" });
    }
}

#[test]
fn invalid_meta_commands_get_memcacheds_errors_and_ms_discards_its_block() {
    let opaque = format!("O{}", "x".repeat(32));
    let terse = "CLIENT_ERROR invalid or duplicate flag\r\n";
    for (flags, error) in [
        ("v v", "duplicate flag"),
        ("Q", "invalid flag"),
        ("1", "invalid flag"),
        ("Tx Q", "invalid flag"),
        ("Tx", "bad token in command line format"),
        ("T", "bad token in command line format"),
        ("T+1", "bad token in command line format"),
        ("T2147483648", "bad token in command line format"),
        ("C", "bad token in command line format"),
        ("C-1", "bad token in command line format"),
        ("Ex", "bad token in command line format"),
        ("Fx", "bad command line format"),
        ("F4294967296", "bad command line format"),
        ("Cx Fx", "bad token in command line format"),
        ("!", "bad command line format"),
        ("v @", "bad command line format"),
        ("{", "bad command line format"),
        ("\u{7f}", "bad command line format"),
        ("\u{ff}", "bad command line format"),
        ("Jx", "invalid numeric initial value"),
        ("Dx", "invalid numeric delta value"),
        ("b", "error decoding key"),
    ] {
        let reply = format!("CLIENT_ERROR {error}\r\n");
        assert_refused(format!("mg k {flags} q").as_bytes(), &reply);
        assert_refused(format!("md k {flags}").as_bytes(), &reply);
        assert_discarded(format!("ms k 3 {flags}").as_bytes(), &reply);
        let letters = !flags.contains(|flag: char| "!@{\u{7f}\u{ff}".contains(flag));
        assert_refused(format!("ma k {flags}").as_bytes(), if letters { terse } else { &reply });
    }
    for verb in ["mg", "md", "ma"] {
        let line = format!("{verb} k {opaque}");
        assert_refused(line.as_bytes(), "CLIENT_ERROR opaque token too long\r\n");
    }
    assert_discarded(format!("ms k 3 {opaque}").as_bytes(), "CLIENT_ERROR opaque token too long\r\n");
    for mode in ["Z", "", "e"] {
        let reply = |verb: &str| format!("CLIENT_ERROR invalid mode for {verb} M token\r\n");
        assert_refused(format!("ma k M{mode}").as_bytes(), &reply("ma"));
        assert_discarded(format!("ms k 3 M{mode}").as_bytes(), &reply("ms"));
    }
    let long = String::from_utf8(long_key()).unwrap();
    assert_refused(format!("ma {long}").as_bytes(), terse);
    assert_discarded(format!("ms {long} 3").as_bytes(), "CLIENT_ERROR bad command line format\r\n");
    let many = "k ".repeat(19);
    assert_refused(format!("mg k {many}").as_bytes(), "CLIENT_ERROR options flags are too long\r\n");
    assert_discarded(format!("ms k 3 {many}").as_bytes(), "CLIENT_ERROR options flags are too long\r\n");
    for line in [
        "mg k k s t c f v h l O1 u T0 N0 R0 q P L C1\r\n",
        "mg k MEX x I v\r\n",
        "md k M\r\n",
        "ma k MI+ T-\r\n",
        "mg k k s t c f v h l O1 u T0 N0 R0 q P L C1 E1\r\n",
    ] {
        assert!(matches!(request(line.as_bytes()), Request::Meta(_)), "{line:?}");
    }
}

#[test]
fn me_decodes_its_key_only_if_a_word_follows_the_b() {
    for (line, flags) in [("me !! b", ""), ("me aw== b", ""), ("me aw== b x", "b x"), ("me k x", "x")] {
        let line = format!("{line}\r\n");
        let Request::Meta(meta) = request(line.as_bytes()) else { panic!("no meta") };
        assert_eq!(meta.flags, flags.as_bytes(), "{line:?}");
    }
    assert_refused(b"me !! b x", "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn a_base64_key_is_valid_if_memcached_decodes_it() {
    for (key, valid) in [
        ("aw==", true),
        ("a!W==", true),
        ("aw==aw==", true),
        ("a=w=", true),
        ("aw=", false),
        ("a===", false),
        ("====", false),
        ("!!!!", false),
        ("aww", false),
    ] {
        let line = format!("mg {key} b\r\n");
        let accepted = matches!(parse(line.as_bytes(), &LIMITS), Parsed::Request { .. });
        assert_eq!(accepted, valid, "{key}");
    }
}

#[test]
fn a_stream_parses_the_same_however_it_is_split() {
    let fragments: [&[u8]; 34] = [
        b"get ",
        b"gets ",
        b"gat 1 ",
        b"set ",
        b"cas ",
        b"ms ",
        b"mg ",
        b"ma ",
        b"delete ",
        b"incr ",
        b"touch ",
        b"version",
        b"stats ",
        b"k ",
        b"k",
        b"0 ",
        b"0 0 3",
        b"0 0 3 noreply",
        b" 5",
        b"3 T0",
        b" v q",
        b"-1 ",
        b"1001 ",
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\n",
        b"abc\r\n",
        b"set k 0 0 5\r\nab\r\nc\r\n",
        b"\0",
        b"\r",
        b"\x80",
        b"x HTTP/1",
        &[b'k'; 251],
    ];
    let mut outcomes = 0;
    for seed in 0..3000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut stream = Vec::new();
        for _ in 0..rng.usize(1..40) {
            match rng.u8(..) {
                0..8 => stream.push(rng.u8(..)),
                8 => stream.extend(std::iter::repeat_n(b'k', rng.usize(..3000))),
                _ => stream.extend_from_slice(rng.choice(fragments).unwrap_or_default()),
            }
        }
        let whole = run(&stream, []);
        outcomes += whole.len();
        assert_eq!(run(&stream, 0..stream.len()), whole, "seed {seed}, byte by byte");
        let mut cuts: Vec<_> = (0..rng.usize(..8)).map(|_| rng.usize(..stream.len())).collect();
        cuts.sort_unstable();
        assert_eq!(run(&stream, cuts.iter().copied()), whole, "seed {seed} cut at {cuts:?}");
    }
    assert!(outcomes > 10_000, "only {outcomes} outcomes");
}
