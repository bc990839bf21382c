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

    /// The same without the lines of the file.
    #[cfg(test)]
    pub(super) fn without_places(&self) -> Vec<String> {
        let without = |error: &String| match error.split_once(": line ") {
            Some((file, rest)) => match rest.split_once(": ") {
                Some((line, rest)) if line.bytes().all(|b| b.is_ascii_digit()) => format!("{file}: {rest}"),
                _ => error.clone(),
            },
            None => error.clone(),
        };
        self.0.iter().map(without).collect()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}
