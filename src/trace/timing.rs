//! Where the time of a request goes.

use std::time::Duration;

/// The parts of a request's time that are known, each in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// Waiting for another client's build.
    build: u32,
    /// From when a command was queued for a server until it was written to the socket.
    queue: u32,
    /// From then until the reply.
    server: u32,
    /// The part of `queue` and `server` that was added since [`Timing::next_turn`].
    recent: (u32, u32),
    /// Whether the request has been logged as slow.
    pub is_logged: bool,
}

/// All parts of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Waiting for another client's build.
    pub build: Duration,
    /// Waiting until a command was written to a server.
    pub queue: Duration,
    /// Waiting for the server.
    pub server: Duration,
    /// Time that no other part accounts for.
    pub rest: Duration,
}

impl Timing {
    /// Replies that are taken from now on answer commands that were sent later than those of the replies before.
    pub fn next_turn(&mut self) {
        self.recent = (0, 0);
    }

    /// It has waited so long for a build.
    pub fn add_build(&mut self, waited: Duration) {
        self.build = self.build.saturating_add(micros(waited));
    }

    /// A reply was awaited so long. Of the replies of one turn, the slowest counts: their commands were sent together.
    pub fn add_reply(&mut self, queue: Duration, server: Duration) {
        let (queue, server) = (micros(queue), micros(server));
        let (before, further) = self.recent;
        if queue.saturating_add(server) > before.saturating_add(further) {
            self.queue = (self.queue - before).saturating_add(queue);
            self.server = (self.server - further).saturating_add(server);
            self.recent = (queue, server);
        }
    }

    /// The parts of a request that took so long in all.
    pub fn parts(&self, total: Duration) -> Parts {
        let mut rest = total;
        let mut part = |micros: u32| {
            let part = Duration::from_micros(micros.into()).min(rest);
            rest -= part;
            part
        };
        let (server, queue, build) = (part(self.server), part(self.queue), part(self.build));
        Parts { build, queue, server, rest }
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn replies_that_were_awaited_together_count_once_and_one_after_the_other_all_count() {
        let mut timing = Timing::default();
        timing.add_reply(MS, 10 * MS);
        timing.add_reply(2 * MS, 20 * MS);
        timing.add_reply(MS, 5 * MS);
        timing.next_turn();
        timing.add_reply(MS, 7 * MS);
        timing.add_build(30 * MS);
        let parts = timing.parts(100 * MS);
        assert_eq!(parts, Parts { build: 30 * MS, queue: 3 * MS, server: 27 * MS, rest: 40 * MS });
    }

    #[test]
    fn the_parts_are_never_more_than_the_whole() {
        let mut timing = Timing::default();
        timing.add_reply(Duration::ZERO, 10 * MS);
        timing.add_build(Duration::from_secs(9_000));
        let parts = timing.parts(15 * MS);
        assert_eq!(
            parts,
            Parts { build: 5 * MS, queue: Duration::ZERO, server: 10 * MS, rest: Duration::ZERO }
        );
    }
}
