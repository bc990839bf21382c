//! The configuration that `kennel init` writes.

use std::fmt::Write as _;

use super::site::{Site, SiteServer};

/// The configuration, with comments.
pub(super) fn text(site: &Site) -> String {
    let mut text = format!(
        "# By kennel init, from {}. `kennel check --connect FILE` says what it means.\n\n",
        site.origin
    );
    // Writing to a String cannot fail.
    if let Some(listen) = &site.listen {
        let keys = match listen.starts_with('/') {
            true => format!("tcp = []\nunix = [{listen:?}]"),
            false => format!("tcp = [{listen:?}]"),
        };
        let _ = writeln!(
            text,
            "[listen]\n# Where the application finds its proxy today: stop that first.\n{keys}\n"
        );
    }
    text.push_str("[pools.main]\n");
    if site.distribution.is_ordered() {
        text.push_str("# In this order: another one moves keys.\n");
    }
    text.push_str("servers = [\n");
    for server in &site.servers {
        let _ = writeln!(text, "    {},", entry(server));
    }
    text.push_str("]\n");
    let placement = match &site.placed_by {
        Some(client) => format!("As {client} places keys, so that each is found where it is."),
        None => {
            "How the application places keys is not known: `kennel init --client` knows libraries.".to_owned()
        }
    };
    let _ = writeln!(text, "# {placement} `kennel ring OLD NEW` tells what a change would move.");
    let _ = writeln!(text, "distribution = {:?}\nhash = {:?}", site.distribution.name(), site.hash.name());
    if let Some(tag) = &site.hash_tag {
        let _ = writeln!(text, "hash_tag = {tag:?}");
    }
    text.push_str(
        "\n# Nothing is guarded yet: all keys pass through. After an hour, `kennel top --by spared` shows what a guard would spare, and\n\
         # `kennel suggest` proposes rules.\n[observe]\nall = true\n\n\
         # [[rules]]\n# name = \"pages\"\n# match = \"page:*\"\n# stale_for = \"10m\"\n",
    );
    text
}

fn entry(server: &SiteServer) -> String {
    let SiteServer { address, weight, name } = server;
    let mut keys = vec![format!("address = {address:?}")];
    keys.extend((*weight != 1).then(|| format!("weight = {weight}")));
    keys.extend(name.as_ref().map(|name| format!("name = {name:?}")));
    match keys.len() {
        1 => format!("{address:?}"),
        _ => format!("{{ {} }}", keys.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::upstream::{Distribution, Hash, HashedPart};

    #[test]
    fn it_is_a_valid_configuration_with_the_placement_of_the_site() {
        let server = |address: &str, weight, name: Option<&str>| SiteServer {
            address: address.to_owned(),
            weight,
            name: name.map(str::to_owned),
        };
        let mut site = Site {
            origin: "n.yml".to_owned(),
            listen: Some("127.0.0.1:22121".to_owned()),
            servers: vec![server("a:1", 1, None), server("b:1", 3, Some("bee"))],
            placed_by: Some("twemproxy".to_owned()),
            distribution: Distribution::Ketama,
            hash: Hash::Fnv1a64,
            hash_tag: Some("{}".to_owned()),
            remarks: Vec::new(),
        };
        assert!(text(&site).contains("# As twemproxy places keys"), "{}", text(&site));
        let config = Config::read("k.toml", &text(&site), []).unwrap();
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let pool = &config.pools[0];
        let scheme = &pool.scheme;
        assert_eq!((scheme.distribution, scheme.hash), (Distribution::Ketama, Hash::Fnv1a64));
        assert_eq!(scheme.part, HashedPart::Between(*b"{}"));
        assert_eq!((pool.servers[1].weight, pool.servers.len()), (3, 2));
        assert!(config.listen.tcp[0].address.to_string() == "127.0.0.1:22121" && config.rules.is_empty());
        site.listen = Some("/run/twemproxy.sock".to_owned());
        let config = Config::read("k.toml", &text(&site), []).unwrap();
        assert!(config.listen.tcp.is_empty() && config.listen.unix.len() == 1);
    }

    #[test]
    fn the_rule_that_it_proposes_is_valid() {
        let site = Site {
            origin: "o".to_owned(),
            listen: None,
            servers: vec![SiteServer { address: "a:1".to_owned(), weight: 1, name: None }],
            placed_by: None,
            distribution: Distribution::Dalli,
            hash: Hash::Crc32a,
            hash_tag: None,
            remarks: Vec::new(),
        };
        let text = text(&site);
        assert!(text.contains("# How the application places keys is not known"), "{text}");
        let (file, rule) = text.split_once("# [[rules]]").unwrap();
        let rule = format!("[[rules]]{}", rule.replace("\n# ", "\n"));
        assert_eq!(Config::read("k.toml", &format!("{file}{rule}"), []).unwrap().rules.len(), 1);
    }
}
