//! A schedule: its clients, the sidecars that carry out their commands, and what went wrong.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kennel::error::Failure;
use kennel::kinds::{
    self, Command, Copied, Inputs, Kind, Machine, Memory, Mode, Operation, Outcome, Replies, Reply, Request,
    Step,
};

use super::executor::Executor;
use super::mutants::Mutant;
use super::network::{Life, Network};
use super::places::{OnPlaces, Places, move_places};
use super::plan::Plan;

/// After so many checked replies, a schedule ends.
const ENOUGH: u64 = 300;

pub struct World {
    pub executor: Executor,
    pub network: Rc<Network>,
    pub plan: Plan,
    pub places: Places,
    violation: RefCell<Option<String>>,
    trace: Option<RefCell<Vec<String>>>,
    /// How often what a test wants to see has happened.
    pub seen: Cell<u64>,
    /// What each sidecar remembers.
    memories: Vec<Memory>,
    /// How many ms the clock of each sidecar is ahead.
    offsets: RefCell<Vec<u64>>,
}

/// The life of what has two copies.
const ONLY_LIFE: Life = (0, 0);

/// The life of the item when a command was executed. What is sent to copies may be executed from then on.
pub type Executed = Rc<Cell<Option<Life>>>;

/// Notes the execution of one of the commands that a client's command consists of.
pub struct Watch {
    pub executed: Executed,
    which: fn(&Operation) -> bool,
}

impl Watch {
    pub fn on(which: fn(&Operation) -> bool) -> Watch {
        Watch { executed: Executed::default(), which }
    }

    pub fn nothing() -> Watch {
        Watch::on(|_| false)
    }

    pub fn counts() -> Watch {
        Watch::on(|operation| matches!(operation, Operation::Count { .. }))
    }
}

impl World {
    /// Runs a schedule. `begin` begins its clients. Returns how often something was seen and how many faults there were, or what
    /// went wrong.
    pub fn run(
        plan: Plan,
        traced: bool,
        begin: impl Fn(&Rc<World>),
    ) -> Result<(u64, u64), (String, Vec<String>)> {
        let executor = Executor::seeded(plan.seed);
        let network = Network::new(executor.clone(), plan.clone());
        let world = Rc::new(World {
            places: Places::new(plan.sidecars),
            memories: (0..plan.sidecars).map(|_| Memory::default()).collect(),
            offsets: RefCell::new(vec![0; plan.sidecars]),
            violation: RefCell::new(None),
            trace: traced.then(RefCell::default),
            seen: Cell::new(0),
            network: Rc::clone(&network),
            plan,
            executor: executor.clone(),
        });
        begin(&world);
        if world.plan.faults && world.plan.copies {
            executor.spawn(move_places(Rc::clone(&world)));
        }
        if world.plan.faults {
            executor.spawn(Rc::clone(&network).fail());
        }
        executor.spawn(Rc::clone(&world).move_clocks());
        executor.run(world.plan.end, || world.violation.borrow().is_some() || world.seen.get() >= ENOUGH);
        match world.violation.take() {
            None => Ok((world.seen.get(), network.faults.get())),
            Some(why) => Err((why, world.trace.as_ref().map(RefCell::take).unwrap_or_default())),
        }
    }

    async fn move_clocks(self: Rc<Self>) {
        loop {
            for sidecar in 0..self.plan.sidecars {
                let offset = self.executor.below(self.plan.spread);
                self.offsets.borrow_mut()[sidecar] = offset;
            }
            self.executor.sleep(500 + self.executor.below(3_000)).await;
        }
    }

    pub fn violated(&self, why: impl FnOnce() -> String) {
        let mut violation = self.violation.borrow_mut();
        if violation.is_none() {
            *violation = Some(why());
        }
    }

    pub fn trace(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.borrow_mut().push(format!("{:>6} {}", self.executor.now(), line()));
        }
    }

    pub fn saw(&self) {
        self.seen.set(self.seen.get() + 1);
    }

    pub fn inputs(&self, sidecar: usize) -> Inputs {
        let now = self.network.wall() + self.offsets.borrow()[sidecar];
        Inputs { now, random: self.executor.below(u64::MAX) }
    }

    /// This kind, on as many servers as the schedule says.
    pub fn kind(&self, kind: Kind) -> Kind {
        match self.plan.copies {
            true => Kind::Copied(Copied { of: Some(Box::new(kind)) }),
            false => kind,
        }
    }

    /// The life that an item has now. What has copies has one only.
    pub fn life(&self, server: usize, key: &[u8]) -> Life {
        if self.plan.copies { ONLY_LIFE } else { self.network.life(server, key) }
    }

    /// The machine for a client's valid command.
    pub fn machine(
        &self,
        sidecar: usize,
        kind: &Kind,
        key: &str,
        length: usize,
        request: Request<'_>,
        now: u64,
    ) -> Box<dyn Machine> {
        let memory = &self.memories[sidecar];
        kinds::begin(kind, key.as_bytes(), length, request, memory, now).expect("the request is valid")
    }

    /// The pause of a client.
    pub async fn pause(&self) {
        self.executor.sleep(1 + self.executor.below(self.plan.pause)).await;
    }

    /// Carries out one command of a client, as `proxy::structures` does. `server`: the one that it is for, if there are no copies.
    pub async fn carry_out(
        &self,
        sidecar: usize,
        server: usize,
        machine: &mut dyn Machine,
        watch: &Watch,
    ) -> Outcome {
        let mut replies = Replies::new();
        let mut copies = OnPlaces::new(self, sidecar);
        loop {
            replies = match machine.resume(replies, &self.inputs(sidecar)) {
                Step::Done(outcome) => return outcome,
                Step::Send(commands) => self.round_trip(sidecar, server, commands, watch).await,
                Step::SendCopies(commands) => {
                    watch.executed.set(Some(ONLY_LIFE));
                    copies.round_trip(commands).await
                }
            };
        }
    }

    /// Sends the commands of one round trip, and waits for all replies.
    pub async fn round_trip(
        &self,
        sidecar: usize,
        server: usize,
        commands: Vec<Command>,
        watch: &Watch,
    ) -> Replies {
        let sent = self.executor.now();
        let mut slots = Vec::new();
        for mut command in commands {
            if let Some(mutant) = self.plan.mutant {
                mutant.change(&mut command);
            }
            let is_watched = (watch.which)(&command.operation);
            let told = if is_watched { Rc::clone(&watch.executed) } else { Executed::default() };
            slots.push((command.clone(), self.network.send(sidecar, server, command, told)));
        }
        let mut replies = Replies::new();
        for (command, slot) in slots {
            let mut reply = self.network.receive(slot, sent).await;
            let is_sent_again = match command.operation {
                Operation::Count { .. } => self.plan.is(Mutant::FailedCountIsSentAgain),
                Operation::Store { mode: Mode::Append, .. } => self.plan.is(Mutant::FailedAppendIsSentAgain),
                _ => false,
            };
            if is_sent_again && reply == Reply::Failed(Failure::TimedOut) {
                let again = self.network.send(sidecar, server, command.clone(), Executed::default());
                reply = self.network.receive(again, self.executor.now()).await;
            }
            self.trace(|| {
                let (key, operation) = (command.key.escape_ascii(), &command.operation);
                format!("sidecar {sidecar}, server {server}: {key} {operation:?} sent at {sent} -> {reply:?}")
            });
            replies.push(reply);
        }
        replies
    }
}
