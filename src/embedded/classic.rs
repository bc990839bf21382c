//! The classic text commands, except `stats` and `quit`.

use super::replies::{NOT_NUMERIC, OUT_OF_MEMORY, TOO_LARGE};
use super::store::{ArithOutcome, Put, Store, StoreOutcome, VERSION};
use crate::protocol::decimal::write_decimal;
use crate::protocol::request::{Keys, Request, Store as StoreRequest, Verb};

impl Store {
    /// Carries out a classic command and appends the reply.
    pub(super) fn execute_classic(&mut self, request: &Request<'_>, now: u64, out: &mut Vec<u8>) {
        let tick = self.tick(now);
        let from = out.len();
        let noreply = match *request {
            Request::Get { keys, cas } => {
                self.get(keys, cas, None, tick, out);
                false
            }
            Request::GetAndTouch { exptime, keys, cas } => {
                let exptime = self.expiry(exptime, tick);
                self.get(keys, cas, Some(exptime), tick, out);
                false
            }
            Request::Store(store) => {
                out.extend_from_slice(self.store(&store, tick));
                store.noreply
            }
            Request::Arith { key, decr, delta, noreply } => {
                self.arith(key, decr, delta, tick, out);
                noreply
            }
            Request::Touch { key, exptime, noreply } => {
                let exptime = self.expiry(exptime, tick);
                out.extend_from_slice(self.touch(key, exptime, tick));
                noreply
            }
            Request::Delete { key, noreply } => {
                out.extend_from_slice(self.delete(key, tick));
                noreply
            }
            Request::FlushAll { delay, noreply } => {
                self.counters.cmd_flush += 1;
                self.flush(delay, tick);
                out.extend_from_slice(b"OK\r\n");
                noreply
            }
            Request::Version => {
                out.extend_from_slice(b"VERSION ");
                out.extend_from_slice(VERSION.as_bytes());
                out.extend_from_slice(b"\r\n");
                false
            }
            Request::Verbosity { noreply } => {
                out.extend_from_slice(b"OK\r\n");
                noreply
            }
            Request::Stats { .. } | Request::Quit | Request::Meta(_) => false,
        };
        if noreply {
            out.truncate(from);
        }
    }

    /// `get` and `gets`; with `touch`, `gat` and `gats`.
    fn get(&mut self, keys: Keys<'_>, cas: bool, touch: Option<u32>, tick: u32, out: &mut Vec<u8>) {
        for key in keys.iter() {
            let found = self.find(key, tick);
            match touch {
                None => self.counters.count_get(found.is_some()),
                Some(_) => self.counters.count_touch(found.is_some()),
            }
            let Some(index) = found else { continue };
            self.bump(index, tick);
            if let Some(exptime) = touch {
                self.item_mut(index).exptime = exptime;
            }
            let item = self.item(index);
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(&item.key);
            out.push(b' ');
            write_decimal(out, u64::from(item.flags));
            out.push(b' ');
            write_decimal(out, item.value.len() as u64);
            if cas {
                out.push(b' ');
                write_decimal(out, item.cas);
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&item.value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"END\r\n");
    }

    fn store(&mut self, store: &StoreRequest<'_>, tick: u32) -> &'static [u8] {
        self.counters.cmd_set += 1;
        let exptime = self.expiry(store.exptime, tick);
        let put = Put { flags: store.flags, exptime, ..Put::new(store.verb, store.key, store.data) };
        let stored = self.put(put, tick);
        match stored {
            StoreOutcome::Stored(_) => b"STORED\r\n",
            StoreOutcome::NotStored => b"NOT_STORED\r\n",
            StoreOutcome::Exists => b"EXISTS\r\n",
            StoreOutcome::NotFound => b"NOT_FOUND\r\n",
            StoreOutcome::TooLarge | StoreOutcome::OutOfMemory => {
                // As in memcached, a failed `set` removes the old value. The other verbs keep it.
                if store.verb == Verb::Set {
                    self.remove_key(store.key, tick);
                }
                if stored == StoreOutcome::TooLarge {
                    self.counters.store_too_large += 1;
                    TOO_LARGE
                } else {
                    OUT_OF_MEMORY
                }
            }
        }
    }

    fn arith(&mut self, key: &[u8], decr: bool, delta: u64, tick: u32, out: &mut Vec<u8>) {
        let outcome = self.add(key, decr, delta, 0, tick);
        match outcome {
            ArithOutcome::InPlace(_, value) | ArithOutcome::Moved(_, value) => {
                self.counters.count_arith(decr, true);
                write_decimal(out, value);
                out.extend_from_slice(b"\r\n");
            }
            ArithOutcome::NotFound => {
                self.counters.count_arith(decr, false);
                out.extend_from_slice(b"NOT_FOUND\r\n");
            }
            // No CAS is compared.
            ArithOutcome::Exists => out.extend_from_slice(b"NOT_FOUND\r\n"),
            ArithOutcome::NotNumeric => out.extend_from_slice(NOT_NUMERIC),
        }
    }

    fn touch(&mut self, key: &[u8], exptime: u32, tick: u32) -> &'static [u8] {
        let found = self.find(key, tick);
        self.counters.count_touch(found.is_some());
        let Some(index) = found else { return b"NOT_FOUND\r\n" };
        self.bump(index, tick);
        self.item_mut(index).exptime = exptime;
        b"TOUCHED\r\n"
    }

    fn delete(&mut self, key: &[u8], tick: u32) -> &'static [u8] {
        match self.find(key, tick) {
            Some(index) => {
                self.counters.delete_hits += 1;
                self.remove(index);
                b"DELETED\r\n"
            }
            None => {
                self.counters.delete_misses += 1;
                b"NOT_FOUND\r\n"
            }
        }
    }
}
