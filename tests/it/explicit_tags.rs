//! Tags that a value names: in the `P` token of an `ms`, or in front of the key if a rule permits that.

use crate::client::{Client, show};
use crate::gate::Gate;
use crate::world::{Kennel, Memcached, addresses, eventually, guarded, memcacheds, sidecar_toml};

const RULE: &str = "stale_for = \"60s\"\ncold_wait = \"0ms\"\ntags_in_key = true";

fn rules() -> [String; 3] {
    let own = format!("{RULE}\ntags = [\"of:{{x}}\"]");
    [
        guarded("own", "t:{x}", &own),
        guarded("plain", "g:*", RULE),
        guarded("strict", "s:*", "cold_wait = \"0ms\""),
    ]
}

fn world() -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(3);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules()));
    (servers, kennel)
}

fn run(client: &mut Client, script: &str) -> String {
    client.send(format!("{script}\r\nmn\r\n").as_bytes());
    let reply = client.until(b"MN\r\n");
    show(&reply[..reply.len() - b"MN\r\n".len()])
}

/// Stores a value with these tags that is fresh: the first fill that names an unknown tag may be stale from the start.
fn store(client: &mut Client, key: &str, tags: &str) {
    eventually("it is stored fresh", || {
        run(client, &format!("mg {key} v"));
        run(client, &format!("ms {key} 1 Ptags={tags}\r\nx"));
        run(client, &format!("mg {key} v")) == show(b"VA 1\r\nx\r\n")
    });
}

#[test]
fn a_tag_that_came_with_a_value_invalidates_it_and_no_other() {
    let (_servers, kennel) = world();
    let [mut client, mut other] = [(); 2].map(|()| kennel.client());
    for key in ["g:k", "t:k"] {
        for (tags, moved) in
            [("posts", "posts"), ("a,posts,b", "posts"), ("blog%3A7,%25%2C", "blog:7"), ("%2c%20", ", ")]
        {
            store(&mut client, key, tags);
            store(&mut other, "g:other", "others");
            other.send(format!("ma {} b\r\n", base64(&format!("@tag:{moved}"))).as_bytes());
            assert_eq!(other.line(), "HD");
            assert_eq!(
                run(&mut client, &format!("mg {key} v R0")),
                show(b"VA 1 X W\r\nx\r\n"),
                "{key} {tags}"
            );
            assert_eq!(run(&mut client, "mg g:other v"), show(b"VA 1\r\nx\r\n"));
            // Stored without the tag, it no longer has it.
            assert_eq!(run(&mut client, &format!("ms {key} 1\r\ny")), show(b"HD\r\n"));
            other.send(format!("ma {} b\r\n", base64(&format!("@tag:{moved}"))).as_bytes());
            assert_eq!(other.line(), "HD");
            assert_eq!(run(&mut client, &format!("mg {key} v")), show(b"VA 1\r\ny\r\n"));
        }
    }
    // The rule's own tags count as well.
    store(&mut client, "t:k", "posts");
    assert_eq!(other.delete("@tag:of:k"), "DELETED");
    assert_eq!(run(&mut client, "mg t:k v R0"), show(b"VA 1 X W\r\nx\r\n"));
}

fn base64(text: &str) -> String {
    let mut out = Vec::new();
    kennel::protocol::base64::encode(text.as_bytes(), &mut out);
    String::from_utf8(out).expect("ASCII")
}

#[test]
fn classic_clients_name_tags_before_the_key_where_the_rule_permits_it() {
    let (_servers, kennel) = world();
    let mut client = kennel.client();
    for _ in 0..2 {
        assert_eq!(client.get("g:k"), None);
        assert_eq!(client.execute("set @tags:posts,blog%3A7:g:k 5 0 3\r\nabc"), "STORED");
        // The tags were unknown before, so whether they were bumped during the rebuild is unknown: store it again.
        client.delete("g:k");
    }
    eventually("the tags are older than the miss by what clocks may differ", || {
        client.get("g:k");
        client.execute("set @tags:posts,blog%3A7:g:k 5 0 3\r\nabc");
        run(&mut client, "mg g:k v f") == show(b"VA 3 f5\r\nabc\r\n")
    });
    assert_eq!(client.delete("@tag:blog:7"), "DELETED");
    assert_eq!(run(&mut kennel.client(), "mg g:k v R0"), show(b"VA 3 X W\r\nabc\r\n"));
    // Every command that writes one key uses the key after the tags. (The winner has marked it stale, so clients find nothing any
    // more.)
    assert_eq!(client.execute("delete @tags:posts:g:k"), "NOT_FOUND");
    assert_eq!(client.get("g:k"), None);
    assert_eq!(client.execute("set @tags::g:n 0 0 1\r\n1"), "STORED");
    assert_eq!(client.execute("incr @tags:posts:g:n 5"), "6");
    assert_eq!(client.get("g:n").as_deref(), Some(&b"6"[..]));
    // Under another rule it is an ordinary key.
    assert_eq!(client.execute("set @tags:posts:s:k 0 0 1\r\nx"), "STORED");
    assert_eq!(client.get("s:k"), None);
    assert_eq!(client.get("@tags:posts:s:k").as_deref(), Some(&b"x"[..]));
}

#[test]
fn a_key_that_is_nothing_but_tags_is_a_key_like_any_other() {
    let servers = memcacheds(1);
    let rules = [guarded("all", "*", RULE)];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let [mut client, mut other] = [(); 2].map(|()| kennel.client());
    for key in ["@tags:posts:", "@tags::"] {
        // In one write, so that an additional reply would be taken for the next one's.
        client.send(format!("set {key} 0 0 3\r\nabc\r\nget {key}\r\n").as_bytes());
        assert_eq!(other.get("innocent"), None);
        client.expect(format!("STORED\r\nVALUE {key} 0 3\r\nabc\r\nEND\r\n").as_bytes());
        assert_eq!(client.execute(&format!("append {key} 0 0 1\r\nd")), "STORED");
        assert_eq!(client.execute(&format!("incr {key} 1")).split(' ').next(), Some("CLIENT_ERROR"));
        assert_eq!(client.delete(key), "DELETED");
    }
}

#[test]
fn a_meta_key_that_looks_like_tags_is_no_change_of_what_stands_behind_them() {
    let servers = memcacheds(1);
    let rules = [guarded("all", "g:*", &format!("{RULE}\ninvalidates = [\"changes\"]"))];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let mut client = kennel.client();
    assert_eq!(run(&mut client, "ms @tags:posts:g:k 1\r\nx"), show(b"HD\r\n"));
    assert_eq!(run(&mut client, "mg @tag:changes"), show(b"EN\r\n"));
    assert_eq!(client.execute("set @tags:posts:g:k 0 0 1\r\nx"), "STORED");
    assert_eq!(run(&mut client, "mg @tag:changes"), show(b"HD\r\n"));
}

#[test]
fn a_value_that_is_refused_as_too_large_takes_the_old_one_with_it_behind_tags_too() {
    let (_servers, kennel) = world();
    let mut client = kennel.client();
    assert_eq!(client.execute("set g:k 0 0 3\r\nold"), "STORED");
    let large = "x".repeat(1_100_000);
    let set = format!("set @tags:posts:g:k 0 0 {}\r\n{large}", large.len());
    assert_eq!(client.execute(&set), "SERVER_ERROR object too large for cache");
    assert_eq!(client.get("g:k"), None);
}

#[test]
fn a_tag_first_named_at_the_set_is_safe_too() {
    let servers = memcacheds(1);
    let gate = Gate::start(servers[0].address);
    let toml = sidecar_toml(&[gate.address()], &rules());
    let kennel = Kennel::start(&toml);
    let [mut client, mut other] = [(); 2].map(|()| kennel.client());
    // The tag is bumped between the miss and the set: the value may have been built from what the bump invalidates.
    assert_eq!(run(&mut client, "mg g:k v"), show(b"EN\r\n"));
    assert_eq!(other.delete("@tag:late"), "DELETED");
    assert_eq!(run(&mut client, "ms g:k 1 Ptags=late\r\nx"), show(b"HD\r\n"));
    assert_eq!(run(&mut client, "mg g:k v R0"), show(b"VA 1 X W\r\nx\r\n"), "not fresh for a moment");
    // The second time, the tag is known at the miss.
    assert_eq!(run(&mut client, "ms g:k 1 Ptags=late\r\ny"), show(b"HD\r\n"));
    assert_eq!(run(&mut client, "mg g:k v"), show(b"VA 1\r\ny\r\n"));
    // A bump during that rebuild makes it stale.
    other.delete("@tag:late");
    assert_eq!(run(&mut client, "mg g:k v R0"), show(b"VA 1 X W\r\ny\r\n"));
    other.delete("@tag:late");
    assert_eq!(run(&mut client, "ms g:k 1 Ptags=late\r\nz"), show(b"HD\r\n"));
    assert_eq!(run(&mut client, "mg g:k v R0"), show(b"VA 1 X W\r\nz\r\n"));
}

#[test]
fn no_command_makes_a_value_fresh_whose_own_tag_has_moved() {
    let (_servers, kennel) = world();
    let mut client = kennel.client();
    for (command, reply) in [
        ("incr g:k 1", "NOT_FOUND"),
        ("append g:k 0 0 1\r\n1", "NOT_STORED"),
        ("touch g:k 100", "NOT_FOUND"),
        ("replace g:k 0 0 1\r\n1", "NOT_STORED"),
        ("ma g:k", "NF"),
    ] {
        eventually("it is stored fresh", || {
            run(&mut client, "mg g:k v");
            run(&mut client, "ms g:k 1 Ptags=posts\r\n5");
            run(&mut client, "mg g:k v") == show(b"VA 1\r\n5\r\n")
        });
        client.delete("@tag:posts");
        assert_eq!(client.execute(command), reply, "{command}");
        client.delete("g:k");
    }
    // A command that changes a fresh value keeps its tags.
    for (command, reply) in [
        ("incr g:k 1", "6"),
        ("append g:k 0 0 1\r\n1", "STORED"),
        ("prepend g:k 0 0 1\r\n1", "STORED"),
        ("touch g:k 100", "TOUCHED"),
    ] {
        eventually("it is stored fresh", || {
            run(&mut client, "mg g:k v");
            run(&mut client, "ms g:k 1 Ptags=posts\r\n5");
            run(&mut client, "mg g:k v") == show(b"VA 1\r\n5\r\n")
        });
        assert_eq!(client.execute(command), reply, "{command}");
        client.delete("@tag:posts");
        assert!(run(&mut client, "mg g:k v R0").contains(" X"), "{command}");
        client.delete("g:k");
    }
}

#[test]
fn bad_tags_are_refused_with_a_sentence() {
    let (_servers, kennel) = world();
    let mut client = kennel.client();
    let many: Vec<String> = (0..17).map(|n| format!("t{n}")).collect();
    for bad in [many.join(","), "a%4".into(), "%zz".into()] {
        let reply = run(&mut client, &format!("ms g:k 1 Ptags={bad}\r\nx"));
        assert!(
            reply.starts_with("CLIENT_ERROR bad tags: at most 16 names, separated by commas"),
            "{bad}: {reply}"
        );
        let reply = client.execute(&format!("set @tags:{bad}:g:k 0 0 1\r\nx"));
        assert!(
            reply.starts_with("CLIENT_ERROR bad tags: at most 16 names, separated by commas"),
            "{bad}: {reply}"
        );
        client.send(format!("set @tags:{bad}:g:k 0 0 1 noreply\r\nx\r\nmn\r\n").as_bytes());
        client.expect(b"MN\r\n");
    }
    assert_eq!(run(&mut client, "ms g:k 1 Ptags=,,\r\nx\r\nmg g:k v"), show(b"HD\r\nVA 1\r\nx\r\n"));
}
