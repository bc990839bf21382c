//! Makes replies comparable: replaces what may differ between two servers, and nothing else.

use std::collections::HashMap;

use kennel::protocol::base64;

/// One side's CAS numbers, in the order in which they first occurred.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Several servers assign CAS numbers: two are equal only if their keys are too.
    pool: bool,
    /// Whether an item was read before, and whether it was stored under a key in base64, is not compared.
    guarded: bool,
    /// The replies are memcached's own.
    memcached: bool,
    names: HashMap<(Vec<u8>, u64), usize>,
    last: HashMap<Vec<u8>, u64>,
}

impl Names {
    /// Of one server, or of a `pool` of several.
    pub(super) fn new(pool: bool) -> Names {
        Names { pool, ..Names::default() }
    }

    /// The same, without comparing how an item was used or how its key was encoded.
    pub(super) fn guarded(self) -> Names {
        Names { guarded: true, ..self }
    }

    /// The same, without a defect of memcached: it sends an empty line after its refusal of a `get`.
    pub(super) fn memcached(self) -> Names {
        Names { memcached: true, ..self }
    }

    /// The last CAS of `key`.
    pub(super) fn last(&self, key: &[u8]) -> Option<u64> {
        let decoded = || base64::decode(key).filter(|_| self.guarded);
        self.last.get(key).or_else(|| self.last.get(&decoded()?)).copied()
    }

    /// The replies with CAS numbers by name, times rounded to a thousand seconds, and the version without its number.
    pub(super) fn normalise(&mut self, replies: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(replies.len());
        let mut rest = replies;
        while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
            let (line, mut behind) = (&rest[..end], &rest[end + 2..]);
            if self.memcached && line == b"CLIENT_ERROR bad command line format" {
                behind = behind.strip_prefix(b"\r\n").unwrap_or(behind);
            }
            let block = self.line(line, &mut out);
            out.extend_from_slice(b"\r\n");
            let taken = block.map_or(0, |length| (length + 2).min(behind.len()));
            out.extend_from_slice(&behind[..taken]);
            rest = &behind[taken..];
        }
        out.extend_from_slice(rest);
        out
    }

    /// One line. Returns the length of the data block after it.
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        match words[0] {
            b"VALUE" if words.len() == 5 => {
                out.extend_from_slice(&words[..4].join(&b' '));
                let name = self.name(Some(words[1]), words[4]);
                out.extend_from_slice(format!(" {name}").as_bytes());
                number(words[3]).map(|length| length as usize)
            }
            b"VALUE" if words.len() == 4 => {
                out.extend_from_slice(line);
                number(words[3]).map(|length| length as usize)
            }
            b"VERSION" => {
                out.extend_from_slice(b"VERSION");
                None
            }
            b"ME" => {
                for (at, word) in words.iter().enumerate() {
                    let key = words.get(1).copied();
                    let word = match word.split_at(word.len().min(4)) {
                        // What is left, preceded by a minus.
                        (b"exp=", time) if at > 1 && time.len() > 2 => {
                            [b"exp=", &about(time.strip_prefix(b"-").unwrap_or(time))[..]].concat()
                        }
                        (b"cas=", cas) if at > 1 => format!("cas={}", self.name(key, cas)).into_bytes(),
                        _ if at > 1 && word.starts_with(b"la=") => b"la=".to_vec(),
                        _ => word.to_vec(),
                    };
                    out.extend_from_slice(if at > 0 { b" " } else { b"" });
                    out.extend_from_slice(&word);
                }
                None
            }
            b"VA" | b"HD" | b"NF" | b"NS" | b"EX" => {
                let flags = if words[0] == b"VA" { 2 } else { 1 };
                let key = words.iter().skip(flags).find_map(|word| word.strip_prefix(b"k"));
                let spelled = self.guarded && words.iter().skip(flags).any(|word| word == b"b");
                let decoded = key.filter(|_| spelled).and_then(base64::decode);
                let key = decoded.as_deref().or(key);
                for (at, word) in words.iter().enumerate() {
                    let word = match word.split_first() {
                        Some((b'b', _)) if at >= flags && decoded.is_some() => continue,
                        Some((b'k', _)) if at >= flags && decoded.is_some() => {
                            [b"k", key.unwrap_or_default()].concat()
                        }
                        Some((b'c', cas)) if at >= flags => format!("c{}", self.name(key, cas)).into_bytes(),
                        Some((b't', time)) if at >= flags => [b"t", &about(time)[..]].concat(),
                        Some((b'l', _)) if at >= flags => b"l".to_vec(),
                        Some((b'h', _)) if at >= flags && self.guarded => b"h".to_vec(),
                        _ => word.to_vec(),
                    };
                    out.extend_from_slice(if at > 0 { b" " } else { b"" });
                    out.extend_from_slice(&word);
                }
                (words[0] == b"VA").then(|| number(words.get(1)?)).flatten().map(|length| length as usize)
            }
            _ => {
                out.extend_from_slice(line);
                None
            }
        }
    }

    /// The name of a CAS. With a pool, one without a known key has none.
    fn name(&mut self, key: Option<&[u8]>, cas: &[u8]) -> String {
        let Some(number) = number(cas) else { return cas.escape_ascii().to_string() };
        if number == 0 {
            return "0".to_owned();
        }
        if let Some(key) = key {
            self.last.insert(key.to_vec(), number);
        }
        let scope = match (self.pool, key) {
            (false, _) => Vec::new(),
            (true, Some(key)) => key.to_vec(),
            (true, None) => return "?".to_owned(),
        };
        let next = self.names.len();
        format!("#{}", self.names.entry((scope, number)).or_insert(next))
    }
}

/// Two servers' seconds do not change together, and a run takes time: a long remaining time is rounded to a thousand seconds, and
/// one of decades to decades. Other times are exact.
fn about(time: &[u8]) -> Vec<u8> {
    match number(time) {
        Some(seconds) if seconds > 100_000_000 => b"~far".to_vec(),
        Some(seconds) if seconds > 0 => format!("~{}000", (seconds + 500) / 1000).into_bytes(),
        _ => time.to_vec(),
    }
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

#[test]
fn only_what_two_servers_may_say_differently_is_replaced() {
    let replies = b"VALUE k 0 8 77\r\nHD c5 c6\r\n\r\nHD c77 t9987 l4 kk Ot3\r\nVA 2 c78 t-1\r\nc9\r\nEN\r\nVERSION 1.6.18\r\n\
        ME k exp=-1 la=3 cas=78 fetch=no cls=1 size=64\r\n17\r\n";
    let same = b"VALUE k 0 8 #0\r\nHD c5 c6\r\n\r\nHD c#0 t~10000 l kk Ot3\r\nVA 2 c#1 t-1\r\nc9\r\nEN\r\nVERSION\r\n\
        ME k exp=-1 la= cas=#1 fetch=no cls=1 size=64\r\n17\r\n";
    let mut names = Names::new(false);
    assert_eq!(names.normalise(replies).escape_ascii().to_string(), same.escape_ascii().to_string());
    assert_eq!(names.last(b"k"), Some(78));
}

#[test]
fn only_memcached_may_say_an_empty_line_and_only_behind_one_error() {
    let replies = b"CLIENT_ERROR bad command line format\r\n\r\nMN\r\n\r\n";
    let normalised = |mut names: Names| names.normalise(replies).escape_ascii().to_string();
    assert_eq!(normalised(Names::new(false)), replies.escape_ascii().to_string());
    assert_eq!(
        normalised(Names::new(false).memcached()),
        r"CLIENT_ERROR bad command line format\r\nMN\r\n\r\n"
    );
}

#[test]
fn over_a_pool_a_number_is_the_same_only_with_its_key() {
    let mut names = Names::new(true);
    let replies = b"VALUE a 0 0 7\r\n\r\nVALUE b 0 0 7\r\n\r\nHD c7\r\nHD c7 ka\r\n";
    let same = b"VALUE a 0 0 #0\r\n\r\nVALUE b 0 0 #1\r\n\r\nHD c?\r\nHD c#0 ka\r\n";
    assert_eq!(names.normalise(replies).escape_ascii().to_string(), same.escape_ascii().to_string());
}
