//! A list of servers: that of `--servers`, or of a variable.

use super::site::{Site, SiteServer};
use crate::cli::clients;
use crate::upstream::{Distribution, Hash};

const PORT: u16 = 11211;

/// Reads servers separated by commas or spaces. `client` places their keys.
pub(super) fn read(list: &str, origin: &str, client: Option<&str>) -> Result<Site, String> {
    let words = list.split([',', ' ', '\n']).filter(|word| !word.is_empty());
    let mut remarks = Vec::new();
    let servers = words.map(|word| {
        let word = word.strip_prefix("memcached://").unwrap_or(word);
        let word = match word.rsplit_once('@') {
            Some((_, address)) => {
                remarks.push(format!(
                    "the user and the password of {address} are not taken over: set auth of the pool"
                ));
                address
            }
            None => word,
        };
        SiteServer::parse(word, Some(PORT))
    });
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        return Err(format!("{origin} names no server"));
    }
    let placement = client.and_then(clients::placement);
    if placement.is_none() && servers.len() > 1 {
        remarks.push(format!(
            "nothing says how the application places its keys: this is ketama with md5. If its library places them in another way, name it \
             with --client, so that every key stays where it is: {}",
            clients::names().join(", ")
        ));
    }
    let (distribution, hash) = placement.unwrap_or((Distribution::Ketama, Hash::Md5));
    let placed_by = client.map(str::to_owned);
    Ok(Site {
        origin: origin.to_owned(),
        listen: None,
        servers,
        placed_by,
        distribution,
        hash,
        hash_tag: None,
        remarks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_places_the_keys_and_without_one_that_is_said() {
        let site = read("a,b:1 c:2:3", "--servers", Some("dalli")).unwrap();
        let servers: Vec<_> = site.servers.iter().map(|it| (&*it.address, it.weight)).collect();
        assert_eq!(servers, [("a:11211", 1), ("b:1", 1), ("c:2", 3)]);
        assert_eq!(
            (site.distribution, site.hash, site.remarks.len()),
            (Distribution::Dalli, Hash::Crc32a, 0)
        );
        let site = read("a,b", "--servers", None).unwrap();
        assert_eq!((site.distribution, site.hash), (Distribution::Ketama, Hash::Md5));
        assert!(
            site.remarks[0].contains("--client") && site.remarks[0].contains("dalli"),
            "{:?}",
            site.remarks
        );
        // One server has all keys.
        assert!(read("a", "--servers", None).unwrap().remarks.is_empty());
        assert_eq!(read(" ,", "--servers", None).unwrap_err(), "--servers names no server");
    }

    #[test]
    fn a_password_is_not_shown() {
        let site = read("memcached://ann:secret@a:1", "MEMCACHE_SERVERS", None).unwrap();
        assert_eq!(site.servers[0].address, "a:1");
        assert!(site.remarks.len() == 1 && !site.remarks[0].contains("secret"), "{:?}", site.remarks);
    }
}
