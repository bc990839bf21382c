//! The servers of the two copies of one key, for what outlives a request and the configuration under which it began.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use super::pipeline::Proxy;
use crate::clock::Clock;
use crate::failover::Views;
use crate::kinds::{Inputs, Side};
use crate::random::Random;
use crate::upstream::connection::Connection;

/// Where the two copies of a key may be.
pub(crate) struct CopyServers {
    copies: [Homes; 2],
    views: Arc<Views>,
    /// Zero of the clock of the views.
    start: Instant,
    clock: Clock,
    random: RefCell<Random>,
}

/// The servers of one copy.
struct Homes {
    /// The index of the one that the ring names.
    home: usize,
    at_home: Rc<Connection>,
    standby: Rc<Connection>,
}

/// Where a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyPlace {
    pub(crate) fence: u64,
    is_standby: bool,
}

impl CopyServers {
    /// Those of a key in a pool, which must fail over: otherwise `None`.
    pub(crate) fn new(proxy: &Proxy, pool: usize, own: &[u8]) -> Option<CopyServers> {
        let of = &proxy.pools[pool];
        let copies = [false, true].map(|copy| {
            let home = if copy { of.second_server_index(own) } else { of.server_index(own) };
            let connection = |at: usize| Rc::clone(&of.connections()[at]);
            Homes { home, at_home: connection(home), standby: connection(of.standby_of_copy(own, copy)) }
        });
        let seed = proxy.random.borrow_mut().any();
        Some(CopyServers {
            copies,
            views: proxy.views[pool].clone()?,
            start: proxy.start,
            clock: proxy.clock.clone(),
            random: RefCell::new(Random::seeded(seed)),
        })
    }

    /// Where a copy is now; `None` if no view is valid.
    pub(crate) fn place(&self, side: Side) -> Option<CopyPlace> {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let view = self.views.get(self.homes(side).home, now)?;
        Some(CopyPlace { fence: view.fence, is_standby: view.standby })
    }

    /// The connection to the server of that place.
    pub(crate) fn connection(&self, side: Side, place: CopyPlace) -> &Connection {
        let homes = self.homes(side);
        if place.is_standby { &homes.standby } else { &homes.at_home }
    }

    pub(crate) fn inputs(&self) -> Inputs {
        Inputs { now: self.clock.now_ms(), random: self.random.borrow_mut().any() }
    }

    fn homes(&self, side: Side) -> &Homes {
        &self.copies[usize::from(side == Side::Second)]
    }
}
