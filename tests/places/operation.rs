//! A guarded read, fill, delete and bump, as short as the rules of a place allow.

use super::mutants::Mutant;
use super::server::{Action, Answer, Content, Key};
use super::world::World;

/// Where an item is for a process, and under which fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    fence: u64,
    server: usize,
}

/// One request on its way: what it is and what it has learnt.
#[derive(Debug, Clone)]
pub enum Op {
    /// A read. `acknowledged`: the latest invalidation that was acknowledged before it began.
    Read { key: Spot, tag: Spot, acknowledged: u64 },
    /// The tag is created for a read whose value is not fresh.
    Create { key: Spot, cas: u64, version: u64 },
    /// A client builds, and stores at this time.
    Build { key: Spot, cas: u64, version: u64, built: u64, until: u64 },
    /// A delete of the key, for this version of the source.
    Delete { key: Spot, version: u64 },
    /// A bump reads the tag.
    Bump { tag: Spot, version: u64 },
    /// A bump is stored, and acknowledged for this version of the source.
    StoreBump { tag: Spot, version: u64 },
    /// A value is stored.
    Store,
}

/// What goes on after the answers to a request: other commands, or nothing.
pub type Next = Option<(Op, Vec<(usize, Key, Action)>)>;

/// The server that holds the key where it is apart from its tag. It never fails.
pub const APART: usize = 3;

/// Where the items of the server that may fail are for a process.
fn place(world: &World, process: usize, without: Option<Mutant>) -> Option<Spot> {
    let agreement = &world.processes[process].agreement;
    let now = world.time_of(process);
    let view = agreement.view(now).map(|(view, _)| view);
    let known = || {
        let record = agreement.status(now).record?;
        let kennel::failover::Record { fence, standby, inherited, .. } = record;
        Some(kennel::failover::View { fence, standby, inherited })
    };
    let view = if without.is_some_and(|mutant| world.is(mutant)) { view.or_else(known) } else { view }?;
    Some(Spot { fence: view.fence, server: usize::from(view.standby) })
}

/// Where the key is.
fn key(world: &World, process: usize, without: Option<Mutant>) -> Option<Spot> {
    if world.plan.apart { Some(Spot { fence: 1, server: APART }) } else { place(world, process, without) }
}

/// Begins a request of a process, chosen by `dice`.
pub fn begin(world: &mut World, process: usize, dice: u64) -> Next {
    match dice % 8 {
        0 => {
            let key = key(world, process, Some(Mutant::AcknowledgesWithoutView))?;
            world.source += 1;
            let op = Op::Delete { key, version: world.source };
            Some((op, vec![(key.server, Key::Value, Action::Delete)]))
        }
        1 => {
            let tag = place(world, process, Some(Mutant::AcknowledgesWithoutView))?;
            world.source += 1;
            let op = Op::Bump { tag, version: world.source };
            Some((op, vec![(tag.server, Key::Tag, Action::Get { stub: true })]))
        }
        _ => {
            let without = Some(Mutant::LeaseInTheGrace);
            let (key, tag) = (key(world, process, without)?, place(world, process, without)?);
            let op = Op::Read { key, tag, acknowledged: world.acknowledged };
            let get = Action::Get { stub: true };
            Some((op, vec![(key.server, Key::Value, get.clone()), (tag.server, Key::Tag, get)]))
        }
    }
}

/// Goes on with the answers; `None` for a command without one.
///
/// # Errors
/// What was served although it was invalidated.
pub fn resume(world: &mut World, process: usize, op: Op, answers: &[Option<Answer>]) -> Result<Next, String> {
    Ok(match (op, answers) {
        (
            Op::Read { key, tag, acknowledged },
            [Some(Answer::Found(item, cas)), Some(Answer::Found(found, tag_cas))],
        ) => {
            let version = match *found {
                Content::Tag { fence, version } if fence == tag.fence => version,
                _ => return Ok(create(world, key, tag, *cas, *tag_cas)),
            };
            match *item {
                Content::Value { fence, built, tag } if tag == version && fence == key.fence => {
                    let in_grace = world.is(Mutant::LeaseInTheGrace) && place(world, process, None).is_none();
                    if in_grace {
                        return Ok(None);
                    }
                    world.seen.fresh += 1;
                    if built < acknowledged {
                        return Err(format!(
                            "process {process} serves a value of version {built} as fresh, though {acknowledged} was \
                             acknowledged"
                        ));
                    }
                    None
                }
                _ => build(world, key, *cas, version),
            }
        }
        (Op::Create { key, cas, version }, [Some(Answer::Stored)]) => build(world, key, cas, version),
        (Op::Build { key: spot, cas, version, built, .. }, _) => {
            if key(world, process, None) != Some(spot) {
                return Ok(None);
            }
            world.seen.fills += 1;
            let content = Content::Value { fence: spot.fence, built, tag: version };
            let store = Action::Store { content, cas: Some(cas), seconds: 0 };
            Some((Op::Store, vec![(spot.server, Key::Value, store)]))
        }
        (Op::Delete { key, version }, [Some(Answer::Done | Answer::Absent)]) => {
            acknowledge(world, process, key, version);
            None
        }
        (Op::Bump { tag, version }, [Some(Answer::Found(_, cas))]) => {
            world.tags += 1;
            let content = Content::Tag { fence: tag.fence, version: world.tags };
            let store = Action::Store { content, cas: Some(*cas), seconds: 0 };
            Some((Op::StoreBump { tag, version }, vec![(tag.server, Key::Tag, store)]))
        }
        (Op::StoreBump { tag, version }, [Some(Answer::Stored)]) => {
            acknowledge(world, process, tag, version);
            None
        }
        _ => None,
    })
}

fn create(world: &mut World, key: Spot, tag: Spot, cas: u64, over: u64) -> Next {
    world.tags += 1;
    let version = world.tags;
    let content = Content::Tag { fence: tag.fence, version };
    let store = Action::Store { content, cas: Some(over), seconds: 0 };
    Some((Op::Create { key, cas, version }, vec![(tag.server, Key::Tag, store)]))
}

/// The client is told of a miss, and reads the source.
fn build(world: &mut World, key: Spot, cas: u64, version: u64) -> Next {
    let until = world.now + world.build_time();
    Some((Op::Build { key, cas, version, built: world.source, until }, Vec::new()))
}

fn acknowledge(world: &mut World, process: usize, spot: Spot, version: u64) {
    let view = world.processes[process].agreement.view(world.time_of(process));
    let is_valid = spot.server == APART || view.is_some_and(|(view, _)| view.fence == spot.fence);
    if is_valid || world.is(Mutant::AcknowledgesWithoutView) {
        world.seen.acknowledged += 1;
        world.acknowledged = world.acknowledged.max(version);
    }
}
