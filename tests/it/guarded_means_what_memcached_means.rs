//! Commands on guarded keys, held to the replies of a real memcached: a client must not be able to tell that a value is
//! wrapped. (What a guarded key does differently on purpose is in the promises.)

use crate::client::set_command;
use crate::world::{Kennel, Memcached, addresses, direct, guarded, memcacheds, sidecar_toml};

/// A memcached to compare with, and a sidecar before three others that guards `g:*` and, with tags, `t:*`.
fn both() -> (Memcached, Vec<Memcached>, Kennel) {
    let servers = memcacheds(3);
    let tagged = "tags = [\"all\"]\ncold_wait = \"0ms\"";
    let rules = [guarded("tagged", "t:*", tagged), guarded("plain", "g:*", "cold_wait = \"0ms\"")];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    (Memcached::start(&[]), servers, kennel)
}

#[test]
fn what_grows_too_large_is_refused_and_the_old_value_stays() {
    let (reference, _servers, kennel) = both();
    for prefix in ["g:", "t:"] {
        for (word, more) in
            [("append", 1_000_000), ("prepend", 1_000_000), ("append", 1_048_576), ("prepend", 1_048_576)]
                .into_iter()
                .chain([("replace", 1_048_576), ("cas", 1_048_576), ("add", 1_048_576)])
        {
            let key = format!("{prefix}{word}{more}");
            let [theirs, ours] = [direct(&reference), kennel.client()].map(|mut client| {
                client.store(&key, &[b'o'; 300_000], 0);
                let cas = client.gets(&key).map_or(0, |(_, cas)| cas);
                let cas = if word == "cas" { format!(" {cas}") } else { String::new() };
                client.send(format!("{word} {key} 0 0 {more}{cas}\r\n").as_bytes());
                client.send(&vec![b'n'; more]);
                let reply = client.ask("");
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
                    let reply = client.ask("incr g:count 1");
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
        client.send(format!("add {key} 0 0 1500000\r\n").as_bytes());
        client.send(&vec![b'n'; 1_500_000]);
        assert_eq!(client.ask(""), "STORED", "{key}");
        assert_eq!(client.get(key).map(|value| value.len()), Some(1_500_000));
    }
}
