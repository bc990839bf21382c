//! `GET /`: the status page. It has no script and loads nothing.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::CONTENT_SECURITY_POLICY;
use hyper::http::HeaderValue;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::replies::reply;
use crate::admin::view::{KeysAt, Overview, RuleRow};
use crate::clock::utc;
use crate::metrics::DiscoveredPool;

pub(super) const ROUTE: Route = Route { path: "/", verb: Verb::Get, needs: Needs::Look, reply: page };

fn page(asked: Asked) -> Replying {
    Box::pin(async move {
        let page = render(&asked.view.overview(), asked.readiness.word());
        let mut page = reply(StatusCode::OK, "text/html; charset=utf-8", page);
        // Names are escaped. In case that fails, the policy forbids scripts and references.
        let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
        page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
        page
    })
}

/// Renders the page. `state` is the word that `/readyz` starts with.
fn render(overview: &Overview, state: &str) -> String {
    let mut page = String::with_capacity(4096);
    // Writing to a String cannot fail.
    let _ = write(&mut page, overview, state);
    page
}

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="10">
<title>Kennel</title>
<style>
:root { color-scheme: light dark; --ink: #1c1c1a; --paper: #fbfaf7; --faint: #6b6a65; --line: #dddad2; --up: #17703c; --down: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e4de; --paper: #191918; --faint: #9b9992; --line: #3a3936; --up: #6fcf97; --down: #ff8a80; }
}
body { margin: 2rem auto; max-width: 52rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.4rem; margin: 0; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; color: var(--faint); }
a { color: inherit; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 500; color: var(--faint); }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.up { color: var(--up); }
.down { color: var(--down); font-weight: 600; }
</style>
</head>
<body>
<h1>Kennel</h1>
"#;

fn write(page: &mut String, overview: &Overview, state: &str) -> fmt::Result {
    page.push_str(HEAD);
    let Overview { version, uptime, config, pools, rules, discovery } = overview;
    writeln!(page, "<p>version {}, {}, up for {}</p>", Text(version), Text(state), Span(*uptime))?;
    let read = utc(config.read_ms).unwrap_or_default();
    writeln!(page, "<p>Configuration {}, read at {read}</p>", Text(&config.hash))?;
    if !config.errors.is_empty() {
        page.push_str(
            "<p class=\"down\">A later version of the file has mistakes and was refused:</p>\n<ul>\n",
        );
        for error in &config.errors {
            writeln!(page, "<li>{}</li>", Text(error))?;
        }
        page.push_str("</ul>\n");
    }
    page.push_str("<h2>Servers</h2>\n<table>\n<tr><th>pool</th><th>server</th><th>state</th><th>guarded keys</th></tr>\n");
    for pool in pools {
        for server in &pool.servers {
            let (class, word) = match server.up {
                Some(true) if server.sick => ("down", "sick: too slow"),
                Some(true) => ("up", "up"),
                Some(false) => ("down", "down"),
                None => ("", "not connected yet"),
            };
            let (pool, server, keys) = (Text(&pool.name), Text(&server.name), server.keys);
            write!(page, "<tr><td>{pool}</td><td>{server}</td><td class=\"{class}\">{word}</td>")?;
            let (class, place) = match keys {
                Some(KeysAt::Own) => ("up", "on the server"),
                Some(KeysAt::Standby) => ("down", "on the standby servers"),
                Some(KeysAt::Unknown) => ("down", "not served: no valid view"),
                None => ("", "on the server"),
            };
            writeln!(page, "<td class=\"{class}\">{place}</td></tr>")?;
        }
    }
    page.push_str("</table>\n");
    for pool in pools {
        let (Some(placements), pool) = (&pool.placements, Text(&pool.name)) else { continue };
        writeln!(page, "<p>Placement of {pool}: {}</p>", Text(&placements.own))?;
        for other in &placements.unknown {
            let other = Text(other);
            writeln!(
                page,
                "<p class=\"down\">Another sidecar places the keys of {pool} by {other}, which is not adjacent: they miss each other's invalidations</p>"
            )?;
        }
    }
    write_discovery(page, discovery)?;
    page.push_str("<h2>Rules</h2>\n<table>\n<tr><th>rule</th>");
    for column in ["hits", "stale", "misses", "rebuilds", "served from the cache"] {
        write!(page, "<th class=\"n\">{column}</th>")?;
    }
    page.push_str("</tr>\n");
    for rule in rules {
        write!(page, "<tr><td>{}</td>", Text(&rule.name))?;
        for count in [rule.hits, rule.stale, rule.misses, rule.rebuilds] {
            write!(page, "<td class=\"n\">{}</td>", Grouped(count))?;
        }
        writeln!(page, "<td class=\"n\">{}</td></tr>", Share(rule))?;
    }
    page.push_str("</table>\n<p>Counts since the start. All metrics: <a href=\"/metrics\">/metrics</a></p>\n</body>\n</html>\n");
    Ok(())
}

fn write_discovery(page: &mut String, discovery: &[DiscoveredPool]) -> fmt::Result {
    if discovery.is_empty() {
        return Ok(());
    }
    page.push_str("<h2>Discovery</h2>\n<table>\n<tr><th>pool</th><th>entry</th><th class=\"n\">servers</th><th>found at</th><th>state</th></tr>\n");
    for pool in discovery {
        for entry in &pool.entries {
            let at = entry.last_success_ms.and_then(utc).unwrap_or_else(|| "never".to_owned());
            let (class, state) = match (&entry.error, pool.step) {
                (Some(error), _) => ("down", format!("not found: {error}")),
                (None, 0) => ("up", "found".to_owned()),
                (None, step) => ("", format!("the servers change: step {step} of 3")),
            };
            writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td>{at}</td><td class=\"{class}\">{}</td></tr>",
                Text(&pool.pool),
                Text(&entry.entry),
                entry.servers,
                Text(&state)
            )?;
        }
    }
    page.push_str("</table>\n");
    Ok(())
}

/// Text, escaped for use inside an element or a quoted attribute.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A duration in its two largest units.
struct Span(Duration);

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{seconds} s"),
            (0, 0, _) => write!(f, "{minutes} min {} s", seconds % 60),
            (0, _, _) => write!(f, "{hours} h {} min", minutes % 60),
            _ => write!(f, "{days} d {} h", hours % 24),
        }
    }
}

/// A number with separated thousands.
struct Grouped(u64);

impl Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.char_indices() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_char('\u{202f}')?; // narrow no-break space
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// The share of a rule's reads that were answered with a value, rounded down so that 100 % means all.
struct Share<'a>(&'a RuleRow);

impl Display for Share<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served = u128::from(self.0.hits) + u128::from(self.0.stale);
        let reads = served + u128::from(self.0.misses);
        match (served * 1000).checked_div(reads) {
            Some(tenths) => write!(f, "{}.{} %", tenths / 10, tenths % 10),
            None => f.write_str("–"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::view::{ConfigState, Placements, PoolRow, ServerRow};
    use crate::metrics::DiscoveredEntry;

    fn overview() -> Overview {
        let server = |name: &str, up, keys| ServerRow { name: name.to_owned(), up, sick: name == "d", keys };
        let servers = vec![
            server("10.0.0.1:11211", Some(true), Some(KeysAt::Own)),
            server("b", Some(false), Some(KeysAt::Standby)),
            server("c", None, Some(KeysAt::Unknown)),
            server("d", Some(true), None),
        ];
        let rule =
            |name: &str, hits, misses| RuleRow { name: name.to_owned(), hits, stale: 1, misses, rebuilds: 3 };
        let entry = |entry: &str, error| DiscoveredEntry {
            entry: entry.to_owned(),
            servers: 3,
            last_success_ms: Some(1_700_000_000_000),
            failures: 0,
            error,
        };
        Overview {
            version: "0.1.0".to_owned(),
            uptime: Duration::from_secs(90_061),
            config: ConfigState {
                hash: "1f2e3d4c".to_owned(),
                read_ms: 1_700_000_000_000,
                errors: vec!["k.toml: line 3: <bad>".to_owned()],
            },
            pools: vec![PoolRow {
                name: "main".to_owned(),
                servers,
                placements: Some(Placements { own: "0a".to_owned(), unknown: vec!["0b".to_owned()] }),
            }],
            rules: vec![
                rule("pages", 1_234_567, 0),
                RuleRow { name: "idle".to_owned(), ..RuleRow::default() },
            ],
            discovery: vec![DiscoveredPool {
                pool: "main".to_owned(),
                step: 2,
                is_unknown: false,
                entries: vec![
                    entry("dns+a:1", None),
                    entry("dns+b:1", Some("there is no such name".to_owned())),
                ],
            }],
        }
    }

    #[test]
    fn the_page_shows_version_uptime_servers_and_rules() {
        let page = render(&overview(), "ready");
        for shown in [
            "version 0.1.0, ready, up for 1 d 1 h",
            "<tr><td>main</td><td>10.0.0.1:11211</td><td class=\"up\">up</td><td class=\"up\">on the server</td></tr>",
            "<td>b</td><td class=\"down\">down</td><td class=\"down\">on the standby servers</td>",
            "<td>c</td><td class=\"\">not connected yet</td><td class=\"down\">not served: no valid view</td>",
            "<td>d</td><td class=\"down\">sick: too slow</td><td class=\"\">on the server</td>",
            "<p>Configuration 1f2e3d4c, read at 2023-11-14T22:13:20.000Z</p>",
            "<li>k.toml: line 3: &lt;bad&gt;</li>",
            "<td>dns+a:1</td><td class=\"n\">3</td><td>2023-11-14T22:13:20.000Z</td><td class=\"\">the servers change: step 2 of 3</td>",
            "<td>dns+b:1</td><td class=\"n\">3</td><td>2023-11-14T22:13:20.000Z</td><td class=\"down\">not found: there is no such name</td>",
            "<p>Placement of main: 0a</p>",
            "<p class=\"down\">Another sidecar places the keys of main by 0b, which is not adjacent",
            "<td>pages</td><td class=\"n\">1\u{202f}234\u{202f}567</td><td class=\"n\">1</td><td class=\"n\">0</td><td class=\"n\">3</td><td class=\"n\">100.0 %</td>",
            "<td>idle</td><td class=\"n\">0</td><td class=\"n\">0</td><td class=\"n\">0</td><td class=\"n\">0</td><td class=\"n\">–</td>",
        ] {
            assert!(page.contains(shown), "{shown}\n\n{page}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let evil = "</td><script>&'\"";
        let page = render(
            &Overview {
                version: evil.to_owned(),
                uptime: Duration::ZERO,
                config: ConfigState { hash: evil.to_owned(), read_ms: 0, errors: vec![evil.to_owned()] },
                pools: vec![PoolRow {
                    name: evil.to_owned(),
                    servers: vec![ServerRow { name: evil.to_owned(), ..ServerRow::default() }],
                    placements: None,
                }],
                rules: vec![RuleRow { name: evil.to_owned(), ..RuleRow::default() }],
                discovery: vec![DiscoveredPool {
                    pool: evil.to_owned(),
                    entries: vec![DiscoveredEntry { entry: evil.to_owned(), ..DiscoveredEntry::default() }],
                    ..DiscoveredPool::default()
                }],
            },
            evil,
        );
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(page.matches("&lt;/td&gt;&lt;script&gt;&amp;&#39;&quot;").count(), 9, "{page}");
    }

    #[test]
    fn every_element_is_closed_and_nothing_is_loaded() {
        let page = render(&overview(), "ready");
        for element in
            ["html", "head", "body", "style", "title", "table", "tr", "td", "h1", "h2", "p", "a", "ul", "li"]
        {
            let opened =
                page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
            assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
        }
        for reference in ["src=", "<link", "url(", "@import", "<script", "http://", "https://"] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn a_share_below_all_is_never_shown_as_100_percent() {
        let share = |hits, misses| Share(&RuleRow { hits, misses, ..RuleRow::default() }).to_string();
        assert_eq!(share(999_999, 1), "99.9 %");
        assert_eq!(share(0, 5), "0.0 %");
        assert_eq!(share(u64::MAX, 0), "100.0 %");
    }

    #[test]
    fn durations_are_shown_in_their_two_largest_units() {
        let span = |seconds| Span(Duration::from_secs(seconds)).to_string();
        assert_eq!(
            [span(59), span(61), span(3_700), span(90_000)],
            ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]
        );
        assert_eq!(
            [Grouped(0), Grouped(999), Grouped(1_000)].map(|n| n.to_string()),
            ["0", "999", "1\u{202f}000"]
        );
    }
}
