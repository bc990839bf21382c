//! Promise 8: through a raw rule every byte is what memcached itself would have sent. The scripts are in `raw`.

use crate::client::Client;
use crate::raw::{Pieces, run, same_replies, scripts, without_cas};
use crate::world::{Kennel, Memcached, addresses, memcacheds, raw, sidecar_toml};

/// A server to compare with, and a sidecar with a raw rule in front of `n` others.
fn fleet(n: usize) -> (Memcached, Vec<Memcached>, Kennel) {
    let servers: Vec<Memcached> = (0..n).map(|_| Memcached::newest(&[])).collect();
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("everything", "*")]));
    (Memcached::newest(&[]), servers, kennel)
}

#[test]
fn a_raw_rule_in_front_of_one_server_answers_every_script_as_memcached_does() {
    let (memcached, _servers, kennel) = fleet(1);
    same_replies(|| Client::tcp(memcached.address), || kennel.client(), Pieces::Whole, |_| true);
}

#[test]
fn a_raw_rule_in_front_of_three_servers_answers_every_script_as_one_memcached_does() {
    let (memcached, _servers, kennel) = fleet(3);
    same_replies(|| Client::tcp(memcached.address), || kennel.client(), Pieces::Whole, |_| true);
}

#[test]
fn it_does_not_matter_how_the_bytes_were_cut() {
    let (memcached, _servers, kennel) = fleet(3);
    let (left, right) = (|| Client::tcp(memcached.address), || kennel.client());
    same_replies(left, right, Pieces::Bytes, |s| s.send.len() < 1000);
    let longest = scripts().iter().filter(|s| s.name == "pipelined, mixed").map(|s| s.send.len()).max();
    for at in 0..longest.expect("in the table") {
        same_replies(left, right, Pieces::SplitAt(at), |s| s.name == "pipelined, mixed");
    }
}

#[test]
fn cas_through_a_raw_rule_compares_with_what_gets_gave() {
    let (memcached, _servers, kennel) = fleet(3);
    let transcript = |mut client: Client| {
        let mut replies = vec![client.set("k", b"1", 0)];
        let (_, cas) = client.gets("k").expect("just stored");
        for command in [
            format!("cas k 0 0 1 {cas}\r\n2"),
            format!("cas k 0 0 1 {cas}\r\n3"),
            format!("cas none 0 0 1 {cas}\r\n4"),
            format!("ms k 1 C{cas}\r\n5"),
            format!("md k C{cas}"),
            "get k".to_owned(),
        ] {
            replies.push(client.execute(&command));
        }
        client.expect(b"2\r\nEND\r\n");
        replies
    };
    let through = transcript(kennel.client());
    assert_eq!(through, transcript(Client::tcp(memcached.address)));
    assert_eq!(through, ["STORED", "STORED", "EXISTS", "NOT_FOUND", "EX", "EX", "VALUE k 0 1"]);
}

#[test]
fn one_over_long_key_takes_no_reply_from_what_was_pipelined_before_it() {
    let (_memcached, _servers, kennel) = fleet(3);
    let mut client = kennel.client();
    client.store("k", b"v", 0);
    client.send(&[b"get k\r\nget k ", &[b'x'; 251][..], b"\r\nget k\r\n"].concat());
    client.expect(
        b"VALUE k 0 1\r\nv\r\nEND\r\nCLIENT_ERROR bad command line format\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
    );
}

#[test]
fn requests_before_a_half_close_get_their_replies() {
    let (memcached, _servers, kennel) = fleet(3);
    let answered = |mut client: Client| {
        client.send(b"set h 0 0 1\r\n1\r\nincr h 1\r\ngets h\r\n");
        client.half_close();
        without_cas(&client.rest())
    };
    assert_eq!(answered(kennel.client()), answered(Client::tcp(memcached.address)));
}

#[test]
fn a_unix_socket_returns_the_same_as_a_tcp_port() {
    let servers = memcacheds(1);
    let dir = crate::world::temp_dir();
    let listen = format!("[listen]\nunix = [{:?}]", dir.join("k.sock"));
    let toml = sidecar_toml(&addresses(&servers), &[raw("everything", "*")]).replace("[listen]", &listen);
    let kennel = Kennel::start(&toml);
    let script = &scripts()[1];
    let (unix, tcp) =
        (run(kennel.unix_client(), script, Pieces::Whole), run(kennel.client(), script, Pieces::Whole));
    let _ = std::fs::remove_dir_all(&dir);
    assert!(unix.starts_with(b"STORED\r\n"), "{}", unix.escape_ascii());
    assert_eq!(unix, tcp);
}

#[test]
fn version_looks_like_a_memcached_of_1_6() {
    let (_memcached, _servers, kennel) = fleet(1);
    let reply = kennel.client().execute("version");
    assert!(reply.starts_with("VERSION 1.6."), "libmemcached parses it: {reply}");
}
