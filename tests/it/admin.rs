//! The admin listener serves monitoring even while other clients occupy it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::world::{Kennel, addresses, guarded, memcacheds, sidecar_toml, timed};

#[test]
fn idle_connections_at_the_admins_address_keep_no_probe_out_and_are_closed_after_seconds() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("all", "*", "")]));
    let connect = || TcpStream::connect(kennel.admin()).expect("a connection");
    let mut idle: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    // Connections with an incomplete request.
    idle.iter_mut().step_by(3).for_each(|stream| {
        // A connection that was closed to make room may not be replaced by it.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost:");
    });
    for path in ["/healthz", "/readyz", "/metrics"] {
        let (response, took) = timed(|| kennel.http(path));
        assert!(response.contains("200 OK") && took < Duration::from_secs(2), "{path}: {took:?}: {response}");
    }
    // Connections that were not closed to make room for others.
    let ((), took) = timed(|| {
        for stream in &mut idle {
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
            let mut response = Vec::new();
            let ended = stream.read_to_end(&mut response);
            assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        }
    });
    assert!(took < Duration::from_secs(8), "{took:?}");
}
