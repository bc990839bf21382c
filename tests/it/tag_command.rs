//! `kennel tag`: every sidecar sees what it does on the servers, and its output is correct.

use std::fs;
use std::process::Command;

use crate::client::Client;
use crate::gate::Gate;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, sidecar_toml, temp_dir,
    version_of, without_failover,
};

const RULE: &str =
    "stale_for = \"60s\"\ncold_wait = \"0ms\"\ntags = [\"posts\", \"blog:{blog}\"]\non_tag = \"drop\"";

/// The command's output.
struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs `kennel tag …` with this configuration, in a file.
fn tag(toml: &str, arguments: &[&str]) -> CommandOutput {
    let dir = temp_dir();
    let file = dir.join("kennel.toml");
    fs::write(&file, toml).expect("write the configuration");
    let output = run(&[&["tag", "--config", file.to_str().expect("UTF-8")], arguments].concat(), &[]);
    fs::remove_dir_all(dir).expect("remove the configuration");
    output
}

fn run(arguments: &[&str], env: &[(&str, &str)]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("KENNEL_")) {
        command.env_remove(name);
    }
    let output = command.args(arguments).envs(env.iter().copied()).output().expect("run kennel");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Bumps tags with this configuration.
pub(crate) fn bump(toml: &str, names: &[String]) {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let output = tag(toml, &[&["bump"], &names[..]].concat());
    assert_eq!(output.code, Some(0), "{}", output.err);
}

/// The version after a name in the output.
fn version(output: &CommandOutput, name: &str) -> u64 {
    let line = output.out.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {:?}, {:?}", output.out, output.err));
    let (version, time) = line.split_once(' ').expect("a version and a time");
    assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
    version.parse().expect("a version")
}

fn fill(client: &mut Client, key: &str) {
    eventually("the value is stored and fresh", || {
        client.get(key);
        client.set(key, b"v", 0) == "STORED" && client.get(key).is_some()
    });
}

/// The tag's version on each server.
fn stored(servers: &[Memcached], name: &str) -> Vec<Option<u64>> {
    let read = |server| direct(server).get(&format!("@tag:{name}"));
    servers.iter().map(|server| read(server).map(|item| version_of(&item))).collect()
}

#[test]
fn a_bump_from_the_command_line_takes_effect_in_every_sidecar_and_on_no_other_tag() {
    let servers = memcacheds(3);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("guarded", "g:{blog}:*", RULE)]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    let [mut here, mut there] = [&sidecars[0], &sidecars[1]].map(Kennel::client);
    for key in ["g:7:k", "g:8:k"] {
        fill(&mut here, key);
        assert_eq!(there.get(key).as_deref(), Some(&b"v"[..]));
    }
    let before = version(&tag(&toml, &["get", "blog:7"]), "blog:7");
    let output = tag(&toml, &["bump", "blog:7"]);
    assert_eq!((output.code, &output.err[..]), (Some(0), ""));
    let bumped = version(&output, "blog:7");
    assert!(bumped > before, "{bumped} after {before}");
    for client in [&mut here, &mut there] {
        assert_eq!(client.get("g:7:k"), None);
        assert_eq!(client.get("g:8:k").as_deref(), Some(&b"v"[..]));
        assert_eq!(client.get("@tag:blog:7"), Some(bumped.to_string().into_bytes()));
    }
    let output = tag(&toml, &["bump", "posts", "blog:9", "posts"]);
    assert_eq!((output.code, output.out.lines().count()), (Some(0), 2), "{}", output.out);
    assert_eq!(here.get("g:8:k"), None);
    assert_eq!(version(&tag(&toml, &["get", "blog:7"]), "blog:7"), bumped, "a get moves nothing");
    drop(sidecars);
    assert!(version(&tag(&toml, &["bump", "blog:7"]), "blog:7") > bumped, "no sidecar runs");
}

#[test]
fn a_name_too_long_for_a_key_is_the_tag_that_a_rule_makes_of_it() {
    let servers = memcacheds(1);
    let rule = "cold_wait = \"0ms\"\ntags = [\"{x}{x}\"]\non_tag = \"drop\"";
    let toml = sidecar_toml(&addresses(&servers), &[guarded("guarded", "p:{x}", rule)]);
    let sidecar = Kennel::start(&toml);
    let mut client = sidecar.client();
    let key = format!("p:{}", "x".repeat(200));
    fill(&mut client, &key);
    let output = tag(&toml, &["bump", &"x".repeat(400)]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!(client.get(&key), None);
}

#[test]
fn an_unknown_tag_is_bumped_with_a_note_and_read_as_having_no_version() {
    let servers = memcacheds(2);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("guarded", "g:{blog}:*", RULE)]);
    let output = tag(&toml, &["get", "psots"]);
    assert_eq!(
        (output.code, &output.out[..]),
        (Some(0), "psots no version: never bumped or read, or lost\n")
    );
    assert!(output.err.contains("no rule gives its keys this tag: psots"), "{}", output.err);
    assert_eq!(stored(&servers, "psots"), [None, None], "a get creates nothing");
    let output = tag(&toml, &["bump", "psots"]);
    assert_eq!(output.code, Some(0));
    assert!(output.err.contains(": psots"), "{}", output.err);
    assert_eq!(version(&tag(&toml, &["get", "psots"]), "psots"), version(&output, "psots"));
    let output = tag(&toml, &["bump", "posts", "@tag:posts"]);
    assert_eq!((output.code, &output.out[..]), (Some(1), ""));
    assert!(output.err.contains("must not include the prefix \"@tag:\""), "{}", output.err);
    assert_eq!(stored(&servers, "posts"), [None, None], "one mistake, and nothing is done");
}

#[test]
fn a_bump_that_a_dead_server_has_not_acknowledged_is_named_and_those_of_living_ones_are_done() {
    let mut servers = memcacheds(2);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("guarded", "g:{blog}:*", RULE)]);
    let names: Vec<String> = (0..16).map(|n| format!("blog:{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let all = tag(&toml, &[&["bump"], &names[..]].concat());
    assert_eq!((all.code, &all.err[..]), (Some(0), ""));
    let lost: Vec<&str> =
        names.iter().copied().filter(|name| stored(&servers[..1], name)[0].is_some()).collect();
    assert!(!lost.is_empty() && lost.len() < names.len(), "both servers have some: {lost:?}");
    let dead = servers[0].address();
    // A suspended server accepts connections; one that has ended does not.
    for gone in [false, true] {
        if gone {
            servers[0].kill();
        } else {
            servers[0].stop();
        }
        for action in ["bump", "get"] {
            let output = tag(&toml, &[&[action], &names[..]].concat());
            assert_eq!(output.code, Some(1), "{}", output.err);
            for name in &names {
                let unknown = output.err.contains(&format!(" {name} ({dead}: cannot be reached)"));
                assert_eq!(unknown, lost.contains(name), "{name} in {}", output.err);
                let printed = output.out.lines().any(|line| line.starts_with(&format!("{name} ")));
                assert_eq!(printed, !unknown, "{name} in {}", output.out);
            }
        }
    }
}

#[test]
fn a_bump_whose_answer_does_not_come_is_given_up_and_not_acknowledged() {
    let server = Memcached::start(&[]);
    let gate = Gate::start(server.address);
    let toml = sidecar_toml(&[gate.address()], &[guarded("guarded", "g:{blog}:*", RULE)]);
    gate.hold("ms @tag:posts");
    let output = tag(&toml, &["bump", "posts", "blog:7"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    let why = format!("posts ({}: did not reply in time)", gate.address());
    assert!(output.err.contains(&why), "{}", output.err);
    gate.release();
    assert_eq!(tag(&toml, &["bump", "posts"]).code, Some(0));
}

#[test]
fn with_two_copies_a_bump_is_on_both_and_one_server_is_enough() {
    let mut servers = memcacheds(3);
    // With failover, a bump needs both copies, and the fleet moves that of a dead server.
    let toml =
        without_failover(&sidecar_toml(&addresses(&servers), &[guarded("guarded", "g:{blog}:*", RULE)]))
            + "[tags]\nreplicas = 2\n";
    let sidecar = Kennel::start(&toml);
    let mut client = sidecar.client();
    let first = version(&tag(&toml, &["bump", "posts"]), "posts");
    let on: Vec<usize> = (0..3).filter(|i| stored(&servers, "posts")[*i] == Some(first)).collect();
    assert_eq!(on.len(), 2, "the same version on two");
    // The value must outlive the server that is lost: it is on the third, or on the other one of the two.
    let lost = on[0];
    let kept = |servers: &[Memcached], key: &str| direct(&servers[lost]).ttl(key).is_none();
    let mut keys = (0..64).map(|n| format!("g:{n}:k"));
    let key = keys.find(|key| {
        fill(&mut client, key);
        kept(&servers, key)
    });
    let key = key.expect("one of 64 keys on another server");
    servers[lost].kill();
    let output = tag(&toml, &["bump", "posts"]);
    assert_eq!((output.code, &output.err[..]), (Some(0), ""));
    let bumped = version(&output, "posts");
    assert!(bumped > first);
    assert_eq!(client.get(&key), None, "the sidecar goes by the copy");
    assert_eq!(version(&tag(&toml, &["get", "posts"]), "posts"), bumped);
    // The old version on a returning server does not count.
    servers[lost].restart();
    direct(&servers[lost]).store("@tag:posts", first.to_string().as_bytes(), 0);
    assert_eq!(version(&tag(&toml, &["get", "posts"]), "posts"), bumped);
    on.iter().for_each(|i| servers[*i].kill());
    let output = tag(&toml, &["bump", "posts"]);
    assert_eq!((output.code, &output.out[..]), (Some(1), ""));
    let both = on.iter().all(|i| output.err.contains(&servers[*i].address()));
    assert!(both && output.err.contains("not acknowledged"), "{}", output.err);
}

#[test]
fn what_cannot_be_done_from_outside_is_refused_with_what_can() {
    let output = run(&["tag", "bump", "posts"], &[]);
    assert_eq!((output.code, &output.out[..]), (Some(1), ""));
    let command = r"printf 'delete @tag:posts\r\nquit\r\n' | nc 127.0.0.1 11211";
    assert!(output.err.contains("--config FILE") && output.err.contains(command), "{}", output.err);
    let output = run(&["tag", "get", "posts", "--config", "/nowhere/kennel.toml"], &[]);
    assert_eq!(output.code, Some(1));
    assert!(output.err.contains("/nowhere/kennel.toml: cannot be read"), "{}", output.err);
    // The environment is the sidecar's too.
    let server = Memcached::start(&[]);
    let env = [("KENNEL_POOLS__MAIN__SERVERS", &server.address()[..]), ("KENNEL_TAGS__CACHE", "250ms")];
    let output = run(&["tag", "bump", "posts"], &env);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!(stored(&[server], "posts"), [Some(version(&output, "posts"))]);
    assert!(output.err.contains("after tags.cache (250ms)"), "{}", output.err);
}
