//! When a lease is renewed, with which commands, and what the replies mean for it.

use smallvec::smallvec;

use crate::metrics::LeaseEnd;

use crate::guard::command::{
    Commands, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, Stored, delete, peek,
};
use crate::guard::envelope::{LockRecord, TagName};
use crate::guard::expiry::sure_ms;
use crate::guard::inputs::Now;
use crate::guard::policy::Policy;
use crate::guard::stub::{Stub, StubId, stub_in_place};

use super::entry::{EntryKind, MissTokenId};
use super::miss_token::{MissToken, millis};
use super::table::Leases;

/// How much before a stale value vanishes a stub is put in its place, in ms.
pub(super) const CLEARING_MARGIN_MS: u64 = 250;
/// The shortest pause behind a renewal that no server answered, in ms.
const RETRY_MS: u64 = 100;

/// What is due for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// It has ended; nothing any more.
    Nothing,
    /// These renew it. Their answers go to [`Leases::renewed`].
    Renew(Commands),
    /// It took too long: these release it.
    Expire(Commands),
}

impl MissToken {
    /// The value was seen to have so many seconds left by a look that was sent then: somebody may have touched it.
    fn observe_ttl(&mut self, ttl: Option<u32>, asked: u64) {
        let until = ttl.map(|ttl| asked.saturating_add(sure_ms(ttl)));
        self.vanishes = self.vanishes.and_then(|known| Some(known.max(until?)));
    }
}

impl<W> Leases<W> {
    /// When the lease is to be looked at next, on the monotonic clock.
    pub fn next_due(token: &MissToken, policy: &Policy, now: Now) -> u64 {
        let renewal = now.mono + (millis(policy.lock_ttl) / 3).max(1);
        let end = token.at.mono + millis(policy.max_rebuild);
        let clearing = token
            .vanishes
            .map_or(u64::MAX, |moment| moment.saturating_sub(CLEARING_MARGIN_MS).max(now.mono + 1));
        renewal.min(end.max(now.mono + 1)).min(clearing)
    }

    /// The same behind a renewal with these answers. One that failed is not tried again at once, though its value be about to
    /// vanish: a server that is down answers so immediately.
    pub fn due_after(token: &MissToken, replies: &[ServerReply], policy: &Policy, now: Now) -> u64 {
        let due = Self::next_due(token, policy, now);
        match replies.first() {
            Some(ServerReply::Failed(_)) | None => due.max(now.mono + RETRY_MS),
            Some(_) => due,
        }
    }

    /// What is due for a lease now. `tags` and `sidecar` are what its lock says.
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
        entry.clearing = is_vanishing(&entry.token, now);
        Due::Renew(renew(&entry.token, now, policy, tags, sidecar))
    }

    /// Takes the answers to a renewal that was `asked` then, on the monotonic clock. `Ok` is the ticket as it is now; `Err` what releases a lease whose client has left
    /// meanwhile, or whose value is another by now, or nothing if it was lost; with how it ended, unless something else had ended it before. The fills that wait
    /// for it go on either way: [`Leases::renewal_ended`].
    #[allow(clippy::result_large_err, reason = "called every few seconds, and used at once")]
    pub fn renewed(
        &mut self,
        key: &[u8],
        id: MissTokenId,
        replies: &[ServerReply],
        asked: u64,
    ) -> Result<MissToken, (Option<LeaseEnd>, Commands)> {
        let Some(entry) = self.find(key, id) else { return Err((None, Commands::new())) };
        let EntryKind::Lease { orphan, .. } = entry.kind else { return Err((None, Commands::new())) };
        let mut lost = false;
        match (replies.first(), entry.token.lock) {
            // The stub stands in the stale value's place now, and is the right to rebuild.
            (Some(ServerReply::Stored(cas)), Some(_)) if entry.clearing => {
                entry.token.base = Some(*cas);
                entry.token.stub.get_or_insert(StubId::of(cas.number));
                entry.token.lock = None;
                entry.token.vanishes = None;
            }
            (Some(ServerReply::Stored(cas)), Some(_)) => {
                entry.token.lock = Some(*cas);
                // The value is another by now, or gone: what this lease would fill with cannot be stored any more. By its number
                // alone: the lock was stored over its CAS, so the server still counts as it did, however many have connected.
                lost = match replies.get(1) {
                    Some(ServerReply::Item(item)) => {
                        entry.token.observe_ttl(item.ttl, asked);
                        Some(item.cas.number) != entry.token.base.map(|base| base.number)
                    }
                    Some(ServerReply::Absent) => true,
                    _ => false,
                };
            }
            (Some(ServerReply::Stored(cas)), None) => entry.token.base = Some(*cas),
            (Some(ServerReply::Exists), None) => {
                let stands = match replies.get(1) {
                    Some(ServerReply::Item(item)) if entry.token.observed().is_same(item) => {
                        Stub::of(item).filter(|stub| !stub.is_free).map(|_| item.cas)
                    }
                    _ => None,
                };
                lost = stands.is_none();
                entry.token.base = stands.or(entry.token.base);
            }
            // Nothing is known; the next renewal will tell.
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
            let stands = matches!(replies.first(), Some(ServerReply::Stored(_)));
            let commands = if stands { entry.token.unlock() } else { Commands::new() };
            return Err((Some(LeaseEnd::Lost), commands));
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

/// What keeps a lease for another `lock_ttl`. A stub says for how long it has been held, for readers elsewhere.
fn renew(token: &MissToken, now: Now, policy: &Policy, tags: &[TagName], sidecar: u64) -> Commands {
    let exptime = i64::from(policy.lock_seconds());
    let Some(lock) = token.lock else {
        let age = now.mono.saturating_sub(token.at.mono);
        let stub = token.stub_id().map(|id| Stub { id, age, is_free: false });
        let stub = stub.map(|stub| stub.store_command(token.base, policy.lock_seconds()));
        // With a look: a renewal that nobody heard of, or a touch that hit the stub, has given it another CAS.
        return stub.into_iter().chain([peek(ItemRef::Value)]).collect();
    };
    if is_vanishing(token, now) {
        return smallvec![stub_in_place(token.stub, token.base, policy), delete(ItemRef::Lock, Some(lock))];
    }
    let mut value = bytes::BytesMut::new();
    let names = tags.iter().chain(&token.learnt).cloned();
    let tags = names.zip(token.versions.iter().copied()).collect();
    // A record that does not fit was not written at the claim either; the lock holds without it.
    let _ = LockRecord { granted_at: token.at.wall, sidecar, tags }.encode(&mut value);
    let value = Stored::plain(value.freeze());
    let what =
        Operation::Store { mode: StoreMode::Set, value, flags: 0, exptime, cas: Some(lock), explicit: None };
    // With a look at whether the value is still the one that was won: else the lock protects nothing, and only keeps others away.
    smallvec![ServerCommand { at: ItemRef::Lock, what }, peek(ItemRef::Value)]
}

/// Whether it is time to put a stub in the place of the stale value.
fn is_vanishing(token: &MissToken, now: Now) -> bool {
    token.lock.is_some() && token.vanishes.is_some_and(|moment| now.mono + CLEARING_MARGIN_MS >= moment)
}
