//! A connection that is closed while nothing is on the way is no failure.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::between::{Between, pump};
use crate::world::{Kennel, Memcached, guarded, memcacheds, raw, sidecar_toml};

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
