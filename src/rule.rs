//! Which rule a key falls under, and what its tags are called.
