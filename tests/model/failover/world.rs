//! Two sidecars, three servers with a copy of the record each, and what happens to them.

use kennel::failover::{Agreement, Cas, Item, Moment, Operation, Record, Reply, Timing, View, Wish};

use super::guarded::Guarded;
use super::plan::{Left, Mutant, Plan};
use super::suspicion::Asked;
use crate::world::Violation;

/// The monotonic clock when the model begins. It counts ticks.
pub const MONO: u64 = 1 << 30;
/// The wall clock, which stands still: fences differ by what is drawn.
pub const WALL: u64 = 1 << 20;
/// The number with which a sidecar always asks whether the server answers others, and nobody answers.
const QUESTION: &[u8] = b"7";

/// One copy. `record`: none in a stub. Versions are left out, because no decision depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    pub record: Option<Record>,
    pub cas: u64,
}

/// A command of a round, as far as the servers tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Read,
    Write(Record, u64),
    /// Of a suspicion.
    Other(Item),
    /// Stores a question or an answer.
    Tell(Item, u64),
}

/// The commands of a round that are under way, and their replies.
#[derive(Debug, Clone)]
pub struct Round {
    pub began: u64,
    pub commands: Vec<(usize, Sent)>,
    pub replies: Vec<Option<Reply>>,
    /// What the reads of the round have found.
    pub found: Vec<Reply>,
}

#[derive(Debug, Clone)]
pub struct Sidecar {
    pub agreement: Agreement,
    pub round: Option<Round>,
}

#[derive(Debug, Clone)]
pub struct World {
    pub now: u64,
    /// `None`: the item is absent.
    pub copies: [Option<Copy>; 3],
    pub sidecars: [Sidecar; 2],
    /// Writes that nobody waits for any more.
    pub late: Vec<(usize, Record, u64)>,
    /// The fence that was used last, and those that were used before it.
    pub current: u64,
    pub retired: Vec<u64>,
    pub left: Left,
    pub guarded: Option<Guarded>,
    pub asked: Option<Asked>,
    pub drawn: u64,
}

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Tick,
    /// A sidecar begins a round.
    Begin(usize),
    /// A sidecar begins a round, and its reads are carried out at once, except on the servers of this bit set, which fail.
    Read(usize, u8),
    /// The same, and the server itself refuses.
    ReadRefused(usize, u8),
    /// A server carries out what a round has sent to it.
    Execute(usize, usize),
    /// What a round has sent to a server is not carried out, and the sidecar is told at some time.
    Fail(usize, usize),
    /// The same, because the server refuses the connection.
    Refuse(usize),
    /// The sidecar has no reply to a write that is carried out later.
    Delay(usize, usize),
    /// It is carried out now.
    Land(usize),
    /// A copy is evicted, or its server restarts empty.
    Lose(usize),
    /// All copies are.
    Flush,
    /// A sidecar restarts.
    Restart(usize),
    /// A sidecar is asked to drain the server, or the next time to let its keys return.
    Wish(usize, Wish),
    /// Something happens to the questions, or to who reaches the server.
    Asked(super::suspicion::Step),
    /// A step of a guarded operation.
    Guarded(super::guarded::Step),
}

pub fn timing(window: u32) -> Timing {
    Timing { window, moving: 1, fail_after: 1 << 20, recover_after: 0, recover_at_most: 0 }
}

impl World {
    /// A new pool whose sidecars know nothing.
    pub fn empty(plan: &Plan) -> World {
        let sidecar =
            |at: usize| Sidecar { agreement: Agreement::new(timing(plan.windows[at]), MONO), round: None };
        World {
            now: MONO,
            copies: [None; 3],
            sidecars: [sidecar(0), sidecar(1)],
            late: Vec::new(),
            current: 0,
            retired: Vec::new(),
            left: plan.left,
            guarded: None,
            asked: None,
            drawn: 0,
        }
    }

    /// A pool that has been running for a while.
    ///
    /// # Errors
    /// A violation on the way.
    pub fn running(plan: &Plan) -> Result<World, Violation> {
        let mut world = World::empty(plan);
        for _ in 0..12 {
            world = world.after(Step::Tick, plan)?;
            for at in 0..2 {
                world = world.after(Step::Begin(at), plan)?;
                while world.sidecars[at].round.is_some() {
                    let copy = (0..3).find(|copy| world.awaits(at, *copy)).unwrap_or_default();
                    world = world.after(Step::Execute(at, copy), plan)?;
                }
            }
        }
        assert!((0..2).all(|at| world.view(at).is_some()), "a running pool has views");
        world.asked = plan.asks.then(Asked::default);
        world.guarded = plan.guarded.map(|tagged| Guarded::new(tagged, world.current));
        Ok(world)
    }

    pub fn view(&self, at: usize) -> Option<View> {
        self.sidecars[at].agreement.view(self.now).map(|(view, _)| view)
    }

    pub fn awaits(&self, at: usize, copy: usize) -> bool {
        self.sidecars[at].round.as_ref().is_some_and(|round| {
            round.commands.iter().zip(&round.replies).any(|((its, _), reply)| *its == copy && reply.is_none())
        })
    }

    fn awaits_write(&self, at: usize, copy: usize) -> bool {
        self.sidecars[at].round.as_ref().is_some_and(|round| {
            let mut sent = round.commands.iter().zip(&round.replies);
            sent.any(|((its, sent), reply)| {
                *its == copy && reply.is_none() && matches!(sent, Sent::Write(..))
            })
        })
    }

    /// One line for a trace.
    pub fn summary(&self) -> String {
        let record = |record: Option<Record>| match record {
            None => "-".into(),
            Some(it) => {
                let place = match (it.standby, it.drained) {
                    (false, _) => "own",
                    (true, false) => "standby",
                    (true, true) => "drained",
                };
                let state = match (it.settled, it.leaving) {
                    (_, true) => ", leaving",
                    (true, false) => ", settled",
                    (false, false) => "",
                };
                format!("{}@{place}{state}", it.fence & 0xf_ffff)
            }
        };
        let copies = self.copies.map(|copy| copy.map_or_else(|| "absent".into(), |it| record(it.record)));
        let sidecars = [0, 1].map(|at| {
            let its = &self.sidecars[at];
            let view = if self.view(at).is_some() { "uses" } else { "knows" };
            let known = record(its.agreement.status(self.now).record);
            let round =
                its.round.as_ref().map_or(0, |it| it.replies.iter().filter(|it| it.is_none()).count());
            format!("{view} {known}, awaits {round}")
        });
        let guarded = self.guarded.as_ref().map(|it| format!("{it:?}")).unwrap_or_default();
        format!("{}: {copies:?} {sidecars:?} late {} {guarded}", self.now - MONO, self.late.len())
    }

    /// Nothing that follows can break a promise.
    fn is_over(&self) -> bool {
        self.guarded.as_ref().is_some_and(Guarded::is_over)
    }

    pub fn steps(&self, plan: &Plan) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.is_over() {
            return steps;
        }
        let may_wait =
            |sidecar: &Sidecar| sidecar.round.as_ref().is_none_or(|round| self.now - round.began < plan.slow);
        if self.sidecars.iter().all(may_wait) && self.asked.as_ref().is_none_or(Asked::may_tick) {
            steps.push(Step::Tick);
        }
        for at in 0..2 {
            if self.asked.is_some() && self.sidecars[at].round.is_none() {
                steps.push(Step::Read(at, 0));
            } else if self.sidecars[at].round.is_none() && plan.whole_reads {
                self.whole_reads(at, &mut steps);
            } else if self.sidecars[at].round.is_none() {
                steps.push(Step::Begin(at));
            }
            for copy in (0..3).filter(|copy| self.awaits(at, *copy)) {
                steps.push(Step::Execute(at, copy));
                if self.left.failures > 0 {
                    steps.push(Step::Fail(at, copy));
                }
                if copy == 0 && self.left.refusals > 0 {
                    steps.push(Step::Refuse(at));
                }
                if self.left.delays > 0 && self.awaits_write(at, copy) {
                    steps.push(Step::Delay(at, copy));
                }
            }
            if self.left.restarts > 0 {
                steps.push(Step::Restart(at));
            }
            if self.left.wishes > 0 {
                let is_away = self.view(at).is_some_and(|view| view.standby);
                steps.push(Step::Wish(at, if is_away { Wish::Return } else { Wish::Drain }));
            }
        }
        steps.extend((0..self.late.len()).map(Step::Land));
        if self.left.losses > 0 {
            steps.extend((0..3).filter(|copy| self.copies[*copy].is_some()).map(Step::Lose));
        }
        if self.left.flushes > 0 {
            steps.push(Step::Flush);
        }
        if let Some(asked) = &self.asked {
            steps.extend(asked.steps(plan).into_iter().map(Step::Asked));
        }
        if let Some(guarded) = &self.guarded {
            steps.extend(guarded.steps(self, plan).into_iter().map(Step::Guarded));
        }
        steps
    }

    fn whole_reads(&self, at: usize, steps: &mut Vec<Step>) {
        let sets = (0..8_u8).filter(|set| set.count_ones() <= u32::from(self.left.failures));
        for set in sets {
            steps.push(Step::Read(at, set));
            if self.left.refusals > 0 && set & 1 == 0 {
                steps.push(Step::ReadRefused(at, set));
            }
        }
    }

    /// The state after a step.
    ///
    /// # Errors
    /// The promise that it breaks.
    pub fn after(&self, step: Step, plan: &Plan) -> Result<World, Violation> {
        let mut world = self.clone();
        match step {
            Step::Tick => {
                world.now += 1;
                world.asked.iter_mut().for_each(Asked::tick);
            }
            Step::Begin(at) => {
                let commands = world.sidecars[at].agreement.begin(world.now);
                world.send(at, commands, Vec::new());
            }
            Step::Read(at, failed) | Step::ReadRefused(at, failed) => {
                let commands = world.sidecars[at].agreement.begin(world.now);
                world.send(at, commands, Vec::new());
                world.asked.iter_mut().for_each(|asked| asked.runs(at));
                let refused = matches!(step, Step::ReadRefused(..));
                world.left.refusals -= plan.limit.refusals * u8::from(refused);
                world.left.failures -= plan.limit.failures * failed.count_ones() as u8;
                for copy in 0..3 {
                    world.reply(at, copy, plan, |world, sent| match failed >> copy & 1 {
                        0 if copy > 0 || !refused => world.execute(copy, sent, plan),
                        failed => Reply::Failed { refused: failed == 0 },
                    });
                }
            }
            Step::Execute(at, copy) => {
                world.reply(at, copy, plan, |world, sent| world.execute(copy, sent, plan))
            }
            Step::Fail(at, copy) => {
                world.left.failures -= plan.limit.failures;
                world.reply(at, copy, plan, |_, _| Reply::Failed { refused: false });
            }
            Step::Refuse(at) => {
                world.left.refusals -= plan.limit.refusals;
                world.reply(at, 0, plan, |_, _| Reply::Failed { refused: true });
            }
            Step::Delay(at, copy) => {
                world.left.delays -= 1;
                world.reply(at, copy, plan, |world, sent| {
                    if let Sent::Write(record, cas) = sent {
                        world.late.push((copy, record, cas));
                    }
                    Reply::Failed { refused: false }
                });
            }
            Step::Land(late) => {
                let (copy, record, cas) = world.late.remove(late);
                world.execute(copy, Sent::Write(record, cas), plan);
            }
            Step::Lose(copy) => {
                world.left.losses -= 1;
                world.copies[copy] = None;
            }
            Step::Flush => {
                world.left.flushes -= 1;
                world.copies = [None; 3];
            }
            Step::Restart(at) => {
                world.left.restarts -= 1;
                let agreement = Agreement::new(timing(plan.windows[at]), world.now);
                let round = world.sidecars[at].round.take();
                for ((copy, sent), reply) in round.iter().flat_map(|it| it.commands.iter().zip(&it.replies)) {
                    if let (Sent::Write(record, cas), None) = (sent, reply) {
                        world.late.push((*copy, *record, *cas));
                    }
                }
                world.sidecars[at] = Sidecar { agreement, round: None };
                if let Some(guarded) = &mut world.guarded {
                    guarded.forget(at);
                }
            }
            Step::Wish(at, wish) => {
                world.left.wishes -= 1;
                // Nobody asks for the opposite at the same time.
                world.sidecars.iter_mut().for_each(|sidecar| sidecar.agreement.wish(None));
                world.sidecars[at].agreement.wish(Some(wish));
            }
            Step::Asked(step) => world.asked.iter_mut().for_each(|asked| asked.take(step)),
            Step::Guarded(step) => Guarded::take(&mut world, step, plan),
        }
        // A comparison with a CAS that is gone fails whenever it arrives.
        if !matches!(plan.mutant, Some(Mutant::NoCas | Mutant::AddsToEmptyCopies)) {
            let copies = world.copies;
            world.late.retain(|(copy, _, cas)| copies[*copy].is_some_and(|held| held.cas == *cas));
        }
        world.check(plan)?;
        Ok(world)
    }

    fn check(&mut self, plan: &Plan) -> Result<(), Violation> {
        for at in 0..2 {
            let Some(view) = self.view(at) else { continue };
            if view.fence == self.current {
                continue;
            }
            if self.retired.contains(&view.fence) {
                return Err(Violation("overlap: a fence is used after another one".into()));
            }
            self.retired.push(self.current);
            self.current = view.fence;
        }
        if let [Some(one), Some(other)] = [self.view(0), self.view(1)]
            && one.fence != other.fence
        {
            let what = if one.standby == other.standby { "fences" } else { "places" };
            return Err(Violation(format!("overlap: two {what} are used at the same time")));
        }
        if let Some(asked) = &self.asked {
            asked.check(self)?;
        }
        match &self.guarded {
            Some(guarded) => guarded.check(self, plan),
            None => Ok(()),
        }
    }

    fn send(&mut self, at: usize, commands: Vec<kennel::failover::Command>, found: Vec<Reply>) {
        let sent = |command: kennel::failover::Command| {
            let sent = match (command.item, command.operation) {
                (Item::Record, Operation::Replace(value, cas)) => {
                    let record = Record::decode(&value).expect("a record is written");
                    Sent::Write(Record { version: 0, ..record }, cas.number)
                }
                (Item::Record, _) => Sent::Read,
                (item, Operation::Set(value, _)) => Sent::Tell(item, super::suspicion::number(&value)),
                (item, _) => Sent::Other(item),
            };
            (command.copy, sent)
        };
        let commands: Vec<_> = commands.into_iter().map(sent).collect();
        let replies = commands.iter().map(|_| None).collect();
        self.sidecars[at].round = Some(Round { began: self.now, commands, replies, found });
    }

    /// Replies to all that a round has sent to this copy's server, and continues the round after the last reply.
    fn reply(&mut self, at: usize, copy: usize, plan: &Plan, with: impl Fn(&mut World, Sent) -> Reply) {
        let Some(mut round) = self.sidecars[at].round.take() else { return };
        for n in 0..round.commands.len() {
            if round.commands[n].0 == copy && round.replies[n].is_none() {
                let is_cut = copy == 0 && self.asked.as_ref().is_some_and(|asked| asked.is_cut(at));
                round.replies[n] = Some(match is_cut {
                    true => Reply::Failed { refused: true },
                    false => with(self, round.commands[n].1),
                });
            }
        }
        let Some(mut replies) = round.replies.iter().cloned().collect::<Option<Vec<Reply>>>() else {
            self.sidecars[at].round = Some(round);
            return;
        };
        let is_first = round.found.is_empty();
        if is_first && self.asked.is_none() {
            // Nobody has answered for a long time.
            replies.resize(7, Reply::Absent);
        }
        let found = if is_first { replies[..3].to_vec() } else { round.found };
        if let (Some(mutant), true) = (plan.mutant, is_first) {
            let known = self.sidecars[at].agreement.status(self.now).record;
            super::suspicion::mutate(mutant, &mut replies);
            mutant.replies(&mut replies, plan.windows[at], known);
            if mutant == Mutant::ValidFromReplies {
                let _ = self.sidecars[at].agreement.begin(self.now);
            }
        }
        self.drawn += 1;
        let moment = Moment { mono: self.now, wall: WALL };
        let before = self.sidecars[at].agreement.status(self.now).record;
        // A multiple of four, so that a lost copy is restored.
        let mut commands = self.sidecars[at].agreement.resume(&replies, moment, self.drawn * 4);
        if let Some(mutant) = plan.mutant {
            let is_own = self.view(at).is_some_and(|view| !view.standby) && before.is_some();
            mutant.commands(&mut commands, &found, is_own);
        }
        if !commands.is_empty() {
            self.send(at, commands, found);
        }
    }

    fn execute(&mut self, copy: usize, sent: Sent, plan: &Plan) -> Reply {
        let held = &mut self.copies[copy];
        let adds = plan.mutant == Some(Mutant::AddsToEmptyCopies);
        if let Some(asked) = &mut self.asked
            && let Some(reply) = asked.execute(copy, sent, plan.mutant)
        {
            return reply;
        }
        match sent {
            Sent::Other(Item::Suspicion) => Reply::Found(QUESTION.to_vec(), Cas { number: 0, epoch: 0 }),
            Sent::Other(_) | Sent::Tell(..) => Reply::Absent,
            Sent::Read => {
                if held.is_none() && adds {
                    return Reply::Found(Vec::new(), Cas { number: 0, epoch: 0 });
                }
                self.drawn += 1;
                let found = *held.get_or_insert(Copy { record: None, cas: self.drawn });
                let value = found.record.map_or_else(Vec::new, |record| record.encode());
                Reply::Found(value, Cas { number: found.cas, epoch: 0 })
            }
            Sent::Write(record, cas) => {
                let compares = match cas {
                    _ if plan.mutant == Some(Mutant::NoCas) => true,
                    0 if adds => held.is_none(),
                    _ => held.is_some_and(|held| held.cas == cas),
                };
                if !compares {
                    return Reply::Conflict;
                }
                self.drawn += 1;
                *held = Some(Copy { record: Some(record), cas: self.drawn });
                Reply::Stored
            }
        }
    }
}
