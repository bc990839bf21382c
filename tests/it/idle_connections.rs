//! A connection that is closed while nothing is on the way is no failure, and a queue that clients fill is not the server's.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::between::{Between, pump};
use crate::world::{Kennel, Memcached, addresses, eventually, guarded, memcacheds, raw, sidecar_toml};

/// The connections that pass through a [`Between`].
type Open = Arc<Mutex<Vec<TcpStream>>>;

/// Passes everything on. What is `open` can be closed as a load balancer does.
fn balancer(target: &Memcached, open: &Open) -> Between {
    let open = Arc::clone(open);
    let target = target.address().parse().expect("an address");
    Between::start(target, move |client, server, over| {
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
            let over = over.clone();
            std::thread::spawn(move || {
                pump(&mut from, &over, |bytes| to.write_all(bytes).is_ok());
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        open.lock().expect("no panic").extend([client, server]);
    })
}

#[test]
fn an_idle_connection_that_is_closed_fails_no_request() {
    let servers = memcacheds(1);
    let open = Open::default();
    let between = balancer(&servers[0], &open);
    let kennel =
        Kennel::start(&sidecar_toml(&[between.address()], &[guarded("k", "k*", ""), raw("rest", "*")]));
    let mut client = kennel.client();
    for round in 0..5 {
        // Shorter-lived connections are not taken for idle.
        std::thread::sleep(Duration::from_millis(1_100));
        let closed = std::mem::take(&mut *open.lock().expect("no panic"));
        closed.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        for key in ["raw", "k"] {
            assert_eq!(client.set(&format!("{key}{round}"), b"v", 60), "STORED");
            assert_eq!(client.get(&format!("{key}{round}")).as_deref(), Some(&b"v"[..]));
        }
    }
    let log = kennel.log();
    assert!(log.contains("an idle connection was closed") && !log.contains("not connected"), "{log}");
}

#[test]
fn clients_that_queue_much_do_not_make_a_server_sick() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("k", "k*", "")]));
    std::thread::scope(|scope| {
        for n in 0..30 {
            let mut client = kennel.client();
            scope.spawn(move || {
                let gets: String = (0..500).map(|key| format!("get k{n}:{key}\r\n")).collect();
                client.send(gets.as_bytes());
                // Some may time out behind so many, and are misses too.
                (0..500).for_each(|_| assert_eq!(client.line(), "END"));
            });
        }
    });
    let to_sick = kennel.metrics().sum("kennel_upstream_health_changes_total", &["to=\"sick\""]);
    assert_eq!(to_sick, 0.0, "{}", kennel.log());
    eventually("it serves", || kennel.client().set("k", b"v", 60) == "STORED");
}
