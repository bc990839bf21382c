//! A program that bypasses Kennel stores things under the keys of tags: no bump is acknowledged without effect.

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, sidecar_toml, version_of,
};

const RULE: &str = "stale_for = \"60s\"\ncold_wait = \"0ms\"\ntags = [\"posts\"]\non_tag = \"drop\"";
const WEEK: u64 = 7 * 24 * 60 * 60 * 1000;
/// What the log says of such a tag.
const LOGGED: &str = "not the version of a tag";

/// The servers that have the tag, with its item and flags.
fn holders(servers: &[Memcached]) -> Vec<(Client, String)> {
    let items = servers.iter().map(|server| {
        let mut server = direct(server);
        let item = server.get("@tag:posts").filter(|item| !item.is_empty());
        item.map(|item| (server, String::from_utf8(item).expect("a version is text")))
    });
    items.flatten().collect()
}

/// Stores `value` with these flags, and behind it the fence of `item`.
fn spoil((server, item): &mut (Client, String), value: &str, flags: u32) {
    let fence = item.split_once(' ').map_or(String::new(), |(_, fence)| format!(" {fence}"));
    let value = format!("{value}{fence}");
    let stored = server.execute(&format!("set @tag:posts {flags} 0 {}\r\n{value}", value.len()));
    assert_eq!(stored, "STORED");
}

fn fill(client: &mut Client, value: &[u8]) {
    eventually("the value is stored and fresh", || {
        client.get("g:k").as_deref() == Some(value) || {
            client.set("g:k", value, 0);
            false
        }
    });
}

/// Two sidecars. Each copy of the tag alone and all together hold, in turn, what is no version.
fn no_bump_is_without_effect(servers: &[Memcached], pool: &str, tags: &str) {
    let toml = sidecar_toml(&addresses(servers), &[guarded("guarded", "g:*", RULE)]);
    let toml = toml.replace("[pools.main]\n", &format!("[pools.main]\n{pool}")) + tags;
    let sidecars = [(); 2].map(|()| Kennel::start(&toml));
    let [mut here, mut there] = sidecars.each_ref().map(Kennel::client);
    fill(&mut here, b"first");
    let copies = holders(servers).len();
    assert_eq!(copies, if tags.is_empty() { 1 } else { 2 });
    let week = (version_of(holders(servers)[0].1.as_bytes()) + WEEK).to_string();
    let now = version_of(holders(servers)[0].1.as_bytes()).to_string();
    let spoilt = [
        ("17592186044415", 0),
        ("17592186044414", 0),
        ("99999999999999999999", 0),
        ("garbage", 0),
        ("+5", 0),
        ("0", 0),
        (&week, 0),
        (&now, u32::MAX),
    ];
    for (value, flags) in spoilt {
        for which in [&[0][..], &[1], &[0, 1]] {
            if which.iter().any(|copy| *copy >= copies) {
                continue;
            }
            for is_rebuilt in [false, true] {
                fill(&mut here, b"old");
                fill(&mut there, b"old");
                let mut found = holders(servers);
                which.iter().for_each(|copy| spoil(&mut found[*copy], value, flags));
                if is_rebuilt {
                    fill(&mut there, b"old");
                    let version = there.get("@tag:posts").expect("the reader has created the tag");
                    assert_ne!(version, value.as_bytes());
                }
                assert_eq!(here.delete("@tag:posts"), "DELETED");
                for client in [&mut there, &mut here] {
                    assert_eq!(client.get("g:k"), None, "{value:?} {flags} {which:?} {is_rebuilt}");
                }
            }
        }
    }
    assert!(sidecars.iter().all(|sidecar| sidecar.log().contains(LOGGED)));
}

#[test]
fn a_bump_of_a_spoilt_tag_takes_effect() {
    no_bump_is_without_effect(&memcacheds(2), "failover = false\n", "");
}

#[test]
fn a_bump_of_a_tag_with_a_spoilt_copy_takes_effect() {
    no_bump_is_without_effect(&memcacheds(2), "failover = false\n", "[tags]\nreplicas = 2\n");
}

#[test]
fn a_bump_of_a_spoilt_tag_takes_effect_in_a_pool_that_fails_over() {
    no_bump_is_without_effect(&memcacheds(3), "", "");
    no_bump_is_without_effect(&memcacheds(3), "", "[tags]\nreplicas = 2\n");
}

#[test]
fn a_spoilt_tag_is_shown_as_none_and_logged_once() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("guarded", "g:*", RULE)]);
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    fill(&mut client, b"v");
    spoil(&mut holders(&servers)[0], "garbage", 0);
    assert_eq!(client.get("@tag:posts"), None);
    fill(&mut client, b"v");
    for _ in 0..20 {
        assert_eq!(client.get("g:k").as_deref(), Some(&b"v"[..]));
        assert_eq!(client.delete("@tag:posts"), "DELETED");
        fill(&mut client, b"v");
    }
    assert_eq!(kennel.log().matches(LOGGED).count(), 1, "{}", kennel.log());
}
