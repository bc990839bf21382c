//! Which server holds a key.
