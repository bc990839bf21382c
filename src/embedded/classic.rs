//! The classic text commands.

use super::meta::write_number;
use super::store::{Added, Ending, Put, Store, VERSION};
use crate::protocol::request::{Keys, Request, Store as StoreRequest, Verb};

pub(super) const NOT_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

impl Store {
    /// Everything but `quit` and the meta commands.
    pub(super) fn answer_classic(&mut self, request: &Request<'_>, now: u64, out: &mut Vec<u8>) {
        let tick = self.tick(now);
        let silent_from = out.len();
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
                self.stats.cmd_flush += 1;
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
            Request::Stats { what } => {
                self.answer_stats(what, now, out);
                false
            }
            Request::Quit | Request::Meta(_) => false,
        };
        if noreply {
            out.truncate(silent_from);
        }
    }

    /// `get` and `gets`; with a `touch`, `gat` and `gats`.
    fn get(&mut self, keys: Keys<'_>, cas: bool, touch: Option<u32>, tick: u32, out: &mut Vec<u8>) {
        for key in keys.iter() {
            let found = self.find(key, tick);
            match touch {
                None => self.count_get(found.is_some()),
                Some(_) => self.count_touch(found.is_some()),
            }
            let Some(place) = found else { continue };
            self.bump(place, tick);
            if let Some(exptime) = touch {
                self.item_mut(place).exptime = exptime;
            }
            let item = self.item(place);
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(&item.key);
            out.push(b' ');
            write_number(out, u64::from(item.flags));
            out.push(b' ');
            write_number(out, item.value.len() as u64);
            if cas {
                out.push(b' ');
                write_number(out, item.cas);
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&item.value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"END\r\n");
    }

    fn store(&mut self, store: &StoreRequest<'_>, tick: u32) -> &'static [u8] {
        self.stats.cmd_set += 1;
        let exptime = self.expiry(store.exptime, tick);
        let put = Put { flags: store.flags, exptime, ..Put::of(store.verb, store.key, store.data) };
        let stored = self.put(put, tick);
        match stored {
            Ending::Stored(_) => b"STORED\r\n",
            Ending::NotStored => b"NOT_STORED\r\n",
            Ending::Exists => b"EXISTS\r\n",
            Ending::NotFound => b"NOT_FOUND\r\n",
            Ending::TooLarge | Ending::OutOfMemory => {
                // What could not be replaced must not be served either; the other verbs leave it.
                if store.verb == Verb::Set {
                    self.drop_unstorable(store.key, tick);
                }
                if stored == Ending::TooLarge {
                    self.stats.store_too_large += 1;
                    TOO_LARGE
                } else {
                    OUT_OF_MEMORY
                }
            }
        }
    }

    /// Deletes what a value that could not be stored was to replace.
    pub(super) fn drop_unstorable(&mut self, key: &[u8], tick: u32) {
        if let Some(place) = self.find(key, tick) {
            self.remove(place);
        }
    }

    fn arith(&mut self, key: &[u8], decr: bool, delta: u64, tick: u32, out: &mut Vec<u8>) {
        let added = self.add(key, decr, delta, 0, tick);
        self.count_arith(decr, added);
        match added {
            Added::InPlace(_, value) | Added::Moved(_, value) => {
                write_number(out, value);
                out.extend_from_slice(b"\r\n");
            }
            Added::NotFound | Added::Exists => out.extend_from_slice(b"NOT_FOUND\r\n"),
            Added::NotNumeric => out.extend_from_slice(NOT_NUMERIC),
        }
    }

    fn touch(&mut self, key: &[u8], exptime: u32, tick: u32) -> &'static [u8] {
        let found = self.find(key, tick);
        self.count_touch(found.is_some());
        let Some(place) = found else { return b"NOT_FOUND\r\n" };
        self.bump(place, tick);
        self.item_mut(place).exptime = exptime;
        b"TOUCHED\r\n"
    }

    fn delete(&mut self, key: &[u8], tick: u32) -> &'static [u8] {
        match self.find(key, tick) {
            Some(place) => {
                self.stats.delete_hits += 1;
                self.remove(place);
                b"DELETED\r\n"
            }
            None => {
                self.stats.delete_misses += 1;
                b"NOT_FOUND\r\n"
            }
        }
    }

    pub(super) fn count_get(&mut self, hit: bool) {
        self.stats.cmd_get += 1;
        *(if hit { &mut self.stats.get_hits } else { &mut self.stats.get_misses }) += 1;
    }

    pub(super) fn count_touch(&mut self, hit: bool) {
        self.stats.cmd_touch += 1;
        *(if hit { &mut self.stats.touch_hits } else { &mut self.stats.touch_misses }) += 1;
    }

    pub(super) fn count_arith(&mut self, decr: bool, added: Added) {
        let stats = &mut self.stats;
        match added {
            Added::InPlace(..) | Added::Moved(..) if decr => stats.decr_hits += 1,
            Added::InPlace(..) | Added::Moved(..) => stats.incr_hits += 1,
            Added::NotFound if decr => stats.decr_misses += 1,
            Added::NotFound => stats.incr_misses += 1,
            Added::NotNumeric | Added::Exists => {}
        }
    }
}
