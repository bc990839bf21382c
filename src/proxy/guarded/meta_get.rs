//! `mg` of a guarded key. Its reply contains more than that of a `get`: that the value is stale (`X`), that this client
//! rebuilds it (`W`), or that another client does (`Z`).

use std::task::{Context, Poll};

use bytes::BytesMut;

use super::read::GuardedRead;
use super::tag_reads::TagReads;
use crate::guard::{Expiry, ReadOptions};
use crate::protocol::request::Meta;
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::plan::MetaWinner;
use crate::proxy::replies::large::LargeReply;
use crate::proxy::replies::meta::MetaDialect;
use crate::proxy::scope::CallScope;

/// The flags that a near value can answer: not its usage and remaining time, and it can be neither refreshed nor touched.
const NEAR_FLAGS: &[u8] = b"bcfkNOPLqsuv";

/// An `mg` in flight.
pub(crate) struct MetaGet {
    read: GuardedRead,
    tags: TagReads,
    dialect: MetaDialect,
    winner: MetaWinner,
    /// `T`
    exptime: Option<i64>,
}

impl MetaGet {
    /// Whether it waits for another client's build.
    pub(crate) fn waits_for_build(&self) -> bool {
        self.read.waits_for_build()
    }

    pub(crate) fn new(
        meta: &Meta<'_>,
        key: GuardedKey,
        dialect: MetaDialect,
        proxy: &Proxy,
        client: &Client,
    ) -> MetaGet {
        let flags = meta.options();
        let recache = flags.recache.map(|exptime| match Expiry::of(exptime, proxy.now()) {
            Expiry::Seconds(seconds) => u32::try_from(seconds).unwrap_or(u32::MAX),
            Expiry::Expired | Expiry::Never => 0,
        });
        let options = ReadOptions {
            recache,
            // A client that sends `N` waits by itself.
            at_once: flags.vivify.is_some(),
            usage: flags.usage,
            unseen: flags.unseen,
            began: None,
        };
        // Only `N` and `R` show that the client understands `W`. Any other would take the stale value for a hit and rebuild
        // nothing.
        let winner = match options.at_once || options.recache.is_some() {
            true => MetaWinner::Stale,
            false => proxy.plan.guards[key.guard].meta_winner,
        };
        let (mut read, mut tags) = (GuardedRead::new(key), TagReads::default());
        read.begin(options, flags.exptime, meta.has_only(NEAR_FLAGS), &mut tags, proxy, client);
        MetaGet { read, tags, dialect, winner, exptime: flags.exptime }
    }

    pub(crate) fn key(&self) -> &GuardedKey {
        &self.read.key
    }

    pub(crate) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<LargeReply>> {
        let mut won = false;
        if !self.read.poll(self.exptime, &mut self.tags, scope.position.may_wait, &mut won, scope, cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.read.outcome().and_then(|outcome| {
            let fence = self.read.key.place.fence();
            self.dialect.write_read(outcome, self.winner, fence, out)
        }))
    }
}
