//! When a lease is renewed, with what, and what the answers mean for it.

use smallvec::smallvec;

use crate::metrics::LeaseEnd as End;

use super::{Kind, Leases, MissToken, MissTokenId, give_back_lock, millis};
use crate::guard::command::{
    Commands, ItemRef, Now, Operation, ServerCommand, ServerReply, StoreMode, Stored, delete, peek, sure_ms,
};
use crate::guard::stub::{Stub, StubId, stub_in_place};
use crate::guard::{Policy, TagName, envelope::LockRecord};

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
    fn is_active(&mut self, ttl: Option<u32>, asked: u64) {
        let until = ttl.map(|ttl| asked.saturating_add(sure_ms(ttl)));
        self.vanishes = self.vanishes.and_then(|known| Some(known.max(until?)));
    }
}

impl<W> Leases<W> {
    /// When the lease is to be looked at next, on the monotonic clock.
    pub fn next_due(ticket: &MissToken, policy: &Policy, now: Now) -> u64 {
        let renewal = now.mono + (millis(policy.lock_ttl) / 3).max(1);
        let end = ticket.at.mono + millis(policy.max_rebuild);
        let clearing = ticket
            .vanishes
            .map_or(u64::MAX, |moment| moment.saturating_sub(CLEARING_MARGIN_MS).max(now.mono + 1));
        renewal.min(end.max(now.mono + 1)).min(clearing)
    }

    /// The same behind a renewal with these answers. One that failed is not tried again at once, though its value be about to
    /// vanish: a server that is down answers so immediately.
    pub fn due_after(ticket: &MissToken, answers: &[ServerReply], policy: &Policy, now: Now) -> u64 {
        let due = Self::next_due(ticket, policy, now);
        match answers.first() {
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
        let Some(held) = self.find(key, id) else { return Due::Nothing };
        if !held.is_lease() {
            return Due::Nothing;
        }
        if now.mono >= held.ends() {
            let asks = held.release();
            self.remove_where(key, |held| held.id == id);
            self.tidy(key);
            return Due::Expire(asks);
        }
        if let Kind::Lease { renewing, .. } = &mut held.kind {
            *renewing = true;
        }
        held.clearing = is_vanishing(&held.ticket, now);
        Due::Renew(renew(&held.ticket, now, policy, tags, sidecar))
    }

    /// Takes the answers to a renewal that was `asked` then, on the monotonic clock. `Ok` is the ticket as it is now; `Err` what releases a lease whose client has left
    /// meanwhile, or whose value is another by now, or nothing if it was lost; with how it ended, unless something else had ended it before. The fills that wait
    /// for it go on either way: [`Leases::renewal_ended`].
    #[allow(clippy::result_large_err, reason = "called every few seconds, and used at once")]
    pub fn renewed(
        &mut self,
        key: &[u8],
        id: MissTokenId,
        answers: &[ServerReply],
        asked: u64,
    ) -> Result<MissToken, (Option<End>, Commands)> {
        let Some(held) = self.find(key, id) else { return Err((None, Commands::new())) };
        let Kind::Lease { orphan, .. } = held.kind else { return Err((None, Commands::new())) };
        let mut lost = false;
        match (answers.first(), held.ticket.lock) {
            // The stub stands in the stale value's place now, and is the right to rebuild.
            (Some(ServerReply::Stored(cas)), Some(_)) if held.clearing => {
                held.ticket.base = Some(*cas);
                held.ticket.stub.get_or_insert(StubId::of(cas.number));
                held.ticket.lock = None;
                held.ticket.vanishes = None;
            }
            (Some(ServerReply::Stored(cas)), Some(_)) => {
                held.ticket.lock = Some(*cas);
                // The value is another by now, or gone: what this lease would fill with cannot be stored any more. By its number
                // alone: the lock was stored over its CAS, so the server still counts as it did, however many have connected.
                lost = match answers.get(1) {
                    Some(ServerReply::Item(item)) => {
                        held.ticket.is_active(item.ttl, asked);
                        Some(item.cas.number) != held.ticket.base.map(|base| base.number)
                    }
                    Some(ServerReply::Absent) => true,
                    _ => false,
                };
            }
            (Some(ServerReply::Stored(cas)), None) => held.ticket.base = Some(*cas),
            (Some(ServerReply::Exists), None) => {
                let stands = match answers.get(1) {
                    Some(ServerReply::Item(item)) if held.ticket.over().is(item) => {
                        Stub::of(item).filter(|stub| !stub.is_free).map(|_| item.cas)
                    }
                    _ => None,
                };
                lost = stands.is_none();
                held.ticket.base = stands.or(held.ticket.base);
            }
            // Nothing is known; the next renewal will tell.
            (Some(ServerReply::Failed(_)) | None, _) => {}
            _ => lost = true,
        }
        held.kind = match lost {
            true => Kind::Seen,
            false => Kind::Lease { renewing: false, orphan },
        };
        let (owner, held) = (held.owner, held.clone());
        if lost {
            self.owners.leases_less(owner, id);
            let stands = matches!(answers.first(), Some(ServerReply::Stored(_)));
            let asks = if stands { give_back_lock(&held.ticket) } else { Commands::new() };
            return Err((Some(End::Lost), asks));
        }
        if orphan {
            let asks = held.release();
            self.remove_where(key, |held| held.id == id);
            self.tidy(key);
            return Err((Some(End::Disconnected), asks));
        }
        Ok(held.ticket)
    }
}

/// What keeps a lease for another `lock_ttl`. A stub says for how long it has been held, for readers elsewhere.
fn renew(ticket: &MissToken, now: Now, policy: &Policy, tags: &[TagName], sidecar: u64) -> Commands {
    let exptime = i64::from(policy.lock_seconds());
    let Some(lock) = ticket.lock else {
        let age = now.mono.saturating_sub(ticket.at.mono);
        let stub = ticket.stub_id().map(|id| Stub { id, age, is_free: false });
        let stub = stub.map(|stub| stub.ask(ticket.base, policy.lock_seconds()));
        // With a look: a renewal that nobody heard of, or a touch that hit the stub, has given it another CAS.
        return stub.into_iter().chain([peek(ItemRef::Value)]).collect();
    };
    if is_vanishing(ticket, now) {
        return smallvec![stub_in_place(ticket.stub, ticket.base, policy), delete(ItemRef::Lock, Some(lock))];
    }
    let mut value = bytes::BytesMut::new();
    let names = tags.iter().chain(&ticket.learnt).cloned();
    let tags = names.zip(ticket.versions.iter().copied()).collect();
    // A record that does not fit was not written at the claim either; the lock holds without it.
    let _ = LockRecord { granted_at: ticket.at.wall, sidecar, tags }.encode(&mut value);
    let value = Stored::plain(value.freeze());
    let what =
        Operation::Store { mode: StoreMode::Set, value, flags: 0, exptime, cas: Some(lock), explicit: None };
    // With a look at whether the value is still the one that was won: else the lock protects nothing, and only keeps others away.
    smallvec![ServerCommand { at: ItemRef::Lock, what }, peek(ItemRef::Value)]
}

/// Whether it is time to put a stub in the place of the stale value.
fn is_vanishing(ticket: &MissToken, now: Now) -> bool {
    ticket.lock.is_some() && ticket.vanishes.is_some_and(|moment| now.mono + CLEARING_MARGIN_MS >= moment)
}
