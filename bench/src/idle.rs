//! Idle clients, and the memory that each of them costs a proxy.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::socket::{Address, Socket};
use crate::wire::{Items, Progress, Request};

/// After this time, a proxy has released what it keeps only while it is busy.
const SETTLED: Duration = Duration::from_secs(3);

/// Opens `count` connections, one after the other, each of which reads one key and then stays idle.
pub(crate) fn connect(
    count: usize,
    items: &Items,
    addresses: &[Address],
    stop: &AtomicBool,
) -> Result<Vec<Socket>, String> {
    let mut all = Vec::with_capacity(count);
    for address in addresses.iter().cycle().take(count) {
        let socket = one(items, address).map_err(|error| format!("idle client {}: {error}", all.len()))?;
        all.push(socket);
        go_on(stop)?;
    }
    Ok(all)
}

/// As [`connect`]. Also returns the resident memory, in bytes, that each has cost the proxy: the difference between before they
/// connected and when all of them are idle.
pub(crate) fn connect_and_weigh(
    count: usize,
    items: &Items,
    addresses: &[Address],
    proxy: &Process,
    stop: &AtomicBool,
) -> Result<(Vec<Socket>, f64), String> {
    settle(stop)?;
    let before = proxy.memory()?;
    let all = connect(count, items, addresses, stop)?;
    settle(stop)?;
    Ok((all, (proxy.memory()? as f64 - before as f64) / count as f64))
}

/// All read the same key, so that a proxy that caches values does not cache one per client.
fn one(items: &Items, address: &Address) -> Result<Socket, String> {
    let mut socket = address.connect().map_err(|error| error.to_string())?;
    let mut request = Request::default();
    request.keys.push(0);
    let mut bytes = Vec::new();
    items.write(&request, &mut bytes);
    socket.write_all(&bytes).map_err(|error| error.to_string())?;
    bytes.clear();
    loop {
        let mut part = [0; 4096];
        let read = socket.read(&mut part).map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("closed the connection".into());
        }
        bytes.extend_from_slice(&part[..read]);
        let (used, progress) = items.read(&bytes, &mut request)?;
        bytes.drain(..used);
        match progress {
            Progress::Partial => {}
            Progress::Done { missing: 0 } if bytes.is_empty() => return Ok(socket),
            Progress::Done { missing: 0 } => return Err("was told more than it asked for".into()),
            Progress::Done { .. } => return Err("did not get its key".into()),
        }
    }
}

fn settle(stop: &AtomicBool) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < SETTLED {
        go_on(stop)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn go_on(stop: &AtomicBool) -> Result<(), String> {
    if stop.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::tests::canned_server;

    #[test]
    fn an_idle_client_must_have_been_given_its_key() {
        let items = Items::new("test", 1, 3, 60);
        let mut value = Vec::new();
        items.write_set(0, &mut value);
        let block = value[value.len() - 5..].to_vec();
        let hit = [b"VALUE test:00000:page:000000 0 3\r\n", &block[..], b"END\r\n"].concat();
        let two = |reply: Vec<u8>| {
            connect(2, &items, &[canned_server(reply)], &AtomicBool::new(false)).map(|all| all.len())
        };
        assert_eq!(two(hit.clone()), Ok(2));
        assert!(two(b"END\r\n".to_vec()).unwrap_err().contains("idle client 0: did not get its key"));
        assert!(two([hit, b"END\r\n".to_vec()].concat()).unwrap_err().contains("more than it asked for"));
        assert!(two(b"SERVER_ERROR busy\r\n".to_vec()).unwrap_err().contains("busy"));
    }
}
