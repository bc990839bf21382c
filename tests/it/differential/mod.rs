//! Sends streams of random and hostile commands to a real memcached and to Kennel: no reply may differ in a byte. `vet.rs`
//! lists what is left out.
//!
//! A stream has about 400 commands, in turns on up to five connections: valid and nearly valid commands, wrong lengths, bad data blocks,
//! NULs, numbers at every limit, values around the item size limit, random bytes. A turn is cut into writes at random, at times one byte
//! each, and ends in a command that always has a reply, so the tester never waits for a missing one. Both sides are empty when a
//! stream begins. When replies differ, the stream is shrunk while they still do, and printed ready for [`REGRESSIONS`].
//!
//! `KENNEL_DIFF_SEED` is the seed of the first stream, and each further one has the next number; `KENNEL_DIFF_COMMANDS` is how many
//! commands are sent per configuration.

mod draw;
mod hostile;
mod names;
mod run;
mod shrink;
mod stream;
mod vet;

use draw::Draw;
use run::{Outcome, Sides};
use stream::Stream;
use vet::Mode;

/// Commands per stream: each begins with an empty server.
const STREAM: usize = 400;

/// What is sent, and on which connection.
type Turns = &'static [(usize, &'static [u8])];

/// Streams that once showed a difference: what it was about, and what was sent.
const REGRESSIONS: &[(&str, Turns)] = &[
    (
        "what an ma with q has created it says",
        &[(0, b"ma k N0 q\r\nma k q\r\nma k N0 q v\r\nma j N0 q v\r\n")],
    ),
    (
        "an add that is gone at once takes nothing from whoever fills",
        &[
            (0, b"get g:k\r\nadd g:k 3 -1 1\r\nx\r\nadd g:k 0 0 1\r\ny\r\n"),
            (0, b"prepend g:k 0 0 1\r\nz\r\nget g:k\r\n"),
        ],
    ),
    (
        "an ma that compares is told of an empty value first, of another than a number last",
        &[
            (0, b"ms g:k 0 c k\r\n\r\nma g:k C4611686018427387904\r\n"),
            (0, b"ma g:k C<<cas:g:k>>\r\nms g:k 1\r\nx\r\nma g:k C4611686018427387904\r\n"),
        ],
    ),
    (
        "a CAS of 0 is none to what changes a value",
        &[(0, b"ms g:k 1\r\n1\r\nma g:k C0 v\r\nms g:k 1 MA C0\r\n2\r\nms g:k 1 MP C0\r\n3\r\nmg g:k v\r\n")],
    ),
    (
        "what an ma creates lasts as long as the later of N and T says",
        &[
            (0, b"ma g:k N1000 T0\r\nmg g:k t\r\nma g:l T0 N90000\r\nmg g:l t\r\n"),
            (0, b"ma g:m N0 T-1\r\nmg g:m\r\n"),
        ],
    ),
    (
        "a set behind one's own miss and one's own ma that created the value is not dropped",
        &[
            (0, b"get g:k\r\nma g:k N0\r\nms g:k 1 k c\r\n3\r\nmg g:k v\r\nmd g:k\r\n"),
            (0, b"get g:l\r\nms g:l 1 C4611686018427387904\r\n1\r\nma g:l N0\r\nset g:l 0 0 1\r\n7\r\nget g:l\r\n"),
        ],
    ),
    (
        "a gat with too long a key has touched those before it",
        &[
            (0, b"set g:k 0 0 1\r\n1\r\nset n 0 0 1\r\n2\r\nset m 0 0 1\r\n3\r\n"),
            (0, b"gat 90000 g:k g:absent n <<k*251>> m\r\n"),
            (0, b"mg g:k t v\r\nmg n t v\r\nmg m t v\r\n"),
            (0, b"gats -1 n g:k <<k*300>>\r\n"),
            (0, b"get g:k n m\r\n"),
        ],
    ),
    (
        "in the middle of a text connection the byte 0x80 begins a line",
        &[(0, b"\x80\0\0\r\nmn\r\n\x80 noreply\r\nget g:k\r\n"), (0, b"\x80\r\n\x80\n")],
    ),
    (
        "who asks for the CAS behind the win is told that of the win",
        &[
            (0, b"ma g:@@@@@@:0:f N0\r\nmd g:@@@@@@:0:f I\r\nmg g:@@@@@@:0:f k c\r\nmg g:@@@@@@:0:f k c\r\n"),
            (0, b"set g:@@@@@@:0:f 3 0 1\r\n1\r\n"),
        ],
    ),
    (
        "the block of a refused store is skipped, and not run",
        &[
            (0, b"set g:victim 0 0 1\r\n1\r\nset g:a x 0 18\r\ndelete g:victim\r\n\r\nget g:victim\r\n"),
            (0, b"cas g:a 0 0 17\r\ndelete g:victim\r\n\r\ncas g:a 0 0 17 x\r\ndelete g:victim\r\n\r\nget g:victim\r\n"),
            (0, b"set g:a 0 x 1 noreply\r\n1\r\nset <<k*251>> 0 0 1\r\n1\r\nget g:a g:victim\r\n"),
        ],
    ),
    (
        "a store with a bad length has no block, and is answered even with noreply",
        &[
            (0, b"set g:k 0 0 abc noreply\r\nset g:k 0 0 -1\r\nset g:k 0 0 2147483646\r\n"),
            (0, b"set g:k 0 0 2147483648\r\nset g:k 0 0\r\nset g:k 0 0 +1\r\nms g:k 2147483646\r\n"),
            (0, b"ms g:k S1\r\nms g:k\r\nms g:k +1\r\nget g:k\r\n"),
        ],
    ),
    (
        "a command with too few words has a bad format",
        &[
            (0, b"\r\n\n  \r\nget\r\ngets \r\ngat 1\r\ngat\r\nset g:k 0 0\r\nincr g:k\r\ndecr\r\n"),
            (0, b"touch g:k\r\ndelete\r\nmg\r\nms\r\nmd\r\nma\r\nme\r\nmn\nmn\r\nincr g:k noreply\r\nverbosity\r\n"),
        ],
    ),
    (
        "words behind a command that is complete are nothing to it",
        &[
            (0, b"set g:k 0 0 1 a b c\r\n1\r\nincr g:k 1 2 3\r\ntouch g:k 0 1 2\r\ndelete g:k 5\r\nget g:k\r\n"),
            (0, b"verbosity 0 0 0\r\nset g:k 0 0 1\r\n1\r\ndelete g:k 0 0 noreply\r\nget g:k\r\n"),
        ],
    ),
    (
        "noreply silences what is no command too, and a delete of its own name",
        &[
            (0, b"set noreply 0 0 1\r\n1\r\ndelete noreply\r\nget noreply\r\nbogus noreply\r\nnoreply\r\nbget a\r\n"),
            (0, b" get a\r\n  set a 0 0 1\r\n verbosity 0\r\n get a noreply\r\n"),
        ],
    ),
    (
        "a number is digits, and fits",
        &[
            (0, b"set g:k +1 0 1\r\n1\r\nincr g:k +1\r\nincr g:k \t1\r\ntouch g:k +5\r\ntouch g:k 99999999999\r\n"),
            (0, b"gat 4294967296 g:k\r\nset g:k 0 0 -\r\n\r\ntouch g:k -\r\nincr g:k 00000000000000000000001\r\n"),
            (0, b"set g:k \t 5 1\r\n1\r\nget g:k\r\nverbosity +1\r\nmg g:k T+5\r\nmg g:k T- t\r\n"),
        ],
    ),
    (
        "an me decodes its key if anything stands behind the b",
        &[(0, b"mg c N0\r\nme Yw== b x\r\nme Yw== b q\r\nme Yw== b M\r\nme Yw== b\r\nme Yw== x b\r\n")],
    ),
    (
        "a meta flag is a letter",
        &[
            (0, b"mg g:k !\r\nmg g:k {\r\nmg g:k 1\r\nmg g:k @\r\nmd g:k Cx\r\nmd g:k Q\r\nma g:k Cx\r\nma g:k !\r\n"),
            (0, b"mg g:k Ex\r\nmg g:k F4294967296\r\nms g:k 1 F-1\r\n1\r\nms g:k 1 MEX\r\n1\r\nms g:k 1 M\r\n1\r\n"),
            (0, b"mg g:k M v\r\nmg g:k MEX v\r\nmg g:k x v\r\nma g:k MIX N0 J5 v\r\nma <<k*251>>\r\nms g:k 1 x\r\n7\r\n"),
        ],
    ),
];

/// The same, with a `flush_all`: in a pool with failover guarded keys are not stored right behind it.
const WITH_FLUSH: &[(&str, Turns)] = &[(
    "words behind a flush_all are nothing to it",
    &[(0, b"flush_all noreply x\r\nset g:k 0 0 1\r\n1\r\nget g:k\r\n")],
)];

/// The same, with what the oldest servers do not support and Kennel cannot reply for them.
const OF_NEWER_SERVERS: &[(&str, Turns)] = &[
    (
        "an mg that compares is told no value that it has",
        &[
            (0, b"ms g:k 2 c k\r\nab\r\nmg g:k v C4611686018427387904\r\n"),
            (0, b"mg g:k v f C<<cas:g:k>>\r\nmg g:k C<<cas:g:k>> s\r\nmg g:k C4611686018427387904\r\nmg g:k v\r\n"),
        ],
    ),
];

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => default,
    }
}

/// Draws streams and compares, until `KENNEL_DIFF_COMMANDS` commands have had the same replies; at the first difference it prints
/// the seed and the smallest stream that shows it.
fn compare(mode: Mode, commands: u64) {
    let (first, commands) =
        (from_environment("KENNEL_DIFF_SEED", 1), from_environment("KENNEL_DIFF_COMMANDS", commands));
    let mut sides = Sides::start(mode);
    let (mut seed, mut compared) = (first, 0);
    while compared < commands {
        let stream = Draw::stream(seed, mode, STREAM);
        match sides.run(&stream) {
            Outcome::Same => compared += stream.len() as u64,
            Outcome::Stuck(turn) => {
                let turn = Stream(vec![stream.0[turn].clone()]).text();
                panic!("{mode:?}, seed {seed}: neither side comes to the end of\n{turn}");
            }
            Outcome::Different { memcached, other, turn, .. } => {
                eprintln!(
                    "{mode:?}, KENNEL_DIFF_SEED={seed}, turn {turn}; making it smaller\n\
                     memcached {memcached}\nother     {other}"
                );
                let least = shrink::shrink(&stream, &mut sides);
                let (memcached, other) = match sides.run(&least) {
                    Outcome::Different { memcached, other, .. } => (memcached, other),
                    _ => (memcached + " (not every time)", other),
                };
                let least = least.text();
                panic!(
                    "{mode:?}, KENNEL_DIFF_SEED={seed}, after {compared} commands:\n{least}\n\
                     memcached {memcached}\nother     {other}"
                );
            }
        }
        seed += 1;
    }
    println!("{mode:?}: {compared} commands, seeds {first} to {}", seed - 1);
}

#[test]
fn kennel_before_one_server_replies_as_memcached() {
    compare(Mode::Raw(1), 8_000);
}

#[test]
fn kennel_before_three_servers_replies_as_one_memcached() {
    compare(Mode::Raw(3), 8_000);
}

#[test]
fn kennel_before_three_of_the_oldest_servers_replies_as_the_newest() {
    compare(Mode::RawOldest(3), 8_000);
}

#[test]
fn kennel_before_eight_servers_replies_as_one_memcached() {
    compare(Mode::Raw(8), 8_000);
}

#[test]
fn the_embedded_memcached_replies_as_memcached() {
    compare(Mode::Embedded, 8_000);
}

#[test]
fn commands_on_guarded_keys_reply_as_memcached() {
    compare(Mode::Guarded(3), 8_000);
}

#[test]
fn commands_on_guarded_keys_with_tags_reply_as_memcached() {
    compare(Mode::Tagged(3), 8_000);
}

#[test]
fn commands_on_guarded_keys_before_the_oldest_servers_reply_as_the_newest() {
    compare(Mode::TaggedOldest(3), 8_000);
}

#[test]
fn what_once_had_a_difference_has_none_any_more() {
    let modes = [
        Mode::Raw(1),
        Mode::Raw(3),
        Mode::RawOldest(3),
        Mode::Embedded,
        Mode::Guarded(2),
        Mode::Guarded(3),
        Mode::Tagged(2),
        Mode::Tagged(3),
        Mode::TaggedOldest(3),
    ];
    for mode in modes {
        let mut sides = Sides::start(mode);
        let of_newer = OF_NEWER_SERVERS.iter().filter(|_| !matches!(mode, Mode::RawOldest(_)));
        let with_flush = WITH_FLUSH.iter().filter(|_| !mode.fails_over());
        for (name, turns) in REGRESSIONS.iter().chain(with_flush).chain(of_newer) {
            assert_eq!(sides.run(&Stream::parse(turns)), Outcome::Same, "{mode:?}: {name}");
        }
    }
}

#[test]
fn a_difference_is_found_and_reduced_to_few_commands() {
    let mut sides = Sides::start(Mode::Guarded(1));
    let noise: &[u8] = b"get x\r\nset y 0 0 1\r\n1\r\n";
    // One connection's miss, another's delete: Kennel drops what the first one sets, which memcached does not.
    let guarded: [(usize, &[u8]); 4] = [
        (0, b"get x\r\nget g:@@@@@@:k\r\n"),
        (1, b"delete g:@@@@@@:k\r\n"),
        (0, b"set g:@@@@@@:k 0 0 3\r\n007\r\n"),
        (1, b"get x\r\nget g:@@@@@@:k\r\n"),
    ];
    let turns: Vec<_> = guarded.iter().flat_map(|turn| [(2, noise), *turn, (0, noise)]).collect();
    let stream = Stream::parse(&turns);
    assert!(
        matches!(sides.run(&stream), Outcome::Different { turn: 10, .. }),
        "the read of what was dropped"
    );
    let least = shrink::shrink(&stream, &mut sides);
    assert_eq!(least.0.len(), 4, "{}", least.text());
    assert!(!least.text().contains("get x"), "{}", least.text());
}
