//! The admin server of a running process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Access, AdminSpec, CurrentAccess, Readiness, View};
use crate::listener::{self, AdminSocket, BindError, Inherited, ListenAddress, ListenSocket};
use crate::metrics::ConfigInfo;

/// A running admin server.
pub(super) struct AdminServer {
    pub(super) configured: ListenAddress,
    pub(super) access: CurrentAccess,
    pub(super) bound: SocketAddr,
    /// For a process that takes over.
    pub(super) socket: ListenSocket,
    pub(super) stop: CancellationToken,
}

/// The socket of the admin server, and who may use it.
pub(super) type BoundAdmin = (AdminSocket, Access);

/// Binds the address of the admin server, and loads its files.
pub(super) fn bind_admin(spec: &AdminSpec, inherited: &mut Inherited) -> Result<BoundAdmin, BindError> {
    let access = admin_access(spec)?;
    Ok((listener::bind_admin(&spec.listen, inherited)?, access))
}

pub(super) fn admin_access(spec: &AdminSpec) -> Result<Access, BindError> {
    Access::new(spec).map_err(|files| BindError::Files(spec.listen.to_string(), files))
}

impl AdminServer {
    /// A server for this socket, and what runs it until `stop` is cancelled.
    pub(super) fn new(
        configured: ListenAddress,
        (AdminSocket { address: bound, socket }, access): BoundAdmin,
        (view, readiness): (Arc<dyn View>, Readiness),
        stop: CancellationToken,
    ) -> io::Result<(AdminServer, impl FnOnce() -> io::Result<()> + Send + 'static)> {
        let access = CurrentAccess::new(access);
        let for_successor = ListenSocket::Tcp(socket.try_clone()?);
        let (of_server, stopped) = (access.clone(), stop.clone());
        let run = move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(admin::run(socket, of_server, view, readiness, stopped.cancelled()))
        };
        Ok((AdminServer { configured, access, bound, socket: for_successor, stop }, run))
    }

    /// The URL of the status page.
    pub(super) fn url(&self) -> String {
        let scheme = if self.access.uses_tls() { "https" } else { "http" };
        format!("{scheme}://{}/", self.bound)
    }

    /// Adds its certificate to what the metrics show.
    pub(super) fn add_certificate(&self, info: &mut ConfigInfo) {
        let is_known = |(file, _): &(String, i64)| info.certificates.iter().any(|(known, _)| known == file);
        let certificate = self.access.certificate().filter(|own| !is_known(own));
        info.certificates.extend(certificate);
    }
}
