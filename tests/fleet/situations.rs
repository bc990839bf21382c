//! Runs of one situation each, which random clients would meet rarely: pools of connections, requests in one piece, locks whose server
//! is away, cached tags, values that outlive their servers, clients that leave, and servers that change.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use super::client::{Client, Connection, random_commands};
use super::guarded::{self, Program, cache_aside};
use super::linearizability::{Allowances, Command};
use super::schedules::{Fault, among, fleet, linearizable};
use super::seeds::for_each_seed;
use super::world::{Setup, World, run};

const RULES: &str = r#"
[tags]
cache = "5s"

[[rules]]
name = "copied"
match = "copied:*"
kind = "raw"
copies = 2

[[rules]]
name = "tagged"
match = "tagged:*"
tags = ["all"]
stale_for = "30s"
lock_ttl = "2s"
cold_wait = "1s"
max_rebuild = "10s"

[[rules]]
name = "guarded"
match = "guarded:*"
stale_for = "30s"
lock_ttl = "2s"
cold_wait = "1s"
max_rebuild = "10s"

[[rules]]
name = "locks"
match = "lock:*"
kind = "lock"
ttl = "30s"
"#;

fn of(seed: u64, situation: impl AsyncFnOnce(Rc<World>)) -> super::world::Outcome {
    run(seed, Setup { rules: RULES, ..fleet() }, async move |world| situation(world).await)
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn set(client: &mut Connection, key: &str, exptime: u32, value: &str) {
    let stored = client.exchange(&format!("set {key} 0 {exptime} {}\r\n{value}\r\n", value.len())).await;
    assert_eq!(stored.as_deref(), Some("STORED\r\n"), "{key}");
}

/// The value; `None`: a miss.
async fn get(client: &mut Connection, key: &str) -> Option<String> {
    let reply = client.exchange(&format!("get {key}\r\n")).await.expect("a reply");
    value(&reply)
}

fn value(reply: &str) -> Option<String> {
    match reply {
        "END\r\n" => None,
        reply if reply.starts_with("VALUE ") => Some(reply.lines().nth(1).expect("a value").to_owned()),
        other => panic!("{other:?}"),
    }
}

/// One client with a pool of connections, of which each command takes any. It reads, and writes through. Only a delete could drop a set:
/// there is none.
async fn writes_through(world: Rc<World>) {
    let mut random = world.fork();
    let mut pool: Vec<_> = (0..6).map(|_| Connection::open(&world, 0, "pool")).collect();
    for round in 0..40 {
        let mut written = vec![None; 2];
        for n in 0..12 {
            sleep(ms(random.below(20))).await;
            let at = random.below(2) as usize;
            let key = format!("guarded:{round}.{at}");
            let connection = random.below(pool.len() as u64) as usize;
            if random.below(2) == 0 {
                let read = get(&mut pool[connection], &key).await;
                assert_eq!(read, written[at], "{key} at {} us", world.net.trace.now());
            } else {
                set(&mut pool[connection], &key, 0, &n.to_string()).await;
                written[at] = Some(n.to_string());
            }
        }
    }
}

#[test]
fn a_pool_that_writes_through_reads_what_it_wrote() {
    for_each_seed(4, |seed| of(seed, writes_through), |_| Ok(()));
}

/// Threads of one process share fewer connections. Each reads the same cold keys, and builds what it misses without a connection.
async fn bounded_pool(world: Rc<World>) {
    const BUILD: Duration = ms_of(50);
    let pool: Rc<RefCell<VecDeque<_>>> =
        Rc::new(RefCell::new((0..3).map(|_| Connection::open(&world, 0, "pool")).collect()));
    let free = Rc::new(Semaphore::new(3));
    let longest = Rc::new(Cell::new(Duration::ZERO));
    // In the first rounds, the sidecar learns that they are a pool.
    let round = async |first: usize| {
        let threads: Vec<_> = (0..12)
            .map(|_| {
                let (pool, free, longest) = (Rc::clone(&pool), Rc::clone(&free), Rc::clone(&longest));
                let mut random = world.fork();
                spawn_local(async move {
                    for n in 0..6 {
                        let key = format!("guarded:{}", first + n);
                        let began = Instant::now();
                        let exchange = async |command: String| {
                            let _permit = free.acquire().await.expect("it is open");
                            let mut connection = pool.borrow_mut().pop_front().expect("one is free");
                            let reply = connection.exchange(&command).await.expect("a reply");
                            pool.borrow_mut().push_back(connection);
                            reply
                        };
                        if value(&exchange(format!("get {key}\r\n")).await).is_none() {
                            sleep(BUILD).await;
                            exchange(format!("set {key} 0 0 1\r\nv\r\n")).await;
                        }
                        longest.set(longest.get().max(began.elapsed()));
                        sleep(ms(random.below(10))).await;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.await.expect("it does not panic");
        }
    };
    round(0).await;
    round(100).await;
    longest.set(Duration::ZERO);
    round(200).await;
    assert!(longest.get() < ms(700), "a request of a build of {BUILD:?} took {:?}", longest.get());
}

const fn ms_of(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn a_bounded_pool_does_not_wait_for_itself() {
    for_each_seed(4, |seed| of(seed, bounded_pool), |_| Ok(()));
}

/// A hundred reads of values of one tag, within the time for which its version is kept. Then it is bumped.
async fn cached_tags(world: Rc<World>) {
    let mut client = Connection::open(&world, 0, "reader");
    for key in 0..4 {
        set(&mut client, &format!("tagged:{key}"), 0, "v").await;
    }
    let sent = || world.metric(0, "kennel_upstream_requests_total", "outcome=\"ok\"");
    // The first read caches the version.
    get(&mut client, "tagged:0").await;
    let before = sent();
    for n in 0..100 {
        assert_eq!(get(&mut client, &format!("tagged:{}", n % 4)).await.as_deref(), Some("v"));
    }
    assert!(sent() - before <= 104.0, "100 values were read with {} requests", sent() - before);
    for n in 0..8 {
        let key = format!("tagged:{n}");
        set(&mut client, &key, 0, "v").await;
        assert_eq!(get(&mut client, &key).await.as_deref(), Some("v"));
        assert_eq!(client.exchange("delete @tag:all\r\n").await.as_deref(), Some("DELETED\r\n"));
        // It is stale: this client wins it.
        assert_eq!(get(&mut client, &key).await, None, "{key} was invalidated");
        set(&mut client, &key, 0, "v").await;
    }
}

#[test]
fn a_cached_tag_is_read_once_in_its_time() {
    for_each_seed(4, |seed| of(seed, cached_tags), |_| Ok(()));
}

/// A lock is deleted, or its holder leaves, while nothing arrives at the servers. Soon after they answer again, others can take it.
async fn released(world: Rc<World>) {
    for round in 0..4 {
        let key = format!("lock:{round}");
        let mut holder = Connection::open(&world, 0, "holder");
        assert_eq!(
            holder.exchange(&format!("add {key} 0 0 1\r\nh\r\n")).await.as_deref(),
            Some("STORED\r\n")
        );
        (0..world.setup.servers).for_each(|server| world.net.set_held(0, server, true));
        if round % 2 == 0 {
            let deleted = holder.exchange(&format!("delete {key}\r\n")).await;
            assert!(deleted.is_some_and(|reply| reply.starts_with("SERVER_ERROR")));
        }
        drop(holder);
        sleep(ms(1_500)).await;
        (0..world.setup.servers).for_each(|server| world.net.set_held(0, server, false));
        sleep(ms(6_000)).await;
        let mut other = Connection::open(&world, 1, "other");
        let taken = other.exchange(&format!("add {key} 0 0 1\r\no\r\n")).await;
        assert_eq!(taken.as_deref(), Some("STORED\r\n"), "{key} in round {round}");
    }
}

#[test]
fn a_lock_is_released_though_its_server_is_away() {
    for_each_seed(4, |seed| of(seed, released), |_| Ok(()));
}

/// Copied values are read through all sidecars after each death and return of a server.
async fn outlive(world: Rc<World>) {
    let mut clients: Vec<_> =
        (0..world.setup.sidecars).map(|at| Connection::open(&world, at, "client")).collect();
    let key = |n: usize| format!("copied:{n}");
    for n in 0..12 {
        set(&mut clients[n % 3], &key(n), 0, &n.to_string()).await;
    }
    for round in 0..2 {
        for server in 0..world.setup.servers {
            world.kill_server(server);
            sleep(ms(10_000)).await;
            for n in 0..12 {
                let read = get(&mut clients[n % 3], &key(n)).await;
                assert_eq!(read, Some(n.to_string()), "{} without server {server} in round {round}", key(n));
            }
            world.start_server(server);
            sleep(ms(60_000)).await;
            for n in 0..12 {
                let read = get(&mut clients[(n + 1) % 3], &key(n)).await;
                assert_eq!(read, Some(n.to_string()), "{} after server {server} in round {round}", key(n));
            }
            sleep(ms(2_000)).await;
        }
    }
}

#[test]
fn a_copied_value_outlives_each_of_its_servers() {
    for_each_seed(2, |seed| of(seed, outlive), |_| Ok(()));
}

/// A server is out of reach for one sidecar, two lose everything, then each is killed. All sidecars agree that its keys are elsewhere, and
/// after its return that they are there again.
async fn comes_back(world: Rc<World>) {
    let moved =
        || (0..world.setup.sidecars).map(|at| world.metric(at, "kennel_failover_place", "")).sum::<f64>();
    let valid = || {
        (0..world.setup.sidecars).map(|at| world.metric(at, "kennel_failover_view_valid", "")).sum::<f64>()
    };
    // One sidecar alone does not reach it.
    world.net.set_held(0, 0, true);
    sleep(ms(10_000)).await;
    assert_eq!(moved(), 0.0, "sidecars that take server 0 for dead, which others reach");
    world.net.set_held(0, 0, false);
    sleep(ms(10_000)).await;
    // Two copies of each record are lost.
    for server in 0..2 {
        world.kill_server(server);
        world.start_server(server);
    }
    sleep(ms(30_000)).await;
    assert_eq!(
        valid(),
        (world.setup.sidecars * world.setup.servers) as f64,
        "views after two servers lost everything"
    );
    for server in 0..world.setup.servers {
        world.kill_server(server);
        sleep(ms(10_000)).await;
        assert_eq!(
            moved(),
            world.setup.sidecars as f64,
            "the sidecars that know that server {server} is dead"
        );
        world.start_server(server);
        sleep(ms(30_000)).await;
        assert_eq!(moved(), 0.0, "sidecars that do not use server {server}, which is back");
    }
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    for_each_seed(2, |seed| of(seed, comes_back), |_| Ok(()));
}

/// A client leaves with a miss that it builds, and with a lock. Another one builds and locks at once.
async fn left(world: Rc<World>) {
    for round in 0..6 {
        let (key, lock) = (format!("guarded:{round}"), format!("lock:{round}"));
        let mut holder = Connection::open(&world, round % 3, "holder");
        assert_eq!(get(&mut holder, &key).await, None);
        assert_eq!(
            holder.exchange(&format!("add {lock} 0 0 1\r\nh\r\n")).await.as_deref(),
            Some("STORED\r\n")
        );
        drop(holder);
        sleep(ms(300)).await;
        let mut other = Connection::open(&world, (round + 1) % 3, "other");
        let taken = other.exchange(&format!("add {lock} 0 0 1\r\no\r\n")).await;
        assert_eq!(taken.as_deref(), Some("STORED\r\n"), "{lock}");
        let read = timeout(ms(200), get(&mut other, &key)).await;
        assert_eq!(read, Ok(None), "{key} is free");
        set(&mut other, &key, 0, "v").await;
    }
}

#[test]
fn what_a_client_that_leaves_held_is_free() {
    for_each_seed(4, |seed| of(seed, left), |_| Ok(()));
}

/// Readers of one sidecar wait for a build. They have the value as soon as it is stored.
async fn built(world: Rc<World>) {
    for round in 0..6 {
        let key = format!("guarded:{round}");
        let mut builder = Connection::open(&world, 0, "builder");
        assert_eq!(get(&mut builder, &key).await, None);
        let waiting = async |number: usize| {
            let mut reader = Connection::open(&world, 0, &format!("reader{number}"));
            let read = get(&mut reader, &key).await;
            (read, Instant::now())
        };
        let build = async {
            sleep(ms(350)).await;
            set(&mut builder, &key, 0, "v").await;
            Instant::now()
        };
        let (first, second, stored) = tokio::join!(waiting(1), waiting(2), build);
        for (read, at) in [first, second] {
            assert_eq!(read.as_deref(), Some("v"), "{key}");
            let late = at.saturating_duration_since(stored);
            assert!(late < ms(20), "a reader had {key} {late:?} after it was stored");
        }
    }
}

#[test]
fn a_build_is_read_by_all() {
    for_each_seed(4, |seed| of(seed, built), |_| Ok(()));
}

/// A value has expired, and its build takes longer than a lock lives. The others receive the old value meanwhile.
async fn long_build(world: Rc<World>) {
    let mut builder = Connection::open(&world, 0, "builder");
    let mut others = [1, 2].map(|at| Connection::open(&world, at, "other"));
    for round in 0..3 {
        let key = format!("guarded:{round}");
        set(&mut builder, &key, 1, "old").await;
        sleep(ms(2_500)).await;
        assert_eq!(get(&mut builder, &key).await, None, "the first reader wins");
        for _ in 0..14 {
            sleep(ms(500)).await;
            for other in &mut others {
                assert_eq!(get(other, &key).await.as_deref(), Some("old"), "{key}: a second one builds");
            }
        }
        set(&mut builder, &key, 0, "new").await;
        assert_eq!(get(&mut others[0], &key).await.as_deref(), Some("new"));
    }
}

#[test]
fn a_long_build_is_the_only_one() {
    for_each_seed(2, |seed| of(seed, long_build), |_| Ok(()));
}

/// Commands of one client that arrive in one piece are carried out in their order, also while configurations change.
async fn in_one_piece(world: Rc<World>) {
    let mut random = world.fork();
    let mut client = Connection::open(&world, 0, "piped");
    let mut builder = Connection::open(&world, 1, "builder");
    for round in 0..40 {
        let prefix = ["raw:", "guarded:", "copied:"][round % 3];
        let key = format!("{prefix}{round}");
        let (mut piece, mut expected) = (String::new(), Vec::new());
        let (mut value, mut n) = (None::<String>, 0);
        for _ in 0..1 + random.below(24) {
            n += 1;
            let hit = |value: &str| format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
            match random.below(7) {
                0..3 => {
                    piece += &format!("get {key}\r\n");
                    expected.push(value.as_deref().map_or_else(|| "END\r\n".to_owned(), hit));
                }
                3..5 => {
                    piece += &format!("set {key} 0 0 {}\r\n{n}\r\n", n.to_string().len());
                    expected.push("STORED\r\n".to_owned());
                    value = Some(n.to_string());
                }
                5 => {
                    piece += &format!("append {key} 0 0 1\r\n;\r\n");
                    expected.push(if value.is_some() { "STORED\r\n" } else { "NOT_STORED\r\n" }.to_owned());
                    value = value.map(|value| value + ";");
                }
                _ => {
                    piece += &format!("delete {key}\r\n");
                    expected.push(
                        if value.take().is_some() { "DELETED\r\n" } else { "NOT_FOUND\r\n" }.to_owned(),
                    );
                }
            }
        }
        if round % 8 == 7 {
            let large = 1_100_000;
            piece += &format!(
                "set {key} 0 0 {large}\r\n{}\r\nget {key}\r\n",
                "get x\r\n".repeat(large / 7 + 1)[..large].to_owned()
            );
            expected.push("SERVER_ERROR object too large for cache\r\n".to_owned());
            // memcached removes the value.
            piece += &format!("set {key} 0 0 1\r\nv\r\nget {key}\r\n");
            let reloaded = client.exchange_all(&piece, expected.len() + 3).await;
            assert_eq!(reloaded[..expected.len()], expected[..], "{key}");
            let last = format!("VALUE {key} 0 1\r\nv\r\nEND\r\n");
            assert_eq!(reloaded[expected.len() + 1..], ["STORED\r\n".to_owned(), last], "{key}");
        } else {
            let (replies, ()) = tokio::join!(client.exchange_all(&piece, expected.len()), async {
                if round % 4 == 3 {
                    sleep(ms(random.below(2))).await;
                    world
                        .reload(
                            0,
                            &format!("[[rules]]\nname = \"r{round}\"\nmatch = \"r{round}:*\"\n\n{RULES}"),
                        )
                        .await;
                }
            });
            assert_eq!(replies, expected, "{key}: {piece}");
        }
        // Who has requests behind a get does not wait for a build.
        let key = format!("guarded:built{round}");
        assert_eq!(get(&mut builder, &key).await, None);
        let began = Instant::now();
        client.exchange_all(&format!("get {key}\r\nget raw:x\r\n"), 2).await;
        assert!(began.elapsed() < ms(300), "it waited {:?} for {key}", began.elapsed());
        set(&mut builder, &key, 0, "v").await;
    }
}

#[test]
fn requests_in_one_piece_are_carried_out_in_their_order() {
    for_each_seed(3, |seed| of(seed, in_one_piece), |_| Ok(()));
}

/// One sidecar has a rule more than the others for a while. All say so, and no longer once they are alike.
async fn other_rules(world: Rc<World>) {
    let differ = || {
        (0..world.setup.sidecars).filter(|at| world.metric(*at, "kennel_pool_rules_differ", "") > 0.0).count()
    };
    sleep(ms(20_000)).await;
    assert_eq!(differ(), 0, "all have the same rules");
    world
        .reload(
            1,
            &format!("[[rules]]\nname = \"further\"\nmatch = \"further:*\"\nkind = \"list\"\n\n{RULES}"),
        )
        .await;
    sleep(ms(20_000)).await;
    assert_eq!(differ(), world.setup.sidecars, "one has other rules");
    world.reload(1, RULES).await;
    sleep(ms(60_000)).await;
    assert_eq!(differ(), 0, "all have the same rules again");
}

#[test]
fn sidecars_with_other_rules_are_noticed() {
    for_each_seed(2, |seed| of(seed, other_rules), |_| Ok(()));
}

/// Some sidecars receive a configuration in which another server stands in the place of one, in one step.
#[test]
fn servers_that_change_serve_nothing_older() {
    let schedule = |seed| {
        let setup = Setup { rules: guarded::RULES, servers: 4, pause: ms(400), ..fleet() };
        let database = Rc::new(RefCell::default());
        run(seed, setup, |world| async move {
            let changing = Rc::clone(&world);
            spawn_local(async move {
                let mut random = changing.fork();
                for _ in 0..6 {
                    sleep(ms(random.below(5_000))).await;
                    let sidecar = random.below(changing.setup.sidecars as u64) as usize;
                    let without = random.below(4) as usize;
                    changing
                        .reload_servers(sidecar, &(0..4).filter(|at| *at != without).collect::<Vec<_>>())
                        .await;
                }
            });
            among(&world, &[] as &[Fault], |world| {
                cache_aside(world, Rc::clone(&database), Program::Invalidate)
            })
            .await;
        })
    };
    for_each_seed(3, schedule, |_| Ok(()));
}

/// Twenty clients send any commands for keys of three kinds, a command each second or so: the measure of how fast a run is.
async fn twenty_clients(world: Rc<World>) {
    let keys: Vec<_> = ["raw:", "guarded:", "copied:"]
        .iter()
        .flat_map(|of| (0..8).map(move |n| format!("{of}{n}")))
        .collect();
    let clients: Vec<_> =
        (0..20).map(|_| spawn_local(random_commands(Rc::clone(&world), keys.clone(), 40))).collect();
    for client in clients {
        client.await.expect("it does not panic");
    }
}

#[test]
fn twenty_clients_of_three_sidecars() {
    for_each_seed(2, |seed| of(seed, twenty_clients), |_| Ok(()));
}

/// A lock lives for three seconds and is held for longer. Then all servers lose it, and another client takes it: it is its own, whatever
/// the first one does.
async fn renewed(world: Rc<World>) {
    for round in 0..3 {
        let key = format!("lock:{round}");
        let take = async |client: &mut Connection| {
            client.exchange(&format!("add {key} 0 3 1\r\no\r\n")).await.expect("a reply")
        };
        let [mut first, mut second, mut third] = [0, 1, 2].map(|at| Connection::open(&world, at, "holder"));
        assert_eq!(take(&mut first).await, "STORED\r\n");
        for _ in 0..8 {
            sleep(ms(1_000)).await;
            assert_eq!(take(&mut second).await, "NOT_STORED\r\n", "{key} is renewed");
        }
        for server in 0..world.setup.servers {
            world.kill_server(server);
            world.start_server(server);
        }
        sleep(ms(200)).await;
        let mut taken = String::new();
        for _ in 0..40 {
            taken = take(&mut second).await;
            if taken == "STORED\r\n" {
                break;
            }
            sleep(ms(50)).await;
        }
        assert_eq!(taken, "STORED\r\n", "{key} was lost");
        let released = first.exchange(&format!("delete {key}\r\n")).await;
        assert_eq!(released.as_deref(), Some("NOT_FOUND\r\n"), "{key} is the second one's");
        for _ in 0..4 {
            assert_eq!(take(&mut third).await, "NOT_STORED\r\n", "{key} is the second one's");
            sleep(ms(1_000)).await;
        }
        let released = second.exchange(&format!("delete {key}\r\n")).await;
        assert_eq!(released.as_deref(), Some("DELETED\r\n"), "{key}");
        sleep(ms(20_000)).await;
    }
}

#[test]
fn a_lock_is_its_holders_also_after_another_has_lost_it() {
    for_each_seed(2, |seed| of(seed, renewed), |_| Ok(()));
}

/// A change of a copied value may be half done, because the connections end. What is told of the value from then on is of one state.
async fn half_done(world: Rc<World>) {
    let [mut first, mut second] = [(); 2].map(|()| Client::new(Rc::clone(&world)));
    for n in 0..60 {
        let (key, value) = (format!("copied:{n}"), |of: &str| format!("{of}{n};"));
        first.call(&key, Command::Set(value("a"))).await;
        let bytes = 20 + first.below(160);
        for server in 0..world.setup.servers {
            world.net.cut_after(first.sidecar, server, 0, bytes);
        }
        let half = [Command::Delete, Command::Set(value("b")), Command::Append(value("c"))];
        let half = half[first.below(3)].clone();
        first.call(&key, half).await;
        world.net.cut_nothing_later();
        for turn in 0..6 {
            let client = if turn % 2 == 0 { &mut second } else { &mut first };
            let command = match client.below(6) {
                0..3 => Command::Get,
                3 => Command::Append(value("d")),
                4 => Command::Add(value("e")),
                _ => Command::Delete,
            };
            client.call(&key, command).await;
        }
        sleep(ms(2_000)).await;
    }
}

#[test]
fn half_a_change_of_a_copied_value_is_whole_for_all_who_look() {
    for_each_seed(2, |seed| of(seed, half_done), |outcome| linearizable(outcome, &Allowances::COPIED));
}

/// Sidecars take a configuration with a further rule: connections stay, and where the keys are is known all the time.
async fn further_rule(world: Rc<World>) {
    for sidecar in 0..world.setup.sidecars {
        let connections = || world.metric(sidecar, "kennel_upstream_connections_total", "");
        let before = connections();
        let further = format!("[[rules]]\nname = \"further\"\nmatch = \"further:*\"\n\n{RULES}");
        world.reload(sidecar, &further).await;
        assert_eq!(
            world.metric(sidecar, "kennel_failover_view_valid", ""),
            world.setup.servers as f64,
            "views"
        );
        sleep(ms(2_000)).await;
        assert_eq!(connections(), before, "connections of sidecar {sidecar}");
    }
}

#[test]
fn a_reload_keeps_what_has_not_changed() {
    for_each_seed(2, |seed| of(seed, further_rule), |_| Ok(()));
}
