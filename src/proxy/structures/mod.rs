//! Keys whose rule makes them a structure: the state machines of `kinds`, run over the connections to the servers.

pub(crate) mod call;
pub(crate) mod run;
