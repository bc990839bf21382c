//! Lists: an element is there if its last acknowledged command added it, and only then.

use std::rc::Rc;
use std::time::Duration;

use kennel::kinds::{Kind, List, Outcome, Request, Verb};

use super::members::Members;
use super::world::{Watch, World};

/// The elements that a client changes, until one of its commands fails.
const OWN: usize = 3;

pub fn begin(world: &Rc<World>) {
    let lists: Rc<Vec<Members>> = Rc::new((0..world.plan.keys).map(|_| Members::default()).collect());
    for client in 0..world.plan.clients {
        world.executor.spawn(change(Rc::clone(world), Rc::clone(&lists), client));
    }
}

async fn change(world: Rc<World>, lists: Rc<Vec<Members>>, client: usize) {
    let ttl = if world.plan.seed.is_multiple_of(2) { Duration::ZERO } else { Duration::from_secs(300) };
    let kind = world.kind(Kind::List(List { ttl }));
    let key = world.executor.below(world.plan.keys) as usize;
    let (list, own) = (&lists[key], format!("l{key}"));
    let (sidecar, server) = (client % world.plan.sidecars, key % world.plan.servers);
    let is_its = |item: &[u8]| item.starts_with(format!("{own}@").as_bytes());
    let mut elements: Vec<String> = (0..OWN).map(|_| list.new_name(client)).collect();
    loop {
        world.pause().await;
        let begun = world.executor.now();
        let asked = list.any(&world).filter(|_| world.executor.one_in(3));
        let reads = world.executor.one_in(3);
        let (name, lines) = match &asked {
            _ if !reads => {
                let mut lines = String::new();
                for element in elements.iter().skip(world.executor.below(OWN as u64) as usize) {
                    let adds = !list.has(element);
                    list.begin(element, adds, begun);
                    lines += &format!("{}{element}\n", if adds { '+' } else { '-' });
                }
                (own.clone(), lines)
            }
            Some(element) => (format!("{own}@{element}"), String::new()),
            None => (own.clone(), String::new()),
        };
        let request = match reads {
            true => Request::Get,
            false => Request::Store { verb: Verb::Append, data: lines.as_bytes(), flags: 0, exptime: 0 },
        };
        let now = world.inputs(sidecar).now;
        let mut machine = world.machine(sidecar, &kind, &name, own.len(), request, now);
        let outcome = world.carry_out(sidecar, server, &mut *machine, &Watch::nothing()).await;
        if !reads {
            let is_stored = matches!(outcome, Outcome::Stored(_));
            for line in lines.lines() {
                list.end(&line[1..], is_stored, world.executor.now());
            }
            if !is_stored {
                elements = (0..OWN).map(|_| list.new_name(client)).collect();
            }
            continue;
        }
        let listed = match outcome {
            Outcome::Value { data, .. } => data,
            Outcome::Miss => Default::default(),
            _ => continue,
        };
        world.saw();
        match &asked {
            None => list.check_listing(&world, (server, &own), begun, &listed, |_, item| is_its(item)),
            Some(element) => {
                list.check_one(&world, (server, &own), begun, element, !listed.is_empty(), is_its);
            }
        }
    }
}
