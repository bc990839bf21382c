//! Whether dashboards, alerts and pages query metrics that exist, by labels and values that they have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Labels that Prometheus and the scrape configurations add.
const OF_TARGETS: [&str; 4] = ["instance", "job", "namespace", "pod"];

/// What docs/metrics.md says, which a test compares with the code.
pub(crate) struct Metrics {
    /// Labels, by the name of a series: a histogram has three.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Values, by metric and label.
    values: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Metrics {
    pub(crate) fn of_page(page: &str) -> Metrics {
        let mut metrics = Metrics { labels: BTreeMap::new(), values: BTreeMap::new() };
        let table = page.split("<!-- table -->").nth(1).unwrap_or_default();
        let code =
            |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
        for line in table.split("<!-- end of table -->").next().unwrap_or_default().lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            match cells[..] {
                ["", name, "counter" | "gauge", labels, _, ""] => {
                    metrics.labels.insert(name.trim_matches('`').to_owned(), code(labels));
                }
                ["", name, "histogram", labels, _, ""] => {
                    for suffix in ["_bucket", "_sum", "_count"] {
                        let mut labels = code(labels);
                        labels.extend((suffix == "_bucket").then(|| "le".to_owned()));
                        metrics.labels.insert(format!("{}{suffix}", name.trim_matches('`')), labels);
                    }
                }
                ["", label, metric, values, ""] if metric.starts_with('`') => {
                    let key = (metric.trim_matches('`').to_owned(), label.trim_matches('`').to_owned());
                    metrics.values.insert(key, values.split(", ").map(str::to_owned).collect());
                }
                _ => {}
            }
        }
        metrics
    }
}

/// The queries of a Grafana dashboard, each with the title of its panel, and the mistakes of the dashboard itself.
pub(crate) fn dashboard(path: &str, text: &str) -> (Vec<(String, String)>, Vec<String>) {
    let dashboard: Value = match serde_json::from_str(text) {
        Ok(dashboard) => dashboard,
        Err(error) => return (Vec::new(), vec![format!("{path}: {error}")]),
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (mut queries, mut problems, mut ids) = (Vec::new(), Vec::new(), BTreeSet::new());
    for panel in list(&dashboard["panels"]) {
        let at = format!("{path}: {:?}", text(&panel["title"]));
        if !ids.insert(panel["id"].to_string()) {
            problems.push(format!("{at}: the id of another panel"));
        }
        let targets = list(&panel["targets"]);
        if targets.is_empty() && panel["type"] != "row" {
            problems.push(format!("{at}: no query"));
        }
        queries.extend(targets.iter().map(|target| (at.clone(), text(&target["expr"]))));
    }
    let variables = list(&dashboard["templating"]["list"]);
    queries.extend(variables.iter().map(|variable| (format!("{path}: variable"), text(&variable["query"]))));
    if queries.len() < 10 {
        problems.push(format!("{path}: only {} queries found", queries.len()));
    }
    (queries, problems)
}

/// The alerts of a file of rules that a page does not list, or that have no test.
pub(crate) fn unlisted_alerts(rules: &str, page: &str, tests: &str) -> Vec<String> {
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut problems = Vec::new();
    for alert in alerts {
        if !page.contains(&format!("| `{alert}` |")) {
            problems.push(format!("docs/operations.md: the table of alerts has no {alert}"));
        }
        let is_tested =
            |of: &str| of.lines().next().is_some_and(|name| name == alert) && of.contains("exp_labels");
        if !tests.split("- alertname: ").any(is_tested) {
            problems.push(format!("deploy/prometheus/kennel.rules.test.yml: no test in which {alert} fires"));
        }
    }
    problems
}

/// The metrics that no query shows and `unshown` does not list, and what it lists in vain.
pub(crate) fn unshown_metrics(
    path: &str,
    queries: &[(String, String)],
    metrics: &Metrics,
    unshown: &[(&str, &str)],
) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let shown: BTreeSet<&str> = queries.iter().flat_map(|(_, query)| query.split(|c| !is_part(c))).collect();
    let name = |series: &String| match series.strip_suffix("_bucket") {
        Some(histogram) => Some(histogram.to_owned()),
        None if series.ends_with("_sum") || series.ends_with("_count") => None,
        None => Some(series.clone()),
    };
    let is_shown = |name: &str| {
        ["", "_bucket", "_sum", "_count"].iter().any(|suffix| shown.contains(&*format!("{name}{suffix}")))
    };
    let names: Vec<String> = metrics.labels.keys().filter_map(name).collect();
    let is_listed = |name: &String| unshown.iter().any(|(listed, _)| listed == name);
    let missing = names.iter().filter(|name| !is_shown(name) && !is_listed(name));
    let missing = missing.map(|name| format!("{path}: no panel shows {name}"));
    let in_vain =
        unshown.iter().filter(|(listed, _)| is_shown(listed) || !names.iter().any(|name| name == listed));
    let in_vain = in_vain.map(|(listed, _)| {
        format!("{path}: {listed} is shown, or does not exist, and is listed as not shown")
    });
    missing.chain(in_vain).collect()
}

/// Names of our metrics in a text with queries that do not exist; labels in `{…}` behind them, in `by (…)` and in `without (…)` that
/// they do not have; and values of labels that do not occur. `has_prose` if the text is more than a query.
pub(crate) fn wrong_queries(at: &str, text: &str, has_prose: bool, metrics: &Metrics) -> Vec<String> {
    let mut problems = Vec::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let word = &rest[start..];
        let word = &word[..word.find(|c| !is_part(c)).unwrap_or(word.len())];
        rest = &rest[start + word.len()..];
        if word.starts_with("kennel_") || word.starts_with("process_") {
            let Some(labels) = metrics.labels.get(word) else {
                // Prose names groups of metrics, histograms without their suffixes, and a line of `stats`.
                let group = format!("{}_", word.trim_end_matches('_'));
                let is_group = has_prose && metrics.labels.keys().any(|name| name.starts_with(&group));
                // A package is named kennel_0.1.0.
                let is_file = word.starts_with("kennel_0");
                if !is_group && !is_file && word != "kennel_version" {
                    problems.push(format!("{at}: there is no metric {word}"));
                }
                continue;
            };
            let matchers = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
            for matcher in matchers.split(", ").flat_map(|m| m.split(',')).filter(|m| !m.is_empty()) {
                let label = matcher.split(['=', '!']).next().unwrap_or_default().trim();
                if !labels.contains(label) && !OF_TARGETS.contains(&label) {
                    problems.push(format!("{at}: {word} has no label {label:?}"));
                }
                let value = matcher.split('"').nth(1).unwrap_or_default();
                let known = metrics.values.get(&(word.to_owned(), label.to_owned()));
                let Some(known) = known.filter(|_| !value.starts_with('$')) else { continue };
                // A table of a page writes `\|`, and `miss.*` stands for all that begin so.
                let is_known = |one: &&str| match one.strip_suffix(".*") {
                    Some(prefix) => known.iter().any(|value| value.starts_with(prefix)),
                    None => known.contains(*one),
                };
                let wrong = value.split('|').map(|one| one.trim_end_matches('\\')).find(|one| !is_known(one));
                if let Some(wrong) = wrong {
                    problems.push(format!("{at}: {word} has no {label}={wrong:?}"));
                }
            }
        }
        if let ("by" | "without", Some(list)) = (word, rest.trim_start().strip_prefix('(')) {
            for label in list.split(')').next().unwrap_or_default().split(',').map(str::trim) {
                let is_known = |labels: &BTreeSet<String>| labels.contains(label);
                if !metrics.labels.values().any(is_known) && !OF_TARGETS.contains(&label) {
                    problems.push(format!("{at}: no metric has the label {label:?}"));
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(query: &str) -> Vec<String> {
        let page = "<!-- table -->\n| `kennel_a_total` | counter | `end`, `rule` | A. |\n| `kennel_h` | histogram | `rule` | H. |\n\n\
                    | label | metric | values |\n| `end` | `kennel_a_total` | filled, lost |\n<!-- end of table -->";
        wrong_queries("x", query, false, &Metrics::of_page(page))
    }

    #[test]
    fn a_metric_label_or_value_that_does_not_exist_is_found() {
        for right in [
            "sum by (rule) (rate(kennel_a_total{end=~\"filled|lo.*\", job=\"$job\"}[5m]))",
            "histogram_quantile(0.5, sum by (le) (kennel_h_bucket{rule=\"$rule\", instance=\"i\"}))",
        ] {
            assert_eq!(wrong(right), [""; 0], "{right}");
        }
        for (query, problem) in [
            ("rate(kennel_b_total[5m])", "x: there is no metric kennel_b_total"),
            ("rate(kennel_h[5m])", "x: there is no metric kennel_h"),
            ("kennel_a_total{why=\"lost\"}", "x: kennel_a_total has no label \"why\""),
            ("kennel_a_total{rule=\"r\",end!~\"filled|dead\"}", "x: kennel_a_total has no end=\"dead\""),
            ("kennel_h_sum{le=\"1\"}", "x: kennel_h_sum has no label \"le\""),
            ("sum without (server) (kennel_a_total)", "x: no metric has the label \"server\""),
        ] {
            assert_eq!(wrong(query), [problem], "{query}");
        }
    }

    #[test]
    fn a_metric_that_no_panel_shows_is_found_unless_it_is_listed_with_a_reason() {
        let page = "<!-- table -->\n| `kennel_a_total` | counter |  | A. |\n| `kennel_h` | histogram |  | H. |\n\
                    | `kennel_a` | gauge |  | A. |\n<!-- end of table -->";
        let metrics = Metrics::of_page(page);
        let unshown = |query: &str, listed: &[(&str, &str)]| {
            unshown_metrics("d", &[("p".to_owned(), query.to_owned())], &metrics, listed)
        };
        assert_eq!(unshown("kennel_a + rate(kennel_a_total[5m]) / kennel_h_sum", &[]), [""; 0]);
        assert_eq!(unshown("kennel_h_bucket + kennel_a{x=\"y\"}", &[]), ["d: no panel shows kennel_a_total"]);
        assert_eq!(unshown("kennel_h_count + kennel_a", &[("kennel_a_total", "why")]), [""; 0]);
        let in_vain = unshown(
            "kennel_h_count + kennel_a + kennel_a_total",
            &[("kennel_a", "why"), ("kennel_b", "why")],
        );
        assert_eq!(in_vain.len(), 2, "{in_vain:?}");
    }

    #[test]
    fn an_alert_that_is_not_on_the_page_or_never_fires_in_a_test_is_found() {
        let (rules, page) =
            ("- alert: A\n  expr: up\n- alert: B\n  expr: up", "| `A` | page | a |\n| `B` | page | b |");
        let test = |name: &str, labels: &str| format!("- alertname: {name}\n  exp_alerts: {labels}\n");
        let both = test("A", "[exp_labels]") + &test("B", "[exp_labels]");
        assert_eq!(unlisted_alerts(rules, page, &both), [""; 0]);
        assert_eq!(unlisted_alerts(rules, "| `A` | page | a |", &both).len(), 1);
        assert_eq!(unlisted_alerts(rules, page, &(test("A", "[exp_labels]") + &test("B", "[]"))).len(), 1);
    }

    #[test]
    fn a_panel_without_a_query_or_with_the_id_of_another_is_found() {
        let panel = |id| format!(r#"{{"id": {id}, "title": "p{id}", "targets": [{{"expr": "up"}}]}}"#);
        let panels: Vec<String> = (0..10).map(panel).collect();
        let of = |more: &str| {
            let (queries, problems) =
                dashboard("d", &format!(r#"{{"panels": [{}{more}]}}"#, panels.join(",")));
            (queries.len(), problems)
        };
        assert_eq!(of(""), (10, vec![]));
        assert_eq!(of(r#", {"id": 10, "type": "row", "title": "r"}"#).1, [""; 0]);
        assert_eq!(of(r#", {"id": 10, "type": "stat", "title": "s"}"#).1, ["d: \"s\": no query"]);
        assert_eq!(of(&format!(", {}", panel(3))).1, ["d: \"p3\": the id of another panel"]);
        assert_eq!(dashboard("d", "{").1.len(), 1);
    }
}
