//! What the elements of a list or table are known to be: each has one client that changes it, one command after the other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::network::Loss;
use super::world::World;

/// The elements of one list or table.
#[derive(Default)]
pub struct Members {
    elements: RefCell<BTreeMap<String, Vec<Change>>>,
    next: Cell<u64>,
}

struct Change {
    begun: u64,
    /// Whether the element is there afterwards.
    adds: bool,
    /// When it was acknowledged.
    acknowledged: Option<u64>,
    failed: bool,
}

impl Members {
    /// The name of an element that no command has named yet.
    pub fn new_name(&self, client: usize) -> String {
        self.next.set(self.next.get() + 1);
        format!("c{client}e{}", self.next.get())
    }

    pub fn begin(&self, element: &str, adds: bool, begun: u64) {
        let change = Change { begun, adds, acknowledged: None, failed: false };
        self.elements.borrow_mut().entry(element.to_owned()).or_default().push(change);
    }

    /// The last change of the element is done. One that failed may be carried out at any time, so nothing is known of it any more.
    pub fn end(&self, element: &str, acknowledged: bool, now: u64) {
        let mut elements = self.elements.borrow_mut();
        let change = elements.get_mut(element).and_then(|changes| changes.last_mut()).expect("it has begun");
        (change.acknowledged, change.failed) = (acknowledged.then_some(now), !acknowledged);
    }

    /// Whether the element is there as far as its client knows.
    pub fn has(&self, element: &str) -> bool {
        let elements = self.elements.borrow();
        elements.get(element).and_then(|changes| changes.last()).is_some_and(|change| change.adds)
    }

    /// Any of the elements that have been named.
    pub fn any(&self, world: &World) -> Option<String> {
        let elements = self.elements.borrow();
        let at = world.executor.below(elements.len().max(1) as u64) as usize;
        elements.keys().nth(at).cloned()
    }

    /// Whether something was lost since its first change that concerns the element. `is_its`: whether an item does.
    fn is_lost(world: &World, server: usize, changes: &[Change], is_its: &dyn Fn(&[u8]) -> bool) -> bool {
        let since = changes.first().map_or(0, |change| change.begun);
        // One of two copies is always left.
        !world.plan.copies
            && world.network.losses.borrow().iter().rev().take_while(|(at, _)| *at >= since).any(
                |(_, loss)| match loss {
                    Loss::Server(lost) => *lost == server,
                    Loss::Item(lost, key) => *lost == server && is_its(key),
                    Loss::Moved(..) => false,
                },
            )
    }

    /// Whether the element was there when a read said so which began at `begun`. `None`: that is not known.
    fn expected(changes: &[Change], begun: u64) -> Option<bool> {
        if changes.iter().any(|change| change.failed) {
            return None;
        }
        let (done, open): (Vec<&Change>, Vec<&Change>) =
            changes.iter().partition(|change| change.acknowledged.is_some_and(|at| at <= begun));
        let before = done.last().is_some_and(|change| change.adds);
        open.iter().all(|change| change.adds == before).then_some(before)
    }

    /// Checks what a listing of `name` showed that began at `begun`.
    pub fn check_listing(
        &self,
        world: &World,
        (server, name): (usize, &str),
        begun: u64,
        listed: &[u8],
        is_its: impl Fn(&str, &[u8]) -> bool,
    ) {
        let listed = String::from_utf8_lossy(listed);
        let mut found = BTreeSet::new();
        for element in listed.lines() {
            if !found.insert(element) {
                world.violated(|| format!("{name} has {element} twice"));
            }
        }
        let elements = self.elements.borrow();
        if let Some(unknown) = found.iter().find(|element| !elements.contains_key(**element)) {
            world.violated(|| format!("{name} has {unknown}, which nobody has added"));
        }
        for (element, changes) in elements.iter() {
            let has = found.contains(&**element);
            let expected = Members::expected(changes, begun);
            if expected.is_some_and(|expected| expected != has)
                && !Members::is_lost(world, server, changes, &|key| is_its(element, key))
            {
                world.violated(|| format!("{name} with {element}: {has}"));
            }
        }
    }

    /// Checks whether `name` has this element, as a read says that began at `begun`.
    pub fn check_one(
        &self,
        world: &World,
        (server, name): (usize, &str),
        begun: u64,
        element: &str,
        has: bool,
        is_its: impl Fn(&[u8]) -> bool,
    ) {
        let elements = self.elements.borrow();
        let changes = &elements[element];
        let expected = Members::expected(changes, begun);
        if expected.is_some_and(|expected| expected != has)
            && !Members::is_lost(world, server, changes, &is_its)
        {
            world.violated(|| format!("{name} has {element}: {has}"));
        }
    }
}
