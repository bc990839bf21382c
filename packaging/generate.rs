//! Writes what is generated from the arguments of the command line, for packages: man pages, and completions for shells.
//!
//! ```sh
//! cargo run --example generate -- DIRECTORY
//! ```
//!
//! writes `man/kennel.1`, a page for each command such as `man/kennel-check.1`, and `completions/kennel.bash`, `_kennel` (zsh) and
//! `kennel.fish`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::{Shell, generate_to};
use kennel::cli::arguments::Arguments;

fn main() -> io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(io::Error::other("usage: generate DIRECTORY"));
    };
    pages(&directory.join("man"))?;
    completions(&directory.join("completions"))
}

fn pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let command = Arguments::command().version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory)
}

fn completions(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut Arguments::command(), "kennel", directory)?;
    }
    Ok(())
}
