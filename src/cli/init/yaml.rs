//! YAML as tables, lists and texts. twemproxy reads all scalars as texts too.

use saphyr_parser::{Event, Parser};
use serde_json::{Map, Value};

/// A list or table that has begun.
enum Open {
    List(Vec<Value>),
    /// With the key whose value comes next.
    Table(Map<String, Value>, Option<String>),
}

/// Reads the first document.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| format!("is not YAML: {error}"))?;
        let value = match event {
            Event::Scalar(text, ..) => Value::String(text.into_owned()),
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Table(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(list)) => Value::Array(list),
                Some(Open::Table(table, _)) => Value::Object(table),
                None => continue,
            },
            Event::Alias(..) => return Err("has an alias (*name): write out what it stands for".to_owned()),
            _ => continue,
        };
        match (open.last_mut(), value) {
            (None, value) => return Ok(value),
            (Some(Open::List(list)), value) => list.push(value),
            (Some(Open::Table(table, key)), value) => match (key.take(), value) {
                (Some(key), value) => drop(table.insert(key, value)),
                (None, Value::String(text)) => *key = Some(text),
                (None, _) => return Err("has a key that is no text".to_owned()),
            },
        }
    }
    Err("is empty".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_scalars_are_texts() {
        let text = "# c\na:\n  b: 1\n  'c': \"{}\"\n  d:\n   - x:1 y\n   - true # no\ne: {f: [1, 2]}\n";
        let expected =
            json!({ "a": { "b": "1", "c": "{}", "d": ["x:1 y", "true"] }, "e": { "f": ["1", "2"] } });
        assert_eq!(parse(text), Ok(expected));
        for wrong in ["", "a: [1", "a: &x 1\nb: *x", "{[1]: 2}"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
