//! When a lease is renewed, with which commands, and what the replies mean for it.

use bytes::BytesMut;
use smallvec::smallvec;

use crate::guard::command::{
    Cas, Commands, Item, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, Stored, delete, get, peek,
};
use crate::guard::envelope::{LockRecord, TagName};
use crate::guard::expiry::sure_ms;
use crate::guard::inputs::Now;
use crate::guard::policy::{Policy, millis};
use crate::guard::stub::{Stub, StubId, stub_in_place, turn_in_place};
use crate::metrics::LeaseEnd;

use super::entry::{EntryKind, MissTokenId};
use super::miss_token::{MissToken, Replacement};
use super::table::Leases;

/// How long before a stale value expires it is replaced by a stub, in milliseconds.
pub(super) const CLEARING_MARGIN_MS: u64 = 250;
/// The shortest pause after a renewal without a reply, in milliseconds.
const RETRY_MS: u64 = 100;

/// What a lease requires now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// It has ended: nothing.
    Nothing,
    /// These commands renew it. Their replies go to [`Leases::renewed`].
    Renew(Commands),
    /// It has exceeded `max_rebuild`: these commands release it.
    Expire(Commands),
}

impl MissToken {
    /// Updates `expires_at` with a TTL in seconds, returned by a get that was sent at `sent_at`: a client may
    /// have touched the value.
    fn observe_ttl(&mut self, ttl: Option<u32>, sent_at: u64) {
        let until = ttl.map(|ttl| sent_at.saturating_add(sure_ms(ttl)));
        self.expires_at = self.expires_at.and_then(|known| Some(known.max(until?)));
    }

    /// Whether a renewal has found that the rebuild is over. A value with another CAS is read by the next renewal: another client may
    /// have stored one that is out of date too (`ms I`), and this lease is then for that. The CAS numbers alone are compared: the lock
    /// was stored over its CAS, so the server has not been restarted, whatever the epoch of this connection.
    fn is_over(&mut self, found: &Item) -> bool {
        let is = |cas: Cas| cas.number == found.cas.number;
        let was_unread = self.replacement == Replacement::Unread;
        self.replacement = match self.replacement {
            _ if self.observed_cas.is_some_and(is) => Replacement::None,
            Replacement::Stale(cas) if is(cas) => Replacement::Stale(cas),
            Replacement::Unread if self.observed().is_still_to_build(found) => Replacement::Stale(found.cas),
            _ => Replacement::Unread,
        };
        was_unread && self.replacement == Replacement::Unread
    }
}

impl<W> Leases<W> {
    /// When the lease requires attention next, on the monotonic clock in ms.
    pub fn next_due(token: &MissToken, policy: &Policy, now: Now) -> u64 {
        let renewal = now.mono + (millis(policy.lock_ttl) / 3).max(1);
        let end = token.at.mono + millis(policy.max_rebuild);
        let clearing = token
            .expires_at
            .map_or(u64::MAX, |moment| moment.saturating_sub(CLEARING_MARGIN_MS).max(now.mono + 1));
        renewal.min(end.max(now.mono + 1)).min(clearing)
    }

    /// The same after a renewal with these replies. One that failed is not repeated at once, even if the
    /// value is about to expire: a server that is down fails immediately.
    pub fn due_after(token: &MissToken, replies: &[ServerReply], policy: &Policy, now: Now) -> u64 {
        let due = Self::next_due(token, policy, now);
        match (replies.first(), replies.get(1)) {
            (Some(ServerReply::Failed(_)) | None, _) => due.max(now.mono + RETRY_MS),
            (Some(_), Some(ServerReply::Item(_))) if token.replacement == Replacement::Unread => now.mono,
            (Some(_), _) => due,
        }
    }

    /// What the lease requires now. `tags` and `sidecar` are stored in its lock.
    pub fn due(
        &mut self,
        key: &[u8],
        id: MissTokenId,
        now: Now,
        policy: &Policy,
        tags: &[TagName],
        sidecar: u64,
    ) -> Due {
        let Some(entry) = self.find(key, id) else { return Due::Nothing };
        if !entry.is_lease() {
            return Due::Nothing;
        }
        if now.mono >= entry.ends() {
            let commands = entry.release();
            self.remove_where(key, |entry| entry.id == id);
            self.remove_if_idle(key);
            return Due::Expire(commands);
        }
        if let EntryKind::Lease { renewing, .. } = &mut entry.kind {
            *renewing = true;
        }
        entry.clearing = expires_soon(&entry.token, now);
        Due::Renew(renew(&entry.token, now, policy, tags, sidecar))
    }

    /// Takes the replies to a renewal that was sent at `sent_at`, on the monotonic clock in ms. Returns the
    /// updated token. Returns an error if the lease has ended: because its connection has been closed, its
    /// value replaced, or its stub or lock lost. The error has the commands that release it, and how it ended
    /// unless something else had ended it before. Fills that wait for the renewal continue in either case:
    /// see [`Leases::renewal_ended`].
    #[allow(clippy::result_large_err, reason = "called every few seconds, and used at once")]
    pub fn renewed(
        &mut self,
        key: &[u8],
        id: MissTokenId,
        replies: &[ServerReply],
        sent_at: u64,
    ) -> Result<MissToken, (Option<LeaseEnd>, Commands)> {
        let Some(entry) = self.find(key, id) else { return Err((None, Commands::new())) };
        let EntryKind::Lease { orphan, .. } = entry.kind else { return Err((None, Commands::new())) };
        let (mut lost, mut taken_over) = (false, false);
        match (replies.first(), entry.token.lock) {
            // The stub has replaced the stale value and is now the right to rebuild.
            (Some(ServerReply::Stored(cas)), Some(_)) if entry.clearing => {
                entry.token.observed_cas = Some(*cas);
                entry.token.turn = turn_in_place(entry.token.stub);
                entry.token.stub.get_or_insert(StubId::of(cas.number));
                entry.token.origin = None;
                entry.token.lock = None;
                entry.token.expires_at = None;
            }
            (Some(ServerReply::Stored(cas)), Some(_)) => {
                entry.token.lock = Some(*cas);
                lost = match replies.get(1) {
                    Some(ServerReply::Item(item)) => {
                        entry.token.observe_ttl(item.ttl, sent_at);
                        entry.token.is_over(item)
                    }
                    Some(ServerReply::Absent) => true,
                    _ => false,
                };
            }
            (Some(ServerReply::Stored(cas)), None) => entry.token.observed_cas = Some(*cas),
            (Some(ServerReply::Exists), None) => {
                let current = match replies.get(1) {
                    Some(ServerReply::Item(item)) if entry.token.observed().is_same(item) => {
                        Stub::of(item).filter(|stub| !stub.is_free).map(|stub| (item.cas, stub.turn))
                    }
                    _ => None,
                };
                // Another client builds the value now. A fill of this miss is still stored over the stub.
                taken_over = current.is_some_and(|(_, turn)| turn != entry.token.turn);
                lost = taken_over || current.is_none();
                entry.token.observed_cas = current.map(|(cas, _)| cas).or(entry.token.observed_cas);
            }
            // Unknown until the next renewal.
            (Some(ServerReply::Failed(_)) | None, _) => {}
            _ => lost = true,
        }
        entry.kind = match lost {
            true => EntryKind::Miss,
            false => EntryKind::Lease { renewing: false, orphan },
        };
        let (owner, entry) = (entry.owner, entry.clone());
        if lost {
            self.owners.remove_lease(owner, id);
            let lock_stored = matches!(replies.first(), Some(ServerReply::Stored(_)));
            let commands = if lock_stored { entry.token.unlock() } else { Commands::new() };
            let end = if taken_over { LeaseEnd::Superseded } else { LeaseEnd::Lost };
            return Err((Some(end), commands));
        }
        if orphan {
            let commands = entry.release();
            self.remove_where(key, |entry| entry.id == id);
            self.remove_if_idle(key);
            return Err((Some(LeaseEnd::Disconnected), commands));
        }
        Ok(entry.token)
    }
}

/// The commands that keep a lease for another `lock_ttl`. A stub also records its age for readers of other
/// sidecars.
fn renew(token: &MissToken, now: Now, policy: &Policy, tags: &[TagName], sidecar: u64) -> Commands {
    let exptime = i64::from(policy.lock_seconds());
    let Some(lock) = token.lock else {
        let age = now.mono.saturating_sub(token.at.mono);
        let stub = token.stub_id().map(|id| Stub { id, age, is_free: false, turn: token.turn });
        let stub = stub.map(|stub| stub.store_command(token.observed_cas, policy.lock_seconds()));
        // The get is needed if the stub has another CAS: after a renewal whose reply was lost, or a touch.
        return stub.into_iter().chain([peek(ItemRef::Value)]).collect();
    };
    if expires_soon(token, now) {
        return smallvec![
            stub_in_place(token.stub, token.observed_cas, policy),
            delete(ItemRef::Lock, Some(lock))
        ];
    }
    let mut value = BytesMut::new();
    let names = tags.iter().chain(&token.added_tags).cloned();
    let tags = names.zip(token.versions.iter().copied()).collect();
    LockRecord { granted_at: token.at.wall, sidecar, fence: token.fence, tags }.encode_what_fits(&mut value);
    let value = Stored::plain(value.freeze());
    let operation =
        Operation::Store { mode: StoreMode::Set, value, flags: 0, exptime, cas: Some(lock), explicit: None };
    // The get shows whether the value is still to be rebuilt. If not, the lock protects nothing and only blocks other clients.
    let look = if token.replacement == Replacement::Unread { get } else { peek };
    smallvec![ServerCommand { item: ItemRef::Lock, operation }, look(ItemRef::Value)]
}

/// Whether the stale value must be replaced by a stub now.
fn expires_soon(token: &MissToken, now: Now) -> bool {
    token.lock.is_some() && token.expires_at.is_some_and(|moment| now.mono + CLEARING_MARGIN_MS >= moment)
}
