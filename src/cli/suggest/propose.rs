//! From what has happened to families of keys to rules for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::observed::{Families, Family};

/// So many words in the same place of otherwise equal shapes are taken for one that varies.
const VARIED: usize = 12;
/// Words whose numbers are no identities: a tag of them would invalidate what has nothing in common.
const NO_TAGS: [&str; 14] = [
    "page", "p", "offset", "limit", "n", "v", "ver", "version", "lang", "top", "last", "day", "hour", "size",
];
/// So many values of a family must have been stored anew without a miss before it is said why.
const FEWEST_RENEWALS: u64 = 3;
/// The oldest of them may be so many times as old as the youngest. To about half of it, that is how exactly ages are counted.
const MOST_VARIED: u32 = 3;
/// The most tags of a rule.
const MAX_TAGS: usize = 16;

/// What is proposed for one family of keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Proposal {
    pub(super) name: String,
    pub(super) pattern: String,
    pub(super) kind: ProposedKind,
    pub(super) family: Family,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ProposedKind {
    Guarded {
        stale_for: Duration,
        cold_wait: Duration,
        max_rebuild: Option<Duration>,
        tags: Vec<String>,
        preset: Option<ProposedPreset>,
    },
    Counter,
    Lock,
    Log,
    /// No rule: what is stored was not built after a miss.
    None,
}

/// For a library that keeps an expiry inside its values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ProposedPreset {
    /// It deletes what has expired.
    Rails,
    /// It stores what has expired anew, of at least this age.
    Dogpile { max_ttl: Duration },
}

/// A shape with the names of its variable parts.
struct Named {
    pattern: String,
    /// Each variable part that may identify something, with the word in front of it.
    captures: Vec<(String, String)>,
    family: Family,
}

/// The rules that fit, the most special first. None has one of the names that are `taken`.
pub(super) fn propose(families: &Families, taken: &BTreeSet<String>) -> Vec<Proposal> {
    let mut merged: BTreeMap<String, Named> = BTreeMap::new();
    for (shape, family) in merge(families) {
        let named = named(&shape, family);
        match merged.get_mut(&named.pattern) {
            Some(known) => known.family.add(&named.family),
            None => drop(merged.insert(named.pattern.clone(), named)),
        }
    }
    let mut with_word: BTreeMap<&str, usize> = BTreeMap::new();
    for named in merged.values().filter(|named| kind_word(&named.family) == Word::Guarded) {
        let words: BTreeSet<&str> = named.captures.iter().map(|(word, _)| &**word).collect();
        words.into_iter().for_each(|word| *with_word.entry(word).or_default() += 1);
    }
    let mut names = taken.clone();
    let mut proposals: Vec<Proposal> = Vec::new();
    for named in merged.values() {
        let tags = named.captures.iter().filter(|(word, _)| with_word.get(&**word).is_some_and(|n| *n > 1));
        let tags = tags.map(|(word, name)| format!("{word}:{{{name}}}")).take(MAX_TAGS).collect();
        let kind = match kind_word(&named.family) {
            Word::Guarded => guarded(&named.family, tags),
            Word::Counter => ProposedKind::Counter,
            Word::Lock => ProposedKind::Lock,
            Word::Log => ProposedKind::Log,
            Word::None => ProposedKind::None,
        };
        let name = name_of(&named.pattern, &mut names);
        proposals.push(Proposal { name, pattern: named.pattern.clone(), kind, family: named.family.clone() });
    }
    let literal = |pattern: &str| {
        let mut inside = false;
        pattern
            .chars()
            .filter(|c| {
                inside = (inside || *c == '{') && *c != '}';
                !inside && *c != '}'
            })
            .count()
    };
    proposals.sort_by_key(|proposal| {
        (
            proposal.pattern.contains('*'),
            std::cmp::Reverse(literal(&proposal.pattern)),
            proposal.pattern.clone(),
        )
    });
    proposals
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Guarded,
    Counter,
    Lock,
    Log,
    None,
}

/// What the commands show.
fn kind_word(family: &Family) -> Word {
    let Family { builds, sets, adds, refused_adds, counts, appends, deletes, .. } = family;
    let stored = sets + adds;
    match () {
        () if *counts > 0 && counts * 2 >= stored + counts => Word::Counter,
        () if *appends > 0 && appends * 2 >= stored + appends => Word::Log,
        // Nobody reads a lock before he takes it, and whoever has it deletes it.
        () if *adds > 0 && builds * 2 <= *adds && sets * 4 <= adds + refused_adds && deletes * 2 >= *adds => {
            Word::Lock
        }
        () if *builds > 0 => Word::Guarded,
        () => Word::None,
    }
}

fn guarded(family: &Family, tags: Vec<String>) -> ProposedKind {
    let usual = family.quantile(0.95).unwrap_or_default();
    let longest = Duration::from_micros(family.longest_micros);
    let seconds = |duration: Duration| duration.as_secs_f64();
    let up_to = |duration: f64, step: f64| Duration::from_secs_f64((duration / step).ceil() * step);
    // A reader waits for a usual build, and for one that takes twice as long.
    let cold_wait = match seconds(usual) * 2.0 {
        wait if wait <= 1.0 => up_to(wait, 0.1),
        wait => up_to(wait, 1.0),
    };
    // Long enough for several builds that fail.
    let stale_for = up_to(seconds(usual) * 20.0, 10.0);
    let max_rebuild = (seconds(longest) > 30.0).then(|| up_to(seconds(longest) * 2.0, 10.0));
    ProposedKind::Guarded {
        stale_for: stale_for.clamp(Duration::from_secs(10), Duration::from_secs(600)),
        cold_wait: cold_wait.clamp(Duration::from_millis(500), Duration::from_secs(60)),
        max_rebuild,
        tags,
        preset: preset(family),
    }
}

/// Values that clients store anew without a miss when they are about equally old have an expiry that memcached does not know. An
/// application that updates values does so at any age.
fn preset(family: &Family) -> Option<ProposedPreset> {
    let renewals = family.renewals();
    let (from, to) = family.usual_ages().filter(|_| renewals >= FEWEST_RENEWALS)?;
    match () {
        () if to > from * MOST_VARIED => None,
        () if family.deleted_first * 2 > renewals => Some(ProposedPreset::Rails),
        () => Some(ProposedPreset::Dogpile { max_ttl: Duration::from_secs(from.as_secs()) })
            .filter(|_| from.as_secs() > 0),
    }
}

/// The families, with words that vary as `{other}`.
fn merge(families: &Families) -> BTreeMap<String, Family> {
    let mut shapes: BTreeMap<String, Family> = families.families.clone();
    let places = shapes.keys().map(|shape| shape.split(':').count()).max().unwrap_or(0);
    // The last place first: titles are behind what they are titles of.
    for place in (1..places).rev() {
        let mut words: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for shape in shapes.keys() {
            if let Some((without, word)) = without(shape, place) {
                words.entry(without).or_default().insert(word);
            }
        }
        words.retain(|_, words| words.len() >= VARIED);
        let mut merged: BTreeMap<String, Family> = BTreeMap::new();
        for (shape, family) in shapes {
            let varied = without(&shape, place).map(|(without, _)| without);
            let shape = varied.filter(|without| words.contains_key(without)).unwrap_or(shape);
            merged.entry(shape).or_default().add(&family);
        }
        shapes = merged;
    }
    shapes
}

/// The shape with `{other}` in this place, and the text that is there; `None` if there is none that may vary.
fn without(shape: &str, place: usize) -> Option<(String, String)> {
    let mut parts: Vec<&str> = shape.split(':').collect();
    let word = parts.get(place).copied().filter(|word| !word.is_empty() && !word.contains('*'))?;
    // A number alone varies already.
    if word.starts_with('{') && word.ends_with('}') && word != "{other}" {
        return None;
    }
    parts[place] = "{other}";
    Some((parts.join(":"), word.to_owned()))
}

/// Names the variable parts of a shape after the words in front of them.
fn named(shape: &str, family: Family) -> Named {
    let (mut pattern, mut captures, mut rest) = (String::new(), Vec::new(), shape);
    let mut names = BTreeSet::new();
    while let Some((before, after)) = rest.split_once('{') {
        let (kind, behind) = after.split_once('}').unwrap_or((after, ""));
        pattern.push_str(before);
        let is_next = before.len() <= 1 && !captures.is_empty() && word_before(before).is_none();
        let word = word_before(before).map(|word| singular(&word)).filter(|_| !is_next);
        let by_word = word.clone().filter(|_| !matches!(kind, "date" | "address"));
        let base = match (by_word, kind) {
            (Some(word), _) => word,
            (None, "number") => "n".to_owned(),
            (None, "other") => "name".to_owned(),
            (None, kind) => kind.to_owned(),
        };
        let name = (1..)
            .map(|n| if n == 1 { base.clone() } else { format!("{base}_{n}") })
            .find(|name| names.insert(name.clone()))
            .unwrap_or(base);
        let word = word.filter(|word| !NO_TAGS.contains(&&**word) && !matches!(kind, "date" | "address"));
        captures.extend(word.map(|word| (word, name.clone())));
        pattern.push('{');
        pattern.push_str(&name);
        pattern.push('}');
        rest = behind;
    }
    pattern.push_str(rest);
    Named { pattern, captures, family }
}

/// The word at the end of this text, before a separator: in small letters, as a name of a capture may be.
fn word_before(text: &str) -> Option<String> {
    let text = text.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let word: String = text.chars().rev().take_while(char::is_ascii_alphanumeric).collect();
    let word: String = word.chars().rev().collect::<String>().to_ascii_lowercase();
    (!word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit())).then_some(word)
}

/// `posts` and `post` are of one kind.
fn singular(word: &str) -> String {
    match word.strip_suffix("ies") {
        Some(stem) if stem.len() > 1 => format!("{stem}y"),
        _ => match word.strip_suffix('s') {
            Some(stem) if stem.len() > 2 && !stem.ends_with(['s', 'u', 'i']) => stem.to_owned(),
            _ => word.to_owned(),
        },
    }
}

/// A name for the rule of a pattern, from its words.
fn name_of(pattern: &str, taken: &mut BTreeSet<String>) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in pattern.chars() {
        inside = (inside || c == '{') && c != '}';
        text.push(if !inside && c.is_ascii_alphanumeric() { c } else { '-' });
    }
    let words: Vec<&str> = text.split('-').filter(|word| !word.is_empty()).collect();
    let mut base = words.join("-");
    base.truncate(56);
    if base.is_empty() {
        base = "others".to_owned();
    }
    let name = (1..)
        .map(|n| if n == 1 { base.clone() } else { format!("{base}-{n}") })
        .find(|name| taken.insert(name.clone()));
    name.unwrap_or(base)
}
