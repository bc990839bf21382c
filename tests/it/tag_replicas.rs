//! Tags on two servers: losing one of them invalidates nothing and resurrects nothing.

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, sidecar_toml, version_of,
};

const RULE: &str = "stale_for = \"60s\"\ncold_wait = \"0ms\"\ntags = [\"posts\"]\non_tag = \"drop\"";

/// Values on a server of their own, tags on two (or `n`) others.
fn world(n: usize) -> (Memcached, Vec<Memcached>, String) {
    let values = Memcached::start(&[]);
    let tags = memcacheds(n);
    let toml = sidecar_toml(&[values.address()], &[guarded("guarded", "g:*", RULE)])
        + &format!("[pools.tags]\nservers = {:?}\n[tags]\npool = \"tags\"\nreplicas = 2\n", addresses(&tags));
    (values, tags, toml)
}

/// The tag's version on each server.
fn versions(tags: &[Memcached]) -> Vec<Option<u64>> {
    let read = |server| direct(server).get("@tag:posts");
    tags.iter().map(|server| read(server).map(|item| version_of(&item))).collect()
}

fn fill(client: &mut Client) {
    eventually("the tags can be read", || {
        client.get("g:k");
        client.set("g:k", b"v", 0) == "STORED" && client.get("g:k").is_some()
    });
}

#[test]
fn a_version_is_stored_on_two_of_the_servers() {
    let (_values, tags, toml) = world(5);
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    fill(&mut client);
    let created: Vec<u64> = versions(&tags).into_iter().flatten().collect();
    assert!(matches!(created[..], [a, b] if a == b), "{created:?}");
    let bumped: u64 = client.execute("incr @tag:posts 1").parse().expect("a version");
    assert_eq!(versions(&tags).into_iter().flatten().collect::<Vec<_>>(), [bumped, bumped]);
    assert_eq!(client.get("@tag:posts"), Some(bumped.to_string().into_bytes()));
}

#[test]
fn to_lose_either_server_invalidates_nothing_and_resurrects_nothing() {
    for lost in [0, 1] {
        let (_values, mut tags, toml) = world(2);
        let [here, there] = [(); 2].map(|()| Kennel::start(&toml));
        let (mut here, mut there) = (here.client(), there.client());
        fill(&mut here);
        tags[lost].kill();
        eventually("the value is fresh", || there.get("g:k").as_deref() == Some(b"v"));
        assert_eq!(here.get("g:k").as_deref(), Some(&b"v"[..]), "nothing is invalidated");
        assert_eq!(here.delete("@tag:posts"), "DELETED", "one of them has it");
        assert!(there.get("@tag:posts").is_some(), "and says so");
        assert_eq!(there.get("g:k"), None);
        // It returns empty, and the next reader repairs it.
        tags[lost].restart();
        let kept = versions(&tags)[1 - lost];
        eventually("it has the version again", || {
            there.get("g:k");
            versions(&tags)[lost] == kept
        });
        fill(&mut here);
        tags[1 - lost].kill();
        eventually("the value is fresh", || there.get("g:k").as_deref() == Some(b"v"));
    }
}

#[test]
fn a_server_that_comes_back_with_an_old_version_is_not_believed() {
    let (_values, tags, toml) = world(2);
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    fill(&mut client);
    let old = versions(&tags)[0].expect("a version");
    for behind in [0, 1] {
        fill(&mut client);
        assert_eq!(client.delete("@tag:posts"), "DELETED");
        let new = versions(&tags)[1 - behind];
        direct(&tags[behind]).store("@tag:posts", old.to_string().as_bytes(), 0);
        assert_eq!(client.get("@tag:posts"), new.map(|version| version.to_string().into_bytes()));
        assert_eq!(client.get("g:k"), None, "what was built before the bump");
        assert_eq!(versions(&tags), [new, new], "and it has been brought up");
    }
}

#[test]
fn a_bump_that_reaches_no_server_is_not_acknowledged() {
    let (_values, mut tags, toml) = world(2);
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    fill(&mut client);
    tags.iter_mut().for_each(Memcached::kill);
    let reply = client.delete("@tag:posts");
    assert!(reply.starts_with("SERVER_ERROR"), "{reply}");
}
