//! Import circles: inside each folder of `src/`, imports among the files point one way.
//!
//! A folder's nodes are its files, its parent file (`mod.rs` or `folder.rs`) and its sub-folders. The parent file's `mod` lines
//! and its re-exports of children are no imports, and an import through a re-export counts as one of the file that defines the
//! item.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::code::{Source, line};

/// The path of a module: `["guard", "read"]`.
type Module = Vec<String>;

/// An import by one file of another.
struct Import {
    from: Module,
    to: Module,
    /// `file:line` of the import.
    at: String,
}

/// From each node to those that it imports, with the `file:line` of the import.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

/// One complaint for each folder with a circle: the shortest one.
pub(crate) fn circles(sources: &[Source]) -> Vec<String> {
    let imports = imports(sources);
    let folders: BTreeSet<Module> = imports
        .iter()
        .flat_map(|import| (0..import.from.len()).map(|depth| import.from[..depth].to_vec()))
        .collect();
    folders.iter().filter_map(|folder| circle(folder, &imports)).collect()
}

/// The shortest circle among the files of a folder.
fn circle(folder: &Module, imports: &[Import]) -> Option<String> {
    let mut edges = Edges::new();
    for Import { from, to, at } in imports {
        if let (Some(from), Some(to)) = (node(folder, from), node(folder, to))
            && from != to
        {
            edges.entry(from).or_default().entry(to).or_insert_with(|| at.clone());
        }
    }
    let path = edges.keys().filter_map(|node| back_to(node, &edges)).min_by_key(Vec::len)?;
    let steps =
        path.windows(2).map(|step| format!("{} → {} ({})", step[0], step[1], edges[step[0]][step[1]]));
    let name = if folder.is_empty() { "src".to_owned() } else { format!("src/{}", folder.join("/")) };
    Some(format!("{name}: imports form a circle: {}", steps.collect::<Vec<_>>().join(", ")))
}

/// The shortest path from a node back to itself.
fn back_to<'a>(start: &'a String, edges: &'a Edges) -> Option<Vec<&'a String>> {
    let mut before: BTreeMap<&String, &String> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        for next in edges.get(node).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut path = vec![start, node];
                while let Some(node) = before.get(path[path.len() - 1]) {
                    path.push(node);
                }
                path.dedup();
                path.reverse();
                return Some(path);
            }
            if !before.contains_key(next) {
                before.insert(next, node);
                queue.push_back(next);
            }
        }
    }
    None
}

/// What a module is in a folder; `None` if it is not inside.
fn node(folder: &Module, module: &Module) -> Option<String> {
    if !module.starts_with(folder) {
        return None;
    }
    Some(module.get(folder.len()).map_or_else(|| "the parent file".to_owned(), String::clone))
}

fn imports(sources: &[Source]) -> Vec<Import> {
    let files: BTreeMap<Module, &Source> = sources
        .iter()
        .filter(|source| source.path != "src/main.rs" && !source.shipped.is_empty())
        .map(|source| (module(&source.path), source))
        .collect();
    let uses: BTreeMap<&Module, Vec<Use>> =
        files.iter().map(|(module, source)| (module, uses(&source.shipped))).collect();
    let mut imports = Vec::new();
    for (from, source) in &files {
        for Use { path, at, .. } in &uses[from] {
            let Some(to) = defined_in(from, path, &uses, 0) else { continue };
            // The parent file re-exports what its children define.
            let child = to.len() > from.len() && to.starts_with(from);
            let re_exports = source.shipped[..*at].trim_end().ends_with([')', 'b']) && child;
            if to != *from && !re_exports {
                let at = format!("{}:{}", source.path, line(&source.text, *at));
                imports.push(Import { from: from.clone(), to, at });
            }
        }
    }
    imports
}

/// The module of a file; the crate's root for `src/lib.rs`.
fn module(path: &str) -> Module {
    let inside = path.trim_start_matches("src/").trim_end_matches(".rs");
    let inside = inside.trim_end_matches("/mod");
    inside.split('/').filter(|name| *name != "lib").map(str::to_owned).collect()
}

/// The file that defines what `path` means in `from`; `None` if it is not in this crate.
fn defined_in(
    from: &Module,
    path: &[String],
    uses: &BTreeMap<&Module, Vec<Use>>,
    depth: usize,
) -> Option<Module> {
    let mut at = from.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => (at, rest) = (Module::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|word| word == "super") {
                at.pop()?;
                rest = &rest[1..];
            }
        }
        // A child, or a crate.
        child => {
            let child = [&at[..], &[child.to_owned()]].concat();
            uses.contains_key(&child).then_some(())?;
        }
    }
    while let Some(word) = rest.first() {
        let deeper = [&at[..], std::slice::from_ref(word)].concat();
        if uses.contains_key(&deeper) {
            (at, rest) = (deeper, &rest[1..]);
            continue;
        }
        let named = uses[&at].iter().find(|other| other.name == *word && other.path != path);
        if let Some(other) = named.filter(|_| depth < 8)
            && let Some(origin) = defined_in(&at, &other.path, uses, depth + 1)
        {
            return Some(origin);
        }
        break;
    }
    Some(at)
}

/// A path that a file names, in a `use` or in passing.
struct Use {
    path: Vec<String>,
    /// What the file calls it.
    name: String,
    at: usize,
}

fn uses(code: &str) -> Vec<Use> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = code[at..].find(|c: char| c.is_alphanumeric() || c == '_').map(|i| at + i) {
        let word: &str = &code[start..];
        let word = &word[..word.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(word.len())];
        at = start + word.len();
        if word == "use" && code[at..].starts_with(char::is_whitespace) {
            let end = code[at..].find(';').map_or(code.len(), |i| at + i);
            expand(&code[at..end], &[], start, &mut found);
            at = end;
        } else if ["crate", "super"].contains(&word) && code[at..].starts_with("::") {
            let end = code[start..]
                .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
                .map_or(code.len(), |i| start + i);
            expand(code[start..end].trim_end_matches(':'), &[], start, &mut found);
            at = end;
        }
    }
    found
}

/// The paths of a tree like `a::{b, c::{self, d as e}}`.
fn expand(tree: &str, before: &[String], at: usize, found: &mut Vec<Use>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let head = head.split("::").map(str::trim).filter(|word| !word.is_empty());
        let path: Vec<String> = before.iter().cloned().chain(head.map(str::to_owned)).collect();
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        let (mut depth, mut start) = (0, 0);
        for (i, c) in group.char_indices().chain([(group.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&group[start..i], &path, at, found);
                    start = i + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
    let words = path.split("::").map(str::trim).filter(|word| !word.is_empty() && *word != "*");
    let mut path: Vec<String> = before.iter().cloned().chain(words.map(str::to_owned)).collect();
    if path.len() > 1 && path.last().is_some_and(|word| word == "self") {
        path.pop();
    }
    if let Some(last) = path.last().filter(|_| !tree.is_empty()) {
        let name = alias.map_or_else(|| last.clone(), |alias| alias.trim().to_owned());
        found.push(Use { path, name, at });
    }
}

mod tests {
    use super::*;
    use crate::tests::only;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        circles(&sources)
    }

    #[test]
    fn the_shortest_circle_of_a_folder_is_named_with_its_imports() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a/mod.rs", "mod x; mod y; mod z;\npub use x::X;\n"),
            ("src/a/x.rs", "\nuse super::y::Y;\nuse super::z::Z;\n"),
            ("src/a/y.rs", "use super::z::Z;\n"),
            ("src/a/z.rs", "fn f() -> crate::a::x::X {}\n"),
        ];
        only(of(&files), "src/a: imports form a circle: x → z (src/a/x.rs:3), z → x (src/a/z.rs:1)");
    }

    #[test]
    fn imports_through_a_re_export_and_of_sub_folders_are_found_and_one_way_imports_are_fine() {
        let files = [
            ("src/a.rs", "mod x;\nmod y;\npub(crate) use self::x::X;\npub use y::{Y as Why};\n"),
            ("src/a/x.rs", "use super::Why;\n"),
            ("src/a/y/mod.rs", "mod inner;\npub struct Y;\n"),
            ("src/a/y/inner.rs", "use crate::a::{X};\n"),
        ];
        only(of(&files), "src/a: imports form a circle: x → y (src/a/x.rs:1), y → x (src/a/y/inner.rs:1)");
        let one_way = [
            ("src/a.rs", "mod x;\nmod y;\npub use x::X;\n"),
            (
                "src/a/x.rs",
                "use super::y::{self, Y};\nuse std::fmt::{self, Display};\n#[cfg(test)]\nmod tests;\n",
            ),
            ("src/a/y.rs", "#[cfg(test)]\nmod tests {\n use super::super::x::X;\n}\n"),
        ];
        assert_eq!(of(&one_way), Vec::<String>::new());
    }

    #[test]
    fn a_parent_file_that_uses_its_children_must_not_be_used_by_them() {
        let files =
            [("src/a.rs", "mod x;\nuse x::X;\npub struct A(X);\n"), ("src/a/x.rs", "use super::A;\n")];
        only(
            of(&files),
            "src/a: imports form a circle: the parent file → x (src/a.rs:2), x → the parent file",
        );
        only(
            of(&[
                ("src/a.rs", "use crate::b::B;\npub struct A;"),
                ("src/b.rs", "fn f() { crate::a::A }\npub struct B;"),
            ]),
            "src: imports form a circle: a → b",
        );
    }
}
