//! One process's part in the agreement on the place of one server.
//!
//! In each round, the process reads the three copies of the record. If two of them have the same fence, it has a *view*, valid for
//! the record's window from the moment the reads were sent. Two copies are changed, by compare-and-swap, to give the keys another
//! place. Any view of the former record has a read that was carried out before that moment, so it ends within one window of it;
//! and whoever meets the new fence waits that long (the *grace*) before it uses it. So the uses of two fences never overlap.
//!
//! No record is ever copied onto a copy that has lost it, unless both others have been replaced by its successor directly before.
//! Otherwise two delayed writes could bring a retired record back. Every write names the CAS of what it replaces.

use super::command::{Cas, Command, Item, Operation, Reply};
use super::moment::Moment;
use super::record::{Record, fence, fence_millis};
use super::suspicion::Suspicion;
use super::views::View;

/// How many servers keep a copy of a record.
pub const COPIES: usize = 3;
/// The order in which copies are written: the server itself last, because it may be the one that does not answer. All processes have
/// the same order, so of several that write at the same time, one succeeds at the first copy, and the others write no more.
const ORDER: [usize; COPIES] = [1, 2, 0];
/// TTL of a stub in place of a record, in seconds: longer than any round.
const STUB_SECONDS: u32 = 60;
/// How many rounds a window has. A view is renewed in time although single rounds fail.
const ROUNDS_PER_WINDOW: u64 = 4;
/// Of so many processes that find a copy missing, one restores it in each round.
const REPAIR_ONE_IN: u64 = 4;

/// The durations of the agreement, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long a view is valid, at least 1.
    pub window: u32,
    /// How long a server may be silent before it is suspected.
    pub fail_after: u64,
    /// How long it must answer without a gap before its keys return. Doubled with each relapse.
    pub recover_after: u64,
    /// The limit of that doubling.
    pub recover_at_most: u64,
}

/// What is known about one server's place. See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Agreement {
    timing: Timing,
    known: Option<Known>,
    /// The longest window of a record that this process has seen lately, in ms.
    window: u32,
    /// When the server last answered this process, or when the process started.
    answered: u64,
    /// Since when it has answered without a gap.
    unbroken: Option<u64>,
    refused: bool,
    /// Since when no two copies have agreed although two could be read.
    disagreed: Option<u64>,
    suspicion: Suspicion,
    stage: Stage,
    /// The fence that the record is to inherit.
    inherits: Option<u64>,
    /// Whether this process restores a copy in the next round in which one is missing, without leaving it to chance.
    restores: bool,
    /// See [`Agreement::is_whole`].
    whole: Option<bool>,
    /// When the next round is due.
    due: u64,
}

/// The record of the latest view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Known {
    record: Record,
    /// When the reads of the latest view were sent.
    sent: u64,
    /// Until when the fence is not used.
    grace_until: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    Reading {
        sent: u64,
    },
    /// The first copy of a new record is being written; the rest follows if that succeeds.
    Claiming {
        record: Record,
        rest: Vec<(usize, Cas)>,
    },
    /// The copies of a record are being replaced by its successor: the first one, then the rest if that succeeds, then the third
    /// copy, which had lost the record, if both others have succeeded.
    Succeeding {
        record: Record,
        rest: Vec<(usize, Cas)>,
        third: Option<(usize, Cas)>,
    },
    /// The last writes of a round.
    Writing,
}

/// What one copy holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copy {
    Unknown,
    Empty(Cas),
    Holds(Record, Cas),
}

impl Copy {
    fn of(reply: Option<&Reply>) -> Copy {
        match reply {
            Some(Reply::Found(value, cas)) => match Record::decode(value) {
                Some(record) => Copy::Holds(record, *cas),
                None => Copy::Empty(*cas),
            },
            _ => Copy::Unknown,
        }
    }

    fn record(&self) -> Option<Record> {
        match self {
            Copy::Holds(record, _) => Some(*record),
            _ => None,
        }
    }

    fn cas(&self) -> Option<Cas> {
        match self {
            Copy::Holds(_, cas) | Copy::Empty(cas) => Some(*cas),
            Copy::Unknown => None,
        }
    }
}

/// What operators see of an agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The place, if a view is valid.
    pub view: Option<View>,
    /// The record of the latest view, valid or not.
    pub record: Option<Record>,
    /// Whether this process has no answer from the server.
    pub suspects: bool,
    /// Whether another process has one.
    pub alone: bool,
}

impl Agreement {
    /// Nothing is known yet.
    pub fn new(timing: Timing, now: u64) -> Agreement {
        Agreement {
            timing,
            known: None,
            window: timing.window,
            answered: now,
            unbroken: None,
            refused: false,
            disagreed: None,
            suspicion: Suspicion::default(),
            stage: Stage::Idle,
            inherits: None,
            restores: false,
            whole: None,
            due: now,
        }
    }

    /// Whether this process restores a copy at once, as [`REPAIR_ONE_IN`] lets it do from time to time.
    pub fn restore(&mut self, at_once: bool) {
        self.restores = at_once;
    }

    /// Whether all three copies had the same record when they were read last. `None`: not all, but all could be read, so that the next
    /// round may restore the rest.
    pub fn is_whole(&self) -> Option<bool> {
        self.whole
    }

    /// When the next round is due, in ms of the monotonic clock.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// The view that is valid now, and until when, in ms of the monotonic clock.
    pub fn view(&self, now: u64) -> Option<(View, u64)> {
        let Known { record, sent, grace_until } = self.known?;
        let until = sent + u64::from(record.window);
        let Record { fence, standby, inherited, .. } = record;
        let view = View { fence, standby, inherited };
        (grace_until <= now && now < until).then_some((view, until))
    }

    /// The fence of the same server's own place in the previous placement, of which there is a valid view now. To be called before
    /// [`Agreement::begin`], and only by a process whose neighbours all invalidate both placements: see [`Record::inherited`].
    pub fn inherit(&mut self, fence: Option<u64>) {
        self.inherits = fence;
    }

    /// Where the keys are, for the metrics and the status page.
    pub fn status(&self, now: u64) -> Status {
        Status {
            view: self.view(now).map(|(view, _)| view),
            record: self.known.map(|known| known.record),
            suspects: self.suspects(now),
            alone: self.suspicion.alone,
        }
    }

    /// Begins a round. Returns its first commands, whose replies [`Agreement::resume`] takes in the same order. A round that was not
    /// ended is given up.
    pub fn begin(&mut self, now: u64) -> Vec<Command> {
        self.stage = Stage::Reading { sent: now };
        self.due = now + self.pause();
        let read =
            |copy| Command { copy, item: Item::Record, operation: Operation::ReadOrStub(STUB_SECONDS) };
        let mut commands: Vec<Command> = (0..COPIES).map(read).collect();
        commands.extend(Suspicion::reads(self.suspects(now)));
        commands
    }

    /// Continues a round with the replies to its last commands. Returns the next commands; the round has ended if there are none.
    /// `random`: a number drawn for this call.
    pub fn resume(&mut self, replies: &[Reply], now: Moment, random: u64) -> Vec<Command> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Idle | Stage::Writing => Vec::new(),
            Stage::Reading { sent } => self.read(replies, sent, now, random),
            Stage::Claiming { record, rest } => match replies.first() {
                Some(Reply::Stored) => {
                    self.stage = Stage::Writing;
                    rest.into_iter().map(|(copy, cas)| replace(copy, &record, cas)).collect()
                }
                _ => Vec::new(),
            },
            Stage::Succeeding { record, rest, third } => match replies.first() {
                // With a third copy to restore, the rest is one copy.
                Some(Reply::Stored) if !rest.is_empty() && third.is_some() => {
                    let commands = rest.into_iter().map(|(copy, cas)| replace(copy, &record, cas)).collect();
                    self.stage = Stage::Succeeding { record, rest: Vec::new(), third };
                    commands
                }
                Some(Reply::Stored) => {
                    self.stage = Stage::Writing;
                    rest.into_iter().chain(third).map(|(copy, cas)| replace(copy, &record, cas)).collect()
                }
                _ => Vec::new(),
            },
        }
    }

    fn read(&mut self, replies: &[Reply], sent: u64, now: Moment, random: u64) -> Vec<Command> {
        let copies: [Copy; COPIES] = std::array::from_fn(|copy| Copy::of(replies.get(copy)));
        self.note_answer(replies.first(), sent);
        // Its answer to this very round: an earlier one may have come before what the others ask about.
        let has_answer = self.unbroken.is_some();
        let window = u64::from(self.window);
        let asked = &replies[replies.len().min(COPIES)..];
        let mut commands = self.suspicion.note(asked, now, has_answer, window);
        let agreed = agreed(&copies);
        let of_one = |fence| copies.iter().all(|copy| copy.record().is_some_and(|held| held.fence == fence));
        self.whole = match agreed {
            Some(record) if of_one(record.fence) => Some(true),
            _ if copies.iter().any(|copy| copy.cas().is_none()) => Some(false),
            _ => None,
        };
        let change = match agreed {
            Some(record) => {
                self.disagreed = None;
                self.note_view(record, sent, now.mono);
                self.change(&record, &copies, now, random, &mut commands)
            }
            None => self.establish(&copies, sent, now, random),
        };
        if !matches!(self.stage, Stage::Claiming { .. } | Stage::Succeeding { .. }) {
            self.stage = if commands.is_empty() { Stage::Idle } else { Stage::Writing };
        }
        // The replies to the change must come first.
        if !change.is_empty() {
            commands.splice(0..0, change);
        }
        if !commands.is_empty() {
            // What was written is read at once.
            self.due = now.mono;
        }
        commands
    }

    fn note_answer(&mut self, reply: Option<&Reply>, sent: u64) {
        match reply {
            Some(Reply::Failed { refused }) => (self.unbroken, self.refused) = (None, *refused),
            Some(_) => {
                self.answered = self.answered.max(sent);
                self.unbroken = self.unbroken.or(Some(sent));
                self.refused = false;
            }
            None => {}
        }
    }

    fn note_view(&mut self, record: Record, sent: u64, now: u64) {
        let grace_until = match self.known {
            _ if record.settled => 0,
            Some(known) if known.record.fence == record.fence => known.grace_until,
            // One more, because times are rounded down.
            _ => now + u64::from(record.grace) + 1,
        };
        self.window = record.window.max(self.timing.window);
        self.known = Some(Known { record, sent, grace_until });
        if grace_until > now {
            self.due = self.due.min(grace_until);
        }
    }

    /// Whether this process has no answer from the server, and others should be asked.
    fn suspects(&self, now: u64) -> bool {
        self.refused || now.saturating_sub(self.answered) >= self.timing.fail_after
    }

    /// Two copies agree on this record: moves the place, or maintains the copies.
    fn change(
        &mut self,
        record: &Record,
        copies: &[Copy; COPIES],
        now: Moment,
        random: u64,
        commands: &mut Vec<Command>,
    ) -> Vec<Command> {
        let witnesses_answer = copies[1..].iter().all(|copy| copy.cas().is_some());
        let suspects = self.suspects(now.mono) && witnesses_answer && !record.standby;
        let window = u64::from(self.window);
        let nobody_answers = self.suspicion.ask(suspects, now, random, window, commands);
        if suspects && let Some(until) = self.suspicion.until(window) {
            self.due = self.due.min(until.max(now.mono + 1));
        }
        if nobody_answers {
            return self.claim(self.moved(record, now, random), copies);
        }
        if record.standby && self.has_recovered(record, now.mono) && copies[0].cas().is_some() {
            let own = Record { standby: false, ..self.renewed(record, now, random) };
            return self.claim(own, copies);
        }
        let in_use = self.known.is_some_and(|known| known.grace_until <= now.mono);
        let holds = |copy: &Copy| copy.record().is_some_and(|held| held.fence == record.fence);
        let third = (0..COPIES).find(|copy| !holds(&copies[*copy]) && copies[*copy].cas().is_some());
        let repairs = third.is_some() && (self.restores || random.is_multiple_of(REPAIR_ONE_IN));
        let inherits = self.inherits.filter(|fence| in_use && !record.standby && *fence != record.inherited);
        if !(repairs || in_use && !record.settled || inherits.is_some()) {
            return Vec::new();
        }
        let inherited = inherits.unwrap_or(record.inherited);
        let successor = Record { settled: record.settled || in_use, inherited, ..record.successor() };
        let third = third.filter(|_| repairs).and_then(|copy| Some((copy, copies[copy].cas()?)));
        let holders = ORDER.into_iter().filter(|copy| holds(&copies[*copy]));
        let mut holders = holders.filter_map(|copy| Some((copy, copies[copy].cas()?)));
        let Some((first, cas)) = holders.next() else { return Vec::new() };
        self.stage = Stage::Succeeding { record: successor, rest: holders.collect(), third };
        vec![replace(first, &successor, cas)]
    }

    /// No two copies agree: writes a new record, unless too few of them can be read to know that.
    fn establish(&mut self, copies: &[Copy; COPIES], sent: u64, now: Moment, random: u64) -> Vec<Command> {
        let readable = copies.iter().filter(|copy| copy.cas().is_some()).count();
        if readable < 2 {
            self.disagreed = None;
            return Vec::new();
        }
        // Others may still read the third copy, and agree.
        let since = *self.disagreed.get_or_insert(sent);
        if readable < COPIES && now.mono.saturating_sub(since) < u64::from(self.window) {
            return Vec::new();
        }
        let latest = copies.iter().filter_map(Copy::record).max_by_key(|record| record.fence);
        let former = latest.or(self.known.map(|known| known.record)).unwrap_or(Record {
            fence: 0,
            standby: false,
            window: self.timing.window,
            grace: 0,
            version: 0,
            settled: false,
            relapses: 0,
            inherited: 0,
        });
        self.claim(self.renewed(&former, now, random), copies)
    }

    /// A record of the same place with a new fence.
    fn renewed(&self, former: &Record, now: Moment, random: u64) -> Record {
        let longest = self.window.max(former.window).max(self.timing.window);
        Record {
            fence: fence(now.wall, random),
            window: self.timing.window,
            // Clocks may run at slightly different rates.
            grace: longest + longest / 8,
            version: 0,
            settled: false,
            inherited: 0,
            ..*former
        }
    }

    fn moved(&self, own: &Record, now: Moment, random: u64) -> Record {
        let since_return = now.wall.saturating_sub(fence_millis(own.fence));
        let is_relapse = own.relapses > 0 && since_return < 10 * self.recovery(own.relapses);
        let relapses = if is_relapse { own.relapses.saturating_add(1) } else { 1 };
        Record { standby: true, relapses, ..self.renewed(own, now, random) }
    }

    /// How long the server must answer before its keys return, in ms.
    fn recovery(&self, relapses: u8) -> u64 {
        let doublings = u32::from(relapses.saturating_sub(1)).min(32);
        (self.timing.recover_after << doublings)
            .min(self.timing.recover_at_most.max(self.timing.recover_after))
    }

    fn has_recovered(&self, standby: &Record, now: u64) -> bool {
        self.unbroken.is_some_and(|since| now.saturating_sub(since) >= self.recovery(standby.relapses))
    }

    /// Writes a record on every copy that could be read, a witness first.
    fn claim(&mut self, record: Record, copies: &[Copy; COPIES]) -> Vec<Command> {
        let mut readable = ORDER.into_iter().filter_map(|copy| Some((copy, copies[copy].cas()?)));
        let Some((first, cas)) = readable.next() else { return Vec::new() };
        self.stage = Stage::Claiming { record, rest: readable.collect() };
        vec![replace(first, &record, cas)]
    }

    fn pause(&self) -> u64 {
        (u64::from(self.window.min(self.timing.window)) / ROUNDS_PER_WINDOW).max(1)
    }
}

/// The record that two copies have: of those with the same fence, the latest successor, which is settled if one of them is.
fn agreed(copies: &[Copy; COPIES]) -> Option<Record> {
    let of = |fence| copies.iter().filter_map(Copy::record).filter(move |record| record.fence == fence);
    let fence = copies
        .iter()
        .filter_map(Copy::record)
        .map(|record| record.fence)
        .find(|fence| of(*fence).count() >= 2)?;
    let latest = of(fence).max_by_key(|record| record.version)?;
    Some(Record { settled: of(fence).any(|record| record.settled), ..latest })
}

fn replace(copy: usize, record: &Record, cas: Cas) -> Command {
    Command { copy, item: Item::Record, operation: Operation::Replace(record.encode(), cas) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing =
        Timing { window: 1000, fail_after: 2000, recover_after: 5000, recover_at_most: 5000 };

    /// A record in use.
    fn record() -> Record {
        Record {
            fence: fence(1_700_000_000_000, 1),
            standby: false,
            window: 1000,
            grace: 1000,
            version: 0,
            settled: true,
            relapses: 0,
            inherited: 0,
        }
    }

    #[test]
    fn a_process_that_has_just_lost_the_server_too_does_not_speak_for_it() {
        let record = record();
        let found = |value: &[u8]| Reply::Found(value.to_vec(), Cas { number: 7, epoch: 1 });
        let mut agreement = Agreement::new(TIMING, 0);
        // Whether it speaks for the server if that replies like this while another process asks.
        let mut speaks = |now: u64, own: Reply, question: &[u8]| {
            assert_eq!(agreement.begin(now).iter().filter(|command| command.item == Item::Record).count(), 3);
            let asked = [found(question), Reply::Absent];
            let replies = [own, found(&record.encode()), found(&record.encode())].into_iter().chain(asked);
            let replies: Vec<Reply> = replies.collect();
            let commands = agreement.resume(&replies, Moment { mono: now, wall: now }, 1);
            commands.iter().any(|command| command.item == Item::Alive)
        };
        assert!(speaks(10, found(&record.encode()), b"41"));
        assert!(!speaks(20, Reply::Failed { refused: true }, b"42"));
        assert!(!speaks(30, Reply::Failed { refused: false }, b"42"));
        assert!(speaks(40, found(&record.encode()), b"42"));
    }

    #[test]
    fn a_record_inherits_a_fence_under_its_own_and_no_other() {
        let record = record();
        let cas = |number| Cas { number, epoch: 1 };
        let mut agreement = Agreement::new(TIMING, 0);
        // The records that it writes if this is what all copies hold.
        let mut written = |now: u64, held: Record, inherits: Option<u64>| {
            agreement.inherit(inherits);
            agreement.begin(now);
            let replies: Vec<Reply> = (0..3).map(|copy| Reply::Found(held.encode(), cas(copy))).collect();
            let commands = agreement.resume(&replies, Moment { mono: now, wall: now }, 1);
            let record = |command: &Command| match &command.operation {
                Operation::Replace(value, _) => Record::decode(value),
                _ => None,
            };
            (agreement.view(now).map(|(view, _)| view.inherited), commands.iter().find_map(record))
        };
        let heir = Record { inherited: 41, version: 1, ..record };
        assert_eq!(written(10, record, None), (Some(0), None));
        assert_eq!(written(20, record, Some(41)), (Some(0), Some(heir)));
        assert_eq!(written(30, heir, Some(41)), (Some(41), None));
        // Not while there is no view of the previous place, and not on a standby server.
        assert_eq!(written(40, heir, None), (Some(41), None));
        let away = Record { standby: true, ..record };
        assert_eq!(written(50, away, Some(41)).1.map(|record| record.inherited), None);
        let renewed = agreement.renewed(&heir, Moment { mono: 60, wall: 60 }, 1);
        assert_eq!((renewed.inherited, renewed.fence != heir.fence), (0, true));
    }
}
