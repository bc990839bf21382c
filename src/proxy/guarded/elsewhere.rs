//! Invalidations in the other placement of a pool whose servers change (docs/decisions/0026).
//!
//! What invalidates a key or a tag where it is read also invalidates it where processes of an adjacent step read it, and is
//! acknowledged once both are done. The previous placement comes first.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;

use super::driver::Driver;
use super::tag_servers::bump_key;
use crate::error::Failure;
use crate::guard::{Bump, BumpEnd, Delete, DeleteEnd, TagName};
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
        let (_, kind) = proxy.other(proxy.plan.guards[key.guard].pool)?;
        let delete = DeleteElsewhere::begin(key, proxy, pending)?;
        (matches!(kind, OtherKind::Previous { .. }) && delete.delete.is_some()).then_some(delete)
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

/// A bump of a tag in each placement in use, one after the other.
pub(super) struct TagBump {
    /// The tag in each of them, in the order of the bumps. `None`: where it is read.
    placements: SmallVec<[(Option<Rc<Proxy>>, GuardedKey); 1]>,
    /// The bump in the first of those that are left.
    driver: Driver<Bump>,
    /// The other placement, if it has the same item.
    same: Option<(Rc<Proxy>, GuardedKey)>,
    here: Option<Bumped>,
}

/// The bump where the tag is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bumped {
    /// The tag's version is this millisecond or a later one.
    pub(super) version: u64,
    /// The versions before and after: see [`Bump::step`].
    pub(super) step: Option<(u64, u64)>,
}

impl TagBump {
    pub(super) fn begin(name: TagName, proxy: &Proxy, pending: &Rc<PendingReplies>) -> TagBump {
        let mut placements = SmallVec::from_elem((None, bump_key(name.clone(), proxy)), 1);
        let mut same = None;
        if let Some((other, kind)) = proxy.other(proxy.plan.tag_pool) {
            let elsewhere = (Rc::clone(other), bump_key(name.clone(), other));
            match kind {
                _ if has_same_servers(&name, proxy, other) => same = Some(elsewhere),
                OtherKind::Previous { .. } => placements.insert(0, (Some(elsewhere.0), elsewhere.1)),
                OtherKind::Next => placements.push((Some(elsewhere.0), elsewhere.1)),
            }
        }
        let driver = start(&placements[0], proxy, pending);
        TagBump { placements, driver, same, here: None }
    }

    /// Runs it. If it fails, the bump must not be acknowledged.
    pub(super) fn poll(
        &mut self,
        proxy: &Rc<Proxy>,
        pending: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bumped, Failure>> {
        while let Some((other, key)) = self.placements.first() {
            let end = ready!(self.driver.poll(key, false, other.as_ref().unwrap_or(proxy), pending, cx));
            let version = match end {
                BumpEnd::Bumped(version) => version,
                BumpEnd::Failed(failure) => return Poll::Ready(Err(failure)),
            };
            if other.is_none() {
                self.here = Some(Bumped { version, step: self.driver.machine().step() });
            }
            self.placements.remove(0);
            if let Some(next) = self.placements.first() {
                self.driver = start(next, proxy, pending);
            }
        }
        let is_in_place = self.same.as_ref().is_none_or(|(other, key)| other.is_in_place(key));
        Poll::Ready(self.here.filter(|_| is_in_place).ok_or(Failure::NoView))
    }
}

fn start(
    (other, key): &(Option<Rc<Proxy>>, GuardedKey),
    proxy: &Proxy,
    pending: &Rc<PendingReplies>,
) -> Driver<Bump> {
    let proxy = other.as_deref().unwrap_or(proxy);
    let inputs = proxy.inputs(key, proxy.policy(key.guard), proxy.now(), false);
    let (bump, commands) = Bump::start(&inputs);
    Driver::start(bump, commands, key, proxy, pending)
}

/// Whether the tag and its copy are on the same servers in both placements.
fn has_same_servers(name: &TagName, proxy: &Proxy, other: &Proxy) -> bool {
    let key = proxy.key_of_tag(name);
    let (here, elsewhere) = (proxy.places_of_tag(&key), other.places_of_tag(&key));
    let is_same = |(here, elsewhere)| proxy.is_same_server(proxy.plan.tag_pool, here, elsewhere);
    here.iter().zip(&elsewhere).all(is_same)
}
