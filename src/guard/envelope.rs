//! The header in front of a guarded value.
