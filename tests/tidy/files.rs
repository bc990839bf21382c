//! The files to check.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// All written files with their paths: sources, pages, configurations, scripts.
pub(crate) fn texts() -> Vec<(String, String)> {
    let folders = [
        "src",
        "tests",
        "benches",
        "bench",
        "fuzz",
        "docs",
        "config",
        "deploy",
        "packaging",
        "scripts",
        ".ci",
        ".config",
        ".github",
    ];
    let top = [
        "README.md",
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Cargo.toml",
        "book.toml",
        "build.rs",
        "clippy.toml",
        "deny.toml",
        "rustfmt.toml",
    ];
    let all = folders.iter().chain(&top).flat_map(|path| files(path));
    // Generated files may have any length, and those of others any form.
    let foreign = ["tests/golden/", "src/admin/page/uplot/"];
    let written =
        all.filter(|path| !foreign.iter().any(|folder| path.starts_with(folder)) && !path.ends_with(".lock"));
    written
        .filter_map(|path| Some((fs::read_to_string(root().join(&path)).ok()?, path)))
        .map(|(t, p)| (p, t))
        .collect()
}

/// Every file below a directory or the file itself, by its path in the repository.
pub(crate) fn files(path: &str) -> Vec<String> {
    let there = root().join(path);
    let Ok(entries) = fs::read_dir(&there) else {
        return there.exists().then(|| path.to_owned()).into_iter().collect();
    };
    let names = entries.map(|entry| entry.expect("an entry of a directory just listed").file_name());
    let mut names: Vec<String> = names.map(|name| format!("{path}/{}", name.to_string_lossy())).collect();
    names.sort();
    // fuzz/ is a package of its own, with its own target directory.
    names.retain(|name| {
        !["target", "corpus", "artifacts"].iter().any(|built| name.ends_with(&format!("/{built}")))
    });
    names.iter().flat_map(|name| files(name)).collect()
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::ParentDir => drop(normal.pop()),
            component => normal.push(component),
        }
        normal
    })
}
