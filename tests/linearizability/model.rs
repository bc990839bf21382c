//! A memcached with one key that never expires, and what the guard may do in addition.

use super::history::{Command, Invocation, Response};

/// What the guard may do that memcached does not. Each allowance is a field and can be removed; nothing else is allowed.
///
/// Reads need none: they return a miss only while the key is absent, whatever placeholder is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allowances {
    /// **A lost race.** A `set` or `replace` of a connection with an outstanding miss ([`Invocation::ends_miss`]) may have no
    /// effect although its response is `STORED`, if another connection changed the key between the invocation of that miss and
    /// the response to the `set`. An `add` that lost such a race may return `NOT_STORED` although the key is absent, once per
    /// miss. Reason: what was built after the miss may be older than the change, and the client sees "stored, then overwritten or
    /// deleted". This is memcached's lease.
    pub(crate) lost_race: bool,
    /// **A refusal.** Where a `set` may have lost its race, an `ma N` may return `NS` although the key is absent. Reason: it
    /// would store what may be older than the change, and the refusal informs the client
    /// (docs/guarantees.md).
    pub(crate) refusal: bool,
    /// **A delete that reads first.** A `delete` may return `NOT_FOUND` although it removes a value, or `DELETED` although there
    /// is none any more, if the value was stored or removed while the `delete` ran: the response was correct at some moment of
    /// it. Reason: the guard reads the item and removes it with two commands that it sends together, because `md` alone cannot
    /// tell a value from a stub.
    pub(crate) delete_reads_first: bool,
    /// **Pooled clients.** A `set` or `add` of a connection without a miss may have lost the race of a miss that another
    /// connection of the same client received at most this long before, and that has not ended. Such a store ends the miss that
    /// it is attributed to, except for the connection that received it: that connection's own `set` may follow and have lost the
    /// same race. Reason: a pool reads on one connection and writes on another, and the protocol does not identify the `get` to
    /// which a `set` belongs.
    pub(crate) pooled: Option<u64>,
    /// **A touch is a change.** The value has another CAS unique afterwards. Reason: with two copies, the unique names the change that
    /// both have.
    pub(crate) touch_changes: bool,
}

impl Allowances {
    /// memcached without the guard.
    pub(crate) const NONE: Allowances = Allowances {
        lost_race: false,
        refusal: false,
        delete_reads_first: false,
        pooled: None,
        touch_changes: false,
    };
    /// A value with two copies.
    pub(crate) const COPIED: Allowances = Allowances { touch_changes: true, ..Allowances::NONE };
    /// A guarded key whose clients read and write on one connection.
    pub(crate) const SINGLE: Allowances =
        Allowances { lost_race: true, refusal: true, delete_reads_first: true, ..Allowances::NONE };

    /// A guarded key whose clients have pools.
    pub(crate) const fn pooled(max_rebuild: u64) -> Allowances {
        Allowances { pooled: Some(max_rebuild), ..Allowances::SINGLE }
    }
}

/// The current value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Item {
    value: String,
    /// Its CAS unique, once a response contained it.
    unique: Option<u64>,
}

/// A miss that a connection received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Miss {
    /// Another connection has changed the key since.
    raced: bool,
    /// This connection has bumped a tag of the key since. Its own store is newer than that; what another connection of its client
    /// stores may have been built before.
    bumped: bool,
    /// An `add` or `ma N` was refused for it.
    refused: bool,
    /// When it was received, where pools are allowed; otherwise 0, so that otherwise equal states are equal.
    received: u64,
}

/// What one connection has done that matters later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Connection {
    miss: Option<Miss>,
    /// A miss to which another connection's `set` was attributed.
    spent: Option<Miss>,
    /// The latest moment at which its last change may have taken effect; 0: before any later miss was invoked.
    changed: u64,
}

/// The key after some of its operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    item: Option<Item>,
    /// The CAS uniques in responses so far. No two values have the same.
    shown: Vec<u64>,
    connections: Vec<Connection>,
    /// The latest moment at which the value may have been created or removed; 0: before any later delete was invoked.
    presence_changed: u64,
}

/// The moments before which nothing matters any more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Horizon {
    /// When the first remaining miss was invoked.
    pub(super) miss: u64,
    /// When the first remaining delete was invoked.
    pub(super) delete: u64,
}

impl State {
    /// The key is absent and no connection has an outstanding miss.
    pub(super) fn absent(connections: usize) -> State {
        State {
            item: None,
            shown: Vec::new(),
            connections: vec![Connection::default(); connections],
            presence_changed: 0,
        }
    }

    /// Whether nothing differs from `before` except, if anything, the misses of `reader`.
    pub(super) fn differs_only_in_misses_of(&self, before: &State, reader: Option<usize>) -> bool {
        let all = self.connections.iter().zip(&before.connections).enumerate();
        let mut others = all.filter(|(at, _)| Some(*at) != reader);
        let same = others.all(|(_, (now, then))| (now.miss, now.spent) == (then.miss, then.spent));
        same && self.item == before.item && self.shown == before.shown
    }

    /// The states that this operation may lead to with this response: none if the response is impossible.
    ///
    /// `clients` holds the client of each connection.
    pub(super) fn after(
        &self,
        operation: &Invocation,
        clients: &[usize],
        allowances: &Allowances,
        horizon: Horizon,
    ) -> Vec<State> {
        let mut states = Vec::from_iter(self.as_memcached(operation, allowances));
        states.extend(states.first().and_then(|state| state.unpadded(operation)));
        // A store that took effect may be attributed to a miss or to none, for example after a delete of the same connection.
        let counted =
            states.iter().flat_map(|state| state.with_attributions(self, operation, clients, allowances));
        states.extend(Vec::from_iter(counted));
        states.extend(self.with_lost_race(operation, clients, allowances));
        for state in &mut states {
            for connection in &mut state.connections {
                connection.changed = connection.changed.min(operation.deadline());
                if connection.changed < horizon.miss {
                    connection.changed = 0;
                }
            }
            state.presence_changed = match state.item.is_some() == self.item.is_some() {
                true => state.presence_changed.min(operation.deadline()),
                false => operation.deadline(),
            };
            if state.presence_changed < horizon.delete {
                state.presence_changed = 0;
            }
        }
        states
    }

    /// As memcached executes it.
    fn as_memcached(&self, operation: &Invocation, allowances: &Allowances) -> Option<State> {
        let (mut next, by) = (self.clone(), operation.connection);
        let (known, number) = (operation.response != Response::Unknown, self.number());
        // Whether the response is this one; true if there was no response.
        let returns = |response: Response| !known || operation.response == response;
        let item = self.item.as_ref();
        match &operation.command {
            Command::Get => match &operation.response {
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
                    let received = if allowances.pooled.is_some() { operation.responded } else { 0 };
                    next.connections[by].miss = Some(Miss { raced, bumped: false, refused: false, received });
                    next.connections[by].spent = None;
                }
                Response::Unknown => {}
                _ => return None,
            },
            Command::Set(value) if returns(Response::Stored) => next.store(value.clone(), operation),
            Command::Add(value) => match item {
                None if returns(Response::Stored) => next.store(value.clone(), operation),
                Some(_) if returns(Response::NotStored) => {}
                _ => return None,
            },
            Command::Replace(value) => match item {
                Some(_) if returns(Response::Stored) => next.store(value.clone(), operation),
                None if returns(Response::NotStored) => {}
                _ => return None,
            },
            Command::Append(more) | Command::Prepend(more) => match item {
                Some(Item { value, .. }) if returns(Response::Stored) => {
                    let append = matches!(operation.command, Command::Append(_));
                    let (first, second) = if append { (value, more) } else { (more, value) };
                    next.store(format!("{first}{second}"), operation);
                }
                None if returns(Response::NotStored) => {}
                _ => return None,
            },
            Command::Cas { unique, value } => {
                let is_it = match item {
                    None => return returns(Response::NotFound).then_some(next),
                    Some(Item { unique: Some(is), .. }) => is == unique,
                    // No response contained its unique, so it is none of those seen so far.
                    Some(Item { unique: None, .. }) => {
                        !self.shown.contains(unique) && operation.response != Response::Exists
                    }
                };
                match is_it {
                    true if returns(Response::Stored) => {
                        next.show(*unique);
                        next.store(value.clone(), operation);
                    }
                    false if returns(Response::Exists) => {}
                    _ => return None,
                }
            }
            Command::Count { delta, decr, initial } => match (item, number, initial) {
                (Some(_), Some(number), _) => {
                    let count =
                        if *decr { number.saturating_sub(*delta) } else { number.wrapping_add(*delta) };
                    if !returns(Response::Number(count)) {
                        return None;
                    }
                    // A shorter number keeps the length of the value by trailing spaces (protocol.txt, "Increment/Decrement").
                    let length = item.map_or(0, |item| item.value.len());
                    next.store(format!("{count:<length$}"), operation);
                }
                (Some(_), None, _) if returns(Response::NotANumber) => {}
                (None, _, Some(initial)) if returns(Response::Number(*initial)) => {
                    next.store(initial.to_string(), operation);
                }
                (None, _, None) if returns(Response::NotFound) => {}
                _ => return None,
            },
            Command::Delete => match item {
                Some(_) if returns(Response::Deleted) => next.remove(operation),
                // A delete of an absent key still invalidates what is being built.
                None if returns(Response::NotFound) => next.remove(operation),
                _ if allowances.delete_reads_first && self.presence_changed >= operation.invoked.max(1) => {
                    next.remove(operation);
                }
                _ => return None,
            },
            Command::Touch => match item {
                Some(Item { value, .. }) if returns(Response::Touched) && allowances.touch_changes => {
                    next.store(value.clone(), operation);
                }
                Some(_) if returns(Response::Touched) => {}
                None if returns(Response::NotFound) => {}
                _ => return None,
            },
            Command::Look => match item {
                Some(_) if returns(Response::Found) => {}
                None if returns(Response::NotFound) => {}
                _ => return None,
            },
            Command::Flush | Command::Bump if returns(Response::Flushed) => {
                next.remove(operation);
                let own = &mut next.connections[by];
                for miss in [&mut own.miss, &mut own.spent].into_iter().flatten() {
                    miss.bumped |= operation.command == Command::Bump;
                }
            }
            Command::Set(_) | Command::Flush | Command::Bump => return None,
        }
        if operation.ends_miss() {
            (next.connections[by].miss, next.connections[by].spent) = (None, None);
        }
        Some(next)
    }

    /// A shorter number has no trailing spaces where memcached cannot write in place, that is, while the value is being sent to
    /// another client.
    fn unpadded(&self, operation: &Invocation) -> Option<State> {
        let is_count = matches!(operation.command, Command::Count { .. });
        let item = self.item.as_ref().filter(|item| is_count && item.value.ends_with(' '))?;
        let value = item.value.trim_end().to_owned();
        Some(State { item: Some(Item { value, ..item.clone() }), ..self.clone() })
    }

    /// As the guard may execute it beyond memcached.
    fn with_lost_race(
        &self,
        operation: &Invocation,
        clients: &[usize],
        allowances: &Allowances,
    ) -> Vec<State> {
        let absent = self.item.is_none();
        let may_lose = match (&operation.command, &operation.response) {
            (Command::Set(_), Response::Stored) => true,
            // The response shows whether there was a value to replace.
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
        let is_refused = operation.response == Response::NotStored;
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
        // Its own miss has lost no race, so the store is attributed to it.
        if miss.is_some() {
            return Vec::new();
        }
        let raced = |at: &usize| self.connections[*at].miss.is_some_and(|miss| miss.raced || miss.bumped);
        let misses = self.misses_of_peers(operation, clients, allowances);
        misses.into_iter().filter(raced).map(|at| next.attribute_to(at)).collect()
    }

    /// The other connections of its client's pool with a miss to which a store may be attributed.
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
        let recent = |miss: Miss| operation.invoked.saturating_sub(miss.received) <= max_rebuild;
        let all = self.connections.iter().enumerate();
        let peers = all.filter(|(at, _)| clients[*at] == operation.client && *at != operation.connection);
        peers.filter(|(_, peer)| peer.miss.is_some_and(recent)).map(|(at, _)| at).collect()
    }

    /// The same, with a store that took effect attributed to a miss of another connection.
    fn with_attributions(
        &self,
        before: &State,
        operation: &Invocation,
        clients: &[usize],
        allowances: &Allowances,
    ) -> Vec<State> {
        let own = before.connections[operation.connection].miss.is_some();
        if operation.response != Response::Stored || own {
            return Vec::new();
        }
        let misses = before.misses_of_peers(operation, clients, allowances);
        misses.into_iter().map(|at| self.attribute_to(at)).collect()
    }

    /// Attributes another connection's store to the miss of this one, whose own store may follow.
    fn attribute_to(&self, at: usize) -> State {
        let mut counted = self.clone();
        counted.connections[at].spent = counted.connections[at].miss.take();
        counted
    }

    /// The number that memcached increments: digits, optionally followed by a space.
    fn number(&self) -> Option<u64> {
        let Item { value, .. } = self.item.as_ref()?;
        // `parse` accepts a plus sign, and so does memcached; no test sends one.
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

    /// The outstanding misses of all other connections have lost their race.
    fn change(&mut self, operation: &Invocation) {
        for (at, connection) in self.connections.iter_mut().enumerate() {
            for miss in [&mut connection.miss, &mut connection.spent].into_iter().flatten() {
                miss.raced |= at != operation.connection;
            }
        }
        self.connections[operation.connection].changed = operation.deadline();
    }

    /// The current value has this unique. `None` if another value had it.
    fn show(&mut self, unique: u64) -> Option<()> {
        let at = self.shown.binary_search(&unique).err()?;
        self.shown.insert(at, unique);
        self.item.as_mut()?.unique = Some(unique);
        Some(())
    }
}
