//! A sidecar: its table of leases, and what goes on behind the requests.

use kennel::guard::leases::{Due, Leases, Polled};
use kennel::guard::{Answer, Answers, Ask, Asks, At, Look, What};

use super::checker::Broken;
use super::operation::{Doing, End, Op, OpId, Purpose};
use super::plan::Mutant;
use super::world::{Event, World};

pub struct Sidecar {
    pub leases: Leases<OpId>,
    /// What it drew at its start.
    pub number: u64,
    /// How far its wall clock is off, in ms.
    pub offset: i64,
    /// How often it was started.
    pub life: u32,
    /// To each server: the connection, and how often it was made.
    pub links: Vec<(usize, u32)>,
}

impl World {
    pub fn new_sidecar(&mut self, life: u32) -> Sidecar {
        let number = self.below(u64::MAX);
        let spread = self.plan.faults.offset;
        let offset = self.below(2 * spread + 1) as i64 - spread as i64;
        let links = (0..self.plan.servers).map(|server| (self.connect(server), 1)).collect();
        Sidecar { leases: Leases::default(), number, offset, life, links }
    }

    /// It ends without a word, and another starts in its place.
    pub fn kill(&mut self, sidecar: usize) {
        let (sidecar_at, mut dead) = (sidecar, Vec::new());
        self.ops.retain(|_, op| {
            let keep = op.sidecar != sidecar_at;
            if let (false, Purpose::Invalidation(which)) = (keep, &op.purpose) {
                dead.push(*which);
            }
            keep
        });
        for which in dead {
            self.at(50, Event::Invalidate { which });
        }
        let life = self.sidecars[sidecar].life + 1;
        self.sidecars[sidecar] = self.new_sidecar(life);
        for client in 0..self.clients.len() {
            if self.clients[client].sidecar == sidecar {
                self.restart_client(client);
            }
        }
    }

    pub fn wake_all(&mut self, bells: Vec<OpId>) {
        for bell in bells {
            self.at(0, Event::Wake(bell));
        }
    }

    /// Asks outside any request.
    pub fn ask_plainly(&mut self, sidecar: usize, key: usize, asks: Asks, purpose: Purpose) {
        let op = self.op(sidecar, key, Doing::Plain, purpose);
        self.ask(op, asks);
    }

    pub fn lease_due(&mut self, sidecar: usize, life: u32, key: usize, id: u64) {
        if self.sidecars[sidecar].life != life || self.plan.is(Mutant::NoRenewal) {
            return;
        }
        let now = self.moment(sidecar);
        let guarded = self.plan.keys[key].clone();
        let Sidecar { leases, number, .. } = &mut self.sidecars[sidecar];
        match leases.due(&guarded.key, id, now, &guarded.policy, &guarded.tags, *number) {
            Due::Nothing => {}
            Due::Expire(asks) => self.ask_plainly(sidecar, key, asks, Purpose::Freeing),
            Due::Renew(asks) => self.ask_plainly(sidecar, key, asks, Purpose::Renewal(id)),
        }
    }

    pub fn poll(&mut self, sidecar: usize, life: u32, key: usize, pause: u64) {
        let name = self.plan.keys[key].key.clone();
        if self.sidecars[sidecar].life != life || !self.sidecars[sidecar].leases.is_awaited(&name) {
            return;
        }
        let look = |at| Ask { at, what: What::Get(Look::default()) };
        let asks = Asks::from_iter([look(At::Item), look(At::Lock)]);
        self.ask_plainly(sidecar, key, asks, Purpose::Polling(pause));
    }

    /// What becomes of the answers to questions that no client asked.
    pub fn plain_done(&mut self, op: &Op, answers: &Answers) {
        let (sidecar, key) = (op.sidecar, op.key);
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let now = self.moment(sidecar);
        let life = self.sidecars[sidecar].life;
        let leases = &mut self.sidecars[sidecar].leases;
        match op.purpose {
            Purpose::Freeing => {
                let bells = leases.unfilled(&name, now);
                self.wake_all(bells);
            }
            Purpose::Renewal(id) => {
                let renewed = leases.renewed(&name, id, answers);
                let mut bells = leases.renewal_ended(&name);
                match renewed {
                    Ok(ticket) => {
                        let due = Leases::<OpId>::next_due(&ticket, &policy, now);
                        self.at(due - self.now, Event::Due { sidecar, life, key, id });
                    }
                    Err((_, asks)) if asks.is_empty() => bells.extend(leases.wake(&name)),
                    Err((_, asks)) => self.ask_plainly(sidecar, key, asks, Purpose::Freeing),
                }
                self.wake_all(bells);
            }
            Purpose::Polling(pause) => {
                let found = match &answers[..] {
                    [Answer::Item(item), _] if item.size == 0 => Polled::Unchanged,
                    [Answer::Item(_), Answer::Item(_)] | [Answer::Failed(_), _] => Polled::Unchanged,
                    [Answer::Item(_), _] => Polled::Filled,
                    _ => Polled::Freed,
                };
                let bells = leases.polled(&name, found, now);
                self.wake_all(bells);
                if found == Polled::Unchanged {
                    let pause = (pause * 2).min(100);
                    self.at(pause, Event::Poll { sidecar, life, key, pause });
                }
            }
            _ => {}
        }
    }

    pub fn done(&mut self, op: Op, end: End) -> Result<(), Broken> {
        match (end, op.purpose.clone()) {
            (End::Plain(answers), _) => {
                self.plain_done(&op, &answers);
                Ok(())
            }
            (End::Read(end), Purpose::Get { client, slot, began }) => {
                self.read_done(op.sidecar, op.key, client, slot, began, end)
            }
            (End::Fill(end), Purpose::Put(put)) => self.fill_done(put, end),
            (End::Set(end), Purpose::Put(put)) => self.set_done(put, end),
            (End::Delete(end), Purpose::Invalidation(which)) => {
                self.invalidation_done(which, op.sidecar, !matches!(end, kennel::guard::DeleteEnd::Failed(_)))
            }
            (End::Bump(end), Purpose::Invalidation(which)) => {
                self.invalidation_done(which, op.sidecar, !matches!(end, kennel::guard::BumpEnd::Failed(_)))
            }
            (end, purpose) => panic!("{purpose:?} cannot end with {end:?}"),
        }
    }
}
