//! Faults.

use std::sync::Arc;

use kennel::guard::{ItemRef, ServerCommand};

use super::operation::QueuedCommand;
use super::plan::{Fault, Plan};
use super::server::Server;
use super::steps::Label;
use super::world::{Job, Shared, Sidecar, World};

impl World {
    pub fn faulty(&self, kind: Fault, labels: &mut Vec<Label>) {
        let Server { item, lock, tag, .. } = &self.server;
        match kind {
            Fault::EvictItem => labels.extend(item.as_ref().map(|_| Label::Evict(ItemRef::Value))),
            Fault::EvictLock => labels.extend(lock.as_ref().map(|_| Label::Evict(ItemRef::Lock))),
            Fault::EvictTag => labels.extend(tag.as_ref().map(|_| Label::Evict(ItemRef::Tag(0)))),
            Fault::SpoilTag => labels.push(Label::Spoil),
            Fault::Restart => {
                labels.push(Label::Restart(None));
                labels.extend(self.remembered().into_iter().map(|cas| Label::Restart(Some(cas))));
            }
            Fault::Lose => {
                for (s, sidecar) in self.sidecars.iter().enumerate() {
                    let reply_to =
                        sidecar.queue.iter().enumerate().filter(|(_, command)| command.reply_to.is_some());
                    labels.extend(reply_to.map(|(n, _)| Label::Lose(s, n)));
                }
            }
            Fault::Kill => {
                for (s, sidecar) in self.sidecars.iter().enumerate().filter(|(_, sidecar)| {
                    // There is nothing to lose.
                    !sidecar.ops.is_empty() || !sidecar.held_leases.is_empty()
                }) {
                    let matters = |kept: &usize| {
                        *kept == 0 || self.may_matter(&sidecar.queue[*kept - 1].server_command)
                    };
                    labels.extend((0..=sidecar.queue.len()).filter(matters).map(|kept| Label::Kill(s, kept)));
                }
            }
            Fault::Leave => {
                let builds = |c: &usize| matches!(self.clients[*c].job, Job::Building { won: true, .. });
                labels.extend([0, 1].into_iter().filter(builds).map(Label::Leave));
            }
            Fault::Slow => {
                for (s, sidecar) in self.sidecars.iter().enumerate() {
                    let kept = sidecar.held_leases.iter().filter(|(id, _)| !sidecar.renews(*id));
                    labels.extend(kept.map(|(id, _)| Label::TooSlow(s, *id)));
                }
            }
        }
    }

    /// The CASes on which leases and their renewals depend.
    pub fn remembered(&self) -> Vec<u64> {
        let tokens = self.sidecars.iter().flat_map(|sidecar| &sidecar.held_leases);
        let cases = tokens.flat_map(|(_, token)| [token.observed_cas, token.lock]).flatten();
        let mut numbers: Vec<_> = cases.map(|cas| cas.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// All other remembered CASes are lower than those assigned from now on. In memcached the numbers may recur one after the
    /// other, or after any others.
    pub fn restart(&mut self, again: Option<u64>, plan: &Plan) {
        let stays = |command: &ServerCommand| plan.tags_elsewhere && matches!(command.item, ItemRef::Tag(_));
        self.server = Server {
            again,
            last: self.server.last,
            last_of_tags: self.server.last_of_tags,
            tag: self.server.tag.take().filter(|_| plan.tags_elsewhere),
            ..Server::start()
        };
        self.epoch += 1;
        if !plan.tags_elsewhere {
            self.epoch_of_tags += 1;
            self.lose_tag();
        }
        for orphans in &mut self.orphans {
            orphans.retain(|command| stays(&command.server_command));
        }
        for s in 0..2 {
            for command in std::mem::take(&mut self.sidecars[s].queue) {
                if stays(&command.server_command) {
                    self.sidecars[s].queue.push(command);
                } else {
                    self.fail(s, &command);
                }
            }
        }
    }

    /// This invalidates every value that has the tag.
    pub fn lose_tag(&mut self) {
        self.losses += 1;
        self.disturb();
    }

    pub fn lose(&mut self, s: usize, n: usize) {
        let command = self.sidecars[s].queue[n].clone();
        self.fail(s, &command);
        self.sidecars[s].queue[n].reply_to = None;
    }

    pub fn kill(&mut self, s: usize, kept: usize, plan: &Plan) {
        let dead = std::mem::replace(&mut self.sidecars[s], Shared(Arc::new(Sidecar::start())));
        let orphan = |command: &QueuedCommand| QueuedCommand { reply_to: None, ..command.clone() };
        self.orphans.push(dead.queue.iter().take(kept).map(orphan).collect());
        for (c, client) in self.clients.iter_mut().enumerate() {
            let moves_here = matches!(client.job, Job::Invalidating { at, .. } if at == s);
            let moves_elsewhere = matches!(client.job, Job::Invalidating { at, .. } if at != s);
            if moves_here || (plan.sidecar_of[c] == s && !moves_elsewhere) {
                client.job = Job::Idle;
                client.disturbed = false;
            }
        }
        for entry in
            [&mut self.server.item, &mut self.server.lock, &mut self.server.tag].into_iter().flatten()
        {
            entry.by = entry.by.filter(|by| *by != s);
        }
        self.lock_before =
            self.lock_before.filter(|_| matches!(self.clients[1].job, Job::Invalidating { .. }));
        self.reset_idle_clients();
    }
}
