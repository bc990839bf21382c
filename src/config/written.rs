//! A configuration as a file again, with what the environment has set.

use config::{Map, Value, ValueKind};

/// One line for each table of the top level.
pub(super) fn written(root: &Map<String, Value>) -> String {
    entries(root).into_iter().map(|entry| format!("{entry}\n")).collect()
}

/// `"key" = value` for each, by the key.
fn entries(table: &Map<String, Value>) -> Vec<String> {
    let mut all: Vec<_> = table.iter().collect();
    all.sort_by_key(|(key, _)| *key);
    all.into_iter().map(|(key, value)| format!("{} = {}", string(key), toml(value))).collect()
}

fn toml(value: &Value) -> String {
    match &value.kind {
        ValueKind::String(text) => string(text),
        ValueKind::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        ValueKind::Table(table) => format!("{{ {} }}", entries(table).join(", ")),
        ValueKind::Float(number) => format!("{number:?}"),
        other => other.to_string(),
    }
}

/// A basic string of TOML.
fn string(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

#[cfg(test)]
mod tests {
    use crate::config::load;

    #[test]
    fn it_is_read_as_what_it_was_made_of() {
        let text = "reload = \"watch\"\n[pools.main]\nservers = [\"a:1\", { address = \"b:2\", weight = 2 }, \"c:3\"]\n\
                    [pools.\"x.y\"]\nservers = [\"d:4\"]\n[[rules]]\nname = \"r\"\nmatch = \"a\\\"\\\\é:{id}\"\n\
                    tags = [\"t:{id}\", \"u\"]\nearly_beta = 1.0\n[[rules]]\nname = \"s\"\nmatch = \"*\"\nkind = \"raw\"\n";
        let env = [("KENNEL_TAGS__CACHE".to_owned(), "1s".to_owned())];
        let loaded = load::read("k.toml", text, env).unwrap();
        let again = load::read("k.toml", &loaded.written, []).unwrap();
        assert_eq!((&again.config, &again.key_values), (&loaded.config, &loaded.key_values));
        assert_eq!(again.written, loaded.written);
    }
}
