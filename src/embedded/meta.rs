//! The meta commands: `mg`, `ms`, `md`, `ma`, `mn`, `me`.
//!
//! A reply has its flags in the order of the request. Flags that change the item act in the same order, so `t T100` returns
//! the old TTL and `T100 t` the new one.

use std::borrow::Cow;

use super::items::Item;
use super::number;
use super::replies::{NOT_NUMERIC, OUT_OF_MEMORY, TOO_LARGE};
use super::store::{ArithOutcome, MAX_ITEM, Put, Store, StoreOutcome};
use crate::protocol::base64;
use crate::protocol::decimal::write_decimal;
use crate::protocol::meta::exptime;
use crate::protocol::request::{Meta, MetaVerb, Verb};

const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";

/// The flags of one command. The parser has checked them; a token that is no number counts as absent.
struct Flags<'a> {
    meta: &'a Meta<'a>,
    binary: bool,
    quiet: bool,
    value: bool,
    /// Do not update the last use and the fetched mark.
    no_bump: bool,
    invalidate: bool,
    /// `md x`: keep the item, drop its value.
    empty: bool,
    mode: u8,
    vivify: Option<u32>,
    ttl: Option<u32>,
    recache: u32,
    compare: Option<u64>,
    new_cas: Option<u64>,
    client_flags: u32,
    initial: u64,
    delta: u64,
}

impl<'a> Flags<'a> {
    fn read(meta: &'a Meta<'a>, store: &Store, tick: u32) -> Flags<'a> {
        let exptime = |token| Some(store.expiry(exptime(token), tick));
        let mut flags = Flags {
            meta,
            binary: false,
            quiet: false,
            value: false,
            no_bump: false,
            invalidate: false,
            empty: false,
            mode: 0,
            vivify: None,
            ttl: None,
            recache: 0,
            compare: None,
            new_cas: None,
            client_flags: 0,
            initial: 0,
            delta: 1,
        };
        for (flag, token) in meta.tokens() {
            match flag {
                b'b' => flags.binary = true,
                b'q' => flags.quiet = true,
                b'v' => flags.value = true,
                b'u' => flags.no_bump = true,
                b'I' => flags.invalidate = true,
                b'x' => flags.empty = true,
                b'M' => flags.mode = token.first().copied().unwrap_or(0),
                b'N' => flags.vivify = exptime(token),
                b'T' => flags.ttl = exptime(token),
                b'R' => flags.recache = exptime(token).unwrap_or(0),
                b'C' => flags.compare = number::unsigned(token),
                b'E' => flags.new_cas = number::unsigned(token),
                b'F' => flags.client_flags = number::unsigned(token).unwrap_or(0) as u32,
                b'J' => flags.initial = number::unsigned(token).unwrap_or(0),
                b'D' => flags.delta = number::unsigned(token).unwrap_or(1),
                _ => {}
            }
        }
        flags
    }

    /// The key to look up; `None` if it is invalid base64.
    fn key(&self) -> Option<Cow<'a, [u8]>> {
        if self.binary {
            base64::decode(self.meta.key).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(self.meta.key))
        }
    }

    /// Writes the flags `O` and `k`, and the end of the line.
    fn write_end(&self, key: &[u8], out: &mut Vec<u8>) {
        for (flag, token) in self.meta.tokens() {
            match flag {
                b'O' => write_flag(out, b'O', token),
                b'k' => write_key(out, key, self.binary),
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

impl Store {
    /// Carries out a meta command and appends the reply.
    pub(super) fn execute_meta(&mut self, meta: &Meta<'_>, now: u64, out: &mut Vec<u8>) {
        let tick = self.tick(now);
        match meta.verb {
            MetaVerb::Noop => return out.extend_from_slice(b"MN\r\n"),
            MetaVerb::Debug => return self.meta_debug(meta, tick, out),
            MetaVerb::Get | MetaVerb::Set | MetaVerb::Delete | MetaVerb::Arith => {}
        }
        let flags = Flags::read(meta, self, tick);
        let Some(key) = flags.key() else { return out.extend_from_slice(BAD_KEY) };
        match meta.verb {
            MetaVerb::Get => self.meta_get(&key, &flags, tick, out),
            MetaVerb::Set => self.meta_set(&key, &flags, tick, out),
            MetaVerb::Delete => self.meta_delete(&key, &flags, tick, out),
            _ => self.meta_arith(&key, &flags, tick, out),
        }
    }

    fn meta_get(&mut self, key: &[u8], flags: &Flags<'_>, tick: u32, out: &mut Vec<u8>) {
        let mut found = self.find(key, tick);
        let created = found.is_none() && flags.vivify.is_some();
        if created {
            // As in memcached, the created item is not marked as having a binary key.
            let stub = Put { new_cas: flags.new_cas, ..Put::new(Verb::Set, key, b"") };
            match self.put(stub, tick) {
                StoreOutcome::Stored(_) => found = self.find_stored(key),
                _ => return out.extend_from_slice(OUT_OF_MEMORY),
            }
        }
        match flags.ttl {
            None => self.counters.count_get(found.is_some()),
            Some(_) => self.counters.count_touch(found.is_some()),
        }
        let Some(index) = found else {
            if !flags.quiet {
                out.extend_from_slice(b"EN");
                flags.write_end(key, out);
            }
            return;
        };
        let mut won = false;
        let item = self.item_mut(index);
        // A client that sends the current CAS has the value already.
        let value = flags.value && flags.compare != Some(item.cas);
        write_status(out, value.then_some(item.value.len()));
        for (flag, token) in flags.meta.tokens() {
            match flag {
                b'T' => item.exptime = flags.ttl.unwrap_or(item.exptime),
                b'N' if created => {
                    item.exptime = flags.vivify.unwrap_or(item.exptime);
                    won = true;
                }
                b'R' if !item.won && !created && item.exptime != 0 && item.exptime < flags.recache => {
                    won = true
                }
                b's' => write_count(out, b's', item.value.len() as u64),
                b't' => write_ttl(out, item.exptime, tick),
                b'c' => write_count(out, b'c', item.cas),
                b'f' => write_count(out, b'f', u64::from(item.flags)),
                b'l' => write_count(out, b'l', u64::from(tick.wrapping_sub(item.time))),
                b'h' => write_count(out, b'h', u64::from(item.fetched)),
                b'O' => write_flag(out, b'O', token),
                b'k' => write_key(out, &item.key, item.binary),
                _ => {}
            }
        }
        if item.won {
            out.extend_from_slice(b" Z");
        }
        if item.stale {
            out.extend_from_slice(b" X");
            won |= !item.won;
        }
        if won {
            out.extend_from_slice(b" W");
            item.won = true;
        }
        out.extend_from_slice(b"\r\n");
        if value {
            out.extend_from_slice(&item.value);
            out.extend_from_slice(b"\r\n");
        }
        if !flags.no_bump {
            self.bump(index, tick);
        }
    }

    fn meta_set(&mut self, key: &[u8], flags: &Flags<'_>, tick: u32, out: &mut Vec<u8>) {
        self.counters.cmd_set += 1;
        // An append that may create the item becomes an `add` if there is none.
        let creates =
            flags.vivify.filter(|_| matches!(flags.mode, b'A' | b'P') && self.find(key, tick).is_none());
        let verb = match (flags.mode, flags.compare) {
            (b'E', _) => Verb::Add,
            (b'A' | b'P', _) if creates.is_some() => Verb::Add,
            (b'A', _) => Verb::Append,
            (b'P', _) => Verb::Prepend,
            (_, Some(compare)) => Verb::Cas(compare),
            (b'R', None) => Verb::Replace,
            (_, None) => Verb::Set,
        };
        let stored = self.put(
            Put {
                flags: flags.client_flags,
                exptime: creates.or(flags.ttl).unwrap_or(0),
                compare: flags.compare.unwrap_or(0),
                invalidate: flags.invalidate,
                binary: flags.binary,
                // For `ms`, 0 means none.
                new_cas: flags.new_cas.filter(|&cas| cas != 0),
                ..Put::new(verb, key, flags.meta.data)
            },
            tick,
        );
        let (code, cas): (&[u8], u64) = match stored {
            StoreOutcome::Stored(_) if flags.quiet => return,
            StoreOutcome::Stored(cas) => (b"HD", cas),
            StoreOutcome::NotStored => (b"NS", 0),
            StoreOutcome::Exists => (b"EX", 0),
            StoreOutcome::NotFound => (b"NF", 0),
            StoreOutcome::TooLarge => {
                self.counters.store_too_large += 1;
                self.remove_key(key, tick);
                return out.extend_from_slice(TOO_LARGE);
            }
            StoreOutcome::OutOfMemory => {
                self.remove_key(key, tick);
                return out.extend_from_slice(OUT_OF_MEMORY);
            }
        };
        out.extend_from_slice(code);
        let stored = self.find_stored(key).filter(|_| code == b"HD");
        let size = stored.map_or(flags.meta.data.len(), |index| self.item(index).value.len());
        for (flag, token) in flags.meta.tokens() {
            match flag {
                b'O' => write_flag(out, b'O', token),
                b'k' => write_key(out, key, flags.binary),
                b'c' => write_count(out, b'c', cas),
                b's' => write_count(out, b's', size as u64),
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    fn meta_delete(&mut self, key: &[u8], flags: &Flags<'_>, tick: u32, out: &mut Vec<u8>) {
        let found = self.find(key, tick);
        let code: &[u8] = match found {
            None => b"NF",
            Some(index) if flags.compare.is_some_and(|compare| compare != self.item(index).cas) => b"EX",
            Some(index) if flags.invalidate || flags.empty => {
                if flags.empty {
                    // Without `E`, the CAS is kept.
                    let new_cas = flags.new_cas.or(Some(self.item(index).cas));
                    let (exptime, client_flags) = (flags.ttl.unwrap_or(0), flags.client_flags);
                    let tombstone =
                        Put { flags: client_flags, exptime, new_cas, ..Put::new(Verb::Set, key, b"") };
                    self.put(tombstone, tick);
                }
                if flags.invalidate
                    && let Some(index) = self.find_stored(key)
                {
                    let cas = flags.new_cas.unwrap_or_else(|| self.next_cas());
                    let item = self.item_mut(index);
                    item.exptime = flags.ttl.unwrap_or(item.exptime);
                    item.stale = true;
                    item.won = false;
                    item.cas = cas;
                }
                b"HD"
            }
            Some(index) => {
                self.counters.delete_hits += 1;
                self.remove(index);
                b"HD"
            }
        };
        if code != b"HD" {
            self.counters.delete_misses += 1;
        } else if flags.quiet {
            return;
        }
        out.extend_from_slice(code);
        flags.write_end(key, out);
    }

    fn meta_arith(&mut self, key: &[u8], flags: &Flags<'_>, tick: u32, out: &mut Vec<u8>) {
        let decr = matches!(flags.mode, b'D' | b'-');
        let outcome = self.add(key, decr, flags.delta, flags.compare.unwrap_or(0), tick);
        let (index, value, created, moved) = match outcome {
            ArithOutcome::InPlace(index, value) => (index, value, false, false),
            ArithOutcome::Moved(index, value) => (index, value, false, true),
            ArithOutcome::NotNumeric => return out.extend_from_slice(NOT_NUMERIC),
            ArithOutcome::Exists => {
                out.extend_from_slice(b"EX");
                return flags.write_end(key, out);
            }
            ArithOutcome::NotFound if flags.vivify.is_none() => {
                self.counters.count_arith(decr, false);
                out.extend_from_slice(b"NF");
                return flags.write_end(key, out);
            }
            ArithOutcome::NotFound => {
                let initial = flags.initial.to_string();
                let put = Put { new_cas: flags.new_cas, ..Put::new(Verb::Add, key, initial.as_bytes()) };
                let stored = self.put(put, tick);
                match (stored, self.find_stored(key)) {
                    (StoreOutcome::Stored(_), Some(index)) => (index, flags.initial, true, false),
                    _ => return out.extend_from_slice(b"SERVER_ERROR Out of memory allocating new item\r\n"),
                }
            }
        };
        self.counters.count_arith(decr, !created);
        let cas = flags.new_cas.unwrap_or(self.item(index).cas);
        // If the number did not fit, memcached sets the CAS and the TTL of the old item, which it has just removed.
        if !moved {
            self.item_mut(index).cas = cas;
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value);
        let from = out.len();
        write_status(out, flags.value.then_some(digits.len()));
        let item = self.item_mut(index);
        let mut exptime = item.exptime;
        for (flag, token) in flags.meta.tokens() {
            match flag {
                b'c' => write_count(out, b'c', cas),
                b't' => write_ttl(out, exptime, tick),
                b'T' => exptime = flags.ttl.unwrap_or(exptime),
                b'N' if created => exptime = flags.vivify.unwrap_or(exptime),
                b'O' => write_flag(out, b'O', token),
                b'k' => write_key(out, key, flags.binary),
                _ => {}
            }
        }
        if !moved {
            item.exptime = exptime;
        }
        out.extend_from_slice(b"\r\n");
        if flags.value {
            out.extend_from_slice(digits.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        if flags.quiet {
            out.truncate(from);
        }
    }

    fn meta_debug(&mut self, meta: &Meta<'_>, tick: u32, out: &mut Vec<u8>) {
        let binary = meta.tokens().next() == Some((b'b', b""));
        let decoded = if binary { base64::decode(meta.key) } else { Some(meta.key.to_vec()) };
        let Some(key) = decoded else {
            return out.extend_from_slice(b"CLIENT_ERROR bad command line format\r\n");
        };
        self.counters.cmd_meta += 1;
        let Some(index) = self.find(&key, tick) else { return out.extend_from_slice(b"EN\r\n") };
        let item = self.item(index);
        out.extend_from_slice(b"ME ");
        if item.binary {
            base64::encode(&item.key, out);
        } else {
            out.extend_from_slice(&item.key);
        }
        let exp = if item.exptime == 0 { -1 } else { i64::from(item.exptime) - i64::from(tick) };
        let size = Item::total(&item.key, item.flags, item.value.len());
        let rest = format!(
            " exp={exp} la={} cas={} fetch={} cls={} size={size}\r\n",
            tick.wrapping_sub(item.time),
            item.cas,
            if item.fetched { "yes" } else { "no" },
            slab_class(size),
        );
        out.extend_from_slice(rest.as_bytes());
    }
}

/// The slab class of an item of this size in memcached, whose chunk sizes grow by a quarter from 96 bytes.
fn slab_class(size: usize) -> u32 {
    let (mut class, mut chunk) = (1, 96_usize);
    while chunk < size && chunk < MAX_ITEM / 2 {
        chunk = (chunk * 5 / 4).next_multiple_of(8);
        class += 1;
    }
    class
}

/// Writes `VA <size>` or `HD`.
fn write_status(out: &mut Vec<u8>, value: Option<usize>) {
    match value {
        Some(length) => {
            out.extend_from_slice(b"VA ");
            write_decimal(out, length as u64);
        }
        None => out.extend_from_slice(b"HD"),
    }
}

fn write_flag(out: &mut Vec<u8>, flag: u8, token: &[u8]) {
    out.extend_from_slice(&[b' ', flag]);
    out.extend_from_slice(token);
}

fn write_count(out: &mut Vec<u8>, flag: u8, count: u64) {
    out.extend_from_slice(&[b' ', flag]);
    write_decimal(out, count);
}

fn write_key(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    out.extend_from_slice(b" k");
    if binary {
        base64::encode(key, out);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Writes `t`: the remaining seconds, or -1 for unlimited. For an item that expired in this command, they wrap around at 32 bits.
fn write_ttl(out: &mut Vec<u8>, exptime: u32, tick: u32) {
    match exptime {
        0 => out.extend_from_slice(b" t-1"),
        _ => write_count(out, b't', u64::from(exptime.wrapping_sub(tick))),
    }
}
