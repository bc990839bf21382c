//! Many clients of two sidecars change the same structures while a server restarts.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use super::super::{Ends, answer, store, text};
use super::{SHORT, fleet_of, ledger};
use crate::client::Client;
use crate::world::eventually;

const CLIENTS: usize = 6;
/// How many commands on each kind must have been acknowledged before the server restarts, and behind that.
const BEFORE: usize = 120;
const BEHIND: usize = 240;
/// Keys of each kind. Clients change them in turn, so all change one at about the same time.
const KEYS: usize = 2;

/// What was acknowledged, by kind and key, and what failed.
#[derive(Default)]
struct Done {
    acknowledged: HashSet<(&'static str, usize, String)>,
    failed: HashSet<(&'static str, usize, String)>,
}

impl Done {
    fn of<'a>(&'a self, kind: &'a str, key: usize) -> impl Iterator<Item = &'a str> {
        let of_key = self.acknowledged.iter().filter(move |(of, at, _)| *of == kind && *at == key);
        of_key.map(|(_, _, name)| name.as_str())
    }

    fn tried(&self, kind: &'static str, key: usize, name: &str) -> bool {
        let entry = (kind, key, name.to_owned());
        self.acknowledged.contains(&entry) || self.failed.contains(&entry)
    }

    /// Each name that was acknowledged is found, each that is found was tried, and is found once.
    fn check(&self, kind: &'static str, key: usize, found: &[String]) {
        let once: HashSet<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(once.len(), found.len(), "{kind} {key}");
        let lost: Vec<&str> = self.of(kind, key).filter(|name| !once.contains(name)).collect();
        assert!(lost.is_empty(), "{kind} {key} has lost {lost:?} of {}", once.len());
        assert!(once.iter().all(|name| self.tried(kind, key, name)), "{kind} {key}");
    }
}

/// One command of each kind after the other, with a name that no other command has, until it is over.
fn work(mut client: Client, number: usize, acknowledged: &[AtomicUsize; 5], is_over: &AtomicBool) -> Done {
    let mut done = Done::default();
    for round in 0.. {
        if is_over.load(SeqCst) {
            break;
        }
        let (name, key) = (format!("c{number}-{round}"), round % KEYS);
        let commands = [
            ("list", format!("append list:{key} 0 0"), format!("+{name}\n")),
            ("log", format!("append log:{key} 0 0"), format!("{name}\n")),
            ("table", format!("set table:{key}/{name} 0 0"), name.clone()),
            ("visit", format!("add visit:{key}:{name} 0 0"), String::new()),
        ];
        for (at, (kind, command, value)) in commands.into_iter().enumerate() {
            let reply = store(&mut client, &command, &value);
            assert!(reply == "STORED" || reply.starts_with("SERVER_ERROR"), "{command}: {reply}");
            let entry = (kind, key, name.clone());
            match reply == "STORED" {
                true => {
                    acknowledged[at].fetch_add(1, SeqCst);
                    done.acknowledged.insert(entry)
                }
                false => done.failed.insert(entry),
            };
        }
        let reply = client.execute(&format!("incr sum:{key} 1"));
        let entry = ("sum", key, name);
        match reply.parse::<u64>() {
            Ok(_) => {
                acknowledged[4].fetch_add(1, SeqCst);
                done.acknowledged.insert(entry)
            }
            Err(_) => {
                assert!(reply.starts_with("SERVER_ERROR"), "{reply}");
                done.failed.insert(entry)
            }
        };
    }
    done
}

/// Follows a log until it is over and nothing is new. Returns all entries.
fn follow(mut client: Client, key: &str, is_over: &AtomicBool) -> Vec<String> {
    let (mut cursor, mut all) = ("0".to_owned(), Vec::new());
    loop {
        let was_over = is_over.load(SeqCst);
        // An error: a server did not reply.
        let Ok(behind) = answer(&mut client, &format!("{key}@{cursor}")) else { continue };
        let behind = behind.expect("a cursor");
        let (next, new) = behind.split_once('\n').expect("a cursor");
        all.extend(new.lines().map(str::to_owned));
        if was_over && new.is_empty() {
            return all;
        }
        cursor = next.to_owned();
    }
}

#[test]
fn nothing_acknowledged_is_lost_of_what_many_clients_change_while_a_server_restarts() {
    let (mut servers, sidecars) =
        fleet_of(&ledger::rules(), |toml| toml.replace("[pools.main]\n", &format!("[pools.main]\n{SHORT}")));
    let acknowledged: [AtomicUsize; 5] = Default::default();
    let (is_over, is_read) = (AtomicBool::new(false), AtomicBool::new(false));
    let (done, tails) = thread::scope(|scope| {
        let _ends = (Ends(&is_over), Ends(&is_read));
        let (acknowledged, over, read) = (&acknowledged, &is_over, &is_read);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = sidecars[number % 2].client();
                scope.spawn(move || work(client, number, acknowledged, over))
            })
            .collect();
        let tails: Vec<_> = (0..KEYS)
            .map(|key| {
                let client = sidecars[key % 2].client();
                scope.spawn(move || follow(client, &format!("log:{key}"), read))
            })
            .collect();
        let until = |count: usize| {
            eventually("commands are acknowledged", || {
                acknowledged.iter().all(|of| of.load(SeqCst) >= count)
            });
        };
        until(BEFORE);
        servers[0].restart();
        let so_far = acknowledged.iter().map(|of| of.load(SeqCst)).max().unwrap_or(0);
        until(so_far + BEHIND);
        is_over.store(true, SeqCst);
        let mut done = Done::default();
        for client in clients {
            let of_client = client.join().expect("a client");
            done.acknowledged.extend(of_client.acknowledged);
            done.failed.extend(of_client.failed);
        }
        is_read.store(true, SeqCst);
        (done, tails.into_iter().map(|tail| tail.join().expect("a tail")).collect::<Vec<_>>())
    });
    let mut client = sidecars[1].client();
    for (key, tail) in tails.iter().enumerate() {
        done.check("log", key, tail);
        for kind in ["list", "log", "table"] {
            let mut found = None;
            eventually("it can be read", || {
                found = answer(&mut client, &format!("{kind}:{key}")).ok().flatten();
                found.is_some()
            });
            let found: Vec<String> = found.unwrap_or_default().lines().map(str::to_owned).collect();
            done.check(kind, key, &found);
        }
        for name in done.of("table", key) {
            assert_eq!(text(&mut client, &format!("table:{key}/{name}")).as_deref(), Some(name));
        }
        for kind in ["visit", "sum"] {
            let mut sum = None;
            eventually("it can be read", || {
                let shown = answer(&mut client, &format!("{kind}:{key}"));
                sum = shown.ok().map(|sum| sum.and_then(|sum| sum.parse::<usize>().ok()).expect("a sum"));
                sum.is_some()
            });
            let counted = done.of(kind, key).count();
            let failed = done.failed.iter().filter(|(of, at, _)| *of == kind && *at == key).count();
            assert!(
                sum.is_some_and(|sum| (counted..=counted + failed).contains(&sum)),
                "{kind} {key}: {sum:?}"
            );
        }
    }
}
