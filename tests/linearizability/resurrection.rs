//! No resurrection: a value that was built before a delete is not served after it.

use super::history::{Command, Invocation, Response};

/// The first read of a value whose build began before a delete that was acknowledged when the read began.
///
/// A build begins with its connection's miss and ends with the `set` or `add` that follows, unless the miss ended meanwhile, for
/// example by a delete of the same connection. Only values that were stored once count: for others the store is unknown.
/// Linearizability does not imply this: the value may look as if it was stored after the delete.
pub(super) fn find(history: &[Invocation]) -> Option<String> {
    history.iter().find_map(|read| {
        let Response::Hit { value, .. } = &read.response else { return None };
        let store = stored_once(history, value)?;
        let miss = miss_before(history, store)?;
        let invalidation = history.iter().find(|other| {
            is_acknowledged_invalidation(other)
                && other.connection != store.connection
                && other.invoked >= miss.responded
                && other.responded < read.invoked
        })?;
        Some(format!(
            "resurrection: {value} was built after a miss received at {}, before a delete of {} to {}, and served at {}",
            miss.responded, invalidation.invoked, invalidation.responded, read.invoked
        ))
    })
}

/// The only operation that may have stored this value as it is.
fn stored_once<'a>(history: &'a [Invocation], value: &str) -> Option<&'a Invocation> {
    let mut stores = history.iter().filter(|operation| match &operation.command {
        Command::Set(stored) | Command::Add(stored) => stored == value,
        Command::Replace(stored) | Command::Cas { value: stored, .. } => stored == value,
        Command::Append(_) | Command::Prepend(_) => false,
        Command::Count { .. } => matches!(operation.response, Response::Number(n) if n.to_string() == value),
        Command::Get | Command::Delete | Command::Touch | Command::Look | Command::Flush | Command::Bump => {
            false
        }
    });
    let store = stores.next().filter(|_| stores.next().is_none())?;
    matches!(store.command, Command::Set(_) | Command::Add(_)).then_some(store)
}

/// The miss that this store ends.
fn miss_before<'a>(history: &'a [Invocation], store: &Invocation) -> Option<&'a Invocation> {
    let own = |operation: &&Invocation| {
        operation.connection == store.connection
            // Commands sent in one piece are executed in their order.
            && (operation.invoked, operation.responded) < (store.invoked, store.responded)
            && !std::ptr::eq(*operation, store)
    };
    let last = history.iter().filter(own).filter(|operation| operation.missed() || operation.ends_miss());
    let last = last.max_by_key(|operation| (operation.invoked, operation.responded))?;
    // An `add` is refused once per miss: its client knows then that the key was stored, and what it adds next is new.
    let refused = |operation: &Invocation| {
        matches!(operation.command, Command::Add(_) | Command::Count { initial: Some(_), .. })
            && operation.response == Response::NotStored
            && (operation.invoked, operation.responded) > (last.invoked, last.responded)
    };
    let adds = matches!(store.command, Command::Add(_));
    (last.missed() && !(adds && history.iter().filter(own).any(refused))).then_some(last)
}

fn is_acknowledged_invalidation(operation: &Invocation) -> bool {
    match operation.command {
        Command::Delete => matches!(operation.response, Response::Deleted | Response::NotFound),
        Command::Flush | Command::Bump => operation.response == Response::Flushed,
        _ => false,
    }
}
