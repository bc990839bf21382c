//! Clients that keep what a database has in the cache: what they read is never older than an acknowledged invalidation, and they build
//! one at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::client::Client;
use super::linearizability::{Command, Response};
use super::world::World;

/// Nothing that a bump or a delete has hidden is served, not even as stale. What has expired is.
pub const RULES: &str = r#"
[[rules]]
name = "pages"
match = "page:{group}:*"
tags = ["group:{group}"]
on_tag = "drop"
stale_for = "30s"
lock_ttl = "2s"
cold_wait = "1s"
max_rebuild = "10s"
"#;

/// The commands of a client, and the longest time of a build.
const COMMANDS: usize = 60;
const BUILD: Duration = Duration::from_millis(300);

/// What the database has: a version for each key and for each tag. A value consists of both.
#[derive(Default)]
pub struct Database {
    versions: BTreeMap<String, u64>,
    /// Of each key and tag, the version whose invalidation was acknowledged.
    acknowledged: BTreeMap<String, u64>,
    /// Who builds what, from which version.
    builds: Vec<(usize, String, String)>,
}

fn of(versions: &BTreeMap<String, u64>, name: &str) -> u64 {
    versions.get(name).copied().unwrap_or(0)
}

/// What the clients of a run do, and must not see.
#[derive(Clone, Copy)]
pub enum Program {
    /// They read, build, and invalidate. Nothing that they read is older than what was acknowledged before.
    Invalidate,
    /// They read and build. No two build a key at once.
    Read,
}

/// Reads keys, builds what it misses, and invalidates keys and tags.
pub async fn cache_aside(world: Rc<World>, database: Rc<RefCell<Database>>, program: Program) {
    let mut client = Client::new(world);
    client.exptime = 2;
    // Who sends more behind a get does not wait for another's build.
    client.is_quiet = matches!(program, Program::Invalidate);
    for _ in 0..COMMANDS {
        client.wait().await;
        let group = client.below(2);
        let (key, tag) = (format!("page:{group}:{}", client.below(2)), format!("@tag:group:{group}"));
        match (program, client.below(8)) {
            (Program::Invalidate, 0) => invalidate(&mut client, &database, &key).await,
            (Program::Invalidate, 1) => invalidate(&mut client, &database, &tag).await,
            _ => read(&mut client, &database, &key, &tag, program).await,
        }
    }
}

async fn invalidate(client: &mut Client, database: &RefCell<Database>, name: &str) {
    let version = {
        let versions = &mut database.borrow_mut().versions;
        let version = versions.entry(name.to_owned()).or_default();
        *version += 1;
        *version
    };
    if client.call(name, Command::Delete).await != Response::Unknown {
        let acknowledged = &mut database.borrow_mut().acknowledged;
        let latest = acknowledged.entry(name.to_owned()).or_default();
        *latest = version.max(*latest);
    }
}

async fn read(client: &mut Client, database: &RefCell<Database>, key: &str, tag: &str, program: Program) {
    let floor = {
        let acknowledged = &database.borrow().acknowledged;
        (of(acknowledged, key), of(acknowledged, tag))
    };
    match client.call(key, Command::Get).await {
        Response::Hit { value, .. } => {
            let parts = value.split_once('.').and_then(|(k, t)| Some((k.parse().ok()?, t.parse().ok()?)));
            let (of_key, of_tag): (u64, u64) = parts.unwrap_or_else(|| panic!("{key} is {value:?}"));
            let now = client.world.net.trace.now();
            assert!(of_key >= floor.0 && of_tag >= floor.1, "{key} is {value} at {now}, and not {floor:?}");
        }
        Response::Miss => {
            let value = {
                let versions = &database.borrow().versions;
                format!("{}.{}", of(versions, key), of(versions, tag))
            };
            let mine = (client.number, key.to_owned(), value.clone());
            if let Program::Read = program {
                let builds = &database.borrow().builds;
                let other = builds.iter().find(|(_, of, _)| of == key);
                let now = client.world.net.trace.now();
                assert_eq!(other, None, "client {} builds {key} too at {now}", client.number);
            }
            database.borrow_mut().builds.push(mine.clone());
            client.pause(BUILD).await;
            client.call(key, Command::Set(value)).await;
            database.borrow_mut().builds.retain(|build| *build != mine);
        }
        _ => {}
    }
}
