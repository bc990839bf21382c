//! Meta commands on guarded keys. What they return about an existing item is compared with a real memcached; what they return in
//! addition (X, W, Z) with protocol.txt, about the *logical* item.

use crate::client::{Client, show};
use crate::gate::gated_fleet;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, raw, sidecar_toml, until_stale,
};

const RULE: &str = "stale_for = \"60s\"\nlock_ttl = \"5s\"\ncold_wait = \"0ms\"";

fn world() -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(3);
    let tagged = format!("{RULE}\ntags = [\"all\", \"of:{{x}}\"]");
    let rules = [guarded("tagged", "t:{x}", &tagged), guarded("plain", "g:*", RULE), raw("raw", "r:*")];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    // A CAS is not accepted over a connection that was made after it was read, so every worker must have its connection by now.
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    eventually("every worker is connected to every server", || {
        kennel.metrics().sum("kennel_upstream_connections_total", &[]) >= (3 * workers) as f64
    });
    (servers, kennel)
}

/// Sends a script and an `mn`, and returns everything before its `MN`.
fn run(client: &mut Client, script: &str) -> String {
    client.send(script.as_bytes());
    client.send(b"mn\r\n");
    let reply = client.until(b"MN\r\n");
    show(&reply[..reply.len() - b"MN\r\n".len()])
}

/// With every CAS number replaced by `c#`: the two sides assign different ones.
fn without_cas(reply: &str) -> String {
    let mut words: Vec<String> = reply.split(' ').map(str::to_owned).collect();
    for word in &mut words {
        let digits = word[1.min(word.len())..].bytes().take_while(u8::is_ascii_digit).count();
        if word.starts_with('c') && digits > 0 && *word != "c0" && !word.starts_with("c0\\") {
            word.replace_range(1..=digits, "#");
        }
    }
    words.join(" ")
}

const SCRIPTS: &[&str] = &[
    "mg K v\r\nmg K v k O7 s\r\nmg K v q\r\n",
    "ms K 5 T100 F7\r\nhello\r\nmg K v t f s k\r\nmg K s v\r\nmg K\r\nmg K k Oab f\r\nget K\r\n",
    "ms K 5 c k Oxyz\r\nhello\r\nmg K t\r\nmg K c v h l\r\nmg K h t u\r\nmg K t T100 t\r\nmg K t\r\nmg K T0 t\r\n",
    "ms K 5 h l\r\nhello\r\nmg K h u\r\nmg K h\r\nmg K h l\r\n",
    "ms K 5\r\nhello\r\nmg K h l T60\r\nmg K h l t T60\r\nmg K h\r\n",
    "ms K 2 q\r\nhi\r\nms K 2 q k Oq\r\nho\r\nmg K v q\r\nmd K q\r\nmd K q Oz\r\nmg K v q k\r\n",
    "ms K 1 T-1 O1\r\nx\r\nmg K v\r\nms K 1 T1000000000\r\nx\r\nmg K v O9\r\n",
    "ms K 1\r\nx\r\nms K 2 ME O1 k\r\nab\r\nms K 2 MR\r\ncd\r\nmg K v\r\nms K 2 MA c0\r\nmg K v\r\n",
    "ms K 2 MR k O3\r\nab\r\nms K 2 ME\r\nab\r\nms K 2 MA\r\ncd\r\nms K 2 MP\r\nef\r\nmg K v s\r\nms K 2 MS\r\nzz\r\nmg K v\r\n",
    "ms K 2 MA k c O1\r\nab\r\nms K 2 MP k c\r\nab\r\nmg K v\r\n",
    "ms K 2 C5 k O5 c\r\nab\r\nms K 2\r\nab\r\nms K 2 C5000000000 c k\r\ncd\r\nmg K v\r\nms K 1 C0\r\nx\r\nms K 1 ME C77\r\nx\r\n",
    "ms K 2\r\n10\r\nma K\r\nma K v\r\nma K v D10 k O1\r\nma K MD v\r\nma K M- D100 v\r\nma K MI D5 t v\r\nget K\r\nma K M+ q\r\nma K v\r\n",
    "ma K v k O1\r\nma K N100 J13 v t\r\nma K N100 J13 v t\r\nma K T50 t v\r\nma K t T60 v t\r\nmg K t v\r\n",
    "ma K N100 J13 v t q\r\nma K N100 J13 v t q\r\nma K N0 q v\r\nmg K v t\r\n",
    "ms K 2 T50\r\n10\r\nma K C99999999 v k\r\nma K D1 t\r\nma K D18446744073709551615 v\r\nmg K v s\r\nget K\r\n",
    "ms K 3\r\nabc\r\nma K\r\nma K k O1\r\n",
    "ms K 3\r\nabc\r\nmd K C99999999 k O1\r\nmd K C99999999 q\r\nmg K v\r\nmd K k O2\r\nmd K k O2\r\nmd K C4\r\n",
    "ms K 0\r\n\r\nmg K v s t f\r\nget K\r\nms K 2 MA\r\nab\r\nmg K v\r\n",
    "ms K 3 F4294967295 T2500000\r\nabc\r\nmg K f t\r\nms K 3 MA F7 T5\r\ndef\r\nmg K f t v\r\n",
    "mg K v x\r\nmg K v v\r\nms K S3\r\nms K abc\r\nabc\r\nms K 3 M\r\nabc\r\nms K 3 MX\r\nabc\r\nma K MX\r\nmg K N\r\n",
    "ms K 3\r\nabcdef\r\nmg K v\r\nms K\r\nmg\r\nmd\r\nma\r\nme\r\nmx K\r\n",
    "mg K O1234567890123456789012345678901 v\r\nmg K O12345678901234567890123456789012 v\r\n",
    "ms K 2 T30\r\nhi\r\nget K\r\ntouch K 100\r\nmg K t\r\nincr K 1\r\ndelete K\r\nmg K\r\n",
    "ms Zzphc2U= 3 b\r\nabc\r\n",
    "mg K P1 L2 v\r\nms K 1 P9 L8\r\nx\r\nmg K v P1 L2\r\nmd K P1 L1\r\n",
];

#[test]
fn an_item_that_is_there_is_shown_as_memcached_shows_it() {
    let reference = Memcached::newest(&[]);
    let (_servers, kennel) = world();
    for (round, script) in SCRIPTS.iter().enumerate() {
        for prefix in ["g", "t", "r"] {
            let script = script.replace('K', &format!("{prefix}:{round}"));
            let [theirs, ours] = [direct(&reference), kennel.client()]
                .map(|mut client| without_cas(&run(&mut client, &script)));
            assert_eq!(ours, theirs, "{script}");
        }
    }
}

#[test]
fn a_key_of_any_bytes_is_guarded_like_any_other() {
    let reference = Memcached::newest(&[]);
    let (servers, kennel) = world();
    // "g: a\n\0b", "t:x y" and "t:\r\n".
    for key in ["ZzogYQoAYg==", "dDp4IHk=", "dDoNCg=="] {
        let script = format!(
            "mg {key} b v k O1\r\nms {key} 2 b T90 k\r\nhi\r\nmg {key} v b k t f s\r\nms {key} 1 b MA\r\n!\r\nmg {key} b v\r\n\
             ma {key} b\r\nmd {key} b k\r\nmd {key} b\r\nmg {key} b v\r\nma {key} b N0 J4 v k\r\nma {key} b v\r\n"
        );
        let [theirs, ours] =
            [direct(&reference), kennel.client()].map(|mut client| run(&mut client, &script));
        assert_eq!(ours, theirs, "{key}");
        assert!(ours.contains(&format!("k{key} b")), "{ours}");
    }
    // Stale values have locks, which have a key of their own.
    let mut client = kennel.client();
    run(&mut client, "ms ZzogYQoAYg== 1 b T2\r\nx\r\n");
    let stale = |reply: &str| reply.contains('X');
    let mut won = String::new();
    eventually("it goes stale", || {
        won = run(&mut client, "mg ZzogYQoAYg== b v R0\r\n");
        stale(&won)
    });
    assert_eq!(won, show(b"VA 1 X W\r\nx\r\n"));
    assert_eq!(run(&mut kennel.client(), "mg ZzogYQoAYg== b v\r\n"), show(b"VA 1 Z X\r\nx\r\n"));
    drop(servers);
}

#[test]
fn a_stale_value_is_marked_and_one_reader_wins_it_with_the_old_value_in_hand() {
    let (servers, kennel) = world();
    for key in ["g:stale", "t:stale"] {
        let [mut winner, mut other, mut classic] = [(); 3].map(|()| kennel.client());
        assert_eq!(run(&mut winner, &format!("ms {key} 3 T2 F5\r\nold\r\n")), show(b"HD\r\n"));
        until_stale(&servers, key, 60);
        assert_eq!(
            run(&mut winner, &format!("mg {key} v f t s R0\r\n")),
            show(b"VA 3 f5 t0 s3 X W\r\nold\r\n")
        );
        assert_eq!(run(&mut other, &format!("mg {key} s\r\n")), show(b"HD s3 Z X\r\n"));
        assert_eq!(classic.get(key).as_deref(), Some(&b"old"[..]));
        assert_eq!(run(&mut winner, &format!("ms {key} 3 T90\r\nnew\r\n")), show(b"HD\r\n"));
        assert_eq!(run(&mut other, &format!("mg {key} v t\r\n")), show(b"VA 3 t90\r\nnew\r\n"));
    }
}

#[test]
fn who_reads_behind_the_winner_in_one_write_is_shown_the_cas_of_the_win() {
    let (servers, kennel) = world();
    let mut client = kennel.client();
    let cas = |line: &str| -> u64 {
        let word = line.split(' ').find_map(|word| word.strip_prefix('c')).expect("a CAS");
        word.parse().expect("a number")
    };
    // The value has expired, its tag was bumped, or `md I` has marked it.
    for (key, ends, makes_stale) in
        [("g:behind", 2, ""), ("t:behind", 90, "md @tag:all\r\n"), ("g:marked", 90, "md g:marked I\r\n")]
    {
        run(&mut client, &format!("ms {key} 3 T{ends}\r\nold\r\n"));
        run(&mut client, makes_stale);
        if ends == 2 {
            until_stale(&servers, key, 60);
        }
        client.send(format!("mg {key} c R0\r\nmg {key} c\r\ngets {key}\r\nmg {key} c\r\n").as_bytes());
        let won = client.line();
        assert!(won.ends_with(" X W"), "{key}: {won}");
        let behind = client.line();
        assert!(behind.ends_with(" Z X"), "{key}: {behind}");
        let item = client.items().expect("the stale value").remove(0);
        let last = client.line();
        assert_eq!([cas(&behind), item.cas.expect("a CAS"), cas(&last)], [cas(&won); 3], "{key}");
        // It is the one that the fill names.
        assert_eq!(
            run(&mut kennel.client(), &format!("ms {key} 3 C{}\r\nnew\r\n", cas(&won))),
            show(b"HD\r\n")
        );
        assert_eq!(client.get(key).as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn a_winner_that_does_not_show_that_it_knows_w_is_told_a_miss_and_its_ms_is_the_fill() {
    let (_servers, kennel) = world();
    for key in ["g:plain", "t:plain"] {
        for (mg, miss) in [
            (format!("mg {key} v f\r\n"), "EN\r\n".to_owned()),
            (format!("mg {key} v f k q O7\r\n"), String::new()),
            (format!("mg {key} s t c k O7\r\n"), format!("EN k{key} O7\r\n")),
            (format!("mg {key} v T60\r\n"), "EN\r\n".to_owned()),
        ] {
            let [mut winner, mut other] = [(); 2].map(|()| kennel.client());
            run(&mut other, &format!("ms {key} 3 F5\r\nold\r\nmd {key} I\r\n"));
            assert_eq!(run(&mut winner, &mg), show(miss.as_bytes()), "{mg}");
            for loser in ["v f", "v f R0"] {
                let reply = run(&mut other, &format!("mg {key} {loser}\r\n"));
                assert_eq!(reply, show(b"VA 3 f5 Z X\r\nold\r\n"), "{mg} {loser}");
            }
            assert_eq!(run(&mut winner, &format!("ms {key} 3\r\nnew\r\n")), show(b"HD\r\n"));
            assert_eq!(run(&mut other, &format!("mg {key} v\r\n")), show(b"VA 3\r\nnew\r\n"), "{mg}");
        }
    }
    let filled = kennel.metrics().sum("kennel_leases_total", &["end=\"filled\""]);
    assert_eq!(filled, 8.0, "each was the fill of its lease");
}

#[test]
fn a_rule_can_show_every_winner_the_old_value() {
    let servers = memcacheds(1);
    let rule = |more| format!("{RULE}\n{more}");
    let rules = [
        guarded("knows", "k:*", &rule("meta_winner = \"stale\"")),
        guarded("early", "e:*", &rule("meta_winner = \"stale\"\nearly_beta = 100.0")),
        guarded("misses", "m:*", &rule("meta_winner = \"miss\"\nearly_beta = 100.0")),
    ];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let mut client = kennel.client();
    run(&mut client, "ms k:k 3\r\nold\r\nmd k:k I\r\n");
    assert_eq!(run(&mut client, "mg k:k v\r\n"), show(b"VA 3 X W\r\nold\r\n"));
    // A value is refreshed early once a rebuild of it has taken some time.
    for (key, won) in [("e:k", &b"VA 3 W\r\nold\r\n"[..]), ("m:k", b"EN\r\n")] {
        assert_eq!(run(&mut client, &format!("mg {key} v\r\n")), show(b"EN\r\n"));
        std::thread::sleep(std::time::Duration::from_millis(50));
        run(&mut client, &format!("ms {key} 3 T10\r\nold\r\n"));
        eventually("it is refreshed early", || run(&mut client, &format!("mg {key} v\r\n")) == show(won));
        let mut other = kennel.client();
        eventually("others receive that it is", || {
            run(&mut other, &format!("mg {key} v\r\n")) == show(b"VA 3 Z\r\nold\r\n")
        });
    }
}

#[test]
fn a_moved_tag_shows_as_stale_too() {
    let (_servers, kennel) = world();
    let [mut winner, mut other] = [(); 2].map(|()| kennel.client());
    run(&mut winner, "ms t:7 3 T90\r\nold\r\n");
    assert_eq!(run(&mut other, "md @tag:of:7 k\r\n"), show(b"HD k@tag:of:7\r\n"));
    assert_eq!(run(&mut winner, "mg t:7 v R0\r\n"), show(b"VA 3 X W\r\nold\r\n"));
    assert_eq!(run(&mut other, "mg t:7 v\r\n"), show(b"VA 3 Z X\r\nold\r\n"));
    run(&mut winner, "ms t:7 3 T90\r\nnew\r\n");
    assert_eq!(run(&mut other, "mg t:7 v\r\n"), show(b"VA 3\r\nnew\r\n"));
}

#[test]
fn on_a_miss_only_clients_that_request_it_receive_the_stub() {
    let (_servers, kennel) = world();
    let [mut winner, mut other] = [(); 2].map(|()| kennel.client());
    assert_eq!(
        run(&mut winner, "mg g:cold v t s f k O1 N30\r\n"),
        show(b"VA 0 t-1 s0 f0 kg:cold O1 W\r\n\r\n")
    );
    assert_eq!(run(&mut other, "mg g:cold v N30\r\n"), show(b"VA 0 Z\r\n\r\n"));
    assert_eq!(run(&mut other, "mg g:cold N30 q\r\n"), show(b"HD Z\r\n"));
    assert_eq!(run(&mut other, "mg g:cold v k\r\n"), show(b"EN kg:cold\r\n"));
    assert_eq!(other.execute("get g:cold"), "END");
    assert_eq!(run(&mut winner, "ms g:cold 1\r\nx\r\n"), show(b"HD\r\n"));
    assert_eq!(run(&mut other, "mg g:cold v N30\r\n"), show(b"VA 1\r\nx\r\n"));
    // The client that did not request it has the right to rebuild all the same.
    assert_eq!(run(&mut winner, "mg g:other v\r\n"), show(b"EN\r\n"));
    assert_eq!(run(&mut other, "mg g:other v N30\r\n"), show(b"VA 0 Z\r\n\r\n"));
}

/// The number after ` c` in a reply.
fn cas(reply: &str) -> u64 {
    let digits = reply.split(" c").nth(1).unwrap_or_else(|| panic!("a reply with c: {reply}"));
    digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

#[test]
fn the_cas_of_a_win_is_the_lease_on_whichever_connection_it_comes() {
    let (_servers, kennel) = world();
    for key in ["g:win", "t:win"] {
        let [mut reader, mut writer] = [(); 2].map(|()| kennel.client());
        let won = cas(&run(&mut reader, &format!("mg {key} c N30\r\n")));
        assert_eq!(run(&mut writer, &format!("ms {key} 1 C{}\r\nn\r\n", won + 1_000_000)), show(b"NF\r\n"));
        assert_eq!(run(&mut writer, &format!("ms {key} 1 C{won}\r\ny\r\n")), show(b"HD\r\n"));
        assert_eq!(run(&mut reader, &format!("mg {key} v\r\n")), show(b"VA 1\r\ny\r\n"));
        assert_eq!(run(&mut writer, &format!("ms {key} 1 C{won}\r\nz\r\n")), show(b"EX\r\n"));
    }
    let filled = kennel.metrics().sum("kennel_leases_total", &["end=\"filled\""]);
    assert_eq!(filled, 2.0, "each was the fill of its lease");
}

#[test]
fn a_lease_is_still_named_by_the_cas_of_its_win_after_it_was_renewed() {
    let servers = memcacheds(1);
    let rule = "lock_ttl = \"1s\"\nstale_for = \"60s\"";
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("guarded", "g:*", rule)]));
    let mut client = kennel.client();
    let won = cas(&run(&mut client, "mg g:k c N30\r\n"));
    let mut server = direct(&servers[0]);
    eventually("the stub has another CAS", || cas(&run(&mut server, "mg g:k c\r\n")) != won);
    assert_eq!(run(&mut client, &format!("ms g:k 1 C{won}\r\nx\r\n")), show(b"HD\r\n"));
    assert_eq!(run(&mut client, "mg g:k v\r\n"), show(b"VA 1\r\nx\r\n"));
}

#[test]
fn a_lease_that_is_given_up_by_the_cas_of_its_win_while_it_is_renewed_is_free_at_once() {
    let rule = "lock_ttl = \"1s\"\nstale_for = \"60s\"\ncold_wait = \"0ms\"";
    let (_servers, gate, [kennel, _]) = gated_fleet(&[guarded("guarded", "g:*", rule)]);
    let [mut client, mut other] = [(); 2].map(|()| kennel.client());
    let won = cas(&run(&mut client, "mg g:k c N30\r\n"));
    gate.hold("ms g:k ");
    gate.until_held();
    client.send(format!("md g:k C{won}\r\n").as_bytes());
    gate.release();
    client.expect(b"HD\r\n");
    let next = run(&mut other, "mg g:k v N30\r\n");
    assert!(next.contains(" W"), "the next one builds it: {next}");
}

#[test]
fn a_store_with_the_cas_of_a_miss_shows_what_an_invalidation_did_to_it() {
    let (_servers, kennel) = world();
    let [mut winner, mut other] = [(); 2].map(|()| kennel.client());
    let won = cas(&run(&mut winner, "mg g:k c N30\r\n"));
    assert_eq!(other.delete("g:k"), "NOT_FOUND");
    assert_eq!(run(&mut winner, &format!("ms g:k 1 C{won}\r\nx\r\n")), show(b"NF\r\n"));
    // After that reply, what it sends next is new.
    assert_eq!(run(&mut winner, "ms g:k 1\r\nn\r\n"), show(b"HD\r\n"));
    assert_eq!(run(&mut other, "mg g:k v\r\n"), show(b"VA 1\r\nn\r\n"));
    let won = cas(&run(&mut winner, "mg g:l c N30\r\n"));
    other.store("g:l", b"theirs", 0);
    assert_eq!(run(&mut winner, &format!("ms g:l 1 C{won}\r\nx\r\n")), show(b"EX\r\n"));
    assert_eq!(run(&mut other, "mg g:l v\r\n"), show(b"VA 6\r\ntheirs\r\n"));
}

#[test]
fn a_win_of_another_sidecar_can_be_filled_here_and_no_moved_tag_is_forgotten_by_it() {
    let servers = memcacheds(3);
    let tagged = format!("{RULE}\ntags = [\"all\"]");
    let rules = [guarded("tagged", "t:*", &tagged), guarded("plain", "g:*", RULE)];
    let [here, there] = [(); 2].map(|()| Kennel::start(&sidecar_toml(&addresses(&servers), &rules)));
    let (mut here, mut there) = (here.client(), there.client());
    let won = cas(&run(&mut here, "mg g:k c N30\r\n"));
    assert_eq!(run(&mut there, &format!("ms g:k 1 C{won}\r\nx\r\n")), show(b"HD\r\n"));
    assert_eq!(run(&mut here, "mg g:k v\r\n"), show(b"VA 1\r\nx\r\n"));
    // Only the other sidecar knows the tags' versions at that miss: the value is served, but not as fresh.
    let won = cas(&run(&mut here, "mg t:k c N30\r\n"));
    assert_eq!(here.delete("@tag:all"), "DELETED");
    assert_eq!(run(&mut there, &format!("ms t:k 1 C{won}\r\nx\r\n")), show(b"HD\r\n"));
    assert_eq!(run(&mut there, "mg t:k v R0\r\n"), show(b"VA 1 X W\r\nx\r\n"));
}

#[test]
fn a_stale_value_that_was_won_through_another_sidecar_is_fresh_once_filled_here_unless_a_tag_has_moved_since()
{
    let servers = memcacheds(3);
    let rules = [guarded("tagged", "t:*", &format!("{RULE}\ntags = [\"all\"]"))];
    let [here, there] = [(); 2].map(|()| Kennel::start(&sidecar_toml(&addresses(&servers), &rules)));
    let (mut here, mut there) = (here.client(), there.client());
    for moves in [false, true] {
        run(&mut there, "ms t:k 3 T600\r\nold\r\n");
        assert_eq!(here.delete("@tag:all"), "DELETED");
        let won = cas(&run(&mut here, "mg t:k c R0\r\n"));
        if moves {
            assert_eq!(there.delete("@tag:all"), "DELETED");
        }
        assert_eq!(run(&mut there, &format!("ms t:k 3 C{won}\r\nnew\r\n")), show(b"HD\r\n"));
        // It has no owner any more: where it is stale, the next reader wins it.
        let shown: &[u8] = if moves { b"VA 3 X W\r\nnew\r\n" } else { b"VA 3\r\nnew\r\n" };
        assert_eq!(run(&mut there, "mg t:k v R0\r\n"), show(shown));
        there.delete("t:k");
    }
}

#[test]
fn an_older_cas_with_i_is_stored_as_stale() {
    let (_servers, kennel) = world();
    for key in ["g:i", "t:i"] {
        let mut client = kennel.client();
        let old = cas(&run(&mut client, &format!("ms {key} 1 c\r\n1\r\n")));
        run(&mut client, &format!("ms {key} 1\r\n2\r\n"));
        assert_eq!(run(&mut client, &format!("ms {key} 1 C{old}\r\n3\r\n")), show(b"EX\r\n"));
        assert_eq!(run(&mut client, &format!("ms {key} 1 C{old} I\r\n3\r\n")), show(b"HD\r\n"));
        assert_eq!(run(&mut client, &format!("mg {key} v R0\r\n")), show(b"VA 1 X W\r\n3\r\n"));
        // An overtaken lease ends the same way.
        let won = cas(&run(&mut client, &format!("mg {key}2 c N30\r\n")));
        kennel.client().store(&format!("{key}2"), b"theirs", 0);
        assert_eq!(run(&mut client, &format!("ms {key}2 1 C{won} I\r\nx\r\n")), show(b"HD\r\n"));
        assert_eq!(run(&mut client, &format!("mg {key}2 v R0\r\n")), show(b"VA 1 X W\r\nx\r\n"));
    }
}

#[test]
fn a_value_that_is_stored_as_stale_leaves_the_rebuild_to_its_winner() {
    let servers = memcacheds(1);
    let rule = "lock_ttl = \"1s\"\nstale_for = \"60s\"\ncold_wait = \"0ms\"";
    let rules =
        [guarded("tagged", "t:*", &format!("{rule}\ntags = [\"all\"]")), guarded("plain", "g:*", rule)];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let mut server = direct(&servers[0]);
    for key in ["g:k", "t:k"] {
        let [mut winner, mut other, mut third] = [(); 3].map(|()| kennel.client());
        let old = cas(&run(&mut winner, &format!("ms {key} 1 c\r\n1\r\n")));
        assert_eq!(
            run(&mut winner, &format!("md {key} I\r\nmg {key} v R0\r\n")),
            show(b"HD\r\nVA 1 X W\r\n1\r\n")
        );
        assert_eq!(run(&mut other, &format!("ms {key} 1 C{old} I T90\r\n2\r\n")), show(b"HD\r\n"));
        for _ in 0..3 {
            assert_eq!(run(&mut third, &format!("mg {key} v R0\r\n")), show(b"VA 1 Z X\r\n2\r\n"));
            let mut lock = || cas(&run(&mut server, &format!("mg @lock:{key} c\r\n")));
            let before = lock();
            eventually("the lease is renewed", || lock() != before);
        }
        assert_eq!(
            run(&mut winner, &format!("ms {key} 1\r\n3\r\nmg {key} v\r\n")),
            show(b"HD\r\nVA 1\r\n3\r\n")
        );
    }
}

#[test]
fn md_with_i_leaves_a_stale_value_and_bounds_how_long() {
    let (servers, kennel) = world();
    let mut client = kennel.client();
    run(&mut client, "ms g:k 1 T600\r\nx\r\n");
    assert_eq!(run(&mut client, "md g:k I T30 k\r\n"), show(b"HD kg:k\r\n"));
    assert_eq!(run(&mut client, "mg g:k v R0\r\n"), show(b"VA 1 X W\r\nx\r\n"));
    assert_eq!(run(&mut kennel.client(), "mg g:k v\r\n"), show(b"VA 1 Z X\r\nx\r\n"));
    let left = servers.iter().find_map(|server| direct(server).ttl("g:k")).expect("it is still there");
    assert!((28..=30).contains(&left), "{left}");
    run(&mut client, "ms g:long 1 T600\r\nx\r\n");
    assert_eq!(run(&mut client, "md g:long I T500\r\nmd g:none I\r\n"), show(b"HD\r\nNF\r\n"));
    let left = servers.iter().find_map(|server| direct(server).ttl("g:long")).expect("it is still there");
    assert!((58..=60).contains(&left), "no longer than stale_for: {left}");
}

#[test]
fn md_with_a_cas_deletes_only_that_and_gives_back_the_lease_it_names() {
    let (_servers, kennel) = world();
    let [mut client, mut other] = [(); 2].map(|()| kennel.client());
    let stored = cas(&run(&mut client, "ms g:k 1 c\r\nx\r\n"));
    assert_eq!(run(&mut client, &format!("md g:k C{}\r\n", stored + 1)), show(b"EX\r\n"));
    assert_eq!(run(&mut client, &format!("md g:k C{stored}\r\n")), show(b"HD\r\n"));
    let won = cas(&run(&mut client, "mg g:k c N30\r\n"));
    assert_eq!(run(&mut other, "mg g:k N30\r\n"), show(b"HD Z\r\n"));
    assert_eq!(run(&mut client, &format!("md g:k C{won}\r\n")), show(b"HD\r\n"));
    assert_eq!(run(&mut other, "mg g:k N30\r\n"), show(b"HD W\r\n"));
    assert_eq!(kennel.metrics().sum("kennel_leases_total", &["end=\"released\""]), 1.0);
}

#[test]
fn a_winner_whose_lease_another_has_deleted_by_its_cas_stores_nothing_after_that() {
    let (_servers, kennel) = world();
    for key in ["g:d", "t:d"] {
        let [mut winner, mut other, mut third] = [(); 3].map(|()| kennel.client());
        for by_name in [true, false] {
            let cas = cas(&run(&mut winner, &format!("mg {key} v c N30\r\n")));
            match by_name {
                true => assert_eq!(run(&mut other, &format!("md {key} C{cas}\r\n")), show(b"HD\r\n")),
                false => {
                    assert_eq!(run(&mut other, &format!("ms {key} 1 C{cas}\r\nb\r\n")), show(b"HD\r\n"));
                    assert_eq!(third.delete(key), "DELETED");
                }
            }
            assert_eq!(run(&mut winner, &format!("ms {key} 1\r\na\r\n")), show(b"HD\r\n"));
            assert_eq!(run(&mut third, &format!("mg {key} v N30\r\n")), show(b"VA 0 W\r\n\r\n"));
            third.delete(key);
        }
    }
}

#[test]
fn recaching_is_won_once_while_the_value_is_still_fresh() {
    let (_servers, kennel) = world();
    for key in ["g:r", "t:r"] {
        let [mut winner, mut other] = [(); 2].map(|()| kennel.client());
        run(&mut winner, &format!("ms {key} 3 T90\r\nold\r\n"));
        assert_eq!(
            run(&mut winner, &format!("mg {key} v R30\r\n")),
            show(b"VA 3\r\nold\r\n"),
            "90 s are left"
        );
        assert_eq!(run(&mut winner, &format!("mg {key} v R100 T500 t\r\n")), show(b"VA 3 t90 W\r\nold\r\n"));
        assert_eq!(run(&mut other, &format!("mg {key} t\r\n")), show(b"HD t90\r\n"), "as was said");
        assert_eq!(run(&mut other, &format!("mg {key} v R100\r\n")), show(b"VA 3 Z\r\nold\r\n"));
        assert_eq!(run(&mut other, &format!("mg {key} v\r\n")), show(b"VA 3\r\nold\r\n"));
        assert_eq!(run(&mut winner, &format!("ms {key} 3 T190\r\nnew\r\n")), show(b"HD\r\n"));
        assert_eq!(run(&mut other, &format!("mg {key} v R100\r\n")), show(b"VA 3\r\nnew\r\n"));
        run(&mut winner, &format!("ms {key} 3\r\nfor\r\n"));
        assert_eq!(run(&mut other, &format!("mg {key} R100\r\n")), show(b"HD\r\n"), "it never ends");
    }
}

#[test]
fn a_cas_that_the_client_gives_is_the_items_where_the_server_can() {
    let kennel = Kennel::start(&sidecar_toml(&["embedded:16MiB".to_owned()], &[guarded("g", "g:*", "")]));
    let mut client = kennel.client();
    assert_eq!(run(&mut client, "ms g:e 1 E777 c\r\nx\r\nmg g:e c\r\n"), show(b"HD c777\r\nHD c777\r\n"));
    assert_eq!(
        run(&mut client, "ms g:e 1 C777 E888 c\r\ny\r\nmg g:e c v\r\n"),
        show(b"HD c888\r\nVA 1 c888\r\ny\r\n")
    );
    assert_eq!(
        run(&mut client, "ma g:n N0 J5 E999 c\r\nma g:n E1000 c v\r\n"),
        show(b"HD c999\r\nVA 1 c1000\r\n6\r\n")
    );
    // The CAS of a stub is the server's: it tells what was invalidated since.
    let refused = "CLIENT_ERROR E does not apply to mg N of a guarded key\r\n";
    for mg in ["mg g:new N30 E9876", "mg g:e v E9876 N0 q"] {
        assert_eq!(run(&mut client, &format!("{mg}\r\n")), show(refused.as_bytes()));
    }
    assert_eq!(run(&mut client, "mg g:new\r\n"), show(b"EN\r\n"), "nothing was left");
    assert_eq!(
        run(&mut client, "ms g:bad 1 Ex\r\nx\r\nmd g:bad E\r\n"),
        show(&b"CLIENT_ERROR bad token in command line format\r\n".repeat(2))
    );
}

#[test]
fn an_emptied_item_is_there_and_empty_and_no_stub() {
    let (_servers, kennel) = world();
    let mut client = kennel.client();
    run(&mut client, "ms g:x 3 F9 T90\r\nabc\r\n");
    assert_eq!(run(&mut client, "md g:x x k\r\n"), show(b"HD kg:x\r\n"));
    assert_eq!(run(&mut client, "mg g:x v f s t\r\n"), show(b"VA 0 f0 s0 t-1\r\n\r\n"));
    run(&mut client, "ms g:y 3 F9 T90\r\nabc\r\nmd g:y x T30\r\n");
    assert_eq!(run(&mut client, "mg g:y v f s t\r\n"), show(b"VA 0 f0 s0 t30\r\n\r\n"));
    run(&mut client, "ms g:z 3 F9 T90\r\nabc\r\nmd g:z x I\r\n");
    assert_eq!(run(&mut client, "mg g:z v R0\r\n"), show(b"VA 0 X W\r\n\r\n"));
    assert_eq!(run(&mut client, "md g:none x\r\n"), show(b"NF\r\n"));
}

#[test]
fn a_tag_is_read_and_bumped_by_meta_commands_and_nothing_else() {
    let (_servers, kennel) = world();
    let mut client = kennel.client();
    let version = |reply: &str| reply.split("\\r\\n").nth(1).and_then(|text| text.parse::<u64>().ok());
    let first = version(&run(&mut client, "ma @tag:all v\r\n")).expect("a version");
    assert_eq!(version(&run(&mut client, "mg @tag:all v k\r\n")), Some(first));
    assert_eq!(
        run(&mut client, "ma @tag:all q\r\nmd @tag:all q\r\nma @tag:all O5 k\r\n"),
        show(b"HD O5 k@tag:all\r\n")
    );
    assert!(version(&run(&mut client, "mg @tag:all v\r\n")) > Some(first));
    for refused in [
        "ms @tag:all 1\r\n1\r\n",
        "mg @tag:all T5\r\n",
        "mg @tag:all N5\r\n",
        "md @tag:all I\r\n",
        "ma @tag:all MD\r\n",
    ] {
        let reply = run(&mut client, refused);
        assert!(reply.starts_with("CLIENT_ERROR this key is a tag"), "{refused}: {reply}");
    }
    assert!(version(&run(&mut client, "mg @tag:all v\r\n")) > Some(first));
}

#[test]
fn mn_is_sent_after_every_earlier_reply_whichever_server_it_comes_from() {
    let (_servers, kennel) = world();
    let mut client = kennel.client();
    let mut script = String::new();
    let mut expected = String::new();
    for i in 0..60 {
        let prefix = ["g", "t", "r"][i % 3];
        script.push_str(&format!(
            "ms {prefix}:{i} 2 q\r\n{i:02}\r\nmg {prefix}:{i} v O{i}\r\nmg {prefix}:no{i} q\r\nmn\r\n"
        ));
        expected.push_str(&format!("VA 2 O{i}\r\n{i:02}\r\nMN\r\n"));
    }
    client.send(script.as_bytes());
    client.expect(expected.as_bytes());
}
