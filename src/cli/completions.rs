//! `kennel completions SHELL`.

use std::io;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::arguments::Arguments;
use super::check::print;

/// Prints the completions of a shell.
pub fn run(shell: Shell) -> ExitCode {
    let mut text = Vec::new();
    generate(shell, &mut Arguments::command(), "kennel", &mut text);
    print(&mut io::stdout(), &String::from_utf8_lossy(&text), ExitCode::SUCCESS)
}
