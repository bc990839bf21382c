//! What stands for a server on a ring.

use crate::upstream::spec::{Address, ServerSpec};

/// The port that is left out of a server's identity.
const DEFAULT_PORT: u16 = 11211;

/// The string that identifies a server on the ring.
pub(super) fn identity(index: usize, server: &ServerSpec) -> String {
    match (&server.name, &server.address) {
        (None, Address::Tcp { host, port: DEFAULT_PORT }) => host.clone(),
        (None, Address::Unix(path)) => format!("{}:0", path.display()),
        _ => identity_with_port(index, server),
    }
}

/// The same for libraries that leave no port out, and add none to a path.
pub(super) fn identity_with_port(index: usize, server: &ServerSpec) -> String {
    match (&server.name, &server.address) {
        (Some(name), _) => name.clone(),
        (None, Address::Tcp { host, port }) => format!("{host}:{port}"),
        (None, Address::Unix(path)) => path.display().to_string(),
        // Its index, because its memory limit may change.
        (None, Address::Embedded { .. }) => format!("embedded:{index}"),
        (None, Address::Discovered(lookup)) => lookup.to_string(),
    }
}
