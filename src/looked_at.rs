//! How many entries of its tables a request looks at. Tests compare the number at a table's limit with a constant; the program
//! counts nothing.

#[cfg(test)]
thread_local! {
    static ENTRIES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// An entry of a table that grows is looked at, in a loop.
#[inline]
pub(crate) fn entry() {
    #[cfg(test)]
    ENTRIES.with(|entries| entries.set(entries.get() + 1));
}

/// The number of entries that `does` looks at on this thread.
#[cfg(test)]
pub(crate) fn during<R>(does: impl FnOnce() -> R) -> u64 {
    let before = ENTRIES.with(std::cell::Cell::get);
    does();
    ENTRIES.with(std::cell::Cell::get) - before
}
