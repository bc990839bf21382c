//! The connections of one worker to the servers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::task::{AbortHandle, spawn_local};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::metrics::ServerMetrics;
use crate::random::Random;
use crate::upstream::connection::Connection;
use crate::upstream::server::Server;

/// The connections of one worker to the servers of all pools.
#[derive(Default)]
pub(super) struct Connections(RefCell<Vec<DrivenConnection>>);

struct DrivenConnection {
    server: Arc<Server>,
    connection: Rc<Connection>,
    driver: AbortHandle,
}

impl Connections {
    /// The connection to a server, made if there is none.
    pub(super) fn to(
        &self,
        server: Arc<Server>,
        first_attempt: TaskTrackerToken,
        metrics: impl FnOnce() -> ServerMetrics,
    ) -> Rc<Connection> {
        let mut all = self.0.borrow_mut();
        if let Some(known) = all.iter().find(|known| Arc::ptr_eq(&known.server, &server)) {
            return Rc::clone(&known.connection);
        }
        let connection = Connection::new(Arc::clone(&server), first_attempt, metrics());
        let driver = spawn_local(Rc::clone(&connection).drive(Random::from_entropy())).abort_handle();
        all.push(DrivenConnection { server, connection: Rc::clone(&connection), driver });
        connection
    }

    /// Closes the connections that no pool has.
    pub(super) fn close_unused(&self) {
        self.0.borrow_mut().retain(|DrivenConnection { connection, driver, .. }| {
            // One is this list's, one its driver's.
            let is_used = Rc::strong_count(connection) > 2;
            if !is_used {
                driver.abort();
            }
            is_used
        });
    }
}
