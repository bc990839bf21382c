//! What was acknowledged under keys of every kind, so that a test knows what each read may return.
//!
//! A read that is an error says nothing. Any other, a miss too, must have all of what was acknowledged, and nothing that was not tried.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::super::{answer, store, text};
use super::copied;
use crate::client::Client;
use crate::world::{eventually, within};

/// Enough keys of each kind that each server has both first and second copies.
const KEYS: usize = 12;

/// The rules of the keys of a [`Ledger`].
pub(super) fn rules() -> Vec<String> {
    vec![
        copied("lists", "list:*", "list", ""),
        copied("tables", "table:*", "table", ""),
        copied("logs", "log:*", "log", "window = \"1h\""),
        copied("sums", "sum:*", "window", "window = \"1h\""),
        copied("visitors", "visit:*", "window", "window = \"1h\"\nunique = true"),
        copied("locks", "lock:*", "lock", "ttl = \"10s\""),
        copied("fences", "fence:*", "lock", "ttl = \"10s\"\nfence = true"),
    ]
}

/// What is known of one key.
trait Known {
    fn key(&self) -> &str;

    /// Tries a change. Whether it was acknowledged.
    fn change(&mut self, client: &mut Client) -> bool;

    /// Reads it, and fails the test if the answer is wrong. Whether there was an answer to everything.
    fn check(&mut self, client: &mut Client, when: &str) -> bool;
}

/// Keys of all kinds, and the locks that a connection has all the time.
pub(super) struct Ledger {
    keys: Vec<Box<dyn Known>>,
    locks: Vec<Lock>,
}

impl Ledger {
    /// Nothing is stored yet but the locks, which `holder` takes.
    pub(super) fn new(holder: &mut Client) -> Ledger {
        let mut keys: Vec<Box<dyn Known>> = Vec::new();
        let mut locks = Vec::new();
        for n in 0..KEYS {
            keys.push(Box::new(List::new(format!("list:{n}"))));
            keys.push(Box::new(Table { key: format!("table:{n}"), elements: Elements::default() }));
            keys.push(Box::new(Log::new(format!("log:{n}"))));
            keys.push(Box::new(Sum { key: format!("sum:{n}"), acknowledged: 0, tried: 0 }));
            keys.push(Box::new(Visitors { key: format!("visit:{n}"), acknowledged: Vec::new(), tried: 0 }));
            locks.push(Lock::take(format!("lock:{n}"), holder));
            locks.push(Lock::take(format!("fence:{n}"), holder));
        }
        Ledger { keys, locks }
    }

    /// Changes each key until that is acknowledged.
    pub(super) fn change(&mut self, client: &mut Client) {
        for known in self.all() {
            eventually("a change is acknowledged", || known.change(client));
        }
    }

    /// Tries one change of each key.
    pub(super) fn try_change(&mut self, client: &mut Client) {
        for known in self.all() {
            known.change(client);
        }
    }

    /// Reads each key once. Returns those that had no answer.
    pub(super) fn check(&mut self, client: &mut Client, when: &str) -> Vec<String> {
        let unanswered =
            self.all().filter_map(|known| (!known.check(client, when)).then(|| known.key().to_owned()));
        unanswered.collect()
    }

    /// Reads each key until there is an answer.
    pub(super) fn check_all(&mut self, client: &mut Client, when: &str) {
        for known in self.all() {
            eventually("a key can be read", || known.check(client, when));
        }
    }

    /// The holder frees its locks, and somebody else takes each.
    pub(super) fn release(self, holder: &mut Client, other: &mut Client) {
        for Lock { key, shown } in self.locks {
            let reply = holder.delete(&key);
            assert!(reply == "DELETED" || reply.starts_with("SERVER_ERROR"), "{key}: {reply}");
            let later = Lock::take(key, other).shown;
            let number = |shown: &str| {
                shown.split_once(' ').map(|(_, number)| number.parse::<u64>().expect("a number"))
            };
            assert!(number(&later) > number(&shown) || later == "ann", "{later} after {shown}");
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut dyn Known> {
        let keys = self.keys.iter_mut().map(|known| &mut **known as &mut dyn Known);
        keys.chain(self.locks.iter_mut().map(|lock| lock as &mut dyn Known))
    }
}

/// The elements of a list or table: whether each is there; `None`: a command on it was not acknowledged.
#[derive(Default)]
struct Elements {
    known: BTreeMap<String, Option<bool>>,
    next: usize,
}

impl Elements {
    /// The next element to add, and one to remove.
    fn next(&mut self) -> [String; 2] {
        self.next += 1;
        [self.next, self.next.saturating_sub(2)].map(|n| format!("e{n}"))
    }

    /// Notes what a command has done. Once unknown, an element remains so: the command may be carried out later.
    fn note(&mut self, element: &str, is_there: bool, is_acknowledged: bool) {
        let known = self.known.entry(element.to_owned()).or_insert(Some(is_there));
        *known = known.and(Some(is_there)).filter(|_| is_acknowledged);
    }

    /// What the last changes were of.
    fn latest(&self) -> impl Iterator<Item = (&String, &Option<bool>)> {
        let names = (self.next.saturating_sub(4)..=self.next).map(|n| format!("e{n}"));
        names.filter_map(|name| self.known.get_key_value(&name))
    }

    fn check(&self, listed: &str, when: &str) {
        let listed: Vec<&str> = listed.lines().collect();
        let once: HashSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), once.len(), "{when}: {listed:?}");
        for (element, is_there) in &self.known {
            let is_listed = once.contains(element.as_str());
            assert!(is_there.is_none_or(|there| there == is_listed), "{when}: {element} in {listed:?}");
        }
        assert!(once.iter().all(|element| self.known.contains_key(*element)), "{when}: {listed:?}");
    }

    /// Reads the list or table of this key, and checks it. Whether there was an answer.
    fn check_list(&self, client: &mut Client, key: &str, when: &str) -> bool {
        let listed = answer(client, key);
        if let Ok(listed) = &listed {
            self.check(listed.as_deref().unwrap_or_default(), &format!("{when}: {key}"));
        }
        listed.is_ok()
    }
}

struct List {
    key: String,
    elements: Elements,
    /// What the first append adds, so that each of the list's items is there.
    first: Vec<String>,
}

impl List {
    fn new(key: String) -> List {
        List { key, elements: Elements::default(), first: (0..64).map(|n| format!("f{n}")).collect() }
    }
}

impl Known for List {
    fn key(&self) -> &str {
        &self.key
    }

    fn change(&mut self, client: &mut Client) -> bool {
        let [added, removed] = self.elements.next();
        let mut lines = format!("+{added}\n-{removed}\n");
        self.first.iter().for_each(|element| lines += &format!("+{element}\n"));
        let is_done = store(client, &format!("append {} 0 0", self.key), &lines) == "STORED";
        self.elements.note(&added, true, is_done);
        self.elements.note(&removed, false, is_done);
        // Nothing removes these, so an attempt that failed does not matter.
        for element in &self.first {
            self.elements.known.insert(element.clone(), is_done.then_some(true));
        }
        if is_done {
            self.first.clear();
        }
        is_done
    }

    fn check(&mut self, client: &mut Client, when: &str) -> bool {
        for (element, is_there) in self.elements.latest() {
            let Ok(found) = answer(client, &format!("{}@{element}", self.key)) else { continue };
            let found = found.is_some();
            assert!(is_there.is_none_or(|there| there == found), "{when}: {}@{element}: {found}", self.key);
        }
        self.elements.check_list(client, &self.key, when)
    }
}

struct Table {
    key: String,
    elements: Elements,
}

impl Known for Table {
    fn key(&self) -> &str {
        &self.key
    }

    fn change(&mut self, client: &mut Client) -> bool {
        let [added, removed] = self.elements.next();
        let is_stored = store(client, &format!("set {}/{added} 0 0", self.key), &added) == "STORED";
        self.elements.note(&added, true, is_stored);
        let is_deleted = !client.delete(&format!("{}/{removed}", self.key)).starts_with("SERVER_ERROR");
        self.elements.note(&removed, false, is_deleted);
        is_stored && is_deleted
    }

    fn check(&mut self, client: &mut Client, when: &str) -> bool {
        for (element, is_there) in self.elements.latest() {
            let Ok(found) = answer(client, &format!("{}/{element}", self.key)) else { continue };
            let is_right = match is_there {
                Some(true) => found.as_ref() == Some(element),
                Some(false) => found.is_none(),
                None => found.as_ref().is_none_or(|found| found == element),
            };
            assert!(is_right, "{when}: {}/{element}: {found:?}", self.key);
        }
        self.elements.check_list(client, &self.key, when)
    }
}

struct Log {
    key: String,
    acknowledged: Vec<String>,
    tried: usize,
    /// A tail.
    cursor: String,
    seen: Vec<String>,
}

impl Log {
    fn new(key: String) -> Log {
        Log { key, acknowledged: Vec::new(), tried: 0, cursor: "0".into(), seen: Vec::new() }
    }

    fn check_entries(&self, entries: &[String], when: &str) {
        let once: HashSet<&String> = entries.iter().collect();
        assert_eq!(entries.len(), once.len(), "{when}: {}: {entries:?}", self.key);
        let acknowledged: HashSet<&String> = self.acknowledged.iter().collect();
        let kept: Vec<&String> = entries.iter().filter(|entry| acknowledged.contains(entry)).collect();
        assert_eq!(kept, self.acknowledged.iter().collect::<Vec<_>>(), "{when}: {}", self.key);
        let is_tried = |entry: &String| entry.parse().is_ok_and(|n: usize| n <= self.tried);
        assert!(entries.iter().all(is_tried), "{when}: {}: {entries:?}", self.key);
    }
}

impl Known for Log {
    fn key(&self) -> &str {
        &self.key
    }

    fn change(&mut self, client: &mut Client) -> bool {
        self.tried += 1;
        let entry = self.tried.to_string();
        let is_done = store(client, &format!("append {} 0 0", self.key), &format!("{entry}\n")) == "STORED";
        if is_done {
            self.acknowledged.push(entry);
        }
        is_done
    }

    fn check(&mut self, client: &mut Client, when: &str) -> bool {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let all = answer(client, &self.key);
        if let Ok(all) = &all {
            self.check_entries(&lines(all.as_deref().unwrap_or_default()), when);
        }
        let behind = answer(client, &format!("{}@{}", self.key, self.cursor));
        if let Ok(behind) = &behind {
            let behind = behind.as_deref().expect("a cursor");
            let (next, new) = behind.split_once('\n').expect("a cursor");
            self.seen.extend(lines(new));
            self.cursor = next.to_owned();
            self.check_entries(&self.seen, &format!("{when}, of a tail"));
        }
        all.is_ok() && behind.is_ok()
    }
}

struct Sum {
    key: String,
    acknowledged: u64,
    tried: u64,
}

fn check_sum(client: &mut Client, key: &str, least: u64, most: u64, when: &str) -> bool {
    let sum = answer(client, key);
    if let Ok(sum) = &sum {
        let sum: u64 = sum.as_deref().and_then(|sum| sum.parse().ok()).expect("a sum");
        assert!((least..=most).contains(&sum), "{when}: {key} is {sum}, not in {least}..={most}");
    }
    sum.is_ok()
}

impl Known for Sum {
    fn key(&self) -> &str {
        &self.key
    }

    fn change(&mut self, client: &mut Client) -> bool {
        self.tried += 1;
        let reply = client.execute(&format!("incr {} 1", self.key));
        let Ok(sum) = reply.parse::<u64>() else { return false };
        self.acknowledged += 1;
        assert!((self.acknowledged..=self.tried).contains(&sum), "{}: {sum}", self.key);
        true
    }

    fn check(&mut self, client: &mut Client, when: &str) -> bool {
        check_sum(client, &self.key, self.acknowledged, self.tried, when)
    }
}

struct Visitors {
    key: String,
    acknowledged: Vec<String>,
    tried: u64,
}

impl Known for Visitors {
    fn key(&self) -> &str {
        &self.key
    }

    fn change(&mut self, client: &mut Client) -> bool {
        let mut add = |visitor: &str| store(client, &format!("add {}:{visitor} 0 0", self.key), "");
        for known in self.acknowledged.iter().rev().take(2) {
            let reply = add(known);
            assert!(
                reply == "NOT_STORED" || reply.starts_with("SERVER_ERROR"),
                "{}:{known}: {reply}",
                self.key
            );
        }
        self.tried += 1;
        let visitor = format!("v{}", self.tried);
        let reply = add(&visitor);
        assert!(reply == "STORED" || reply.starts_with("SERVER_ERROR"), "{}:{visitor}: {reply}", self.key);
        if reply == "STORED" {
            self.acknowledged.push(visitor);
        }
        reply == "STORED"
    }

    fn check(&mut self, client: &mut Client, when: &str) -> bool {
        check_sum(client, &self.key, self.acknowledged.len() as u64, self.tried, when)
    }
}

/// A lock that a connection has all the time.
struct Lock {
    key: String,
    /// What is shown of it.
    shown: String,
}

impl Lock {
    fn take(key: String, holder: &mut Client) -> Lock {
        // An attempt that fails may leave the lock taken until its TTL has ended.
        within(Duration::from_secs(30), "a lock is taken", || {
            store(holder, &format!("add {key} 0 0"), "ann") == "STORED"
        });
        let mut shown = None;
        eventually("a lock can be read", || {
            shown = text(holder, &key);
            shown.is_some()
        });
        Lock { key, shown: shown.unwrap_or_default() }
    }
}

impl Known for Lock {
    fn key(&self) -> &str {
        &self.key
    }

    /// Nobody else can take it.
    fn change(&mut self, client: &mut Client) -> bool {
        let reply = store(client, &format!("add {} 0 0", self.key), "bob");
        assert!(reply == "NOT_STORED" || reply.starts_with("SERVER_ERROR"), "{}: {reply}", self.key);
        reply == "NOT_STORED"
    }

    fn check(&mut self, client: &mut Client, when: &str) -> bool {
        let shown = text(client, &self.key);
        assert_eq!(shown.as_ref(), Some(&self.shown), "{when}: {}", self.key);
        true
    }
}
