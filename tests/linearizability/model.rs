//! memcached with one key that never expires, and what the guard may do beyond it.

use super::history::{Command, Invocation, Response};

/// What the guard may do that memcached does not. Each is a field, so that each can be taken away; nothing else is allowed.
///
/// A reader needs none: it is told a miss only while the key is absent, whatever stands there in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allowances {
    /// **A lost race.** A `set` or `replace` of a connection that was told a miss, and whose miss has not ended
    /// ([`Invocation::ends_miss`]), may have no effect although it is answered `STORED`, if another connection changed the key
    /// between the invocation of that miss and the answer of the `set`. An `add` that lost such a race may be answered
    /// `NOT_STORED` although the key is absent, once for each miss. Why: what was built after the miss may be older than the change, and "stored,
    /// then overwritten or deleted" is what the client sees. It is memcached's lease.
    pub(crate) lost_race: bool,
    /// **A refusal.** Where a `set` may have lost its race, an `ma N` may be answered `NS` although the key is absent. Why: it would
    /// store what may be older than the change, and the refusal tells the client (docs/decisions/0010-which-miss-a-set-fills.md).
    pub(crate) refusal: bool,
    /// **A delete that looks first.** A `delete` may be answered `NOT_FOUND` although it removes a value, or `DELETED` although
    /// there is none any more, if the value was stored or removed while the `delete` ran: the answer was true at some moment of
    /// it. Why: the guard asks what stands there and removes it with two commands that it sends at once, since `md` alone cannot
    /// tell a value from a stub.
    pub(crate) delete_looks_first: bool,
    /// **Pooled clients.** The race that a `set` or `add` of a connection without a miss may have lost is that of a miss which another
    /// connection of the same client was told at most this long before, and which has not ended. Such a store ends the miss that it
    /// is counted for, but to the connection that was told it: its own `set` may come yet, and have lost that race.
    /// Why: a pool reads on one connection and writes on another, and the protocol has no word for which `get` a `set`
    /// belongs to.
    pub(crate) pooled: Option<u64>,
}

impl Allowances {
    /// memcached itself.
    pub(crate) const NONE: Allowances =
        Allowances { lost_race: false, refusal: false, delete_looks_first: false, pooled: None };
    /// A guarded key whose clients read and write on one connection.
    pub(crate) const SINGLE: Allowances =
        Allowances { lost_race: true, refusal: true, delete_looks_first: true, pooled: None };

    /// A guarded key whose clients have pools.
    pub(crate) const fn pooled(max_rebuild: u64) -> Allowances {
        Allowances { pooled: Some(max_rebuild), ..Allowances::SINGLE }
    }
}

/// A value that stands there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Item {
    value: String,
    /// Its cas unique, once somebody was shown it.
    unique: Option<u64>,
}

/// A miss that a connection was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Miss {
    /// Another connection has changed the key since.
    raced: bool,
    /// An `add` or `ma N` was refused for it.
    refused: bool,
    /// When it was told, where pools are allowed for; otherwise 0, so that states are equal that differ in nothing else.
    told: u64,
}

/// What one connection has done that matters later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Connection {
    miss: Option<Miss>,
    /// One that another connection's `set` was counted for.
    spent: Option<Miss>,
    /// The latest moment at which its last change may have taken effect; 0: before any miss that is still to come was asked for.
    changed: u64,
}

/// The key after some of its operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    item: Option<Item>,
    /// The cas uniques that were shown. No two values have the same.
    shown: Vec<u64>,
    connections: Vec<Connection>,
    /// The latest moment at which the value may have come or gone; 0: before any delete that is still to come was asked for.
    turned: u64,
}

/// Before which moments nothing matters any more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Horizon {
    /// No miss that is still to come was asked for before.
    pub(super) miss: u64,
    /// Nor any delete.
    pub(super) delete: u64,
}

impl State {
    /// Nothing stands there, and none of so many connections was told a miss.
    pub(super) fn absent(connections: usize) -> State {
        State {
            item: None,
            shown: Vec::new(),
            connections: vec![Connection::default(); connections],
            turned: 0,
        }
    }

    /// Nothing differs from `before`, but perhaps the misses of this connection.
    pub(super) fn leaves(&self, before: &State, reader: Option<usize>) -> bool {
        let all = self.connections.iter().zip(&before.connections).enumerate();
        let mut others = all.filter(|(at, _)| Some(*at) != reader);
        let same = others.all(|(_, (now, then))| (now.miss, now.spent) == (then.miss, then.spent));
        same && self.item == before.item && self.shown == before.shown
    }

    /// The states that this operation may lead to with this answer: none if it could not be answered like this.
    ///
    /// `clients` gives the client of each connection.
    pub(super) fn after(
        &self,
        operation: &Invocation,
        clients: &[usize],
        allowances: &Allowances,
        horizon: Horizon,
    ) -> Vec<State> {
        let mut states = Vec::from_iter(self.plain(operation, allowances));
        states.extend(states.first().and_then(|state| state.unpadded(operation)));
        // What is kept may be counted for a miss, or for none: behind an own delete, say.
        let counted = states.iter().flat_map(|state| state.counted(self, operation, clients, allowances));
        states.extend(Vec::from_iter(counted));
        states.extend(self.lost(operation, clients, allowances));
        for state in &mut states {
            for connection in &mut state.connections {
                connection.changed = connection.changed.min(operation.deadline());
                if connection.changed < horizon.miss {
                    connection.changed = 0;
                }
            }
            state.turned = match state.item.is_some() == self.item.is_some() {
                true => state.turned.min(operation.deadline()),
                false => operation.deadline(),
            };
            if state.turned < horizon.delete {
                state.turned = 0;
            }
        }
        states
    }

    /// As memcached does it.
    fn plain(&self, operation: &Invocation, allowances: &Allowances) -> Option<State> {
        let (mut next, by) = (self.clone(), operation.connection);
        let (known, number) = (operation.answer != Response::Unknown, self.number());
        // What was answered, if something was; otherwise what memcached would have.
        let said = |answer: Response| !known || operation.answer == answer;
        let item = self.item.as_ref();
        match &operation.command {
            Command::Get => match &operation.answer {
                Response::Hit { value, unique } => {
                    let item = item.filter(|item| item.value.trim_end() == value)?;
                    match (item.unique, *unique) {
                        (Some(known), Some(unique)) if known != unique => return None,
                        (None, Some(unique)) => next.show(unique)?,
                        _ => {}
                    }
                }
                Response::Miss if item.is_none() => {
                    let others = self.connections.iter().enumerate().filter(|(other, _)| *other != by);
                    let raced =
                        others.map(|(_, other)| other.changed).max() >= Some(operation.invoked.max(1));
                    let told = if allowances.pooled.is_some() { operation.answered } else { 0 };
                    next.connections[by].miss = Some(Miss { raced, refused: false, told });
                    next.connections[by].spent = None;
                }
                Response::Unknown => {}
                _ => return None,
            },
            Command::Set(value) if said(Response::Stored) => next.store(value.clone(), operation),
            Command::Add(value) => match item {
                None if said(Response::Stored) => next.store(value.clone(), operation),
                Some(_) if said(Response::NotStored) => {}
                _ => return None,
            },
            Command::Replace(value) => match item {
                Some(_) if said(Response::Stored) => next.store(value.clone(), operation),
                None if said(Response::NotStored) => {}
                _ => return None,
            },
            Command::Append(more) | Command::Prepend(more) => match item {
                Some(Item { value, .. }) if said(Response::Stored) => {
                    let append = matches!(operation.command, Command::Append(_));
                    let (first, second) = if append { (value, more) } else { (more, value) };
                    next.store(format!("{first}{second}"), operation);
                }
                None if said(Response::NotStored) => {}
                _ => return None,
            },
            Command::Cas { unique, value } => {
                let is_it = match item {
                    None => return said(Response::NotFound).then_some(next),
                    Some(Item { unique: Some(is), .. }) => is == unique,
                    // Nobody was shown it yet, so it is none of those that were shown.
                    Some(Item { unique: None, .. }) => {
                        !self.shown.contains(unique) && operation.answer != Response::Exists
                    }
                };
                match is_it {
                    true if said(Response::Stored) => {
                        next.show(*unique);
                        next.store(value.clone(), operation);
                    }
                    false if said(Response::Exists) => {}
                    _ => return None,
                }
            }
            Command::Count { delta, decr, initial } => match (item, number, initial) {
                (Some(_), Some(number), _) => {
                    let count =
                        if *decr { number.saturating_sub(*delta) } else { number.wrapping_add(*delta) };
                    if !said(Response::Number(count)) {
                        return None;
                    }
                    // It keeps its length, by trailing spaces, if it got shorter (protocol.txt, "Increment/Decrement").
                    let length = item.map_or(0, |item| item.value.len());
                    next.store(format!("{count:<length$}"), operation);
                }
                (Some(_), None, _) if said(Response::NotANumber) => {}
                (None, _, Some(initial)) if said(Response::Number(*initial)) => {
                    next.store(initial.to_string(), operation);
                }
                (None, _, None) if said(Response::NotFound) => {}
                _ => return None,
            },
            Command::Delete => match item {
                Some(_) if said(Response::Deleted) => next.remove(operation),
                // What was being built is not to be kept: a delete of nothing is one all the same.
                None if said(Response::NotFound) => next.remove(operation),
                _ if allowances.delete_looks_first && self.turned >= operation.invoked.max(1) => {
                    next.remove(operation);
                }
                _ => return None,
            },
            Command::Touch => match item {
                Some(_) if said(Response::Touched) => {}
                None if said(Response::NotFound) => {}
                _ => return None,
            },
            Command::Flush | Command::Bump if said(Response::Flushed) => next.remove(operation),
            Command::Set(_) | Command::Flush | Command::Bump => return None,
        }
        if operation.ends_miss() {
            (next.connections[by].miss, next.connections[by].spent) = (None, None);
        }
        Some(next)
    }

    /// A count that got shorter keeps no trailing spaces where memcached cannot write in place: while another client is sent the
    /// value, that is.
    fn unpadded(&self, operation: &Invocation) -> Option<State> {
        let is_count = matches!(operation.command, Command::Count { .. });
        let item = self.item.as_ref().filter(|item| is_count && item.value.ends_with(' '))?;
        let value = item.value.trim_end().to_owned();
        Some(State { item: Some(Item { value, ..item.clone() }), ..self.clone() })
    }

    /// As the guard may do it beyond memcached.
    fn lost(&self, operation: &Invocation, clients: &[usize], allowances: &Allowances) -> Vec<State> {
        let absent = self.item.is_none();
        let may_lose = match (&operation.command, &operation.answer) {
            (Command::Set(_), Response::Stored) => true,
            // It says whether there was anything to replace.
            (Command::Replace(_), Response::Stored) => !absent,
            (Command::Add(_), Response::NotStored) => absent,
            (Command::Count { initial: Some(_), .. }, Response::NotStored) => allowances.refusal && absent,
            _ => false,
        };
        if !(allowances.lost_race && may_lose) {
            return Vec::new();
        }
        let Connection { miss, spent, .. } = self.connections[operation.connection];
        let mut next = self.clone();
        let is_refused = operation.answer == Response::NotStored;
        if is_refused && miss.into_iter().chain(spent).any(|miss| miss.refused) {
            return Vec::new();
        }
        let own = &mut next.connections[operation.connection];
        for miss in [&mut own.miss, &mut own.spent].into_iter().flatten() {
            miss.refused |= is_refused;
        }
        if operation.ends_miss() {
            let own = &mut next.connections[operation.connection];
            (own.miss, own.spent) = (None, None);
        }
        if miss.into_iter().chain(spent).any(|miss| miss.raced) {
            return vec![next];
        }
        // Its own miss has lost nothing, so it is its own.
        if miss.is_some() {
            return Vec::new();
        }
        let raced = |at: &usize| self.connections[*at].miss.is_some_and(|miss| miss.raced);
        let misses = self.misses_of_peers(operation, clients, allowances);
        misses.into_iter().filter(raced).map(|at| next.count(at)).collect()
    }

    /// The other connections of its client's pool that were told a miss which a store may be counted for.
    fn misses_of_peers(
        &self,
        operation: &Invocation,
        clients: &[usize],
        allowances: &Allowances,
    ) -> Vec<usize> {
        let Some(max_rebuild) = allowances.pooled else { return Vec::new() };
        if !matches!(operation.command, Command::Set(_) | Command::Add(_)) {
            return Vec::new();
        }
        let told = |miss: Miss| operation.invoked.saturating_sub(miss.told) <= max_rebuild;
        let all = self.connections.iter().enumerate();
        let peers = all.filter(|(at, _)| clients[*at] == operation.client && *at != operation.connection);
        peers.filter(|(_, peer)| peer.miss.is_some_and(told)).map(|(at, _)| at).collect()
    }

    /// The same, where a store that was kept is counted for a miss of another connection.
    fn counted(
        &self,
        before: &State,
        operation: &Invocation,
        clients: &[usize],
        allowances: &Allowances,
    ) -> Vec<State> {
        let own = before.connections[operation.connection].miss.is_some();
        if operation.answer != Response::Stored || own {
            return Vec::new();
        }
        let misses = before.misses_of_peers(operation, clients, allowances);
        misses.into_iter().map(|at| self.count(at)).collect()
    }

    /// A store of another connection is counted for the miss of this one, whose own may come yet.
    fn count(&self, at: usize) -> State {
        let mut counted = self.clone();
        counted.connections[at].spent = counted.connections[at].miss.take();
        counted
    }

    /// What memcached counts from: digits, and behind them nothing or a space.
    fn number(&self) -> Option<u64> {
        let Item { value, .. } = self.item.as_ref()?;
        // `parse` takes a plus sign, and so does memcached, which nobody sends here.
        value.split(' ').next()?.parse().ok()
    }

    fn store(&mut self, value: String, operation: &Invocation) {
        self.item = Some(Item { value, unique: None });
        self.change(operation);
    }

    fn remove(&mut self, operation: &Invocation) {
        self.item = None;
        self.change(operation);
    }

    /// Everybody else's miss has lost its race.
    fn change(&mut self, operation: &Invocation) {
        for (at, connection) in self.connections.iter_mut().enumerate() {
            for miss in [&mut connection.miss, &mut connection.spent].into_iter().flatten() {
                miss.raced |= at != operation.connection;
            }
        }
        self.connections[operation.connection].changed = operation.deadline();
    }

    /// What stands there has this unique. `None` if another value had it.
    fn show(&mut self, unique: u64) -> Option<()> {
        let at = self.shown.binary_search(&unique).err()?;
        self.shown.insert(at, unique);
        self.item.as_mut()?.unique = Some(unique);
        Some(())
    }
}
