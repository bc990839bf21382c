//! What the configuration endpoint of an ElastiCache or Memorystore cluster says.
//!
//! ```text
//! config get cluster            CONFIG cluster 0 LENGTH     VALUE AmazonElastiCache:cluster 0 LENGTH
//! get AmazonElastiCache:cluster VERSION                     VERSION
//!                               HOST|IP|PORT HOST|IP|PORT   HOST|IP|PORT HOST|IP|PORT
//!                               (an empty line, END)        (an empty line, END)
//! ```

use std::fmt;

use crate::upstream::Address;

/// Asks for the servers.
pub(super) const CONFIG_GET: &[u8] = b"config get cluster\r\n";
/// Asks engines before 1.4.14 for the servers.
pub(super) const KEY_GET: &[u8] = b"get AmazonElastiCache:cluster\r\n";
/// The longest reply, in bytes.
pub(super) const MAX_REPLY: usize = 256 * 1024;

/// The servers of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cluster {
    /// Grows with each change.
    pub(super) version: u64,
    /// The servers, in the order of the reply.
    pub(super) servers: Vec<Address>,
}

/// What a reply is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Its end has not arrived.
    Incomplete,
    /// The endpoint does not know the command, or the key.
    Unknown,
    Found(Cluster),
}

/// Why a reply is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadReply(String);

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses as much of a reply as has arrived. `address` makes an address of `host:port`, or says what is wrong with it.
///
/// # Errors
/// It is no such reply.
pub(super) fn parse(
    reply: &[u8],
    address: impl Fn(&str) -> Result<Address, String>,
) -> Result<Reply, BadReply> {
    let bad = |why: &str| BadReply(format!("the reply to config get cluster {why}"));
    if reply.len() > MAX_REPLY {
        return Err(bad("is too long"));
    }
    let Some(end) = reply.windows(2).position(|two| two == b"\r\n") else { return Ok(Reply::Incomplete) };
    let line = String::from_utf8_lossy(&reply[..end]).into_owned();
    let words: Vec<&str> = line.split(' ').collect();
    let length = match words[..] {
        ["CONFIG", "cluster", _, length] | ["VALUE", "AmazonElastiCache:cluster", _, length] => length,
        ["END"] | ["ERROR"] => return Ok(Reply::Unknown),
        ["CLIENT_ERROR", ..] => return Ok(Reply::Unknown),
        _ => return Err(BadReply(format!("the endpoint has replied {:?}", short(&line)))),
    };
    let length: usize = length.parse().map_err(|_| bad("has no length"))?;
    if length > MAX_REPLY {
        return Err(bad("is too long"));
    }
    let rest = &reply[end + 2..];
    let Some(ended) = rest.get(length..) else { return Ok(Reply::Incomplete) };
    match ended {
        b"\r\nEND\r\n" => {}
        partial if b"\r\nEND\r\n".starts_with(partial) => return Ok(Reply::Incomplete),
        _ => return Err(bad("does not end where it says")),
    }
    let text = std::str::from_utf8(&rest[..length]).map_err(|_| bad("is no text"))?;
    let mut lines = text.lines();
    let version =
        lines.next().and_then(|line| line.trim().parse().ok()).ok_or_else(|| bad("has no version"))?;
    let server = |entry: &str| match entry.split('|').collect::<Vec<_>>()[..] {
        [host, ip, port] => {
            let host = if host.is_empty() { ip } else { host };
            let host = host.trim_end_matches('.').to_ascii_lowercase();
            let text = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            address(&text).map_err(|why| BadReply(format!("the server {:?} {why}", short(entry))))
        }
        _ => Err(BadReply(format!("{:?} is no server", short(entry)))),
    };
    let servers = lines.next().unwrap_or_default().split_whitespace().map(server);
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    if lines.any(|line| !line.trim().is_empty()) {
        return Err(bad("has more than two lines"));
    }
    Ok(Reply::Found(Cluster { version, servers }))
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<Address, String> {
        let (host, port) = text.rsplit_once(':').ok_or("has no port")?;
        match port.parse() {
            Ok(port) if port > 0 => Ok(Address::Tcp { host: host.trim_matches(['[', ']']).into(), port }),
            _ => Err("has no valid port".into()),
        }
    }

    fn config(body: &str) -> Vec<u8> {
        format!("CONFIG cluster 0 {}\r\n{body}\r\nEND\r\n", body.len()).into_bytes()
    }

    fn found(reply: &[u8]) -> (u64, Vec<String>) {
        match parse(reply, address) {
            Ok(Reply::Found(Cluster { version, servers })) => {
                (version, servers.iter().map(Address::to_string).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_commands_give_the_version_and_the_servers_by_host_name_or_else_by_address() {
        let body = "12\nc.0001.use1.cache.amazonaws.com|10.82.235.120|11211 C.0002.x.|10.80.249.27|11212 |10.0.0.3|11211 |fd00::3|1\n";
        let expected =
            ["c.0001.use1.cache.amazonaws.com:11211", "c.0002.x:11212", "10.0.0.3:11211", "[fd00::3]:1"];
        assert_eq!(found(&config(body)), (12, expected.map(str::to_owned).to_vec()));
        let old = format!("VALUE AmazonElastiCache:cluster 0 {}\r\n{body}\r\nEND\r\n", body.len());
        assert_eq!(found(old.as_bytes()).1.len(), 4);
        // Memorystore repeats the address, and ends without a line end.
        assert_eq!(found(&config("1\n10.0.0.1|10.0.0.1|11211")), (1, vec!["10.0.0.1:11211".to_owned()]));
        assert_eq!(found(&config("3\n\n")), (3, vec![]));
    }

    #[test]
    fn any_part_of_a_reply_is_incomplete_and_what_knows_neither_command_says_so() {
        let reply = config("12\na|10.0.0.1|11211 b|10.0.0.2|11211\n");
        for end in 0..reply.len() {
            assert_eq!(parse(&reply[..end], address), Ok(Reply::Incomplete), "{end}");
        }
        for unknown in ["ERROR\r\n", "END\r\n", "CLIENT_ERROR unknown\r\n"] {
            assert_eq!(parse(unknown.as_bytes(), address), Ok(Reply::Unknown));
        }
    }

    #[test]
    fn garbage_is_an_error_with_a_reason() {
        let long = format!("CONFIG cluster 0 {}\r\n", MAX_REPLY + 1);
        for (reply, expected) in [
            (config("x\na|b|1\n"), "no version"),
            (config("1\na|b\n"), "\"a|b\" is no server"),
            (config("1\na|b|0\n"), "no valid port"),
            (config("1\na|b|1\nc|d|1\n"), "more than two lines"),
            (b"CONFIG cluster 0 x\r\n".to_vec(), "no length"),
            (b"CONFIG cluster 0 1\r\n12345678".to_vec(), "does not end"),
            (b"CONFIG cluster 0 2\r\n\xff\xfe\r\nEND\r\n".to_vec(), "no text"),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "has replied \"HTTP/1.1 400"),
            (long.into_bytes(), "too long"),
            (vec![b'x'; MAX_REPLY + 1], "too long"),
        ] {
            let error = parse(&reply, address).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
