//! Listeners with a user and a password: the same bytes as from memcached's `-Y`, and nothing before authentication.

use std::path::PathBuf;
use std::time::Duration;

use crate::client::{Client, show};
use crate::world::{Kennel, Memcached, addresses, eventually, memcacheds, raw, sidecar_toml, temp_dir};

const FILE: &str = "user:pass\nuser:other\nann:a:b\n";
const RIGHT: &[u8] = b"set auth 0 0 9\r\nuser pass\r\n";

/// The file of this test, removed when dropped.
struct AuthFile(PathBuf);

impl AuthFile {
    fn new(text: &str) -> AuthFile {
        let dir = temp_dir();
        std::fs::write(dir.join("users"), text).expect("write the file");
        AuthFile(dir)
    }

    fn path(&self) -> String {
        self.0.join("users").display().to_string()
    }
}

impl Drop for AuthFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A raw sidecar in front of these servers, whose only TCP listener requires a password.
fn sidecar(servers: &[Memcached], file: &AuthFile) -> Kennel {
    let toml = sidecar_toml(&addresses(servers), &[raw("everything", "*")]);
    let listener = format!("{{ address = \"127.0.0.1:0\", auth_file = {:?} }}", file.path());
    Kennel::start(&toml.replacen("\"127.0.0.1:0\"", &listener, 1))
}

/// What one client sends, one piece after another. memcached replies only to the last of several commands in one read, so each
/// piece gets one line.
struct Script {
    name: &'static str,
    pieces: Vec<Vec<u8>>,
    /// Instead of replying to the last piece, memcached closes the connection.
    closes: bool,
}

fn scripts() -> Vec<Script> {
    let s = |name, pieces: &[&[u8]]| Script {
        name,
        pieces: pieces.iter().map(|piece| piece.to_vec()).collect(),
        closes: false,
    };
    let c = |name, send: &[u8]| Script { name, pieces: vec![send.to_vec()], closes: true };
    let spaces = |n: usize| {
        [format!("set a 0 0 {n}\r\nuser pass").into_bytes(), b" ".repeat(n - 9), b"\r\n".to_vec()].concat()
    };
    vec![
        s("the password at once", &[]),
        s("a wrong password, twice", &[b"set a 0 0 9\r\nuser pasX\r\n", b"set a 0 0 9\r\nuser pasX\r\n"]),
        s("a wrong user", &[b"set a 0 0 9\r\nuseX pass\r\n"]),
        s("another's password", &[b"set a 0 0 8\r\nann pass\r\n"]),
        s("the beginning of a password", &[b"set a 0 0 8\r\nuser pas\r\n"]),
        s("more than a password", &[b"set a 0 0 10\r\nuser passs\r\n"]),
        s("another password of the user", &[b"set a 0 0 10\r\nuser other\r\n"]),
        s("a password with a colon", &[b"set a 0 0 7\r\nann a:b\r\n"]),
        s("user and password with a colon between", &[b"set a 0 0 9\r\nuser:pass\r\n"]),
        s("get", &[b"get a\r\n"]),
        s("version", &[b"version\r\n"]),
        s("quit", &[b"quit\r\n"]),
        s("stats", &[b"stats\r\n"]),
        s("flush_all noreply", &[b"flush_all noreply\r\n"]),
        s("meta commands", &[b"mn\r\n", b"mg a v\r\n", b"md a q\r\n"]),
        s("an empty line", &[b"\r\n", b" \r\n"]),
        s("bare line ends", &[b"get a\n", b" \n"]),
        s("HTTP", &[b"GET / HTTP/1.1\r\n"]),
        s("set with too few words", &[b"set\r\n", b"set a 0 0\r\n"]),
        s("other words for set", &[b"SET a 0 0 9\r\n", b"add a 0 0 9\r\n", b"sets a 0 0 9\r\n"]),
        s("spaces around everything", &[b"  set  a  0 0   11 \r\n user  pass\r\n"]),
        s("flags that are no number", &[b"set a x y 9\r\nuser pass\r\n"]),
        s("a key that is too long", &[&[&b"set "[..], &[b'k'; 1900], b" 0 0 9\r\nuser pass\r\n"].concat()]),
        s("noreply is answered", &[b"set a 0 0 9 noreply\r\nuser pass\r\n"]),
        s("noreply is answered when wrong", &[b"set a 0 0 9 noreply\r\nuser pasX\r\n"]),
        s(
            "more words than there are",
            &[&[&b"set a 0 0 9"[..], &b" b".repeat(40), b"\r\nuser pass\r\n"].concat()],
        ),
        s("a line that ends in a bare LF", &[b"set a 0 0 9\nuser pass\r\n"]),
        s(
            "lengths that are none",
            &[b"set a 0 0 x\r\n", b"set a 0 0 9x\r\n", b"set a 0 0 -1\r\n", b"set a 0 0 0x9\r\n"],
        ),
        s("lengths as strtoul takes them", &[b"set a 0 0 +9\r\nuser pass\r\n"]),
        s("a length with zeros", &[b"set a 0 0 0009\r\nuser pass\r\n"]),
        s("a length far too large for a number", &[b"set a 0 0 99999999999999999999\r\n"]),
        s("no length but a CR", &[b"set a 0 0 \r\n"]),
        s("nothing", &[b"set a 0 0 0\r\n\r\n"]),
        s(
            "one word",
            &[b"set a 0 0 4\r\nuser\r\n", b"set a 0 0 5\r\nuser \r\n", b"set a 0 0 9\r\nuser\tpass\r\n"],
        ),
        s("three words", &[b"set a 0 0 13\r\nuser pass foo\r\n"]),
        s("data that ends otherwise", &[b"set a 0 0 9\r\nuser pass\n\n", b"set a 0 0 9\r\nuser passXX"]),
        s("NUL behind the password", &[b"set a 0 0 11\r\nuser pass\0x\r\n"]),
        s("NUL before the user", &[b"set a 0 0 10\r\n\0user pass\r\n"]),
        s("NUL in the line", &[b"set a 0\0 0 9\r\n"]),
        s("NUL behind the length", &[b"set a 0 0 9\0 zz\r\nuser pass\r\n"]),
        s("long data", &[&spaces(3000)]),
        s("the longest data", &[&spaces(16_000)]),
        c("a line without end", &[b'x'; 2049]),
        c("a multi-get without end", &[b"get ", &b"x".repeat(2045)[..]].concat()),
    ]
}

/// The replies to the script, then to the correct password and to a few commands after it.
fn transcript(mut client: Client, script: &Script) -> Vec<String> {
    let mut replies = Vec::new();
    for piece in &script.pieces {
        client.send(piece);
        if script.closes {
            return vec![show(&client.rest())];
        }
        replies.push(client.line());
    }
    client.send(RIGHT);
    replies.push(client.line());
    // In case the script has already authenticated, so that this was an ordinary set.
    for command in ["get nothing", "mn", "delete auth", "delete auth", "nonsense"] {
        replies.push(client.execute(command));
    }
    replies
}

#[test]
fn everything_before_and_after_the_password_gets_memcacheds_reply() {
    let file = AuthFile::new(FILE);
    let memcached = Memcached::start(&["-Y", &file.path()]);
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, &file);
    for script in scripts() {
        let expected = transcript(Client::tcp(memcached.address), &script);
        assert_eq!(transcript(kennel.client(), &script), expected, "{}", script.name);
    }
    let metrics = kennel.metrics();
    for outcome in ["accepted", "wrong", "malformed", "missing"] {
        let label = format!("outcome=\"{outcome}\"");
        assert!(metrics.sum("kennel_authentications_total", &[&label]) > 1.0, "{outcome}");
    }
}

#[test]
fn stats_count_the_passwords_that_memcached_counts() {
    let file = AuthFile::new(FILE);
    let memcached = Memcached::start(&["-Y", &file.path()]);
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, &file);
    let [theirs, ours] = [Client::tcp(memcached.address), kennel.client()].map(|mut client| {
        for attempt in ["get a", "set a 0 0 9\r\nuser nope", "set a 0 0 9\r\nuser pass"] {
            client.execute(attempt);
        }
        client.send(b"stats\r\n");
        let stats = String::from_utf8(client.until(b"END\r\n")).expect("ASCII");
        stats.lines().filter(|line| line.starts_with("STAT auth_")).map(str::to_owned).collect::<Vec<_>>()
    });
    // One more was used to check that it has started.
    assert_eq!(theirs, ["STAT auth_cmds 3", "STAT auth_errors 1"]);
    assert_eq!(ours, ["STAT auth_cmds 2", "STAT auth_errors 1"]);
}

#[test]
fn what_is_pipelined_behind_the_password_is_served() {
    let file = AuthFile::new(FILE);
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, &file);
    let requests = b"set a 0 0 1\r\nx\r\nget a\r\nquit\r\n";
    let replies = b"STORED\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n";
    let whole = [RIGHT, requests].concat();
    let mut client = kennel.client();
    client.send(&whole);
    assert_eq!(show(&client.rest()), show(replies));
    let mut client = kennel.client();
    whole.iter().for_each(|byte| client.send(&[*byte]));
    assert_eq!(show(&client.rest()), show(replies), "a byte at a time");
    // More than all buffers in front of the session hold.
    let value = vec![b'y'; 300_000];
    let mut client = kennel.client();
    client.send(&[RIGHT, b"set big 0 0 300000\r\n", &value, b"\r\nget big\r\nquit\r\n"].concat());
    let got = client.rest();
    assert!(got.starts_with(b"STORED\r\nSTORED\r\nVALUE big 0 300000\r\nyyy"), "{}", show(&got));
    assert_eq!(got.len(), 16 + 20 + 300_000 + 7);
}

#[test]
fn nothing_of_a_client_without_the_password_reaches_a_server() {
    let file = AuthFile::new(FILE);
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, &file);
    let mut known = kennel.client();
    known.send(RIGHT);
    assert_eq!(known.line(), "STORED");
    known.store("k", b"v", 0);
    let mut unknown = kennel.client();
    for command in ["flush_all", "delete k", "set k 0 0 9\r\nuser pasX", "incr @tag:x 1"] {
        let replies = unknown.execute(command);
        assert!(replies.starts_with("CLIENT_ERROR "), "{command}: {replies}");
    }
    assert_eq!(known.get("k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn connections_that_send_nothing_keep_nobody_out() {
    let file = AuthFile::new(FILE);
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[raw("everything", "*")]);
    let listener = format!("{{ address = \"127.0.0.1:0\", auth_file = {:?} }}", file.path());
    let toml = toml.replacen("\"127.0.0.1:0\"", &listener, 1);
    let kennel = Kennel::start(&toml.replacen("[listen]\n", "[listen]\nmax_connections = 20\n", 1));
    let authenticated = || {
        let mut client = kennel.client();
        client.send(RIGHT);
        assert_eq!(client.line(), "STORED");
        client
    };
    let first = authenticated();
    let strangers: Vec<Client> = (0..200).map(|_| kennel.client()).collect();
    // Until all have been accepted, one that comes later may displace a client before it has been read from.
    eventually("the others have given way", || {
        kennel.metrics().sum("kennel_limit_reached_total", &["limit=\"unauthenticated\""]) >= 190.0
    });
    let mut clients: Vec<Client> = (0..14).map(|_| authenticated()).collect();
    clients.push(first);
    for client in &mut clients {
        client.store("k", b"v", 0);
    }
    let metrics = kennel.metrics();
    assert_eq!(metrics.sum("kennel_client_connections_refused_total", &[]), 0.0);
    eventually("a quarter of the connections is left to strangers", || {
        kennel.metrics().sum("kennel_client_connections", &[]) <= 20.0
    });
    drop(strangers);
}

#[test]
fn another_listener_without_a_password_requires_none() {
    let file = AuthFile::new(FILE);
    let servers = memcacheds(1);
    let sock = file.0.join("k.sock");
    let unix = format!(
        "[listen]\nunix = [{{ path = {:?}, auth_file = {:?} }}]",
        sock.display().to_string(),
        file.path()
    );
    let toml = sidecar_toml(&addresses(&servers), &[raw("everything", "*")]);
    let kennel = Kennel::start(&toml.replacen("[listen]", &unix, 1));
    kennel.client().store("k", b"v", 0);
    let mut client = kennel.unix_client();
    assert_eq!(client.execute("get k"), "CLIENT_ERROR unauthenticated");
    client.send(RIGHT);
    assert_eq!(client.line(), "STORED");
    assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn the_log_tells_of_wrong_passwords_without_repeating_them_and_not_each_time() {
    let file = AuthFile::new("sheila:rosebud\n");
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, &file);
    for attempt in 0..10 {
        let mut client = kennel.client();
        assert_eq!(
            client.execute("set a 0 0 14\r\nsheila rosebux"),
            "CLIENT_ERROR authentication failure",
            "{attempt}"
        );
    }
    let log = kennel.log();
    let lines = log.lines().filter(|line| line.contains("unknown user or wrong password")).count();
    // One per affected worker, for 10 s.
    assert!((1..=2).contains(&lines), "{log}");
    assert!(log.contains("from=127.0.0.1:"), "{log}");
    for secret in ["rosebu", "sheila"] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn sigterm_does_not_wait_for_a_client_that_has_not_given_its_password() {
    let file = AuthFile::new(FILE);
    let servers = memcacheds(1);
    let kennel = sidecar(&servers, &file);
    let (mut unknown, mut known) = (kennel.client(), kennel.client());
    assert_eq!(unknown.execute("get a"), "CLIENT_ERROR unauthenticated");
    known.send(RIGHT);
    assert_eq!(known.line(), "STORED");
    eventually("both are counted", || kennel.metrics().sum("kennel_client_connections", &[]) == 2.0);
    let (status, took) = kennel.terminate();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!((unknown.rest(), known.rest()), (vec![], vec![]));
}

#[test]
fn users_change_with_a_reload_and_whoever_is_in_stays_in() {
    let (file, servers) = (AuthFile::new("user:pass\n"), memcacheds(1));
    let toml = sidecar_toml(&addresses(&servers), &[raw("everything", "*")]);
    let listener = format!("{{ address = \"127.0.0.1:0\", auth_file = {:?} }}", file.path());
    let toml = toml.replacen("\"127.0.0.1:0\"", &listener, 1);
    let kennel = Kennel::start(&toml);
    let log_in = |password: &str| {
        let mut client = kennel.client();
        client.send(format!("set auth 0 0 {}\r\nuser {password}\r\n", 5 + password.len()).as_bytes());
        let reply = client.line();
        (client, reply)
    };
    let (mut inside, reply) = log_in("pass");
    assert_eq!(reply, "STORED");
    assert_ne!(log_in("fresh").1, "STORED");
    std::fs::write(file.path(), "user:fresh\n").expect("write");
    assert_eq!(kennel.reload(&toml).0, 200);
    assert_eq!((log_in("fresh").1, log_in("pass").1 == "STORED"), ("STORED".to_owned(), false));
    inside.store("a", b"v", 0);
    assert_eq!(inside.get("a").as_deref(), Some(&b"v"[..]));
}
