//! Start times of proxies.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::contender::{Contender, Programs, Setup, command};
use crate::loads::{LOADS, Load};
use crate::process::{Process, free_ports};
use crate::socket::Address;

/// Its name on the command line, like that of a load.
pub(crate) const NAME: &str = "start";
pub(crate) const ABOUT: &str = "20 starts of twemproxy and of Kennel, with 3 servers and 1 raw rule";

/// Starts of each contender.
const STARTS: usize = 20;

/// Measures each start of these contenders, from its exec until a connection is accepted. They alternate.
pub(crate) fn measure(
    contenders: &[Contender],
    programs: &Programs,
    directory: &Path,
    stop: &AtomicBool,
) -> Result<Vec<(Contender, Vec<Duration>)>, String> {
    let load = &LOADS[0];
    // The name gives it a directory of its own.
    let servers = Setup::start(&Load { name: NAME, ..*load }, &[], programs, directory)?;
    let ports: Vec<u16> = servers.addresses.iter().filter_map(Address::port).collect();
    let mut all: Vec<(Contender, Vec<Duration>)> =
        contenders.iter().filter(|contender| starts(**contender)).map(|one| (*one, Vec::new())).collect();
    for _ in 0..STARTS {
        for (contender, times) in &mut all {
            let free = free_ports(2).map_err(|error| format!("no free port: {error}"))?;
            let listen = Address::loopback(free[0]);
            let (program, arguments) =
                command(*contender, load, programs, directory, &listen, free[1], &ports)?;
            times.push(Process::time_to_listen(&program, &arguments, directory, &listen)?);
            if stop.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
        }
    }
    Ok(all)
}

/// Kennel is started with a raw rule: rules and tags are the same program.
pub(crate) fn starts(contender: Contender) -> bool {
    matches!(contender, Contender::Twemproxy | Contender::KennelRaw)
}
