//! Opens a connection to a server and probes its features before any command is sent over it.
//!
//! The probe tests each feature that the guard needs instead of relying on the version: a proxy in between, an option such as
//! `-C` and bugs of single releases affect them too. It uses one random key, which expires within seconds and is deleted in
//! the end.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::capabilities::{Capabilities, MissingFeature, ProbeFailure};
use super::connection_error::ConnectionError;
use super::server::Server;
use super::socket::Socket;
use crate::protocol::reply::{Frame, Framer, Garbage, Shape};
use crate::random::Random;
use crate::trace::shown_key;

/// The TTL of a probe's key in seconds, in case the connection ends before the key is deleted.
const PROBE_TTL: u32 = 10;
/// The most bytes of a server's reply to one round of a probe.
const MAX_REPLY: usize = 16 * 1024;
/// The most probes per connection. If the key of one is lost, the next uses another key.
const MAX_PROBES: usize = 3;

/// Connects to a server and probes it. A suspended server accepts connections but does not respond.
///
/// The results of earlier connections are not used: the server may have been replaced.
pub(crate) async fn open(
    server: &Server,
    random: &mut Random,
) -> Result<(Socket, Capabilities), ConnectionError> {
    let mut socket = server.connect().await?;
    let mut capabilities = Capabilities::default();
    let reading = timeout(server.request_timeout(), read_item_size(&mut socket));
    capabilities.item_size = reading.await.map_err(|_| ConnectionError::timed_out())??;
    let mut probe = Probe { socket: &mut socket, limit: server.request_timeout(), version: String::new() };
    for _ in 0..MAX_PROBES {
        let key = format!("@probe:{:016x}", random.below(u64::MAX));
        capabilities.missing_feature = probe.run(&key).await?;
        if capabilities.missing_feature != Some(LOST) {
            break;
        }
    }
    capabilities.version = probe.version;
    Ok((socket, capabilities))
}

/// Reads `item_size_max` from `stats settings`; `None` if the server does not report it.
async fn read_item_size(socket: &mut Socket) -> Result<Option<usize>, ConnectionError> {
    let mut framer = Framer::new(Shape::Stats, 0);
    let mut input = BytesMut::with_capacity(4096);
    socket.first_reply(b"stats settings\r\n", &mut input).await?;
    loop {
        if let Frame::Whole(_) =
            framer.frame(&input, &[]).map_err(|Garbage(what)| ConnectionError::Garbage(what))?
        {
            break;
        }
        if socket.read_buf(&mut input).await.map_err(ConnectionError::Io)? == 0 {
            return Err(ConnectionError::Closed);
        }
    }
    let mut lines = input[..].split(|&byte| byte == b'\n');
    let size = lines.find_map(|line| line.strip_prefix(b"STAT item_size_max "));
    Ok(size.and_then(|size| std::str::from_utf8(size).ok()?.trim().parse().ok()))
}

/// The result when the key vanished or was changed.
const LOST: MissingFeature = MissingFeature::Unknown(ProbeFailure::Lost);

struct Probe<'a, S> {
    socket: &'a mut S,
    /// The time limit of each round trip.
    limit: Duration,
    version: String,
}

/// The lines of the server's reply to one round.
struct Lines(Vec<String>);

impl Lines {
    fn get(&self, at: usize) -> &str {
        self.0.get(at).map_or("", String::as_str)
    }

    /// Why the round was inconclusive, if so.
    fn inconclusive(&self) -> Option<MissingFeature> {
        let error = self.0.iter().find_map(|line| line.strip_prefix("SERVER_ERROR"))?;
        let is_full = error.to_ascii_lowercase().contains("out of memory");
        Some(MissingFeature::Unknown(if is_full { ProbeFailure::Full } else { ProbeFailure::Refused }))
    }
}

/// The CAS in the flags of a meta reply.
fn cas(line: &str) -> Option<u64> {
    line.split(' ').find_map(|word| word.strip_prefix('c')?.parse().ok())
}

fn has(line: &str, flag: &str) -> bool {
    line.split(' ').any(|word| word == flag)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Probe<'_, S> {
    /// Runs one probe. Returns the first feature that the server lacks.
    async fn run(&mut self, key: &str) -> Result<Option<MissingFeature>, ConnectionError> {
        let missing = self.run_rounds(key).await?;
        if missing.is_some() {
            self.send(&format!("delete {key}\r\n")).await?;
        }
        Ok(missing)
    }

    async fn run_rounds(&mut self, key: &str) -> Result<Option<MissingFeature>, ConnectionError> {
        let lacks = |missing_feature| Ok(Some(missing_feature));
        let lines = self.send(&format!("mg {key} v t f c N{PROBE_TTL}\r\n")).await?;
        if let Some(why) = lines.inconclusive() {
            return lacks(why);
        }
        let stub = match cas(lines.get(0)) {
            Some(0) => return lacks(MissingFeature::Cas),
            Some(stub) if lines.get(0).starts_with("VA 0 ") => stub,
            _ if lines.get(0).starts_with("EN") => return self.no_stub_reason(key).await.map(Some),
            _ => return lacks(MissingFeature::Meta),
        };
        if !has(lines.get(0), "W") {
            return lacks(MissingFeature::Vivify);
        }

        // A single `ms`: a server without this syntax may take its data for a command.
        let lines = self.send(&format!("ms {key} 2 c ME T{PROBE_TTL}\r\nab\r\n")).await?;
        match lines.get(0) {
            _ if lines.inconclusive().is_some() => return Ok(lines.inconclusive()),
            line if line.starts_with("CLIENT_ERROR") || line.starts_with("ERROR") => {
                return lacks(MissingFeature::MetaSet);
            }
            // The stub is gone.
            line if line.starts_with("HD") => return lacks(LOST),
            line if !line.starts_with("NS") => return lacks(MissingFeature::ConditionalSet),
            _ => {}
        }
        let other = stub ^ (1 << 62);
        let set = |cas| format!("ms {key} 2 c C{cas} T{PROBE_TTL} F7\r\nab\r\n");
        let lines = self.send(&format!("{}{}", set(other), set(stub))).await?;
        let stored = match (lines.get(0), lines.get(1)) {
            _ if lines.inconclusive().is_some() => return Ok(lines.inconclusive()),
            (_, second) if second.starts_with("NF") => return lacks(LOST),
            (first, second) if first.starts_with("EX") && second.starts_with("HD") => cas(second),
            _ => return lacks(MissingFeature::ConditionalSet),
        };
        let Some(stored) = stored.filter(|stored| *stored != stub) else {
            return lacks(MissingFeature::ConditionalSet);
        };

        let mark = |cas| format!("md {key} C{cas} I T{PROBE_TTL}\r\n");
        let get = format!("mg {key} v t f c\r\n");
        let lines = self.send(&format!("{}{}{get}", mark(other), mark(stored))).await?;
        match (lines.get(0), lines.get(1)) {
            _ if lines.inconclusive().is_some() => return Ok(lines.inconclusive()),
            (_, second) if second.starts_with("NF") => return lacks(LOST),
            (first, second) if first.starts_with("EX") && second.starts_with("HD") => {}
            _ => return lacks(MissingFeature::ConditionalDelete),
        }
        let get = lines.get(2);
        let marked = match cas(get) {
            Some(marked) if has(get, "X") && has(get, "W") && has(get, "f7") && marked != stored => marked,
            _ if get.starts_with("EN") => return lacks(LOST),
            _ => return lacks(MissingFeature::StaleMark),
        };

        let delete = |cas| format!("md {key} C{cas}\r\n");
        let lines = self.send(&format!("{}{}mg {key} c\r\n", delete(stored), delete(marked))).await?;
        match (lines.get(0), lines.get(1), lines.get(2)) {
            _ if lines.inconclusive().is_some() => Ok(lines.inconclusive()),
            (_, second, _) if second.starts_with("NF") => lacks(LOST),
            (first, second, third)
                if first.starts_with("EX") && second.starts_with("HD") && third.starts_with("EN") =>
            {
                Ok(None)
            }
            _ => lacks(MissingFeature::ConditionalDelete),
        }
    }

    /// Why `mg … N` created no item. A full server that does not evict (`-M`) replies `EN` too, so the same item is stored with
    /// `set`, which reports a lack of memory.
    async fn no_stub_reason(&mut self, key: &str) -> Result<MissingFeature, ConnectionError> {
        let store = format!("set {key} 0 {PROBE_TTL} 0\r\n\r\ndelete {key}\r\n");
        let lines = self.send(&format!("{store}mg {key} v t f c N{PROBE_TTL}\r\n")).await?;
        Ok(match lines.inconclusive() {
            Some(why) => why,
            // There was no memory for the first one, and there is now.
            None if lines.get(2).starts_with("VA ") => MissingFeature::Unknown(ProbeFailure::Lost),
            None => MissingFeature::Vivify,
        })
    }

    /// Sends commands followed by `version`, whose reply marks the end of theirs whatever they are.
    async fn send(&mut self, commands: &str) -> Result<Lines, ConnectionError> {
        match timeout(self.limit, self.exchange(commands)).await {
            Ok(lines) => lines,
            Err(_) => Err(ConnectionError::timed_out()),
        }
    }

    async fn exchange(&mut self, commands: &str) -> Result<Lines, ConnectionError> {
        let commands = format!("{commands}version\r\n");
        self.socket.write_all(commands.as_bytes()).await.map_err(ConnectionError::Io)?;
        self.socket.flush().await.map_err(ConnectionError::Io)?;
        let mut input = BytesMut::with_capacity(1024);
        loop {
            if self.socket.read_buf(&mut input).await.map_err(ConnectionError::Io)? == 0 {
                return Err(ConnectionError::Closed);
            }
            let text = String::from_utf8_lossy(&input);
            if let Some(whole) = text.strip_suffix('\n') {
                let lines: Vec<&str> = whole.split('\n').map(|line| line.trim_end()).collect();
                if let Some((version, lines)) =
                    lines.split_last().and_then(|(last, lines)| Some((last.strip_prefix("VERSION ")?, lines)))
                {
                    self.version = shown_key(version.chars().take(64).collect::<String>().as_bytes());
                    // The data line of a value is not a reply line.
                    let mut data = false;
                    let lines = lines.iter().filter(|line| {
                        let is_data = std::mem::replace(&mut data, line.starts_with("VA "));
                        !is_data
                    });
                    return Ok(Lines(lines.map(|line| (*line).to_owned()).collect()));
                }
            }
            if input.len() > MAX_REPLY {
                return Err(ConnectionError::Garbage("too long a reply to a probe"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokio::io::{AsyncBufReadExt, BufStream};

    use super::*;
    use crate::upstream::spec::{Address, ServerSpec};

    /// The result of a probe of a server that replies to each round with the next of these.
    async fn probed(replies: &'static [&'static str]) -> Option<MissingFeature> {
        let (mut here, mut there) = tokio::io::duplex(4096);
        let server = tokio::spawn(async move {
            for reply in replies {
                let mut received = BytesMut::new();
                while !received.ends_with(b"version\r\n") {
                    assert!(there.read_buf(&mut received).await.unwrap() > 0);
                }
                there.write_all(format!("{reply}VERSION 1.6.x\r\n").as_bytes()).await.unwrap();
            }
        });
        let mut probe = Probe { socket: &mut here, limit: Duration::from_secs(5), version: String::new() };
        let found = probe.run("k").await.unwrap();
        server.await.unwrap();
        assert_eq!(probe.version, "1.6.x");
        found
    }

    const STUB: &str = "VA 0 t-1 f0 c5 W\r\n\r\n";
    const SET: &str = "EX c0\r\nHD c6\r\n";
    const MARKED: &str = "EX\r\nHD\r\nVA 2 t10 f7 c7 X W\r\nab\r\n";
    const DELETED: &str = "EX\r\nHD\r\nEN\r\n";
    const FULL: &str = "SERVER_ERROR out of memory storing object\r\n";
    const GONE: &str = "NOT_FOUND\r\n";

    #[tokio::test]
    async fn each_missing_feature_is_detected() {
        let cases: &[(&'static [&str], Option<MissingFeature>)] = &[
            (&[STUB, "NS c0\r\n", SET, MARKED, DELETED], None),
            (&["ERROR\r\n", GONE], Some(MissingFeature::Meta)),
            (&["EN\r\n", "STORED\r\nDELETED\r\nEN\r\n", GONE], Some(MissingFeature::Vivify)),
            (&["VA 0 t-1 f0 c5\r\n\r\n", GONE], Some(MissingFeature::Vivify)),
            (&["VA 0 t-1 f0 c0 W\r\n\r\n", GONE], Some(MissingFeature::Cas)),
            (&[STUB, "CLIENT_ERROR invalid flag\r\nERROR\r\n", GONE], Some(MissingFeature::MetaSet)),
            (&[STUB, "EX c0\r\n", GONE], Some(MissingFeature::ConditionalSet)),
            (&[STUB, "NS c0\r\n", "HD c6\r\nHD c7\r\n", GONE], Some(MissingFeature::ConditionalSet)),
            (&[STUB, "NS c0\r\n", "EX c0\r\nEX c0\r\n", GONE], Some(MissingFeature::ConditionalSet)),
            (&[STUB, "NS c0\r\n", "EX c0\r\nHD c5\r\n", GONE], Some(MissingFeature::ConditionalSet)),
            (
                &[STUB, "NS c0\r\n", SET, "EX\r\nEX\r\nVA 2 t9 f7 c6\r\nab\r\n", GONE],
                Some(MissingFeature::ConditionalDelete),
            ),
            (
                &[STUB, "NS c0\r\n", SET, "HD\r\nHD\r\nVA 2 t9 f7 c7 X W\r\nab\r\n", GONE],
                Some(MissingFeature::ConditionalDelete),
            ),
            (
                &[STUB, "NS c0\r\n", SET, "EX\r\nHD\r\nVA 2 t9 f7 c6\r\nab\r\n", GONE],
                Some(MissingFeature::StaleMark),
            ),
            (
                &[STUB, "NS c0\r\n", SET, MARKED, "EX\r\nEX\r\nHD c7\r\n", GONE],
                Some(MissingFeature::ConditionalDelete),
            ),
        ];
        for (replies, missing_feature) in cases {
            assert_eq!(probed(replies).await, *missing_feature, "{replies:?}");
        }
    }

    #[tokio::test]
    async fn a_full_server_and_one_that_loses_keys_make_the_probe_inconclusive() {
        use ProbeFailure::{Full, Lost, Refused};
        const NO_ROOM: &str = "SERVER_ERROR out of memory storing object\r\nNOT_FOUND\r\nEN\r\n";
        let cases: &[(&'static [&str], ProbeFailure)] = &[
            (&[FULL, GONE], Full),
            // The replies of memcached -M.
            (&["EN\r\n", NO_ROOM, GONE], Full),
            (&["EN\r\n", "STORED\r\nDELETED\r\nVA 0 t-1 f0 c5 W\r\n\r\n", GONE], Lost),
            (&["SERVER_ERROR backend failure\r\n", GONE], Refused),
            (&[STUB, FULL, GONE], Full),
            (&[STUB, "HD c9\r\n", GONE], Lost),
            (&[STUB, "NS c0\r\n", "EX c0\r\nSERVER_ERROR Out of memory\r\n", GONE], Full),
            (&[STUB, "NS c0\r\n", "NF\r\nNF\r\n", GONE], Lost),
            (&[STUB, "NS c0\r\n", SET, "NF\r\nNF\r\nEN\r\n", GONE], Lost),
            (&[STUB, "NS c0\r\n", SET, "EX\r\nHD\r\nEN\r\n", GONE], Lost),
            (&[STUB, "NS c0\r\n", SET, "EX\r\nSERVER_ERROR no\r\nEN\r\n", GONE], Refused),
            (&[STUB, "NS c0\r\n", SET, MARKED, "NF\r\nNF\r\nEN\r\n", GONE], Lost),
            (&[STUB, "NS c0\r\n", SET, MARKED, "EX\r\nSERVER_ERROR no\r\nEN\r\n", GONE], Refused),
        ];
        for (replies, why) in cases {
            assert_eq!(probed(replies).await, Some(MissingFeature::Unknown(*why)), "{replies:?}");
        }
    }

    /// The result for a server that replies to each `mg` with `mg`, and to each `ms` and `set` with `store`; and the number of
    /// keys that were probed.
    async fn opened(mg: &'static str, store: &'static str) -> (Option<MissingFeature>, usize) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        let spec = ServerSpec { address, weight: 1, name: None };
        let limit = Duration::from_secs(5);
        let server = Server::with_timeout(&spec, limit);
        let answering = async {
            let mut socket = BufStream::new(listener.accept().await.unwrap().0);
            let (mut keys, mut line) = (HashSet::new(), String::new());
            while socket.read_line(&mut line).await.unwrap() > 0 {
                let words: Vec<&str> = line.split_ascii_whitespace().collect();
                let reply = match words[..] {
                    ["stats", ..] => "END\r\n",
                    ["mg", key, ..] => {
                        keys.insert(key.to_owned());
                        mg
                    }
                    ["ms" | "set", ..] => store,
                    ["delete", ..] => GONE,
                    ["version"] => "VERSION 1.6.x\r\n",
                    // The data of a store.
                    _ => "",
                };
                socket.write_all(reply.as_bytes()).await.unwrap();
                if matches!(words[..], ["stats" | "version", ..]) {
                    socket.flush().await.unwrap();
                }
                line.clear();
            }
            keys.len()
        };
        let mut random = Random::seeded(7);
        let opening = async { open(&server, &mut random).await.unwrap().1.missing_feature };
        tokio::join!(opening, answering)
    }

    #[tokio::test]
    async fn an_inconclusive_probe_never_counts_as_able_to_guard() {
        let unknown = |why| Some(MissingFeature::Unknown(why));
        // Another key may not be lost.
        assert_eq!(opened(STUB, "HD c9\r\n").await, (unknown(ProbeFailure::Lost), MAX_PROBES));
        // A full server is not probed again at once.
        assert_eq!(opened(STUB, FULL).await, (unknown(ProbeFailure::Full), 1));
        assert_eq!(opened("EN\r\n", FULL).await, (unknown(ProbeFailure::Full), 1));
    }

    #[tokio::test]
    async fn the_embedded_server_has_all_features_and_keeps_no_probe_key() {
        let server = Server::embedded();
        let (mut socket, capabilities) = open(&server, &mut Random::seeded(7)).await.unwrap();
        assert_eq!(capabilities.missing_feature, None);
        assert!(
            capabilities.version.starts_with("1.6.") && capabilities.item_size.is_some(),
            "{capabilities:?}"
        );
        socket.write_all(b"stats\r\n").await.unwrap();
        let mut stats = BytesMut::new();
        while !stats.ends_with(b"END\r\n") {
            assert!(socket.read_buf(&mut stats).await.unwrap() > 0);
        }
        let stats = String::from_utf8_lossy(&stats);
        assert!(stats.contains("STAT curr_items 0\r\n"), "{stats}");
    }

    #[tokio::test]
    async fn items_of_a_probe_expire_by_themselves_and_too_long_a_reply_is_garbage() {
        let replies: [&[&str]; 2] =
            [&[STUB, "NS c0\r\n", SET, MARKED], &["EN\r\n", "STORED\r\nDELETED\r\nEN\r\n"]];
        let ended_after = |replies: &'static [&'static str]| (1..=replies.len()).map(move |n| &replies[..n]);
        for replies in replies.into_iter().flat_map(ended_after) {
            let (mut here, mut there) = tokio::io::duplex(64 * 1024);
            let server = async {
                let mut all = Vec::new();
                for reply in replies {
                    let mut received = BytesMut::new();
                    while !received.ends_with(b"version\r\n") {
                        assert!(there.read_buf(&mut received).await.unwrap() > 0);
                    }
                    all.push(String::from_utf8(received.to_vec()).unwrap());
                    there.write_all(format!("{reply}VERSION 1.6.x\r\n").as_bytes()).await.unwrap();
                }
                // The connection ends before the key is deleted.
                there.write_all(&b"VA 9\r\n".repeat(MAX_REPLY / 4)).await.unwrap();
                all
            };
            let mut probe =
                Probe { socket: &mut here, limit: Duration::from_secs(5), version: String::new() };
            let (result, rounds) = tokio::join!(probe.run("k"), server);
            assert!(
                matches!(result, Err(ConnectionError::Garbage("too long a reply to a probe"))),
                "{result:?}"
            );
            let ends = [format!("N{PROBE_TTL}"), format!("T{PROBE_TTL}"), PROBE_TTL.to_string()];
            for line in rounds.iter().flat_map(|round| round.lines()) {
                let stores = line.starts_with("ms ")
                    || line.starts_with("set ")
                    || line.contains(" I ")
                    || line.contains(" N");
                let has_end = line.split(' ').any(|word| ends.iter().any(|end| end == word));
                assert!(!stores || has_end, "{line}");
            }
            assert!(rounds[0].contains(&ends[0]));
        }
    }
}
