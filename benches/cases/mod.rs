//! The pure parts of the hot path, each as a function to call repeatedly.

use std::hint::black_box;

use bytes::BytesMut;
use kennel::guard::envelope::{Envelope, Header, Opened};
use kennel::protocol::parse::parse;
use kennel::protocol::request::Limits;
use kennel::rule::{Captures, Pattern, Rules};
use kennel::upstream::ring::Ring;
use kennel::upstream::{Address, Distribution, Hash, Scheme, ServerSpec};

/// One call of it is one operation of the name.
pub(crate) type Part = Box<dyn FnMut()>;

/// A part that is prepared when needed, so that its preparation does not affect another one.
pub(crate) struct Case {
    /// Folder and part, for example `parse/get`.
    pub(crate) name: String,
    make: Box<dyn Fn() -> Part>,
}

impl Case {
    /// Prepares it: fills buffers, builds rings and rules.
    pub(crate) fn make(&self) -> Part {
        (self.make)()
    }
}

/// All of them, in the order of a request.
pub(crate) fn cases() -> Vec<Case> {
    let key = "blog:42:page:1007";
    let keys: String = (0..20).map(|page| format!(" blog:42:page:{}", 1000 + page)).collect();
    let set = format!("set {key} 0 3600 1024\r\n{}\r\n", "x".repeat(1024));
    let mut all = vec![
        parsed("get", format!("get {key}\r\n")),
        parsed("set of 1 KiB", set),
        parsed("get of 20 keys", format!("get{keys}\r\n")),
        parsed("mg", format!("mg {key} v t f c\r\n")),
    ];
    all.extend([(1, "the only one"), (100, "the last"), (1000, "the last"), (1000, "none")].map(matched));
    all.extend([10, 1_000, 10_000].map(starred));
    all.push(one_by_one(10_000));
    all.extend([3, 100].map(placed));
    all.extend([0, 1, 3].map(opened));
    all.extend([0, 1, 3].map(sealed));
    all
}

fn case(name: String, make: impl Fn() -> Part + 'static) -> Case {
    Case { name, make: Box::new(make) }
}

fn parsed(what: &str, request: String) -> Case {
    case(format!("parse/{what}"), move || {
        let request = request.clone();
        let limits = Limits { max_value: 1 << 20 };
        Box::new(move || {
            black_box(parse(black_box(request.as_bytes()), &limits));
        })
    })
}

fn matched((count, matches): (usize, &'static str)) -> Case {
    let rules = if count == 1 { "rule" } else { "rules" };
    case(format!("rule/{count} {rules}, {matches} matches"), move || {
        let pattern = |i| Pattern::parse(&format!("shop{i}:{{blog}}:page:*")).expect("a pattern");
        let rules = Rules::new((0..count).map(pattern).collect());
        let shop = if matches == "none" { count } else { count - 1 };
        let key = format!("shop{shop}:42:page:1007");
        let mut captures = Captures::default();
        assert_eq!(rules.find(key.as_bytes(), &mut captures), (shop < count).then_some(shop));
        Box::new(move || {
            black_box(rules.find(black_box(key.as_bytes()), &mut captures));
        })
    })
}

/// A long key that matches no rule pattern with a leading star.
fn long_key() -> Vec<u8> {
    b"x1y2".repeat(62)
}

fn starred(count: usize) -> Case {
    case(format!("rule/{count} rules with a star in front, a long key, none matches"), move || {
        let rules = Rules::new((0..count).map(ending).collect());
        let (key, mut captures) = (long_key(), Captures::default());
        Box::new(move || {
            black_box(rules.find(black_box(&key), &mut captures));
        })
    })
}

/// The same, matching each pattern individually.
fn one_by_one(count: usize) -> Case {
    case(format!("rule/{count} patterns with a star in front, one after the other"), move || {
        let patterns: Vec<Pattern> = (0..count).map(ending).collect();
        let (key, mut captures) = (long_key(), Captures::default());
        Box::new(move || {
            let matches = |pattern: &Pattern| pattern.matches(black_box(&key), &mut captures);
            black_box(patterns.iter().position(matches));
        })
    })
}

fn ending(number: usize) -> Pattern {
    Pattern::parse(&format!("*x{number}")).expect("a pattern")
}

fn placed(servers: u8) -> Case {
    case(format!("ring/{servers} servers"), move || {
        let spec = |i| ServerSpec {
            address: Address::Tcp { host: format!("10.0.0.{i}"), port: 11211 },
            weight: 1,
            name: None,
        };
        let servers: Vec<ServerSpec> = (1..=servers).map(spec).collect();
        let ring = Ring::new(&servers, &Scheme::whole(Distribution::Ketama, Hash::Md5));
        Box::new(move || {
            black_box(ring.server(black_box(b"blog:42:page:1007")));
        })
    })
}

fn opened(tags: u64) -> Case {
    case(format!("envelope/open, {}", counted(tags)), move || {
        let mut item = BytesMut::new();
        envelope(tags).seal(&mut item).expect("so few tags fit");
        item.extend_from_slice(&[b'x'; 100]);
        Box::new(move || {
            let Opened::Sealed { envelope, payload_at } = Header::open(black_box(&item)) else {
                panic!("what was sealed does not open")
            };
            black_box((
                envelope.tags().map(|(name, version)| version + name.len() as u64).sum::<u64>(),
                payload_at,
            ));
        })
    })
}

fn sealed(tags: u64) -> Case {
    case(format!("envelope/seal, {}", counted(tags)), move || {
        let envelope = envelope(tags);
        let mut out = BytesMut::with_capacity(1024);
        Box::new(move || {
            out.clear();
            black_box(&envelope).seal(&mut out).expect("so few tags fit");
            black_box(&out);
        })
    })
}

fn counted(tags: u64) -> String {
    format!("{tags} {}", if tags == 1 { "tag" } else { "tags" })
}

fn envelope(tags: u64) -> Envelope {
    let tag = |i| (format!("blog:{}", 42 + i).as_bytes().into(), 1_790_000_000_000 + i);
    Envelope {
        stale_for: 60,
        built_at: 1_790_000_000_000,
        rebuild: 200,
        fence: 0,
        tags: (0..tags).map(tag).collect(),
    }
}
