//! Sets `KENNEL_REVISION`, the commit that is built: for `kennel --version` and `kennel_build_info`.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=KENNEL_REVISION");
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var("KENNEL_REVISION").ok().filter(|revision| !revision.is_empty());
    let revision = given.or_else(of_package).or_else(of_checkout);
    println!("cargo::rustc-env=KENNEL_REVISION={}", revision.as_deref().unwrap_or("unknown"));
}

/// The commit that `cargo package` has noted in the crate.
fn of_package() -> Option<String> {
    let noted = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = noted.split_once("\"sha1\": \"")?;
    Some(rest.get(..12)?.to_owned())
}

/// The commit of the git checkout, with `-dirty` behind it if a file differs. Release builds only: the others are not installed, and
/// need not be built anew after each commit.
fn of_checkout() -> Option<String> {
    if env::var("PROFILE").ok()? != "release" || !Path::new(".git").exists() {
        return None;
    }
    // All commands that change HEAD write this file.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    for read in ["src", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={read}");
    }
    git(&["describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
