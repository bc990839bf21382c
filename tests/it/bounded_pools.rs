//! A bounded connection pool must not wait for itself: the connection that a winner needs for its `set` is never taken by the
//! waits of the same client. Threads share fewer connections, as in pylibmc, Dalli or a Java pool.

use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::client::Client;
use crate::world::{Kennel, addresses, clients_are, guarded, memcacheds, sidecar_toml};

/// How long a build takes. The thread has no connection meanwhile.
const BUILD: Duration = Duration::from_millis(50);
const KEYS: usize = 8;

/// A wait that ends by one of its limits ends the test: a client reads no reply for that long.
const RULE: &str = "cold_wait = \"50s\"\ncold_limit = \"55s\"\nlock_ttl = \"5s\"";

/// Connections that threads take for one command each, and wait for when all are taken.
struct Pool {
    free: Mutex<VecDeque<Client>>,
    returned: Condvar,
    /// The connection that was returned last is taken first.
    last_first: bool,
}

impl Pool {
    fn run<T>(&self, command: impl FnOnce(&mut Client) -> T) -> T {
        let mut free = self.free.lock().expect("the pool");
        let mut client = loop {
            let next = if self.last_first { free.pop_back() } else { free.pop_front() };
            match next {
                Some(client) => break client,
                None => free = self.returned.wait(free).expect("the pool"),
            }
        };
        drop(free);
        let result = command(&mut client);
        self.free.lock().expect("the pool").push_back(client);
        self.returned.notify_one();
        result
    }
}

/// Each thread reads every key once and builds what it misses.
fn read_all(pool: &Arc<Pool>, threads: usize, prefix: &str) {
    let begin = Arc::new(Barrier::new(threads));
    let thread = |n: usize| {
        let (pool, begin, prefix) = (Arc::clone(pool), Arc::clone(&begin), prefix.to_owned());
        thread::spawn(move || {
            begin.wait();
            for key in (0..KEYS).map(|at| format!("hot:{prefix}:{}", (n + at) % KEYS)) {
                if pool.run(|client| client.get(&key)).is_none() {
                    thread::sleep(BUILD);
                    pool.run(|client| client.store(&key, b"built", 60));
                }
            }
        })
    };
    let threads: Vec<_> = (0..threads).map(thread).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a thread of the client"));
}

fn waits(kennel: &Kennel, end: &str) -> f64 {
    kennel.metrics().sum("kennel_waits_total", &[&format!("end=\"{end}\"")])
}

fn no_thread_waits_for_its_own_pool(clients: &str) {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", RULE)]);
    let kennel = Kennel::start(&clients_are(clients, &toml));
    for connections in [5, 10, 50] {
        for (factor, last_first) in [(1, false), (2, true), (4, false), (4, true)] {
            let free = (0..connections).map(|_| kennel.client()).collect();
            let pool = Arc::new(Pool { free: Mutex::new(free), returned: Condvar::new(), last_first });
            read_all(&pool, factor * connections, &format!("{connections}:{factor}:{last_first}"));
        }
    }
    let ends = ["timed_out", "let_through"].map(|end| waits(&kennel, end));
    assert_eq!(ends, [0.0, 0.0], "no wait ended by its limit");
    assert!(waits(&kennel, "gave_way") > 0.0, "the pools were never full");
    assert!(waits(&kennel, "filled") > 0.0, "nobody waited for a build");
}

#[test]
fn no_thread_of_a_bounded_pool_waits_for_its_own_pool() {
    no_thread_waits_for_its_own_pool("auto");
}

#[test]
fn no_thread_of_a_declared_pool_waits_for_its_own_pool() {
    no_thread_waits_for_its_own_pool("pooled");
}

#[test]
fn a_wait_goes_on_while_another_connection_of_its_client_is_free() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", RULE)]);
    let kennel = Kennel::start(&toml);
    let [mut winner, mut second, mut third] = [(); 3].map(|()| kennel.client());
    assert_eq!(winner.get("hot:a"), None);
    assert_eq!(third.get("hot:b"), None);
    second.send(b"get hot:a\r\n");
    second.silent_for(Duration::from_millis(200));
    // Now the winner's connection is used for another key.
    winner.send(b"get hot:b\r\n");
    winner.silent_for(Duration::from_millis(200));
    // And the last one: the longest wait ends.
    third.send(b"get hot:a\r\n");
    assert_eq!(second.only_value("hot:a"), None);
    second.store("hot:a", b"built", 60);
    assert_eq!(third.only_value("hot:a").as_deref(), Some(&b"built"[..]));
    third.store("hot:b", b"built", 60);
    assert_eq!(winner.only_value("hot:b").as_deref(), Some(&b"built"[..]));
}
