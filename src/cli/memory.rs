//! What the process can grow to. The estimate has what the configuration sets; clients can make the process hold at most
//!
//! ```text
//! listen.max_buffered × up to 2                                requests, replies, and miss tokens; buffers grow by doubling
//! + listen.max_connections × READ_SIZE × 2                     what is left in buffers that are not empty
//! + workers × MAX_POOLED                                       unused buffers
//! + connections to servers × (MAX_OUTPUT + MAX_PART × value)   writes to a server, and the one reply being read
//! + near.memory × 2                                            values kept by near, and by outage_ttl
//! + MAX_OUTAGE_KEYS × (key + 400 bytes + 100 per tag)          keys whose server gives no answer
//! + workers × (MAX_ENTRIES of tags.cache + MAX_ENDED)          names and numbers
//! + workers × MAX_UNFINISHED × (key + owner + 1 KiB)           half changes of copies, and releases of locks, tried again
//! + SHARDS × MAX_KEYS × (key + 600 bytes)                      keys claimed and not filled within the last minute
//! + workers × (MAX_GROUPS + 1) × 5 × COUNTERS × (key + 60 bytes)   hot keys
//! + workers × MAX_FAMILIES × 2 KiB                             families of observed keys
//! + MAX_OPEN × 250 bytes                                       misses of observed keys that no store has followed, 8 MiB
//! + MAX_WATCHERS × MAX_WAITING × (key + 250 bytes)             events that wait for a watcher
//! ```
//!
//! with `workers` connections to each server, and values as large as the servers accept.

use std::fmt;

use crate::config::Config;
use crate::upstream::{Address, PoolSpec, ServerSpec};

/// Code, threads and what an idle process holds, in bytes.
const BASE: u64 = 16 << 20;
/// What a connected client takes at most besides its requests and replies, in bytes.
const PER_CLIENT: u64 = 2 * 8 * 1024;

/// The memory that a process with this configuration may take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    buffered: u64,
    clients: u64,
    kept: u64,
    embedded: u64,
}

impl Memory {
    pub(super) fn of(config: &Config) -> Memory {
        let near = config.near.memory as u64;
        let embedded = |server: &ServerSpec| match server.address {
            Address::Embedded { limit } => limit,
            _ => 0,
        };
        Memory {
            // Buffers grow by doubling.
            buffered: 2 * config.listen.max_buffered as u64,
            clients: config.listen.max_connections as u64 * PER_CLIENT,
            kept: if config.uses_near_cache() { 2 * near } else { near },
            embedded: config.pools.iter().flat_map(PoolSpec::all_servers).map(embedded).sum(),
        }
    }

    fn total(self) -> u64 {
        BASE + self.buffered + self.clients + self.kept + self.embedded
    }

    /// A warning if that is more than the limit of the process.
    pub(super) fn warning(self, limit: Option<u64>) -> Option<String> {
        let limit = limit.filter(|limit| *limit < self.total())?;
        Some(format!(
            "the process can grow to about {}, which is more than the memory limit of {}: lower listen.max_connections, \
             listen.max_buffered or near.memory, or raise the limit",
            about(self.total()),
            about(limit)
        ))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory { buffered, clients, kept, embedded } = *self;
        write!(
            f,
            "Memory: at most about {}: {} for requests and replies",
            about(self.total()),
            about(buffered)
        )?;
        write!(f, ", {} for the connections of clients, {} for values kept", about(clients), about(kept))?;
        if embedded > 0 {
            write!(f, ", {} for the embedded memcached", about(embedded))?;
        }
        f.write_str(". A server that is slow to take what is sent to it adds up to 64MiB for each worker.")
    }
}

/// A size in whole MiB.
fn about(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_and_a_limit_below_is_a_warning() {
        let text = "[listen]\nmax_buffered = \"32MiB\"\nmax_connections = 640\n[near]\nmemory = \"4MiB\"\n\
                    [pools.main]\nservers = [\"a:1\"]\n[[rules]]\nname = \"r\"\nmatch = \"*\"\n";
        let memory = |text: &str| Memory::of(&Config::read("k.toml", text, []).unwrap());
        let total = |text: &str| memory(text).total() >> 20;
        assert_eq!(total(text), 16 + 64 + 10 + 4);
        assert_eq!(total(&format!("{text}near = \"1s\"\n")), 16 + 64 + 10 + 8);
        assert_eq!(total(&text.replace("a:1", "embedded:8MiB")), 16 + 64 + 10 + 4 + 8);
        let shown = memory(text).to_string();
        assert!(shown.starts_with("Memory: at most about 94MiB: 64MiB for requests"), "{shown}");
        assert_eq!([None, Some(94 << 20)].map(|limit| memory(text).warning(limit)), [None, None]);
        let warning = memory(text).warning(Some(93 << 20)).unwrap();
        assert!(warning.contains("94MiB") && warning.contains("93MiB"), "{warning}");
    }
}
