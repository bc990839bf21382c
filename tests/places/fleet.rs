//! Many processes and three copies that lose no message: how long until all of them have a view.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use kennel::failover::{Agreement, COPIES, Cas, Command, Item, Moment, Operation, Record, Reply, Timing};
use kennel::random::Random;

const WINDOW: u32 = 1500;
const TIMING: Timing =
    Timing { window: WINDOW, moving: 300, fail_after: 2000, recover_after: 10_000, recover_at_most: 300_000 };
/// As `kennel::monitor` limits the beginnings of rounds, in ms.
const SHORTEST_PAUSE: u64 = WINDOW as u64 / 32;
/// 2026, in ms.
const WALL: u64 = 1_782_579_200_000;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A process begins a round.
    Round(usize),
    /// A command of this round reaches its server.
    Arrives { process: usize, round: u64, at: usize },
    /// All replies of this batch have arrived.
    Replied { process: usize, round: u64 },
}

struct Process {
    agreement: Agreement,
    round: u64,
    began: u64,
    commands: Vec<Command>,
    replies: Vec<Reply>,
}

struct Fleet {
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbered: u64,
    random: Random,
    processes: Vec<Process>,
    /// The value and CAS of each copy.
    copies: [Option<(Vec<u8>, u64)>; COPIES],
    last_cas: u64,
    /// Messages take up to so many ms in each direction.
    latency: u64,
}

impl Fleet {
    /// All processes start within `spread` ms.
    fn start(seed: u64, processes: usize, spread: u64, latency: u64) -> Fleet {
        let mut random = Random::seeded(seed);
        let starts: Vec<u64> = (0..processes).map(|_| random.below(spread + 1)).collect();
        let process = |start: &u64| Process {
            agreement: Agreement::new(TIMING, *start),
            round: 0,
            began: *start,
            commands: Vec::new(),
            replies: Vec::new(),
        };
        let mut fleet = Fleet {
            now: 0,
            events: BinaryHeap::new(),
            numbered: 0,
            random,
            processes: starts.iter().map(process).collect(),
            copies: [None, None, None],
            last_cas: 0,
            latency,
        };
        starts.iter().enumerate().for_each(|(at, start)| fleet.at(*start, Event::Round(at)));
        fleet
    }

    fn at(&mut self, time: u64, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((time, self.numbered, event)));
    }

    fn run_until(&mut self, done: impl Fn(&Fleet) -> bool, limit: u64) -> Option<u64> {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > limit {
                return None;
            }
            self.now = time;
            match event {
                Event::Round(at) => {
                    let process = &mut self.processes[at];
                    (process.round, process.began) = (process.round + 1, time);
                    let commands = process.agreement.begin(time);
                    self.send(at, commands);
                }
                Event::Arrives { process, round, at } if self.processes[process].round == round => {
                    let command = self.processes[process].commands[at].clone();
                    let reply = self.carry_out(&command);
                    self.processes[process].replies[at] = reply;
                }
                Event::Replied { process, round } if self.processes[process].round == round => {
                    self.resume(process);
                }
                _ => {}
            }
            if done(self) {
                return Some(self.now);
            }
        }
        None
    }

    fn send(&mut self, process: usize, commands: Vec<Command>) {
        let (round, mut end) = (self.processes[process].round, self.now);
        let delays: Vec<u64> = (0..COPIES).map(|_| self.random.below(self.latency + 1)).collect();
        self.processes[process].replies = vec![Reply::Failed { refused: false }; commands.len()];
        for (at, command) in commands.iter().enumerate() {
            // Commands to one server are written together.
            let arrives = self.now + delays[command.copy];
            end = end.max(arrives + self.random.below(self.latency + 1));
            self.at(arrives, Event::Arrives { process, round, at });
        }
        self.processes[process].commands = commands;
        self.at(end, Event::Replied { process, round });
    }

    fn carry_out(&mut self, command: &Command) -> Reply {
        let copy = &mut self.copies[command.copy];
        if command.item != Item::Record {
            return Reply::Absent;
        }
        match &command.operation {
            Operation::ReadOrStub(_) => {
                let last_cas = &mut self.last_cas;
                let (value, number) = copy.get_or_insert_with(|| {
                    *last_cas += 1;
                    (Vec::new(), *last_cas)
                });
                Reply::Found(value.clone(), Cas { number: *number, epoch: 1 })
            }
            Operation::Replace(value, cas) if copy.as_ref().is_some_and(|(_, now)| *now == cas.number) => {
                self.last_cas += 1;
                *copy = Some((value.clone(), self.last_cas));
                Reply::Stored
            }
            _ => Reply::Conflict,
        }
    }

    fn resume(&mut self, at: usize) {
        let random = self.random.below(u64::MAX);
        let moment = Moment { mono: self.now, wall: WALL + self.now };
        let process = &mut self.processes[at];
        let commands = process.agreement.resume(&std::mem::take(&mut process.replies), moment, random);
        if commands.is_empty() {
            let next = process.agreement.due().max(process.began + SHORTEST_PAUSE).max(self.now);
            return self.at(next, Event::Round(at));
        }
        self.send(at, commands);
    }

    fn fences(&self) -> Vec<Option<u64>> {
        let view = |process: &Process| process.agreement.view(self.now).map(|(view, _)| view.fence);
        self.processes.iter().map(view).collect()
    }

    fn all_have_views(&self) -> bool {
        let fences: HashSet<Option<u64>> = self.fences().into_iter().collect();
        !fences.contains(&None) && fences.len() == 1
    }

    /// Whether all copies have a record of the same fence.
    fn all_copies_agree(&self) -> bool {
        let fence =
            |copy: &Option<(Vec<u8>, u64)>| Record::decode(&copy.as_ref()?.0).map(|record| record.fence);
        let fences: HashSet<Option<u64>> = self.copies.iter().map(fence).collect();
        fences.len() == 1 && !fences.contains(&None)
    }
}

/// The grace of a new record.
const GRACE: u64 = WINDOW as u64 * 9 / 8;

#[test]
fn a_fleet_that_starts_at_once_has_its_views_after_little_more_than_a_window() {
    for (processes, latency) in [(1, 2), (20, 1), (20, 5), (20, 40), (100, 5)] {
        let mut longest = 0;
        for seed in 0..40 {
            let spread = [0, 20, 500][seed as usize % 3];
            let mut fleet = Fleet::start(seed, processes, spread, latency);
            let end = fleet.run_until(Fleet::all_have_views, 20 * u64::from(WINDOW));
            let end = end.unwrap_or_else(|| panic!("seed {seed}: {processes} processes never agree"));
            longest = longest.max(end - spread);
        }
        println!("{processes} processes, up to {latency} ms: at most {longest} ms");
        // On top of the grace: until one of the processes that write at the same time has written two copies.
        let limit = GRACE + 100 + 20 * latency;
        assert!(longest <= limit, "{processes} processes, up to {latency} ms: {longest} ms");
    }
}

#[test]
fn a_lost_copy_is_restored_within_a_window_however_many_processes_restore_it() {
    for processes in [2, 20, 100] {
        let mut longest = 0;
        for seed in 0..40 {
            let mut fleet = Fleet::start(seed, processes, 20, 3);
            let limit = 20 * u64::from(WINDOW);
            let began = fleet.run_until(|fleet| fleet.all_have_views() && fleet.all_copies_agree(), limit);
            let began = began.unwrap_or_else(|| panic!("seed {seed}: {processes} processes never agree"));
            let fences = fleet.fences();
            let lost = fleet.random.below(COPIES as u64) as usize;
            fleet.copies[lost] = None;
            let end = fleet.run_until(Fleet::all_copies_agree, began + limit);
            let end = end.unwrap_or_else(|| panic!("seed {seed}: {processes} processes do not restore it"));
            assert_eq!(fleet.fences(), fences, "seed {seed}: the fence stays");
            longest = longest.max(end - began);
        }
        println!("{processes} processes: at most {longest} ms");
        // Each of a few processes restores it in one of four rounds.
        let limit = if processes > 10 { u64::from(WINDOW) } else { 10 * u64::from(WINDOW) };
        assert!(longest <= limit, "{processes} processes: {longest} ms");
    }
}
