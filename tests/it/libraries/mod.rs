//! Unmodified client libraries, used as by their users: each against memcached itself, so that no script depends on something
//! that memcached does not do, and through a raw and a guarded rule of a sidecar in front of three memcacheds. The scripts next
//! to this file are in the clients' languages; docs/clients.md has the table. A missing library fails the test: `scripts/test`
//! installs it.

mod async_memcached;
mod spread;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::world::{
    Kennel, Memcached, addresses, guarded, memcacheds, raw, sidecar_toml, temp_dir, without_failover,
};

/// How the script of a library runs.
struct Library {
    /// The script, next to this file. Its arguments are host, port and key prefix.
    script: &'static str,
    /// The command that runs it, without the script.
    runtime: fn() -> Command,
    /// What follows the script's arguments: a protocol, or nothing.
    more: &'static [&'static str],
    /// What it needs.
    needs: &'static str,
}

/// The tests of every library, in a module of its name.
macro_rules! users_of {
    ($($library:ident: $script:literal $(in $more:ident)? by $runtime:ident, with $needs:literal;)*) => {
        $(mod $library {
            use super::*;

            pub(super) const LIBRARY: Library =
                Library { script: $script, runtime: $runtime, more: &[$(stringify!($more))?], needs: $needs };

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
    dalli: "dalli_users.rb" in meta by ruby, with "Debian's ruby, and Dalli 3.2 or newer";
    dalli_binary: "dalli_users.rb" in binary by ruby, with "Debian's ruby, and Dalli 3.2 or newer";
    pylibmc_binary: "pylibmc_users.py" in binary by python, with "pylibmc in target/venv";
    php_memcached_binary: "php_memcached.php" in binary by php, with "Debian's php-cli and php-memcached";
    bmemcached: "bmemcached_users.py" by python, with "python-binary-memcached in target/venv";
    symfony: "symfony.php" by php, with "Debian's php-symfony-cache and php-symfony-http-foundation";
    laravel: "laravel.php" by php, with "Debian's php-illuminate-cache";
    laravel_binary: "laravel.php" in binary by php, with "Debian's php-illuminate-cache";
    memjs: "memjs_users.js" by node, with "node, and memjs in target/node";
}

/// Dalli's `get` sends no flag that requests `W`, and takes any value that it receives for a hit.
#[test]
fn an_expired_key_is_rebuilt_by_exactly_one_of_several_dalli_clients() {
    let servers = memcacheds(3);
    let rebuild = Library { script: "dalli_rebuild.rb", more: &[], ..dalli::LIBRARY };
    let (output, parts) = rebuild.run(sidecar(&servers).address(), "hot:");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}\nIt needs {}.", rebuild.needs);
    assert_eq!((parts.lines().count(), &stdout[..]), (3, &parts[..]), "{stderr}");
}

/// A listener that expects a user name and a password. Both libraries send them in SASL's PLAIN.
fn works_with_a_password(library: &Library) {
    let directory = temp_dir();
    let users = directory.join("users");
    std::fs::write(&users, "ann:s3cret\n").expect("write the file");
    let servers = memcacheds(3);
    let listener = format!("{{ address = \"127.0.0.1:0\", auth_file = {users:?} }}");
    let kennel = Kennel::start(&sidecar_of(&servers).replacen("\"127.0.0.1:0\"", &listener, 1));
    let with = |more| Library { more, ..*library };
    with(&["ann", "s3cret"]).must_work(kennel.address(), "hot:");
    for more in [&[][..], &["ann", "wrong"]] {
        let (output, _) = with(more).run(kennel.address(), "hot:");
        assert!(!output.status.success(), "{} with {more:?} must fail", library.script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{} with {more:?}", library.script);
    }
    std::fs::remove_dir_all(directory).expect("remove the file");
}

#[test]
fn bmemcached_sends_a_password() {
    works_with_a_password(&bmemcached::LIBRARY);
}

#[test]
fn memjs_sends_a_password() {
    works_with_a_password(&memjs::LIBRARY);
}

/// libmemcached's own list of what a memcached must do, and its result for this one. It chooses the keys, so all of them are
/// guarded, or none.
fn memccapable(protocol: &str, address: SocketAddr) -> Vec<String> {
    let mut command = Command::new("memccapable");
    command.args([protocol, "-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
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
    assert_eq!(memccapable("-a", address), memccapable("-a", memcached.address));
    let binary = memccapable("-b", address);
    assert_eq!(binary, memccapable("-b", memcached.address));
    // Each test has a line, and the last line is a summary.
    assert_eq!(
        (binary.len(), binary.iter().filter(|line| line.ends_with("[pass]")).count()),
        (28, 27),
        "{binary:?}"
    );
}

#[test]
fn memccapable_misses_one_thing_in_the_newest_memcached() {
    let lines = memccapable("-a", Memcached::newest(&[]).address);
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

/// libmemcached's command line tools, in the binary protocol.
fn libmemcacheds_tools(address: SocketAddr, prefix: &str) {
    let directory = temp_dir();
    let run = |tool: &str, arguments: &[&str]| {
        let mut command = Command::new(tool);
        command.current_dir(&directory).args(["--binary", &format!("--servers={address}")]).args(arguments);
        let output = command.output();
        let output =
            output.unwrap_or_else(|e| panic!("run {tool}: {e}; scripts/test installs libmemcached-tools"));
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (one, two) = (format!("{prefix}one"), format!("{prefix}two"));
    std::fs::write(directory.join(&one), "first").expect("write a file");
    std::fs::write(directory.join(&two), "second".repeat(100_000)).expect("write a file");
    assert!(run("memccp", &[&one, &two]).0);
    assert_eq!(run("memccat", &[&one]), (true, "first\n".into()));
    assert_eq!(run("memccat", &[&two]).1.len(), 600_001);
    assert!(run("memcexist", &[&one]).0);
    assert!(run("memctouch", &["--expire=100", &one]).0);
    assert!(run("memcrm", &[&one]).0);
    assert!(!run("memcexist", &[&one]).0);
    assert!(!run("memccat", &[&one]).0);
    assert!(run("memcstat", &[]).1.contains("pid: "));
    assert!(run("memcflush", &[]).0);
    assert!(!run("memccat", &[&two]).0);
    std::fs::remove_dir_all(directory).expect("remove the files");
}

#[test]
fn libmemcacheds_tools_work_on_memcached_itself_and_through_both_kinds_of_rules() {
    libmemcacheds_tools(Memcached::newest(&[]).address, "raw:");
    for prefix in ["raw:", "hot:"] {
        let servers = memcacheds(3);
        libmemcacheds_tools(sidecar(&servers).address(), prefix);
    }
}

#[test]
fn the_page_of_clients_names_every_script_and_every_pinned_version() {
    let page = std::fs::read_to_string(root().join("docs/clients.md")).expect("the page");
    let scripts = std::fs::read_dir(here()).expect("this directory");
    let scripts = scripts.map(|entry| entry.expect("an entry")).filter(|entry| entry.path().is_file());
    let scripts = scripts.map(|entry| entry.file_name().into_string().expect("ASCII"));
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
    assert!(pins.len() >= 8, "{pins:?}");
    for (name, version) in pins {
        assert!(page.contains(&format!(" {version} ")), "docs/clients.md has another {name} than {version}");
    }
}

/// A sidecar that guards `hot:*`; everything else is raw.
fn sidecar(servers: &[Memcached]) -> Kennel {
    Kennel::start(&sidecar_of(servers))
}

fn sidecar_of(servers: &[Memcached]) -> String {
    let hot = "stale_for = \"30s\"\nlock_ttl = \"3s\"\ncold_wait = \"100ms\"\ntags = [\"posts\"]";
    sidecar_toml(&addresses(servers), &[guarded("hot", "hot:*", hot), raw("raw", "*")])
}

impl Library {
    /// Runs the script. Returns all parts that it must report, so that none can end early without a failure.
    fn run(&self, address: SocketAddr, prefix: &str) -> (Output, String) {
        let script = here().join(self.script);
        let mut command = (self.runtime)();
        command.arg(&script).args([&address.ip().to_string(), &address.port().to_string(), prefix]);
        command.args(self.more);
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
        assert!(parts.lines().count() > 7, "{script} has no parts: {parts}");
        assert_eq!(stdout, parts, "{script} with keys {prefix} left something out\n{stderr}");
    }
}

pub(crate) fn root() -> PathBuf {
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

pub(crate) fn python() -> Command {
    let venv = root().join("target/venv/bin/python");
    let found = if venv.exists() { venv } else { PathBuf::from("python3") };
    Command::new(std::env::var_os("KENNEL_TEST_PYTHON").map_or(found, PathBuf::from))
}

pub(crate) fn php() -> Command {
    Command::new("php")
}

fn perl() -> Command {
    Command::new("perl")
}

pub(crate) fn ruby() -> Command {
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

pub(crate) fn go() -> Command {
    let mut command = Command::new("go");
    command.arg("run").env("GO111MODULE", "off").env("GOPATH", unpacked_or_debians("/usr/share/gocode"));
    // Nothing is downloaded: it is Debian's source, and Go's standard library.
    command.env("GOPROXY", "off").env("GOFLAGS", "").env("GOCACHE", root().join("target/go"));
    command
}

pub(crate) fn node() -> Command {
    let mut command = Command::new("node");
    command.env("NODE_PATH", root().join("target/node/node_modules"));
    command
}
