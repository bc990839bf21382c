//! `mg` of a guarded key. Its client sees more than that of a `get`: which value is stale (`X`), who rebuilds it (`W`), and
//! that somebody does (`Z`).

use std::task::{Context, Poll};

use bytes::BytesMut;

use super::Proxy;
use super::client::Client;
use super::guarded::only;
use super::large::LargeReply;
use super::operation::GuardedKey;
use super::read::GuardedRead;
use super::scope::CallScope;
use super::tag_reads::TagReads;
use super::wording::{MetaDialect, MetaWinner};
use crate::guard::{Expiry, ReadOptions};
use crate::protocol::request::Meta;

/// What can be said of a value that was read a moment ago. Not how it has been used, nor how long it has left, nor can it be
/// refreshed or touched.
const SHARED: &[u8] = b"bcfkNOPLqsuv";

/// One `mg` on its way.
pub(super) struct MetaGet {
    read: GuardedRead,
    tags: TagReads,
    wording: MetaDialect,
    winner: MetaWinner,
    /// `T`
    exptime: Option<i64>,
}

impl MetaGet {
    pub(super) fn new(
        meta: &Meta<'_>,
        of: GuardedKey,
        wording: MetaDialect,
        proxy: &Proxy,
        client: &Client,
    ) -> MetaGet {
        let options = meta.options();
        let recache = options.recache.map(|exptime| match Expiry::of(exptime, proxy.now()) {
            Expiry::Seconds(seconds) => u32::try_from(seconds).unwrap_or(u32::MAX),
            Expiry::Expired | Expiry::Never => 0,
        });
        let wish = ReadOptions {
            recache,
            // Whoever asks for stubs means to wait for itself.
            at_once: options.vivify.is_some(),
            usage: options.usage,
            unseen: options.unseen,
        };
        // Only `N` and `R` show that the client looks for `W`: any other would take the old value for a hit, and rebuild nothing.
        let winner = match wish.at_once || wish.recache.is_some() {
            true => MetaWinner::Stale,
            false => proxy.plan.guards[of.guard].meta_winner,
        };
        let (mut read, mut tags) = (GuardedRead::new(of), TagReads::default());
        read.begin(wish, options.exptime, only(meta, SHARED), &mut tags, proxy, client);
        MetaGet { read, tags, wording, winner, exptime: options.exptime }
    }

    pub(super) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<LargeReply>> {
        let mut won = false;
        if !self.read.poll(self.exptime, &mut self.tags, scope.turn.patient, &mut won, scope, cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.read.shown().and_then(|shown| self.wording.show(shown, self.winner, out)))
    }
}
