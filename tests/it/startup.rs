//! What a process that starts prints: lines of its log alone, in the format that was asked for.

use std::process::{Command, Output};

use crate::world::{Kennel, addresses, eventually, memcacheds, sidecar_toml, temp_dir};

/// Runs `kennel --config` until it ends.
fn refused(toml: &str, arguments: &[&str], rust_log: &str) -> Output {
    let dir = temp_dir();
    let file = dir.join("kennel.toml");
    std::fs::write(&file, toml).expect("write the configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    let output = command.arg("--config").arg(&file).args(arguments).env("RUST_LOG", rust_log).output();
    let _ = std::fs::remove_dir_all(dir);
    output.expect("kennel runs")
}

#[test]
fn every_mistake_of_a_configuration_is_a_line_of_the_log() {
    let toml = "color = 1\n[pools.main]\nservers = []\n";
    for (format, begins) in [("json", "{\"timestamp\":\""), ("text", "2")] {
        let output = refused(toml, &["--log-format", format], "");
        assert_eq!(output.status.code(), Some(1));
        let log = String::from_utf8(output.stderr).expect("text");
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert!(lines.iter().all(|l| l.starts_with(begins) && l.contains("ERROR")), "{log}");
        assert!(
            lines[0].contains("color is not a known key") && lines[1].contains("pools.main.servers"),
            "{log}"
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}

#[test]
fn a_wrong_rust_log_is_reported_in_the_format_of_the_log() {
    let output = refused("", &["--log-format", "json"], "kennel=loud");
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.starts_with('{') && log.contains("RUST_LOG=") && log.lines().count() == 1, "{log}");
}

#[test]
fn a_server_has_the_same_name_in_the_log_the_metrics_and_on_the_page() {
    let servers = memcacheds(2);
    let addresses = addresses(&servers);
    let toml = sidecar_toml(&addresses, &[]);
    let named = format!("{{ address = {:?}, name = \"alpha\" }}", addresses[0]);
    let toml = toml.replacen(&format!("{:?}", addresses[0]), &named, 1);
    assert!(toml.contains(&named), "{toml}");
    let kennel = Kennel::start(&toml);
    kennel.client().store("key", b"value", 0);
    for (name, address) in [("alpha", &addresses[0]), (&*addresses[1], &addresses[1])] {
        let logged = format!("connected server={name:?} address={address} ");
        eventually("the log names the server", || kennel.log().contains(&logged));
        let up = kennel.metrics().sum("kennel_upstream_up", &[&format!("server={name:?}")]);
        assert!(up > 0.0, "{name} in the metrics");
        let page = kennel.http("/page.json");
        assert!(page.contains(&format!("{name:?}")), "{name} in {page}");
    }
    assert!(
        !kennel.http("/page.json").contains(&format!(r#""name":"{}""#, addresses[0])),
        "a named server is shown by its name"
    );
}

#[test]
fn a_variable_names_the_file_for_the_sidecar_and_for_each_command() {
    let dir = temp_dir();
    let file = dir.join("kennel.toml");
    std::fs::write(&file, "[pools.main]\nservers = [\"10.0.0.1:1\"]\n[admin]\nlisten = \"127.0.0.1:1\"\n")
        .expect("write it");
    let run = |arguments: &[&str], named: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        let output = command.args(arguments).env("KENNEL_CONFIG", named).output().expect("kennel runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let named = file.to_str().expect("UTF-8");
    let (code, text) = run(&["check"], named);
    assert!(code == Some(0) && text.starts_with(&format!("{named} is valid.")), "{text}");
    let (code, text) = run(&["health"], named);
    assert!(code == Some(1) && text.contains("127.0.0.1:1"), "{text}");
    let (code, text) = run(&["check", "-c", "/nowhere/a.toml"], named);
    assert!(code == Some(1) && text.contains("/nowhere/a.toml: cannot be read"), "{text}");
    let (code, text) = run(&[], "/nowhere/b.toml");
    assert!(code == Some(1) && text.contains("/nowhere/b.toml: cannot be read"), "{text}");
    let (code, text) = run(&["check"], "");
    assert_eq!((code, &*text), (Some(1), "kennel check: there is no configuration file: name one\n"));
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_mistyped_command_is_answered_with_the_one_that_was_meant() {
    let output = Command::new(env!("CARGO_BIN_EXE_kennel")).arg("chekc").output().expect("kennel runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("'check'"), "{text}");
}

#[test]
fn the_log_begins_with_the_version_and_the_configuration_and_then_says_ready() {
    let servers = memcacheds(1);
    let rule = "[[rules]]\nname = \"pages\"\nmatch = \"page:*\"\n";
    let kennel = Kennel::start(&format!("{}{rule}", sidecar_toml(&addresses(&servers), &[])));
    eventually("it says that it is ready", || kennel.log().contains("ready\n"));
    let log = kennel.log();
    let first = log.lines().next().unwrap_or_default();
    for part in ["starting version=", env!("CARGO_PKG_VERSION"), "kennel.toml", "fingerprint=", "pages"] {
        assert!(first.contains(part), "{part} in {log}");
    }
    let position = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text} in {log}"));
    assert!(position("listening for operators") < position("ready\n"), "{log}");
}

#[test]
fn each_shell_has_completions() {
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef kennel"), ("fish", "complete -c kennel")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_kennel")).args(["completions", shell]).output();
        let text = String::from_utf8_lossy(&output.expect("kennel runs").stdout).into_owned();
        assert!(text.contains(part) && text.contains("explain"), "{shell}: {text}");
    }
}
