//! The smallest schedules of failures that this test has found.

use super::run::{Rule, Setting, World};
use super::schedule::Schedule;

/// What each was about, and the schedule as printed.
const REGRESSIONS: &[(&str, &str)] = &[
    (
        "an add behind a miss that another connection's add came before",
        "1 get a\n2 add a 100\n1 add a 200\n3 get a",
    ),
    ("two adds behind a flush_all", "1 get a\n1 flush_all\n2 add a 100\n3 add a 200\n3 get a"),
    (
        "ms ME behind a miss that another connection's set came before",
        "1 mg a\n2 set a 100\n1 msE a 200\n3 get a",
    ),
    ("two ms ME behind a flush_all", "1 mg a\n1 flush_all\n2 msE a 100\n3 msE a 200\n3 mg a"),
    ("an add that says NOT_STORED and leaves nothing", "1 get a\n2 flush_all\n3 add a 100\n3 incr a 1"),
    ("an add that is acknowledged and vanishes", "1 get a\n2 delete a\n1 add a 100\n1 incr a 1"),
    ("a set of another than who missed, after its flush_all", "1 get a\n2 flush_all\n2 set a 100\n2 get a"),
    ("a set of another than who missed, after a delete", "1 get a\n2 delete a\n3 set a 100\n1 get a"),
    (
        "a fill that lost to two sets takes them away",
        "1 get a\n2 set a 100\n2 set a 200\n1 set a 300\n2 get a",
    ),
    ("a set passes for the fill of whoever missed", "1 get a\n2 get a\n2 set a 100\n3 set a 200\n1 get a"),
    (
        "a second set of one's own passes for another's fill",
        "1 get a\n2 get a\n2 set a 100\n2 set a 200\n1 get a",
    ),
    (
        "a set passes for another's fill, and takes away what stands there",
        "1 get a\n2 set a 100\n2 append a x1\n1 set a 200\n2 get a",
    ),
    (
        "a set of who was shown the value passes for another's fill",
        "1 get a\n2 get a\n3 set a 100\n1 get a\n1 set a 200\n3 get a",
    ),
    (
        "five missed, another deletes: five sets of others are dropped",
        "1 get a\n2 get a\n3 get a\n4 get a\n5 get a\n6 delete a\n7 set a 100\n7 get a\n8 set a 200\n8 get a\n\
         9 set a 300\n9 get a\n10 set a 400\n10 get a\n11 set a 500\n11 get a",
    ),
    ("a count that gets shorter keeps its length", "1 ms a 100\n2 decr a 2\n3 append a x500\n4 mg a"),
];

/// The same for keys with a tag.
const TAGGED: &[(&str, &str)] = &[
    (
        "an add that is acknowledged though the tag has moved since its miss",
        "1 get a\n2 bump\n1 add a 100\n3 get a",
    ),
    (
        "an add behind a bump that its own miss is newer than",
        "1 get a\n2 bump\n1 get a\n1 add a 100\n1 get a",
    ),
    ("a set behind a bump that its own miss is newer than", "1 get a\n2 bump\n1 get a\n1 set a 100\n3 get a"),
    (
        "a fill from before a bump replaces one from behind it",
        "1 get a | 2 get a\n3 bump\n4 get a\n4 add a 100\n1 set a 200 | 5 get a\n5 get a",
    ),
    (
        "a fill from before a bump takes the place of one from behind it",
        "1 get a\n2 bump\n3 get a\n1 set a 100\n3 set a 200\n3 get a",
    ),
    (
        "a reader of what is out of date takes the place of who missed before it was stored",
        "1 get a\n2 bump\n3 get a\n1 set a 100\n4 get a\n3 set a 200\n5 get a",
    ),
    (
        "whoever wins what nobody is to see costs those their set who have seen it too",
        "1 set a 100\n2 bump\n3 get a | 4 get a | 5 get a\n6 get a\n4 set a 200\n4 get a",
    ),
];

/// What is wrong with a schedule through one or two sidecars, under the first of these rules that shows it.
fn found(name: &str, text: &str, rules: &[Rule], world: &mut World) -> Option<String> {
    let schedule = Schedule::parse(text);
    let settings = rules.iter().flat_map(|rule| [1, 2].map(|sidecars| Setting::single(*rule, sidecars)));
    settings.into_iter().find_map(|setting| {
        let why = world.run(&schedule, setting).err()?;
        Some(format!("{name}: {setting:?}\n{text}\n{why}\n"))
    })
}

#[test]
fn what_the_attacker_has_found_is_not_there_any_more() {
    let mut world = World::start();
    let mut failed = Vec::new();
    for (name, text) in REGRESSIONS {
        let control = world.run(&Schedule::parse(text), Setting::single(Rule::Raw, 1));
        assert_eq!(control, Ok(0), "memcached itself: {name}");
        failed.extend(found(name, text, &[Rule::Guarded, Rule::Tagged], &mut world));
    }
    for (name, text) in TAGGED {
        failed.extend(found(name, text, &[Rule::Tagged], &mut world));
    }
    let all = REGRESSIONS.len() + TAGGED.len();
    assert!(failed.is_empty(), "{} of {all} schedules fail again:\n{}", failed.len(), failed.join("\n"));
}
