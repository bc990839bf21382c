//! `kennel ring OLD NEW`: which keys move when the servers of a pool change.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::check::print;
use crate::config;
use crate::discovery;
use crate::upstream::ring::Ring;
use crate::upstream::{PoolSpec, ServerSpec};

/// Compares the pools of two configuration files, or only the one named `pool`, and prints the share of keys that move between
/// each two servers, as text or as `json`. `KENNEL_…` variables do not apply, because they would apply to both files. Returns 1,
/// and prints the reasons to stderr, if a file has errors or the pool is not in both.
pub fn run(old: &Path, new: &Path, pool: Option<&str>, json: bool) -> ExitCode {
    match changes(old, new, pool) {
        Ok(changes) => print(&mut std::io::stdout(), &show(&changes, json), ExitCode::SUCCESS),
        Err(errors) => print(&mut std::io::stderr(), &format!("{errors}\n"), ExitCode::FAILURE),
    }
}

/// What changes in one pool.
struct Change {
    pool: String,
    /// Both lists in words.
    old: String,
    new: String,
    /// The share of all keys that move, and half the width of its 95 % confidence interval.
    moved: f64,
    error: f64,
    /// The number of keys that were sampled. `None`: the shares are exact.
    samples: Option<u32>,
    /// The largest share first.
    moves: Vec<Move>,
}

struct Move {
    from: String,
    to: String,
    share: f64,
}

fn changes(old: &Path, new: &Path, pool: Option<&str>) -> Result<Vec<Change>, String> {
    let load = |path: &Path| {
        let loaded = config::load(Some(path), []).map_err(|errors| errors.to_string())?;
        let found = discovery::look_up_once(loaded);
        found.map_err(|errors| {
            errors.iter().map(|error| format!("{}: {error}", path.display())).collect::<Vec<_>>().join("\n")
        })
    };
    let (olds, news) = match (load(old), load(new)) {
        (Ok(a), Ok(b)) => (a.pools, b.pools),
        (a, b) => {
            let errors: Vec<_> = [a.err(), b.err()].into_iter().flatten().collect();
            return Err(errors.join("\n"));
        }
    };
    let named = |pools: &[PoolSpec]| pools.iter().map(|pool| pool.name.clone()).collect::<BTreeSet<_>>();
    let (in_old, in_new) = (named(&olds), named(&news));
    let missing_in = |path: &Path, name: &str| format!("{}: has no pool {name:?}", path.display());
    let names: Vec<String> = match pool {
        Some(name) if !in_old.contains(name) => return Err(missing_in(old, name)),
        Some(name) if !in_new.contains(name) => return Err(missing_in(new, name)),
        Some(name) => vec![name.to_owned()],
        None => in_old.intersection(&in_new).cloned().collect(),
    };
    let find = |pools: &[PoolSpec], name: &str| pools.iter().find(|pool| pool.name == name).cloned();
    let changes = names.iter().filter_map(|name| Some(change(&find(&olds, name)?, &find(&news, name)?)));
    Ok(changes.collect())
}

fn change(old: &PoolSpec, new: &PoolSpec) -> Change {
    let ring = |pool: &PoolSpec| Ring::new(&pool.servers, &pool.scheme);
    let shares = ring(old).pair_shares(&ring(new));
    let mut moves: Vec<_> = shares
        .shares
        .iter()
        .filter(|((from, to), _)| !is_same(*from, &old.servers[*from], *to, &new.servers[*to]))
        .map(|((from, to), share)| Move {
            from: show_server(&old.servers[*from]),
            to: show_server(&new.servers[*to]),
            share: *share,
        })
        .collect();
    moves.sort_by(|a, b| b.share.total_cmp(&a.share));
    // The sum of nothing is -0.0, and is printed so.
    let moved = moves.iter().map(|one| one.share).sum::<f64>() + 0.0;
    Change {
        pool: old.name.clone(),
        old: show_list(old),
        new: show_list(new),
        moved,
        error: shares.error(moved),
        samples: shares.samples,
        moves,
    }
}

/// Whether both are one memcached. A name alone does not make them the same: the server at another address has other contents.
fn is_same(from: usize, a: &ServerSpec, to: usize, b: &ServerSpec) -> bool {
    use crate::upstream::Address::Embedded;
    match (&a.address, &b.address) {
        (Embedded { .. }, Embedded { .. }) => from == to,
        (a, b) => a.to_string().eq_ignore_ascii_case(&b.to_string()),
    }
}

fn show_server(server: &ServerSpec) -> String {
    let address = server.address.to_string();
    server.name.as_ref().map_or(address.clone(), |name| format!("{address} ({name})"))
}

fn show_list(pool: &PoolSpec) -> String {
    let s = if pool.servers.len() == 1 { "" } else { "s" };
    format!(
        "{} server{s}, {}, {}",
        pool.servers.len(),
        pool.scheme.distribution.name(),
        pool.scheme.hash.name()
    )
}

fn show(changes: &[Change], json: bool) -> String {
    if json {
        let pools: Vec<_> = changes.iter().map(json_of).collect();
        return format!("{{\"pools\":[{}]}}\n", pools.join(","));
    }
    let texts: Vec<_> = changes.iter().map(text_of).collect();
    match texts.is_empty() {
        true => "The files have no pool in common.\n".to_owned(),
        false => texts.join("\n"),
    }
}

fn text_of(change: &Change) -> String {
    let mut text = format!("Pool {}: {} -> {}.\n", change.pool, change.old, change.new);
    let how = match change.samples {
        None => "computed exactly".to_owned(),
        Some(n) => format!("+/- {}, 95 % confidence, {n} keys sampled", percent(change.error)),
    };
    let _ = writeln!(text, "{} of the keys move ({how}).", percent(change.moved));
    if change.moves.is_empty() {
        return text;
    }
    let width = |of: fn(&Move) -> &str| change.moves.iter().map(|one| of(one).chars().count()).max();
    let from = width(|one| &one.from).unwrap_or(0).max(4);
    let to = width(|one| &one.to).unwrap_or(0).max(2);
    let _ = writeln!(text, "\n  {:from$}  {:to$}  share of all keys", "from", "to");
    for Move { from: old, to: new, share } in &change.moves {
        let _ = writeln!(text, "  {old:from$}  {new:to$}  {:>8}", percent(*share));
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.2}%", 100.0 * share)
}

fn json_of(change: &Change) -> String {
    let one = |Move { from, to, share }: &Move| {
        format!("{{\"from\":{},\"to\":{},\"share\":{share:.6}}}", quoted(from), quoted(to))
    };
    let moves: Vec<_> = change.moves.iter().map(one).collect();
    format!(
        "{{\"pool\":{},\"old\":{},\"new\":{},\"moved\":{:.6},\"error\":{:.6},\"samples\":{},\"moves\":[{}]}}",
        quoted(&change.pool),
        quoted(&change.old),
        quoted(&change.new),
        change.moved,
        change.error,
        change.samples.map_or("null".to_owned(), |n| n.to_string()),
        moves.join(","),
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn compare(old: &str, new: &str) -> Change {
        let read = |text: &str| Config::read("k.toml", &format!("[pools.main]\n{text}\n"), []).unwrap().pools;
        change(&read(old)[0], &read(new)[0])
    }

    #[test]
    fn of_equal_lists_nothing_moves_and_not_a_negative_nothing() {
        let change = compare(THREE, THREE);
        assert!(text_of(&change).contains("\n0.00% of the keys move"), "{}", text_of(&change));
        assert!(json_of(&change).contains("\"moved\":0.000000"), "{}", json_of(&change));
    }

    const THREE: &str = r#"servers = ["10.0.0.1:11211", "10.0.0.2:11211", "10.0.0.3:11211"]"#;
    const FOUR: &str =
        r#"servers = ["10.0.0.1:11211", "10.0.0.2:11211", "10.0.0.3:11211", "10.0.0.4:11211"]"#;

    #[test]
    fn an_added_server_takes_its_share_from_each_of_the_others() {
        let change = compare(THREE, FOUR);
        assert!((0.2..0.3).contains(&change.moved), "{}", change.moved);
        assert_eq!(change.samples, None);
        assert_eq!(change.moves.len(), 3);
        assert!(change.moves.iter().all(|one| one.to == "10.0.0.4:11211" && one.share > 0.0));
        let text = show(&[change], false);
        assert!(text.starts_with("Pool main: 3 servers, ketama, md5 -> 4 servers, ketama, md5.\n"), "{text}");
        assert!(text.contains("% of the keys move (computed exactly).\n\n  from"), "{text}");
        assert_eq!(text.lines().filter(|line| line.ends_with('%')).count(), 3, "{text}");
    }

    #[test]
    fn an_order_that_ketama_ignores_moves_nothing_and_a_renamed_host_moves_its_keys() {
        let turned = r#"servers = ["10.0.0.3:11211", "10.0.0.1:11211", "10.0.0.2:11211"]"#;
        let change = compare(THREE, turned);
        assert_eq!((change.moved, change.moves.len()), (0.0, 0));
        assert!(show(&[change], false).ends_with("0.00% of the keys move (computed exactly).\n"));
        let named = |host: &str| {
            format!(
                "servers = [{{ address = \"{host}:11211\", name = \"a\" }}, {{ address = \"10.0.0.2:11211\", name = \"b\" }}]"
            )
        };
        // The ring is the same, but the server at the new address does not have the values.
        let change = compare(&named("10.0.0.1"), &named("10.0.0.9"));
        assert!((0.3..0.7).contains(&change.moved), "{}", change.moved);
        assert_eq!(
            (&*change.moves[0].from, &*change.moves[0].to),
            ("10.0.0.1:11211 (a)", "10.0.0.9:11211 (a)")
        );
    }

    #[test]
    fn a_sampled_share_states_its_error_and_json_has_every_number() {
        let rendezvous = |servers: &str| format!("{servers}\ndistribution = \"rendezvous\"");
        let change = compare(&rendezvous(THREE), &rendezvous(FOUR));
        assert!((change.moved - 0.25).abs() < 0.004, "{}", change.moved);
        assert!((0.001..0.003).contains(&change.error), "{}", change.error);
        let (text, json) =
            (show(std::slice::from_ref(&change), false), show(std::slice::from_ref(&change), true));
        assert!(text.contains("95 % confidence, 262144 keys sampled"), "{text}");
        assert!(
            json.starts_with("{\"pools\":[{\"pool\":\"main\",\"old\":\"3 servers, rendezvous, md5\""),
            "{json}"
        );
        assert!(json.contains("\"samples\":262144,\"moves\":[{\"from\":\"10.0.0."), "{json}");
        assert_eq!(quoted("a\"b\\\n"), "\"a\\\"b\\\\\\u000a\"");
    }

    #[test]
    fn a_file_with_errors_or_without_the_pool_is_refused() {
        let valid = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/sidecar.toml"));
        let nowhere = Path::new("/nowhere/kennel.toml");
        assert_eq!(run(valid, valid, None, true), ExitCode::SUCCESS);
        assert_eq!(run(valid, nowhere, None, false), ExitCode::FAILURE);
        let error = changes(valid, valid, Some("other")).err().unwrap();
        assert!(error.ends_with("has no pool \"other\""), "{error}");
    }
}
