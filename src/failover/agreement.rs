//! One process's part in the agreement on the place of one server.
//!
//! In each round, the process reads the three copies of the record. If two of them have the same fence, it has a *view*, valid for
//! the record's window from the moment the reads were sent. Two copies are changed, by compare-and-swap, to give the keys another
//! place. Any view of the former record has a read that was carried out before that moment, so it ends within one window of it;
//! and whoever meets the new fence waits that long (the *grace*) before it uses it. So the uses of two fences never overlap.
//!
//! A planned move is announced first, because no request shall fail: the record is replaced by one of the same fence with a short window.
//! Whoever has read two copies of that waits until every view has ended that was read before, and then moves the place. So the grace is
//! short too, and requests wait for its end. Of two copies with the same fence, the shorter window holds: otherwise a late write of
//! another successor could bring a long view back.
//!
//! No record is ever copied onto a copy that has lost it, unless both others have been replaced by its successor directly before.
//! Otherwise two delayed writes could bring a retired record back. Every write names the CAS of what it replaces.

use super::command::{Cas, Command, Item, Operation, Reply};
use super::copy::{COPIES, Copy, agreed};
use super::moment::Moment;
use super::planned::Wish;
use super::record::{Record, fence, fence_millis, grace_of};
use super::suspicion::Suspicion;
use super::views::View;

mod planned_moves;

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
    /// The same while a planned move is announced, not above `window`.
    pub moving: u32,
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
    /// The view of the former record, until its end, and since when two copies are known to announce that it moves.
    former: Option<(View, u64)>,
    announced: Option<u64>,
    wish: Option<Wish>,
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
    /// Its move was announced, so requests wait for the end of the grace.
    planned: bool,
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
            former: None,
            announced: None,
            wish: None,
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
        let Known { record, sent, grace_until, .. } = self.known?;
        if grace_until > now {
            return self.former.filter(|(_, until)| now < *until);
        }
        let until = sent + u64::from(record.window);
        let Record { fence, standby, inherited, .. } = record;
        let view = View { fence, standby, inherited };
        (now < until).then_some((view, until))
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
        let mut planned = self.known.is_some_and(|known| known.planned);
        if let Some(known) = self.known.filter(|known| known.record.fence != record.fence) {
            // Whoever uses the new record waits longer than this view lasts.
            self.former = self.view(now).filter(|_| known.record.leaving && !record.settled);
            self.announced = None;
            planned = known.record.leaving && record.grace <= grace_of(known.record.window);
        }
        let grace_until = match self.known {
            _ if record.settled => 0,
            Some(known) if known.record.fence == record.fence => known.grace_until,
            // One more, because times are rounded down.
            _ => now + u64::from(record.grace) + 1,
        };
        self.window = record.window.max(self.timing.window);
        self.known = Some(Known { record, sent, grace_until, planned });
        if grace_until > now {
            self.due = self.due.min(grace_until);
        }
        self.due = self.due.min(sent + self.pause());
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
        let returns = record.standby
            && !record.drained
            && self.has_recovered(record, now.mono)
            && copies[0].cas().is_some();
        if record.leaving && (returns || !record.standby) && self.is_announced(record, copies, now.mono) {
            return self.claim(self.moved_as_planned(record, now, random), copies);
        }
        let in_use = self.known.is_some_and(|known| known.grace_until <= now.mono);
        let holds = |copy: &Copy| copy.record().is_some_and(|held| held.fence == record.fence);
        let third = (0..COPIES).find(|copy| !holds(&copies[*copy]) && copies[*copy].cas().is_some());
        let repairs = third.is_some() && (self.restores || random.is_multiple_of(REPAIR_ONE_IN));
        let inherits = self.inherits.filter(|fence| in_use && !record.standby && *fence != record.inherited);
        let drains = self.wish == Some(Wish::Drain) && witnesses_answer;
        let announces = !record.leaving && in_use && (returns && !drains || drains && !record.standby);
        let drained = match self.wish {
            _ if !record.standby || record.leaving => record.drained,
            Some(wish) => wish == Wish::Drain,
            None => record.drained,
        };
        // Whoever announced the move has written one copy only.
        let is_half = record.leaving
            && copies
                .iter()
                .any(|copy| copy.record().is_some_and(|held| held.fence == record.fence && !held.leaving));
        let changes = announces || is_half || drained != record.drained;
        if !(changes || repairs || in_use && !record.settled || inherits.is_some()) {
            return Vec::new();
        }
        let inherited = inherits.unwrap_or(record.inherited);
        let window = if announces { self.timing.moving.min(record.window) } else { record.window };
        let settled = record.settled || in_use;
        let leaving = record.leaving || announces;
        let successor = Record { settled, leaving, window, drained, inherited, ..record.successor() };
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
            drained: false,
            window: self.timing.window,
            grace: 0,
            version: 0,
            settled: false,
            leaving: false,
            relapses: 0,
            inherited: 0,
        });
        self.claim(self.renewed(&former, now, random), copies)
    }

    /// A record of the same place with a new fence.
    fn renewed(&self, former: &Record, now: Moment, random: u64) -> Record {
        let longest = self.window.max(former.window).max(self.timing.window);
        // Views that were read before a move was announced are as long as the grace of that record allows.
        let announced = if former.leaving { former.grace } else { 0 };
        Record {
            fence: fence(now.wall, random),
            window: self.timing.window,
            grace: grace_of(longest).max(announced),
            version: 0,
            settled: false,
            leaving: false,
            inherited: 0,
            ..*former
        }
    }

    fn moved(&self, own: &Record, now: Moment, random: u64) -> Record {
        let since_return = now.wall.saturating_sub(fence_millis(own.fence));
        let is_relapse = own.relapses > 0 && since_return < 10 * self.recovery(own.relapses);
        let relapses = if is_relapse { own.relapses.saturating_add(1) } else { 1 };
        Record { standby: true, drained: own.leaving, relapses, ..self.renewed(own, now, random) }
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
        let window = self.known.map_or(self.window, |known| known.record.window);
        (u64::from(self.window.min(self.timing.window).min(window)) / ROUNDS_PER_WINDOW).max(1)
    }
}

fn replace(copy: usize, record: &Record, cas: Cas) -> Command {
    Command { copy, item: Item::Record, operation: Operation::Replace(record.encode(), cas) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing =
        Timing { window: 1000, moving: 200, fail_after: 2000, recover_after: 5000, recover_at_most: 5000 };

    /// A record in use.
    fn record() -> Record {
        Record {
            fence: fence(1_700_000_000_000, 1),
            standby: false,
            drained: false,
            window: 1000,
            grace: 1000,
            version: 0,
            settled: true,
            leaving: false,
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
    fn a_drain_is_announced_and_moves_once_every_longer_view_has_ended() {
        let cas = |number| Cas { number, epoch: 1 };
        let mut held = record();
        let mut agreement = Agreement::new(TIMING, 0);
        // Has a round, and returns the record that all copies have afterwards.
        let mut round = |agreement: &mut Agreement, now: u64| {
            agreement.begin(now);
            let replies: Vec<Reply> = (0..3).map(|copy| Reply::Found(held.encode(), cas(copy))).collect();
            let mut commands = agreement.resume(&replies, Moment { mono: now, wall: now }, 1);
            for command in &commands {
                if let Operation::Replace(value, _) = &command.operation {
                    held = Record::decode(value).unwrap();
                }
            }
            while !commands.is_empty() {
                let stored = vec![Reply::Stored; commands.len()];
                commands = agreement.resume(&stored, Moment { mono: now, wall: now }, 1);
            }
            held
        };
        let fence_at = |agreement: &Agreement, now| agreement.view(now).map(|(view, _)| view.fence);
        let own = round(&mut agreement, 10);
        agreement.wish(Some(Wish::Drain));
        let leaving = round(&mut agreement, 20);
        assert_eq!(leaving, Record { leaving: true, window: 200, version: 1, ..own });
        // The grace of the record is 1000, from when both copies were read.
        for now in (30..=1030).step_by(100) {
            assert_eq!(round(&mut agreement, now), leaving, "at {now}");
            assert!(agreement.hold(now).is_none() && agreement.view(now).unwrap().1 <= now + 200);
        }
        // If no round succeeds, requests wait for a while rather than fail.
        assert_eq!(
            (agreement.view(1250), agreement.hold(1250).map(|hold| hold.has_view)),
            (None, Some(false))
        );
        let moved = round(&mut agreement, 1035);
        assert!(moved.standby && moved.drained && !moved.settled && moved.fence != own.fence);
        assert_eq!((moved.window, moved.grace), (1000, 225));
        // The former view goes on until its end, for what has begun under it.
        round(&mut agreement, 1040);
        assert_eq!(fence_at(&agreement, 1040), Some(own.fence));
        assert_eq!(agreement.hold(1040).map(|hold| hold.has_view), Some(true));
        assert_eq!([1235, 1265].map(|now| fence_at(&agreement, now)), [None, None]);
        assert_eq!(agreement.hold(1240).map(|hold| hold.has_view), Some(false));
        assert_eq!((fence_at(&agreement, 1266), agreement.hold(1266)), (Some(moved.fence), None));
        // It stays there while it answers, until that is asked for. Then it is announced again.
        agreement.wish(None);
        assert!(round(&mut agreement, 9000).drained && round(&mut agreement, 20_000).drained);
        agreement.wish(Some(Wish::Return));
        let returning = round(&mut agreement, 20_010);
        assert!(returning.standby && !returning.drained);
        assert!(round(&mut agreement, 20_020).leaving && round(&mut agreement, 20_030).standby);
        assert!(!round(&mut agreement, 21_200).standby);
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
