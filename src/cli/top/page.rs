//! The hot keys as the sidecar sends them.

use serde::Deserialize;

use crate::hot::Measure;

/// The reply to `GET /hot`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct HotPage {
    /// Over about how many seconds was counted.
    pub(super) seconds: f64,
    /// One of so many requests was counted.
    pub(super) counted_one_of: u32,
    pub(super) keys: Vec<Row>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct Row {
    pub(super) key: String,
    pub(super) rule: String,
    requests: Option<Amount>,
    bytes: Option<Amount>,
    misses: Option<Amount>,
    rebuild: Option<Amount>,
    /// Absent in the reply of an earlier version.
    #[serde(default)]
    spared: Option<Amount>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub(super) struct Amount {
    pub(super) per_second: f64,
    pub(super) error: f64,
}

impl HotPage {
    /// What the sidecar has sent.
    ///
    /// # Errors
    /// It is not what this version expects: a sentence.
    pub(super) fn parse(text: &str) -> Result<HotPage, String> {
        serde_json::from_str(text).map_err(|error| format!("the sidecar's reply is not understood: {error}"))
    }

    /// The largest error of a measure, per second.
    pub(super) fn largest_error(&self, by: Measure) -> f64 {
        self.keys.iter().filter_map(|row| row.amount(by)).map(|amount| amount.error).fold(0.0, f64::max)
    }

    /// What the numbers mean, in one sentence.
    pub(super) fn accuracy(&self, by: Measure) -> String {
        let counted = match self.counted_one_of {
            0 | 1 => "every request counted".to_owned(),
            n => format!("1 of {n} requests counted"),
        };
        let error = match self.largest_error(by) {
            error if error < 0.000_05 => String::new(),
            error => format!(", wrong by at most {} {}", number(by, error), noun(by)),
        };
        format!("last {:.0} s, per second; {counted}{error}", self.seconds)
    }
}

impl Row {
    pub(super) fn amount(&self, of: Measure) -> Option<Amount> {
        match of {
            Measure::Requests => self.requests,
            Measure::Bytes => self.bytes,
            Measure::Misses => self.misses,
            Measure::Rebuild => self.rebuild,
            Measure::Spared => self.spared,
        }
    }

    /// The amount as text; `-` if it is too small to be known.
    pub(super) fn shown(&self, of: Measure) -> String {
        self.amount(of).map_or_else(|| "-".to_owned(), |amount| number(of, amount.per_second))
    }
}

/// The head of a column.
pub(super) fn head(of: Measure) -> &'static str {
    match of {
        Measure::Requests => "requests/s",
        Measure::Bytes => "bytes/s",
        Measure::Misses => "misses/s",
        Measure::Rebuild => "build ms/s",
        Measure::Spared => "spared/s",
    }
}

fn noun(of: Measure) -> &'static str {
    if of == Measure::Spared { "spared builds" } else { of.word() }
}

/// An amount with its unit, at most 8 characters.
fn number(of: Measure, amount: f64) -> String {
    match of {
        Measure::Bytes => match amount {
            ..1024.0 => format!("{amount:.0}"),
            1024.0..1_048_576.0 => format!("{:.1}KiB", amount / 1024.0),
            1_048_576.0..1_073_741_824.0 => format!("{:.1}MiB", amount / 1_048_576.0),
            _ => format!("{:.1}GiB", amount / 1_073_741_824.0),
        },
        Measure::Rebuild => decimal(amount * 1000.0),
        Measure::Requests | Measure::Misses | Measure::Spared => decimal(amount),
    }
}

fn decimal(amount: f64) -> String {
    if amount < 100.0 { format!("{amount:.1}") } else { format!("{amount:.0}") }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Three keys with different amounts.
    pub(in crate::cli::top) const JSON: &str = r#"{"by":"requests","seconds":8.5,"half_life_seconds":5.0,"counters":128,
        "counted_one_of":16,"keys":[
        {"key":"blog:1:page:7","rule":"pages","requests":{"per_second":1234.5,"error":0.0},"bytes":{"per_second":2600000.0,"error":0.0},
         "misses":{"per_second":0.25,"error":0.0},"rebuild":{"per_second":0.031,"error":0.0},
         "spared":{"per_second":2.5,"error":0.0}},
        {"key":"user:17","rule":"users","requests":{"per_second":99.0,"error":2.5},"bytes":{"per_second":512.0,"error":0.0},
         "misses":null,"rebuild":null},
        {"key":"x\\x00y","key_base64":"eAB5","rule":"none","requests":{"per_second":1.0,"error":0.0},"bytes":null,"misses":null,"rebuild":null}]}"#;

    #[test]
    fn a_page_says_how_exact_it_is() {
        let page = HotPage::parse(JSON).unwrap();
        assert_eq!(
            page.accuracy(Measure::Requests),
            "last 8 s, per second; 1 of 16 requests counted, wrong by at most 2.5 requests"
        );
        assert_eq!(page.accuracy(Measure::Misses), "last 8 s, per second; 1 of 16 requests counted");
        assert!(HotPage::parse("<html>").unwrap_err().contains("not understood"));
    }

    #[test]
    fn amounts_are_short() {
        let shown = |of, amount| number(of, amount);
        assert_eq!(shown(Measure::Requests, 12.34), "12.3");
        assert_eq!(shown(Measure::Requests, 123_456.7), "123457");
        assert_eq!(shown(Measure::Rebuild, 0.0123), "12.3");
        for (bytes, text) in [(1023.0, "1023"), (2048.0, "2.0KiB"), (3e6, "2.9MiB"), (5e9, "4.7GiB")] {
            assert_eq!(shown(Measure::Bytes, bytes), text);
        }
    }
}
