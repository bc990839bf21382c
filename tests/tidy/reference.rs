//! config/kennel.toml, as the tables of docs/configuration.md give it: each key is written down once.

/// The longest line of comments.
const WIDTH: usize = 130;
/// What precedes the keys.
const HEAD: &str = "\
Reference configuration: every key with its default. An omitted key has the value shown here. Keys marked \"Required\" have no default, \
and their values are examples, as are those of commented keys that name a file or an address. docs/configuration.md says the same, and \
more. `kennel check FILE` prints what a file means, or every error in it.
Durations are integers with a unit: ms, s, m, h, d. Sizes: B, KiB, MiB, GiB. An unknown key is an error.
Environment variables override the file: KENNEL_TAGS__CACHE=100ms, KENNEL_LISTEN__TCP=127.0.0.1:1,127.0.0.1:2 (lists are separated \
by commas), KENNEL_POOLS__MAIN__REQUEST_TIMEOUT=1s, KENNEL_RULES__0__STALE_FOR=5m (rules count from 0). A single _ may replace __ where \
the name remains unambiguous: KENNEL_ADMIN_LISTEN. Keys of a table inside a list have no variable.";

/// A row `` | `tcp` | list | `[]` | … | `` of the page.
struct Row<'p> {
    /// Of the heading `` ## Listeners: `[listen]` `` above it: `[listen]`, or nothing if the key stands outside all tables.
    table: &'p str,
    /// Of the heading `### …` between, if there is one.
    part: Option<&'p str>,
    cells: [&'p str; 4],
}

impl<'p> Row<'p> {
    fn name(&self) -> &'p str {
        self.cells[0].trim_matches('`')
    }

    /// What the key does, and what it takes.
    fn comment(&self) -> String {
        let [_, takes, default, meaning] = self.cells;
        let required = if default.starts_with("required") { "Required. " } else { "" };
        let mut takes = plain(takes);
        if let Some(first) = takes.get(..1).map(str::to_ascii_uppercase) {
            takes.replace_range(..1, &first);
        }
        format!("{required}{} {takes}.", plain(meaning))
    }
}

/// The tables of keys, in order.
fn rows(page: &str) -> Vec<Row<'_>> {
    let (mut rows, mut table, mut part, mut is_keys) = (Vec::new(), None, None, false);
    for line in page.lines() {
        if line.starts_with("## ") {
            // A key without a table has a section of its own.
            table = line.split('`').nth(1).map(|code| if code.starts_with('[') { code } else { "" });
            part = None;
        } else if let Some(title) = line.strip_prefix("### ") {
            part = Some(title);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match (table, &cells[..]) {
            (Some(_), ["", "key", "type", "default", "meaning", ""]) => is_keys = true,
            (Some(table), ["", name, takes, default, meaning, ""]) if is_keys && name.starts_with('`') => {
                rows.push(Row { table, part, cells: [name, takes, default, meaning] });
            }
            (_, [_]) => is_keys = false,
            _ => {}
        }
    }
    rows
}

/// The reference that the page describes. Under `### Entries of …` are keys of tables inside lists: comments. Under any other `###` are
/// keys that are not always allowed: commented out, as are those whose default cell is "none, as `an example`".
pub(crate) fn reference(page: &str) -> String {
    let mut text = HEAD.lines().map(|line| wrapped("# ", "# ", line)).collect::<Vec<_>>().join("#\n");
    let (mut table, mut part) = ("", None);
    for row in rows(page) {
        if row.table != table || row.table.is_empty() {
            text.push('\n');
            text.push_str(row.table);
            text.push_str(if row.table.is_empty() { "" } else { "\n" });
        }
        let entries = row.part.and_then(|title| title.strip_prefix("Entries of "));
        match (row.part, entries) {
            (Some(_), Some(lists)) if row.part != part => {
                text.push_str(&wrapped("# ", "# ", &format!("An entry of {} may be a table:", plain(lists))));
            }
            (Some(title), None) if row.part != part => {
                text.push_str(&wrapped("# ", "# ", &format!("{title}:")))
            }
            _ => {}
        }
        (table, part) = (row.table, row.part);
        if entries.is_some() {
            let default = match row.cells[2] {
                "none" => String::new(),
                default if default.starts_with("required") => String::new(),
                default => format!(" Default: {}.", plain(default)),
            };
            let first = format!("#   {:13} ", row.name());
            text.push_str(&wrapped(
                &first,
                &format!("#{}", " ".repeat(first.len() - 1)),
                &(row.comment() + &default),
            ));
            continue;
        }
        text.push_str(&wrapped("# ", "# ", &row.comment()));
        let default = row.cells[2];
        let value = default.split_once('`').and_then(|(_, rest)| rest.strip_suffix('`')).unwrap_or("?");
        let is_comment = row.part.is_some() || default.starts_with("none");
        text.push_str(&format!("{}{} = {value}\n", if is_comment { "# " } else { "" }, row.name()));
    }
    text
}

/// Code like `` `listen.tcp` `` of the page that names no key of a table that it has.
pub(crate) fn unknown_keys(page: &str) -> Vec<String> {
    let rows = rows(page);
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        for code in line.split('`').skip(1).step_by(2) {
            let Some((table, name)) = code.split_once('.').filter(|(_, name)| is_key(name)) else { continue };
            let mut of_table = rows.iter().filter(|row| row.table == format!("[{table}]")).peekable();
            if of_table.peek().is_some() && !of_table.any(|row| row.name() == name) {
                problems.push(format!("docs/configuration.md:{number}: names {code}, which is no key"));
            }
        }
    }
    problems
}

fn is_key(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Without the marks of code and links.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    // The bracket before a link's text, and no other.
    let links = cell.matches("](").count();
    let mut kept = String::new();
    let (mut in_code, mut left) = (false, links);
    for c in text.chars() {
        match c {
            '`' => in_code = !in_code,
            '[' if !in_code && left > 0 => left -= 1,
            c => kept.push(c),
        }
    }
    kept
}

/// Lines of at most [`WIDTH`] characters; the last one ends too.
fn wrapped(first: &str, next: &str, text: &str) -> String {
    let (mut lines, mut line) = (String::new(), first.to_owned());
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push_str(line.trim_end());
            lines.push('\n');
            line = next.to_owned();
            is_empty = true;
        }
        line.push_str(if is_empty { "" } else { " " });
        line.push_str(word);
        is_empty = false;
    }
    lines + line.trim_end() + "\n"
}

mod tests {
    use super::*;
    use crate::tests::only;

    const PAGE: &str = "# C\n| `x` | | |\n## R: `r`\n| key | type | default | meaning |\n|---|---|---|---|\n\
        | `r` | `\"a\"` or `\"b\"` | `\"a\"` | What. |\n\n## L: `[listen]`\n| key | type | default | meaning |\n|---|---|---|---|\n\
        | `tcp` | list | `[\"a:1\"]` | Where `listen.name` [says](#l) `[x]`. |\n| `name` | string | required, as `\"n\"` | Who. |\n\
        | `tls` | table | none, as `{ }` | How. |\n\n### Entries of `listen.tcp`\n| key | type | default | meaning |\n|---|---|---|---|\n\
        | `key` | string | the name | Its key. |\n\n### Later\n| key | type | default | meaning |\n|---|---|---|---|\n| `more` | 1 or 2 | `1` | How many. |\n\n\
        | other | table |\n|---|---|\n| `y` | z |\n";

    #[test]
    fn the_reference_has_the_keys_of_the_page_and_shows_what_is_an_example() {
        let reference = reference(PAGE);
        let (_, keys) = reference.split_once("\n\n").expect("an empty line before the keys");
        assert_eq!(
            keys,
            "# What. \"a\" or \"b\".\nr = \"a\"\n\n[listen]\n# Where listen.name says [x]. List.\ntcp = [\"a:1\"]\n\
             # Required. Who. String.\nname = \"n\"\n# How. Table.\n# tls = { }\n# An entry of listen.tcp may be a table:\n\
             #   key           Its key. String. Default: the name.\n# Later:\n# How many. 1 or 2.\n# more = 1\n"
        );
    }

    #[test]
    fn a_key_that_the_page_names_and_does_not_have_is_found() {
        assert_eq!(unknown_keys(PAGE), Vec::<String>::new());
        only(
            unknown_keys(&PAGE.replace("listen.name", "listen.names")),
            "names listen.names, which is no key",
        );
    }

    #[test]
    fn no_line_is_longer_than_the_width() {
        let text = wrapped("#   key  ", "#        ", &"word ".repeat(60));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 60);
    }
}
