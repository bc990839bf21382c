//! The closed sets that labels are drawn from. A label never holds a key, a tag or anything else a client sends.

/// An enum whose variants are the values of one label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of their indices.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// The label's value, as it stands in an exposition.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }
    };
}

label! {
    /// What a client asked. Names are memcached's own.
    Command {
        /// `get`
        Get = "get",
        /// `gets`
        Gets = "gets",
        /// `gat`
        Gat = "gat",
        /// `gats`
        Gats = "gats",
        /// `set`
        Set = "set",
        /// `add`
        Add = "add",
        /// `replace`
        Replace = "replace",
        /// `append`
        Append = "append",
        /// `prepend`
        Prepend = "prepend",
        /// `cas`
        Cas = "cas",
        /// `delete`
        Delete = "delete",
        /// `incr`
        Incr = "incr",
        /// `decr`
        Decr = "decr",
        /// `touch`
        Touch = "touch",
        /// `mg`
        MetaGet = "mg",
        /// `ms`
        MetaSet = "ms",
        /// `md`
        MetaDelete = "md",
        /// `ma`
        MetaArith = "ma",
        /// `mn`
        MetaNoop = "mn",
        /// `me`
        MetaDebug = "me",
        /// `flush_all`
        FlushAll = "flush_all",
        /// `version`
        Version = "version",
        /// `verbosity`
        Verbosity = "verbosity",
        /// `stats`
        Stats = "stats",
        /// `quit`
        Quit = "quit",
        /// What the parser refused, or a command too rare for a word of its own.
        Other = "other",
    }
}

label! {
    /// What the client was told.
    Outcome {
        /// A fresh value, at once or after a wait.
        Hit = "hit",
        /// A value that has outlived its expiry, or a tag of it moved.
        Stale = "stale",
        /// A miss that makes this client the one who rebuilds.
        MissWon = "miss_won",
        /// A miss although someone else is rebuilding: there was nothing to serve, and waiting did not help.
        MissHeld = "miss_held",
        /// A miss without a lease: a raw key, a dead server, or a key that is claimed and never filled.
        Miss = "miss",
        /// `STORED`, and it was.
        Stored = "stored",
        /// `NOT_STORED`.
        NotStored = "not_stored",
        /// `STORED`, but an invalidation came first and the value was dropped.
        FillDropped = "fill_dropped",
        /// `DELETED`.
        Deleted = "deleted",
        /// `NOT_FOUND` to a write.
        NotFound = "not_found",
        /// `TOUCHED`.
        Touched = "touched",
        /// `EXISTS`: the CAS has moved.
        Exists = "exists",
        /// The number an `incr`, `decr` or `ma` left.
        Counted = "counted",
        /// A tag was bumped.
        Bumped = "bumped",
        /// `OK`, `VERSION`, statistics: an answer that no key's state decides.
        Ok = "ok",
        /// `ERROR`: not a command.
        Error = "error",
        /// `CLIENT_ERROR`: the client's mistake.
        ClientError = "client_error",
        /// `SERVER_ERROR`: a server's failure, or ours.
        ServerError = "server_error",
    }
}

label! {
    /// Every way a lease can end.
    LeaseEnd {
        /// Its fill was stored.
        Filled = "filled",
        /// The winner gave it back: a delete, or a set that expires at once.
        Released = "released",
        /// The winner's connection closed.
        Disconnected = "disconnected",
        /// `max_rebuild` passed without a fill.
        Expired = "expired",
        /// Its fill came and was dropped.
        Dropped = "dropped",
        /// This sidecar granted another for the same key, so this one was dead.
        Superseded = "superseded",
        /// A renewal found its stub or lock gone: evicted, invalidated or taken over, or its server restarted.
        Lost = "lost",
        /// Its connection, or all of them, held too many.
        Limit = "limit",
        /// This sidecar stopped.
        Shutdown = "shutdown",
    }
}

label! {
    /// Every way waiting for another client's fill can end.
    WaitEnd {
        /// The fill came.
        Filled = "filled",
        /// `cold_wait` or `stale_wait` passed.
        TimedOut = "timed_out",
        /// The client pipelined another request behind the waiting one.
        Hurried = "hurried",
        /// The lease ended without a fill.
        Freed = "freed",
    }
}

label! {
    /// Why a fill was not kept.
    DropReason {
        /// The key's CAS moved: it was invalidated or overwritten during the rebuild.
        Changed = "changed",
        /// The key is gone: deleted, flushed or evicted during the rebuild, or that took longer than `max_rebuild`.
        Gone = "gone",
        /// The server was down when the miss was told: nothing is known of what stood there. The client is told `SERVER_ERROR`.
        Unreachable = "unreachable",
        /// Its connection was told more misses than are remembered. The client is told `SERVER_ERROR`.
        Unknown = "unknown",
    }
}

label! {
    /// How a request to a server ended.
    UpstreamOutcome {
        /// It was answered, whatever the answer.
        Ok = "ok",
        /// No answer within `request_timeout`.
        Timeout = "timeout",
        /// No connection, or it closed before the answer.
        Down = "down",
        /// The answer was not memcached's protocol; the connection was closed.
        Garbage = "garbage",
        /// Not sent: too many requests were already waiting for this server.
        Overloaded = "overloaded",
        /// Not sent: the server cannot do what the guard needs.
        Unguarded = "unguarded",
    }
}

label! {
    /// What a client was told that must give a user and a password.
    AuthOutcome {
        /// It is let in.
        Accepted = "accepted",
        /// The user or the password is wrong.
        Wrong = "wrong",
        /// It sent a `set`, but of nothing that could be a user and a password.
        Malformed = "malformed",
        /// It sent another command before either.
        Missing = "missing",
    }
}

label! {
    /// How a TLS handshake with a client ended.
    TlsOutcome {
        /// Both sides agreed.
        Done = "done",
        /// The client spoke something else, wanted something else, or had no certificate that it must have.
        Failed = "failed",
        /// It took too long.
        TimedOut = "timed_out",
        /// It was not begun: too many were in progress.
        Crowded = "crowded",
    }
}

label! {
    /// A limit that what clients do can reach.
    Limit {
        /// A client was not read for a while: too many of its requests were on their way.
        Requests = "requests",
        /// A client was not read for a while: it had not taken the answers it was sent.
        Untaken = "untaken",
        /// A client was hung up on: `max_buffered` was passed, and it held most.
        Buffered = "buffered",
        /// A client was hung up on: it did nothing for `idle_timeout`.
        Idle = "idle",
        /// A value was refused: no server takes one so large.
        Value = "value",
        /// A client was hung up on: its command line was too long, or became wrong after part of it had been answered.
        Line = "line",
        /// A lease was given back, or what was seen at a miss forgotten: too many were held, by whoever held most.
        Tickets = "tickets",
        /// A connection was told more misses than are remembered for it.
        Misses = "misses",
        /// A reader did not wait for another's fill: too many did.
        Waiters = "waiters",
        /// A hit was not kept for as long as its rule's `near`: there was no room in `near.memory`.
        Near = "near",
    }
}

label! {
    /// Which connection was told the miss that a `set` may end.
    PairedWith {
        /// The one that the `set` came on.
        Own = "own",
        /// Another one.
        Other = "other",
        /// None.
        None = "none",
    }
}

label! {
    /// How clients of a listener use their connections, as far as that was learnt.
    ClientsAre {
        /// Each reads and writes on one.
        Single = "single",
        /// They take any one of a pool.
        Pooled = "pooled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_label_value_is_a_distinct_word_at_its_own_index() {
        macro_rules! check {
            ($($name:ident)+) => {$(
                let words: HashSet<_> = $name::ALL.iter().map(|v| v.word()).collect();
                assert_eq!(words.len(), $name::ALL.len(), "{words:?}");
                assert!($name::ALL.iter().enumerate().all(|(i, &v)| v as usize == i));
                assert!(words.iter().all(|w| w.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')), "{words:?}");
            )+};
        }
        check!(Command Outcome LeaseEnd WaitEnd DropReason UpstreamOutcome AuthOutcome TlsOutcome Limit PairedWith ClientsAre);
    }
}
