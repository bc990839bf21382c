use bytes::BufMut;

use super::*;
use crate::metrics::{Metrics, ServerName};
use crate::upstream::{Address, ServerSpec};

fn connection() -> Rc<Connection> {
    let server = ServerName { pool: "main".into(), server: "a".into() };
    let metrics = Metrics::new(Vec::new(), vec![server], 1);
    let (address, second) = (Address::Embedded { limit: 1 << 20 }, Duration::from_secs(1));
    let spec = ServerSpec { address, weight: 1, name: None };
    let server = Server::new(0, &spec, second, second, || 1_700_000_000_000).unwrap();
    Connection::new(Arc::new(server), metrics.worker(0))
}

/// Reads all of it, as if it had arrived at once; gives in how many pieces.
fn read(connection: &Connection, mut stream: &[u8]) -> usize {
    let (mut reading, mut reads) = (Reading::new(), 0);
    while !stream.is_empty() {
        let mut room = reading.room();
        let (piece, rest) = stream.split_at(stream.len().min(room.remaining_mut()));
        room.put_slice(piece);
        (stream, reads) = (rest, reads + 1);
        connection.hand_out(&mut reading).unwrap();
    }
    reads
}

fn said(inbox: &Inbox, ticket: Ticket) -> Vec<u8> {
    match inbox.take(ticket) {
        Some(Reply::Answered { bytes, .. } | Reply::Part { bytes, .. }) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_large_answer_of_many_values_is_read_in_few_pieces_and_the_next_one_is_left_whole() {
    for size in [100, 1_000, 20_000] {
        let value = |i: usize| format!("VALUE some:longer:key:{i} 0 {size}\r\n{}\r\n", "x".repeat(size));
        let many = (0..100).map(value).collect::<String>() + "END\r\n";
        let (connection, inbox) = (connection(), Rc::new(Inbox::default()));
        let asked = [Shape::Values, Shape::Line, Shape::Values, Shape::Line]
            .map(|shape| connection.send(&inbox, shape, None, |_| {}));
        let stream = [many.as_bytes(), b"STORED\r\n", many.as_bytes(), b"12\r\n"].concat();
        let reads = read(&connection, &stream);
        assert!(reads <= 10 + stream.len() / (8 * 1024), "{reads} of {}", stream.len());
        let said = asked.map(|ticket| said(&inbox, ticket));
        assert!(said[0] == many.as_bytes() && said[2] == said[0]);
        assert_eq!((&said[1][..], &said[3][..]), (&b"STORED\r\n"[..], &b"12\r\n"[..]));
    }
}

#[test]
fn who_asked_for_keys_on_one_line_are_told_their_own_however_large_and_what_is_behind_is_left_whole() {
    for size in [100, 1_000, 20_000] {
        let value = |key: &str| format!("VALUE {key} 0 {size}\r\n{}\r\n", "x".repeat(size));
        let (connection, one, other) = (connection(), Rc::new(Inbox::default()), Rc::new(Inbox::default()));
        let ask = |inbox: &Rc<Inbox>, keys: &[&str]| {
            keys.iter().fold(None, |last, key| {
                Some(connection.get_one_of(inbox, key.as_bytes(), How::default(), last))
            })
        };
        let asked = [ask(&one, &["a", "b", "c"]), ask(&other, &["d", "e", "f"]), ask(&one, &["g", "h"])];
        let single = connection.get(&other, b"i", How::default());
        let last = ask(&one, &["j", "k"]);
        let behind =
            connection.send(&other, Shape::Line, None, |out| out.extend_from_slice(b"touch x 1\r\n"));
        assert_eq!(connection.state.borrow().out, "get a b c d e f g h i j k\r\ntouch x 1\r\n");
        // b, d, e, g, h and j are not there.
        let stream = ["a", "c", "f", "i", "k"].map(value).concat() + "END\r\nTOUCHED\r\n";
        let reads = read(&connection, stream.as_bytes());
        assert!(reads <= 10 + stream.len() / (8 * 1024), "{reads} of {}", stream.len());
        for (inbox, ticket, keys) in [
            (&one, asked[0], &["a", "c"][..]),
            (&other, asked[1], &["f"]),
            (&one, asked[2], &[]),
            (&other, Some(single), &["i"]),
            (&one, last, &["k"]),
        ] {
            let said = said(inbox, ticket.unwrap());
            let values = keys.iter().map(|key| value(key)).collect::<String>();
            assert!(said.strip_suffix(b"END\r\n").unwrap_or(&said) == values.as_bytes(), "{keys:?}");
        }
        assert_eq!(said(&other, behind), b"TOUCHED\r\n");
        assert!(connection.state.borrow().names.first(1).is_empty());
    }
}

#[test]
fn what_is_not_believed_ends_the_connection_that_it_came_over_and_no_later_one() {
    let connection = connection();
    let distrusted = |epoch| {
        connection.distrust(epoch);
        std::mem::take(&mut connection.state.borrow_mut().distrusted)
    };
    assert!(!distrusted(9));
    (connection.state.borrow_mut().phase, connection.state.borrow_mut().made) = (Phase::Up, 3);
    assert_eq!([2, 3, 4].map(distrusted), [false, true, true]);
}
