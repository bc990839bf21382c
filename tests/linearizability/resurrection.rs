//! No resurrection: a value that was built before a delete is not served after it.

use super::history::{Command, Invocation, Response};

/// The first read that was given a value whose build had begun before a delete that had been acknowledged when the read began.
///
/// A build begins with the miss that its connection was told, and ends with the `set` or `add` that follows, if nothing has ended
/// the miss meanwhile, as a delete by the same connection does. Only values count that were stored once: of others nobody can
/// say which store they come from. Linearizability does not demand this: the value may look as if it was stored after the delete.
pub(super) fn find(history: &[Invocation]) -> Option<String> {
    history.iter().find_map(|read| {
        let Response::Hit { value, .. } = &read.answer else { return None };
        let store = stored_once(history, value)?;
        let miss = miss_before(history, store)?;
        let invalidation = history.iter().find(|other| {
            is_acknowledged_invalidation(other)
                && other.connection != store.connection
                && other.invoked >= miss.answered
                && other.answered < read.invoked
        })?;
        Some(format!(
            "resurrection: {value} was built after a miss told at {}, before a delete of {} to {}, and served at {}",
            miss.answered, invalidation.invoked, invalidation.answered, read.invoked
        ))
    })
}

/// The only operation that may have stored this value as it is.
fn stored_once<'a>(history: &'a [Invocation], value: &str) -> Option<&'a Invocation> {
    let mut stores = history.iter().filter(|operation| match &operation.command {
        Command::Set(stored) | Command::Add(stored) => stored == value,
        Command::Replace(stored) | Command::Cas { value: stored, .. } => stored == value,
        Command::Append(_) | Command::Prepend(_) => false,
        Command::Count { .. } => matches!(operation.answer, Response::Number(n) if n.to_string() == value),
        Command::Get | Command::Delete | Command::Touch | Command::Flush | Command::Bump => false,
    });
    let store = stores.next().filter(|_| stores.next().is_none())?;
    matches!(store.command, Command::Set(_) | Command::Add(_)).then_some(store)
}

/// The miss that this store ends.
fn miss_before<'a>(history: &'a [Invocation], store: &Invocation) -> Option<&'a Invocation> {
    let own = |operation: &&Invocation| {
        operation.connection == store.connection
            // What is sent in one piece is answered in its order.
            && (operation.invoked, operation.answered) < (store.invoked, store.answered)
            && !std::ptr::eq(*operation, store)
    };
    let last = history.iter().filter(own).filter(|operation| operation.missed() || operation.ends_miss());
    let last = last.max_by_key(|operation| (operation.invoked, operation.answered))?;
    // An `add` is refused once for a miss: its client has been told that somebody stored the key since, and what it adds then is new.
    let refused = |operation: &Invocation| {
        matches!(operation.command, Command::Add(_) | Command::Count { initial: Some(_), .. })
            && operation.answer == Response::NotStored
            && (operation.invoked, operation.answered) > (last.invoked, last.answered)
    };
    let adds = matches!(store.command, Command::Add(_));
    (last.missed() && !(adds && history.iter().filter(own).any(refused))).then_some(last)
}

fn is_acknowledged_invalidation(operation: &Invocation) -> bool {
    match operation.command {
        Command::Delete => matches!(operation.answer, Response::Deleted | Response::NotFound),
        Command::Flush | Command::Bump => operation.answer == Response::Flushed,
        _ => false,
    }
}
