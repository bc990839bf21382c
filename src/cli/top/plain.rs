//! The hot keys as a table of text.

use super::page::{HotPage, head};
use crate::hot::Measure;

/// The table, with the sentence about its accuracy before it.
pub(super) fn table(page: &HotPage, by: Measure) -> String {
    let heads = Measure::ALL.map(|of| format!("{:>10}", head(of))).join("  ");
    let width = page.keys.iter().map(|row| row.rule.chars().count()).max().unwrap_or(0).max(4);
    let mut text = format!("by {}; {}\n{heads}  {:width$}  key\n", by.word(), page.accuracy(by), "rule");
    for row in &page.keys {
        let amounts = Measure::ALL.map(|of| format!("{:>10}", row.shown(of))).join("  ");
        text += &format!("{amounts}  {:width$}  {}\n", row.rule, row.key);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::page::tests::JSON;

    #[test]
    fn each_key_has_a_line_with_its_amounts() {
        let text = table(&HotPage::parse(JSON).unwrap(), Measure::Requests);
        let expected = "\
by requests; last 8 s, per second; 1 of 16 requests counted, wrong by at most 2.5 requests
requests/s     bytes/s    misses/s  build ms/s    spared/s  rule   key
      1234      2.5MiB         0.2        31.0         2.5  pages  blog:1:page:7
      99.0         512           -           -           -  users  user:17
       1.0           -           -           -           -  none   x\\x00y
";
        assert_eq!(text, expected);
    }
}
