//! A reload that would lose something is refused, and what a configuration would change is told in words before.

use std::path::Path;
use std::process::{Command, Output};

use crate::world::{
    Kennel, addresses, eventually, guarded, memcacheds, raw, sidecar_toml, temp_dir, without_failover,
};

fn hash(kennel: &Kennel) -> Vec<String> {
    let metrics = kennel.metrics();
    metrics.0.keys().filter(|series| series.starts_with("kennel_config_info{")).cloned().collect()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kennel")).args(arguments).output().expect("run kennel")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The check of a file against what runs at an address, or against another file.
fn check(file: &Path, against: &str) -> (bool, String) {
    let output = run(&["check", "--against", against, &file.display().to_string()]);
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn servers_that_change_in_one_reload_are_refused_unless_it_is_forced() {
    let servers = memcacheds(3);
    let all = addresses(&servers);
    let toml = |servers: &[String]| without_failover(&sidecar_toml(servers, &[guarded("pages", "*", "")]));
    let kennel = Kennel::start(&toml(&all[..2]));
    let before = hash(&kennel);
    let mut client = kennel.client();
    client.store("a", b"v", 600);
    let next = toml(&[all[0].clone(), all[2].clone()]);
    let (status, why) = kennel.reload(&next);
    assert_eq!((status, hash(&kennel)), (422, before.clone()), "{why}");
    let lists = [&all[..2], &[all[0].clone(), all[2].clone()]].map(|list| format!("{list:?}"));
    for step in [
        format!("servers = {}, next = {}", lists[0], lists[1]),
        format!("servers = {}, previous = {}", lists[1], lists[0]),
        format!("servers = {}, previous = {}, take_over = false", lists[1], lists[0]),
        "kennel reload --force".to_owned(),
    ] {
        assert!(why.contains(&step), "{step} is not in:\n{why}");
    }
    assert!(kennel.http("/readyz").contains("would lose something"), "{}", kennel.http("/readyz"));
    assert_eq!(kennel.metrics().sum("kennel_config_last_reload_successful", &[]), 0.0);
    // A signal cannot force.
    kennel.hang_up();
    eventually("the signal is refused", || kennel.log().matches("the configuration is refused").count() == 2);
    assert_eq!((hash(&kennel), client.get("a").as_deref()), (before.clone(), Some(&b"v"[..])));
    // What would change is told, and nothing changes.
    let (status, report) = kennel.reload_by("/reload?dry_run=1", &next);
    assert!(status == 422 && report.contains("pool \"main\": its servers change in one step"), "{report}");
    let (status, changes) = kennel.force(&next);
    assert_eq!(status, 200, "{changes}");
    assert_ne!(hash(&kennel), before);
    assert!(kennel.log().contains("forced: pool"), "{}", kennel.log());
    assert!(!kennel.http("/readyz").contains("would lose"), "{}", kennel.http("/readyz"));
}

#[test]
fn the_steps_that_a_refusal_names_are_taken_one_by_one() {
    let servers = memcacheds(3);
    let all = addresses(&servers);
    let (old, new) = (all[..2].to_vec(), vec![all[0].clone(), all[2].clone()]);
    let toml = |servers: &[String], more: &str| {
        let toml = without_failover(&sidecar_toml(servers, &[guarded("pages", "*", "")]));
        toml.replacen("[pools.main]\n", &format!("[pools.main]\n{more}\n"), 1)
    };
    let kennel = Kennel::start(&toml(&old, ""));
    for (servers, more) in [
        (&old, format!("next = {new:?}")),
        (&new, format!("previous = {old:?}")),
        (&new, format!("previous = {old:?}\ntake_over = false")),
        (&new, String::new()),
    ] {
        let (status, changes) = kennel.reload(&toml(servers, &more));
        assert_eq!(status, 200, "{changes}");
    }
}

#[test]
fn tags_that_go_are_refused_and_told_by_the_name_of_the_rule() {
    let servers = memcacheds(1);
    let toml = |keys: &str, more: &str| {
        sidecar_toml(&addresses(&servers), &[raw("first", "f:*"), guarded("pages", "page:*", keys)]) + more
    };
    let kennel = Kennel::start(&toml("tags = [\"all\"]", ""));
    for (next, expected) in [
        (toml("", ""), "rule \"pages\" stops having the tags \"all\""),
        (toml("tags = [\"all\"]", "[tags]\nprefix = \"other:\"\n"), "tags.prefix: \"@tag:\" → \"other:\""),
    ] {
        let (status, why) = kennel.reload(&next);
        assert!(status == 422 && why.contains(expected) && !why.contains("rules["), "{why}");
    }
}

#[test]
fn a_check_tells_what_a_file_would_change_of_a_running_sidecar_and_of_another_file() {
    let (dir, servers) = (temp_dir(), memcacheds(2));
    let all = addresses(&servers);
    let toml = |servers: &[String], keys: &str| {
        without_failover(&sidecar_toml(servers, &[guarded("pages", "page:*", keys), raw("all", "*")]))
    };
    let before = toml(&all, "tags = [\"all\"]");
    let kennel = Kennel::start(&before);
    let (old, file) = (dir.join("old.toml"), dir.join("new.toml"));
    std::fs::write(&old, &before).expect("write");
    let running = format!("http://{}", kennel.admin());
    for against in [running, kennel.admin().to_string(), old.display().to_string()] {
        let told = |text: &str| {
            std::fs::write(&file, text).expect("write");
            check(&file, &against)
        };
        let (good, report) = told(&before);
        assert!(good && report.contains("nothing changes"), "{against}: {report}");
        let (good, report) = told(&toml(&all, "tags = [\"all\"]\nstale_for = \"7s\""));
        assert!(
            good && report.contains("rule \"pages\": stale_for: not set → \"7s\""),
            "{against}: {report}"
        );
        let (good, report) = told(&toml(&all, "").replacen("kind = \"guarded\"", "kind = \"raw\"", 1));
        assert!(good && report.contains("kind guarded → raw"), "{against}: {report}");
        let (good, report) = told(&toml(&all[..1], "tags = [\"all\"]"));
        assert!(!good && report.contains("its servers change in one step"), "{against}: {report}");
        assert!(!report.contains("rules["), "{report}");
    }
    let (good, why) = check(&file, "http://127.0.0.1:1");
    assert!(!good && why.contains("127.0.0.1:1"), "{why}");
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn the_command_refuses_forces_and_tells() {
    let servers = memcacheds(2);
    let all = addresses(&servers);
    let dir = temp_dir();
    let socket = dir.join("control.sock");
    let toml = |servers: &[String]| {
        let toml = without_failover(&sidecar_toml(servers, &[raw("all", "*")]));
        toml.replacen("[admin]\n", &format!("[admin]\ncontrol = {socket:?}\n"), 1)
    };
    let kennel = Kennel::start(&toml(&all));
    let before = hash(&kennel);
    let control = socket.display().to_string();
    let reload = |more: &[&str]| {
        let output = run(&[&["reload", "--control", &control], more].concat());
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    kennel.write_config(&toml(&all[..1]));
    for more in [&[][..], &["--dry-run"][..]] {
        let (good, why) = reload(more);
        assert!(!good && why.contains("its servers change in one step"), "{why}");
        assert_eq!(hash(&kennel), before);
    }
    let (good, why) = reload(&["--force"]);
    assert!(good && hash(&kennel) != before, "{why}");
    kennel
        .write_config(&toml(&all[..1]).replace("request_timeout = \"500ms\"", "request_timeout = \"600ms\""));
    let (good, report) = reload(&["--dry-run"]);
    assert!(good && report.contains("request_timeout: \"500ms\" → \"600ms\""), "{report}");
    let _ = std::fs::remove_dir_all(dir);
}
