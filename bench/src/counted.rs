//! Reads as counted by the servers.

use std::io::{BufRead, BufReader, Write};

use crate::socket::Address;

/// Reads of keys that these servers have counted since their start.
pub(crate) fn reads(servers: &[Address]) -> Result<u64, String> {
    servers.iter().map(|server| of_one(server).map_err(|error| format!("stats of {server}: {error}"))).sum()
}

fn of_one(server: &Address) -> Result<u64, String> {
    let mut socket = server.connect().map_err(|error| error.to_string())?;
    socket.write_all(b"stats\r\n").map_err(|error| error.to_string())?;
    let mut answer = String::new();
    let mut lines = BufReader::new(socket);
    while !answer.ends_with("END\r\n") {
        if lines.read_line(&mut answer).map_err(|error| error.to_string())? == 0 {
            return Err("it was cut off".into());
        }
    }
    sum(&answer).ok_or_else(|| "cmd_get and cmd_touch are not there".into())
}

/// memcached counts each key of a `get`, and each `mg`, in cmd_get. It counts a read with a touch, as `gat` and `mg` with T, only
/// in cmd_touch.
fn sum(stats: &str) -> Option<u64> {
    let of = |name: &str| -> Option<u64> {
        let lines = stats.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        lines.into_iter().find(|(is, _)| *is == name)?.1.trim().parse().ok()
    };
    Some(of("cmd_get")? + of("cmd_touch")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_gets_and_touches_and_nothing_else() {
        let stats = "STAT cmd_get 20\r\nSTAT cmd_set 7\r\nSTAT cmd_touch 3\r\nSTAT get_hits 19\r\nEND\r\n";
        assert_eq!(sum(stats), Some(23));
        assert_eq!(sum("STAT cmd_get 20\r\nEND\r\n"), None);
    }
}
