//! When two states are the same: fences and versions are renamed by their order, a CAS counts only as that of the item or not, a
//! time only as an age up to the longest that any decision depends on.
//!
//! The machine is read through its `Hash`, field by field, so that nothing of it has to be public for this.

use std::hash::{DefaultHasher, Hash, Hasher};

use kennel::failover::{Agreement, Item, Record, Reply};

use super::plan::Plan;
use super::world::{Sent, World};

/// Marks a fence, which is renamed.
const FENCE: u64 = 1 << 63;
/// Marks the version of a tag, which is renamed.
const VERSION: u64 = 1 << 62;

/// Marks the number of a question, which is renamed.
const QUESTION: u64 = 1 << 61;

/// What the machine writes into a hasher.
#[derive(Default)]
struct Fields {
    values: Vec<u64>,
    next: usize,
}

impl Hasher for Fields {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the machine has numbers only");
    }

    fn write_u8(&mut self, value: u8) {
        self.values.push(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.values.push(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.values.push(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.values.push(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.values.push(value as u64);
    }
}

impl Fields {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.values[self.next - 1]
    }

    fn skip(&mut self, count: usize) {
        self.next += count;
    }
}

/// A part of a state as it is written.
struct Canon<'w> {
    world: &'w World,
    longest: u64,
    tokens: Vec<u64>,
}

impl Canon<'_> {
    fn number(&mut self, number: impl Into<u64>) {
        self.tokens.push(number.into());
    }

    /// How long ago, or how far ahead.
    fn age(&mut self, time: u64) {
        let ahead = time.saturating_sub(self.world.now);
        let behind = self.world.now.saturating_sub(time).min(self.longest);
        self.number(if ahead > 0 { 100 + ahead } else { behind });
    }

    /// A question that nobody can read any more is as good as none.
    fn question(&mut self, number: u64) {
        let Some(asked) = &self.world.asked else { return };
        let is_told = |(_, sent): &(usize, Sent)| *sent == Sent::Tell(Item::Suspicion, number);
        let rounds = || self.world.sidecars.iter().filter_map(|sidecar| sidecar.round.as_ref());
        let is_sent = rounds().any(|round| {
            round.commands.iter().zip(&round.replies).any(|(sent, reply)| reply.is_none() && is_told(sent))
        });
        let is_live = is_sent || asked.questions.contains(&Some(number));
        self.tokens.push(if is_live { number | QUESTION } else { 0 });
    }

    fn asked(&mut self, order: [usize; 2]) {
        let Some(asked) = &self.world.asked else { return };
        for item in asked.questions.into_iter().chain(asked.answers) {
            self.question(item.unwrap_or(0));
        }
        for at in order {
            self.number(u64::from(asked.cut[at]) | u64::from(asked.ran[at]) << 1);
        }
        self.number(u64::from(asked.dead) | u64::from(asked.steady) << 1);
    }

    fn ahead(&mut self, time: u64) {
        self.number(time.saturating_sub(self.world.now));
    }

    /// Whether the CAS is that of the item.
    fn cas(&mut self, copy: usize, cas: u64) {
        self.number(if cas == 0 { 2 } else { u64::from(self.is_current(copy, cas)) });
    }

    fn is_current(&self, copy: usize, cas: u64) -> bool {
        self.world.copies[copy].is_some_and(|held| held.cas == cas)
    }

    fn record(&mut self, record: &Record) {
        self.tokens.push(record.fence | FENCE);
        let bits = u64::from(record.standby)
            | u64::from(record.settled) << 1
            | u64::from(record.leaving) << 2
            | u64::from(record.drained) << 3;
        self.number(bits | u64::from(record.window) << 8 | u64::from(record.grace) << 16);
    }

    /// As the machine writes a record: `relapses` and `version` change nothing here.
    fn record_of(&mut self, fields: &mut Fields) {
        // The servers do not change, so nothing is inherited.
        let [fence, standby, drained, window, grace, _version, settled, leaving, _relapses, _inherited] =
            std::array::from_fn(|_| fields.next());
        self.tokens.push(fence | FENCE);
        self.number(standby | settled << 1 | leaving << 2 | drained << 3 | window << 8 | grace << 16);
    }

    fn option(&mut self, fields: &mut Fields) -> bool {
        let is_some = fields.next();
        self.number(is_some);
        is_some == 1
    }

    fn agreement(&mut self, agreement: &Agreement) {
        let mut fields = Fields::default();
        agreement.hash(&mut fields);
        // The configuration.
        fields.skip(5);
        if self.option(&mut fields) {
            self.record_of(&mut fields);
            let sent = fields.next();
            self.age(sent);
            let grace_until = fields.next();
            self.ahead(grace_until);
            // Whether requests wait.
            fields.skip(1);
        }
        // The former view.
        if self.option(&mut fields) {
            let [fence, _standby, _inherited, until] = std::array::from_fn(|_| fields.next());
            self.tokens.push(fence | FENCE);
            self.ahead(until);
        }
        // Since when a move has been announced.
        if self.option(&mut fields) {
            let since = fields.next();
            self.age(since);
        }
        if self.option(&mut fields) {
            let wish = fields.next();
            self.number(wish);
        }
        let window = fields.next();
        self.number(window);
        // When the server answered last: no sidecar suspects it before it is refused, and it suspects it at once then.
        fields.skip(1);
        // Since when it has answered: its keys return at once.
        if self.option(&mut fields) {
            fields.skip(1);
        }
        let refused = fields.next();
        self.number(refused);
        if self.option(&mut fields) {
            let since = fields.next();
            self.age(since);
        }
        if self.option(&mut fields) {
            let asked = fields.next();
            self.question(asked);
            let since = fields.next();
            self.age(since);
        }
        // What it has answered, and what was answered to it.
        for _ in 0..2 {
            let number = fields.next();
            self.question(number);
        }
        // Shown to operators only.
        fields.skip(1);
        let stage = fields.next();
        self.number(stage);
        match stage {
            1 => {
                let sent = fields.next();
                self.age(sent);
            }
            2 => {
                self.record_of(&mut fields);
                let count = fields.next();
                self.number(count);
                (0..count).for_each(|_| self.named(&mut fields));
            }
            3 => {
                self.record_of(&mut fields);
                let count = fields.next();
                self.number(count);
                (0..count).for_each(|_| self.named(&mut fields));
                if self.option(&mut fields) {
                    self.named(&mut fields);
                }
            }
            _ => {}
        }
        // What is to be inherited: nothing. No copy is restored at once.
        fields.skip(2);
        // Whether all copies are there, for whoever asks for that.
        if fields.next() == 1 {
            fields.skip(1);
        }
        // When the next round is due: it may begin at any time.
        fields.skip(1);
        assert_eq!(fields.next, fields.values.len(), "the machine has other fields than this reads");
    }

    /// A copy and its CAS.
    fn named(&mut self, fields: &mut Fields) {
        let (copy, cas) = (fields.next(), fields.next());
        fields.skip(1);
        self.number(copy);
        self.cas(copy as usize, cas);
    }

    fn reply(&mut self, copy: usize, sent: Sent, reply: Option<&Reply>) {
        match reply {
            None => self.number(0_u64),
            Some(Reply::Found(..)) if matches!(sent, Sent::Other(_) | Sent::Tell(..)) => self.number(1_u64),
            Some(Reply::Found(value, cas)) => {
                self.number(2_u64);
                self.cas(copy, cas.number);
                match Record::decode(value) {
                    Some(record) => self.record(&record),
                    None => self.number(0_u64),
                }
            }
            Some(Reply::Absent) => self.number(3_u64),
            Some(Reply::Stored) => self.number(4_u64),
            Some(Reply::Conflict) => self.number(5_u64),
            Some(Reply::Failed { refused }) => self.number(6 + u64::from(*refused)),
        }
    }

    fn sidecar(&mut self, at: usize) {
        let sidecar = &self.world.sidecars[at];
        self.agreement(&sidecar.agreement);
        let Some(round) = &sidecar.round else { return self.number(0_u64) };
        self.number(1 + self.world.now - round.began);
        for ((copy, sent), reply) in round.commands.iter().zip(&round.replies) {
            match sent {
                Sent::Read => self.number(1 + *copy as u64),
                Sent::Write(record, cas) => {
                    self.number(5 + *copy as u64);
                    if reply.is_none() {
                        self.record(record);
                        self.cas(*copy, *cas);
                    }
                }
                Sent::Other(_) => self.number(9 + *copy as u64),
                Sent::Tell(item, number) => {
                    self.number(20 + *copy as u64 + 10 * u64::from(*item == Item::Alive));
                    self.question(*number);
                }
            }
            self.reply(*copy, *sent, reply.as_ref());
        }
    }

    fn guarded(&mut self, order: [usize; 2]) {
        let Some(guarded) = &self.world.guarded else { return };
        let value = |canon: &mut Self, item: Option<(u64, u64)>| match item {
            None => canon.number(0_u64),
            Some((fence, tag)) => {
                canon.tokens.extend([fence | FENCE, tag | VERSION]);
            }
        };
        for (item, _) in guarded.items {
            value(self, item);
        }
        for tag in guarded.tags {
            value(self, tag);
        }
        for at in order {
            // The item's number is that of a lease that can still fill, so it need not be written.
            match guarded.leases[at] {
                None => self.number(0_u64),
                Some(lease) => {
                    self.number((1 + lease.place as u64) | u64::from(lease.sent) << 4);
                    self.tokens.extend([lease.fence | FENCE, lease.tag | VERSION]);
                }
            }
        }
        match guarded.invalidation {
            None => self.number(0_u64),
            Some(it) => {
                let by = order[it.by] as u64;
                self.number((1 + by) | (it.place as u64) << 4 | u64::from(it.done) << 5);
                self.tokens.push(it.fence | FENCE);
            }
        }
        self.number(u64::from(guarded.changed) | u64::from(guarded.acknowledged) << 1);
    }
}

fn tokens(world: &World, plan: &Plan, order: [usize; 2]) -> Vec<u64> {
    let mut canon = Canon { world, longest: plan.longest(), tokens: Vec::with_capacity(120) };
    for copy in world.copies {
        match copy.map(|copy| copy.record) {
            None => canon.number(0_u64),
            Some(None) => canon.number(1_u64),
            Some(Some(record)) => canon.record(&record),
        }
    }
    for at in order {
        canon.sidecar(at);
    }
    let mut late: Vec<Vec<u64>> = Vec::new();
    let before = std::mem::take(&mut canon.tokens);
    for (copy, record, cas) in &world.late {
        canon.number(*copy as u64);
        canon.cas(*copy, *cas);
        canon.record(record);
        late.push(std::mem::take(&mut canon.tokens));
    }
    late.sort_unstable();
    canon.tokens = before;
    canon.number(late.len() as u64);
    canon.tokens.extend(late.into_iter().flatten());
    canon.guarded(order);
    canon.asked(order);
    renamed(world, canon.tokens)
}

/// Renames fences and versions, and says of each fence whether it has been used, and whether it was the last.
fn renamed(world: &World, mut tokens: Vec<u64>) -> Vec<u64> {
    let names = |mark: u64| {
        let mut names: Vec<u64> = tokens.iter().copied().filter(|token| token & mark != 0).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    let (fences, versions, questions) = (names(FENCE), names(VERSION), names(QUESTION));
    for token in &mut tokens {
        let names = match *token {
            fence if fence & FENCE != 0 => &fences,
            version if version & VERSION != 0 => &versions,
            question if question & QUESTION != 0 => &questions,
            _ => continue,
        };
        *token = names.partition_point(|other| *other < *token) as u64;
    }
    for fence in fences {
        let fence = fence & !FENCE;
        let used = if fence == world.current { 2 } else { u64::from(world.retired.contains(&fence)) };
        tokens.push(used);
    }
    tokens
}

/// A state's fingerprint: the same for the state with both sidecars exchanged, if they are alike.
pub fn fingerprint(world: &World, plan: &Plan) -> u128 {
    let mut tokens_of = tokens(world, plan, [0, 1]);
    if plan.windows[0] == plan.windows[1] {
        tokens_of = tokens_of.min(tokens(world, plan, [1, 0]));
    }
    let lane = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, &tokens_of, world.left).hash(&mut hasher);
        hasher.finish()
    };
    u128::from(lane(1)) << 64 | u128::from(lane(2))
}
