//! Numbers that do not fit into 64 bits: TOML allows them, and the config crate refuses the whole file for one.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text with each such number in quotes, so that the rest can be read, and what is wrong, a line each. Nothing is wrong with
/// a text that is not TOML: that is for others to say.
pub(super) fn replaced(file: &str, text: &str) -> (String, Vec<String>) {
    let mut found = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        in_table(table.get_ref(), &mut found);
    }
    found.sort_by_key(|span| span.start);
    let say = |span: &std::ops::Range<usize>| {
        let before = &text[..span.start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |start| start.chars().count()) + 1;
        format!("{file}: line {line}, column {column}: {} does not fit into 64 bits", &text[span.clone()])
    };
    let mistakes = found.iter().map(say).collect();
    let mut readable = text.to_owned();
    for span in found.into_iter().rev() {
        let quoted = format!("{:?}", &text[span.clone()]);
        readable.replace_range(span, &quoted);
    }
    (readable, mistakes)
}

fn in_table(table: &DeTable<'_>, found: &mut Vec<std::ops::Range<usize>>) {
    table.iter().for_each(|(_, value)| in_value(value, found));
}

fn in_value(value: &Spanned<DeValue<'_>>, found: &mut Vec<std::ops::Range<usize>>) {
    let fits = match value.get_ref() {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).is_ok(),
        DeValue::Float(number) => {
            number.as_str().contains("inf") || number.as_str().parse::<f64>().is_ok_and(|x| !x.is_infinite())
        }
        DeValue::Array(values) => {
            values.iter().for_each(|value| in_value(value, found));
            true
        }
        DeValue::Table(table) => {
            in_table(table, found);
            true
        }
        _ => true,
    };
    if !fits {
        found.push(value.span());
    }
}
