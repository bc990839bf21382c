//! What happens to a key, as watchers see it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::metrics::{Command, LeaseEnd, Outcome};

/// Who sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A client on TCP.
    Tcp(SocketAddr),
    /// A client on a Unix socket, by its process id if that is known.
    Unix(Option<u32>),
    /// The sidecar itself: no client asked.
    Sidecar,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Unix(Some(process)) => write!(f, "unix:{process}"),
            Peer::Unix(None) => f.write_str("unix"),
            Peer::Sidecar => f.write_str("-"),
        }
    }
}

/// What has become of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A request was answered.
    Answered(Command, Outcome),
    /// A lease ended without a value.
    Released(LeaseEnd),
}

impl Happened {
    /// The client's command; `-` if there is none.
    pub fn command(self) -> &'static str {
        match self {
            Happened::Answered(command, _) => command.word(),
            Happened::Released(_) => "-",
        }
    }

    /// What became of it: an `outcome` of `kennel_requests_total`, or an `end` of `kennel_leases_total`.
    pub fn outcome(self) -> &'static str {
        match self {
            Happened::Answered(_, outcome) => outcome.word(),
            Happened::Released(end) => end.word(),
        }
    }
}

/// What is known of a request's effect besides its outcome, for the letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// On a standby server.
    pub failed_over: bool,
    /// The client received a lease before the value expired.
    pub early: bool,
    /// A lease ended with this value.
    pub unlocked: bool,
}

/// The letters of one event, in the order in which it happened: at most 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Letters {
    bytes: [u8; 4],
    length: usize,
}

impl Letters {
    /// `M` miss, `L` claim, `W` fill, `U` unlock, `H` hit; `S` stale served, `E` early refresh, `T` tag moved, `D` delete, `x` fill
    /// dropped, `F` failed over, `!` error. None for a command that neither reads nor changes a value.
    pub fn of(happened: Happened, marks: Marks) -> Letters {
        let mut letters = Letters { bytes: [0; 4], length: 0 };
        if marks.failed_over {
            letters.push("F");
        }
        letters.push(match happened {
            Happened::Released(_) => "U",
            Happened::Answered(command, outcome) => match outcome {
                Outcome::Hit => "H",
                Outcome::Stale | Outcome::Outage => "S",
                Outcome::MissWon if marks.early => "EL",
                Outcome::MissWon => "ML",
                Outcome::MissHeld | Outcome::Miss => "M",
                Outcome::Stored | Outcome::Counted if marks.unlocked => "WU",
                Outcome::Stored | Outcome::Counted => "W",
                Outcome::FillDropped => "x",
                Outcome::Deleted => "D",
                Outcome::NotFound if matches!(command, Command::Delete | Command::MetaDelete) => "D",
                Outcome::Bumped => "T",
                Outcome::Error | Outcome::ClientError | Outcome::ServerError => "!",
                Outcome::NotStored | Outcome::NotFound | Outcome::Touched | Outcome::Exists | Outcome::Ok => {
                    ""
                }
            },
        });
        letters
    }

    fn push(&mut self, letters: &str) {
        for byte in letters.bytes() {
            self.bytes[self.length] = byte;
            self.length += 1;
        }
    }

    /// In the order in which they were pushed.
    pub fn as_str(&self) -> &str {
        // Only ASCII letters are pushed.
        str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

/// What is known where something happens. Borrowed, because most events match no filter.
#[derive(Debug, Clone, Copy)]
pub struct Sighting<'a> {
    /// The key, as the client sent it.
    pub key: &'a [u8],
    /// Value of the label `rule`.
    pub rule: &'a Arc<str>,
    /// Its kind; `none` for no rule.
    pub kind: &'static str,
    /// The server's name in the configuration; `None` if the request needed no server.
    pub server: Option<&'a str>,
    /// The name of the server's pool.
    pub pool: &'a Arc<str>,
    /// Who sent the request.
    pub client: Peer,
    /// What happened.
    pub happened: Happened,
    /// The time since the request was parsed; for the end of a lease, since the lease began if that is known.
    pub took: Duration,
    /// The length of the value in bytes; 0 if there is none.
    pub bytes: usize,
    /// What the outcome does not tell and the letters show.
    pub marks: Marks,
}

/// One event, as it is sent to a watcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When it happened, in milliseconds of Unix time.
    pub at_ms: u64,
    /// The key, as `log.keys` permits.
    pub key: Box<[u8]>,
    /// Value of the label `rule`.
    pub rule: Arc<str>,
    /// Its kind; `none` for no rule.
    pub kind: &'static str,
    /// The server, if one was needed.
    pub server: Option<Box<str>>,
    /// Pool of the server.
    pub pool: Arc<str>,
    /// Who sent the request.
    pub client: Peer,
    /// What happened.
    pub happened: Happened,
    /// As in [`Sighting`].
    pub took: Duration,
    /// The length of the value in bytes.
    pub bytes: usize,
    /// The event in short, as `kennel trace --letters` prints it.
    pub letters: Letters,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_the_letters_of_the_page() {
        let get = |outcome| Happened::Answered(Command::Get, outcome);
        let letters = |happened, marks| Letters::of(happened, marks).as_str().to_owned();
        let plain = Marks::default();
        for (outcome, expected) in [
            (Outcome::Hit, "H"),
            (Outcome::Stale, "S"),
            (Outcome::Outage, "S"),
            (Outcome::MissWon, "ML"),
            (Outcome::MissHeld, "M"),
            (Outcome::Miss, "M"),
            (Outcome::Stored, "W"),
            (Outcome::FillDropped, "x"),
            (Outcome::Deleted, "D"),
            (Outcome::Bumped, "T"),
            (Outcome::ServerError, "!"),
            (Outcome::NotFound, ""),
            (Outcome::Ok, ""),
        ] {
            assert_eq!(letters(get(outcome), plain), expected, "{outcome:?}");
        }
        assert_eq!(letters(Happened::Answered(Command::Delete, Outcome::NotFound), plain), "D");
        assert_eq!(letters(get(Outcome::MissWon), Marks { early: true, ..plain }), "EL");
        assert_eq!(letters(get(Outcome::Stored), Marks { unlocked: true, ..plain }), "WU");
        assert_eq!(letters(Happened::Released(LeaseEnd::Expired), plain), "U");
        let all = Marks { failed_over: true, early: true, unlocked: true };
        assert!(Outcome::ALL.iter().all(|outcome| letters(get(*outcome), all).starts_with('F')));
    }
}
