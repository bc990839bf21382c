//! The labels with a fixed set of values. A label never contains a key, a tag or anything else that a client sends.

/// Declares an enum whose variants are the values of one label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// All values, in the order of their indices.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// Value of the label, as exported.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }
    };
}

label! {
    /// A client's command, by memcached's name.
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
        /// A line that the parser rejected, or a command without a label of its own.
        Other = "other",
    }
}

label! {
    /// The reply to a client.
    Outcome {
        /// A fresh value, possibly after a wait.
        Hit = "hit",
        /// A value after its soft expiry, or whose tag was bumped.
        Stale = "stale",
        /// A value that another client built while the key's server gave no answer.
        Outage = "outage",
        /// A miss that grants this client the lease.
        MissWon = "miss_won",
        /// A miss while another client rebuilds: there was no value to serve, and none arrived in time.
        MissHeld = "miss_held",
        /// A miss without a lease: a raw key, a server that is down, or a key that is claimed but not filled.
        Miss = "miss",
        /// `STORED`, and the value was stored.
        Stored = "stored",
        /// `NOT_STORED`.
        NotStored = "not_stored",
        /// `STORED`, but the value was dropped because the key was invalidated during the rebuild.
        FillDropped = "fill_dropped",
        /// `DELETED`.
        Deleted = "deleted",
        /// `NOT_FOUND`, in reply to a write.
        NotFound = "not_found",
        /// `TOUCHED`.
        Touched = "touched",
        /// `EXISTS`: the CAS value has changed.
        Exists = "exists",
        /// A number, in reply to `incr`, `decr` or `ma`.
        Counted = "counted",
        /// A tag was bumped.
        Bumped = "bumped",
        /// `OK`, `VERSION`, statistics: a reply that depends on no key.
        Ok = "ok",
        /// `ERROR`: an unknown command.
        Error = "error",
        /// `CLIENT_ERROR`: an invalid request.
        ClientError = "client_error",
        /// `SERVER_ERROR`: a failure of a server or of Kennel.
        ServerError = "server_error",
    }
}

label! {
    /// Why a value that was served is stale: the first of these that holds.
    StaleReason {
        /// It was stored under a fence that does not count: its server has failed over or back since.
        Fence = "fence",
        /// One of its tags was bumped.
        Tag = "tag",
        /// The version of one of its tags could not be read.
        TagUnread = "tag_unread",
        /// Its soft expiry has passed.
        Expired = "expired",
        /// It is only marked as stale on its server, by `md … I`.
        Marked = "marked",
    }
}

label! {
    /// Why a lease ended.
    LeaseEnd {
        /// Its fill was stored.
        Filled = "filled",
        /// The winner released it: a delete, or a set that expires at once.
        Released = "released",
        /// The winner's connection closed.
        Disconnected = "disconnected",
        /// `max_rebuild` passed without a fill.
        Expired = "expired",
        /// Its fill was dropped.
        Dropped = "dropped",
        /// This sidecar granted another lease for the same key, so this one had been lost, or another client has taken it over
        /// because it had lasted for `cold_wait`.
        Superseded = "superseded",
        /// A renewal did not find its stub or lock: evicted, invalidated, or the server restarted.
        Lost = "lost",
        /// Its connection, or all connections together, held too many.
        Limit = "limit",
        /// The sidecar shut down.
        Shutdown = "shutdown",
    }
}

label! {
    /// Why a wait for another client's fill ended.
    WaitEnd {
        /// The fill was stored.
        Filled = "filled",
        /// `cold_limit` or `stale_wait` passed.
        TimedOut = "timed_out",
        /// The winner had had `cold_wait`, so this request was let through to build the value too.
        LetThrough = "let_through",
        /// The client pipelined another request after the waiting one.
        Pipelined = "pipelined",
        /// The lease ended without a fill.
        Freed = "freed",
        /// All connections of its client process waited, and the process needed one for a build of its own.
        GaveWay = "gave_way",
        /// The client closed the connection.
        HungUp = "hung_up",
        /// Clients of its listener have hung up after waits that were a little longer.
        Shortened = "shortened",
    }
}

label! {
    /// Why a fill was dropped.
    DropReason {
        /// The key's CAS value changed: it was invalidated or overwritten during the rebuild.
        Changed = "changed",
        /// The key is gone: deleted, flushed or evicted during the rebuild, or the rebuild took longer than `max_rebuild`.
        Gone = "gone",
        /// The server did not answer the miss, or had no memory, so the state of the key was unknown. The client receives `SERVER_ERROR`.
        Unread = "unread",
        /// Its connection received more misses than are remembered. The client receives `SERVER_ERROR`.
        Unknown = "unknown",
    }
}

label! {
    /// How a request to a server ended.
    UpstreamOutcome {
        /// The server replied, whatever the reply.
        Ok = "ok",
        /// No reply within `request_timeout`.
        Timeout = "timeout",
        /// There was no connection, or it closed before the reply.
        Down = "down",
        /// The reply violated the protocol; the connection was closed.
        Garbage = "garbage",
        /// Not sent: too many requests were queued for this server.
        Overloaded = "overloaded",
        /// Not sent: the server does not support what the guard needs.
        Unguarded = "unguarded",
    }
}

label! {
    /// Why an attempt to connect to a server failed.
    ConnectFailure {
        /// The address refused it, has no route, or is a name that cannot be resolved.
        Unreachable = "unreachable",
        /// No connection within `connect_timeout`, or no reply within `request_timeout`.
        Timeout = "timeout",
        /// The server closed the connection before its first replies were complete.
        Closed = "closed",
        /// The first replies violated the protocol.
        Garbage = "garbage",
        /// The TLS handshake took longer than `connect_timeout`.
        TlsTimeout = "tls_timeout",
        /// The server does not speak TLS.
        TlsMissing = "tls_missing",
        /// The server speaks TLS, and the pool does not.
        TlsRequired = "tls_required",
        /// No known CA has signed the server's certificate.
        UnknownCa = "unknown_ca",
        /// The server's certificate is no longer valid, or not yet.
        Expired = "expired",
        /// The server's certificate is for another name.
        WrongName = "wrong_name",
        /// The server's certificate has another fault.
        Certificate = "certificate",
        /// The server requires a client certificate, or refused that of the pool.
        ClientCertificate = "client_certificate",
        /// The TLS handshake failed for another reason.
        Tls = "tls",
        /// The server refused the user or the password.
        Password = "password",
        /// The server requires a password, and the pool has none.
        PasswordRequired = "password_required",
    }
}

label! {
    /// How a TLS handshake with a server began its session.
    TlsSession {
        /// With an exchange of keys and certificates.
        Full = "full",
        /// From an earlier session with the same server.
        Resumed = "resumed",
    }
}

label! {
    /// Whether a server answers in time.
    HealthState {
        /// It does.
        Healthy = "healthy",
        /// It does not: requests to it fail at once.
        Sick = "sick",
        /// It was sick, and gets a part of its requests.
        HalfOpen = "half_open",
    }
}

label! {
    /// How an authentication attempt of a client ended.
    AuthOutcome {
        /// The credentials are right.
        Accepted = "accepted",
        /// The user or the password is wrong.
        Wrong = "wrong",
        /// The client sent a `set` whose data has no user and password.
        Malformed = "malformed",
        /// The client sent another command first.
        Missing = "missing",
        /// A client was disconnected after too many wrong passwords.
        CutOff = "cut_off",
        /// A client was disconnected because it had sent no valid password in time.
        TimedOut = "timed_out",
    }
}

label! {
    /// How a TLS handshake with a client ended.
    TlsOutcome {
        /// It succeeded.
        Done = "done",
        /// The client did not use TLS, shared no version or cipher, or lacked a required certificate.
        Failed = "failed",
        /// It took too long.
        TimedOut = "timed_out",
        /// Not started: too many were in progress.
        TooMany = "too_many",
    }
}

label! {
    /// Why a command was answered `SERVER_ERROR`.
    ErrorCause {
        /// There was no connection to the server.
        Down = "down",
        /// The server did not reply in time.
        Timeout = "timeout",
        /// Too many commands waited for the server, or too many writers changed the key.
        Overloaded = "overloaded",
        /// The server does not support what the guard needs.
        Unguarded = "unguarded",
        /// The server had no memory.
        NoMemory = "no_memory",
        /// The value is larger than an item may be.
        TooLarge = "too_large",
        /// The server sent another error, or an invalid reply.
        Refused = "refused",
        /// It was not known which server has the key.
        NoView = "no_view",
        /// A set after a miss for which the item or a tag was not read.
        Unread = "unread",
        /// A set after a miss on a connection with more misses than are remembered.
        Misses = "misses",
        /// A list, the names of a table, or a slot of a log is full.
        Full = "full",
        /// The connection has too many locks.
        Locks = "locks",
        /// The answer would be larger than an item may be.
        Answer = "answer",
        /// The server lost an item during the command.
        Lost = "lost",
        /// The item was stored past Kennel.
        Foreign = "foreign",
    }
}

label! {
    /// A limit that clients can reach.
    Limit {
        /// Reading from a client was paused: too many of its requests were in progress.
        Requests = "requests",
        /// Reading from a client was paused: it did not read its replies.
        UnreadReplies = "unread",
        /// A client was disconnected: `max_buffered` was exceeded, and it held most.
        Buffered = "buffered",
        /// A client that had not authenticated was disconnected: too many had not, or all connections were in use, and a new client
        /// came.
        Unauthenticated = "unauthenticated",
        /// A client was disconnected: it was idle for `idle_timeout`.
        Idle = "idle",
        /// A value was refused as too large for any server.
        Value = "value",
        /// A client was disconnected: its command line was too long, or became invalid after part of it was answered.
        Line = "line",
        /// A lease was released or a miss token removed: there were too many, and its connection held most.
        MissTokens = "miss_tokens",
        /// A connection received more misses than are remembered for it.
        Misses = "misses",
        /// A reader did not wait for another client's fill: too many did already.
        Waiters = "waiters",
        /// A hit was not kept for the whole `near` of its rule: there was no room in `near.memory`.
        Near = "near",
        /// A value was not kept for the whole `outage_ttl` of its rule: there was no room in `near.memory`.
        Outage = "outage",
        /// An `add` was refused: its connection had too many locks.
        Locks = "locks",
        /// A miss of an observed key was forgotten: too many had not been followed by a store.
        Observed = "observed",
        /// Half a change of copies, or the release of a lock, was left as it was: too many waited for their servers.
        Unfinished = "unfinished",
    }
}

label! {
    /// How a lock ended that a client had.
    LockEnd {
        /// Its client deleted it.
        Released = "released",
        /// Its client's connection closed.
        Disconnected = "disconnected",
        /// It was gone, or another client's, when it was renewed or released.
        Lost = "lost",
        /// No server carried out the release, tried again and again until the TTL was over: the lock has ended by itself. Or too many
        /// releases waited already: it will.
        Unreleased = "unreleased",
    }
}

label! {
    /// Which connection received the miss that a `set` may end.
    PairedWith {
        /// The connection of the `set`.
        Own = "own",
        /// Another connection.
        Other = "other",
        /// No connection.
        None = "none",
    }
}

label! {
    /// How the clients of a listener use their connections, as detected.
    ClientMode {
        /// Each reads and writes on one connection.
        Single = "single",
        /// They use any connection of a pool for each command.
        Pooled = "pooled",
    }
}

label! {
    /// Where the keys of a server are kept.
    Place {
        /// On the server itself.
        Own = "own",
        /// On its standby servers.
        Standby = "standby",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_label_value_is_distinct_and_at_its_own_index() {
        macro_rules! check {
            ($($name:ident)+) => {$(
                let words: HashSet<_> = $name::ALL.iter().map(|v| v.word()).collect();
                assert_eq!(words.len(), $name::ALL.len(), "{words:?}");
                assert!($name::ALL.iter().enumerate().all(|(i, &v)| v as usize == i));
                assert!(words.iter().all(|w| w.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')), "{words:?}");
            )+};
        }
        check!(HealthState ConnectFailure TlsSession Command Outcome LeaseEnd WaitEnd DropReason UpstreamOutcome AuthOutcome TlsOutcome Limit PairedWith ClientMode Place);
    }
}
