//! Near values: each sidecar has two workers, and a checker that knows when each value was last read.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use kennel::guard::leases::KnownMiss;
use kennel::guard::near::{
    Changed, Changes, NearLookup, NearRead, NearRequest, NearValue, NearValues, SharedResult,
};
use kennel::guard::{Hit, Read, ReadEnd, ReadOptions};
use kennel::random::Random;

use super::checker::{Checker, Violation, millis, violation};
use super::mutants::Mutant;
use super::operation::{End, Op, OpId, Purpose, Task};
use super::plan::Plan;
use super::world::{Event, World};

pub type ResultSender = Sender<SharedResult>;

/// The near values of a sidecar, one set per worker.
pub struct NearState {
    workers: [NearValues<ResultSender>; 2],
    changes: Changes,
    /// When the last read that returned a value was sent, by worker, key and payload.
    read: BTreeMap<(usize, usize, Vec<u8>), u64>,
    /// When changes of each key, or of one of its tags, were completed.
    changed: BTreeMap<usize, Vec<u64>>,
}

/// Enough for some of the values of a run, in bytes.
const MEMORY: usize = 4096;

impl Default for NearState {
    fn default() -> NearState {
        let (read, changed) = (BTreeMap::new(), BTreeMap::new());
        NearState {
            workers: [NearValues::new(MEMORY), NearValues::new(MEMORY)],
            changes: Changes::new(true),
            read,
            changed,
        }
    }
}

/// A read without commands of its own.
#[derive(Debug)]
pub enum SharedRead {
    /// A value that is kept near.
    Kept(Rc<NearValue>),
    /// Waits for another reader's result.
    Joined(JoinedRead),
}

#[derive(Debug)]
pub struct JoinedRead {
    receiver: Receiver<SharedResult>,
    until: u64,
    moment: u64,
    options: ReadOptions,
}

/// Gives some runs rules with `near`. It uses a generator of its own, so that everything else is unchanged.
pub fn with_near_in_some(mut plan: Plan) -> Plan {
    let mut random = Random::seeded(plan.seed ^ 0x6e65_6172);
    if plan.mutant.is_none() && random.below(3) == 0 {
        for guarded in &mut plan.keys {
            guarded.policy.near = Duration::from_millis([20, 150, 1500][random.below(3) as usize]);
        }
    }
    plan
}

/// Every key has `near`, and is invalidated often.
pub fn plan_near(seed: u64, mutant: Option<Mutant>) -> Plan {
    let mut plan = Plan::new(seed, false, mutant);
    for guarded in &mut plan.keys {
        guarded.policy.near = Duration::from_millis([150, 1500][(seed % 2) as usize]);
    }
    plan.invalidators = (2, 300);
    plan
}

impl Checker {
    /// How much later a sidecar may see what others have invalidated.
    pub fn near(&self, key: usize, by: usize, sidecar: usize) -> u64 {
        if by == sidecar { 0 } else { millis(self.plan.keys[key].policy.near) }
    }

    /// How long a reader may wait for another reader's result.
    pub fn join_wait(&self, key: usize) -> u64 {
        millis(self.plan.keys[key].policy.near).min(100)
    }
}

fn wanted<'a>(name: &'a Rc<[u8]>, op: &Op, fences: u64, plan: &'a Plan) -> NearRequest<'a> {
    let near = millis(plan.keys[op.key].policy.near);
    NearRequest { key: name, tags: &plan.keys[op.key].tags, near, fences }
}

impl World {
    /// Begins to read a key, unless its rule has no `near` or the client must read the server. Returns whether it did.
    pub fn start_near_read(
        &mut self,
        client: usize,
        key: usize,
        options: ReadOptions,
        purpose: Purpose,
    ) -> bool {
        let sidecar = self.clients[client].sidecar;
        let [owner, _] = self.clients[client].owners;
        let guarded = &self.plan.keys[key];
        let has_miss = self.known_miss(sidecar, key, owner) == KnownMiss::Yes;
        let has_view = self.place_of_key(sidecar, key).is_known();
        if !has_view || guarded.policy.near.is_zero() || options.recache.is_some() || has_miss {
            return false;
        }
        let moment = self.sidecars[sidecar].near_state.workers[client % 2].last_read();
        let op = self.op(sidecar, key, Task::Parked, purpose);
        self.lookup_near(op, moment, options);
        true
    }

    fn lookup_near(&mut self, mut op: Box<Op>, moment: u64, options: ReadOptions) {
        let now = self.local_now(op.sidecar);
        let name = Rc::from(&self.plan.keys[op.key].key[..]);
        let fences = self.fences(op.sidecar, op.key);
        let NearState { workers, changes, .. } = &mut self.sidecars[op.sidecar].near_state;
        let last_read = workers[worker(&op)].lookup(&wanted(&name, &op, fences, &self.plan), now, changes);
        op.doing = match last_read {
            NearLookup::Hit(kept) => Task::SharedRead(SharedRead::Kept(kept)),
            NearLookup::Join(in_flight) => {
                let (sender, receiver) = channel();
                in_flight.join(sender);
                Task::SharedRead(SharedRead::Joined(JoinedRead {
                    receiver,
                    until: in_flight.until(),
                    moment,
                    options,
                }))
            }
            NearLookup::Read(reading) => return self.read_from_server(op, reading, options),
        };
        self.at(0, Event::SharedRead(op.id));
        self.ops.insert(op.id, op);
    }

    fn read_from_server(&mut self, mut op: Box<Op>, reading: NearRead<ResultSender>, options: ReadOptions) {
        let (read, commands) =
            self.with_inputs(op.sidecar, op.key, |inputs| Read::with_options(options, inputs));
        op.doing = Task::Read(read);
        op.first_round = true;
        op.reading = Some((reading, self.now));
        self.send_round(op, commands);
    }

    /// A reader that uses another's result checks whether it is available.
    pub fn poll_shared(&mut self, id: OpId) -> Result<(), Violation> {
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        let now = self.local_now(op.sidecar);
        let Task::SharedRead(sharing) = std::mem::replace(&mut op.doing, Task::Parked) else {
            panic!("{op:?} waits for no shared result");
        };
        let joined = match sharing {
            SharedRead::Kept(kept) => return self.serve_near(op, &kept),
            SharedRead::Joined(joined) => joined,
        };
        let result = match joined.receiver.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) if now.mono < joined.until => {
                op.doing = Task::SharedRead(SharedRead::Joined(joined));
                self.at(1, Event::SharedRead(id));
                self.ops.insert(id, op);
                return Ok(());
            }
            Err(_) => SharedResult::Nothing,
        };
        let JoinedRead { moment, options, .. } = joined;
        let name = Rc::from(&self.plan.keys[op.key].key[..]);
        let fences = self.fences(op.sidecar, op.key);
        let NearState { workers, changes, .. } = &mut self.sidecars[op.sidecar].near_state;
        let worker = &mut workers[worker(&op)];
        match result {
            SharedResult::Fresh(kept) if worker.may_serve(&kept, moment, fences, now, changes) => {
                self.checker.coverage.joined += 1;
                self.serve_near(op, &kept)
            }
            SharedResult::Fresh(_) => {
                self.lookup_near(op, moment, options);
                Ok(())
            }
            SharedResult::Failed(failure) => self.done(op, End::Read(ReadEnd::Failed(failure))),
            SharedResult::Nothing => {
                let reading = worker.start_read(&wanted(&name, &op, fences, &self.plan), now, changes);
                self.read_from_server(op, reading, options);
                Ok(())
            }
        }
    }

    fn serve_near(&mut self, op: Box<Op>, kept: &NearValue) -> Result<(), Violation> {
        self.checker.coverage.near += 1;
        let Purpose::Get { began, .. } = op.purpose else { panic!("{op:?} is no get") };
        let NearState { read, changed, .. } = &self.sidecars[op.sidecar].near_state;
        let payload = kept.hit().payload.to_vec();
        let sent = read.get(&(worker(&op), op.key, payload)).copied().unwrap_or(0);
        let done = changed.get(&op.key).into_iter().flatten().find(|at| (sent + 1..began).contains(*at));
        if let Some(done) = done {
            return violation(format!(
                "promise 2: a request of {began} received a value last read at {sent}, though a change through the same \
                 sidecar was done at {done}"
            ));
        }
        self.trace(|| format!("op {} is served a near value: {:?}", op.id, kept.hit()));
        let hit = kept.hit().clone();
        self.done(op, End::Read(ReadEnd::Fresh(hit)))
    }

    /// A read has ended or, with `None`, waits for another client from now on.
    pub fn near_read(&mut self, op: &mut Op, end: Option<&ReadEnd>) {
        let Some((reading, sent)) = op.reading.take() else { return };
        let now = self.local_now(op.sidecar);
        let name = Rc::from(&self.plan.keys[op.key].key[..]);
        let mut wanted = wanted(&name, op, self.fences(op.sidecar, op.key), &self.plan);
        let mut end = end.cloned();
        if self.plan.is(Mutant::NearFromTheAnswer) {
            wanted.near += now.mono - sent;
        }
        if let (Mutant::NearBeyondExpiry, Some(ReadEnd::Fresh(hit))) =
            (self.plan.mutant.unwrap_or(Mutant::NoRenewal), &mut end)
        {
            *hit = Hit { ttl: None, ..hit.clone() };
        }
        let near_state = &mut self.sidecars[op.sidecar].near_state;
        if let Some(ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit)) = &end {
            let last = near_state.read.entry((worker(op), op.key, hit.payload.to_vec())).or_default();
            *last = sent.max(*last);
        }
        let worker = &mut near_state.workers[worker(op)];
        let (waiters, result) = worker.end_read(&wanted, reading, end.as_ref(), now, &near_state.changes);
        for sender in waiters {
            let _ = sender.send(result.clone());
        }
        assert!(worker.bytes() <= MEMORY);
    }

    /// A state machine that may change something begins or, with `done`, has ended.
    pub fn near_changed(&mut self, op: &Op, done: bool) {
        let keys: Vec<usize> = match &op.doing {
            Task::Fill(_) | Task::Set(_) | Task::Modify(_) | Task::Delete(_) => vec![op.key],
            Task::Bump(_) => {
                let tagged = |key: &usize| self.plan.keys[*key].tags.contains(&op.tags[0]);
                (0..self.plan.keys.len()).filter(tagged).collect()
            }
            _ => return,
        };
        let now = self.now;
        let uncounted = self.plan.is(Mutant::ChangesCountWhenTheyBegin) && done
            || self.plan.is(Mutant::BumpsDoNotCount) && matches!(op.doing, Task::Bump(_));
        let near_state = &mut self.sidecars[op.sidecar].near_state;
        if !uncounted {
            near_state.changes.note(match op.doing {
                Task::Bump(_) => Changed::Tag(&op.tags[0]),
                _ => Changed::Key(&self.plan.keys[op.key].key),
            });
        }
        for key in keys.into_iter().filter(|_| done) {
            near_state.changed.entry(key).or_default().push(now);
        }
    }
}

/// The worker that serves the client.
fn worker(op: &Op) -> usize {
    match op.purpose {
        Purpose::Get { client, .. } => client % 2,
        _ => 0,
    }
}
