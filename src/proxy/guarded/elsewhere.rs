//! Invalidations in the other placement of a pool whose servers change (docs/decisions/0013).
//!
//! What invalidates a key or a tag where it is read also invalidates it where processes of an adjacent step read it, and is
//! acknowledged once both are done. The previous placement comes first.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::driver::Driver;
use super::tag_servers::bump_key;
use crate::error::Failure;
use crate::guard::{Bump, BumpEnd, Delete, DeleteEnd, Forget, ForgetEnd, TagName};
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::upstream::OtherKind;
use crate::upstream::pending_replies::PendingReplies;

/// The delete of a key in the other placement.
pub(super) struct DeleteElsewhere {
    proxy: Rc<Proxy>,
    key: GuardedKey,
    /// `None`: both placements have the same item, so it has been changed already.
    delete: Option<Driver<Delete>>,
}

impl DeleteElsewhere {
    /// Begins the delete that comes before a change of the key. `None` if none does.
    pub(super) fn before(
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> Option<DeleteElsewhere> {
        match proxy.other(proxy.plan.guards[key.guard].pool)? {
            (_, OtherKind::Next) => None,
            (_, OtherKind::Previous { .. }) => {
                DeleteElsewhere::begin(key, proxy, pending).filter(|begun| begun.delete.is_some())
            }
        }
    }

    /// Begins the delete that comes behind a change of the key. `None` if its pool does not change.
    pub(super) fn begin(
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> Option<DeleteElsewhere> {
        let pool = proxy.plan.guards[key.guard].pool;
        let (other, _) = proxy.other(pool)?;
        let elsewhere = proxy.elsewhere(key)?;
        let is_same = proxy.is_same_server(pool, &key.place, &elsewhere.place);
        let delete = (!is_same).then(|| {
            let inputs = other.inputs(&elsewhere, other.policy_of(&elsewhere), other.now(), false);
            let (delete, commands) = Delete::start(&inputs);
            Driver::start(delete, commands, &elsewhere, other, pending)
        });
        Some(DeleteElsewhere { proxy: Rc::clone(other), key: elsewhere, delete })
    }

    /// Runs it. If it fails, the change must not be acknowledged.
    pub(super) fn poll(
        &mut self,
        pending: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        let Some(delete) = &mut self.delete else {
            let in_place = self.key.has_view() && self.proxy.is_in_place(&self.key);
            return Poll::Ready(if in_place { Ok(()) } else { Err(Failure::NoView) });
        };
        Poll::Ready(match ready!(delete.poll(&self.key, false, &self.proxy, pending, cx)) {
            DeleteEnd::Failed(failure) => Err(failure),
            DeleteEnd::Deleted | DeleteEnd::NotFound | DeleteEnd::Exists => Ok(()),
        })
    }
}

/// A bump of a tag. While the servers change, it is done in the previous placement, and the next one forgets the version: whoever reads
/// the tag there takes the new one over. So the two placements never have different versions for long, and no version of the next one is
/// ever one that the previous one had before.
pub(super) struct TagBump {
    /// The pipeline over the placement in which it is done; `None`: this one.
    proxy: Option<Rc<Proxy>>,
    key: GuardedKey,
    state: BumpState,
    /// The tag in the next placement.
    next: Option<NextPlace>,
}

enum BumpState {
    Bumping(Driver<Bump>),
    Forgetting(Driver<Forget>, Bumped),
}

struct NextPlace {
    proxy: Option<Rc<Proxy>>,
    key: GuardedKey,
    /// Of the tag and of its copy, whether the previous placement has the same item. With one copy, both are alike.
    is_same: [bool; 2],
}

/// A bump that is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bumped {
    /// The tag's version is this millisecond or a later one.
    pub(super) version: u64,
    /// The versions before and after: see [`Bump::step`].
    pub(super) step: Option<(u64, u64)>,
}

impl TagBump {
    pub(super) fn begin(name: TagName, proxy: &Proxy, pending: &Rc<PendingReplies>) -> TagBump {
        let here = (None, bump_key(name.clone(), proxy));
        let (first, next) = match proxy.other(proxy.plan.tag_pool) {
            None => (here, None),
            Some((other, kind)) => {
                let is_next = matches!(kind, OtherKind::Next);
                let is_same = same_items(&name, proxy, other, is_next);
                let elsewhere = (Some(Rc::clone(other)), bump_key(name, other));
                // A read that is in flight may have found the old version.
                proxy.note_change(&here.1);
                let (first, (next, key)) = match kind {
                    OtherKind::Next => (here, elsewhere),
                    OtherKind::Previous { .. } => (elsewhere, here),
                };
                (first, Some(NextPlace { proxy: next, key, is_same }))
            }
        };
        let (other, key) = first;
        let first = other.as_deref().unwrap_or(proxy);
        let inputs = first.inputs(&key, first.policy(key.guard), first.now(), false);
        let (bump, commands) = Bump::start(&inputs);
        let state = BumpState::Bumping(Driver::start(bump, commands, &key, first, pending));
        TagBump { proxy: other, key, state, next }
    }

    /// Runs it. If it fails, the bump must not be acknowledged.
    pub(super) fn poll(
        &mut self,
        proxy: &Rc<Proxy>,
        pending: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bumped, Failure>> {
        let bumped = match &mut self.state {
            BumpState::Bumping(driver) => {
                let first = self.proxy.as_ref().unwrap_or(proxy);
                match ready!(driver.poll(&self.key, false, first, pending, cx)) {
                    BumpEnd::Bumped(version) => Bumped { version, step: driver.machine().step() },
                    BumpEnd::Failed(failure) => return Poll::Ready(Err(failure)),
                }
            }
            BumpState::Forgetting(driver, bumped) => {
                let Some(NextPlace { proxy: next, key, .. }) = &self.next else {
                    return Poll::Ready(Ok(*bumped));
                };
                let end = ready!(driver.poll(key, false, next.as_ref().unwrap_or(proxy), pending, cx));
                return Poll::Ready(match end {
                    ForgetEnd::Forgotten => Ok(*bumped),
                    ForgetEnd::Failed(failure) => Err(failure),
                });
            }
        };
        let Some(NextPlace { proxy: next, key, is_same }) = &self.next else {
            return Poll::Ready(Ok(bumped));
        };
        let next = next.as_ref().unwrap_or(proxy);
        if *is_same == [true; 2] {
            // If the bump was done through the other pipeline, that has not told this one's caches.
            key.tags.iter().for_each(|tag| proxy.tag_cache.written(tag));
            proxy.note_change(key);
            return Poll::Ready(if next.is_in_place(key) { Ok(bumped) } else { Err(Failure::NoView) });
        }
        let inputs = next.inputs(key, next.policy(key.guard), next.now(), false);
        let (forget, commands) = Forget::start(*is_same, &inputs);
        self.state = BumpState::Forgetting(Driver::start(forget, commands, key, next, pending), bumped);
        self.poll(proxy, pending, cx)
    }
}

/// Of a tag and of its copy in the next placement, whether the previous placement has it or its copy on the same server: then that is
/// the same item. `is_next`: whether the other placement is the next one.
fn same_items(name: &TagName, proxy: &Proxy, other: &Proxy, is_next: bool) -> [bool; 2] {
    let (key, pool) = (proxy.key_of_tag(name), proxy.plan.tag_pool);
    let (here, elsewhere) = (proxy.places_of_tag(&key), other.places_of_tag(&key));
    let is_same = |copy: usize| match is_next {
        true => here.iter().any(|place| proxy.is_same_server(pool, place, &elsewhere[copy])),
        false => elsewhere.iter().any(|place| proxy.is_same_server(pool, &here[copy], place)),
    };
    let first = is_same(0);
    [first, if here.len() > 1 { is_same(1) } else { first }]
}
