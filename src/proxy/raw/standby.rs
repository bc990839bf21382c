//! Where a raw key is kept, and how long it may be kept there. With `on_error = "standby"`, raw keys follow the guarded ones to the
//! standby server, where items end by themselves.

use std::io::Write;

use crate::guard::{Expiry, Now};
use crate::kinds::{Kind, Table};
use crate::protocol::request::{Meta, MetaVerb, Request, Store, Verb};
use crate::proxy::pipeline::Proxy;
use crate::upstream::{GetKind, OnError};

/// Where a raw key is kept now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawPlace {
    /// The index of the server.
    pub(crate) server: usize,
    /// `Some` on a standby server, and for the elements of a table with a TTL.
    pub(crate) limit: Option<TtlLimit>,
}

/// The limit of the TTL of items.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TtlLimit {
    /// In seconds, at least 1.
    seconds: u64,
    now: Now,
    /// The server is a standby server.
    is_standby: bool,
}

impl Proxy {
    /// Where a raw key of this pool is kept now. `md5`: the first eight bytes of its MD5, if known.
    pub(crate) fn raw_place(&self, key: &[u8], md5: Option<u64>, pool: usize) -> RawPlace {
        if let Some(place) = self.element_place(key) {
            return place;
        }
        let index = pool;
        let pool = &self.pools[pool];
        let home = pool.server_index_by(key, md5);
        if pool.on_error() != OnError::Standby {
            return RawPlace { server: home, limit: None };
        }
        // Without a valid view, the key stays where it is: only guarded keys must not be read then.
        let place = self.place_of_key(index, key, home);
        let limit =
            || TtlLimit { seconds: pool.standby_ttl().as_secs().max(1), now: self.now(), is_standby: true };
        RawPlace { server: place.server, limit: place.is_standby().then(limit) }
    }

    /// Where the key is kept if it is that of an element of a table: with all items of the table.
    fn element_place(&self, key: &[u8]) -> Option<RawPlace> {
        let element = self.element(key)?;
        let Kind::Table(Table { ttl }) = self.structure(&element).kind else { return None };
        let limit = TtlLimit { seconds: ttl.as_secs(), now: self.now(), is_standby: false };
        Some(RawPlace { server: element.server, limit: (!ttl.is_zero()).then_some(limit) })
    }
}

impl RawPlace {
    /// Whether keys of both places can be read by one command.
    pub(crate) fn is_same(&self, other: &RawPlace) -> bool {
        let limit = |place: &RawPlace| place.limit.map(|limit| (limit.seconds, limit.is_standby));
        (self.server, limit(self)) == (other.server, limit(other))
    }

    /// Whether it is on a standby server.
    pub(crate) fn is_standby(&self) -> bool {
        self.limit.is_some_and(|limit| limit.is_standby)
    }
}

impl TtlLimit {
    /// An exptime that ends as early as this one, and not later than the limit.
    pub(super) fn exptime(&self, exptime: i64) -> i64 {
        Expiry::of(exptime, self.now).at_most(self.seconds).exptime(0, self.now)
    }

    /// The same command, if it stores no item that lasts longer.
    pub(super) fn request<'a>(&self, request: &Request<'a>) -> Request<'a> {
        match *request {
            // These keep the exptime of the item.
            Request::Store(Store { verb: Verb::Append | Verb::Prepend, .. }) => *request,
            Request::Store(store) => Request::Store(Store { exptime: self.exptime(store.exptime), ..store }),
            Request::Touch { key, exptime, noreply } => {
                Request::Touch { key, exptime: self.exptime(exptime), noreply }
            }
            other => other,
        }
    }

    /// The same for a get that may touch.
    pub(crate) fn get(&self, kind: GetKind) -> GetKind {
        GetKind { exptime: kind.exptime.map(|exptime| self.exptime(exptime)), ..kind }
    }

    /// The flags of a meta command with limited TTLs.
    pub(super) fn flags(&self, meta: &Meta<'_>) -> Vec<u8> {
        let mut flags = Vec::with_capacity(meta.flags.len() + 16);
        for (flag, token) in meta.tokens() {
            flags.extend_from_slice(&[b' ', flag]);
            let exptime = match (flag, token) {
                (b'T' | b'N', b"-") => Some(0),
                (b'T' | b'N', token) => std::str::from_utf8(token).ok().and_then(|token| token.parse().ok()),
                _ => None,
            };
            // Writing to memory cannot fail.
            let _ = match exptime {
                Some(exptime) => write!(flags, "{}", self.exptime(exptime)),
                None => flags.write_all(token),
            };
        }
        // Without a TTL, such an item would remain for ever.
        let stores =
            meta.verb == MetaVerb::Set || meta.verb == MetaVerb::Delete && meta.token(b'x').is_some();
        if stores && meta.token(b'T').is_none() {
            let _ = write!(flags, " T{}", self.exptime(0));
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { wall: 1_700_000_000_000, mono: 0 };
    const LIMIT: TtlLimit = TtlLimit { seconds: 300, now: NOW, is_standby: true };

    #[test]
    fn no_exptime_lasts_longer_than_the_limit_and_a_shorter_one_is_kept() {
        for (exptime, expected) in [
            (0, 300),
            (-1, -1),
            (1, 1),
            (300, 300),
            (301, 300),
            (2_592_000, 300),
            (1_700_000_100, 100),
            (1_700_009_999, 300),
            (1_600_000_000, -1),
        ] {
            assert_eq!(LIMIT.exptime(exptime), expected, "{exptime}");
        }
    }

    #[test]
    fn commands_that_keep_the_exptime_of_an_item_are_unchanged() {
        let store = |verb| {
            Request::Store(Store { verb, key: b"k", flags: 1, exptime: 0, data: b"v", noreply: false })
        };
        for verb in [Verb::Set, Verb::Add, Verb::Replace, Verb::Cas(7)] {
            let Request::Store(limited) = LIMIT.request(&store(verb)) else { panic!("another request") };
            assert_eq!((limited.verb, limited.exptime, limited.data), (verb, 300, &b"v"[..]));
        }
        let touch = |exptime| Request::Touch { key: b"k", exptime, noreply: true };
        assert_eq!(LIMIT.request(&touch(0)), touch(300));
        let arith = Request::Arith { key: b"k", decr: false, delta: 1, noreply: false };
        for request in [store(Verb::Append), store(Verb::Prepend), arith] {
            assert_eq!(LIMIT.request(&request), request);
        }
        let kind = GetKind { exptime: Some(900), cas: true };
        assert_eq!(LIMIT.get(kind), GetKind { exptime: Some(300), ..kind });
        assert_eq!(LIMIT.get(GetKind::default()), GetKind::default());
    }

    #[test]
    fn meta_commands_get_a_ttl_wherever_they_could_leave_an_item_without_one() {
        let flags = |verb, flags: &str| {
            let meta = Meta { verb, key: b"k", flags: flags.as_bytes(), data: b"" };
            String::from_utf8(LIMIT.flags(&meta)).unwrap()
        };
        for (verb, sent, expected) in [
            (MetaVerb::Get, "v t c", " v t c"),
            (MetaVerb::Get, "v N0 T900", " v N300 T300"),
            (MetaVerb::Get, "N- R30", " N300 R30"),
            (MetaVerb::Set, "F5", " F5 T300"),
            (MetaVerb::Set, "T10 I", " T10 I"),
            (MetaVerb::Set, "T0", " T300"),
            (MetaVerb::Arith, "N0 J5", " N300 J5"),
            (MetaVerb::Delete, "q", " q"),
            (MetaVerb::Delete, "x", " x T300"),
            (MetaVerb::Delete, "I T900", " I T300"),
        ] {
            assert_eq!(flags(verb, sent), expected, "{sent}");
        }
    }
}
