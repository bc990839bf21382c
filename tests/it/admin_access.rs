//! Who may look at the admin address, and who may change something there.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::certificates::Certificates;
use crate::world::{Kennel, addresses, guarded, memcacheds, sidecar_toml, temp_dir};

/// A directory with a password file and a token file, removed at the end.
struct Files(PathBuf);

impl Files {
    fn new() -> Files {
        let dir = temp_dir();
        std::fs::write(dir.join("users"), "ann:s3cret\n").expect("write the users");
        std::fs::write(dir.join("token"), "0123456789abcdef\n").expect("write the token");
        Files(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// ann:s3cret
const ANN: &str = "Authorization: Basic YW5uOnMzY3JldA==";
const WRONG: &str = "Authorization: Basic YW5uOnMzY3JlVA==";
const TOKEN: &str = "Authorization: Bearer 0123456789abcdef";

/// The status of the reply.
fn status(reply: &str) -> &str {
    reply.split(' ').nth(1).unwrap_or_else(|| panic!("no reply: {reply:?}"))
}

/// A configuration with these lines in `[admin]`.
fn toml(servers: &[String], admin: &str) -> String {
    let toml = sidecar_toml(servers, &[guarded("all", "*", "")]);
    let (before, rest) = toml.split_once("[admin]\n").expect("a table");
    let (_, rest) = rest.split_once("\n\n").expect("another table");
    format!("{before}[admin]\nlisten = \"127.0.0.1:0\"\n{admin}\n\n{rest}")
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kennel")).args(arguments).output().expect("run kennel")
}

#[test]
fn with_an_auth_file_only_probes_are_answered_without_a_password() {
    let (servers, files) = (memcacheds(1), Files::new());
    let admin = format!("auth_file = {:?}\ntoken_file = {:?}", files.path("users"), files.path("token"));
    let kennel = Kennel::start(&toml(&addresses(&servers), &admin));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(status(&kennel.ask("GET", path, "Host: h")), "200", "{path}");
    }
    for path in ["/", "/metrics", "/explain?key=k", "/hot"] {
        for (headers, expected) in [("Host: h", "401"), (WRONG, "401"), (ANN, "200"), (TOKEN, "200")] {
            let reply = kennel.ask("GET", path, headers);
            assert_eq!(status(&reply), expected, "{path} {headers}: {reply}");
            assert_eq!(reply.contains("www-authenticate: Basic"), expected == "401", "{reply}");
        }
    }
    assert!(kennel.log().contains("a request to the admin address had a wrong password or token"));
    // The password is one to look with.
    assert_eq!(status(&kennel.ask("POST", "/reload", ANN)), "401");
    assert_eq!(status(&kennel.ask("POST", "/reload", TOKEN)), "200");
}

#[test]
fn over_http_nothing_is_changed_without_the_token_and_without_a_token_file_nothing_at_all() {
    let (servers, files) = (memcacheds(1), Files::new());
    let without = Kennel::start(&toml(&addresses(&servers), ""));
    for headers in ["Origin: http://evil.example", "Host: 127.0.0.1", TOKEN] {
        let reply = without.ask("POST", "/reload", headers);
        assert!(status(&reply) == "403" && reply.contains("kennel reload"), "{headers}: {reply}");
    }
    assert!(!without.log().contains("POST /reload"));
    let with = Kennel::start(&toml(&addresses(&servers), &format!("token_file = {:?}", files.path("token"))));
    // As a web page in a browser on this host would send it.
    for headers in
        ["Origin: http://evil.example", "Authorization: Bearer 0123456789abcdeF", "Authorization: Bearer "]
    {
        let reply = with.ask("POST", "/reload", headers);
        assert!(status(&reply) == "401" && reply.contains("www-authenticate: Bearer"), "{headers}: {reply}");
    }
    assert!(!with.log().contains("POST /reload"));
    assert_eq!(status(&with.ask("POST", "/reload", TOKEN)), "200");
    assert_eq!(status(&with.ask("GET", "/metrics", "Host: h")), "200", "to look needs nothing");
}

#[test]
fn on_the_control_socket_the_user_of_the_sidecar_reloads_without_a_token() {
    let (servers, files) = (memcacheds(1), Files::new());
    let control = files.path("control.sock");
    let with = |more: &str| toml(&addresses(&servers), &format!("control = {control:?}\n{more}"));
    let kennel = Kennel::start(&with(""));
    let file = kennel.dir().join("kennel.toml").display().to_string();
    let reload = |arguments: &[&str]| {
        let output = run(&[&["reload"], arguments].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (done, changes, errors) = reload(&["--config", &file]);
    assert!(done && changes == "nothing has changed\n", "{changes}{errors}");
    assert!(kennel.log().contains("asked on the control socket: reading the configuration"));
    kennel.write_config(&with("hot = false"));
    let (done, changes, errors) = reload(&["--control", &control]);
    assert!(done && changes.contains("admin.hot"), "{changes}{errors}");
    assert_eq!(status(&kennel.ask("GET", "/hot", "Host: 127.0.0.1")), "404");
    // Each mistake is told, and nothing has changed. Asked of the socket that is in force.
    kennel.write_config(&with("hot = true\ncolor = 1\nexplain = 7"));
    let (done, changes, errors) = reload(&["--control", &control]);
    assert!(!done && changes.is_empty(), "{changes}{errors}");
    assert!(errors.contains("admin.color") && errors.contains("admin.explain"), "{errors}");
    assert_eq!(status(&kennel.ask("GET", "/hot", "Host: 127.0.0.1")), "404");
    drop(kennel);
    let (done, _, errors) = reload(&["--control", &control]);
    assert!(!done && errors.contains("no sidecar listens there"), "{errors}");
}

#[test]
fn keys_are_shown_under_no_foreign_name_and_not_where_that_is_switched_off() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&toml(&addresses(&servers), ""));
    for (host, expected) in [
        ("Host: rebound.example", "403"),
        ("Host: rebound.example:9111", "403"),
        ("Host: 127.0.0.1.example", "403"),
        ("Host: 127.0.0.1:9111", "200"),
        ("Host: [::1]:9111", "200"),
        ("Host: localhost:9111", "200"),
    ] {
        assert_eq!(status(&kennel.ask("GET", "/explain?key=k", host)), expected, "{host}");
    }
    assert_eq!(status(&kennel.ask("GET", "/metrics", "Host: rebound.example")), "200", "it has no keys");
    let off = Kennel::start(&toml(&addresses(&servers), "explain = false\ntrace = false\nhot = false"));
    for feature in ["trace", "hot"] {
        let reply = off.ask("GET", &format!("/{feature}"), "Host: 127.0.0.1");
        let why = format!("switched off by admin.{feature}");
        assert!(status(&reply) == "404" && reply.contains(&why), "{reply}");
    }
    let reply = off.ask("GET", "/explain?key=k", "Host: 127.0.0.1");
    assert!(status(&reply) == "404" && reply.contains("switched off by admin.explain"), "{reply}");
    let output = run(&["explain", "--admin", &off.admin().to_string(), "k"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("switched off by admin.explain"), "{errors}");
}

#[test]
fn over_tls_the_commands_find_the_certificate_and_the_credentials_in_the_configuration() {
    let (servers, files, made) = (memcacheds(1), Files::new(), Certificates::new());
    let admin = |more: &str| {
        let (cert, key) = (made.path("server.pem"), made.path("server.key"));
        format!("tls = {{ cert = {cert:?}, key = {key:?} }}\nauth_file = {:?}\n{more}", files.path("users"))
    };
    let kennel = Kennel::start_with_tls_admin(&toml(&addresses(&servers), &admin("")));
    let address = kennel.admin().to_string();
    let file = kennel.dir().join("kennel.toml").display().to_string();
    kennel.client().store("k", b"v", 60);
    let succeeds = |arguments: &[&str]| {
        let output = run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let port = address.rsplit_once(':').expect("a port").1;
    let listen = format!("listen = \"127.0.0.1:{port}\"");
    kennel.write_config(&toml(&addresses(&servers), &admin("")).replace("listen = \"127.0.0.1:0\"", &listen));
    assert_eq!(succeeds(&["health", "--config", &file]), "ready\n");
    let text = succeeds(&["explain", "--config", &file, "k"]);
    assert!(text.starts_with("k: fresh for ") && text.contains("asked by sidecar "), "{text}");
    let table = succeeds(&["top", "--once", "--config", &file]);
    assert!(table.starts_with("by requests; "), "{table}");
    succeeds(&["trace", "--for", "0.1s", "--config", &file]);
    let wrong = admin("").replace(&files.path("users"), &files.path("token"));
    kennel.write_config(&toml(&addresses(&servers), &wrong).replace("listen = \"127.0.0.1:0\"", &listen));
    for command in ["top", "trace"] {
        let output = run(&[command, "--config", &file]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains(" replied 401: "), "{errors}");
    }
    // A client that checks the certificate by the CA, and one without TLS.
    let request = format!("printf 'GET /metrics HTTP/1.0\\r\\n{ANN}\\r\\n\\r\\n'");
    let client = format!("openssl s_client -quiet -verify_return_error -CAfile {}", made.path("ca.pem"));
    let fetch = format!("{request} | {client} -connect {address} 2>&1");
    let fetched = Command::new("sh").args(["-c", &fetch]).output().expect("run openssl");
    assert!(String::from_utf8_lossy(&fetched.stdout).contains("kennel_build_info"), "{fetched:?}");
    assert!(!kennel.ask("GET", "/healthz", "Host: h").contains("HTTP"));
    // A sidecar with another certificate is not trusted.
    let other = made.path("client.pem");
    let wrong = admin("").replace(&made.path("server.pem"), &other).replace("server.key", "client.key");
    kennel.write_config(&toml(&addresses(&servers), &wrong).replace("listen = \"127.0.0.1:0\"", &listen));
    let output = run(&["health", "--config", &file]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("invalid peer certificate"), "{errors}");
}

#[test]
fn users_token_and_what_is_shown_follow_a_reload_and_a_mistake_in_them_changes_nothing() {
    let (servers, files) = (memcacheds(1), Files::new());
    let with =
        |more: &str| toml(&addresses(&servers), &format!("token_file = {:?}\n{more}", files.path("token")));
    let kennel = Kennel::start(&with(""));
    let explained = |headers: &str| status(&kennel.ask("GET", "/explain?key=k", headers)).to_owned();
    assert_eq!(explained("Host: 127.0.0.1"), "200");
    kennel.write_config(&with("explain = false"));
    assert_eq!(status(&kennel.ask("POST", "/reload", TOKEN)), "200");
    assert_eq!(explained("Host: 127.0.0.1"), "404");
    kennel.write_config(&with(&format!("auth_file = {:?}", files.path("users"))));
    assert_eq!(status(&kennel.ask("POST", "/reload", TOKEN)), "200");
    assert_eq!((&explained("Host: 127.0.0.1")[..], &explained(ANN)[..]), ("401", "200"));
    std::fs::write(files.path("token"), "short").expect("write the token");
    let reply = kennel.ask("POST", "/reload", TOKEN);
    assert!(status(&reply) == "422" && reply.contains("admin.token_file"), "{reply}");
    std::fs::write(files.path("token"), "fedcba9876543210").expect("write the token");
    assert_eq!(status(&kennel.ask("POST", "/reload", TOKEN)), "200");
    assert_eq!(status(&kennel.ask("POST", "/reload", TOKEN)), "401", "it is another token now");
}
