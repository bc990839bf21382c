//! Keys that are observed: they are forwarded as raw keys are, and what their clients build is counted.

use std::process::Command;

use serde_json::Value;

use crate::binary::packet::BinaryClient;
use crate::client::Client;
use crate::world::{Kennel, Memcached, addresses, direct, guarded, memcacheds, raw, sidecar_toml, temp_dir};

/// A rule of `kind = "observe"`.
fn observed(name: &str, pattern: &str) -> String {
    raw(name, pattern).replace("\"raw\"", "\"observe\"")
}

fn world(rules: &[String], more: &str) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&format!("{}{more}", sidecar_toml(&addresses(&servers), rules)));
    (servers, kennel)
}

/// Builds, and those that a guard would have spared.
fn builds(kennel: &Kennel, rule: &str) -> (f64, f64) {
    let (metrics, rule) = (kennel.metrics(), format!("rule={rule:?}"));
    let count = |name: &str| metrics.sum(name, &[&rule]);
    (count("kennel_observed_builds_total"), count("kennel_observed_spared_builds_total"))
}

/// All clients miss the key, and then each stores it.
fn pile(clients: &mut [Client], key: &str) {
    for client in clients.iter_mut() {
        assert_eq!(client.get(key), None);
    }
    for client in clients {
        assert_eq!(client.set(key, b"built", 60), "STORED");
    }
}

#[test]
fn what_clients_build_for_observed_keys_is_counted_and_the_keys_are_raw() {
    let (servers, kennel) = world(&[observed("pages", "page:*"), raw("rest", "*")], "");
    let mut clients: Vec<Client> = (0..5).map(|_| kennel.client()).collect();
    pile(&mut clients, "page:1");
    assert_eq!(builds(&kennel, "pages"), (5.0, 4.0));
    assert_eq!(direct(&servers[0]).get("page:1").as_deref(), Some(&b"built"[..]), "no header");
    let metrics = kennel.metrics();
    assert_eq!(metrics.sum("kennel_observed_builds_at_once", &["rule=\"pages\""]), 5.0);
    let seconds = |name: &str| metrics.sum(name, &["rule=\"pages\""]);
    let spared = seconds("kennel_observed_spared_build_seconds_total");
    assert!(0.0 < spared && spared <= seconds("kennel_observed_build_seconds_total"), "{spared}");
    // A store without a miss is no build, nor is a miss without a store, nor a hit.
    clients[0].store("page:2", b"v", 60);
    assert_eq!(clients[1].get("page:3"), None);
    assert!(clients[1].get("page:1").is_some());
    assert_eq!(builds(&kennel, "pages"), (5.0, 4.0));
    // One client after the other.
    for client in &mut clients[..2] {
        client.send(b"delete page:1\r\n");
        client.expect(b"DELETED\r\n");
        pile(std::slice::from_mut(client), "page:1");
    }
    assert_eq!(builds(&kennel, "pages"), (7.0, 4.0));
    // A raw rule is not observed.
    pile(&mut clients, "other:1");
    assert_eq!(builds(&kennel, "rest"), (0.0, 0.0));
    let page = kennel.http("/page.json");
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    let page: Value = serde_json::from_str(body).expect("JSON");
    let row = &page["rules"][0];
    assert_eq!((&row["kind"], &row["observed"]["builds"]), (&"observe".into(), &7.into()));
    assert_eq!(
        (&row["observed"]["spared_builds"], &row["observed"]["builds_at_once"]),
        (&4.into(), &5.into())
    );
}

#[test]
fn builds_of_meta_and_binary_clients_and_of_a_get_of_several_keys_are_counted() {
    let (_servers, kennel) = world(&[observed("all", "*")], "");
    let mut client = kennel.client();
    client.send(b"mg meta v\r\nms meta 5\r\nbuilt\r\nmg meta v q\r\nmn\r\n");
    client.expect(b"EN\r\nHD\r\nVA 5\r\nbuilt\r\nMN\r\n");
    assert_eq!(builds(&kennel, "all"), (1.0, 0.0));
    client.send(b"get a b c\r\nset a 0 60 1\r\nx\r\nadd c 0 60 1 noreply\r\ny\r\nmn\r\n");
    client.expect(b"END\r\nSTORED\r\nMN\r\n");
    assert_eq!(builds(&kennel, "all"), (3.0, 0.0));
    let mut binary: Vec<BinaryClient> = (0..3).map(|_| BinaryClient::new(kennel.address())).collect();
    binary.iter_mut().for_each(|client| assert_eq!(client.get("binary"), None));
    binary.iter_mut().for_each(|client| assert_eq!(client.set("binary", "built"), 0));
    assert_eq!(builds(&kennel, "all"), (6.0, 2.0));
    // An `add` of a client that was not the first has built all the same.
    let mut other = kennel.client();
    assert_eq!((client.get("added"), other.get("added")), (None, None));
    client.send(b"add added 0 60 1\r\nx\r\n");
    client.expect(b"STORED\r\n");
    other.send(b"add added 0 60 1\r\nx\r\n");
    other.expect(b"NOT_STORED\r\n");
    assert_eq!(builds(&kennel, "all"), (8.0, 3.0));
}

#[test]
fn all_raw_keys_are_observed_if_the_configuration_says_so_and_a_reload_changes_it() {
    let rules = [guarded("pages", "page:*", ""), raw("sessions", "session:*")];
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &rules);
    let all = format!("{toml}[observe]\nall = true\n");
    let kennel = Kennel::start(&all);
    let mut clients: Vec<Client> = (0..3).map(|_| kennel.client()).collect();
    pile(&mut clients, "session:1");
    pile(&mut clients, "x");
    pile(&mut clients[..1], "page:1");
    let all_of = |rule: &str| builds(&kennel, rule);
    assert_eq!((all_of("sessions"), all_of("none"), all_of("pages")), ((3.0, 2.0), (3.0, 2.0), (0.0, 0.0)));
    assert_eq!(kennel.reload(&toml).0, 200);
    pile(&mut clients, "session:2");
    assert_eq!(all_of("sessions"), (3.0, 2.0));
}

#[test]
fn top_lists_the_keys_whose_builds_a_guard_would_spare() {
    let (_servers, kennel) = world(&[observed("pages", "page:*")], "");
    let mut clients: Vec<Client> = (0..4).map(|_| kennel.client()).collect();
    pile(&mut clients, "page:hot");
    pile(&mut clients[..1], "page:cold");
    let admin = kennel.admin().to_string();
    let mut top = Command::new(env!("CARGO_BIN_EXE_kennel"));
    let output =
        top.args(["top", "--by", "spared", "--json", "--admin", &admin]).output().expect("run kennel");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let keys: Vec<&Value> = page["keys"].as_array().expect("a list").iter().map(|row| &row["key"]).collect();
    assert_eq!(keys, ["page:hot"], "{page}");
    assert!(page["keys"][0]["spared"]["per_second"].as_f64() > Some(0.0), "{page}");
}

/// With a share of half of the keys: one that is guarded, and one that is not. docs/decisions/0023 says which.
const GUARDED: &str = "page:1";
const OTHER: &str = "page:0";

/// A rule that guards a share of its keys.
fn share(percent: &str) -> String {
    guarded("pages", "page:*", &format!("share = {percent:?}"))
}

#[test]
fn a_share_of_the_keys_is_guarded_and_the_others_are_observed_beside_them() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[share("50%")]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    let mut client = sidecars[0].client();
    let stored = |key: &str| direct(&servers[0]).get(key).expect("it is stored");
    for n in 0..40 {
        let key = format!("page:{n}");
        pile(std::slice::from_mut(&mut client), &key);
        // The other one sees the same.
        assert_eq!(sidecars[1].client().get(&key).as_deref(), Some(&b"built"[..]), "{key}");
    }
    let is_guarded = |n: &usize| stored(&format!("page:{n}")) != b"built";
    let inside: Vec<usize> = (0..40).filter(is_guarded).collect();
    assert_eq!(inside, [1, 3, 4, 5, 6, 7, 10, 11, 14, 17, 18, 20, 21, 22, 28, 30, 31, 34, 39]);
    assert_eq!(builds(&sidecars[0], "pages"), (21.0, 0.0));
    let guarded = || sidecars[0].metrics().sum("kennel_guarded_builds_total", &["rule=\"pages\""]);
    assert_eq!(guarded(), 19.0);
    // One client builds a guarded key, and all clients the other one.
    let mut clients: Vec<Client> = (0..4).map(|_| sidecars[0].client()).collect();
    clients[0].send(format!("delete {GUARDED}\r\ndelete {OTHER}\r\n").as_bytes());
    clients[0].expect(b"DELETED\r\nDELETED\r\n");
    pile(&mut clients, OTHER);
    pile(&mut clients[..1], GUARDED);
    clients[1..].iter_mut().for_each(|client| assert!(client.get(GUARDED).is_some()));
    assert_eq!((builds(&sidecars[0], "pages"), guarded()), ((25.0, 3.0), 20.0));
}

#[test]
fn a_build_that_began_before_the_share_was_raised_does_not_undo_a_delete_after_it() {
    let servers = memcacheds(1);
    let toml = |percent: &str| sidecar_toml(&addresses(&servers), &[share(percent)]);
    let sidecar = Kennel::start(&toml("0%"));
    let [mut builder, mut other, mut quick] = [(); 3].map(|()| sidecar.client());
    assert_eq!((builder.get("page:1"), other.get("page:2"), quick.get("page:3")), (None, None, None));
    assert_eq!(quick.set("page:3", b"built", 60), "STORED");
    assert_eq!(sidecar.reload(&toml("100%")).0, 200);
    let mut editor = sidecar.client();
    editor.send(b"delete page:1\r\n");
    editor.expect(b"NOT_FOUND\r\n");
    assert_eq!(builder.set("page:1", b"old", 60), "STORED");
    assert_eq!(editor.get("page:1"), None, "a value from before the delete");
    assert_eq!(editor.set("page:1", b"new", 60), "STORED");
    assert_eq!(builder.get("page:1").as_deref(), Some(&b"new"[..]));
    // What was stored before is served, and a build that has ended is no reason to drop what its client stores next.
    assert_eq!(quick.get("page:3").as_deref(), Some(&b"built"[..]));
    assert_eq!(quick.set("page:3", b"next", 60), "STORED");
    assert_eq!(editor.get("page:3").as_deref(), Some(&b"next"[..]));
}

/// What `kennel suggest` prints, and whether it succeeds.
fn suggest(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kennel"))
        .arg("suggest")
        .args(arguments)
        .output()
        .expect("run kennel");
    let text = if output.status.success() { output.stdout } else { output.stderr };
    assert!(output.status.success() || output.status.code() == Some(1), "{:?}", output.status);
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn rules_for_what_a_sidecar_has_observed_are_a_configuration_that_check_accepts() {
    let servers = memcacheds(1);
    let toml = format!("{}[observe]\nall = true\n", sidecar_toml(&addresses(&servers), &[]));
    let kennel = Kennel::start(&toml);
    let admin = kennel.admin().to_string();
    let (is_good, why) = suggest(&["--admin", &admin]);
    assert!(!is_good && why.contains("nothing has been observed"), "{why}");
    let mut clients: Vec<Client> = (0..3).map(|_| kennel.client()).collect();
    for n in 0..5 {
        pile(&mut clients, &format!("post:{n}"));
        pile(&mut clients[..1], &format!("post:{n}:comments"));
        clients[0].send(b"set hits:1 0 60 1\r\n1\r\nincr hits:1 1\r\nincr hits:1 1\r\n");
        clients[0].expect(b"STORED\r\n2\r\n3\r\n");
    }
    let (is_good, text) = suggest(&["--admin", &admin]);
    assert!(is_good && text.contains("# 15 builds; a guard would have spared 10 (66 %)"), "{text}");
    for expected in [
        "match = \"post:{post}\"",
        "match = \"post:{post}:comments\"",
        "tags = [\"post:{post}\"]",
        "kind = \"counter\"",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let directory = temp_dir();
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("suggested.toml");
    std::fs::write(&file, format!("[pools.main]\nservers = [\"10.0.0.1:11211\"]\n\n{text}")).expect("write");
    let check =
        Command::new(env!("CARGO_BIN_EXE_kennel")).arg("check").arg(&file).output().expect("run kennel");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    // No recording.
    for text in ["", "[pools.main]\n"] {
        std::fs::write(&file, text).expect("write");
        let (is_good, why) = suggest(&[file.to_str().expect("text")]);
        assert!(!is_good && why.contains("kennel trace --json"), "{why}");
    }
    let (is_good, why) = suggest(&["/no/such/recording"]);
    assert!(!is_good && why.contains("/no/such/recording"), "{why}");
    let _ = std::fs::remove_dir_all(directory);
}
