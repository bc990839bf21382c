//! Which faults occur, when, and what they do.

use super::counting::Cause;
use super::mutants::Mutant;
use super::operation::{OpId, Purpose};
use super::plan::{Plan, tag_name};
use super::server::Server;
use super::world::{Event, World};

#[derive(Debug, Clone, Copy)]
pub enum Fault {
    EvictItem,
    EvictLock,
    EvictTag,
    /// A program that bypasses Kennel stores something under the key of a tag.
    SpoilTag,
    Restart,
    Reset,
    Kill,
    Disconnect,
    /// A sidecar's wall clock is set.
    Step,
    /// The commands on one connection are delayed.
    Stall,
    /// A server is suspended and resumes later.
    Stop,
    /// The keys of a server move to another place.
    Move,
}

impl World {
    pub fn plan_faults(&mut self) {
        let faults = self.plan.faults;
        for (fault, every) in [
            (Fault::EvictItem, faults.evict_item),
            (Fault::EvictLock, faults.evict_lock),
            (Fault::EvictTag, faults.evict_tag),
            (Fault::SpoilTag, faults.spoil_tag),
            (Fault::Restart, faults.restart),
            (Fault::Reset, faults.reset),
            (Fault::Kill, faults.kill),
            (Fault::Disconnect, faults.disconnect),
            (Fault::Step, faults.step),
            (Fault::Stall, faults.stall),
            (Fault::Stop, faults.stop),
            (Fault::Move, self.plan.moves),
        ] {
            let mut at = 1 + self.below(2 * every);
            while every > 0 && at < self.plan.quiet {
                self.at(at, Event::Fault(fault));
                at += 1 + self.below(2 * every);
            }
        }
    }

    pub fn fault(&mut self, fault: Fault) {
        self.trace(|| format!("!! {fault:?}"));
        let wall = self.wall();
        let key = self.below(self.plan.keys.len() as u64) as usize;
        let home = key % self.plan.servers;
        let server = self.plan.faulty_server.unwrap_or(home);
        match fault {
            Fault::EvictItem => {
                let name = self.plan.keys[key].key.clone();
                self.servers[home].evict(&name, wall);
                self.lost(key, 0);
            }
            Fault::EvictLock => {
                let name = self.plan.keys[key].lock.clone();
                self.servers[home].evict(&name, wall);
                self.lost(key, 0);
            }
            Fault::EvictTag => {
                if self.plan.all_tags() > 0 {
                    let tag = self.random.below(self.plan.all_tags() as u64) as usize;
                    let name = tag_name(tag);
                    let (tag_servers, key) = (self.plan.tag_servers(&name), self.tag_key(&name));
                    match self.plan.faulty_server {
                        None => {
                            self.servers[tag_servers[0]].evict(&key, wall);
                            self.tag_lost(tag);
                        }
                        // The other server has a copy: nothing is lost.
                        Some(faulty_server) if tag_servers.contains(&faulty_server) => {
                            self.checker.coverage.copies_lost += 1;
                            self.servers[faulty_server].evict(&key, wall);
                        }
                        Some(_) => {}
                    }
                }
            }
            Fault::SpoilTag => self.spoil_tag(),
            Fault::Restart => {
                self.servers[server] = Server::start(wall);
                self.restarted[server] = self.now;
                self.stopped[server] = self.now;
                for link in self.links.iter_mut().filter(|link| link.server == server) {
                    (link.closed, link.cut) = (true, true);
                }
                for sidecar in 0..self.sidecars.len() {
                    self.reconnect(sidecar, server);
                }
                for tag in 0..self.plan.all_tags() {
                    if self.plan.tag_servers(&tag_name(tag)) == [server] {
                        self.tag_lost(tag);
                    }
                }
            }
            Fault::Reset => {
                let sidecar = self.below(self.plan.sidecars as u64) as usize;
                self.reconnect(sidecar, server);
            }
            Fault::Stall => {
                let sidecar = self.below(self.plan.sidecars as u64) as usize;
                self.stall(sidecar, server);
            }
            Fault::Stop => self.stop(server),
            Fault::Move => {
                let server = self.below(self.plan.servers as u64) as usize;
                self.move_place(server);
            }
            Fault::Kill => {
                let sidecar = self.below(self.plan.sidecars as u64) as usize;
                self.kill(sidecar);
            }
            Fault::Disconnect => {
                let client = self.below(self.plan.readers as u64) as usize;
                self.disconnect(client);
            }
            Fault::Step => {
                let sidecar = self.below(self.plan.sidecars as u64) as usize;
                let spread = self.plan.faults.offset.max(1000);
                self.sidecars[sidecar].offset = self.random.below(2 * spread + 1) as i64 - spread as i64;
            }
        }
    }

    /// A key's item, stub or lock may be lost: now, or in up to `expires_in` ms because it is no longer renewed.
    pub fn lost(&mut self, key: usize, runs_out: u64) {
        self.checker.reasons.note(key, Cause::Lost, self.now, Some(self.now + runs_out));
    }

    pub fn tag_lost(&mut self, tag: usize) {
        let keys = self.plan.tagged(tag);
        // A client that has just read the old version, or a sidecar that caches it, may still build with it.
        let again = if self.plan.tag_cache > 0 { 32 } else { 1 };
        for key in keys.into_iter().flat_map(|key| std::iter::repeat_n(key, again)) {
            self.lost(key, self.plan.trip() + self.plan.tag_cache);
        }
    }

    /// The reply to a command is lost.
    pub fn reply_lost(&mut self, op: OpId) {
        let Some(op) = self.ops.get(&op) else { return };
        if matches!(op.purpose, Purpose::Renewal(_)) {
            let key = op.key;
            self.lost(key, self.runs_out(key));
        }
    }

    /// The longest remaining time of a lease that is no longer renewed, in ms.
    pub fn runs_out(&self, key: usize) -> u64 {
        1000 * u64::from(self.plan.keys[key].policy.lock_seconds()) + self.plan.trip() + super::world::TIMEOUT
    }

    pub fn reconnect(&mut self, sidecar: usize, server: usize) {
        let (link, epoch) = self.sidecars[sidecar].links[server];
        self.links[link].closed = true;
        // Its leases there are no longer renewed.
        for key in (server..self.plan.keys.len()).step_by(self.plan.servers) {
            self.lost(key, self.runs_out(key));
        }
        let new = self.connect(server);
        self.sidecars[sidecar].links[server] = (new, epoch + 1);
    }
}

impl Plan {
    /// Whether any fault can occur in this run.
    pub fn faults_matter(&self) -> bool {
        let f = self.faults;
        f.evict_item
            + f.evict_lock
            + f.evict_tag
            + f.spoil_tag
            + f.restart
            + f.reset
            + f.kill
            + f.disconnect
            + f.lost
            + f.slow_winner
            + f.offset
            + f.step
            + f.stall
            + f.stop
            > 0
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether CAS numbers are shown to clients whatever the fence.
    pub fn shares_numbers(&self) -> bool {
        self.is(Mutant::NumbersOfAllFences) || self.is(Mutant::NoFenceOfValues)
    }
}
