//! Tables.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use super::{Ends, Fleet, fleet, impatient_fleet, rule, store, text, with_one_copy_and_two};
use crate::client::Client;
use crate::world::{direct, eventually};

with_one_copy_and_two!(a_table_refuses_other_commands_and_pipelined_ones_take_effect_in_order,);

const COMMANDS: &str = "CLIENT_ERROR a table has only the commands get, delete, and any command on KEY/NAME";

/// The names, sorted.
fn names(client: &mut Client, key: &str) -> Vec<String> {
    let mut names: Vec<_> = text(client, key).unwrap_or_default().lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn elements_are_items_as_any_and_the_table_lists_those_that_are_there() {
    let (servers, [a, b]) = fleet(&[rule("carts", "cart:*", "table", "")]);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(text(&mut a, "cart:1"), None);
    assert_eq!(store(&mut a, "set cart:1/ann 7 100", "one"), "STORED");
    assert_eq!(store(&mut a, "add cart:1/bob 0 0", "5"), "STORED");
    assert_eq!(store(&mut b, "add cart:1/bob 0 0", "6"), "NOT_STORED");
    assert_eq!(names(&mut b, "cart:1"), ["ann", "bob"]);
    // Any command, on one server.
    let (value, cas) = b.gets("cart:1/ann").unwrap();
    assert_eq!(value, b"one");
    assert_eq!(b.execute(&format!("cas cart:1/ann 3 0 3 {cas}\r\ntwo")), "STORED");
    assert_eq!(b.execute(&format!("cas cart:1/ann 3 0 3 {cas}\r\nbad")), "EXISTS");
    assert_eq!(store(&mut a, "append cart:1/ann 0 0", "+"), "STORED");
    assert_eq!(store(&mut a, "prepend cart:1/ann 0 0", "-"), "STORED");
    assert_eq!(text(&mut b, "cart:1/ann").as_deref(), Some("-two+"));
    assert_eq!(store(&mut b, "replace cart:1/ann 0 50", "three"), "STORED");
    assert_eq!(store(&mut b, "replace cart:1/cid 0 0", "x"), "NOT_STORED");
    assert_eq!(
        (a.execute("incr cart:1/bob 37"), a.execute("incr cart:1/cid 1")),
        ("42".into(), "NOT_FOUND".into())
    );
    assert_eq!(
        (a.execute("touch cart:1/ann 60"), a.execute("touch cart:1/cid 60")),
        ("TOUCHED".into(), "NOT_FOUND".into())
    );
    a.send(b"gat 70 cart:1/ann cart:1/cid\r\n");
    a.expect(b"VALUE cart:1/ann 0 5\r\nthree\r\nEND\r\n");
    assert!(a.ttl("cart:1/ann").is_some_and(|ttl| (65..=70).contains(&ttl)));
    let items = b.get_many(&["cart:1/bob", "cart:1", "cart:1/cid", "other", "cart:1/ann"]);
    let found: Vec<_> = items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(found, ["cart:1/bob", "cart:1", "cart:1/ann"]);
    // Meta commands, and quiet ones.
    a.send(b"ms cart:1/dan 1 c T60\r\nx\r\n");
    assert!(a.line().starts_with("HD c"));
    a.send(b"ms cart:1/eve 1 q\r\nx\r\nset cart:1/fy 0 0 1 noreply\r\nx\r\nma cart:1/n N60 J8 v\r\nmn\r\n");
    a.expect(b"VA 1\r\n8\r\nMN\r\n");
    assert_eq!(names(&mut b, "cart:1"), ["ann", "bob", "dan", "eve", "fy", "n"]);
    assert_eq!(
        a.execute("mg cart:1/new v N60"),
        "CLIENT_ERROR a flag does not apply to the key of a structure"
    );
    b.send(b"mg cart:1/bob v f t\r\nmg cart:1/cid v\r\nmd cart:1/n\r\nmg cart:1 s\r\n");
    b.expect(b"VA 2 f0 t-1\r\n42\r\nEN\r\nHD\r\nHD s19\r\n");
    assert_eq!(a.delete("cart:1/bob"), "DELETED");
    assert_eq!(names(&mut b, "cart:1"), ["ann", "dan", "eve", "fy"]);
    // All elements are on the server of the table.
    let holders: usize = servers.iter().filter(|server| direct(server).get("cart:1/ann").is_some()).count();
    let holder = servers.iter().position(|server| direct(server).get("cart:1/ann").is_some()).unwrap();
    assert_eq!(holders, 1);
    assert!(
        ["dan", "eve", "fy"]
            .iter()
            .all(|name| direct(&servers[holder]).get(&format!("cart:1/{name}")).is_some())
    );
    // A delete of the table deletes its elements, and nothing of another.
    assert_eq!(store(&mut a, "set cart:2/ann 0 0", "x"), "STORED");
    assert_eq!((a.delete("cart:1"), b.delete("cart:1")), ("DELETED".into(), "NOT_FOUND".into()));
    assert!(["ann", "dan", "eve", "fy"].iter().all(|name| text(&mut b, &format!("cart:1/{name}")).is_none()));
    assert_eq!((text(&mut b, "cart:1"), names(&mut b, "cart:2")), (None, vec!["ann".to_owned()]));
}

fn a_table_refuses_other_commands_and_pipelined_ones_take_effect_in_order(fleet: Fleet) {
    let (_servers, [a, _b]) = fleet(&[rule("carts", "cart:*", "table", "ttl = \"1h\"")]);
    let mut client = a.client();
    for command in ["set", "add", "replace", "append", "prepend"] {
        assert_eq!(store(&mut client, &format!("{command} cart:1 0 0"), "x"), COMMANDS);
    }
    for command in ["incr cart:1 1", "touch cart:1 1", "gat 1 cart:1", "ma cart:1", "cas cart:1 0 0 1 1\r\n1"]
    {
        assert_eq!(client.execute(command), COMMANDS, "{command}");
    }
    let no_name = "CLIENT_ERROR what follows the / of a table must be a name";
    assert_eq!(store(&mut client, "set cart:1/ 0 0", "x"), no_name);
    // The rule's ttl limits that of the elements.
    for (exptime, longest) in [(0, 3_600), (7_200, 3_600), (60, 60)] {
        assert_eq!(store(&mut client, &format!("set cart:2/ann 0 {exptime}"), "x"), "STORED");
        assert!(client.ttl("cart:2/ann").is_some_and(|ttl| (longest - 5..=longest).contains(&ttl)));
    }
    let set = |n: usize| format!("set cart:3/{n} 0 0 1\r\nx\r\n");
    let mut sent: String = (0..50).map(set).collect();
    let mut expected = "STORED\r\n".repeat(50);
    sent += "delete cart:3\r\nget cart:3/7\r\nget cart:3 cart:3/8\r\nset cart:3/ann 0 0 1\r\nx\r\nget cart:3\r\nset cart:3/bob 0 0 1\r\nx\r\n";
    expected += "DELETED\r\nEND\r\nEND\r\nSTORED\r\nVALUE cart:3 0 4\r\nann\n\r\nEND\r\nSTORED\r\n";
    client.send(sent.as_bytes());
    client.expect(expected.as_bytes());
}

#[test]
fn listings_and_elements_agree_with_writers_that_die_and_a_server_that_restarts() {
    const TABLES: usize = 6;
    let (mut servers, [a, b]) = impatient_fleet(&[rule("carts", "cart:*", "table", "")]);
    let is_over = AtomicBool::new(false);
    let written = AtomicUsize::new(0);
    let mut a = Some(a);
    thread::scope(|scope| {
        let (is_over, written) = (&is_over, &written);
        let _ends = Ends(is_over);
        for n in 0..4 {
            // Those of the first sidecar lose it in the middle of a command.
            let sidecar = if n < 2 { a.as_ref().expect("it lives") } else { &b };
            let stream = TcpStream::connect(sidecar.address()).expect("a connection");
            let mut sender = BufReader::new(stream);
            scope.spawn(move || {
                for round in 0.. {
                    if is_over.load(SeqCst) {
                        break;
                    }
                    let (table, name) = (round % TABLES, format!("w{n}-{}", round * 7 % 20));
                    let command = match round % 3 {
                        0 => format!("delete cart:{table}/{name}\r\n"),
                        _ => format!("set cart:{table}/{name} 0 0 1\r\nx\r\n"),
                    };
                    let mut reply = String::new();
                    let sent = sender.get_mut().write_all(command.as_bytes());
                    if sent.and_then(|()| sender.read_line(&mut reply)).is_err() || reply.is_empty() {
                        assert!(n < 2, "the second sidecar lives");
                        break;
                    }
                    let is_known = ["STORED\r\n", "DELETED\r\n", "NOT_FOUND\r\n"].contains(&reply.as_str());
                    assert!(is_known || reply.starts_with("SERVER_ERROR"), "{reply}");
                    written.fetch_add(1, SeqCst);
                }
            });
        }
        let mut reader = b.client();
        let mut until = |count: usize| {
            eventually("commands are carried out", || {
                for table in 0..TABLES {
                    reader.send(format!("get cart:{table}\r\n").as_bytes());
                    let _ = reader.items();
                }
                written.load(SeqCst) >= count
            });
        };
        until(300);
        a.take().expect("it lives").kill();
        until(900);
        servers[0].kill();
        servers[0].restart();
        until(written.load(SeqCst) + 600);
    });
    let mut client = b.client();
    eventually("all servers are used", || client.execute("set cart:0/last 0 0 1\r\nx") == "STORED");
    for table in 0..TABLES {
        for _ in 0..3 {
            let found = names(&mut client, &format!("cart:{table}"));
            for name in (0..4).flat_map(|n| (0..20).map(move |k| format!("w{n}-{k}"))) {
                let is_there = text(&mut client, &format!("cart:{table}/{name}")).is_some();
                assert_eq!(found.contains(&name), is_there, "cart:{table}/{name}");
            }
        }
    }
}
