//! The commands beside serving: one file each.

pub mod check;
