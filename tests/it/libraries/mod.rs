//! Unmodified client libraries, used as by their users: each against memcached itself, so that no script depends on something
//! that memcached does not do, and through a raw and a guarded rule of a sidecar in front of three memcacheds. The scripts next
//! to this file are in the clients' languages; docs/clients.md has the table. A missing library fails the test: `scripts/test`
//! installs it.

mod async_memcached;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::world::{Kennel, Memcached, addresses, guarded, memcacheds, raw, sidecar_toml, without_failover};

/// How the script of a library runs.
struct Library {
    /// The script, next to this file. Its arguments are host, port and key prefix.
    script: &'static str,
    /// The command that runs it, without the script.
    runtime: fn() -> Command,
    /// What it needs.
    needs: &'static str,
}

/// The tests of every library, in a module of its name.
macro_rules! users_of {
    ($($library:ident: $script:literal by $runtime:ident, with $needs:literal;)*) => {
        $(mod $library {
            use super::*;

            pub(super) const LIBRARY: Library = Library { script: $script, runtime: $runtime, needs: $needs };

            #[test]
            fn works_on_memcached_itself() {
                let memcached = Memcached::newest(&[]);
                LIBRARY.must_work(memcached.address, "raw:");
            }

            #[test]
            fn works_through_a_raw_rule() {
                let servers = memcacheds(3);
                LIBRARY.must_work(sidecar(&servers).address(), "raw:");
            }

            #[test]
            fn works_through_a_guarded_rule() {
                let servers = memcacheds(3);
                LIBRARY.must_work(sidecar(&servers).address(), "hot:");
            }
        })*
    };
}

users_of! {
    pymemcache: "pymemcache_users.py" by python, with "pymemcache in target/venv";
    pylibmc: "pylibmc_users.py" by python, with "pylibmc in target/venv";
    python_memcached: "python_memcached_users.py" by python, with "python-memcached in target/venv";
    php_memcached: "php_memcached.php" by php, with "Debian's php-cli and php-memcached";
    php_memcache: "php_memcache.php" by php, with "Debian's php-cli and php-memcache";
    cache_memcached: "cache_memcached.pl" by perl, with "libcache-memcached-perl";
    cache_memcached_fast: "cache_memcached_fast.pl" by perl, with "libcache-memcached-fast-perl";
    gomemcache: "gomemcache_users.go" by go, with "Debian's golang-go, and gomemcache of 2023 or newer";
    node_memcached: "node_memcached.js" by node, with "node, and memcached in target/node";
    dalli: "dalli_users.rb" by ruby, with "Debian's ruby, and Dalli 3.2 or newer";
}

/// Dalli's `get` sends no flag that requests `W`, and takes any value that it receives for a hit.
#[test]
fn an_expired_key_is_rebuilt_by_exactly_one_of_several_dalli_clients() {
    let servers = memcacheds(3);
    let rebuild = Library { script: "dalli_rebuild.rb", ..dalli::LIBRARY };
    let (output, parts) = rebuild.run(sidecar(&servers).address(), "hot:");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}\nIt needs {}.", rebuild.needs);
    assert_eq!((parts.lines().count(), &stdout[..]), (3, &parts[..]), "{stderr}");
}

/// libmemcached's own list of what a memcached must do, and its result for this one. It chooses the keys, so all of them are
/// guarded, or none.
fn memccapable(address: SocketAddr) -> Vec<String> {
    let mut command = Command::new("memccapable");
    command.args(["-a", "-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    let output = command.output();
    let output =
        output.unwrap_or_else(|e| panic!("run memccapable: {e}; scripts/test installs libmemcached-tools"));
    let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert!(lines.iter().filter(|line| line.ends_with("[pass]")).count() > 20, "{lines:?}");
    lines
}

/// Its result for memcached itself: a `delete` with a time is no longer an error.
fn as_capable_as_memcached(address: SocketAddr) {
    let memcached = Memcached::newest(&[]);
    assert_eq!(memccapable(address), memccapable(memcached.address));
}

#[test]
fn memccapable_misses_one_thing_in_the_newest_memcached() {
    let lines = memccapable(Memcached::newest(&[]).address);
    // A failed test has no end of its own on stdout.
    let failed: Vec<&String> = lines.iter().filter(|line| line.matches("ascii ").count() > 1).collect();
    assert_eq!(failed.len(), 1, "{lines:?}");
    let words: Vec<&str> = failed[0].split_whitespace().collect();
    assert_eq!(words.join(" "), "ascii delete ascii delete noreply ascii incr [pass]");
}

#[test]
fn memccapable_finds_a_raw_rule_as_capable_as_memcached() {
    let servers = memcacheds(3);
    as_capable_as_memcached(Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("all", "*")])).address());
}

#[test]
fn memccapable_finds_a_guarded_rule_as_capable_as_memcached() {
    let servers = memcacheds(3);
    let all = guarded("all", "*", "cold_wait = \"100ms\"\ntags = [\"posts\"]");
    // It stores right behind a `flush_all`.
    let toml = without_failover(&sidecar_toml(&addresses(&servers), &[all]));
    as_capable_as_memcached(Kennel::start(&toml).address());
}

#[test]
fn the_page_of_clients_names_every_script_and_every_pinned_version() {
    let page = std::fs::read_to_string(root().join("docs/clients.md")).expect("the page");
    let scripts = std::fs::read_dir(here()).expect("this directory");
    let scripts = scripts.map(|entry| entry.expect("an entry").file_name().into_string().expect("ASCII"));
    for script in scripts.filter(|name| !name.ends_with(".rs")) {
        assert!(
            page.contains(&format!("(../tests/it/libraries/{script})")),
            "docs/clients.md leaves out {script}"
        );
    }
    let installs = std::fs::read_to_string(root().join("scripts/test")).expect("scripts/test");
    let pins = installs.lines().filter_map(|line| line.split_once('='));
    let pins = pins
        .filter(|(name, _)| !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
    let pins: Vec<(&str, &str)> = pins.collect();
    assert!(pins.len() >= 6, "{pins:?}");
    for (name, version) in pins {
        assert!(page.contains(&format!(" {version} ")), "docs/clients.md has another {name} than {version}");
    }
}

/// A sidecar that guards `hot:*`; everything else is raw.
fn sidecar(servers: &[Memcached]) -> Kennel {
    let hot = "stale_for = \"30s\"\nlock_ttl = \"3s\"\ncold_wait = \"100ms\"\ntags = [\"posts\"]";
    Kennel::start(&sidecar_toml(&addresses(servers), &[guarded("hot", "hot:*", hot), raw("raw", "*")]))
}

impl Library {
    /// Runs the script. Returns all parts that it must report, so that none can end early without a failure.
    fn run(&self, address: SocketAddr, prefix: &str) -> (Output, String) {
        let script = here().join(self.script);
        let mut command = (self.runtime)();
        command.arg(&script).args([&address.ip().to_string(), &address.port().to_string(), prefix]);
        let output = command.output();
        let output = output.unwrap_or_else(|e| {
            panic!("run {}: {e}; it needs {}, which scripts/test installs", self.script, self.needs)
        });
        let text = std::fs::read_to_string(&script).expect("the script");
        let parts = text.lines().filter_map(|line| {
            let quoted = line.trim().strip_prefix("done")?.trim_start_matches([' ', '(']);
            let quote = quoted.chars().next().filter(|c| "'\"".contains(*c))?;
            Some(format!("OK {}\n", quoted[1..].split(quote).next()?))
        });
        (output, parts.collect())
    }

    fn must_work(&self, address: SocketAddr, prefix: &str) {
        let (output, parts) = self.run(address, prefix);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let Library { script, needs, .. } = self;
        assert!(
            output.status.success(),
            "{script} with keys {prefix}: {}\n{stdout}\n{stderr}\nIt needs {needs}: scripts/test installs that.",
            output.status
        );
        assert!(parts.lines().count() > 10, "{script} has no parts: {parts}");
        assert_eq!(stdout, parts, "{script} with keys {prefix} left something out\n{stderr}");
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn here() -> PathBuf {
    root().join("tests/it/libraries")
}

/// What `scripts/test` has unpacked where Debian's own is too old or missing, otherwise Debian's own.
fn unpacked_or_debians(path: &str) -> PathBuf {
    let unpacked = root().join("target/debian").join(path.trim_start_matches('/'));
    if unpacked.exists() { unpacked } else { PathBuf::from(path) }
}

fn python() -> Command {
    let venv = root().join("target/venv/bin/python");
    let found = if venv.exists() { venv } else { PathBuf::from("python3") };
    Command::new(std::env::var_os("KENNEL_TEST_PYTHON").map_or(found, PathBuf::from))
}

fn php() -> Command {
    Command::new("php")
}

fn perl() -> Command {
    Command::new("perl")
}

fn ruby() -> Command {
    let mut command = Command::new("ruby");
    let gems = unpacked_or_debians("/usr/share/rubygems-integration/all/gems");
    let gems = std::fs::read_dir(gems).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_dalli =
        |gem: &Path| gem.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dalli-"));
    for gem in gems.filter(|gem| is_dalli(gem)) {
        command.arg("-I").arg(gem.join("lib"));
    }
    command
}

fn go() -> Command {
    let mut command = Command::new("go");
    command.arg("run").env("GO111MODULE", "off").env("GOPATH", unpacked_or_debians("/usr/share/gocode"));
    // Nothing is downloaded: it is Debian's source, and Go's standard library.
    command.env("GOPROXY", "off").env("GOFLAGS", "").env("GOCACHE", root().join("target/go"));
    command
}

fn node() -> Command {
    let mut command = Command::new("node");
    command.env("NODE_PATH", root().join("target/node/node_modules"));
    command
}
