//! What a client asks.
