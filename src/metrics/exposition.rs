//! A strict parser of Prometheus's text format, for tests.

use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Debug, Default)]
pub(super) struct Exposition {
    /// Family name → type and help.
    pub(super) families: BTreeMap<String, (String, String)>,
    /// `name{label="value",…}` with its labels in order → value.
    pub(super) samples: BTreeMap<String, f64>,
    /// Family name → the label names of its samples, `le` excluded.
    pub(super) labels: HashMap<String, Vec<String>>,
}

/// Parses a page. Every line must be valid; HELP and TYPE must occur once, before their samples, which must be consecutive; no
/// series may repeat; histograms must be cumulative and end with `+Inf`, which must equal `_count`.
pub(super) fn read(page: &str) -> Result<Exposition, String> {
    let mut read = Exposition::default();
    let mut closed = HashSet::new();
    let mut current = String::new();
    if !page.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    for line in page.lines() {
        let fail = |why: &str| Err(format!("{why}: {line}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = rest.split_once(' ') else { return fail("no help") };
            if !closed.insert(name.to_owned()) {
                return fail("HELP twice");
            }
            current = name.to_owned();
            read.families.insert(name.to_owned(), (String::new(), help.to_owned()));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { return fail("no type") };
            match read.families.get_mut(name) {
                Some((set, _)) if name == current && set.is_empty() => *set = kind.to_owned(),
                _ => return fail("TYPE twice or away from HELP"),
            }
        } else {
            let (name, labels, value) = sample(line).ok_or_else(|| format!("not a sample: {line}"))?;
            let kind = read.families.get(&current).map(|(kind, _)| kind.as_str()).unwrap_or_default();
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            if kind.is_empty() || !suffixes.iter().any(|suffix| name == format!("{current}{suffix}")) {
                return fail("a sample outside its family");
            }
            let names: Vec<String> =
                labels.iter().map(|(name, _)| name.clone()).filter(|n| n != "le").collect();
            if names.iter().collect::<HashSet<_>>().len() != names.len() {
                return fail("a label twice");
            }
            if read.labels.entry(current.clone()).or_insert_with(|| names.clone()) != &names {
                return fail("other labels than the series before");
            }
            let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
            let series = format!("{name}{{{}}}", pairs.join(","));
            if kind == "counter" && value < 0.0 {
                return fail("a negative counter");
            }
            if read.samples.insert(series, value).is_some() {
                return fail("a series twice");
            }
        }
    }
    histograms(page)?;
    Ok(read)
}

/// Name, labels in order, value.
type Sample = (String, Vec<(String, String)>, f64);

/// `name{label="value",…} number`
fn sample(line: &str) -> Option<Sample> {
    let name_ends = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
    let (name, mut rest) = line.split_at(name_ends);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            if label.is_empty() || !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                return None;
            }
            let mut value = String::new();
            let mut chars = after.char_indices();
            let ends = loop {
                match chars.next()? {
                    (at, '"') => break at + 1,
                    (_, '\\') => match chars.next()?.1 {
                        'n' => value.push('\n'),
                        c @ ('\\' | '"') => value.push(c),
                        _ => return None,
                    },
                    (_, c) => value.push(c),
                }
            };
            labels.push((label.to_owned(), value));
            rest = &after[ends..];
            if let Some(more) = rest.strip_prefix(',') {
                rest = more;
            } else {
                rest = rest.strip_prefix('}')?;
                break;
            }
        }
    }
    let number = rest.strip_prefix(' ')?;
    (!name.is_empty()).then_some(())?;
    Some((name.to_owned(), labels, number.parse().ok()?))
}

fn histograms(page: &str) -> Result<(), String> {
    let mut last: Option<(String, f64, f64)> = None;
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, mut labels, value) = sample(line).ok_or_else(|| format!("not a sample: {line}"))?;
        if let Some(family) = name.strip_suffix("_bucket") {
            let (_, le) =
                labels.pop().filter(|(name, _)| name == "le").ok_or_else(|| format!("no le: {line}"))?;
            let le: f64 = le.parse().map_err(|_| format!("le is not a number: {line}"))?;
            let series = format!("{family}{labels:?}");
            match &last {
                Some((same, bound, count)) if *same == series && (*bound >= le || *count > value) => {
                    return Err(format!("not cumulative: {line}"));
                }
                _ => last = Some((series, le, value)),
            }
        } else if let (Some(family), Some((series, bound, count))) = (name.strip_suffix("_count"), &last)
            && *series == format!("{family}{labels:?}")
            && (*bound != f64::INFINITY || *count != value)
        {
            return Err(format!("+Inf is missing or is not the count: {line}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prometheus_rejects_is_rejected() {
        let head = "# HELP a_total Some.\n# TYPE a_total counter\n";
        let histogram = "# HELP h Some.\n# TYPE h histogram\n";
        let cases = [
            ("a_total 1\n".to_owned(), "outside"),
            (format!("{head}a_total 1"), "does not end"),
            (format!("{head}a_total 1\na_total 2\n"), "series twice"),
            (format!("{head}{head}"), "HELP twice"),
            (format!("{head}b_total 1\n"), "outside"),
            (format!("{head}a_total{{x=\"1\"}} 1\na_total{{y=\"1\"}} 1\n"), "other labels"),
            (format!("{head}a_total{{x=\"1}} 1\n"), "not a sample"),
            (format!("{head}a_total one\n"), "not a sample"),
            (format!("{head}a_total -1\n"), "negative"),
            (format!("{head}\n"), "not a sample"),
            (format!("{histogram}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\n"), "not cumulative"),
            (format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 2\n"), "is not the count"),
            (format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_sum 1\nh_count 1\n"), "+Inf is missing"),
        ];
        for (page, why) in cases {
            let error = read(&page).expect_err(&page);
            assert!(error.contains(why), "{error:?} should contain {why:?}");
        }
        let read = read(&format!("{head}a_total{{x=\"q\\\"\\\\\\n\"}} 1\n")).unwrap();
        assert_eq!(read.samples["a_total{x=\"q\\\"\\\\\\n\"}"], 1.0);
    }
}
