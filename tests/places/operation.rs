//! A guarded read, fill, delete and bump, as short as the rules of a place allow.

use super::mutants::Mutant;
use super::server::{Action, Answer, Content, Key};
use super::world::World;

/// One request on its way: what it is and what it has learnt.
#[derive(Debug, Clone)]
pub enum Op {
    /// A read. `acknowledged`: the latest invalidation that was acknowledged before it began.
    Read { fence: u64, server: usize, acknowledged: u64 },
    /// The tag is created for a read whose value is not fresh.
    Create { fence: u64, server: usize, cas: u64, tag: u64 },
    /// A client builds, and stores at this time.
    Build { fence: u64, server: usize, cas: u64, tag: u64, built: u64, until: u64 },
    /// A delete of the key, for this version of the source.
    Delete { fence: u64, version: u64 },
    /// A bump reads the tag.
    Bump { fence: u64, server: usize, version: u64 },
    /// A bump or a fill is stored; a bump is acknowledged for this version of the source.
    Store { fence: u64, acknowledges: Option<u64> },
}

/// What goes on after the answers to a request: other commands, or nothing.
pub type Next = Option<(Op, Vec<(usize, Key, Action)>)>;

/// Where the keys of the server are for a process, and under which fence.
pub fn place(world: &World, process: usize, without: Mutant) -> Option<(u64, usize)> {
    let agreement = &world.processes[process].agreement;
    let now = world.time_of(process);
    let view = agreement.view(now).map(|(view, _)| view);
    let known = || {
        let record = agreement.status(now).record?;
        Some(kennel::failover::View { fence: record.fence, standby: record.standby })
    };
    let view = if world.plan.mutant == Some(without) { view.or_else(known) } else { view }?;
    Some((view.fence, usize::from(view.standby)))
}

/// Begins a request of a process, chosen by `dice`.
pub fn begin(world: &mut World, process: usize, dice: u64) -> Next {
    match dice % 8 {
        0 => {
            let (fence, server) = place(world, process, Mutant::AcknowledgesWithoutView)?;
            world.source += 1;
            let op = Op::Delete { fence, version: world.source };
            Some((op, vec![(server, Key::Value, Action::Delete)]))
        }
        1 => {
            let (fence, server) = place(world, process, Mutant::AcknowledgesWithoutView)?;
            world.source += 1;
            let op = Op::Bump { fence, server, version: world.source };
            Some((op, vec![(server, Key::Tag, Action::Get { stub: true })]))
        }
        _ => {
            let without = if dice & 256 == 0 { Mutant::ServesWithoutView } else { Mutant::LeaseInTheGrace };
            let (fence, server) = place(world, process, without)?;
            let op = Op::Read { fence, server, acknowledged: world.acknowledged };
            let get = Action::Get { stub: true };
            Some((op, vec![(server, Key::Value, get.clone()), (server, Key::Tag, get)]))
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
            Op::Read { fence, server, acknowledged },
            [Some(Answer::Found(value, cas)), Some(Answer::Found(tag, tag_cas))],
        ) => {
            let sealed = |its: u64| its == fence || world.plan.mutant == Some(Mutant::TagNotSealed);
            let Content::Tag { version, .. } = *tag else {
                return Ok(create(world, fence, server, *cas, *tag_cas));
            };
            if !matches!(*tag, Content::Tag { fence: its, .. } if sealed(its)) {
                return Ok(create(world, fence, server, *cas, *tag_cas));
            }
            match *value {
                Content::Value { fence: its, built, tag }
                    if tag == version
                        && (its == fence || world.plan.mutant == Some(Mutant::FenceNotCompared)) =>
                {
                    world.seen.fresh += 1;
                    if built < acknowledged {
                        return Err(format!(
                            "process {process} serves a value of version {built} as fresh, though {acknowledged} was acknowledged"
                        ));
                    }
                    None
                }
                _ => build(world, fence, server, *cas, version),
            }
        }
        (Op::Create { fence, server, cas, tag }, [Some(Answer::Stored)]) => {
            build(world, fence, server, cas, tag)
        }
        (Op::Build { fence, server, cas, tag, built, .. }, _) => {
            let now = place(world, process, Mutant::FillsWithoutView).map(|(fence, _)| fence);
            let lease_in_grace = world.plan.mutant == Some(Mutant::LeaseInTheGrace);
            if now != Some(fence)
                && world.plan.mutant != Some(Mutant::FillsWithoutView)
                && !(lease_in_grace && now.is_none())
            {
                return Ok(None);
            }
            world.seen.fills += 1;
            let content = Content::Value { fence, built, tag };
            let store = Action::Store { content, cas: Some(cas), seconds: 0 };
            Some((Op::Store { fence, acknowledges: None }, vec![(server, Key::Value, store)]))
        }
        (Op::Delete { fence, version }, [Some(Answer::Done | Answer::Absent)]) => {
            acknowledge(world, process, fence, version);
            None
        }
        (Op::Bump { fence, server, version }, [Some(Answer::Found(_, cas))]) => {
            world.tags += 1;
            let content = Content::Tag { fence, version: world.tags };
            let store = Action::Store { content, cas: Some(*cas), seconds: 0 };
            Some((Op::Store { fence, acknowledges: Some(version) }, vec![(server, Key::Tag, store)]))
        }
        (Op::Store { fence, acknowledges: Some(version) }, [Some(Answer::Stored)]) => {
            acknowledge(world, process, fence, version);
            None
        }
        _ => None,
    })
}

fn create(world: &mut World, fence: u64, server: usize, cas: u64, over: u64) -> Next {
    world.tags += 1;
    let tag = world.tags;
    let content = Content::Tag { fence, version: tag };
    let store = Action::Store { content, cas: Some(over), seconds: 0 };
    Some((Op::Create { fence, server, cas, tag }, vec![(server, Key::Tag, store)]))
}

/// The client is told of a miss, and reads the source.
fn build(world: &mut World, fence: u64, server: usize, cas: u64, tag: u64) -> Next {
    let until = world.now + world.build_time();
    Some((Op::Build { fence, server, cas, tag, built: world.source, until }, Vec::new()))
}

fn acknowledge(world: &mut World, process: usize, fence: u64, version: u64) {
    let view = world.processes[process].agreement.view(world.time_of(process));
    let is_valid = view.is_some_and(|(view, _)| view.fence == fence);
    if is_valid || world.plan.mutant == Some(Mutant::AcknowledgesWithoutView) {
        world.seen.acknowledged += 1;
        world.acknowledged = world.acknowledged.max(version);
    }
}
