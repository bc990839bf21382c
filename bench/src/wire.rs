//! Encodes requests, and checks that each reply has the value of the requested key.

/// Keys and their values. A value is derived from its key, and no two keys have the same.
pub(crate) struct Items {
    prefix: &'static str,
    /// All keys, concatenated, each [`KEY`] bytes.
    keys: Vec<u8>,
    /// The value of key i is `size` bytes from byte i on.
    noise: Vec<u8>,
    size: usize,
    /// What follows the key in the first line of a value.
    tail: Vec<u8>,
    exptime: u32,
    /// Whether gets are sent in the binary protocol.
    pub(crate) binary: bool,
}

const GETK: u8 = 0x0c;
const GETKQ: u8 = 0x0d;
const NOOP: u8 = 0x0a;
/// Length of the header of a binary packet.
const HEADER: usize = 24;
/// Length of a key: `kg_1:00012:page:000123`.
const KEY: usize = 22;
/// Keys per group. Tags are made of groups.
const GROUP: u32 = 10;

/// An outstanding request and the progress of its reply.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// The requested keys; one for a set.
    pub(crate) keys: Vec<u32>,
    pub(crate) set: bool,
    /// A bit for each key that has been returned.
    found: u128,
    /// The likely index of the next key: most proxies reply in the order of the request.
    next: usize,
}

/// The progress of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More of it is to come.
    Partial,
    /// This many requested keys were missing.
    Done { missing: usize },
}

impl Items {
    /// `prefix` has four bytes.
    pub(crate) fn new(prefix: &'static str, count: u32, size: usize, exptime: u32) -> Items {
        let keys: String = (0..count).map(|i| format!("{prefix}:{:05}:page:{i:06}", i / GROUP)).collect();
        assert_eq!(keys.len(), KEY * count as usize, "{prefix} is not four bytes");
        let mut noise = vec![0; count as usize + size];
        fastrand::Rng::with_seed(7).fill(&mut noise);
        Items {
            prefix,
            keys: keys.into_bytes(),
            noise,
            size,
            tail: format!(" 0 {size}\r\n").into_bytes(),
            exptime,
            binary: false,
        }
    }

    /// The pattern of a rule that matches all these keys, with the group as `{group}`.
    pub(crate) fn pattern(prefix: &str) -> String {
        format!("{prefix}:{{group}}:page:*")
    }

    pub(crate) fn count(&self) -> u32 {
        (self.keys.len() / KEY) as u32
    }

    fn key(&self, i: u32) -> &[u8] {
        &self.keys[i as usize * KEY..][..KEY]
    }

    fn value(&self, i: u32) -> &[u8] {
        &self.noise[i as usize..][..self.size]
    }

    /// Appends the request.
    pub(crate) fn write(&self, request: &Request, out: &mut Vec<u8>) {
        if request.set {
            self.write_set(request.keys[0], out);
            return;
        }
        if self.binary {
            self.write_packets(request, out);
            return;
        }
        out.extend_from_slice(b"get");
        for key in &request.keys {
            out.push(b' ');
            out.extend_from_slice(self.key(*key));
        }
        out.extend_from_slice(b"\r\n");
    }

    /// One key as `getk`, several as `getkq` and a `noop`. The opaque is the place of the key.
    fn write_packets(&self, request: &Request, out: &mut Vec<u8>) {
        let mut packet = |opcode: u8, place: usize, key: &[u8]| {
            let length = key.len() as u8;
            out.extend_from_slice(&[0x80, opcode, 0, length, 0, 0, 0, 0, 0, 0, 0, length]);
            out.extend_from_slice(&(place as u32).to_be_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(key);
        };
        match request.keys[..] {
            [key] => packet(GETK, 0, self.key(key)),
            ref keys => {
                keys.iter().enumerate().for_each(|(place, key)| packet(GETKQ, place, self.key(*key)));
                packet(NOOP, keys.len(), b"");
            }
        }
    }

    /// The same as [`Items::read`] for packets.
    fn read_packets(&self, input: &[u8], request: &mut Request) -> Result<(usize, Progress), String> {
        let mut at = 0;
        let several = request.keys.len() > 1;
        loop {
            let rest = &input[at..];
            let Some(header) = rest.get(..HEADER) else { return Ok((at, Progress::Partial)) };
            let number =
                |from: usize| u32::from_be_bytes(header[from..from + 4].try_into().unwrap_or_default());
            let (opcode, status, place) = (header[1], header[7], number(12) as usize);
            let wanted = if several { GETKQ } else { GETK };
            if header[0] != 0x81 || header[6] != 0 || ![wanted, NOOP].contains(&opcode) {
                return Err(unexpected(rest));
            }
            let whole = HEADER + number(8) as usize;
            let Some(body) = rest.get(HEADER..whole) else { return Ok((at, Progress::Partial)) };
            at += whole;
            if opcode == NOOP || (status == 1 && !several) {
                let missing = request.keys.len() - request.found.count_ones() as usize;
                return Ok((at, Progress::Done { missing }));
            }
            let Some(key) = request.keys.get(place).copied().filter(|_| status == 0) else {
                return Err(format!("not asked for: {}", unexpected(rest)));
            };
            if request.found & (1 << place) != 0 {
                return Err(format!("answered twice: {}", unexpected(rest)));
            }
            let expected = [&[0; 4], self.key(key), self.value(key)];
            if body.len() != 4 + KEY + self.size || !body.iter().eq(expected.iter().copied().flatten()) {
                return Err(format!("not this key's value: {}", unexpected(rest)));
            }
            request.found |= 1 << place;
            if !several {
                return Ok((at, Progress::Done { missing: 0 }));
            }
        }
    }

    pub(crate) fn write_set(&self, i: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"set ");
        out.extend_from_slice(self.key(i));
        out.extend_from_slice(format!(" 0 {} {}\r\n", self.exptime, self.size).as_bytes());
        out.extend_from_slice(self.value(i));
        out.extend_from_slice(b"\r\n");
    }

    /// Parses the reply to `request`. Returns how many bytes were consumed, or an error: the value of another key, a changed
    /// byte, a key that was not requested or was returned twice, an error reply.
    pub(crate) fn read(&self, input: &[u8], request: &mut Request) -> Result<(usize, Progress), String> {
        if self.binary && !request.set {
            return self.read_packets(input, request);
        }
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if request.set {
                return match rest.get(..8) {
                    Some(b"STORED\r\n") => Ok((at + 8, Progress::Done { missing: 0 })),
                    Some(_) => Err(unexpected(rest)),
                    None => Ok((at, Progress::Partial)),
                };
            }
            if rest.starts_with(b"END\r\n") {
                let missing = request.keys.len() - request.found.count_ones() as usize;
                return Ok((at + 5, Progress::Done { missing }));
            }
            let header = 6 + KEY + self.tail.len();
            let whole = header + self.size + 2;
            if rest.len() < 6.max(header) {
                // Too short for the first line of a value: an error would be shorter and complete.
                if rest.len() >= 6 && (!rest.starts_with(b"VALUE ") || rest.ends_with(b"\n")) {
                    return Err(unexpected(rest));
                }
                return Ok((at, Progress::Partial));
            }
            if !rest.starts_with(b"VALUE ") || rest[6 + KEY..header] != self.tail[..] {
                return Err(unexpected(rest));
            }
            if rest.len() < whole {
                return Ok((at, Progress::Partial));
            }
            let place = self
                .place(&rest[6..6 + KEY], request)
                .ok_or_else(|| format!("not asked for: {}", unexpected(rest)))?;
            if request.found & (1 << place) != 0 {
                return Err(format!("answered twice: {}", unexpected(rest)));
            }
            let block = &rest[header..whole];
            if block[..self.size] != *self.value(request.keys[place]) || !block.ends_with(b"\r\n") {
                return Err(format!("not this key's value: {}", unexpected(rest)));
            }
            request.found |= 1 << place;
            request.next = place + 1;
            at += whole;
        }
    }

    /// The index of this key in the request.
    fn place(&self, key: &[u8], request: &Request) -> Option<usize> {
        let likely = request.keys.get(request.next).filter(|i| self.key(**i) == key);
        match likely {
            Some(_) => Some(request.next),
            None => request.keys.iter().position(|i| self.key(*i) == key),
        }
    }

    /// For messages.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }
}

impl Request {
    /// Resets it for another request, reusing its memory. The caller fills in the keys.
    pub(crate) fn reset(&mut self, set: bool) {
        self.keys.clear();
        (self.set, self.found, self.next) = (set, 0, 0);
    }
}

fn unexpected(input: &[u8]) -> String {
    let line = input.split(|byte| *byte == b'\n').next().unwrap_or_default();
    format!("{:?}", String::from_utf8_lossy(&line[..line.len().min(80)]).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> Items {
        Items::new("test", 100, 50, 60)
    }

    fn asked(keys: &[u32]) -> Request {
        Request { keys: keys.to_vec(), ..Request::default() }
    }

    fn answer(items: &Items, key: u32, value: u32) -> Vec<u8> {
        [b"VALUE ", items.key(key), b" 0 50\r\n", items.value(value), b"\r\n"].concat()
    }

    fn end(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.extend_from_slice(b"END\r\n");
        bytes
    }

    #[test]
    fn an_answer_is_read_whatever_it_is_cut_into() {
        let items = items();
        let bytes = end([answer(&items, 9, 9), answer(&items, 4, 4)].concat());
        for step in 1..=bytes.len() {
            let (mut request, mut from) = (asked(&[4, 5, 9]), 0);
            for upto in (step..bytes.len()).step_by(step) {
                let (used, progress) = items.read(&bytes[from..upto], &mut request).unwrap();
                assert_eq!(progress, Progress::Partial, "step {step} up to {upto}");
                from += used;
            }
            let last = items.read(&bytes[from..], &mut request);
            assert_eq!(last, Ok((bytes.len() - from, Progress::Done { missing: 1 })), "step {step}");
        }
    }

    #[test]
    fn what_is_not_the_value_of_a_requested_key_is_refused() {
        let items = items();
        let read = |bytes: &[u8]| items.read(bytes, &mut asked(&[4, 5]));
        assert!(read(&answer(&items, 4, 5)).unwrap_err().contains("not this key's value"));
        assert!(read(&answer(&items, 6, 6)).unwrap_err().contains("not asked for"));
        let twice = [answer(&items, 4, 4), answer(&items, 4, 4)].concat();
        assert!(read(&twice).unwrap_err().contains("answered twice"));
        let mut cut = answer(&items, 4, 4);
        cut.remove(40);
        cut.extend_from_slice(b"END\r\n");
        assert!(read(&cut).is_err());
        let mut other_flags = answer(&items, 4, 4);
        other_flags[6 + KEY + 1] = b'1';
        assert!(read(&other_flags).is_err());
        assert!(read(b"SERVER_ERROR no\r\n").unwrap_err().contains("SERVER_ERROR no"));
    }

    #[test]
    fn packets_are_read_whatever_they_are_cut_into_and_only_if_they_are_right() {
        let items = Items { binary: true, ..items() };
        let packet = |opcode: u8, place: u8, key: u32, value: u32| {
            let body = [&[0; 4], items.key(key), items.value(value)].concat();
            let mut bytes = vec![0x81, opcode, 0, KEY as u8, 4, 0, 0, 0, 0, 0, 0, body.len() as u8];
            bytes.extend([0, 0, 0, place, 0, 0, 0, 0, 0, 0, 0, 9]);
            [bytes, body].concat()
        };
        let mut noop = vec![0; HEADER];
        (noop[0], noop[1]) = (0x81, NOOP);
        let bytes = [packet(GETKQ, 0, 4, 4), packet(GETKQ, 2, 9, 9), noop.clone()].concat();
        for step in 1..=bytes.len() {
            let (mut request, mut from) = (asked(&[4, 5, 9]), 0);
            for upto in (step..bytes.len()).step_by(step) {
                let (used, progress) = items.read(&bytes[from..upto], &mut request).unwrap();
                assert_eq!(progress, Progress::Partial, "step {step} up to {upto}");
                from += used;
            }
            let last = items.read(&bytes[from..], &mut request);
            assert_eq!(last, Ok((bytes.len() - from, Progress::Done { missing: 1 })), "step {step}");
        }
        let one = packet(GETK, 0, 4, 4);
        assert_eq!(items.read(&one, &mut asked(&[4])), Ok((one.len(), Progress::Done { missing: 0 })));
        let read = |bytes: &[u8]| items.read(bytes, &mut asked(&[4, 5])).unwrap_err();
        assert!(read(&packet(GETKQ, 0, 4, 5)).contains("not this key's value"));
        assert!(read(&packet(GETKQ, 1, 4, 4)).contains("not this key's value"));
        assert!(read(&packet(GETKQ, 7, 4, 4)).contains("not asked for"));
        let twice = [packet(GETKQ, 0, 4, 4), packet(GETKQ, 0, 4, 4)].concat();
        assert!(read(&twice).contains("answered twice"));
        read(b"SERVER_ERROR no, and some more bytes\r\n");
    }

    #[test]
    fn only_stored_is_a_valid_reply_to_a_set() {
        let items = items();
        let mut set = Request { set: true, ..asked(&[4]) };
        assert_eq!(items.read(b"STORED", &mut set), Ok((0, Progress::Partial)));
        assert_eq!(items.read(b"STORED\r\nSTORED\r\n", &mut set), Ok((8, Progress::Done { missing: 0 })));
        assert!(items.read(b"NOT_STORED\r\n", &mut set).is_err());
    }

    #[test]
    fn no_two_keys_have_the_same_value() {
        let items = items();
        for i in 0..100 {
            assert!((0..i).all(|j| items.value(i) != items.value(j) && items.key(i) != items.key(j)));
        }
    }
}
