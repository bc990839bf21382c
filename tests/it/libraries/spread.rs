//! Clients that spread keys over the servers themselves: what they have stored is found through a sidecar with their distribution.
//! `tests/golden/placements.txt` has more servers and all hashes; here the installed versions are asked.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{go, here, node, perl, php, python, ruby};
use crate::world::{Kennel, addresses, memcacheds, raw, sidecar_toml};

const VALUE: &str = "from the library";

/// Sets keys through the library and counts those that a sidecar with `keys` in its pool finds.
fn found(mut runtime: Command, script: &str, library: &str, prefix: &str, keys: &str) -> usize {
    let servers = memcacheds(4);
    let names: Vec<String> = (0..200).map(|n| format!("user:{n}:profile")).collect();
    let list = addresses(&servers).into_iter().map(|address| format!("{address}:1"));
    let command = runtime.arg(here().join("spread").join(script)).args([library, VALUE, prefix]).args(list);
    let mut run = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} must be installed, as by scripts/test: {error}"));
    let input: String = names.iter().map(|name| format!("{name}\n")).collect();
    run.stdin.take().expect("is piped").write_all(input.as_bytes()).expect("the script reads all keys");
    assert!(run.wait().expect("it ends").success(), "{script} {library}");
    let toml = sidecar_toml(&addresses(&servers), &[raw("rest", "*")]);
    let sidecar = Kennel::start(&toml.replace("[pools.main]\n", &format!("[pools.main]\n{keys}\n")));
    let mut client = sidecar.client();
    names.iter().filter(|name| client.get(&format!("{prefix}{name}")).is_some()).count()
}

fn distribution(name: &str, hash: &str) -> String {
    format!("distribution = {name:?}\nhash = {hash:?}")
}

#[test]
fn keys_of_libmemcached_are_found() {
    let modula = distribution("modula", "one_at_a_time");
    let consistent = distribution("consistent", "one_at_a_time");
    let prefix = "unhashed_prefixes = [\"app:\"]";
    assert_eq!(found(python(), "spread.py", "pylibmc::", "", &modula), 200);
    for (library, keys) in [
        ("php_memcached", &modula),
        ("php_memcached:consistent", &consistent),
        ("php_memcached:compatible", &distribution("ketama", "md5")),
    ] {
        assert_eq!(found(php(), "php_memcached.php", library, "", keys), 200, "{library}");
        let with_prefix = format!("{keys}\n{prefix}");
        assert_eq!(found(php(), "php_memcached.php", library, "app:", &with_prefix), 200, "{library}");
        // The counter-example: with the prefix hashed, most keys are elsewhere.
        assert!(found(php(), "php_memcached.php", library, "app:", keys) < 150, "{library}");
    }
}

#[test]
fn keys_of_other_clients_are_found() {
    let weighted = distribution("modula_weighted", "crc32");
    for (runtime, script, library, keys) in [
        (python(), "spread.py", "pymemcache", "distribution = \"pymemcache\""),
        (python(), "spread.py", "python_memcached", &weighted),
        (php(), "php_memcached.php", "php_memcache", &weighted),
        (php(), "php_memcached.php", "php_memcache:consistent", "distribution = \"php_memcache\""),
        (perl(), "cache_memcached.pl", "cache_memcached", &weighted),
        (ruby(), "dalli.rb", "dalli", "distribution = \"dalli\""),
        (node(), "spread.js", "node_memcached", "distribution = \"hashring\""),
        (node(), "spread.js", "memjs", &distribution("modula", "memjs")),
        (go(), "gomemcache.go", "gomemcache", &distribution("modula", "crc32a")),
    ] {
        assert_eq!(found(runtime, script, library, "", keys), 200, "{library}");
    }
}
