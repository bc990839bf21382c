//! The commands beside serving: one file each.

pub mod check;
mod connect;
pub mod demo;
pub mod health;
pub mod tag;
