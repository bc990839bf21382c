//! Whether a history of commands could have come from one memcached: a linearizability checker, as Porcupine is.
//!
//! A history has the operations of all connections on one key, each with the times of its invocation and of its answer. It
//! is linearizable if each operation can be given a moment between the two so that memcached, carrying them out in the
//! order of these moments, gives the same answers. Keys are independent, so each key is checked by itself.
//!
//! `model` is memcached with one key, and what the guard may do beyond memcached; `search` looks for the moments;
//! `resurrection` checks one promise more in the same histories. Nothing here does I/O or asks a clock. The integration tests
//! use it with real time, the simulation with simulated time.

mod history;
mod model;
mod resurrection;
mod search;

pub(crate) use history::{Command, Invocation, Response, show};
pub(crate) use model::Allowances;
pub(crate) use search::{Verdict, check};

/// Checks the operations of one key: linearizability; then resurrection, which memcached itself does not rule out. `Err` says what is wrong, with the history.
///
/// A history that takes more than `search::MAX_STATES` states to decide gives [`Verdict::Undecided`].
pub(crate) fn check_key(history: &[Invocation], allowances: &Allowances) -> Result<Verdict, String> {
    let verdict = check(history, allowances);
    if let Verdict::Broken { longest } = &verdict {
        return Err(format!("not linearizable:\n{}", show(history, longest)));
    }
    if allowances.lost_race
        && let Some(why) = resurrection::find(history)
    {
        return Err(format!("{why}\n{}", show(history, &[])));
    }
    Ok(verdict)
}
