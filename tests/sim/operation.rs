//! One machine of the guard on its way: its questions go to the servers, their answers come back to it.

use kennel::guard::leases::Admission;
use kennel::guard::{
    Answer, Answers, Ask, Asks, At, Bump, BumpEnd, Delete, DeleteEnd, Event as Told, Fill, FillEnd, Item,
    Look, Machine, Mode, Now, Read, ReadEnd, Scene, Set, SetEnd, Step, TagName, What, envelope::Header,
    envelope::Opened,
};

use super::checker::{Broken, ValueId};
use super::clients::Put;
use super::plan::Mutant;
use super::world::{Event, World};

pub type OpId = u64;

#[derive(Debug)]
pub enum Doing {
    Read(Read),
    Fill(Fill),
    Set(Set),
    Delete(Delete),
    Bump(Bump),
    /// Questions without a machine.
    Plain,
    /// A `set` that waits for the renewal of its lease.
    Parked,
}

#[derive(Debug)]
pub enum End {
    Read(ReadEnd),
    Fill(FillEnd),
    Set(SetEnd),
    Delete(DeleteEnd),
    Bump(BumpEnd),
    Plain(Answers),
}

/// What for.
#[derive(Debug, Clone)]
pub enum Purpose {
    Get {
        client: usize,
        slot: usize,
        began: u64,
    },
    Put(Put),
    Invalidation(usize),
    Renewal(u64),
    /// A lease has ended without a value.
    Freeing,
    Polling(u64),
}

#[derive(Debug)]
pub struct Op {
    pub id: OpId,
    pub sidecar: usize,
    pub key: usize,
    pub tags: Vec<TagName>,
    pub doing: Doing,
    pub purpose: Purpose,
    pub asks: Asks,
    answers: Vec<Option<Answer>>,
    pub round: u32,
    /// When the last questions were sent.
    asked: Now,
    /// Which wait this is, and its number in the table of leases.
    wait: u32,
    pub waiting: Option<u64>,
    /// The item as last read with its value.
    read: Option<Item>,
}

impl Op {
    /// What ends its wait at once, if it waits.
    pub fn over_now(&self) -> Option<Event> {
        self.waiting.map(|_| Event::Over { op: self.id, wait: self.wait })
    }
}

impl World {
    pub fn op(&mut self, sidecar: usize, key: usize, doing: Doing, purpose: Purpose) -> Op {
        self.next += 1;
        let asked = self.moment(sidecar);
        Op {
            id: self.next,
            sidecar,
            key,
            tags: self.plan.keys[key].tags.clone(),
            doing,
            purpose,
            asks: Asks::new(),
            answers: Vec::new(),
            round: 0,
            asked,
            wait: 0,
            waiting: None,
            read: None,
        }
    }

    /// Sends a round of questions.
    pub fn ask(&mut self, mut op: Op, asks: Asks) {
        assert!(!asks.is_empty(), "{op:?} asks nothing");
        op.asked = self.moment(op.sidecar);
        op.round += 1;
        op.answers = vec![None; asks.len()];
        op.asks = asks;
        for (index, ask) in op.asks.clone().into_iter().enumerate() {
            let ask = self.mutate_ask(&op, ask);
            self.trace_ask(&op, &ask);
            self.send(&op, index, ask);
        }
        self.ops.insert(op.id, op);
    }

    fn trace_ask(&mut self, op: &Op, ask: &Ask) {
        let (id, sidecar, key) = (op.id, op.sidecar, op.key);
        self.trace(|| format!("op {id} (s{sidecar} k{key}) asks {:?} {:?}", ask.at, ask.what));
    }

    pub fn replied(&mut self, id: OpId, index: usize, round: u32, answer: Answer) -> Result<(), Broken> {
        let Some(op) = self.ops.get_mut(&id) else { return Ok(()) };
        if op.round != round || op.answers[index].is_some() {
            return Ok(());
        }
        op.answers[index] = Some(answer);
        if op.answers.iter().any(Option::is_none) {
            return Ok(());
        }
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        let mut answers: Answers = op.answers.drain(..).flatten().collect();
        self.mutate_answers(&op, &mut answers);
        for (ask, answer) in op.asks.iter().zip(&answers) {
            if let (Ask { at: At::Item, what: What::Get(Look { value: true, .. }) }, Answer::Item(item)) =
                (ask, answer)
            {
                op.read = Some(item.clone());
            }
        }
        self.resume(op, Told::Answers(answers))
    }

    pub fn woken(&mut self, id: OpId) -> Result<(), Broken> {
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        if let (Doing::Parked, Purpose::Put(put)) = (&op.doing, &op.purpose) {
            let put = put.clone();
            return self.put(put);
        }
        let Some(waiter) = op.waiting.take() else {
            self.ops.insert(id, op);
            return Ok(());
        };
        self.leave(&op, waiter);
        self.resume(op, Told::Woken)
    }

    pub fn over(&mut self, id: OpId, wait: u32) -> Result<(), Broken> {
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        match op.waiting.take() {
            Some(waiter) if op.wait == wait => {
                self.leave(&op, waiter);
                self.resume(op, Told::Over)
            }
            waiting => {
                op.waiting = waiting;
                self.ops.insert(id, op);
                Ok(())
            }
        }
    }

    pub fn leave(&mut self, op: &Op, waiter: u64) {
        let key = self.plan.keys[op.key].key.clone();
        self.sidecars[op.sidecar].leases.leave(&key, waiter);
    }

    fn resume(&mut self, mut op: Op, told: Told) -> Result<(), Broken> {
        let now = self.moment(op.sidecar);
        let policy = self.plan.keys[op.key].policy.clone();
        let patient = self.is_patient(&op.purpose);
        let chance = self.chance.unit();
        let tags = op.tags.clone();
        let scene = Scene {
            policy: &policy,
            tags: &tags,
            sidecar: self.sidecars[op.sidecar].number,
            room: 1 << 20,
            learnt: 0,
            copies: false,
            now,
            patient,
            chance,
        };
        let step = match &mut op.doing {
            Doing::Read(machine) => step(machine, told, &scene, End::Read),
            Doing::Fill(machine) => step(machine, told, &scene, End::Fill),
            Doing::Set(machine) => step(machine, told, &scene, End::Set),
            Doing::Delete(machine) => step(machine, told, &scene, End::Delete),
            Doing::Bump(machine) => step(machine, told, &scene, End::Bump),
            Doing::Plain | Doing::Parked => match told {
                Told::Answers(answers) => Step::Done(End::Plain(answers)),
                _ => return Ok(()),
            },
        };
        match step {
            Step::Ask(asks) => {
                self.ask(op, asks);
                Ok(())
            }
            Step::Learn(_) => panic!("no value here has tags of its own"),
            Step::Wait(until) => {
                self.wait(op, until);
                Ok(())
            }
            Step::Done(end) => {
                let id = op.id;
                self.trace(|| format!("op {id} ends {end:?}"));
                self.done(op, end)
            }
        }
    }

    fn wait(&mut self, mut op: Op, until: u64) {
        let now = self.moment(op.sidecar);
        let guarded = self.plan.keys[op.key].clone();
        let sidecar = &mut self.sidecars[op.sidecar];
        let life = sidecar.life;
        op.wait += 1;
        let (delay, poll) = match sidecar.leases.wait(&guarded.key, now, &guarded.policy, op.id) {
            Admission::Refused | Admission::Full => {
                op.waiting = Some(0);
                (0, false)
            }
            Admission::Waits { waiter, poll } => {
                op.waiting = Some(waiter);
                (until.saturating_sub(self.now), poll)
            }
        };
        let id = op.id;
        self.trace(|| format!("op {id} waits until {until}, poll {poll}"));
        self.at(delay, Event::Over { op: op.id, wait: op.wait });
        if poll {
            self.at(10, Event::Poll { sidecar: op.sidecar, life, key: op.key, pause: 10 });
        }
        self.ops.insert(op.id, op);
    }

    fn mutate_ask(&self, op: &Op, mut ask: Ask) -> Ask {
        let Some(mutant) = self.plan.mutant else { return ask };
        match (mutant, &op.doing, ask.at, &mut ask.what) {
            (Mutant::FillWithoutCas, Doing::Fill(_), At::Item, What::Store { cas, .. })
            | (Mutant::UnlockWithoutCompare, _, At::Lock, What::Delete { cas }) => *cas = None,
            (Mutant::DeleteSparesStub, Doing::Delete(_), At::Item, what @ What::Delete { .. })
                if self.stands_a_stub(op.key) =>
            {
                *what = What::Get(Look::default());
            }
            _ => {}
        }
        ask
    }

    fn mutate_answers(&self, op: &Op, answers: &mut Answers) {
        match (self.plan.mutant, &op.doing) {
            (Some(Mutant::NoDoubleCheck), Doing::Read(_)) => {
                let claims = matches!(
                    op.asks.first(),
                    Some(Ask { at: At::Lock, what: What::Store { mode: Mode::Add, .. } })
                );
                if let (true, [Answer::Stored(_), second, ..], Some(read)) =
                    (claims, &mut answers[..], &op.read)
                {
                    *second = Answer::Item(read.clone());
                }
            }
            (Some(Mutant::LostTagIsUnmoved), Doing::Read(_)) => {
                let Some(Answer::Item(item)) = answers.first().cloned() else { return };
                let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return };
                for (ask, answer) in op.asks.iter().zip(answers) {
                    let At::Tag(tag) = ask.at else { continue };
                    let sealed = envelope.tags().find(|(name, _)| *name == &op.tags[usize::from(tag)][..]);
                    if let (Answer::Absent, Some((_, version))) = (&answer, sealed) {
                        let value = version.to_string().into();
                        *answer = Answer::Item(Item { value, ..item.clone() });
                    }
                }
            }
            (Some(Mutant::DeleteSparesStub), Doing::Delete(_)) => {
                for (ask, answer) in op.asks.iter().zip(answers) {
                    if let (At::Item, What::Delete { .. }, Answer::Item(_)) = (ask.at, &ask.what, &answer) {
                        *answer = Answer::Absent;
                    }
                }
            }
            _ => {}
        }
    }

    /// What was sent with a value: `v` and its number.
    pub fn value_of(payload: &[u8]) -> Result<ValueId, Broken> {
        std::str::from_utf8(payload)
            .ok()
            .and_then(|text| text.strip_prefix('v')?.parse().ok())
            .ok_or_else(|| Broken(format!("nobody ever stored {}", payload.escape_ascii())))
    }
}

fn step<M: Machine>(machine: &mut M, told: Told, scene: &Scene<'_>, end: fn(M::End) -> End) -> Step<End> {
    match machine.resume(told, scene) {
        Step::Ask(asks) => Step::Ask(asks),
        Step::Learn(tags) => Step::Learn(tags),
        Step::Wait(until) => Step::Wait(until),
        Step::Done(done) => Step::Done(end(done)),
    }
}
