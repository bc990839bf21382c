//! Why a configuration is refused.

use std::fmt;

/// All errors of a configuration, one line each: file or variable, key, value and what is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<String>);

impl ConfigErrors {
    pub(super) fn new(lines: Vec<String>) -> ConfigErrors {
        ConfigErrors(lines)
    }

    /// The errors, in the order of the tables in the reference configuration.
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}
