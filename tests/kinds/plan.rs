//! What a schedule is like, drawn from its seed.

use kennel::random::Random;

use super::mutants::Mutant;

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub mutant: Option<Mutant>,
    pub sidecars: usize,
    pub servers: usize,
    pub clients: usize,
    pub keys: u64,
    /// The longest time on the way to a server, in ms; the same back.
    pub latency: u64,
    /// The longest pause of a client, in ms.
    pub pause: u64,
    /// How long servers stop and connections stall, in ms.
    pub longest_delay: u64,
    /// The mean pause between faults, in ms.
    pub between_faults: u64,
    /// Of so many replies, one is slower than the timeout; 0: none.
    pub slow_replies: u64,
    /// Of so many commands, one is delayed by a segment that is sent again, with those behind it; 0: none.
    pub late_commands: u64,
    /// The mean pause between moves of a copy, in ms.
    pub between_moves: u64,
    /// Whether everything has two copies.
    pub copies: bool,
    /// Which of the copies is lost, if the other one never is.
    pub loses: Option<usize>,
    /// Whether anything fails at all.
    pub faults: bool,
    pub restarts: bool,
    pub evicts: bool,
    /// Whether what is evicted is one of the last items by their keys, which of a log are the newest, and instead of stops and stalls
    /// something is evicted.
    pub evicts_last: bool,
    /// Of so many entries of a log, one is long.
    pub long_entries: u64,
    /// The clocks of two sidecars differ by less than this, in ms.
    pub spread: u64,
    /// When the schedule ends, in ms.
    pub end: u64,
}

impl Plan {
    pub fn drawn(seed: u64, mutant: Option<Mutant>) -> Plan {
        let mut random = Random::seeded(seed ^ 0x006b_696e_6473);
        let mut one_of = |all: &[u64]| all[random.below(all.len() as u64) as usize];
        Plan {
            seed,
            mutant,
            sidecars: 2,
            servers: 2,
            clients: one_of(&[3, 4, 5, 6]) as usize,
            keys: one_of(&[1, 2]),
            latency: one_of(&[2, 10, 50]),
            pause: one_of(&[5, 50, 400]),
            longest_delay: one_of(&[400, 1_500, 4_000]),
            between_faults: one_of(&[200, 1_000, 4_000]),
            slow_replies: one_of(&[0, 20, 100]),
            late_commands: 0,
            between_moves: one_of(&[2_000, 6_000, 40_000]),
            copies: false,
            loses: None,
            faults: true,
            restarts: one_of(&[0, 1]) == 1,
            evicts: one_of(&[0, 1]) == 1,
            evicts_last: false,
            long_entries: 16,
            spread: one_of(&[1, 300, 900]),
            end: 20_000,
        }
    }

    /// Servers that restart all the time.
    pub fn restarting(self) -> Plan {
        Plan { restarts: true, evicts: false, between_faults: 150, latency: 2, pause: 50, ..self }
    }

    /// Servers that are far away, and connections that stall.
    pub fn far(self) -> Plan {
        let plan = Plan { restarts: false, evicts: false, between_faults: 300, latency: 140, ..self };
        Plan { longest_delay: 4_000, pause: 50, ..plan }
    }

    /// Connections that lose segments: the commands of one round trip do not arrive together.
    pub fn lossy(self) -> Plan {
        Plan { restarts: false, evicts: false, latency: 2, pause: 50, late_commands: 6, ..self }
    }

    /// Three servers, for what has two copies.
    pub fn of_copies(self) -> Plan {
        Plan { servers: 3, copies: true, ..self }
    }

    /// The same, while only the servers of one copy restart and evict, and only its place moves. So no acknowledged change is lost.
    pub fn of_one_lost_copy(self) -> Plan {
        let loses = Some((self.seed / 2 % 2) as usize);
        Plan { loses, ..self.of_copies() }
    }

    /// The same for locks, of which one whose sidecar has died lasts for longer.
    pub fn of_one_lost_copy_of_locks(self) -> Plan {
        Plan { end: 40_000, ..self.of_one_lost_copy() }
    }

    /// The same with connections that lose segments.
    pub fn of_one_late_copy(self) -> Plan {
        let plan = self.of_one_lost_copy();
        Plan { late_commands: 6, end: plan.end * 3 / 2, ..plan }
    }

    /// Copies that are evicted all the time, while commands are under way.
    pub fn of_evicted_copies(self) -> Plan {
        let plan = Plan { evicts: true, restarts: false, between_faults: 60, pause: 50, ..self };
        Plan { latency: 50, keys: 1, clients: 6, ..plan.of_copies() }
    }

    /// Logs of which the first copy of the newest items is evicted all the time.
    pub fn of_evicted_first_parts(self) -> Plan {
        self.of_evicted_parts(0)
    }

    /// The same of the second copy, while many parts begin.
    pub fn of_evicted_second_parts(self) -> Plan {
        let plan = Plan { late_commands: 100, latency: 5, between_faults: 15, ..self.of_evicted_parts(1) };
        Plan { pause: 5, long_entries: 4, end: 12_000, ..plan }
    }

    fn of_evicted_parts(self, copy: usize) -> Plan {
        let plan = Plan { loses: Some(copy), between_moves: 40_000, ..self.of_copies() };
        let plan = Plan { evicts: true, evicts_last: true, restarts: false, between_faults: 40, ..plan };
        let plan = Plan { latency: 2, late_commands: 24, spread: 1, ..plan };
        Plan { pause: 20, keys: 1, clients: 6, ..plan }
    }

    /// The same on a day without faults.
    pub fn without_faults(self) -> Plan {
        Plan {
            faults: false,
            slow_replies: 0,
            latency: 50,
            pause: 50,
            clients: 6,
            keys: 1,
            end: 1_000,
            ..self.of_copies()
        }
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
