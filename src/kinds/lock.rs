//! A lock: an item that the first `add` creates, and that only the connection which created it deletes.
//!
//! The item is a token, a space and the owner. The token is drawn for each hold, so a sidecar that does not know whether its last
//! command was carried out, or whose connection to the server was remade, reads the item and knows whether it still has the lock.
//!
//! With a fence, the item is made in two steps: it is created without an owner, then the number is drawn, then the item is
//! replaced by one with the owner and the number. Whoever creates the item draws after everyone who had the lock before, so the
//! numbers of acknowledged holds only grow. Servers that keep the order of a round trip do the first two of these in one.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use super::command::{Cas, Command, Mode, Operation, Replies, Reply, Value};
use super::expiry::remaining;
use super::hold::Hold;
use super::item::{ItemKey, item_below};
use super::machine::{Inputs, Machine, Order, Outcome, Step};
use super::request::{Request, Verb};
use super::settings::Lock;
use crate::error::Failure;

/// The commands that a lock has, for the error that names them.
pub(super) const COMMANDS: &str = "CLIENT_ERROR a lock has only the commands add, get, delete\r\n";
const TOO_LONG: &str = "CLIENT_ERROR the owner of a lock has at most 1024 bytes\r\n";
const ALREADY_OVER: &str = "CLIENT_ERROR the exptime of a lock must be at least a second from now\r\n";

/// The longest owner, in bytes.
const MAX_OWNER: usize = 1024;
/// The digits of a token.
const TOKEN: usize = 16;
/// What follows the token of a lock that is taken, and of one that is being taken.
const TAKEN: u8 = b' ';
const BEING_TAKEN: u8 = b'?';
/// The name of the item with the last fencing number.
const FENCE: &[u8] = b"fence";
/// How much longer than its TTL an item lives: memcached ends a TTL of n seconds up to a second early.
const MARGIN: Duration = Duration::from_secs(1);
/// The same for an item with two copies, which ends by the clocks of sidecars: what these may differ by is added.
const COPIES_MARGIN: Duration = Duration::from_secs(3);
/// The most commands of one renewal or release; after that, the state of the lock is unknown.
const MAX_ROUNDS: u8 = 4;

/// Begins a client's command other than a delete, which needs the client's [`Hold`].
pub(super) fn begin(
    settings: &Lock,
    key: &[u8],
    request: Request<'_>,
    order: Order,
    now: u64,
) -> Result<Box<dyn Machine>, &'static str> {
    let key = ItemKey::from_slice(key);
    match request {
        Request::Get => Ok(Box::new(Read { key: Some(key), fence: settings.fence })),
        Request::Store { verb: Verb::Add, data, .. } if data.len() > MAX_OWNER => Err(TOO_LONG),
        Request::Store { verb: Verb::Add, data, flags, exptime } => {
            let ttl = match exptime {
                0 => settings.ttl,
                exptime => remaining(exptime, now).ok_or(ALREADY_OVER)?,
            };
            let fence = if settings.fence { item_below(&key, FENCE).map(Some)? } else { None };
            let cas = Cas { number: 0, epoch: 0 };
            let margin = if order == Order::Kept { MARGIN } else { COPIES_MARGIN };
            let hold = Hold { key, item: Bytes::new(), flags, cas, ttl, margin };
            let owner = Bytes::copy_from_slice(data);
            Ok(Box::new(Take { hold, owner, fence, order, step: TakeStep::Begin }))
        }
        // The client's connection has no such lock.
        Request::Delete => Ok(Box::new(NotHeld)),
        _ => Err(COMMANDS),
    }
}

/// The delete of a lock that the client's connection does not have.
#[derive(Debug)]
struct NotHeld;

impl Machine for NotHeld {
    fn resume(&mut self, _: Replies, _: &Inputs) -> Step {
        Step::Done(Outcome::NotFound)
    }
}

#[derive(Debug)]
struct Read {
    key: Option<ItemKey>,
    fence: bool,
}

impl Machine for Read {
    fn resume(&mut self, mut replies: Replies, _: &Inputs) -> Step {
        if let Some(key) = self.key.take() {
            return Step::Send(vec![Command { key, operation: Operation::Get }]);
        }
        Step::Done(match replies.pop() {
            Some(Reply::Item(Value { mut data, flags, cas, ttl })) => match data.get(TOKEN) {
                Some(&BEING_TAKEN) if data.len() == TOKEN + 1 => Outcome::Miss,
                Some(&TAKEN) if data[..TOKEN].iter().all(u8::is_ascii_hexdigit) => {
                    // The number is no part of what the client's flags describe.
                    let flags = if self.fence { 0 } else { flags };
                    Outcome::Value { data: data.split_off(TOKEN + 1), flags, cas: cas.number, ttl }
                }
                // Stored past Kennel.
                _ => Outcome::Value { data, flags, cas: cas.number, ttl },
            },
            Some(Reply::Absent) => Outcome::Miss,
            Some(Reply::Failed(failure)) => Outcome::Failed(failure),
            _ => Outcome::Failed(Failure::Refused),
        })
    }
}

/// An `add`.
#[derive(Debug)]
struct Take {
    hold: Hold,
    owner: Bytes,
    /// The item with the last number; `None` without a fence.
    fence: Option<ItemKey>,
    order: Order,
    step: TakeStep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TakeStep {
    Begin,
    /// The item is created, and then the number is drawn if the order of both is kept.
    Creating,
    /// The number is drawn. The item has this CAS.
    Drawing(Cas),
    /// The item is replaced by one with the number.
    Numbering,
}

impl Take {
    fn store(&self, mode: Mode, cas: Option<Cas>) -> Command {
        self.hold.store(mode, cas)
    }

    fn begin(&mut self, inputs: &Inputs) -> Step {
        let token = format!("{:016x}", inputs.random);
        let mut item = BytesMut::from(token.as_bytes());
        match &self.fence {
            Some(_) => item.put_u8(BEING_TAKEN),
            None => {
                item.put_u8(TAKEN);
                item.extend_from_slice(&self.owner);
            }
        }
        self.hold.item = item.freeze();
        self.step = TakeStep::Creating;
        let mut commands = vec![self.store(Mode::Add, None)];
        if self.order == Order::Kept {
            commands.extend(self.draw(inputs));
        }
        Step::Send(commands)
    }

    /// Draws the number, if there is a fence.
    fn draw(&self, inputs: &Inputs) -> Option<Command> {
        // Larger than every number that a server could have lost.
        let count = Operation::Count { decr: false, delta: 1, initial: inputs.now, exptime: 0 };
        self.fence.as_ref().map(|key| Command { key: key.clone(), operation: count })
    }

    /// Replaces the item, which was created with this CAS, by one with the number.
    fn number(&mut self, cas: Cas, number: u64) -> Step {
        let mut item = BytesMut::from(&self.hold.item[..TOKEN]);
        item.put_u8(TAKEN);
        item.extend_from_slice(&self.owner);
        item.extend_from_slice(format!(" {number}").as_bytes());
        self.hold.item = item.freeze();
        self.step = TakeStep::Numbering;
        Step::Send(vec![self.store(Mode::Set, Some(cas))])
    }

    fn taken(&mut self, cas: Cas) -> Step {
        self.hold.cas = cas;
        Step::Done(Outcome::Locked(Box::new(self.hold.clone())))
    }
}

impl Machine for Take {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        use TakeStep::{Begin, Creating, Drawing, Numbering};
        match (self.step, &replies[..]) {
            (Begin, _) => self.begin(inputs),
            (Creating, [Reply::Stored(cas), Reply::Number(number, ..)]) => self.number(*cas, *number),
            (Creating, [Reply::Stored(cas)]) => match self.draw(inputs) {
                None => self.taken(*cas),
                Some(draw) => {
                    self.step = Drawing(*cas);
                    Step::Send(vec![draw])
                }
            },
            (Drawing(cas), [Reply::Number(number, ..)]) => self.number(cas, *number),
            (Numbering, [Reply::Stored(cas)]) => self.taken(*cas),
            // The item was lost before it had a number.
            (Numbering, [Reply::Exists | Reply::Absent]) => Step::Done(Outcome::Failed(Failure::Lost)),
            (_, [Reply::NotStored | Reply::Exists, ..]) => Step::Done(Outcome::NotStored),
            (_, [Reply::TooLarge, ..]) => Step::Done(Outcome::TooLarge),
            (_, [Reply::Failed(failure), ..] | [_, Reply::Failed(failure)]) => {
                Step::Done(Outcome::Failed(*failure))
            }
            _ => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }
}

/// Renews a lock, or releases it.
#[derive(Debug)]
pub struct HoldMachine<'a> {
    hold: &'a mut Hold,
    releases: bool,
    round: u8,
    /// The last command looked the item up.
    looked_up: bool,
}

impl HoldMachine<'_> {
    /// A renewal. It ends with [`Outcome::Stored`]; [`Outcome::NotFound`] if the lock is lost; or [`Outcome::Failed`] if that is
    /// not known.
    pub fn renew(hold: &mut Hold) -> HoldMachine<'_> {
        HoldMachine { hold, releases: false, round: 0, looked_up: false }
    }

    /// A release. It ends with [`Outcome::Deleted`]; [`Outcome::NotFound`] if the lock was lost before; or [`Outcome::Failed`].
    pub fn release(hold: &mut Hold) -> HoldMachine<'_> {
        HoldMachine { hold, releases: true, round: 0, looked_up: false }
    }

    fn command(&self) -> Command {
        let cas = Some(self.hold.cas);
        match self.releases {
            true => Command { key: self.hold.key.clone(), operation: Operation::Delete { cas } },
            false => self.hold.store(Mode::Set, cas),
        }
    }
}

impl Machine for HoldMachine<'_> {
    fn resume(&mut self, mut replies: Replies, _: &Inputs) -> Step {
        let looked_up = std::mem::take(&mut self.looked_up);
        self.round += 1;
        match replies.pop() {
            None => Step::Send(vec![self.command()]),
            Some(Reply::Stored(cas)) => {
                self.hold.cas = cas;
                Step::Done(Outcome::Stored(cas.number))
            }
            Some(Reply::Done) => Step::Done(Outcome::Deleted),
            Some(Reply::Absent) => Step::Done(Outcome::NotFound),
            Some(Reply::Item(item)) if item.data != self.hold.item => Step::Done(Outcome::NotFound),
            Some(_) if self.round > MAX_ROUNDS => Step::Done(Outcome::Failed(Failure::Overloaded)),
            Some(Reply::Item(item)) => {
                self.hold.cas = item.cas;
                Step::Send(vec![self.command()])
            }
            // The connection was remade, or an earlier command was carried out although its reply did not arrive.
            Some(Reply::Exists | Reply::Failed(Failure::TimedOut)) if !looked_up => {
                self.looked_up = true;
                Step::Send(vec![Command { key: self.hold.key.clone(), operation: Operation::Get }])
            }
            Some(Reply::Failed(failure)) => Step::Done(Outcome::Failed(failure)),
            Some(_) => Step::Done(Outcome::Failed(Failure::Refused)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smallvec::smallvec;

    use super::*;

    const INPUTS: Inputs = Inputs { now: 1_700_000_000_000, random: 0xabc };
    const TOKEN_TEXT: &str = "0000000000000abc";

    fn take(fence: bool, exptime: i64) -> Box<dyn Machine> {
        let settings = Lock { ttl: Duration::from_secs(30), fence };
        let add = Request::Store { verb: Verb::Add, data: b"me", flags: 7, exptime };
        begin(&settings, b"k", add, Order::Kept, INPUTS.now).unwrap()
    }

    fn sent(step: Step) -> Vec<Command> {
        match step {
            Step::Send(commands) => commands,
            other => panic!("{other:?}"),
        }
    }

    fn cas(number: u64) -> Cas {
        Cas { number, epoch: 1 }
    }

    fn held(machine: &mut dyn Machine, replies: Replies) -> Hold {
        match machine.resume(replies, &INPUTS) {
            Step::Done(Outcome::Locked(hold)) => *hold,
            other => panic!("{other:?}"),
        }
    }

    fn hold() -> Hold {
        let mut machine = take(false, 0);
        sent(machine.resume(smallvec![], &INPUTS));
        held(&mut *machine, smallvec![Reply::Stored(cas(5))])
    }

    #[test]
    fn a_lock_lives_for_the_clients_exptime_or_the_rules_ttl_and_a_second_more() {
        for (given, expected) in [(0, 31), (5, 6), (1_700_000_009, 10)] {
            let command = &sent(take(false, given).resume(smallvec![], &INPUTS))[0];
            let Operation::Store { exptime, mode: Mode::Add, flags: 7, .. } = command.operation else {
                panic!("{command:?}")
            };
            assert_eq!(exptime, expected, "{given}");
        }
        let settings = Lock { ttl: Duration::from_secs(30), fence: false };
        for over in [-1, 1_700_000_000, 1_600_000_000] {
            let add = Request::Store { verb: Verb::Add, data: b"me", flags: 0, exptime: over };
            assert_eq!(
                begin(&settings, b"k", add, Order::Kept, INPUTS.now).err(),
                Some(ALREADY_OVER),
                "{over}"
            );
        }
    }

    #[test]
    fn an_owner_has_a_limit() {
        let settings = Lock { ttl: Duration::from_secs(30), fence: false };
        for (length, refused) in [(MAX_OWNER, None), (MAX_OWNER + 1, Some(TOO_LONG))] {
            let owner = vec![b'x'; length];
            let add = Request::Store { verb: Verb::Add, data: &owner, flags: 0, exptime: 0 };
            assert_eq!(begin(&settings, b"k", add, Order::Kept, INPUTS.now).err(), refused);
        }
    }

    #[test]
    fn with_a_fence_the_number_is_drawn_by_whoever_has_created_the_item() {
        let mut machine = take(true, 0);
        let commands = sent(machine.resume(smallvec![], &INPUTS));
        assert_eq!(&commands[1].key[..], b"k@kennel:fence");
        let Operation::Store { value, .. } = &commands[0].operation else { panic!("{commands:?}") };
        assert_eq!(value, &format!("{TOKEN_TEXT}?"));
        let drawn = Reply::Number(42, cas(1), None);
        let commands = sent(machine.resume(smallvec![Reply::Stored(cas(8)), drawn.clone()], &INPUTS));
        let Operation::Store { value, cas: over, .. } = &commands[0].operation else {
            panic!("{commands:?}")
        };
        assert_eq!((value, *over), (&Bytes::from(format!("{TOKEN_TEXT} me 42")), Some(cas(8))));
        assert_eq!(held(&mut *machine, smallvec![Reply::Stored(cas(9))]).cas, cas(9));
        // It is lost before it is acknowledged.
        let mut machine = take(true, 0);
        sent(machine.resume(smallvec![], &INPUTS));
        sent(machine.resume(smallvec![Reply::Stored(cas(8)), drawn.clone()], &INPUTS));
        let lost = machine.resume(smallvec![Reply::Absent], &INPUTS);
        assert_eq!(lost, Step::Done(Outcome::Failed(Failure::Lost)));
        // Somebody else has it.
        let mut machine = take(true, 0);
        sent(machine.resume(smallvec![], &INPUTS));
        assert_eq!(
            machine.resume(smallvec![Reply::NotStored, drawn], &INPUTS),
            Step::Done(Outcome::NotStored)
        );
    }

    #[test]
    fn where_the_order_of_a_round_trip_is_not_kept_the_number_is_drawn_behind_the_creation() {
        let settings = Lock { ttl: Duration::from_secs(30), fence: true };
        let add = Request::Store { verb: Verb::Add, data: b"me", flags: 7, exptime: 0 };
        let mut machine = begin(&settings, b"k", add, Order::NotKept, INPUTS.now).unwrap();
        let commands = sent(machine.resume(smallvec![], &INPUTS));
        assert!(matches!(&commands[..], [Command { operation: Operation::Store { exptime: 33, .. }, .. }]));
        let commands = sent(machine.resume(smallvec![Reply::Stored(cas(8))], &INPUTS));
        assert!(matches!(&commands[..], [Command { operation: Operation::Count { .. }, .. }]));
        let commands = sent(machine.resume(smallvec![Reply::Number(42, cas(1), None)], &INPUTS));
        let Operation::Store { value, cas: over, .. } = &commands[0].operation else {
            panic!("{commands:?}")
        };
        assert_eq!((value, *over), (&Bytes::from(format!("{TOKEN_TEXT} me 42")), Some(cas(8))));
        assert_eq!(held(&mut *machine, smallvec![Reply::Stored(cas(9))]).cas, cas(9));
    }

    #[test]
    fn a_lock_that_is_being_taken_has_no_owner_and_a_foreign_item_is_shown_as_it_is() {
        for (stored, shown) in [
            ("0000000000000abc me", Some("me")),
            ("0000000000000abc ", Some("")),
            ("0000000000000abc?", None),
            ("somebody", Some("somebody")),
            ("not a hex token. me", Some("not a hex token. me")),
        ] {
            let settings = Lock { ttl: Duration::from_secs(30), fence: false };
            let mut machine = begin(&settings, b"k", Request::Get, Order::Kept, INPUTS.now).unwrap();
            sent(machine.resume(smallvec![], &INPUTS));
            let item = Value { data: Bytes::from(stored), flags: 0, cas: cas(1), ttl: None };
            let found = match machine.resume(smallvec![Reply::Item(item)], &INPUTS) {
                Step::Done(Outcome::Value { data, .. }) => Some(String::from_utf8(data.to_vec()).unwrap()),
                Step::Done(Outcome::Miss) => None,
                other => panic!("{other:?}"),
            };
            assert_eq!(found.as_deref(), shown, "{stored}");
        }
    }

    #[test]
    fn a_renewal_names_the_cas_and_a_hold_whose_cas_is_unknown_is_looked_up_by_its_token() {
        for releases in [false, true] {
            for unclear in [Reply::Exists, Reply::Failed(Failure::TimedOut)] {
                let mut hold = hold();
                let item = Value { data: hold.item.clone(), flags: 7, cas: cas(6), ttl: None };
                let mut machine = HoldMachine { releases, ..HoldMachine::renew(&mut hold) };
                let first = sent(machine.resume(smallvec![], &INPUTS));
                let names = |command: &Command, number| match &command.operation {
                    Operation::Store { cas: over, .. } | Operation::Delete { cas: over } => {
                        *over == Some(cas(number))
                    }
                    _ => false,
                };
                assert!(names(&first[0], 5));
                assert_eq!(
                    sent(machine.resume(smallvec![unclear.clone()], &INPUTS))[0].operation,
                    Operation::Get
                );
                let again = sent(machine.resume(smallvec![Reply::Item(item)], &INPUTS));
                assert!(names(&again[0], 6), "{again:?}");
            }
        }
    }

    #[test]
    fn a_lock_that_another_has_or_that_is_gone_is_lost() {
        let other = Value { data: Bytes::from("0000000000000abd me"), flags: 7, cas: cas(6), ttl: None };
        for replies in [vec![Reply::Absent], vec![Reply::Exists, Reply::Item(other)]] {
            let mut hold = hold();
            let mut machine = HoldMachine::renew(&mut hold);
            sent(machine.resume(smallvec![], &INPUTS));
            let mut steps = replies.into_iter().map(|reply| machine.resume(smallvec![reply], &INPUTS));
            assert_eq!(steps.next_back().unwrap(), Step::Done(Outcome::NotFound));
        }
    }

    #[test]
    fn a_hold_is_not_looked_up_for_ever() {
        let mut hold = hold();
        let item = Value { data: hold.item.clone(), flags: 7, cas: cas(6), ttl: None };
        let mut machine = HoldMachine::renew(&mut hold);
        sent(machine.resume(smallvec![], &INPUTS));
        let rounds = (0..20).find(|round| {
            let reply = if round % 2 == 0 { Reply::Exists } else { Reply::Item(item.clone()) };
            matches!(machine.resume(smallvec![reply], &INPUTS), Step::Done(Outcome::Failed(_)))
        });
        // The first command was the first round.
        assert_eq!(rounds, Some(usize::from(MAX_ROUNDS) - 1));
    }
}
