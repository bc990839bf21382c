//! Raw values with two copies: every reply to the only client that changes a value, and every read of others, is what one server could
//! have said. A change that failed was made once, or not at all, at some time before the next one that was acknowledged.

use std::cell::RefCell;
use std::rc::Rc;

use kennel::kinds::{Copied, Kind, Outcome, Request, Verb};

use super::world::{Watch, World};

/// While a value may have more states, its client only sets it.
const MAX_STATES: usize = 4;

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// `None`: there is none.
    number: Option<u64>,
    /// When it ends, by the clocks of sidecars; `None`: never.
    ends: Option<u64>,
    /// Which change has made it.
    version: u64,
}

/// The states that a value may have had from some time on, until the next of these.
type History = Vec<(u64, Vec<State>)>;

#[derive(Default)]
struct Values(RefCell<Vec<History>>);

/// A change. Stores and touches have an exptime in seconds; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Set(u64, u64),
    Add(u64, u64),
    Replace(u64, u64),
    Cas(u64, u64),
    Count(bool, u64),
    Touch(u64),
    Delete,
}

/// What a client is told of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Stored,
    NotStored,
    NotFound,
    Exists,
    Counted(u64),
    Touched,
    Deleted,
}

pub fn begin(world: &Rc<World>) {
    let absent = State { number: None, ends: None, version: 0 };
    let values = Values(RefCell::new(vec![vec![(0, vec![absent])]; world.plan.clients]));
    let values = Rc::new(values);
    for client in 0..world.plan.clients {
        world.executor.spawn(change_and_read(Rc::clone(world), Rc::clone(&values), client));
    }
}

/// Changes the value that is its own, and reads those of all.
async fn change_and_read(world: Rc<World>, values: Rc<Values>, client: usize) {
    let mut shown = None;
    for version in 1.. {
        world.pause().await;
        if world.executor.one_in(3) {
            let key = match world.executor.one_in(2) {
                true => world.executor.below(world.plan.clients as u64) as usize,
                false => client,
            };
            if let (Some(found), true) = (values.read(&world, client, key).await, key == client) {
                shown = Some(found);
            }
        } else {
            values.change(&world, client, version, &mut shown).await;
        }
    }
}

/// Any change. `has_cas`: whether its client was shown a CAS. `states`: how many the value may have.
fn draw(world: &World, has_cas: bool, number: u64, states: usize) -> Change {
    let exptime = if world.executor.one_in(2) { 0 } else { 1 + world.executor.below(4) };
    match world.executor.below(12) {
        // Each other change that fails makes twice as many of them.
        _ if states > MAX_STATES => Change::Set(number, exptime),
        0 | 1 => Change::Set(number, exptime),
        2 => Change::Add(number, exptime),
        3 => Change::Replace(number, exptime),
        4 | 5 if has_cas => Change::Cas(number, exptime),
        6 => Change::Touch(exptime),
        7 => Change::Delete,
        other => Change::Count(other < 10, 1 + world.executor.below(3)),
    }
}

impl State {
    /// What a command may have found that was carried out between these times.
    fn found(&self, (begun, done): (u64, u64), spread: u64) -> Vec<Option<u64>> {
        match (self.number, self.ends) {
            (Some(number), Some(ends)) => {
                let (lives, has_ended) = (begun < ends, done + spread >= ends);
                lives.then_some(Some(number)).into_iter().chain(has_ended.then_some(None)).collect()
            }
            (number, _) => vec![number],
        }
    }

    /// What becomes of it by a change that has found this.
    fn changed(&self, found: Option<u64>, change: Change, now: u64, version: u64) -> (State, Told) {
        let ends = |exptime: u64| (exptime > 0).then_some(now + exptime * 1_000);
        let stored = |number, exptime| {
            let state = State { number: Some(number), ends: ends(exptime), version };
            (state, Told::Stored)
        };
        match (change, found) {
            (Change::Add(..), Some(_)) | (Change::Replace(..), None) => (*self, Told::NotStored),
            (Change::Set(number, exptime) | Change::Add(number, exptime), _)
            | (Change::Replace(number, exptime) | Change::Cas(number, exptime), Some(_)) => {
                stored(number, exptime)
            }
            (_, None) => (*self, Told::NotFound),
            (Change::Count(decr, delta), Some(number)) => {
                let number = if decr { number.saturating_sub(delta) } else { number + delta };
                (State { number: Some(number), version, ..*self }, Told::Counted(number))
            }
            (Change::Touch(exptime), _) => (State { ends: ends(exptime), version, ..*self }, Told::Touched),
            (Change::Delete, _) => (State { number: None, ends: None, version }, Told::Deleted),
        }
    }
}

impl Values {
    /// The states that a value may have had since this time.
    fn since(&self, key: usize, time: u64) -> Vec<State> {
        let history = &self.0.borrow()[key];
        let before = history.iter().rposition(|(at, _)| *at < time).unwrap_or(0);
        history[before..].iter().flat_map(|(_, states)| states).copied().collect()
    }

    fn set(&self, key: usize, now: u64, all: Vec<State>) {
        let mut states: Vec<State> = Vec::new();
        for state in all {
            if !states.contains(&state) {
                states.push(state);
            }
        }
        self.0.borrow_mut()[key].push((now, states));
    }

    /// Reads a value. Returns its CAS, and the versions that it may be of.
    async fn read(&self, world: &World, client: usize, key: usize) -> Option<(u64, Vec<u64>)> {
        let (begun, wall) = (world.executor.now(), world.network.wall());
        let (found, cas) = match carry_out(world, client, key, Request::Get, wall).await {
            Outcome::Value { data, cas, .. } => {
                (Some(String::from_utf8_lossy(&data).parse().expect("it is a number")), cas)
            }
            Outcome::Miss => (None, 0),
            _ => return None,
        };
        world.saw();
        let (possible, times) = (self.since(key, begun), (wall, world.network.wall()));
        let is_it = |state: &&State| state.found(times, world.plan.spread).contains(&found);
        let versions: Vec<u64> = possible.iter().filter(is_it).map(|state| state.version).collect();
        if versions.is_empty() {
            world.violated(|| format!("value {key} is {found:?}, which is none of {possible:?}"));
        }
        found.map(|_| (cas, versions))
    }

    /// Changes the client's own value. `shown`: a CAS that it was shown.
    async fn change(&self, world: &World, client: usize, version: u64, shown: &mut Option<(u64, Vec<u64>)>) {
        let (now, wall) = (world.inputs(client % world.plan.sidecars).now, world.network.wall());
        let before = self.0.borrow()[client].last().map(|(_, states)| states.clone()).unwrap_or_default();
        let change = draw(world, shown.is_some(), 1_000 * version, before.len());
        let (cas, over) = shown.take_if(|_| matches!(change, Change::Cas(..))).unwrap_or_default();
        let made = |done: u64| {
            let of = |from: State| {
                let found = from.found((wall, done), world.plan.spread).into_iter();
                found.map(move |found| (from, from.changed(found, change, now, version)))
            };
            before.clone().into_iter().flat_map(of).collect::<Vec<_>>()
        };
        // One that fails may be made until the next one that does not.
        let perhaps = made(u64::MAX / 2).into_iter().map(|(_, (state, _))| state);
        self.set(client, world.executor.now(), before.iter().copied().chain(perhaps).collect());
        let mut text = String::new();
        let outcome = carry_out(world, client, client, request(change, cas, &mut text), now).await;
        let told = match outcome {
            Outcome::Stored(_) => Told::Stored,
            Outcome::NotStored => Told::NotStored,
            Outcome::NotFound => Told::NotFound,
            Outcome::Exists => Told::Exists,
            Outcome::Counted(number, ..) => Told::Counted(number),
            Outcome::Touched(..) => Told::Touched,
            Outcome::Deleted => Told::Deleted,
            _ => return,
        };
        world.saw();
        let mut made = made(world.network.wall());
        made.retain(|(from, (_, expected))| {
            let is_over = !matches!(change, Change::Cas(..)) || told != Told::Stored;
            *expected == told && (is_over || over.contains(&from.version))
        });
        // After a loss, the CAS is another one.
        let is_possible = !made.is_empty() || told == Told::Exists && matches!(change, Change::Cas(..));
        if !is_possible {
            world.violated(|| {
                format!("{change:?} of value {client}: {told:?}, though it was one of {before:?}")
            });
        }
        let states = match told {
            // Nothing prevents that a change which failed before is made later.
            Told::NotStored | Told::NotFound | Told::Exists => before,
            _ => made.into_iter().map(|(_, (state, _))| state).collect(),
        };
        self.set(client, world.executor.now(), states);
    }
}

/// Carries out a client's command on a value, at this time by the clock of its sidecar.
async fn carry_out(world: &World, client: usize, key: usize, request: Request<'_>, now: u64) -> Outcome {
    let (sidecar, name) = (client % world.plan.sidecars, format!("v{key}"));
    let kind = Kind::Copied(Copied { of: None });
    let mut machine = world.machine(sidecar, &kind, &name, name.len(), request, now);
    let outcome = world.carry_out(sidecar, 0, &mut *machine, &Watch::nothing()).await;
    world.trace(|| format!("client {client}: {request:?} of {name} -> {outcome:?}"));
    outcome
}

/// The command of a change. `text`: room for its value.
fn request(change: Change, cas: u64, text: &mut String) -> Request<'_> {
    let (verb, number, exptime) = match change {
        Change::Set(number, exptime) => (Verb::Set, number, exptime),
        Change::Add(number, exptime) => (Verb::Add, number, exptime),
        Change::Replace(number, exptime) => (Verb::Replace, number, exptime),
        Change::Cas(number, exptime) => (Verb::Cas(cas), number, exptime),
        Change::Count(decr, delta) => {
            return Request::Count { decr, delta, initial: None };
        }
        Change::Touch(exptime) => return Request::Touch { exptime: exptime as i64 },
        Change::Delete => return Request::Delete,
    };
    *text = number.to_string();
    Request::Store { verb, data: text.as_bytes(), flags: 0, exptime: exptime as i64 }
}
