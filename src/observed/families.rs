//! What has happened to observed keys, by the shape of the key: what `kennel suggest` reads.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::builds::{Build, Stored};
use super::renewals::Renewal;
use super::shape::shape;
use crate::metrics::{Command, Outcome};

/// The most families that are counted apart.
pub const MAX_FAMILIES: usize = 512;
/// The most of them whose keys begin with the same word. Further ones are one family.
pub const MAX_OF_WORD: usize = 64;
/// Build times are counted in so many intervals. From one to the next, they grow by about half.
const TIMES: usize = 64;

/// Counts by the shape of keys, for `kennel suggest`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Families {
    /// By the shape of their keys.
    pub families: BTreeMap<String, Family>,
    /// How many there are of each first word.
    of_word: HashMap<String, usize>,
    /// When the first of it happened.
    began: Option<Duration>,
}

/// What has happened to the keys of one shape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Family {
    /// Misses of keys of this shape.
    pub misses: u64,
    /// Misses that a store has followed.
    pub builds: u64,
    /// Those that a guard would have spared.
    pub spared: u64,
    /// The time that the builds took, in microseconds.
    pub build_micros: u64,
    /// The time that those took which a guard would have spared.
    pub spared_micros: u64,
    /// Longest build, in microseconds.
    pub longest_micros: u64,
    /// The most builds of one key that overlapped.
    pub at_once: u64,
    /// Values stored with `set`.
    pub sets: u64,
    /// Values stored with `add`.
    pub adds: u64,
    /// An `add` that was refused: there was a value.
    pub refused_adds: u64,
    /// `incr` and `decr`.
    pub counts: u64,
    /// `append` and `prepend`.
    pub appends: u64,
    /// Deletes of a value.
    pub deletes: u64,
    /// Builds by how long they took: how many of each interval.
    pub times: BTreeMap<usize, u64>,
    /// Values stored anew without a miss by how old the ones before were: how many of each interval.
    pub ages: BTreeMap<usize, u64>,
    /// How many of them by a client that had deleted the one before.
    pub deleted_first: u64,
}

/// What a command other than a hit has done to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// A get that was a miss.
    Missed,
    /// Stored with `set` or a command of the same effect.
    Set,
    /// Stored with `add`.
    Added,
    /// Not stored with `add`.
    AddRefused,
    /// `incr` or `decr`.
    Counted,
    /// `append` or `prepend`.
    Appended,
    /// A `delete` that was carried out.
    Deleted,
}

impl Deed {
    /// `None`: nothing that tells what the key is.
    pub fn of(command: Command, outcome: Outcome) -> Option<Deed> {
        Some(match (command, outcome) {
            (
                Command::Get | Command::Gets | Command::Gat | Command::Gats | Command::MetaGet,
                Outcome::Miss | Outcome::MissWon | Outcome::MissHeld,
            ) => Deed::Missed,
            (
                Command::Set | Command::MetaSet | Command::Cas | Command::Replace,
                Outcome::Stored | Outcome::Ok,
            ) => Deed::Set,
            (Command::Add, Outcome::Stored) => Deed::Added,
            (Command::Add, Outcome::NotStored) => Deed::AddRefused,
            (
                Command::Incr | Command::Decr | Command::MetaArith,
                Outcome::Counted | Outcome::NotFound | Outcome::Ok | Outcome::Hit,
            ) => Deed::Counted,
            (Command::Append | Command::Prepend, Outcome::Stored | Outcome::NotStored) => Deed::Appended,
            (Command::Delete | Command::MetaDelete, Outcome::Deleted | Outcome::Ok) => Deed::Deleted,
            _ => return None,
        })
    }
}

impl Families {
    /// Those that another process has counted.
    pub fn of(families: BTreeMap<String, Family>) -> Families {
        Families { families, ..Families::default() }
    }

    /// Counting begins at this time since the start of the process, unless it has begun.
    pub fn begin(&mut self, now: Duration) {
        self.began.get_or_insert(now);
    }

    /// When counting began, in time since the start of the process.
    pub fn began(&self) -> Option<Duration> {
        self.began
    }

    /// A command has done this to a key, and may have ended a build.
    pub fn note(&mut self, key: &[u8], deed: Option<Deed>, build: Option<&Build>) {
        if deed.is_none() && build.is_none() {
            return;
        }
        let family = self.family(key);
        match deed {
            Some(Deed::Missed) => family.misses += 1,
            Some(Deed::Set) => family.sets += 1,
            Some(Deed::Added) => family.adds += 1,
            Some(Deed::AddRefused) => family.refused_adds += 1,
            Some(Deed::Counted) => family.counts += 1,
            Some(Deed::Appended) => family.appends += 1,
            Some(Deed::Deleted) => family.deletes += 1,
            None => {}
        }
        if let Some(Build { took, spared, at_once, .. }) = build {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            family.builds += 1;
            family.build_micros += micros;
            family.longest_micros = family.longest_micros.max(micros);
            family.at_once = family.at_once.max(*at_once);
            *family.times.entry(interval(micros)).or_default() += 1;
            if *spared {
                family.spared += 1;
                family.spared_micros += micros;
            }
        }
    }

    /// A command has done this to a key, and may have ended something.
    pub fn note_stored(&mut self, key: &[u8], deed: Option<Deed>, stored: Option<&Stored>) {
        let build = match stored {
            Some(Stored::Build(build)) => Some(build),
            _ => None,
        };
        self.note(key, deed, build);
        if let Some(Stored::NoMiss(Some(renewal))) = stored {
            self.note_renewal(key, renewal);
        }
    }

    /// A client has stored a key anew that it had not missed.
    fn note_renewal(&mut self, key: &[u8], renewal: &Renewal) {
        let family = self.family(key);
        let micros = u64::try_from(renewal.age.as_micros()).unwrap_or(u64::MAX);
        *family.ages.entry(interval(micros)).or_default() += 1;
        family.deleted_first += u64::from(renewal.deleted);
    }

    /// Adds what others have counted.
    pub fn add(&mut self, others: &Families) {
        self.began = self.began.into_iter().chain(others.began).min();
        for (shape, family) in &others.families {
            self.families.entry(shape.clone()).or_default().add(family);
        }
    }

    fn family(&mut self, key: &[u8]) -> &mut Family {
        let shape = shape(key);
        if self.families.contains_key(&shape) {
            return self.families.entry(shape).or_default();
        }
        let end = shape.find([':', '/', '|', '-', '_', '.', '{']).unwrap_or(shape.len());
        let word = shape[..end].to_owned();
        let rest = format!(
            "{word}{}*",
            shape[end..].chars().next().filter(|c| *c != '{').map_or(String::new(), String::from)
        );
        let of_word = self.of_word.get(&word).copied().unwrap_or(0);
        let is_full = self.families.len() >= MAX_FAMILIES;
        let shape = match () {
            () if !is_full && of_word < MAX_OF_WORD => {
                self.of_word.insert(word, of_word + 1);
                shape
            }
            () if !is_full || self.families.contains_key(&rest) => rest,
            () => "*".to_owned(),
        };
        self.families.entry(shape).or_default()
    }
}

impl Family {
    /// Adds what was counted for other keys, or elsewhere.
    pub fn add(&mut self, other: &Family) {
        let Family { misses, builds, spared, build_micros, spared_micros, longest_micros, at_once, .. } =
            other;
        self.misses += misses;
        self.builds += builds;
        self.spared += spared;
        self.build_micros += build_micros;
        self.spared_micros += spared_micros;
        self.longest_micros = self.longest_micros.max(*longest_micros);
        self.at_once = self.at_once.max(*at_once);
        self.sets += other.sets;
        self.adds += other.adds;
        self.refused_adds += other.refused_adds;
        self.counts += other.counts;
        self.appends += other.appends;
        self.deletes += other.deletes;
        self.deleted_first += other.deleted_first;
        for (mine, others) in [(&mut self.times, &other.times), (&mut self.ages, &other.ages)] {
            others.iter().for_each(|(interval, n)| *mine.entry(*interval).or_default() += n);
        }
    }

    /// How many values were stored anew without a miss.
    pub fn renewals(&self) -> u64 {
        self.ages.values().sum()
    }

    /// Between which ages about nine tenths of them were; `None` if there were none.
    pub fn usual_ages(&self) -> Option<(Duration, Duration)> {
        let all = self.renewals();
        let first = nth(&self.ages, all.div_ceil(20))?;
        let last = nth(&self.ages, all - all / 20)?;
        let begins = |interval: usize| interval.checked_sub(1).map_or(0, end_of);
        Some((Duration::from_micros(begins(first)), Duration::from_micros(end_of(last))))
    }

    /// The time that this share of the builds took at most, to about a half; `None` if there were none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let most = (self.builds as f64 * share).ceil().max(1.0);
        let interval = nth(&self.times, most as u64)?;
        Some(Duration::from_micros(end_of(interval).min(self.longest_micros)))
    }
}

/// The interval of the nth of these.
fn nth(counted: &BTreeMap<usize, u64>, n: u64) -> Option<usize> {
    let mut before = 0;
    counted.iter().find_map(|(interval, there)| {
        before += there;
        (before >= n).then_some(*interval)
    })
}

/// The interval of a time: two for each power of two.
fn interval(micros: u64) -> usize {
    let power = micros.max(1).ilog2() as usize;
    let half = usize::from(power > 0 && micros >> (power - 1) & 1 == 1);
    (2 * power + half).min(TIMES - 1)
}

/// The end of an interval, in microseconds.
fn end_of(interval: usize) -> u64 {
    let power = interval / 2;
    if interval.is_multiple_of(2) { (3_u64 << power).div_ceil(2) } else { 2_u64 << power }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(ms: u64, spared: bool) -> Build {
        Build { took: Duration::from_millis(ms), spared, at_once: 1, of_other: false }
    }

    #[test]
    fn what_happens_to_keys_is_counted_by_their_shape() {
        let mut families = Families::default();
        for n in 0..10 {
            let key = format!("post:{n}");
            families.note(key.as_bytes(), Some(Deed::Missed), None);
            families.note(key.as_bytes(), Some(Deed::Set), Some(&build(10 + n, n > 5)));
        }
        families.note(b"hits", Some(Deed::Counted), None);
        let post = &families.families["post:{number}"];
        assert_eq!((post.misses, post.sets, post.builds, post.spared), (10, 10, 10, 4));
        assert_eq!((post.longest_micros, post.build_micros), (19_000, 145_000));
        assert_eq!(families.families["hits"].counts, 1);
        let mut both = Families::default();
        both.add(&families);
        both.add(&families);
        assert_eq!(both.families["post:{number}"].builds, 20);
    }

    #[test]
    fn a_quantile_is_too_large_by_at_most_a_half() {
        let mut families = Families::default();
        (1..=1000).for_each(|ms| families.note(b"k", Some(Deed::Set), Some(&build(ms, false))));
        let family = &families.families["k"];
        for (share, exact) in [(0.1, 100), (0.5, 500), (0.95, 950), (1.0, 1000)] {
            let shown = family.quantile(share).unwrap().as_millis();
            assert!((exact..=exact * 3 / 2).contains(&shown), "{share}: {shown}");
        }
        assert_eq!(Family::default().quantile(0.5), None);
        for micros in (0..1_000_000).step_by(97).chain([u64::MAX >> 40]) {
            let end = end_of(interval(micros));
            assert!(micros < end && end <= micros * 3 / 2 + 3, "{micros}: {end}");
        }
    }

    #[test]
    fn usual_ages_are_those_of_nine_in_ten_renewals() {
        let mut families = Families::default();
        let mut note = |age: f64, deleted| {
            families.note_renewal(b"k", &Renewal { age: Duration::from_secs_f64(age), deleted });
        };
        (0..20).for_each(|n| note(4.2 + f64::from(n) / 100.0, n < 5));
        note(100.0, false);
        let family = &families.families["k"];
        assert_eq!((family.renewals(), family.deleted_first), (21, 5));
        let (from, to) = family.usual_ages().unwrap();
        let ms = |time: Duration| time.as_millis();
        assert!((2_800..=4_200).contains(&ms(from)) && (4_390..=6_600).contains(&ms(to)), "{from:?} {to:?}");
        assert_eq!(Family::default().usual_ages(), None);
    }

    #[test]
    fn the_number_of_families_is_bounded() {
        let mut families = Families::default();
        let words = |n: usize| format!("title{}x", ["a", "b", "c", "d"].map(|c| c.repeat(n % 37)).join("-"));
        for n in 0..10_000 {
            families.note(
                format!("page:w{}:{}", words(n), "z".repeat(n / 300)).as_bytes(),
                Some(Deed::Missed),
                None,
            );
        }
        assert_eq!(families.families.len(), MAX_OF_WORD + 1);
        assert!(families.families["page:*"].misses > 0);
        for n in 0..10_000 {
            let word: String = n.to_string().bytes().map(|digit| char::from(digit + 49)).collect();
            families.note(format!("{word}:x").as_bytes(), Some(Deed::Missed), None);
        }
        assert!(families.families.len() <= MAX_FAMILIES + 1, "{}", families.families.len());
        assert!(families.of_word.len() <= MAX_FAMILIES, "{}", families.of_word.len());
        assert!(families.families["*"].misses > 0);
        assert_eq!(families.families.values().map(|family| family.misses).sum::<u64>(), 20_000);
    }
}
