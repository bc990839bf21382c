//! The commands beside serving: one file each.

pub mod check;
pub mod demo;
pub mod health;
pub mod tag;
