//! Tables: a listing shows an element if its last acknowledged command stored it, and only then.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use kennel::kinds::{
    Command, Kind, Mode, Operation, Outcome, Replies, Reply, Request, Step, Table, Verb, note,
};

use super::members::Members;
use super::mutants::Mutant;
use super::world::{Executed, Watch, World};

/// The elements that a client changes, until one of its commands fails.
const OWN: u64 = 2;

pub fn begin(world: &Rc<World>) {
    let tables: Rc<Vec<Members>> = Rc::new((0..world.plan.keys).map(|_| Members::default()).collect());
    for client in 0..world.plan.clients {
        world.executor.spawn(change(Rc::clone(world), Rc::clone(&tables), client));
    }
}

async fn change(world: Rc<World>, tables: Rc<Vec<Members>>, client: usize) {
    let kind = world.kind(Kind::Table(Table { ttl: Duration::ZERO }));
    let key = world.executor.below(world.plan.keys) as usize;
    let (table, own) = (&tables[key], format!("t{key}"));
    let (sidecar, server) = (client % world.plan.sidecars, key % world.plan.servers);
    let is_its = |name: &str, item: &[u8]| {
        item == format!("{own}/{name}").as_bytes() || item.starts_with(format!("{own}@").as_bytes())
    };
    let mut names: Vec<String> = (0..OWN).map(|_| table.new_name(client)).collect();
    loop {
        world.pause().await;
        let begun = world.executor.now();
        if world.executor.one_in(3) {
            let now = world.inputs(sidecar).now;
            let mut machine = world.machine(sidecar, &kind, &own, own.len(), Request::Get, now);
            let listed = match world.carry_out(sidecar, server, &mut *machine, &Watch::nothing()).await {
                Outcome::Value { data, .. } => data,
                Outcome::Miss => Bytes::new(),
                _ => continue,
            };
            world.saw();
            table.check_listing(&world, (server, &own), begun, &listed, is_its);
            continue;
        }
        let at = world.executor.below(OWN) as usize;
        let name = names[at].clone();
        let stores = !table.has(&name) || world.executor.one_in(4);
        table.begin(&name, stores, begun);
        let element = format!("{own}/{name}");
        let is_done = match stores {
            _ if world.plan.copies => {
                let store = Request::Store { verb: Verb::Set, data: b"v", flags: 0, exptime: 0 };
                let request = if stores { store } else { Request::Delete };
                let now = world.inputs(sidecar).now;
                let mut machine = world.machine(sidecar, &kind, &element, own.len(), request, now);
                let outcome = world.carry_out(sidecar, server, &mut *machine, &Watch::nothing()).await;
                matches!(outcome, Outcome::Stored(_) | Outcome::Deleted | Outcome::NotFound)
            }
            true => store(&world, sidecar, server, &element, own.len()).await,
            false => {
                let command = command(&element, Operation::Delete { cas: None });
                let replies = world.round_trip(sidecar, server, vec![command], &Watch::nothing()).await;
                matches!(replies[..], [Reply::Done | Reply::Absent])
            }
        };
        table.end(&name, is_done, world.executor.now());
        if !is_done {
            names[at] = table.new_name(client);
        }
    }
}

fn command(key: &str, operation: Operation) -> Command {
    Command { key: key.bytes().collect(), operation }
}

/// Stores an element, and notes its name around it, as `proxy::structures` does. Returns whether it is acknowledged.
async fn store(world: &Rc<World>, sidecar: usize, server: usize, element: &str, length: usize) -> bool {
    let mut machine = note(element.as_bytes(), length).expect("the name is valid");
    let value = Bytes::from_static(b"v");
    let store = Operation::Store { mode: Mode::Set, value, flags: 0, exptime: 0, cas: None };
    let sent = world.executor.now();
    let send = |mut command: Command| {
        if let Some(mutant) = world.plan.mutant {
            mutant.change(&mut command);
        }
        world.network.send(sidecar, server, command, Executed::default())
    };
    let Step::Send(mut commands) = machine.resume(Replies::new(), &world.inputs(sidecar)) else {
        panic!("a name is noted by commands")
    };
    let last = commands.pop().expect("there are some");
    let mut slots: Vec<_> = commands.into_iter().map(send).collect();
    let stored = send(command(element, store));
    slots.push(send(last));
    let mut replies = Replies::new();
    for slot in slots {
        replies.push(world.network.receive(slot, sent).await);
    }
    let is_stored = matches!(world.network.receive(stored, sent).await, Reply::Stored(_));
    if world.plan.is(Mutant::NameIsNotAppendedAgain) {
        return is_stored && !replies.iter().any(|reply| matches!(reply, Reply::Failed(_)));
    }
    let outcome = loop {
        match machine.resume(replies, &world.inputs(sidecar)) {
            Step::Done(outcome) => break outcome,
            Step::Send(commands) => {
                replies = world.round_trip(sidecar, server, commands, &Watch::nothing()).await;
            }
            Step::SendCopies(commands) => panic!("{commands:?} is for copies"),
        }
    };
    is_stored && matches!(outcome, Outcome::Stored(_))
}
