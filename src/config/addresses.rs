//! Which addresses are the same to the system, as far as that shows without asking for the name of a host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ListenAddress;

/// Whether what is sent to a host and port comes to a listener.
pub(super) fn leads_to(host: &str, port: u16, listener: &ListenAddress) -> bool {
    let server = ListenAddress { host: host.to_owned(), port };
    let arrives = |to: IpAddr| addresses(&listener.host).any(|at| accepts(at, to));
    same_listener(&server, listener) || port == listener.port && addresses(host).map(reached).any(arrives)
}

/// Whether the system lets only one of two listen.
pub(super) fn overlap(a: &ListenAddress, b: &ListenAddress) -> bool {
    let both = |x: IpAddr| addresses(&b.host).any(|y| covers(x, y) || covers(y, x));
    same_listener(a, b) || a.port != 0 && a.port == b.port && addresses(&a.host).any(both)
}

fn same_listener(a: &ListenAddress, b: &ListenAddress) -> bool {
    a.port != 0 && a.port == b.port && a.host.eq_ignore_ascii_case(&b.host)
}

/// What a host is without a look-up: an address, this machine, or nobody knows.
fn addresses(host: &str) -> impl Iterator<Item = IpAddr> {
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_here = name.eq_ignore_ascii_case("localhost");
    let here = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let here = here.into_iter().filter(move |_| is_here);
    here.chain(host.parse().ok().map(|ip: IpAddr| ip.to_canonical()))
}

/// Who connects to no address in particular comes to this machine.
fn reached(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Whether a listener takes what comes to this address of the machine. On all IPv6 addresses, it does so on all of IPv4 too. Of
/// those that are not loopback nobody knows whose they are.
fn accepts(listener: IpAddr, to: IpAddr) -> bool {
    match listener {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => to.is_ipv4() && to.is_loopback(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => to.is_loopback(),
        listener => listener == to,
    }
}

/// Whether a listener on one address listens on the other too.
fn covers(listener: IpAddr, other: IpAddr) -> bool {
    match listener {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => other.is_ipv4(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
        listener => listener == other,
    }
}
