//! Rules that invalidate: a change of one of their keys also bumps tags, and is acknowledged once both are done.

use crate::client::{Client, show};
use crate::gate::Gate;
use crate::world::{Kennel, addresses, direct, guarded, memcacheds, raw, sidecar_toml};

const PAGES: &str = "stale_for = \"60s\"\ncold_wait = \"0ms\"\ntags = [\"blog:{blog}\"]\non_tag = \"drop\"";
const BLOGS: &str = "cold_wait = \"0ms\"\ninvalidates = [\"blog:{blog}\", \"blogs\"]";

fn rules() -> [String; 3] {
    let raw = raw("raw-blogs", "raw:{blog}") + "invalidates = [\"blog:{blog}\", \"blogs\"]\n";
    [guarded("pages", "page:{blog}:*", PAGES), guarded("blogs", "blog:{blog}", BLOGS), raw]
}

fn version(client: &mut Client, tag: &str) -> Option<u64> {
    client.get(&format!("@tag:{tag}")).map(|text| String::from_utf8_lossy(&text).parse().expect("a version"))
}

#[test]
fn every_change_of_a_key_bumps_its_tags_and_nothing_else_does() {
    let servers = memcacheds(3);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules()));
    let mut client = kennel.client();
    for key in ["blog:7", "raw:7"] {
        // The command, and whether it is a change.
        let steps = [
            (format!("add {key} 0 0 1\r\n1"), "STORED", true),
            (format!("add {key} 0 0 1\r\n1"), "NOT_STORED", false),
            (format!("set {key} 0 0 1\r\n1"), "STORED", true),
            (format!("replace {key} 0 0 1\r\n2"), "STORED", true),
            (format!("append {key} 0 0 1\r\n2"), "STORED", true),
            (format!("prepend {key} 0 0 1\r\n2"), "STORED", true),
            (format!("cas {key} 0 0 1 99999999\r\n2"), "EXISTS", false),
            (format!("incr {key} 1"), "223", true),
            (format!("decr {key} 1"), "222", true),
            (format!("incr {key} x"), "CLIENT_ERROR invalid numeric delta argument", false),
            (format!("touch {key} 0"), "TOUCHED", false),
            (format!("mg {key} s"), "HD s3", false),
            (format!("ms {key} 1\r\n5"), "HD", true),
            (format!("ms {key} 1 ME\r\n5"), "NS", false),
            (format!("ma {key}"), "HD", true),
            (format!("ma {key} v"), "VA 1\r\n7", true),
            (format!("md {key} C99999999"), "EX", false),
            (format!("md {key}"), "HD", true),
            (format!("incr {key} 1"), "NOT_FOUND", false),
            (format!("replace {key} 0 0 1\r\n2"), "NOT_STORED", false),
            (format!("delete {key}"), "NOT_FOUND", true),
            (format!("set {key} 0 0 1 noreply\r\n1\r\nmn"), "MN", true),
            (format!("ms {key} 1 q\r\n1\r\nmn"), "MN", true),
            (format!("md {key} q\r\nmn"), "MN", true),
            (format!("get {key}"), "END", false),
        ];
        for (command, reply, changes) in steps {
            let before = [version(&mut client, "blog:7"), version(&mut client, "blogs")];
            client.send(format!("{command}\r\n").as_bytes());
            client.expect(format!("{reply}\r\n").as_bytes());
            let after = [version(&mut client, "blog:7"), version(&mut client, "blogs")];
            assert_eq!(before < after, changes, "{command}: {before:?} {after:?}");
            assert_eq!(before[0] < after[0], before[1] < after[1], "{command}");
        }
    }
    assert_eq!(version(&mut client, "blog:8"), None, "another blog's tag");
}

#[test]
fn what_is_built_from_a_key_is_gone_once_its_change_is_acknowledged() {
    let servers = memcacheds(3);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules()));
    let mut client = kennel.client();
    for change in ["set blog:7 0 0 1\r\nx", "set raw:7 0 0 1\r\nx", "delete blog:7", "ms raw:7 1 O1\r\nx"] {
        client.store("page:7:home", b"old", 0);
        assert_eq!(client.get("page:7:home").as_deref(), Some(&b"old"[..]));
        client.execute(change);
        assert_eq!(client.get("page:7:home"), None, "{change}");
    }
    // Also in one write.
    client.store("page:7:home", b"old", 0);
    client.send(b"set raw:7 0 0 1 noreply\r\nx\r\nget page:7:home\r\n");
    client.expect(b"END\r\n");
}

#[test]
fn a_change_whose_tags_cannot_be_bumped_is_not_acknowledged() {
    let mut servers = memcacheds(2);
    let toml = sidecar_toml(&addresses(&servers[..1]), &rules())
        + &format!("[pools.tags]\nservers = [\"{}\"]\n[tags]\npool = \"tags\"\n", servers[1].address());
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    assert_eq!(client.execute("set blog:7 0 0 1\r\nx"), "STORED");
    servers[1].kill();
    for change in ["set blog:7 0 0 1\r\ny", "set raw:7 0 0 1\r\ny", "delete raw:7", "ms raw:7 1 q\r\nx"] {
        let reply = client.execute(change);
        assert!(reply.starts_with("SERVER_ERROR"), "{change}: {reply}");
    }
    client.send(b"set raw:7 0 0 1 noreply\r\nz\r\nmn\r\n");
    client.expect(b"MN\r\n");
    assert_eq!(direct(&servers[0]).get("raw:7").as_deref(), Some(&b"z"[..]));
}

#[test]
fn a_change_is_acknowledged_only_behind_its_bump() {
    let servers = memcacheds(2);
    let gate = Gate::start(servers[1].address);
    let toml = sidecar_toml(&addresses(&servers[..1]), &rules())
        + &format!("[pools.tags]\nservers = [\"{}\"]\n[tags]\npool = \"tags\"\n", gate.address());
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    gate.hold("ms @tag:blogs");
    client.send(b"set raw:7 0 0 1\r\nx\r\n");
    gate.until_held();
    assert_eq!(direct(&servers[0]).get("raw:7").as_deref(), Some(&b"x"[..]), "the change is made");
    client.silent_for(std::time::Duration::from_millis(50));
    gate.release();
    assert_eq!(show(client.line().as_bytes()), "STORED");
}

#[test]
fn a_change_that_an_invalidation_has_overtaken_is_one_too_for_it_is_acknowledged() {
    let servers = memcacheds(3);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules()));
    let [mut client, mut other] = [(); 2].map(|()| kennel.client());
    for (change, reply, changes) in [
        ("set blog:7 0 0 1\r\nx", "STORED", true),
        // Its reply is accurate: nothing was removed.
        ("add blog:7 0 0 1\r\nx", "NOT_STORED", false),
        ("ms blog:7 1\r\nx", "HD", true),
    ] {
        assert_eq!(client.get("blog:7"), None);
        other.delete("blog:7");
        let before = version(&mut other, "blog:7");
        assert_eq!(client.execute(change), reply);
        assert_eq!(other.get("blog:7"), None, "{change} was dropped");
        assert_eq!(before < version(&mut other, "blog:7"), changes, "{change}");
        // The read is a miss of the other client, whose own set is to be dropped.
        other.delete("blog:7");
    }
}
