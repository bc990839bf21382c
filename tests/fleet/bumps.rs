//! Changes of a key beside a bump of its tag, over links so slow that the commands of one round trip are carried out far apart.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use super::client::Connection;
use super::faults;
use super::schedules::fleet;
use super::seeds::for_each_seed;
use super::world::{Setup, World, run};

macro_rules! rules {
    () => {
        r#"
[[rules]]
name = "tagged"
match = "tagged:*"
tags = ["tagged"]
on_tag = "drop"
"#
    };
}

const RULES: [&str; 2] = [rules!(), concat!("[tags]\ncache = \"200ms\"\n", rules!())];

/// What the first of two clients sends beside the other's bump, and set behind it. Each creates the key, or may claim it.
const BESIDE_A_BUMP: [&str; 7] = [
    "set KEY 0 0 1\r\na\r\n",
    "add KEY 0 0 1\r\na\r\n",
    "replace KEY 0 0 1\r\na\r\n",
    "ma KEY N0 J7\r\n",
    "ms KEY 1 MA N0\r\na\r\n",
    "get KEY\r\n",
    "gat 0 KEY\r\n",
];

/// A client bumps a tag, and sets a key that has it, while another one is slow to write the same key. The tag is on another server than
/// most keys. In the end the key has the value of one of them.
async fn writes_beside_a_bump(world: Rc<World>) {
    let slow = spawn_local(faults::slow_links(Rc::clone(&world), Duration::from_secs(60)));
    let [mut one, mut other, mut reader] = [0, 1, 2].map(|at| Connection::open(&world, at, "beside a bump"));
    let mut random = world.fork();
    for round in 0..300 {
        let key = format!("tagged:{round}");
        let set = format!("set {key} 0 0 1\r\nb\r\n");
        if random.below(2) == 0 {
            assert_eq!(reader.exchange(&set).await.as_deref(), Some("STORED\r\n"), "{key}");
        }
        let command = BESIDE_A_BUMP[random.below(BESIDE_A_BUMP.len() as u64) as usize].replace("KEY", &key);
        let later = random.below(40);
        let (told, ()) = tokio::join!(
            async {
                sleep(Duration::from_millis(later)).await;
                one.exchange(&command).await
            },
            async {
                let bumped = other.exchange("delete @tag:tagged\r\n").await;
                assert_eq!(bumped.as_deref(), Some("DELETED\r\n"));
                assert_eq!(other.exchange(&set).await.as_deref(), Some("STORED\r\n"), "{key}");
            }
        );
        let found = reader.exchange(&format!("get {key}\r\n")).await;
        let now = world.net.trace.now();
        assert!(found.is_some_and(|found| found.starts_with("VALUE")), "{command:?} {told:?}, lost at {now}");
    }
    slow.abort();
}

#[test]
fn a_set_behind_a_bump_is_not_lost_to_what_was_begun_before_it() {
    for rules in RULES {
        for_each_seed(3, |seed| run(seed, Setup { rules, ..fleet() }, writes_beside_a_bump), |_| Ok(()));
    }
}
