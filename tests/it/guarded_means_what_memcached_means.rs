//! Compares commands on guarded keys with the replies of a real memcached: a client must not be able to tell that a value is
//! wrapped. (The promises cover what a guarded key does differently on purpose.)

use crate::client::set_command;
use crate::world::{Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, sidecar_toml};

/// A memcached to compare with, and a sidecar in front of three others that guards `g:*` and, with tags, `t:*`.
fn both() -> (Memcached, Vec<Memcached>, Kennel) {
    let servers = memcacheds(3);
    let tagged = "tags = [\"all\"]\ncold_wait = \"0ms\"";
    let rules = [guarded("tagged", "t:*", tagged), guarded("plain", "g:*", "cold_wait = \"0ms\"")];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    (Memcached::newest(&[]), servers, kennel)
}

#[test]
fn a_value_that_becomes_too_large_is_refused_and_the_old_one_stays() {
    let (reference, _servers, kennel) = both();
    for prefix in ["g:", "t:"] {
        let words = ["append", "prepend", "replace", "cas", "add"];
        let too_large = [1_048_576, 1_048_540].map(|more| words.map(|word| (word, more)));
        for (word, more) in
            [("append", 1_000_000), ("prepend", 1_000_000)].into_iter().chain(too_large.concat())
        {
            let key = format!("{prefix}{word}{more}");
            let [theirs, ours] = [direct(&reference), kennel.client()].map(|mut client| {
                client.store(&key, &[b'o'; 300_000], 0);
                let cas = client.gets(&key).map_or(0, |(_, cas)| cas);
                let cas = if word == "cas" { format!(" {cas}") } else { String::new() };
                client.send(format!("{word} {key} 0 0 {more}{cas}\r\n").as_bytes());
                client.send(&vec![b'n'; more]);
                let reply = client.execute("");
                (reply, client.get(&key).map(|value| value.len()))
            });
            assert_eq!(ours, theirs, "{word} of {more} bytes to {key}");
        }
        let key = format!("{prefix}set");
        let [theirs, ours] = [direct(&reference), kennel.client()].map(|mut client| {
            client.store(&key, b"old", 0);
            client.send(&set_command(&key, &[b'n'; 1_048_576], 0));
            (client.line(), client.get(&key))
        });
        assert_eq!(ours, theirs, "a set drops it");
    }
}

#[test]
fn a_time_as_far_away_as_it_goes_is_not_gone_at_once() {
    let (reference, _servers, kennel) = both();
    for mut client in [direct(&reference), kennel.client()] {
        client.store("g:e", b"x", 2_147_483_647);
        assert_eq!(client.get("g:e").as_deref(), Some(&b"x"[..]));
    }
}

#[test]
fn no_count_is_lost_or_refused_however_many_count_at_once() {
    let (_reference, _servers, kennel) = both();
    kennel.client().store("g:count", b"0", 100);
    std::thread::scope(|s| {
        for _ in 0..20 {
            let mut client = kennel.client();
            s.spawn(move || {
                for _ in 0..10 {
                    let reply = client.execute("incr g:count 1");
                    assert!(reply.parse::<u64>().is_ok(), "{reply}");
                }
            });
        }
    });
    assert_eq!(kennel.client().get("g:count").as_deref(), Some(&b"200"[..]));
}

#[test]
fn values_above_a_mebibyte_are_taken_by_every_command_if_the_servers_take_them() {
    let servers = [Memcached::start(&["-I", "4m"])];
    let rules = [guarded("guarded", "g:*", "cold_wait = \"0ms\"")];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    for key in ["g:big", "raw:big"] {
        let mut client = kennel.client();
        // Until the server has reported the largest value that it accepts, one of more than a mebibyte is too large.
        eventually("the value is stored", || {
            client.send(format!("add {key} 0 0 1500000\r\n").as_bytes());
            client.send(&vec![b'n'; 1_500_000]);
            client.execute("") == "STORED"
        });
        assert_eq!(client.get(key).map(|value| value.len()), Some(1_500_000));
    }
}

#[test]
fn a_get_of_thousands_of_keys_of_every_kind_is_answered_whole_and_in_order() {
    let (_reference, _servers, kennel) = both();
    let mut client = kennel.client();
    // Those without a value would leave stubs, each with a win of its own: the last one of each kind is sent alone.
    for last in ["g:2999", "raw:2999", "t:2999"] {
        let mut keys: Vec<String> = (0..3000).map(|n| format!("{}:{n}", ["g", "raw", "t"][n % 3])).collect();
        keys.push(last.to_owned());
        for key in keys.iter().step_by(7).chain([&last.to_owned()]) {
            client.store(key, key.as_bytes(), 0);
        }
        let mut reader = kennel.client();
        let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
        let items = reader.get_many(&wanted);
        let stored = |key: &&str| items.iter().any(|item| item.key == **key);
        let expected: Vec<&str> = wanted.iter().copied().filter(|key| stored(key)).collect();
        let got: Vec<&str> = items.iter().map(|item| item.key.as_str()).collect();
        assert_eq!(got, expected, "in the order of the request");
        for key in keys.iter().step_by(7) {
            assert!(stored(&key.as_str()), "{key}");
        }
        assert_eq!(got.last(), Some(&last));
        assert!(items.iter().all(|item| item.value == item.key.as_bytes()));
    }
}
