//! Whether a history of commands could have come from one memcached: a linearizability checker in the manner of Porcupine.
//!
//! A history has the operations of all connections on one key, each with the times of its invocation and of its response. It is
//! linearizable if each operation can be assigned a moment between the two so that memcached, executing them in the order of
//! these moments, gives the same responses. Keys are independent, so each key is checked by itself.
//!
//! `model` is a memcached with one key, and what the guard may do in addition; `search` looks for the order; `resurrection`
//! checks a further guarantee in the same histories. Nothing here does I/O or reads a clock. The integration tests use it with
//! real time, the simulation with simulated time.

mod history;
mod model;
mod resurrection;
mod search;

pub(crate) use history::{Command, Invocation, Response, show};
pub(crate) use model::Allowances;
pub(crate) use search::{Verdict, check};

/// Checks the operations of one key: linearizability, then resurrection, which linearizability does not rule out. The error
/// describes the violation and contains the history.
///
/// A history that takes more than `search::MAX_STATES` states to decide gives [`Verdict::Undecided`].
pub(crate) fn check_key(history: &[Invocation], allowances: &Allowances) -> Result<Verdict, String> {
    let verdict = check(history, allowances);
    if let Verdict::Violated { longest } = &verdict {
        return Err(format!("not linearizable:\n{}", show(history, longest)));
    }
    if allowances.lost_race
        && let Some(why) = resurrection::find(history)
    {
        return Err(format!("{why}\n{}", show(history, &[])));
    }
    Ok(verdict)
}
