//! Arguments, exit codes, signals.
fn main() {}
