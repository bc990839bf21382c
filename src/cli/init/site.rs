//! What `kennel init` has found of a site.

use crate::upstream::{Distribution, Hash};

/// One pool of a site.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// Where it was found.
    pub(super) origin: String,
    /// Where the application has connected to: `host:port`, or a path.
    pub(super) listen: Option<String>,
    /// In the order of the list.
    pub(super) servers: Vec<SiteServer>,
    /// Whose placement of keys the next three are; `None`: nothing says how keys are placed.
    pub(super) placed_by: Option<String>,
    pub(super) distribution: Distribution,
    pub(super) hash: Hash,
    pub(super) hash_tag: Option<String>,
    /// What has no translation, and what was assumed.
    pub(super) remarks: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SiteServer {
    /// As in a configuration of Kennel.
    pub(super) address: String,
    pub(super) weight: u32,
    pub(super) name: Option<String>,
}

impl SiteServer {
    /// Reads `host:port`, followed by `:weight` or not. `port`: if there is none.
    pub(super) fn parse(text: &str, port: Option<u16>) -> Result<SiteServer, String> {
        let server = |address: String, weight| SiteServer { address, weight, name: None };
        if text.starts_with('/') || text.starts_with("unix:") {
            return Ok(server(format!("unix:{}", text.trim_start_matches("unix:")), 1));
        }
        let wrong = || format!("the server {text:?} is not HOST:PORT or HOST:PORT:WEIGHT");
        let (host, rest) = match text.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
            Some((host, rest)) => (format!("[{host}]"), rest),
            None => {
                let end = text.find(':').unwrap_or(text.len());
                (text[..end].to_owned(), &text[end..])
            }
        };
        let mut parts = rest.split(':').skip(1);
        let port = match (parts.next(), port) {
            (Some(port), _) => port.parse::<u16>().map_err(|_| wrong())?,
            (None, Some(port)) => port,
            (None, None) => return Err(wrong()),
        };
        let weight = parts.next().map_or(Ok(1), str::parse).map_err(|_| wrong())?;
        match parts.next() {
            None if !host.is_empty() => Ok(server(format!("{host}:{port}"), weight)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_address_and_maybe_a_weight() {
        let parse = |text, port| SiteServer::parse(text, port).map(|server| (server.address, server.weight));
        let is = |address: &str, weight| Ok((address.to_owned(), weight));
        assert_eq!(parse("a", Some(11211)), is("a:11211", 1));
        assert_eq!(parse("a:1:7", None), is("a:1", 7));
        assert_eq!(parse("[::1]:1:7", None), is("[::1]:1", 7));
        assert_eq!(parse("/run/m.sock", None), is("unix:/run/m.sock", 1));
        for wrong in ["a", "a:x", "a:1:x", "a:1:2:3", ":1", "::1:11211"] {
            assert!(parse(wrong, None).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
