//! The programs of clients of structures, and what must hold for each. An element, an entry and a name are keys of their own in the
//! history, so that one checker serves all: `tests/linearizability`.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use super::client::{Client, command};
use super::linearizability::{Command, Invocation, Response};
use super::world::{Outcome, World};

pub const RULES: &str = r#"
[[rules]]
name = "lists"
match = "list:*"
kind = "list"
copies = 2

[[rules]]
name = "tables"
match = "table:*"
kind = "table"
copies = 2

[[rules]]
name = "logs"
match = "log:*"
kind = "log"
window = "10m"
slot = "10s"
copies = 2

[[rules]]
name = "windows"
match = "window:*"
kind = "window"
window = "10m"
slots = 60
copies = 2

[[rules]]
name = "locks"
match = "lock:*"
kind = "lock"
ttl = "30s"
copies = 2
"#;

/// The commands of a client.
const COMMANDS: usize = 40;
/// The longest time that a lock is held.
const HELD: Duration = Duration::from_secs(3);
/// The elements of a list and of a table.
const ELEMENTS: usize = 4;

/// The lines of an answer; `None`: there was none.
fn lines(told: &Invocation) -> Option<Vec<String>> {
    match &told.response {
        Response::Hit { value, .. } => Some(value.lines().map(|line| line.trim_end().to_owned()).collect()),
        Response::Miss => Some(Vec::new()),
        _ => None,
    }
}

/// Records for each of these keys whether an answer had it.
fn look<'a>(client: &Client, told: &Invocation, keys: impl Iterator<Item = (String, bool)> + 'a) {
    for (key, found) in keys {
        let response = if found { Response::Found } else { Response::NotFound };
        client.record(&key, Invocation { command: Command::Look, response, ..told.clone() });
    }
}

/// Reads which elements a list or a table has.
async fn listing(client: &mut Client, own: &str, separator: char) {
    let told = client.ask(own, Command::Get).await;
    let Some(listed) = lines(&told) else { return };
    let names: HashSet<&String> = listed.iter().collect();
    assert_eq!(names.len(), listed.len(), "{own} lists one twice: {listed:?}");
    let keys = (0..ELEMENTS).map(|at| format!("e{at}"));
    look(client, &told, keys.map(|e| (format!("{own}{separator}{e}"), listed.contains(&e))));
}

/// Deletes all elements of a list or a table, each at some moment.
async fn delete_all(client: &mut Client, own: &str, separator: char) {
    let told = client.ask(own, Command::Delete).await;
    let response = if told.response == Response::Unknown { Response::Unknown } else { Response::Flushed };
    for at in 0..ELEMENTS {
        let told = Invocation { command: Command::Flush, response: response.clone(), ..told.clone() };
        client.record(&format!("{own}{separator}e{at}"), told);
    }
}

/// Adds and removes elements that others add and remove too.
pub async fn lists(world: Rc<World>) {
    let mut client = Client::new(world);
    for _ in 0..COMMANDS {
        client.wait().await;
        let own = format!("list:{}", client.below(2));
        match client.below(16) {
            0..5 => listing(&mut client, &own, '@').await,
            5..7 => {
                let key = format!("{own}@e{}", client.below(ELEMENTS));
                let told = client.ask(&key, Command::Get).await;
                if let Some(lines) = lines(&told) {
                    look(&client, &told, [(key, !lines.is_empty())].into_iter());
                }
            }
            7 => delete_all(&mut client, &own, '@').await,
            _ => {
                let first = client.below(ELEMENTS);
                let elements = [first, (first + 1) % ELEMENTS];
                let changes = elements.map(|at| (at, client.below(2) == 0));
                let count = 1 + client.below(2);
                let sign = |adds| if adds { '+' } else { '-' };
                let line = |(at, adds): &(usize, bool)| format!("{}e{at}\n", sign(*adds));
                let text: String = changes[..count].iter().map(line).collect();
                let told = client.ask(&own, Command::Append(text)).await;
                for (at, adds) in &changes[..count] {
                    let (command, done) = match adds {
                        true => (Command::Set("x".to_owned()), Response::Stored),
                        false => (Command::Flush, Response::Flushed),
                    };
                    let response =
                        if told.response == Response::Stored { done } else { told.response.clone() };
                    client.record(&format!("{own}@e{at}"), Invocation { command, response, ..told.clone() });
                }
            }
        }
    }
}

/// Sends any command for elements, lists them, and deletes them all.
pub async fn tables(world: Rc<World>) {
    let mut client = Client::new(world);
    let mut seen = BTreeMap::new();
    for n in 0..COMMANDS {
        client.wait().await;
        let own = format!("table:{}", client.below(2));
        match client.below(16) {
            0..5 => listing(&mut client, &own, '/').await,
            5 => delete_all(&mut client, &own, '/').await,
            _ => {
                let key = format!("{own}/e{}", client.below(ELEMENTS));
                let (number, value) =
                    ((client.number * 1_000 + n) as u64 * 1_000, format!("v{}.{n};", client.number));
                let seen = seen.entry(key.clone()).or_insert(None);
                let command = command(&mut client.random, seen, number, value);
                if let Response::Hit { unique: Some(unique), .. } = client.call(&key, command).await {
                    *seen = Some(unique);
                }
            }
        }
    }
}

/// Appends entries, reads the log, and follows it.
pub async fn logs(world: Rc<World>) {
    let mut client = Client::new(world);
    let own = format!("log:{}", client.below(2));
    let (mut cursor, mut seen) = ("0".to_owned(), HashSet::new());
    for n in 0..COMMANDS {
        client.wait().await;
        match client.below(8) {
            0 => {
                let told = client.ask(&own, Command::Get).await;
                let Some(entries) = lines(&told) else { continue };
                let whole: HashSet<String> = entries.iter().cloned().collect();
                assert_eq!(whole.len(), entries.len(), "{own} has an entry twice: {entries:?}");
                let known = appended(&client.world, &own, |_| true);
                let all: HashSet<String> = known.union(&whole).cloned().collect();
                look(&client, &told, all.iter().map(|e| (format!("{own}@{e}"), whole.contains(e))));
            }
            1..4 => follow(&mut client, &own, &mut cursor, &mut seen).await,
            _ => {
                let entry = format!("{}.{n}", client.number);
                // Some of them fill a part.
                let rest = if client.below(4) == 0 { 9_000 } else { 0 };
                let text = format!("{entry}{}\n", " ".repeat(rest));
                let told = client.ask(&own, Command::Append(text)).await;
                client.record(&format!("{own}@{entry}"), Invocation { command: Command::Set(entry), ..told });
            }
        }
    }
    // In the end it has seen everything.
    tokio::time::sleep(Duration::from_secs(60)).await;
    follow(&mut client, &own, &mut cursor, &mut seen).await;
}

/// The entries of a log that have been appended with such a reply.
fn appended(world: &World, own: &str, is: impl Fn(&Response) -> bool) -> HashSet<String> {
    let history = world.history.borrow();
    let appends = history.iter().filter(|(_, told)| is(&told.response));
    let names = appends.filter_map(|(key, told)| match &told.command {
        Command::Set(entry) if key.starts_with(own) => Some(entry.clone()),
        _ => None,
    });
    names.collect()
}

/// Reads what is behind the cursor. What was acknowledged must have been seen, once.
async fn follow(client: &mut Client, own: &str, cursor: &mut String, seen: &mut HashSet<String>) {
    let told = client.ask(&format!("{own}@{cursor}"), Command::Get).await;
    let Some(mut entries) = lines(&told) else { return };
    *cursor = entries.remove(0);
    for entry in &entries {
        assert!(seen.insert(entry.clone()), "a tail of {own} at {cursor} saw {entry} again");
    }
    // One that was not acknowledged may be stored behind the tail.
    let known = appended(&client.world, own, |response| *response == Response::Stored);
    let missing = known.into_iter().filter(|entry| !seen.contains(entry));
    let keys = missing.map(|entry| (entry, false)).chain(entries.into_iter().map(|entry| (entry, true)));
    look(client, &told, keys.map(|(entry, found)| (format!("{own}@{entry}"), found)));
}

/// Counts, and reads the sum.
pub async fn windows(world: Rc<World>) {
    let mut client = Client::new(world);
    for _ in 0..COMMANDS {
        client.wait().await;
        let key = format!("window:{}", client.below(2));
        let delta = 1 + client.random.below(9);
        let count = Command::Count { delta, decr: false, initial: None };
        let command = if client.below(3) == 0 { Command::Get } else { count };
        client.call(&key, command).await;
    }
}

/// Each sum has every count that was acknowledged before, and none that was not sent.
pub fn sums(outcome: &Outcome) -> Result<(), String> {
    for (key, told) in &outcome.history {
        let sum = match &told.response {
            Response::Number(sum) => *sum,
            Response::Hit { value, .. } => value.parse().map_err(|_| format!("{key} is {value:?}"))?,
            _ => continue,
        };
        let of = |is: &dyn Fn(&Invocation) -> bool| -> u64 {
            let counts = outcome.history.iter().filter(|(of, other)| of == key && is(other));
            counts.map(|(_, o)| if let Command::Count { delta, .. } = o.command { delta } else { 0 }).sum()
        };
        let own = |other: &Invocation| other.invoked == told.invoked && other.connection == told.connection;
        let least =
            of(&|other| own(other) || other.response != Response::Unknown && other.responded < told.invoked);
        let most = of(&|other| other.invoked <= told.responded);
        if !(least..=most).contains(&sum) {
            return Err(format!("{key} at {} is {sum}, not {least} to {most}", told.invoked));
        }
    }
    Ok(())
}

/// Takes locks, holds them for a while, and deletes them or leaves.
pub async fn locks(world: Rc<World>) {
    let mut client = Client::new(world);
    for _ in 0..COMMANDS / 2 {
        client.wait().await;
        let key = format!("lock:{}", client.below(2));
        let owner = client.number.to_string();
        let taken = client.call(&key, Command::Add(owner)).await;
        if taken == Response::Stored {
            client.pause(HELD).await;
        }
        match client.below(4) {
            // Its connection is closed, also if it does not know whether it has the lock.
            0 if taken == Response::Stored => {}
            _ if taken == Response::Stored => {
                if client.call(&key, Command::Delete).await != Response::Unknown {
                    continue;
                }
            }
            _ if taken == Response::Unknown => {}
            _ => continue,
        }
        let (now, number) = (client.world.net.trace.now(), client.number);
        let left = Invocation {
            connection: number,
            client: number,
            invoked: now,
            responded: now,
            command: Command::Flush,
            response: Response::Unknown,
        };
        client.record(&key, left);
        client.reconnect();
    }
}

/// No lock is held by two: from the reply that gives it until its holder deletes it, or leaves.
pub fn one_holder(outcome: &Outcome) -> Result<(), String> {
    let mut holds: BTreeMap<&str, Vec<(u64, u64, usize)>> = BTreeMap::new();
    for (at, (key, told)) in outcome.history.iter().enumerate() {
        if !matches!(told.command, Command::Add(_)) || told.response != Response::Stored {
            continue;
        }
        let mut later = outcome.history[at..].iter();
        let ends = later.find_map(|(of, other)| {
            let is = matches!(other.command, Command::Delete | Command::Flush);
            (of == key && other.client == told.client && is).then_some(other)
        });
        if let Some(Invocation { response: Response::NotFound, .. }) = ends {
            return Err(format!("client {} has lost {key}, taken at {}", told.client, told.responded));
        }
        let until = ends.map_or(u64::MAX, |other| other.invoked);
        holds.entry(key).or_default().push((told.responded, until, told.client));
    }
    for (key, mut holds) in holds {
        holds.sort_unstable();
        if let Some(two) = holds.windows(2).find(|two| two[1].0 < two[0].1) {
            return Err(format!("{key} is held by two: {two:?}"));
        }
    }
    Ok(())
}
