//! Promise 11 under the model checker: whether a server's keys are moved is decided together. The production machine of two sidecars,
//! in every order of their rounds and writes, for so many ticks. One sidecar never has an answer from the server, which refuses it or
//! is silent. If the other one always has answers, no record is moved in any state, and the first learns that it is alone. If the other
//! one has none, or none from a certain tick on, the keys have moved in every order by `MOVED_BY`.
//!
//! Lost questions and answers are not explored: they move a place too early or too late, and break no other promise. `tests/places`
//! has them.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use kennel::failover::{Agreement, Cas, Command, Item, Moment, Operation, Record, Reply, Timing};

const MONO: u64 = 1 << 30;
const WALL: u64 = 1 << 20;
/// Ticks of a window: each sidecar has at least one round in a tick, as it has four in a window.
const WINDOW: u32 = 4;
/// How long a server that is silent is not suspected, in ticks.
const FAIL_AFTER: u64 = 5;
/// How many ticks are explored: a suspicion, its question twice over, and what follows.
const TICKS: u64 = 30;
/// By then, the keys of a server that answers nobody have moved: `FAIL_AFTER`, a window for the question, and the rounds and writes
/// that these take.
const MOVED_BY: u64 = FAIL_AFTER + WINDOW as u64 + 5;

/// One sidecar never has an answer from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Plan {
    /// The other one has answers until this tick.
    until: u64,
    /// The server refuses, or is silent.
    refuses: bool,
    mutant: Option<Mutant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mutant {
    /// Nobody asks the others: the question counts as old as the suspicion.
    DoesNotAsk,
    /// Whoever has an answer does not say so.
    NobodyAnswers,
    /// An answer to another question counts.
    AnyAnswerCounts,
    /// Who has had an answer before, and has none now, still answers.
    AnswersFromMemory,
}

#[derive(Clone)]
struct Sidecar {
    agreement: Agreement,
    /// The writes of its round, which are not carried out yet.
    writes: Vec<Command>,
    has_run: bool,
    /// The last number that it has answered: for a mutant.
    remembers: Option<u64>,
}

#[derive(Clone)]
struct World {
    now: u64,
    records: [(Record, u64); 3],
    /// With each of the two witnesses: the question and the answer.
    asked: [Option<u64>; 2],
    alive: [Option<u64>; 2],
    sidecars: [Sidecar; 2],
    drawn: u64,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Tick,
    /// A sidecar reads.
    Round(usize),
    /// What it then wrote is carried out.
    Write(usize),
}

/// What a run has met.
#[derive(Debug, Default)]
struct Met {
    states: usize,
    moved: bool,
    alone: bool,
}

impl World {
    fn new() -> World {
        let record = Record {
            fence: 7,
            standby: false,
            drained: false,
            window: WINDOW,
            grace: WINDOW,
            version: 0,
            settled: true,
            leaving: false,
            relapses: 0,
            inherited: 0,
        };
        let timing = Timing {
            window: WINDOW,
            moving: WINDOW,
            fail_after: FAIL_AFTER,
            recover_after: 1 << 20,
            recover_at_most: 1 << 20,
        };
        let sidecar = || Sidecar {
            agreement: Agreement::new(timing, MONO),
            writes: Vec::new(),
            has_run: false,
            remembers: None,
        };
        World {
            now: MONO,
            records: [(record, 1); 3],
            asked: [None; 2],
            alive: [None; 2],
            sidecars: [sidecar(), sidecar()],
            drawn: 0,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.sidecars.iter().all(|sidecar| sidecar.has_run && sidecar.writes.is_empty()) {
            steps.push(Step::Tick);
        }
        for at in 0..2 {
            steps.push(if self.sidecars[at].writes.is_empty() { Step::Round(at) } else { Step::Write(at) });
        }
        steps
    }

    fn after(&self, step: Step, plan: &Plan) -> World {
        let mut world = self.clone();
        match step {
            Step::Tick => {
                world.now += 1;
                world.sidecars.iter_mut().for_each(|sidecar| sidecar.has_run = false);
            }
            Step::Round(at) => {
                let commands = world.sidecars[at].agreement.begin(world.now);
                world.carry_out(at, &commands, plan);
                world.sidecars[at].has_run = true;
            }
            Step::Write(at) => {
                let commands = std::mem::take(&mut world.sidecars[at].writes);
                world.carry_out(at, &commands, plan);
            }
        }
        world
    }

    fn carry_out(&mut self, at: usize, commands: &[Command], plan: &Plan) {
        let mut replies: Vec<Reply> = commands.iter().map(|command| self.reply(at, command, plan)).collect();
        match plan.mutant {
            Some(Mutant::DoesNotAsk) => replies.iter_mut().zip(commands).for_each(|(reply, command)| {
                if command.item == Item::Alive {
                    *reply = Reply::Absent;
                }
            }),
            Some(Mutant::AnyAnswerCounts) if commands.iter().any(|command| command.item == Item::Alive) => {
                let asked = self.asked[0].filter(|_| self.alive[0].is_some());
                for (reply, command) in replies.iter_mut().zip(commands) {
                    if let (Item::Alive, Some(asked)) = (command.item, asked) {
                        *reply = number(asked);
                    }
                }
            }
            _ => {}
        }
        self.drawn += 1;
        let moment = Moment { mono: self.now, wall: WALL + self.now };
        // Odd: no copy is restored.
        let mut next = self.sidecars[at].agreement.resume(&replies, moment, 2 * self.drawn + 1);
        if plan.mutant == Some(Mutant::NobodyAnswers) {
            next.retain(|command| command.item != Item::Alive);
        }
        if plan.mutant == Some(Mutant::AnswersFromMemory)
            && at == 1
            && let Some(asked) = self.asked[0].filter(|asked| self.sidecars[at].remembers != Some(*asked))
        {
            let operation = Operation::Set(asked.to_string().into_bytes(), 60);
            next.extend([1, 2].map(|copy| Command { copy, item: Item::Alive, operation: operation.clone() }));
            self.sidecars[at].remembers = Some(asked);
        }
        self.sidecars[at].writes = next;
    }

    fn reply(&mut self, at: usize, command: &Command, plan: &Plan) -> Reply {
        let Command { copy, item, operation } = command;
        if *copy == 0 && (at == 0 || self.now - MONO >= plan.until) {
            return Reply::Failed { refused: plan.refuses };
        }
        let items = match item {
            Item::Suspicion => &mut self.asked,
            _ => &mut self.alive,
        };
        match (item, operation) {
            (Item::Record, Operation::Replace(value, cas)) => {
                let (held, number) = &mut self.records[*copy];
                if *number != cas.number {
                    return Reply::Conflict;
                }
                self.drawn += 1;
                (*held, *number) = (Record::decode(value).expect("a record"), (1 << 40) + self.drawn);
                Reply::Stored
            }
            (Item::Record, _) => {
                let (record, cas) = self.records[*copy];
                Reply::Found(record.encode(), Cas { number: cas, epoch: 0 })
            }
            (_, Operation::Set(value, _)) => {
                items[copy - 1] = number_of(value);
                Reply::Stored
            }
            _ => items[copy - 1].map_or(Reply::Absent, number),
        }
    }

    fn is_moved(&self) -> bool {
        self.records.iter().any(|(record, _)| record.standby)
    }

    /// Two states with the same one are the same: numbers that are drawn are renamed by their order.
    fn fingerprint(&self) -> u64 {
        let mut fields = Fields::default();
        self.now.hash(&mut fields);
        for (record, cas) in self.records {
            (record, cas).hash(&mut fields);
        }
        (self.asked, self.alive).hash(&mut fields);
        for sidecar in &self.sidecars {
            (&sidecar.agreement, sidecar.has_run, sidecar.remembers).hash(&mut fields);
            for Command { copy, item, operation } in &sidecar.writes {
                (*copy, *item).hash(&mut fields);
                match operation {
                    Operation::Replace(value, cas) => (Record::decode(value), *cas).hash(&mut fields),
                    Operation::Set(value, _) => number_of(value).hash(&mut fields),
                    _ => {}
                }
            }
        }
        let mut names: HashMap<u64, u64> = HashMap::new();
        let mut hasher = DefaultHasher::new();
        for value in fields.0 {
            let next = names.len() as u64;
            // Times and settings are below; what is drawn is above.
            let name = if value < MONO * 2 { value } else { MONO * 2 + *names.entry(value).or_insert(next) };
            name.hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn number_of(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn number(number: u64) -> Reply {
    Reply::Found(number.to_string().into_bytes(), Cas { number: 0, epoch: 0 })
}

/// The fields of a state.
#[derive(Default)]
struct Fields(Vec<u64>);

impl Hasher for Fields {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        self.0.push(hasher.finish());
    }

    fn write_u8(&mut self, value: u8) {
        self.0.push(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.0.push(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0.push(value);
    }

    fn write_isize(&mut self, value: isize) {
        self.0.push(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.0.push(value as u64);
    }
}

/// Explores every order. `check` judges each state.
fn explore(plan: Plan, check: impl Fn(&World) -> Result<(), String>) -> Result<Met, String> {
    let mut seen = HashSet::new();
    let mut met = Met::default();
    let first = World::new();
    seen.insert(first.fingerprint());
    let mut queue = vec![(first, Vec::new())];
    while let Some((world, path)) = queue.pop() {
        met.states += 1;
        met.moved |= world.is_moved();
        met.alone |= (0..2).any(|at| world.sidecars[at].agreement.status(world.now).alone);
        check(&world).map_err(|why| format!("{plan:?}: {why}, after {} states and {path:?}", met.states))?;
        if world.now - MONO >= TICKS {
            continue;
        }
        for step in world.steps() {
            let next = world.after(step, &plan);
            if seen.insert(next.fingerprint()) {
                let mut path = path.clone();
                path.push(step);
                queue.push((next, path));
            }
        }
    }
    Ok(met)
}

/// The other sidecar always has an answer: nothing moves.
fn alone(refuses: bool, mutant: Option<Mutant>) -> Result<Met, String> {
    explore(Plan { until: u64::MAX, refuses, mutant }, |world| match world.is_moved() {
        true => Err("the keys of a server that another sidecar reaches are moved".into()),
        false => Ok(()),
    })
}

/// The other one has no answer from this tick on: the keys move.
fn nobody(until: u64, refuses: bool, mutant: Option<Mutant>) -> Result<Met, String> {
    // A question that the other one has answered is asked again after a window.
    let moved_by = until + MOVED_BY + if until > 0 { u64::from(WINDOW) } else { 0 };
    explore(Plan { until, refuses, mutant }, |world| {
        match world.now - MONO >= moved_by && !world.is_moved() {
            true => Err("the keys of a server that nobody reaches are not moved".into()),
            false => Ok(()),
        }
    })
}

#[test]
fn a_sidecar_alone_moves_nothing_and_learns_that_it_is_alone() {
    for refuses in [true, false] {
        let met = alone(refuses, None).unwrap_or_else(|why| panic!("{why}"));
        println!("alone, refuses: {refuses}: {met:?}");
        assert!(met.alone && !met.moved && met.states > 500, "{met:?}");
    }
}

#[test]
fn a_server_that_nobody_reaches_is_left_in_time_in_every_order() {
    for (refuses, until) in [(true, 0), (true, 4), (false, 0), (false, 8)] {
        let met = nobody(until, refuses, None).unwrap_or_else(|why| panic!("{why}"));
        println!("nobody from {until} on, refuses: {refuses}: {met:?}");
        assert!(met.moved && met.states > 500, "{met:?}");
    }
}

#[test]
fn each_part_of_the_question_is_needed() {
    let caught = |found: Result<Met, String>| {
        let why = found.expect_err("not caught");
        println!("{}", why.split(", after").next().unwrap_or_default());
    };
    for refuses in [true, false] {
        caught(alone(refuses, Some(Mutant::DoesNotAsk)));
        caught(alone(refuses, Some(Mutant::NobodyAnswers)));
        // The other one must have answered a question before: while the server is silent, that is asked later.
        caught(nobody(if refuses { 4 } else { 8 }, refuses, Some(Mutant::AnyAnswerCounts)));
    }
    caught(nobody(0, true, Some(Mutant::AnswersFromMemory)));
}
