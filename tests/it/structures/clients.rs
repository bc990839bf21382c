//! Unmodified client libraries use every kind through two sidecars. The scripts are in `clients/`, and docs/structures.md shows their
//! examples.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{Fleet, fleet, recipes, rule, text, with_one_copy_and_two};
use crate::libraries::{go, node, php, python, root, ruby};
use crate::world::{Kennel, Memcached};

// Those of a CAS in classic commands: other clients cannot name that of a table's element if it has copies.
with_one_copy_and_two!(
    pymemcache_uses_every_kind,
    php_memcached_uses_every_kind,
    node_memcached_uses_every_kind,
);

/// Runs a script, which must report each kind. Returns the servers and sidecars that it has used.
fn must_work(
    fleet: Fleet,
    script: &str,
    mut runtime: Command,
    more: &[&str],
) -> (Vec<Memcached>, [Kennel; 2]) {
    let (servers, [a, b]) = fleet(&[
        rule("hits", "hits:*", "counter", ""),
        rule("rate", "rate:*", "window", "window = \"1h\""),
        rule("online", "online:*", "window", "window = \"1h\"\nunique = true"),
        rule("events", "log:*", "log", "window = \"10d\"\nslot = \"1d\""),
        rule("friends", "friends:*", "list", "ttl = \"1h\""),
        rule("carts", "cart:*", "table", "ttl = \"1d\""),
        rule("app_friends", "app:friends:*", "list", ""),
        rule("app_carts", "app:cart:*", "table", ""),
        rule("locks", "lock:*", "lock", ""),
    ]);
    let (address, port, other_port) = (a.address(), a.address().port(), b.address().port());
    runtime.arg(here().join(script)).arg(address.ip().to_string());
    runtime.args([port, other_port].map(|port| port.to_string())).args(more);
    let output =
        runtime.output().unwrap_or_else(|e| panic!("run {script}: {e}; scripts/test installs what it needs"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {}\n{stdout}\n{stderr}", output.status);
    assert_eq!(
        stdout, "OK counter\nOK window\nOK unique window\nOK log\nOK list\nOK table\nOK lock\n",
        "{script}\n{stderr}"
    );
    (servers, [a, b])
}

fn here() -> PathBuf {
    root().join("tests/it/structures/clients")
}

fn pymemcache_uses_every_kind(fleet: Fleet) {
    must_work(fleet, "pymemcache_kinds.py", python(), &[]);
}

#[test]
fn pylibmc_uses_every_kind() {
    must_work(fleet, "pylibmc_kinds.py", python(), &[]);
}

fn php_memcached_uses_every_kind(fleet: Fleet) {
    must_work(fleet, "php_memcached_kinds.php", php(), &[]);
}

#[test]
fn dalli_uses_every_kind() {
    must_work(fleet, "dalli_kinds.rb", ruby(), &["meta"]);
    must_work(fleet, "dalli_kinds.rb", ruby(), &["binary"]);
}

fn node_memcached_uses_every_kind(fleet: Fleet) {
    let (_servers, [sidecar, _]) = must_work(fleet, "node_memcached_kinds.js", node(), &[]);
    // As the page says of a log.
    let entries = text(&mut sidecar.client(), "log:orders");
    assert_eq!(entries.as_deref(), Some("order 17 paid\\\norder 18 paid\\\n"));
}

#[test]
fn gomemcache_uses_every_kind() {
    must_work(fleet, "gomemcache_kinds.go", go(), &[]);
}

/// The lines between "example: NAME" and "end" in a comment, without their common indentation.
fn examples(script: &str) -> Vec<(String, String)> {
    let mut examples = Vec::new();
    let mut current: Option<(String, String)> = None;
    let mut indentation = "";
    for line in script.lines() {
        let comment = line.trim_start_matches(['#', '/', ' ']);
        if let Some(kind) = comment.strip_prefix("example: ") {
            current = Some((kind.to_owned(), String::new()));
            indentation = &line[..line.len() - line.trim_start().len()];
        } else if comment == "end" {
            examples.extend(current.take());
        } else if let Some((_, text)) = &mut current {
            *text += &format!("{}\n", line.strip_prefix(indentation).unwrap_or(line));
        }
    }
    examples
}

#[test]
fn the_examples_of_the_page_are_those_of_the_programs_that_run() {
    let page = fs::read_to_string(root().join("docs/structures.md")).expect("the page");
    let kinds = (here().join("pymemcache_kinds.py"), 7);
    let recipes = (recipes::here().join("recipes.py"), 4);
    for (script, count) in [kinds, recipes] {
        let examples = examples(&fs::read_to_string(&script).expect("the script"));
        assert_eq!(examples.len(), count, "{script:?}");
        for (name, example) in examples {
            let block = format!("```python\n{example}```\n");
            assert!(page.contains(&block), "docs/structures.md does not show {name} of {script:?}");
        }
    }
    assert_eq!(page.matches("```python\n").count(), 11, "blocks that are no example");
    for script in fs::read_dir(here()).expect("the scripts") {
        let name = script.expect("a script").file_name().into_string().expect("UTF-8");
        assert!(
            page.contains(&format!("tests/it/structures/clients/{name}")),
            "the page does not name {name}"
        );
    }
}
