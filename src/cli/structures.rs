//! The kinds of structures in words, for `kennel check`.

use std::fmt;
use std::time::Duration;

use crate::config::units::show_duration;
use crate::kinds::{Copied, Counter, Kind, List, Lock, Log, Table, Window};

/// Writes what the settings of a structure mean, on indented lines.
pub(super) fn write(f: &mut fmt::Formatter<'_>, kind: &Kind) -> fmt::Result {
    match kind {
        Kind::Copied(Copied { of }) => {
            match of.as_deref() {
                None => {}
                Some(Kind::Counter(settings)) => write_counter(f, settings)?,
                Some(kind) => write(f, kind)?,
            }
            writeln!(f, "    everything is on two servers, and is kept while one of them lives")?;
            writeln!(
                f,
                "    a change takes three round trips or more, and fails while a server of the two is away and nothing takes its \
                 place yet"
            )
        }
        Kind::Counter(settings) => {
            write_counter(f, settings)?;
            writeln!(f, "    a count that was acknowledged is kept while its server lives")
        }
        Kind::List(List { ttl }) => {
            writeln!(
                f,
                "    append adds and removes elements, get returns them; get KEY@ELEMENT returns whether one is there"
            )?;
            match *ttl {
                Duration::ZERO => writeln!(f, "    it lives until it is deleted"),
                ttl => writeln!(f, "    it lives for {} after the last append", show_duration(ttl)),
            }
        }
        Kind::Table(Table { ttl }) => {
            writeln!(
                f,
                "    KEY/NAME is an element, for any command; get KEY returns the names, delete KEY deletes the elements"
            )?;
            match *ttl {
                Duration::ZERO => writeln!(f, "    an element lives as long as its exptime says"),
                ttl => writeln!(f, "    an element lives for at most {}", show_duration(ttl)),
            }
        }
        Kind::Window(Window { window, slots, smooth, unique }) => {
            let (slot, window) = (show_duration(*window / *slots), show_duration(*window));
            match unique {
                true => writeln!(
                    f,
                    "    add KEY:VISITOR counts each visitor once in {window}; get returns their number"
                )?,
                false => writeln!(
                    f,
                    "    incr returns the sum of the last {window}, its own count included; get returns the sum"
                )?,
            }
            match smooth {
                true => writeln!(
                    f,
                    "    in {slots} slots of {slot}; the oldest is weighed by its part that is in the window"
                ),
                false => writeln!(
                    f,
                    "    in {slots} slots of {slot}; counts are in the sum for up to {slot} longer"
                ),
            }
        }
        Kind::Log(Log { window, slot }) => {
            let (window, slot) = (show_duration(*window), show_duration(*slot));
            writeln!(
                f,
                "    append adds an entry; get returns the entries of the last {window}, for up to {slot} longer"
            )?;
            writeln!(
                f,
                "    get KEY@CURSOR returns those behind a cursor, and the next one; get KEY@FROM-TO those of a time"
            )?;
            writeln!(f, "    in slots of {slot}, of at most 256 KiB each; an answer has at most 1 MiB")
        }
        Kind::Lock(Lock { ttl, fence }) => {
            let ttl = show_duration(*ttl);
            writeln!(
                f,
                "    add takes a lock for as long as the client's connection lives; only that connection can delete it"
            )?;
            writeln!(
                f,
                "    the lock of a dead sidecar expires after {ttl}, unless the client sets an exptime"
            )?;
            match fence {
                true => writeln!(f, "    get returns the owner and a number that grows from hold to hold"),
                false => writeln!(f, "    get returns the owner"),
            }
        }
    }
}

fn write_counter(f: &mut fmt::Formatter<'_>, Counter { ttl }: &Counter) -> fmt::Result {
    writeln!(f, "    incr and decr create a counter that is not there; {}", lives(*ttl))
}

fn lives(ttl: Duration) -> String {
    match ttl {
        Duration::ZERO => "it lives until it is deleted".to_owned(),
        ttl => format!("it lives for {}", show_duration(ttl)),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::description::Description;
    use crate::config::Config;

    fn describe(keys: &str) -> String {
        let text = format!(
            "pools.main.servers = [\"a:11211\", \"b:11211\", \"c:11211\"]\n[[rules]]\nname = \"x\"\nmatch = \"x:*\"\n{keys}"
        );
        let all = Description(&Config::read("test.toml", &text, []).unwrap()).to_string();
        let (_, rules) = all.split_once("  rules[0] x: x:*, ").unwrap();
        rules.split_once("  all other keys").unwrap().0.to_owned()
    }

    #[test]
    fn each_kind_is_explained_in_words() {
        for (keys, expected) in [
            (
                "kind = \"counter\"",
                "counter, in pool main\n    incr and decr create a counter that is not there; it lives until it is deleted\n    \
                 a count that was acknowledged is kept while its server lives\n",
            ),
            (
                "kind = \"counter\"\nttl = \"90s\"",
                "counter, in pool main\n    incr and decr create a counter that is not there; it lives for 90s\n    \
                 a count that was acknowledged is kept while its server lives\n",
            ),
            (
                "kind = \"list\"",
                "list, in pool main\n    append adds and removes elements, get returns them; get KEY@ELEMENT returns whether \
                 one is there\n    it lives until it is deleted\n",
            ),
            (
                "kind = \"list\"\nttl = \"90s\"",
                "list, in pool main\n    append adds and removes elements, get returns them; get KEY@ELEMENT returns whether \
                 one is there\n    it lives for 90s after the last append\n",
            ),
            (
                "kind = \"table\"",
                "table, in pool main\n    KEY/NAME is an element, for any command; get KEY returns the names, delete KEY deletes the \
                 elements\n    an element lives as long as its exptime says\n",
            ),
            (
                "kind = \"table\"\nttl = \"90s\"",
                "table, in pool main\n    KEY/NAME is an element, for any command; get KEY returns the names, delete KEY deletes the \
                 elements\n    an element lives for at most 90s\n",
            ),
            (
                "kind = \"window\"\nwindow = \"5m\"",
                "window, in pool main\n    incr returns the sum of the last 300s, its own count included; get returns the sum\n    \
                 in 10 slots of 30s; counts are in the sum for up to 30s longer\n",
            ),
            (
                "kind = \"window\"\nwindow = \"1s\"\nslots = 4\nsmooth = true\nunique = true",
                "window, in pool main\n    add KEY:VISITOR counts each visitor once in 1s; get returns their number\n    \
                 in 4 slots of 250ms; the oldest is weighed by its part that is in the window\n",
            ),
            (
                "kind = \"log\"\nwindow = \"1h\"\nslot = \"1m\"",
                "log, in pool main\n    append adds an entry; get returns the entries of the last 1h, for up to 60s longer\n    \
                 get KEY@CURSOR returns those behind a cursor, and the next one; get KEY@FROM-TO those of a time\n    \
                 in slots of 60s, of at most 256 KiB each; an answer has at most 1 MiB\n",
            ),
            (
                "kind = \"lock\"",
                "lock, in pool main\n    add takes a lock for as long as the client's connection lives; only that connection can \
                 delete it\n    the lock of a dead sidecar expires after 30s, unless the client sets an exptime\n    get returns \
                 the owner\n",
            ),
            (
                "kind = \"lock\"\nttl = \"5s\"\nfence = true",
                "lock, in pool main\n    add takes a lock for as long as the client's connection lives; only that connection can \
                 delete it\n    the lock of a dead sidecar expires after 5s, unless the client sets an exptime\n    get returns \
                 the owner and a number that grows from hold to hold\n",
            ),
            (
                "kind = \"raw\"\ncopies = 2",
                "raw, in pool main\n    everything is on two servers, and is kept while one of them lives\n    a change takes \
                 three round trips or more, and fails while a server of the two is away and nothing takes its place yet\n",
            ),
            (
                "kind = \"counter\"\ncopies = 2\nttl = \"90s\"",
                "counter, in pool main\n    incr and decr create a counter that is not there; it lives for 90s\n    everything is \
                 on two servers, and is kept while one of them lives\n    a change takes three round trips or more, and fails \
                 while a server of the two is away and nothing takes its place yet\n",
            ),
            (
                "kind = \"lock\"\ncopies = 2",
                "lock, in pool main\n    add takes a lock for as long as the client's connection lives; only that connection can \
                 delete it\n    the lock of a dead sidecar expires after 30s, unless the client sets an exptime\n    get returns \
                 the owner\n    everything is on two servers, and is kept while one of them lives\n    a change takes three \
                 round trips or more, and fails while a server of the two is away and nothing takes its place yet\n",
            ),
        ] {
            assert_eq!(describe(keys), expected, "{keys}");
        }
    }
}
