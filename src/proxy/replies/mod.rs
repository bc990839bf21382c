//! What a command's outcome is to its client: the bytes of the reply, in the classic or the meta protocol.

pub(crate) mod binary;
pub(crate) mod cause;
pub(crate) mod classic;
pub(crate) mod dialect;
pub(crate) mod large;
pub(crate) mod meta;
pub(crate) mod outcome;
pub(crate) mod text;
