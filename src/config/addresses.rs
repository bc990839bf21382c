//! Which addresses conflict, as far as that is known without resolving host names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::listener::ListenAddress;

/// Whether a connection to a host and port reaches a listener of this process.
pub(crate) fn reaches(host: &str, port: u16, listener: &ListenAddress) -> bool {
    let server = ListenAddress { host: host.to_owned(), port };
    let accepted = |to: IpAddr| addresses(&listener.host).any(|on| accepts(on, to));
    same_address(&server, listener)
        || port == listener.port && addresses(host).map(connect_target).any(accepted)
}

/// Whether two listeners cannot be bound at the same time.
pub(super) fn overlap(a: &ListenAddress, b: &ListenAddress) -> bool {
    let both = |x: IpAddr| addresses(&b.host).any(|y| covers(x, y) || covers(y, x));
    same_address(a, b) || a.port != 0 && a.port == b.port && addresses(&a.host).any(both)
}

fn same_address(a: &ListenAddress, b: &ListenAddress) -> bool {
    a.port != 0 && a.port == b.port && a.host.eq_ignore_ascii_case(&b.host)
}

/// The IP addresses of a host without a look-up: an address literal or `localhost`; none for any other name.
fn addresses(host: &str) -> impl Iterator<Item = IpAddr> {
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_local = name.eq_ignore_ascii_case("localhost");
    let local = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let local = local.into_iter().filter(move |_| is_local);
    local.chain(host.parse().ok().map(|ip: IpAddr| ip.to_canonical()))
}

/// A connection to the unspecified address goes to this machine.
fn connect_target(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Whether a listener accepts connections to an address. A listener on `[::]` accepts IPv4 too. Of the addresses that an
/// unspecified one stands for, only the loopback ones are known to belong to this machine.
fn accepts(listener: IpAddr, to: IpAddr) -> bool {
    match listener {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => to.is_ipv4() && to.is_loopback(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => to.is_loopback(),
        listener => listener == to,
    }
}

/// Whether a listener on one address also listens on the other.
fn covers(listener: IpAddr, other: IpAddr) -> bool {
    match listener {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => other.is_ipv4(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
        listener => listener == other,
    }
}
