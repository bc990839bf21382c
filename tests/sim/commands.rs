//! Clients that send ordinary commands on few keys in random order with short pauses. The linearizability checker judges the
//! responses. Nothing expires and there are no faults, so every inconsistent history is an error.

use bytes::Bytes;
use kennel::error::Failure;
use kennel::guard::leases::{Attribution, Leases, MissToken, Owner, StoreCondition, Writer};
use kennel::guard::{
    Change, Count, Delete, DeleteEnd, Expiry, Fill, FillEnd, FillKind, Inputs, Modify, ModifyEnd, NewValue,
    Read, ReadEnd, ReadOptions, Removal, Set, SetEnd, Step, TagNames,
};

use super::checker::{Violation, millis, violation};
use super::linearizability::{Allowances, Command, Invocation, Response, Verdict, check_key};
use super::operation::{End, OpId, Purpose, Task};
use super::world::{Event, World};

/// How many commands each client sends.
const COMMANDS: usize = 24;
/// The number of connections in a pool.
const POOL: usize = 3;

/// One client: one connection, or a pool.
#[derive(Debug, Clone)]
pub struct CommandClient {
    sidecar: usize,
    connections: Vec<Owner>,
    sent: usize,
    /// The CAS unique that it last received, by key.
    shown: Vec<Option<u64>>,
    /// It has just received a miss of this key.
    missed: Option<usize>,
}

/// A command in progress.
#[derive(Debug, Clone)]
pub struct PendingCommand {
    which: usize,
    pub owner: Owner,
    key: usize,
    command: Command,
    /// Its index in the history of its key.
    index: usize,
    /// The miss that it fills, and the miss's connection if that is another one.
    fills: Option<(MissToken, Option<Owner>)>,
    /// The miss holds the lease.
    holds_lease: bool,
}

impl World {
    pub fn new_command_client(&mut self) {
        let which = self.command_clients.len();
        let connections = if self.plan.pooled { POOL } else { 1 };
        let connections = (0..connections).map(|_| self.new_owner()).collect();
        let (sidecar, shown) = (which % self.plan.sidecars, vec![None; self.plan.keys.len()]);
        self.command_clients.push(CommandClient { sidecar, connections, sent: 0, shown, missed: None });
        let first = 1 + self.below(self.plan.pause);
        self.at(first, Event::Command { which });
    }

    fn new_owner(&mut self) -> Owner {
        self.next += 1;
        self.next.into()
    }

    /// A client sends its next command.
    pub fn next_command(&mut self, which: usize) -> Result<(), Violation> {
        if self.command_clients[which].sent == COMMANDS {
            return Ok(());
        }
        self.command_clients[which].sent += 1;
        let (key, command) = self.draw_command(which);
        let CommandClient { connections, .. } = &self.command_clients[which];
        let owner = connections[self.random.below(connections.len() as u64) as usize];
        self.trace(|| format!("client {which} on {}: key {key} {command}", owner.connection));
        if command == Command::Flush {
            for key in 0..self.plan.keys.len() {
                self.invoked(which, owner, key, &command);
            }
            return self.flush(which, owner);
        }
        let index = self.invoked(which, owner, key, &command);
        self.start_command(PendingCommand {
            which,
            owner,
            key,
            command,
            index,
            fills: None,
            holds_lease: false,
        })
    }

    /// No `flush_all` in runs with tags: it removes tags and keys at different moments.
    fn draw_command(&mut self, which: usize) -> (usize, Command) {
        let keys = self.plan.keys.len() as u64;
        let missed = self.command_clients[which].missed.take();
        let missed = missed.filter(|_| self.below(2) == 0);
        let key = missed.unwrap_or_else(|| self.random.below(keys) as usize);
        self.next += 1;
        let value = (self.next * 100).to_string();
        let number = self.next * 100;
        let unique = self.command_clients[which].shown[key];
        let drawn = if missed.is_some() { 10 + self.below(6) } else { self.below(32) };
        let command = match drawn {
            0..=9 => Command::Get,
            10..=13 => Command::Set(value),
            14..=16 => Command::Add(value),
            17 => Command::Replace(value),
            18 | 19 => match unique {
                Some(unique) => Command::Cas { unique, value },
                None => Command::Get,
            },
            20..=22 => Command::Count { delta: 1, decr: false, initial: None },
            23 => Command::Count { delta: 1, decr: false, initial: Some(number) },
            24 => Command::Append(format!("x{value}")),
            25 => Command::Prepend(format!("{value}y")),
            26 if self.plan.tags == 0 => Command::Flush,
            27 => Command::Touch,
            _ => Command::Delete,
        };
        (key, command)
    }

    /// Records a command without a response. If none arrives, it stays unknown.
    fn invoked(&mut self, which: usize, owner: Owner, key: usize, command: &Command) -> usize {
        let connection = owner.connection as usize;
        // Kennel cannot tell which connections form a pool: a connection may belong to any client of its sidecar.
        let client = if self.plan.pooled { self.command_clients[which].sidecar } else { connection };
        let (invoked, responded, command) = (self.now, u64::MAX, command.clone());
        let response = Response::Unknown;
        self.histories[key].push(Invocation { connection, client, invoked, responded, command, response });
        self.histories[key].len() - 1
    }

    fn responded(&mut self, pending: &PendingCommand, response: Response) -> Result<(), Violation> {
        let PendingCommand { which, key, index, .. } = *pending;
        let client = &mut self.command_clients[which];
        match &response {
            Response::Miss => client.missed = Some(key),
            Response::Hit { unique, .. } => client.shown[key] = *unique,
            _ => {}
        }
        self.checker.coverage.commands += 1;
        let operation = &mut self.histories[key][index];
        (operation.responded, operation.response) = (self.now, response);
        self.schedule_next(which);
        Ok(())
    }

    fn schedule_next(&mut self, which: usize) {
        let pause = 1 + self.below(self.plan.pause);
        self.at(pause, Event::Command { which });
    }

    /// `flush_all`: sent to each server, with a latency of its own.
    fn flush(&mut self, which: usize, owner: Owner) -> Result<(), Violation> {
        let sidecar = self.command_clients[which].sidecar;
        let of = &mut self.sidecars[sidecar];
        of.known_misses.retain(|(its, _)| *its != owner);
        of.leases.flush(owner);
        let mut last = 0;
        for server in 0..self.plan.servers {
            let arrives = 1 + self.below(self.plan.delay);
            self.at(arrives, Event::Flush { server, which: None });
            last = last.max(arrives);
        }
        let back = last + 1 + self.below(self.plan.delay);
        self.at(back, Event::Flush { server: 0, which: Some(which) });
        Ok(())
    }

    /// A `flush_all` reaches a server or, with `which`, its client receives the response.
    pub fn flush_step(&mut self, server: usize, which: Option<usize>) {
        let Some(which) = which else {
            let wall = self.wall();
            return self.servers[server].flush(wall);
        };
        let now = self.now;
        let connections = self.command_clients[which].connections.clone();
        for history in &mut self.histories {
            let its = |operation: &&mut Invocation| {
                operation.command == Command::Flush
                    && connections.contains(&Owner::from(operation.connection as u64))
            };
            for operation in history.iter_mut().filter(its).filter(|flush| flush.responded == u64::MAX) {
                (operation.responded, operation.response) = (now, Response::Flushed);
            }
        }
        self.schedule_next(which);
    }

    /// A sidecar receives a command, or may proceed after a wait. The same as in src/proxy/guarded.
    pub fn start_command(&mut self, mut pending: PendingCommand) -> Result<(), Violation> {
        let (key, owner) = (pending.key, pending.owner);
        let sidecar = self.command_clients[pending.which].sidecar;
        let name = self.plan.keys[key].key.clone();
        let new_value = |value: &str| NewValue {
            body: Bytes::copy_from_slice(value.as_bytes()),
            flags: 0,
            expiry: Expiry::Never,
            explicit: None,
            tags: TagNames::new(),
        };
        let (known_miss, now) = (self.known_miss(sidecar, key, owner), self.local_now(sidecar));
        let refused = self.is_add_refused(sidecar, key, owner);
        let leases = &mut self.sidecars[sidecar].leases;
        let change = match &pending.command {
            Command::Get => {
                let (read, commands) = self
                    .with_inputs(sidecar, key, |inputs| Read::with_options(ReadOptions::default(), inputs));
                let mut op = self.op(sidecar, key, Task::Read(read), Purpose::Command(pending));
                op.first_round = true;
                self.send_round(op, commands);
                return Ok(());
            }
            Command::Delete => {
                leases.invalidate(&name, owner);
                self.sidecars[sidecar].known_misses.remove(&(owner, key));
                let start = |inputs: &Inputs<'_>| Delete::with_removal(Removal::default(), inputs);
                let (delete, commands) = self.with_inputs(sidecar, key, start);
                let op = self.op(sidecar, key, Task::Delete(delete), Purpose::Command(pending));
                self.send_round(op, commands);
                return Ok(());
            }
            Command::Set(value) | Command::Add(value) => {
                let pooled = self.plan.pooled;
                let adds = matches!(pending.command, Command::Add(_));
                let attribution = match adds && refused {
                    true => Attribution::NoMiss,
                    false => leases.attribute(&name, Writer { owner, known_miss, pooled }, now),
                };
                if attribution != Attribution::Renewing && !adds {
                    self.sidecars[sidecar].known_misses.remove(&(owner, key));
                }
                match attribution {
                    Attribution::Renewing => return self.park(sidecar, pending),
                    Attribution::Invalidated if adds => {
                        self.sidecars[sidecar].refused_adds.insert((owner, key));
                        return self.responded(&pending, Response::NotStored);
                    }
                    Attribution::Invalidated => return self.responded(&pending, Response::Stored),
                    Attribution::Unknown => {
                        return violation(format!("no miss is discarded in these runs: {pending:?}"));
                    }
                    Attribution::Fill { token, owner: miss_owner, .. } if adds && token.filled => {
                        if miss_owner.is_none() {
                            let policy = self.plan.keys[key].policy.clone();
                            self.sidecars[sidecar].leases.record_miss(&name, owner, token, &policy);
                        }
                        self.sidecars[sidecar].refused_adds.insert((owner, key));
                        return self.responded(&pending, Response::NotStored);
                    }
                    Attribution::Fill { token, owner, lease } => {
                        let new_value = new_value(value);
                        let kind = if adds { FillKind::Add } else { FillKind::Set };
                        let start = |inputs: &Inputs<'_>| Fill::start(&token, new_value, kind, inputs);
                        let (fill, step) = self.with_inputs(sidecar, key, start);
                        (pending.fills, pending.holds_lease) = (Some((token, owner)), lease);
                        let Step::Send(commands) = step else {
                            return violation(format!("nothing is unknown in these runs: {pending:?}"));
                        };
                        let op = self.op(sidecar, key, Task::Fill(fill), Purpose::Command(pending));
                        self.send_round(op, commands);
                        return Ok(());
                    }
                    Attribution::NoMiss if !adds => {
                        let new_value = new_value(value);
                        let (set, commands) =
                            self.with_inputs(sidecar, key, |inputs| Set::start(new_value, inputs));
                        let op = self.op(sidecar, key, Task::Set(set), Purpose::Command(pending));
                        self.send_round(op, commands);
                        return Ok(());
                    }
                    Attribution::NoMiss => Change::Add(new_value(value)),
                }
            }
            Command::Replace(value) => Change::Replace(new_value(value)),
            Command::Cas { unique: number, value } => Change::Cas {
                number: *number,
                new_value: new_value(value),
                sees_stale: false,
                invalidate: false,
            },
            Command::Append(more) => {
                Change::Append { more: more.clone().into(), compare: None, create: None, explicit: None }
            }
            Command::Prepend(more) => {
                Change::Prepend { more: more.clone().into(), compare: None, create: None, explicit: None }
            }
            Command::Count { delta, decr, initial } => {
                let create = initial.map(|initial| (Expiry::Never, initial));
                Change::Count(Count { delta: *delta, decr: *decr, create, ..Count::default() })
            }
            Command::Touch => Change::Touch(Expiry::Never),
            Command::Look | Command::Flush | Command::Bump => {
                return violation(format!("it is sent to every server: {pending:?}"));
            }
        };
        let condition = match &change {
            Change::Replace(_) | Change::Count(Count { create: Some(_), .. })
                if matches!(change, Change::Replace(_)) || !refused =>
            {
                match self.sidecars[sidecar].leases.store_condition(&name, owner, known_miss) {
                    StoreCondition::Unconditional => None,
                    StoreCondition::Observed(observed) => Some(observed),
                    StoreCondition::Unknown => {
                        return violation(format!("no miss is discarded in these runs: {pending:?}"));
                    }
                    StoreCondition::Renewing => return self.park(sidecar, pending),
                }
            }
            _ => None,
        };
        let (modify, commands) =
            self.with_inputs(sidecar, key, |inputs| Modify::with_condition(change, condition, inputs));
        let op = self.op(sidecar, key, Task::Modify(modify), Purpose::Command(pending));
        self.send_round(op, commands);
        Ok(())
    }

    /// Waits for the renewal of its lease.
    fn park(&mut self, sidecar: usize, pending: PendingCommand) -> Result<(), Violation> {
        let key = pending.key;
        let op = self.op(sidecar, key, Task::Parked, Purpose::Command(pending));
        let name = &self.plan.keys[key].key;
        self.sidecars[sidecar].leases.await_renewal(name, op.id);
        self.ops.insert(op.id, op);
        Ok(())
    }

    /// The state machine has ended: updates the leases of the key and responds to the client.
    pub fn command_done(
        &mut self,
        sidecar: usize,
        pending: PendingCommand,
        end: End,
    ) -> Result<(), Violation> {
        let (key, owner) = (pending.key, pending.owner);
        let name = self.plan.keys[key].key.clone();
        let response = match end {
            End::Read(end) => self.command_read(sidecar, &pending, end)?,
            End::Fill(FillEnd::Stored { cas, .. }) => {
                self.sidecars[sidecar].known_misses.remove(&(owner, key));
                let Some((token, spent)) = &pending.fills else {
                    return violation(format!("it has no miss to fill: {pending:?}"));
                };
                let waiters = self.sidecars[sidecar].leases.filled(&name, cas, token, *spent);
                self.wake_all(waiters);
                Response::Stored
            }
            End::Fill(end @ (FillEnd::Dropped { .. } | FillEnd::Outdated)) => {
                if let (FillEnd::Outdated, true, Some((token, _))) =
                    (end, pending.holds_lease, &pending.fills)
                {
                    self.send_direct(
                        sidecar,
                        key,
                        token.release(&self.plan.keys[key].policy),
                        Purpose::Superseded,
                    );
                }
                self.wake_key(sidecar, key);
                match pending.command {
                    Command::Add(_) => {
                        self.sidecars[sidecar].refused_adds.insert((owner, key));
                        Response::NotStored
                    }
                    _ => Response::Stored,
                }
            }
            // Too many concurrent changes.
            End::Fill(FillEnd::Failed(Failure::Overloaded))
            | End::Set(SetEnd::Failed(Failure::Overloaded))
            | End::Modify(ModifyEnd::Failed(Failure::Overloaded)) => Response::Unknown,
            End::Set(SetEnd::Stored { .. } | SetEnd::Dropped) => {
                self.wake_key(sidecar, key);
                Response::Stored
            }
            End::Delete(end) => {
                self.wake_key(sidecar, key);
                match end {
                    DeleteEnd::Deleted => Response::Deleted,
                    DeleteEnd::NotFound => Response::NotFound,
                    end => return violation(format!("nothing fails in these runs: {pending:?} {end:?}")),
                }
            }
            End::Modify(end) => match self.modified(sidecar, key, owner, end) {
                ModifyEnd::Stored(_) | ModifyEnd::Extended { .. } | ModifyEnd::Dropped => Response::Stored,
                ModifyEnd::NotStored => {
                    if matches!(pending.command, Command::Count { initial: Some(_), .. }) {
                        self.sidecars[sidecar].refused_adds.insert((owner, key));
                    }
                    Response::NotStored
                }
                ModifyEnd::Exists => Response::Exists,
                ModifyEnd::NotFound => Response::NotFound,
                ModifyEnd::NotANumber => Response::NotANumber,
                ModifyEnd::Touched(_) => Response::Touched,
                ModifyEnd::Counted(counted) => Response::Number(counted.number),
                end => return violation(format!("nothing fails in these runs: {pending:?} {end:?}")),
            },
            end => return violation(format!("nothing fails in these runs: {pending:?} {end:?}")),
        };
        self.responded(&pending, response)
    }

    fn command_read(
        &mut self,
        sidecar: usize,
        pending: &PendingCommand,
        end: ReadEnd,
    ) -> Result<Response, Violation> {
        let (key, owner) = (pending.key, pending.owner);
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        match end {
            ReadEnd::Fresh(hit) => {
                self.note_hit(sidecar, key, owner, hit.cas.number);
                let value = String::from_utf8_lossy(&hit.payload).into_owned();
                Ok(Response::Hit { value, unique: Some(hit.cas.number) })
            }
            ReadEnd::Won { lease, early: false, old: None } => {
                let (now, generation) = (self.local_now(sidecar), self.sidecars[sidecar].generation);
                let due = Leases::<OpId>::next_due(&lease, &policy, now);
                self.note_miss(sidecar, key, owner);
                let (id, ended) = self.sidecars[sidecar].leases.grant(&name, owner, lease, &policy);
                self.remove_ended(sidecar, ended, &Purpose::Superseded);
                if let Some(id) = id {
                    let place = self.place_of_key(sidecar, key);
                    self.at(due - self.now, Event::Due { sidecar, generation, key, id, place });
                }
                Ok(Response::Miss)
            }
            ReadEnd::Missed { seen, .. } => {
                self.note_miss(sidecar, key, owner);
                self.sidecars[sidecar].leases.record_miss(&name, owner, seen, &policy);
                Ok(Response::Miss)
            }
            end => {
                violation(format!("nothing is stale and nothing fails in these runs: {pending:?} {end:?}"))
            }
        }
    }

    /// Whether memcached, with the guard's documented allowances, could have given these responses.
    pub fn check_histories(&mut self) -> Result<(), Violation> {
        for (key, history) in self.histories.iter().enumerate() {
            let allowances = match self.plan.pooled {
                true => Allowances::pooled(millis(self.plan.keys[key].policy.max_rebuild)),
                false => Allowances::SINGLE,
            };
            match check_key(history, &allowances) {
                Ok(verdict) => self.checker.coverage.undecided += u64::from(verdict == Verdict::Undecided),
                Err(why) => return violation(format!("key {key}: {why}")),
            }
        }
        Ok(())
    }
}
