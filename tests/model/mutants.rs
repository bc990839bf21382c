//! What is broken on purpose, between the guard and its server.

use kennel::guard::{Answer, Answers, Ask, At, Item, Look, Mode, What, envelope::Header, envelope::Opened};

use super::operation::{Doing, Op};
use super::plan::{Mutant, Plan};
use super::world::World;

impl World {
    pub fn mutated(&self, op: &Op, mut ask: Ask, plan: &Plan) -> Ask {
        let stub = self.server.item.as_ref().is_some_and(|item| item.is_stub());
        match (plan.mutant, &op.doing, ask.at, &mut ask.what) {
            (Some(Mutant::FillWithoutCas), Doing::Fill(..), At::Item, What::Store { cas, .. })
            | (Some(Mutant::NoDoubleCheck), Doing::Read(_), At::Item, What::MarkStale { cas, .. })
            | (Some(Mutant::UnlockWithoutCompare), _, At::Lock, What::Delete { cas }) => *cas = None,
            (Some(Mutant::LockIsShared), Doing::Read(_), At::Lock, What::Store { mode, .. }) => {
                *mode = Mode::Set;
            }
            (Some(Mutant::DeleteSparesStub), Doing::Delete(_), At::Item, what @ What::Delete { .. })
                if stub =>
            {
                *what = What::Get(Look::default());
            }
            (Some(Mutant::DeleteSparesLock), Doing::Delete(_), At::Lock, what @ What::Delete { .. }) => {
                *what = What::Get(Look::default());
            }
            _ => {}
        }
        ask
    }
}

pub fn mutate_answers(mutant: Mutant, op: &mut Op, answers: &mut Answers) {
    if let (Mutant::DeleteSparesStub, Doing::Delete(_)) = (mutant, &op.doing) {
        for (ask, answer) in op.asks.iter().zip(answers.iter_mut()) {
            if let (What::Delete { .. }, Answer::Item(_)) = (&ask.what, &answer) {
                *answer = Answer::Absent;
            }
        }
    }
    if !matches!(op.doing, Doing::Read(_)) {
        return;
    }
    let claims =
        matches!(op.asks.first(), Some(Ask { at: At::Lock, what: What::Store { mode: Mode::Add, .. } }));
    if let (Mutant::NoDoubleCheck, true, [Answer::Stored(_), second, ..], Some(read)) =
        (mutant, claims, &mut answers[..], &op.read)
    {
        *second = Answer::Item(read.clone());
    }
    let looks = |ask: &Ask| matches!(ask, Ask { at: At::Item, what: What::Get(Look { value: true, .. }) });
    let Some(at) = op.asks.iter().position(looks) else { return };
    let Answer::Item(item) = &mut answers[at] else { return };
    match mutant {
        Mutant::NoDoubleCheck => op.read = Some(item.clone()),
        Mutant::StaleIsFresh => item.ttl = item.ttl.map(|ttl| ttl + 100),
        Mutant::LostTagIsUnmoved => {
            let item = item.clone();
            let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return };
            for (ask, answer) in op.asks.iter().zip(answers) {
                let (At::Tag(_), Answer::Item(tag), Some((_, version))) =
                    (ask.at, answer, envelope.tags().next())
                else {
                    continue;
                };
                if tag.size == 0 {
                    let value = version.to_string();
                    *tag = Item { size: value.len(), value: value.into(), ..item.clone() };
                }
            }
        }
        _ => {}
    }
}
