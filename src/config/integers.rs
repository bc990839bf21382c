//! Numbers that do not fit in 64 bits. TOML allows them, but the config crate refuses the whole file because of one.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Returns the text with each such number in quotes, so that the rest can be parsed, and one error line for each. Text that is
/// not TOML is returned unchanged, without an error: the parser reports it.
pub(super) fn quote_oversized(file: &str, text: &str) -> (String, Vec<String>) {
    let mut found = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        in_table(table.get_ref(), &mut found);
    }
    found.sort_by_key(|span| span.start);
    let error = |span: &Range<usize>| {
        let before = &text[..span.start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |start| start.chars().count()) + 1;
        format!("{file}: line {line}, column {column}: {} does not fit in 64 bits", &text[span.clone()])
    };
    let errors = found.iter().map(error).collect();
    let mut readable = text.to_owned();
    for span in found.into_iter().rev() {
        let quoted = format!("{:?}", &text[span.clone()]);
        readable.replace_range(span, &quoted);
    }
    (readable, errors)
}

fn in_table(table: &DeTable<'_>, found: &mut Vec<Range<usize>>) {
    table.iter().for_each(|(_, value)| in_value(value, found));
}

fn in_value(value: &Spanned<DeValue<'_>>, found: &mut Vec<Range<usize>>) {
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
