//! What is kept on each server about its copies: the mark of who has repaired it last, and the lease of who does.

use std::time::Duration;

use bytes::Bytes;

use crate::failover::repair::{RepairMark, repair_lease_key, repair_mark_key};
use crate::protocol::reply::{Status, meta};
use crate::upstream::BatchConnection;

/// TTL of a mark in seconds. Each read renews it. What is stored while no process of this placement runs is in no mark.
const MARK_SECONDS: u32 = 60;
/// TTL of a lease in seconds.
const LEASE_SECONDS: u32 = 30;
/// How often it is renewed.
pub(super) const RENEW: Duration = Duration::from_secs(10);

/// The marks and leases on the servers of a pool.
pub(super) struct Marks {
    mark_key: String,
    lease_key: String,
    /// What this process writes into its leases.
    own: String,
    servers: Vec<BatchConnection>,
    /// How long a reply may take.
    limit: Duration,
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing.
    Silent,
    /// Another process repairs it, or has until its lease ends.
    Leased,
    /// Nobody repairs it. The mark is empty if it has none.
    Free(RepairMark),
}

impl Marks {
    /// Those of the pool with this name, over these connections. `own` identifies the process.
    pub(super) fn new(
        pool: &str,
        placement: u64,
        own: u64,
        servers: Vec<BatchConnection>,
        limit: Duration,
    ) -> Marks {
        let (mark_key, lease_key) = (repair_mark_key(pool, placement), repair_lease_key(pool, placement));
        Marks { mark_key, lease_key, own: format!("{own:016x}"), servers, limit }
    }

    /// What each server says.
    pub(super) async fn read(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        for at in 0..self.servers.len() {
            seen.push(self.read_one(at).await);
        }
        seen
    }

    async fn read_one(&mut self, at: usize) -> Seen {
        let read = format!("mg {} v T{MARK_SECONDS}\r\nmg {} v\r\n", self.mark_key, self.lease_key);
        let Some(replies) = self.exchange(at, &read, 2).await else { return Seen::Silent };
        let mark = meta(&replies[0]);
        match meta(&replies[1]).status {
            Status::Va if !self.is_own(&replies[1]) => Seen::Leased,
            Status::Va | Status::En => Seen::Free(RepairMark::decode(mark.data)),
            _ => Seen::Silent,
        }
    }

    /// Takes the lease of a server. Whether this process has it now.
    pub(super) async fn take(&mut self, at: usize) -> bool {
        let Marks { lease_key, own, .. } = self;
        let take =
            format!("ms {lease_key} {} ME T{LEASE_SECONDS}\r\n{own}\r\nmg {lease_key} v\r\n", own.len());
        self.exchange(at, &take, 2).await.is_some_and(|replies| self.is_own(&replies[1]))
    }

    /// Renews the lease of a server. Whether this process still had it.
    pub(super) async fn renew(&mut self, at: usize) -> bool {
        let Marks { lease_key, own, .. } = &*self;
        let (read, length) = (format!("mg {lease_key} v\r\n"), own.len());
        let renew = format!("ms {lease_key} {length} MR T{LEASE_SECONDS}\r\n{own}\r\n");
        match self.exchange(at, &read, 1).await {
            Some(replies) if self.is_own(&replies[0]) => self.exchange(at, &renew, 1).await.is_some(),
            _ => false,
        }
    }

    /// Ends the lease of a server. With `mark`, what it says is so from now on, unless the lease was lost: then the server may have
    /// restarted empty meanwhile. Whether it is marked.
    pub(super) async fn end(&mut self, at: usize, mark: Option<&RepairMark>) -> bool {
        let Marks { mark_key, lease_key, .. } = &*self;
        let read = format!("mg {lease_key} v\r\n");
        let end = format!("md {lease_key}\r\n");
        let store = mark.map(|mark| {
            let text = mark.encode();
            format!("ms {mark_key} {} T{MARK_SECONDS}\r\n{text}\r\n", text.len())
        });
        match self.exchange(at, &read, 1).await {
            Some(replies) if self.is_own(&replies[0]) => {}
            _ => return false,
        }
        // Over the connection over which the lease was read: a server that restarts ends it.
        let limit = self.limit;
        let mut is_marked = false;
        if let Some(store) = store {
            let stored = |reply: Bytes| is_marked = meta(&reply).status == Status::Hd;
            if self.servers[at].exchange(store.as_bytes(), 1, limit, stored).await.is_err() {
                return false;
            }
        }
        // Without a reply, it ends with its TTL.
        let _ = self.servers[at].exchange(end.as_bytes(), 1, limit, |_| {}).await;
        is_marked
    }

    fn is_own(&self, reply: &[u8]) -> bool {
        let reply = meta(reply);
        reply.status == Status::Va && reply.data == self.own.as_bytes()
    }

    /// The replies to so many commands; `None`: not all of them have arrived.
    async fn exchange(&mut self, at: usize, commands: &str, count: usize) -> Option<Vec<Bytes>> {
        self.servers[at].connect().await.ok()?;
        let mut replies = Vec::with_capacity(count);
        let all =
            self.servers[at].exchange(commands.as_bytes(), count, self.limit, |reply| replies.push(reply));
        all.await.ok()?;
        Some(replies)
    }
}
