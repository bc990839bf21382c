//! mcrouter's configuration: JSON with comments.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::site::{Site, SiteServer};
use crate::upstream::{Distribution, Hash};

/// What routes lead to.
#[derive(Default)]
struct Routes {
    /// The hashes of each pool.
    pools: BTreeMap<String, BTreeSet<String>>,
    /// What is not a route to a pool, by name.
    others: BTreeSet<String>,
}

/// The text without comments of both kinds, which stand outside of strings.
pub(super) fn without_comments(text: &str) -> String {
    let (mut kept, mut rest, mut is_string) = (String::new(), text, false);
    while let Some(c) = rest.chars().next() {
        let skipped = match (is_string, rest) {
            (false, rest) if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            (false, rest) if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            _ => 0,
        };
        if skipped > 0 {
            rest = &rest[skipped..];
            continue;
        }
        // What follows a backslash in a string does not end it.
        let taken = match (is_string, c) {
            (true, '\\') => rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at),
            _ => c.len_utf8(),
        };
        is_string ^= c == '"';
        kept.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    kept
}

/// Reads one pool: the only one that routes lead to, or the one with this name.
pub(super) fn read(text: &str, file: &str, pool: Option<&str>) -> Result<Site, String> {
    let root: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    let mut routes = Routes::default();
    routes.add(&root["route"]);
    for entry in root["routes"].as_array().into_iter().flatten() {
        routes.add(&entry["route"]);
    }
    let others = routes.others.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mut remarks = Vec::new();
    let name = match (pool, routes.pools.len()) {
        (Some(name), _) => {
            if !others.is_empty() {
                remarks.push(format!("not translated: the routes {others}"));
            }
            name
        }
        (None, 1) if others.is_empty() => routes.pools.keys().next().map_or("", String::as_str),
        (None, _) => {
            let pools =
                root["pools"].as_object().map(|pools| pools.keys().map(String::as_str).collect::<Vec<_>>());
            return Err(format!(
                "its routes have no translation ({}): name the pool whose keys Kennel takes with --pool ({})",
                if others.is_empty() { "they lead to several pools, or to none" } else { &others },
                pools.unwrap_or_default().join(", ")
            ));
        }
    };
    match routes.pools.get(name) {
        None => remarks.push(format!(
            "no route says how the keys of {name} are placed: this is Ch3, mcrouter's default"
        )),
        Some(hashes) if hashes.iter().any(|hash| hash != "Ch3") => {
            let hashes = hashes.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "the pool {name} is placed by {hashes}: Kennel has mcrouter's Ch3 without salt only"
            ));
        }
        Some(_) => {}
    }
    let entries = &root["pools"][name]["servers"];
    let Some(entries) = entries.as_array().filter(|entries| !entries.is_empty()) else {
        return Err(format!("the pool {name} has no list of servers"));
    };
    let servers = entries.iter().map(|entry| server(entry, &mut remarks)).collect::<Result<Vec<_>, _>>()?;
    let rest = root["pools"][name].as_object().into_iter().flat_map(|pool| pool.keys());
    let rest: Vec<_> = rest.map(String::as_str).filter(|key| *key != "servers").collect();
    if !rest.is_empty() {
        remarks.push(format!("not translated of the pool {name}: {}", rest.join(", ")));
    }
    remarks.push(
        "mcrouter hashes no routing prefix (/a/b/) and nothing behind |#| in a key; Kennel hashes all of it"
            .to_owned(),
    );
    Ok(Site {
        origin: format!("{file}, pool {name}"),
        listen: None,
        servers,
        placed_by: Some("mcrouter".to_owned()),
        distribution: Distribution::Ch3,
        hash: Hash::Murmur64a,
        hash_tag: None,
        remarks,
    })
}

impl Routes {
    /// Adds what a route leads to.
    fn add(&mut self, route: &Value) {
        match route {
            Value::String(text) => match text.split_once('|') {
                Some(("PoolRoute", pool)) if !pool.contains('|') => self.add_pool(pool, &Value::Null),
                Some((kind, _)) => self.add_other(kind),
                None => self.add_other(text),
            },
            Value::Object(table) => {
                let kind = table.get("type").and_then(Value::as_str).unwrap_or("a route without a type");
                match (kind, table.get("pool")) {
                    ("PoolRoute", Some(Value::String(pool))) => {
                        self.add_pool(pool, table.get("hash").unwrap_or(&Value::Null));
                        let known = ["type", "pool", "hash"];
                        table.keys().filter(|key| !known.contains(&&***key)).for_each(|key| {
                            self.add_other(&format!("{key} of PoolRoute"));
                        });
                    }
                    ("PoolRoute", _) => self.add_other("PoolRoute with a pool inside"),
                    _ => {
                        self.add_other(kind);
                        let parts = table.values().filter(|value| value.is_object() || value.is_array());
                        parts.for_each(|part| self.add_part(part));
                    }
                }
            }
            Value::Null => {}
            other => self.add_part(other),
        }
    }

    /// Adds what stands inside a route of another kind, which may be tables of routes.
    fn add_part(&mut self, part: &Value) {
        match part {
            Value::Array(parts) => parts.iter().for_each(|part| self.add(part)),
            Value::Object(table) if !table.contains_key("type") => {
                table.values().filter(|value| !value.is_number()).for_each(|part| self.add(part));
            }
            other => self.add(other),
        }
    }

    fn add_pool(&mut self, pool: &str, hash: &Value) {
        let function = match hash {
            Value::Null => "Ch3".to_owned(),
            Value::String(function) => function.clone(),
            Value::Object(table) if table.keys().all(|key| key == "hash_func") => {
                table.get("hash_func").and_then(Value::as_str).unwrap_or("Ch3").to_owned()
            }
            other => other.to_string(),
        };
        self.pools.entry(pool.to_owned()).or_default().insert(function);
    }

    fn add_other(&mut self, kind: &str) {
        self.others.insert(kind.to_owned());
    }
}

/// `host:port`, which may be followed by the protocol and the security.
fn server(entry: &Value, remarks: &mut Vec<String>) -> Result<SiteServer, String> {
    let text = entry.as_str().or_else(|| entry["hostname"].as_str()).unwrap_or_default();
    let host = if text.starts_with('[') { text.find(']').unwrap_or(0) } else { 0 };
    let ends =
        text[host..].match_indices(':').map(|(at, _)| host + at).chain([text.len()]).collect::<Vec<_>>();
    let end = ends.get(1).copied().unwrap_or(text.len());
    let rest: Vec<_> = text[end..].split(':').filter(|part| !["", "ascii", "plain"].contains(part)).collect();
    if !rest.is_empty() {
        remarks.push(format!("not translated of the server {}: {}", &text[..end], rest.join(":")));
    }
    SiteServer::parse(&text[..end], None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(text: &str, pool: Option<&str>) -> Result<Site, String> {
        read(&without_comments(text), "m.json", pool)
    }

    const POOLS: &str = r#""pools": {"A": {"servers": ["10.0.0.1:11211", /* two */ "[::1]:5000:ascii:plain"]}, // and
        "B": {"servers": ["h:1:caret:tls"]}}"#;

    #[test]
    fn a_route_to_one_pool_is_ch3_in_the_order_of_its_list() {
        for route in [
            r#""PoolRoute|A""#,
            r#"{"type": "PoolRoute", "pool": "A"}"#,
            r#"{"type": "PoolRoute", "pool": "A", "hash": "Ch3"}"#,
            r#"{"type": "PoolRoute", "pool": "A", "hash": {"hash_func": "Ch3"}}"#,
        ] {
            for text in [
                format!("{{{POOLS}, \"route\": {route}}}"),
                format!("{{{POOLS}, \"routes\": [{{\"aliases\": [\"/a/b/\"], \"route\": {route}}}]}}"),
            ] {
                let site = site(&text, None).unwrap();
                let servers: Vec<_> = site.servers.iter().map(|server| &*server.address).collect();
                assert_eq!(servers, ["10.0.0.1:11211", "[::1]:5000"]);
                assert_eq!((site.distribution, site.hash), (Distribution::Ch3, Hash::Murmur64a));
                assert!(site.remarks.len() == 1 && site.remarks[0].contains("|#|"), "{:?}", site.remarks);
            }
        }
    }

    #[test]
    fn other_routes_are_named_and_a_pool_must_be_chosen() {
        let failover = r#"{"type": "FailoverRoute", "children": ["PoolRoute|A", "AllSyncRoute|Pool|B"]}"#;
        let by_operation = r#"{"type": "OperationSelectorRoute", "default_policy": "PoolRoute|A",
            "operation_policies": {"delete": {"type": "AllSyncRoute", "children": ["PoolRoute|A"]}}}"#;
        for (route, named) in [
            (failover, "AllSyncRoute, FailoverRoute"),
            (by_operation, "AllSyncRoute, OperationSelectorRoute"),
            (r#"{"type": "PoolRoute", "pool": "A", "shadows": []}"#, "shadows of PoolRoute"),
        ] {
            let text = format!("{{{POOLS}, \"route\": {route}}}");
            let error = site(&text, None).unwrap_err();
            assert!(error.contains(named) && error.contains("--pool (A, B)"), "{error}");
            let site = site(&text, Some("A")).unwrap();
            assert!(site.remarks[0].ends_with(named), "{:?}", site.remarks);
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_the_reason() {
        let with = |hash: &str| {
            let route = format!(r#"{{"type": "PoolRoute", "pool": "A", "hash": {hash}}}"#);
            site(&format!("{{{POOLS}, \"route\": {route}}}"), None).unwrap_err()
        };
        assert!(with(r#""WeightedCh3""#).contains("is placed by WeightedCh3"));
        assert!(with(r#"{"hash_func": "Ch3", "salt": "x"}"#).contains("salt"));
        let text = format!("{{{POOLS}}}");
        assert!(site(&text, None).unwrap_err().contains("to none"));
        assert!(site(&text, Some("C")).unwrap_err().contains("the pool C has no list of servers"));
        let remarks = site(&text, Some("B")).unwrap().remarks;
        assert!(
            remarks[0].contains("Ch3, mcrouter's default") && remarks[1].contains("h:1: caret:tls"),
            "{remarks:?}"
        );
    }

    #[test]
    fn what_looks_like_a_comment_in_a_string_is_kept() {
        let text = "{\"a//b\": \"c\\\"/*d*/\"} // e\n/* f */ {";
        assert_eq!(without_comments(text), "{\"a//b\": \"c\\\"/*d*/\"} \n {");
    }
}
