//! What a server is: asked on every new connection, before anything else goes over it.
//!
//! Whether it can do what the guard needs is found out by what it does, not by its version: a proxy in between, an option such as
//! `-C` and a bug of a few releases all change that. The questions are about one random key, which lives for seconds and is deleted
//! in the end.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::capabilities::{Capabilities, Lack};
use super::server::{Server, Socket};
use crate::chance::Chance;
use crate::protocol::reply::{Frame, Framer, Garbage, Shape};

/// How long the key of a probe lives if the server is not told to delete it, in seconds.
const PROBE_TTL: u32 = 10;
/// The most bytes that a server may say to one round of a probe.
const MAX_ANSWER: usize = 16 * 1024;
/// So often the probe is repeated if its key is lost on the way, or the server has no memory for it.
const MAX_PROBES: usize = 3;

/// Why a connection ended.
#[derive(Debug)]
pub enum Broken {
    /// The system says so.
    Io(io::Error),
    /// The server closed it.
    Closed,
    /// The server sent what cannot be a reply.
    Garbage(&'static str),
    /// The server stopped answering.
    Stalled,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Io(error) => error.fmt(f),
            Broken::Closed => f.write_str("the server closed it"),
            Broken::Garbage(what) => write!(f, "the server sent {what}"),
            Broken::Stalled => f.write_str("the server stopped answering"),
        }
    }
}

/// Connects, and finds out what the server is: one that is stopped accepts connections but does not answer.
pub(crate) async fn open(
    server: &Server,
    known: Option<Lack>,
    chance: &mut Chance,
) -> Result<(Socket, Capabilities), Broken> {
    let timed_out = |_| Broken::Io(io::ErrorKind::TimedOut.into());
    let connecting = timeout(server.connect_timeout, server.connect());
    let mut socket = connecting.await.map_err(timed_out)?.map_err(Broken::Io)?;
    // Where nothing can be found out, what was known of it holds.
    let mut capabilities = Capabilities { lack: known, ..Capabilities::default() };
    let asking = timeout(server.request_timeout, ask_item_size(&mut socket));
    capabilities.item_size = asking.await.map_err(timed_out)??;
    let mut probe = Probe { socket: &mut socket, limit: server.request_timeout, version: String::new() };
    for _ in 0..MAX_PROBES {
        let key = format!("@probe:{:016x}", chance.below(u64::MAX));
        if let Some(lack) = probe.find_lack(&key).await? {
            capabilities.lack = lack;
            break;
        }
    }
    capabilities.version = probe.version;
    Ok((socket, capabilities))
}

/// Reads `item_size_max` from `stats settings`; `None` if the server does not say.
async fn ask_item_size(socket: &mut Socket) -> Result<Option<usize>, Broken> {
    socket.write_all(b"stats settings\r\n").await.map_err(Broken::Io)?;
    let mut framer = Framer::new(Shape::Stats, 0);
    let mut input = BytesMut::with_capacity(4096);
    loop {
        if socket.read_buf(&mut input).await.map_err(Broken::Io)? == 0 {
            return Err(Broken::Closed);
        }
        if let Frame::Whole(_) = framer.frame(&input, &[]).map_err(|Garbage(what)| Broken::Garbage(what))? {
            break;
        }
    }
    let mut lines = input[..].split(|&byte| byte == b'\n');
    let size = lines.find_map(|line| line.strip_prefix(b"STAT item_size_max "));
    Ok(size.and_then(|size| std::str::from_utf8(size).ok()?.trim().parse().ok()))
}

struct Probe<'a, S> {
    socket: &'a mut S,
    /// For each round trip.
    limit: Duration,
    version: String,
}

/// What the server said to one round, line by line.
struct Answers(Vec<String>);

impl Answers {
    fn line(&self, at: usize) -> &str {
        self.0.get(at).map_or("", String::as_str)
    }

    /// Whether it had no room: that says nothing of what it can do.
    fn is_unclear(&self) -> bool {
        self.0.iter().any(|line| line.starts_with("SERVER_ERROR"))
    }
}

/// The CAS in a line of meta flags.
fn cas(line: &str) -> Option<u64> {
    line.split(' ').find_map(|word| word.strip_prefix('c')?.parse().ok())
}

fn has(line: &str, flag: &str) -> bool {
    line.split(' ').any(|word| word == flag)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Probe<'_, S> {
    /// What the server lacks, if anything. `None`: it cannot be told, for the key was lost, or there was no room for it.
    async fn find_lack(&mut self, key: &str) -> Result<Option<Option<Lack>>, Broken> {
        let found = self.try_all(key).await?;
        if found != Some(None) {
            self.ask(&format!("delete {key}\r\n")).await?;
        }
        Ok(found)
    }

    async fn try_all(&mut self, key: &str) -> Result<Option<Option<Lack>>, Broken> {
        let lacks = |lack| Ok(Some(Some(lack)));
        let said = self.ask(&format!("mg {key} v t f c N{PROBE_TTL}\r\n")).await?;
        if said.is_unclear() {
            return Ok(None);
        }
        let stub = match cas(said.line(0)) {
            Some(0) => return lacks(Lack::Cas),
            Some(stub) if said.line(0).starts_with("VA 0 ") => stub,
            _ if said.line(0).starts_with("EN") => return lacks(Lack::Vivify),
            _ => return lacks(Lack::Meta),
        };
        if !has(said.line(0), "W") {
            return lacks(Lack::Vivify);
        }

        // One `ms` alone: who does not know it may take its data for commands.
        let said = self.ask(&format!("ms {key} 2 c ME T{PROBE_TTL}\r\nab\r\n")).await?;
        match said.line(0) {
            _ if said.is_unclear() => return Ok(None),
            line if line.starts_with("CLIENT_ERROR") || line.starts_with("ERROR") => {
                return lacks(Lack::MetaSet);
            }
            // The stub is gone.
            line if line.starts_with("HD") => return Ok(None),
            line if !line.starts_with("NS") => return lacks(Lack::ConditionalSet),
            _ => {}
        }
        let other = stub ^ (1 << 62);
        let set = |cas| format!("ms {key} 2 c C{cas} T{PROBE_TTL} F7\r\nab\r\n");
        let said = self.ask(&format!("{}{}", set(other), set(stub))).await?;
        let stored = match (said.line(0), said.line(1)) {
            _ if said.is_unclear() => return Ok(None),
            (_, second) if second.starts_with("NF") => return Ok(None),
            (first, second) if first.starts_with("EX") && second.starts_with("HD") => cas(second),
            _ => return lacks(Lack::ConditionalSet),
        };
        let Some(stored) = stored.filter(|stored| *stored != stub) else {
            return lacks(Lack::ConditionalSet);
        };

        let mark = |cas| format!("md {key} C{cas} I T{PROBE_TTL}\r\n");
        let look = format!("mg {key} v t f c\r\n");
        let said = self.ask(&format!("{}{}{look}", mark(other), mark(stored))).await?;
        match (said.line(0), said.line(1)) {
            (_, second) if second.starts_with("NF") => return Ok(None),
            (first, second) if first.starts_with("EX") && second.starts_with("HD") => {}
            _ => return lacks(Lack::ConditionalDelete),
        }
        let look = said.line(2);
        let marked = match cas(look) {
            Some(marked) if has(look, "X") && has(look, "W") && has(look, "f7") && marked != stored => marked,
            _ if look.starts_with("EN") => return Ok(None),
            _ => return lacks(Lack::StaleMark),
        };

        let delete = |cas| format!("md {key} C{cas}\r\n");
        let said = self.ask(&format!("{}{}mg {key} c\r\n", delete(stored), delete(marked))).await?;
        match (said.line(0), said.line(1), said.line(2)) {
            (_, second, _) if second.starts_with("NF") => Ok(None),
            (first, second, third)
                if first.starts_with("EX") && second.starts_with("HD") && third.starts_with("EN") =>
            {
                Ok(Some(None))
            }
            _ => lacks(Lack::ConditionalDelete),
        }
    }

    /// Sends commands, and `version` behind them: whatever the server makes of them, that has a known answer.
    async fn ask(&mut self, commands: &str) -> Result<Answers, Broken> {
        match timeout(self.limit, self.exchange(commands)).await {
            Ok(answers) => answers,
            Err(_) => Err(Broken::Io(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn exchange(&mut self, commands: &str) -> Result<Answers, Broken> {
        let commands = format!("{commands}version\r\n");
        self.socket.write_all(commands.as_bytes()).await.map_err(Broken::Io)?;
        let mut input = BytesMut::with_capacity(1024);
        loop {
            if self.socket.read_buf(&mut input).await.map_err(Broken::Io)? == 0 {
                return Err(Broken::Closed);
            }
            let text = String::from_utf8_lossy(&input);
            if let Some(whole) = text.strip_suffix('\n') {
                let lines: Vec<&str> = whole.split('\n').map(|line| line.trim_end()).collect();
                if let Some((version, lines)) =
                    lines.split_last().and_then(|(last, lines)| Some((last.strip_prefix("VERSION ")?, lines)))
                {
                    self.version = version.chars().filter(|c| !c.is_control()).take(64).collect();
                    // The line of data behind a value is none of the answers.
                    let mut data = false;
                    let lines = lines.iter().filter(|line| {
                        let is_data = std::mem::replace(&mut data, line.starts_with("VA "));
                        !is_data
                    });
                    return Ok(Answers(lines.map(|line| (*line).to_owned()).collect()));
                }
            }
            if input.len() > MAX_ANSWER {
                return Err(Broken::Garbage("too much to a probe"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Address, ServerSpec};

    /// What is found of a server that answers each round of a probe with the next of these.
    async fn found(answers: &'static [&'static str]) -> Option<Option<Lack>> {
        let (mut here, mut there) = tokio::io::duplex(4096);
        let server = tokio::spawn(async move {
            for answer in answers {
                let mut asked = BytesMut::new();
                while !asked.ends_with(b"version\r\n") {
                    assert!(there.read_buf(&mut asked).await.unwrap() > 0);
                }
                there.write_all(format!("{answer}VERSION 1.6.x\r\n").as_bytes()).await.unwrap();
            }
        });
        let mut probe = Probe { socket: &mut here, limit: Duration::from_secs(5), version: String::new() };
        let found = probe.find_lack("k").await.unwrap();
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
    async fn each_thing_that_a_server_lacks_is_told_apart() {
        let cases: &[(&'static [&str], Option<Lack>)] = &[
            (&[STUB, "NS c0\r\n", SET, MARKED, DELETED], None),
            (&["ERROR\r\n", GONE], Some(Lack::Meta)),
            (&["EN\r\n", GONE], Some(Lack::Vivify)),
            (&["VA 0 t-1 f0 c5\r\n\r\n", GONE], Some(Lack::Vivify)),
            (&["VA 0 t-1 f0 c0 W\r\n\r\n", GONE], Some(Lack::Cas)),
            (&[STUB, "CLIENT_ERROR invalid flag\r\nERROR\r\n", GONE], Some(Lack::MetaSet)),
            (&[STUB, "EX c0\r\n", GONE], Some(Lack::ConditionalSet)),
            (&[STUB, "NS c0\r\n", "HD c6\r\nHD c7\r\n", GONE], Some(Lack::ConditionalSet)),
            (&[STUB, "NS c0\r\n", "EX c0\r\nEX c0\r\n", GONE], Some(Lack::ConditionalSet)),
            (&[STUB, "NS c0\r\n", "EX c0\r\nHD c5\r\n", GONE], Some(Lack::ConditionalSet)),
            (
                &[STUB, "NS c0\r\n", SET, "EX\r\nEX\r\nVA 2 t9 f7 c6\r\nab\r\n", GONE],
                Some(Lack::ConditionalDelete),
            ),
            (
                &[STUB, "NS c0\r\n", SET, "HD\r\nHD\r\nVA 2 t9 f7 c7 X W\r\nab\r\n", GONE],
                Some(Lack::ConditionalDelete),
            ),
            (&[STUB, "NS c0\r\n", SET, "EX\r\nHD\r\nVA 2 t9 f7 c6\r\nab\r\n", GONE], Some(Lack::StaleMark)),
            (&[STUB, "NS c0\r\n", SET, MARKED, "EX\r\nEX\r\nHD c7\r\n", GONE], Some(Lack::ConditionalDelete)),
        ];
        for (answers, lack) in cases {
            assert_eq!(found(answers).await, Some(*lack), "{answers:?}");
        }
    }

    #[tokio::test]
    async fn a_key_that_is_lost_on_the_way_and_a_full_server_say_nothing() {
        let cases: &[&'static [&str]] = &[
            &[FULL, GONE],
            &[STUB, FULL, GONE],
            &[STUB, "HD c9\r\n", GONE],
            &[STUB, "NS c0\r\n", "NF\r\nNF\r\n", GONE],
            &[STUB, "NS c0\r\n", SET, "NF\r\nNF\r\nEN\r\n", GONE],
            &[STUB, "NS c0\r\n", SET, "EX\r\nHD\r\nEN\r\n", GONE],
            &[STUB, "NS c0\r\n", SET, MARKED, "NF\r\nNF\r\nEN\r\n", GONE],
        ];
        for answers in cases {
            assert_eq!(found(answers).await, None, "{answers:?}");
        }
    }

    #[tokio::test]
    async fn the_embedded_server_lacks_nothing_and_is_left_as_it_was() {
        let (address, second) = (Address::Embedded { limit: 1 << 20 }, Duration::from_secs(1));
        let spec = ServerSpec { address, weight: 1, name: None };
        let server = Server::new(0, &spec, second, second, || 1_700_000_000_000).unwrap();
        let (mut socket, capabilities) = open(&server, None, &mut Chance::seeded(7)).await.unwrap();
        assert_eq!(capabilities.lack, None);
        assert!(
            capabilities.version.starts_with("1.6.") && capabilities.item_size.is_some(),
            "{capabilities:?}"
        );
        socket.write_all(b"stats\r\n").await.unwrap();
        let mut said = BytesMut::new();
        while !said.ends_with(b"END\r\n") {
            assert!(socket.read_buf(&mut said).await.unwrap() > 0);
        }
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("STAT curr_items 0\r\n"), "{said}");
    }

    #[tokio::test]
    async fn whatever_a_probe_leaves_behind_ends_by_itself_and_a_server_that_says_too_much_is_garbage() {
        let answers = [STUB, "NS c0\r\n", SET, MARKED];
        for rounds in 1..=answers.len() {
            let (mut here, mut there) = tokio::io::duplex(64 * 1024);
            let server = async {
                let mut all = Vec::new();
                for answer in &answers[..rounds] {
                    let mut asked = BytesMut::new();
                    while !asked.ends_with(b"version\r\n") {
                        assert!(there.read_buf(&mut asked).await.unwrap() > 0);
                    }
                    all.push(String::from_utf8(asked.to_vec()).unwrap());
                    there.write_all(format!("{answer}VERSION 1.6.x\r\n").as_bytes()).await.unwrap();
                }
                // The connection is lost before the key is deleted: this is all that the server was told.
                there.write_all(&b"VA 9\r\n".repeat(MAX_ANSWER / 4)).await.unwrap();
                all
            };
            let mut probe =
                Probe { socket: &mut here, limit: Duration::from_secs(5), version: String::new() };
            let (found, asked) = tokio::join!(probe.find_lack("k"), server);
            assert!(matches!(found, Err(Broken::Garbage("too much to a probe"))), "{found:?}");
            let ends = [format!("N{PROBE_TTL}"), format!("T{PROBE_TTL}")];
            for line in asked.iter().flat_map(|asked| asked.lines()) {
                let leaves = line.starts_with("ms ") || line.contains(" I ") || line.contains(" N");
                let has_end = line.split(' ').any(|word| ends.iter().any(|end| end == word));
                assert!(!leaves || has_end, "{line}");
            }
            assert!(asked[0].contains(&ends[0]));
        }
    }
}
