//! README's steps from no rule to a guarded one and back do what it says, command by command.

use std::path::Path;
use std::process::Command;

use crate::client::Client;
use crate::world::{Kennel, addresses, free_address, memcacheds, temp_dir};

const README: &str = include_str!("../../README.md");

/// The blocks of code under this heading, each with its language.
fn blocks(heading: &str) -> Vec<(&'static str, &'static str)> {
    let section =
        README.split("\n## ").find_map(|section| section.strip_prefix(heading)).expect("the section");
    let blocks = section.split("```").skip(1).step_by(2);
    blocks.map(|block| block.split_once('\n').expect("a language")).collect()
}

/// Runs a block of commands with the configuration of this directory, and returns what it prints.
fn run(commands: &str, dir: &Path) -> String {
    let here = Path::new(env!("CARGO_BIN_EXE_kennel")).parent().expect("a directory").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.args(["-ec", commands]).env("PATH", format!("{here}:{path}"));
    let output = shell.env("KENNEL_CONFIG", dir.join("kennel.toml")).output().expect("run sh");
    assert!(output.status.success(), "{commands}\n{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// All of them miss the key, and each stores it.
fn pile(clients: &mut [Client], key: &str) {
    for client in clients.iter_mut() {
        assert_eq!(client.get(key), None);
    }
    for client in clients {
        client.store(key, b"v", 60);
    }
}

#[test]
fn turning_it_on_and_back_goes_as_readme_says() {
    let servers = memcacheds(3);
    let steps = blocks("Turn it on\n");
    let languages: Vec<&str> = steps.iter().map(|(language, _)| *language).collect();
    assert_eq!(languages, ["toml", "sh", "sh", "toml", "sh", "toml", "sh", "toml", "sh"]);
    let [
        (_, file),
        (_, start),
        (_, suggest),
        (_, rule),
        (_, share),
        (_, tags),
        (_, all),
        (_, raw),
        (_, back),
    ] = steps[..]
    else {
        unreachable!("just checked")
    };

    let admin = free_address();
    let sockets = temp_dir();
    let mut file = file.replace("/run/kennel", &sockets.display().to_string());
    file = file.replace(
        "[admin]\n",
        &format!("[listen]\ntcp = [\"127.0.0.1:0\"]\n\n[admin]\nlisten = \"{admin}\"\n"),
    );
    for (at, address) in addresses(&servers).iter().enumerate() {
        file = file.replace(&format!("10.0.0.{}:11211", at + 1), address);
    }
    let run_there = |commands: &str, kennel: &Kennel| {
        run(&commands.replace("127.0.0.1:9111", &admin.to_string()), kennel.dir())
    };
    let become_with = |rule: &str, commands: &str, kennel: &Kennel| {
        kennel.write_config(&format!("{file}\n{rule}"));
        run_there(commands, kennel)
    };

    let kennel = Kennel::start(&file);
    let (check, _) =
        start.split_once("\nkennel    # ").expect("the line that starts it, as this test has done");
    let checked = run_there(check, &kennel);
    assert!(checked.contains("Without protection in pool main"), "{checked}");
    let mut clients: Vec<Client> = (0..5).map(|_| kennel.client()).collect();
    for post in 0..20 {
        pile(&mut clients, &format!("post:{post}"));
        pile(&mut clients, &format!("post:{post}:comments"));
    }
    let suggested = run_there(suggest, &kennel);
    assert!(
        suggested.contains("post:7") && suggested.contains("A guard would have spared 160 of them"),
        "{suggested}"
    );
    // Its durations follow from how long the builds took.
    let proposed =
        rule.lines().filter(|line| ["name", "match", "kind"].iter().any(|key| line.starts_with(key)));
    for line in proposed.chain([tags.trim_end()]) {
        assert!(suggested.contains(line), "{line} is not proposed:\n{suggested}");
    }

    let told = become_with(rule, share, &kennel);
    assert!(told.contains("rule \"post\" (match = \"post:{post}\", kind = guarded) is new"), "{told}");
    assert!(told.contains("kennel_observed_spared_builds_total{rule=\"none\"} 160"), "{told}");

    let shared = rule.lines().find(|line| line.starts_with("share = ")).expect("a share");
    let told = become_with(&rule.replace(shared, tags.trim_end()), all, &kennel);
    assert!(told.contains("post:7 "), "{told}");
    let [first, second, ..] = &mut clients[..] else { unreachable!("there are five") };
    assert_eq!(first.get("post:new"), None);
    first.store("post:new", b"old", 60);
    assert_eq!(second.delete("@tag:post:new"), "DELETED");
    assert_eq!(first.get("post:new"), None, "one client builds");
    assert_eq!(second.get("post:new").as_deref(), Some(&b"old"[..]), "the others receive the old value");
    first.store("post:new", b"new", 60);

    become_with(raw, back, &kennel);
    assert_eq!(second.get("post:new").as_deref(), Some(&b"new"[..]), "without the header");
    pile(&mut clients, "post:raw");
    std::fs::remove_dir_all(sockets).expect("remove the directory");
}
