//! One walk over the keys of the servers, in which what has one copy is counted or completed.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::walk::{FoundCopy, Wanted};
use crate::failover::View;
use crate::failover::repair::{RepairCounts, RepairStatus};
use crate::kinds::{COPY_HEADER, Outcome, complete};
use crate::protocol::reply::{Status, meta};
use crate::proxy::copy_servers::CopyServers;
use crate::proxy::pipeline::Proxy;
use crate::upstream::BatchConnection;
use crate::upstream::key_dump::{NoKeys, each_key};

/// The most bytes of keys that are kept of one walk. If a server has more, it is walked several times, each time for a part of them.
const MAX_KEPT: usize = 16 * 1024 * 1024;
/// How many copies are looked at in one round trip.
const BATCH: usize = 128;
/// How many items are completed at a time.
const AT_ONCE: usize = 16;
/// How many copies are looked at in the time of one that is stored.
const LOOKS_PER_STORE: f64 = 10.0;
/// How often a server is asked that lists its keys for somebody else, and the pause between.
const BUSY_TRIES: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// A run over the servers of a pool.
pub(super) struct Pass<'a> {
    pub(super) proxy: &'a Rc<Proxy>,
    pub(super) wanted: Wanted,
    pub(super) only_count: bool,
    pub(super) status: &'a RepairStatus,
    /// To each server.
    pub(super) servers: Vec<BatchConnection>,
    /// How long replies may take.
    pub(super) limit: Duration,
    pub(super) pace: Pace,
    pub(super) counts: RepairCounts,
}

/// Bounds how many copies are stored in a second.
pub(super) struct Pace {
    per_second: f64,
    next: Instant,
}

/// Keys, one behind the other.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// Whether there were more than fit.
    is_full: bool,
}

impl Pass<'_> {
    /// Walks all servers on which copies may be of what is missing.
    ///
    /// # Errors
    /// Not everything is known, or stored: why.
    pub(super) async fn run(&mut self) -> Result<(), String> {
        for source in self.wanted.sources() {
            // Of (n, m), the keys whose hash is n modulo m.
            let mut parts = vec![(0, 1)];
            while let Some((part, of)) = parts.pop() {
                let kept = self.walk(source, (part, of)).await?;
                if kept.is_full {
                    parts.extend([(part + of, 2 * of), (part, 2 * of)]);
                    continue;
                }
                let keys: Vec<&[u8]> = kept.keys().collect();
                for keys in keys.chunks(BATCH) {
                    self.look_at(source, keys).await?;
                }
            }
        }
        match self.counts.missing - self.counts.repaired {
            0 => Ok(()),
            _ if self.only_count => Ok(()),
            left => Err(format!("{left} copies could not be stored")),
        }
    }

    /// The keys of a server that are copies whose other copy may be missing.
    async fn walk(&self, source: usize, (part, of): (u64, u64)) -> Result<Kept, String> {
        let server = self.proxy.pools[self.wanted.pool].connections()[source].server();
        let mut tries = BUSY_TRIES;
        loop {
            let mut kept = Kept::default();
            let walked = each_key(server, |key| {
                let is_wanted = self.wanted.copy(self.proxy, source, key).is_some();
                if is_wanted && self.proxy.hash(key) % of == part {
                    kept.push(key);
                }
            });
            match walked.await {
                Ok(()) => return Ok(kept),
                Err(NoKeys::Busy) if tries > 0 => {
                    tries -= 1;
                    sleep(BUSY_PAUSE).await;
                }
                Err(why) => return Err(format!("{} {why}", server.label())),
            }
        }
    }

    /// Looks at these copies on a server, and completes what has no other one.
    async fn look_at(&mut self, source: usize, keys: &[&[u8]]) -> Result<(), String> {
        self.pace.spend(keys.len() as f64 / LOOKS_PER_STORE).await;
        self.check_places()?;
        let copies = keys.iter().filter_map(|key| Some((*key, self.wanted.copy(self.proxy, source, key)?)));
        let copies: Vec<(&[u8], FoundCopy)> = copies.collect();
        let is_there = self.are_there(copies.iter().map(|(_, copy)| copy)).await?;
        let mut alone: Vec<_> =
            copies.into_iter().zip(is_there).filter(|(_, there)| !there).map(|(copy, _)| copy).collect();
        let has_value = self.have_values(source, alone.iter().map(|(key, _)| *key).collect()).await?;
        let mut has_value = has_value.into_iter();
        alone.retain(|_| has_value.next() == Some(true));
        let missing: Vec<FoundCopy> = alone.into_iter().map(|(_, copy)| copy).collect();
        let found = missing.len() as u64;
        self.counts.looked_at += keys.len() as u64;
        self.counts.missing += found;
        self.status.found(found);
        if self.only_count || missing.is_empty() {
            return Ok(());
        }
        for some in missing.chunks(AT_ONCE) {
            self.pace.spend(some.len() as f64).await;
            self.complete(some).await;
        }
        let stored =
            self.are_there(missing.iter()).await?.into_iter().filter(|is_there| *is_there).count() as u64;
        self.counts.repaired += stored;
        self.status.stored(stored);
        Ok(())
    }

    /// Whether the other copy of each of these is there.
    async fn are_there(&mut self, copies: impl Iterator<Item = &FoundCopy>) -> Result<Vec<bool>, String> {
        let mut commands = vec![(Vec::new(), Vec::new()); self.servers.len()];
        let mut count = 0;
        for copy in copies {
            let (text, of) = &mut commands[copy.other.0];
            // It does not count as a use.
            text.extend_from_slice(b"mg ");
            text.extend_from_slice(&copy.other.1);
            text.extend_from_slice(b" s u\r\n");
            of.push(count);
            count += 1;
        }
        let mut are_there = vec![false; count];
        for (at, (text, of)) in commands.into_iter().enumerate().filter(|(_, (_, of))| !of.is_empty()) {
            for (reply, copy) in self.exchange(at, &text, of.len()).await?.iter().zip(of) {
                // A stub is no copy.
                are_there[copy] = size(reply).is_some_and(|size| size > 0);
            }
        }
        Ok(are_there)
    }

    /// Whether the copies with these keys on a server have values, which no one misses otherwise.
    async fn have_values(&mut self, at: usize, keys: Vec<&[u8]>) -> Result<Vec<bool>, String> {
        let ask = |flags: &str, keys: &mut dyn Iterator<Item = &[u8]>| -> (Vec<u8>, usize) {
            let (mut text, mut count) = (Vec::new(), 0);
            for key in keys {
                text.extend_from_slice(&[b"mg ", key, b" ", flags.as_bytes(), b"\r\n"].concat());
                count += 1;
            }
            (text, count)
        };
        let (text, count) = ask("s u", &mut keys.iter().copied());
        let sizes: Vec<_> = self.exchange(at, &text, count).await?.iter().map(|reply| size(reply)).collect();
        let is_short = |size: &Option<u64>| *size == Some(COPY_HEADER as u64);
        let mut short = keys.iter().zip(&sizes).filter(|(_, size)| is_short(size)).map(|(key, _)| *key);
        let (text, count) = ask("v u", &mut short);
        // The record of a value without bytes ends otherwise than that of none.
        let mut short = self
            .exchange(at, &text, count)
            .await?
            .into_iter()
            .map(|reply| meta(&reply).data.ends_with(b"=\n"));
        let has_value = |size: Option<u64>| match size {
            size if is_short(&size) => short.next() == Some(true),
            size => size.is_some_and(|size| size > COPY_HEADER as u64),
        };
        Ok(sizes.into_iter().map(has_value).collect())
    }

    /// Does what a read of these items does.
    async fn complete(&self, copies: &[FoundCopy]) {
        let mut running = JoinSet::new();
        for copy in copies {
            let own = copy.structure.own_key();
            let Some(servers) = CopyServers::new(self.proxy, self.wanted.pool, own) else { continue };
            let item = copy.item.clone();
            running.spawn_local(async move {
                !matches!(servers.run(&mut *complete(item)).await, Outcome::Failed(_))
            });
        }
        // Whether they are complete is looked at afterwards.
        while running.join_next().await.is_some() {}
    }

    /// Whether the keys of all servers are where they were when this run began.
    fn check_places(&self) -> Result<(), String> {
        let is_other = |(server, view): (usize, &View)| {
            self.proxy.view(self.wanted.pool, server).is_some_and(|now| now.fence != view.fence)
        };
        match self.wanted.views.iter().enumerate().any(is_other) {
            true => Err("the keys of a server have moved meanwhile".to_owned()),
            false => Ok(()),
        }
    }

    async fn exchange(&mut self, at: usize, commands: &[u8], count: usize) -> Result<Vec<Bytes>, String> {
        let mut replies = Vec::with_capacity(count);
        if count == 0 {
            return Ok(replies);
        }
        let connected = self.servers[at].connect().await;
        let all = match connected {
            Ok(_) => {
                self.servers[at].exchange(commands, count, self.limit, |reply| replies.push(reply)).await
            }
            Err(why) => Err(why),
        };
        let label = || self.proxy.pools[self.wanted.pool].connections()[at].server().label().to_owned();
        all.map(|()| replies).map_err(|_| format!("{} does not reply", label()))
    }
}

/// The size in the reply to an `mg … s`; `None`: there is no item.
fn size(reply: &[u8]) -> Option<u64> {
    let reply = meta(reply);
    reply.number(b's').filter(|_| reply.status == Status::Hd)
}

impl Pace {
    /// So many copies in a second.
    pub(super) fn new(per_second: u32) -> Pace {
        Pace { per_second: f64::from(per_second), next: Instant::now() }
    }

    /// Waits until so many more may be stored.
    async fn spend(&mut self, copies: f64) {
        sleep_until(self.next).await;
        self.next = self.next.max(Instant::now()) + Duration::from_secs_f64(copies / self.per_second);
    }
}

impl Kept {
    fn push(&mut self, key: &[u8]) {
        if self.bytes.len() + key.len() > MAX_KEPT {
            self.is_full = true;
            return;
        }
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len() as u32);
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        self.ends.iter().map(move |end| {
            let key = &self.bytes[begin..*end as usize];
            begin = *end as usize;
            key
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_up_to_a_limit() {
        let mut kept = Kept::default();
        for key in ["a", "", "bcd"] {
            kept.push(key.as_bytes());
        }
        assert_eq!(kept.keys().collect::<Vec<_>>(), [&b"a"[..], b"", b"bcd"]);
        let long = vec![b'k'; 250];
        while !kept.is_full {
            kept.push(&long);
        }
        assert!((MAX_KEPT - 250..=MAX_KEPT).contains(&kept.bytes.len()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pace_is_kept_over_many_steps() {
        let (mut pace, began) = (Pace::new(100), Instant::now());
        for _ in 0..11 {
            pace.spend(10.0).await;
        }
        assert_eq!(began.elapsed().as_millis(), 1000);
    }
}
