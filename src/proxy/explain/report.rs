//! What is reported of a key. The serialized form is the JSON of `kennel explain --json`, whose fields these types define: fields may be
//! added, and none is renamed or removed without another [`SCHEMA`].

use serde::Serialize;

use super::copy_report::CopyReport;
use crate::trace::is_printable;

/// The number of the JSON's form.
pub const SCHEMA: u32 = 1;

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When the servers were asked, in UTC.
    pub at: String,
    /// Who asked the servers.
    pub asked_by: AskedBy,
    /// The sidecar that asked, as locks name it; `None` without one.
    pub sidecar: Option<String>,
    /// What is asked about.
    pub key: KeyReport,
    /// How its commands are handled.
    pub class: Class,
    /// The state of the key, in one sentence.
    pub summary: String,
    /// The rule that applies; `None` if none does.
    pub rule: Option<RuleReport>,
    /// The rules before it, which do not match.
    pub earlier_rules: EarlierRules,
    /// Where the key is kept. `None` for a tag, for a reserved key, and for a value with copies.
    pub place: Option<PlaceReport>,
    /// What stands there. `None` for a tag, for a reserved key, and for a structure with items below its key or with copies.
    pub item: Option<ItemReport>,
    /// Its kind and its items. `None` unless it is the key of a structure.
    pub structure: Option<StructureReport>,
    /// Its lock. `None` unless the key is guarded.
    pub lock: Option<LockReport>,
    /// Its tags; of a tag, the tag itself.
    pub tags: Vec<TagReport>,
    /// While the servers of its pool change: its place in the other list of servers.
    pub elsewhere: Option<ElsewhereReport>,
    /// Of a reserved key: each server that has it.
    pub found: Vec<FoundReport>,
    /// What only the sidecar knows; `None` without one.
    pub local: Option<LocalReport>,
    /// What else there is to know, one sentence each.
    pub notes: Vec<String>,
}

/// Who asked the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedBy {
    /// A running sidecar has answered.
    Sidecar,
    /// The command line tool.
    Command,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyReport {
    /// As text: control characters, backslashes and bytes that are no UTF-8 are written `\xNN`.
    pub text: String,
    /// In base64, exactly.
    pub base64: String,
    pub bytes: usize,
}

/// How the commands of a key are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Guarded,
    /// Forwarded as they are.
    Raw,
    /// As those of a counter, lock, log or window.
    Structure,
    /// It is the key of a tag.
    Tag,
    /// It is one of Kennel's own keys, which no client should use.
    Reserved,
}

/// A rule that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    pub name: String,
    /// Its index in `[[rules]]`, counted from 0.
    pub index: usize,
    #[serde(rename = "match")]
    pub pattern: String,
    /// What the captures of the pattern have matched, from the left.
    pub captures: Vec<CaptureReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaptureReport {
    pub name: String,
    /// What it has matched.
    pub value: String,
}

/// The rules that come before the one that applies, and do not match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EarlierRules {
    pub count: usize,
    /// The last of them, at most 16.
    pub last: Vec<EarlierRule>,
}

/// A rule that does not match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EarlierRule {
    pub name: String,
    /// Its index in `[[rules]]`, counted from 0.
    pub index: usize,
    #[serde(rename = "match")]
    pub pattern: String,
}

/// Where a key is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlaceReport {
    pub pool: String,
    /// The server that has the key.
    pub server: String,
    /// The server that the ring names.
    pub home: String,
    /// The server that has the key while that one is away; `None` in a pool that does not fail over.
    pub standby: Option<String>,
    /// Whether that is known.
    pub view: ViewReport,
    /// The fence of the place, in hexadecimal; `None` in a pool that does not fail over, and without a valid view.
    pub fence: Option<String>,
}

/// Whether a sidecar knows where the keys of a server are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewReport {
    /// The pool does not fail over.
    Fixed,
    /// They are on the server.
    Own,
    /// They are on its standby servers.
    Standby,
    /// There is no valid view: guarded keys are not served.
    None,
}

/// What stands under a key.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ItemReport {
    pub state: ItemState,
    /// Why it is stale, or not served, one word each: `fence`, `tag`, `tag_unread`, `expired`, `marked`, `placeholder`, `unreadable`.
    pub reasons: Vec<&'static str>,
    /// The same as text.
    pub why: Vec<String>,
    /// Why the server did not tell.
    pub failure: Option<String>,
    /// Whole seconds for which it is fresh; `None` if it is not, or without a soft expiry.
    pub fresh_for_s: Option<u32>,
    /// Since when it is stale, in UTC, as far as that is known.
    pub stale_since: Option<String>,
    /// Remaining TTL on the server in whole seconds; `None` if it never expires.
    pub ttl_s: Option<u32>,
    /// Bytes of the value as stored, header included; `None` if the value was not read.
    pub stored_bytes: Option<usize>,
    /// Bytes that a client receives; `None` if the value was not read.
    pub value_bytes: Option<usize>,
    /// Bytes that the item takes on the server, with its key and memcached's own header.
    pub memory_bytes: Option<u64>,
    /// The client's flags; `None` if the value was not read.
    pub flags: Option<u32>,
    /// Its CAS number on the server.
    pub cas: Option<u64>,
    /// Whole seconds since it was last used.
    pub last_access_s: Option<u64>,
    /// Whether it has been read since it was stored.
    pub fetched: Option<bool>,
    /// Whether the server has it marked as stale; `None` if the value was not read.
    pub marked: Option<bool>,
    /// The header; `None` if there is none.
    pub header: Option<HeaderReport>,
    /// The stub; `None` if it is none.
    pub stub: Option<StubReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StructureReport {
    /// Its kind, as the configuration names it.
    pub kind: &'static str,
    /// Its items; `None` for a kind whose item is under the key itself.
    pub items: Option<ItemsReport>,
    /// Its copies, the first one first; none unless its rule has `copies = 2` and there is one item only.
    pub copies: Vec<CopyReport>,
}

/// The items of a structure: of a window or log one for each slot of time, of a list or table its shards. With `copies = 2`, both copies
/// of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ItemsReport {
    /// How many there can be.
    pub all: usize,
    /// How many of them are there.
    pub found: usize,
    /// Bytes that they take on the server; the entries of a log are not in it.
    pub memory_bytes: u64,
    /// Whole seconds until the last of them is gone; `None` if none is there, or none ends.
    pub gone_in_s: Option<u32>,
    /// Why the server did not tell of all.
    pub failure: Option<String>,
}

/// The state of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemState {
    /// The server did not tell.
    #[default]
    Unknown,
    /// There is no item.
    Nothing,
    /// A value that is served as a hit.
    Fresh,
    /// A value that is served while one client rebuilds it.
    Stale,
    /// A value that is not served: a read is a miss.
    Hidden,
    /// Its value is being built for the first time.
    Stub,
    /// A stub whose builder has given up: the next reader builds the value.
    FreeStub,
    /// An item that no rule guards.
    Present,
}

/// The header of a guarded value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeaderReport {
    pub bytes: usize,
    /// Seconds for which the value may be served after its soft expiry.
    pub stale_for_s: u32,
    /// When the build of the value began, in UTC, by the clock of the sidecar that built it.
    pub build_began: Option<String>,
    /// How long the build took, in milliseconds; 0 if unknown.
    pub build_took_ms: u32,
    /// The fence under which it was stored, in hexadecimal; `None` in a pool that does not fail over.
    pub fence: Option<String>,
    /// Whether that fence counts where the key is kept now.
    pub fence_counts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StubReport {
    /// How long the build has lasted at least, in milliseconds.
    pub building_for_ms: u64,
    /// How often another client has taken over, modulo 4.
    pub turn: u8,
    /// Seconds since it was stored or renewed, if its sidecar has the same `lock_ttl`.
    pub renewed_s: Option<u32>,
}

/// The lock of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LockReport {
    /// Whether a sidecar holds it; `None`: the server did not tell.
    pub held: Option<bool>,
    /// Why the server did not tell, or why the lock cannot be read.
    pub failure: Option<String>,
    /// The sidecar that holds it.
    pub holder: Option<String>,
    /// Whether that is the sidecar that was asked; `None` without one.
    pub holder_is_this: Option<bool>,
    /// Since when, in UTC, by the clock of that sidecar.
    pub since: Option<String>,
    /// Seconds since it was taken or renewed, if its sidecar has the same `lock_ttl`.
    pub renewed_s: Option<u32>,
    /// Seconds until it ends unless it is renewed.
    pub ttl_s: Option<u32>,
    /// The build that it protects is out of date: the next reader takes it over.
    pub outdated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TagReport {
    pub name: String,
    /// Whether the value has it from its rule, or it came with the value.
    pub from: TagSource,
    /// Its version now; `None` if it has none, or that could not be read.
    pub version: Option<VersionReport>,
    /// The version that the value was sealed with; `None` if it was sealed without the tag.
    pub sealed: Option<VersionReport>,
    /// What that means for the value.
    pub status: TagStatus,
    /// The servers that keep it.
    pub servers: Vec<TagServerReport>,
    /// While the servers of the tags' pool change: those of the other list.
    pub elsewhere: Vec<TagServerReport>,
}

/// Where a value has a tag from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TagSource {
    /// Its rule names it.
    Rule,
    /// It came with the value.
    Value,
    /// It is the tag that was asked for.
    Key,
}

/// What a tag means for the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TagStatus {
    /// It has the version that the value was sealed with.
    Unchanged,
    /// It has another version: the value is stale.
    Moved,
    /// It has no version, so it was lost or never used: the value is stale.
    Missing,
    /// The rule names it, and the value was sealed without it: the value is stale.
    NotSealed,
    /// Its version could not be read: the value is not served as fresh.
    Unread,
    /// There is no value with a header.
    NoValue,
}

/// The version of a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionReport {
    /// When it last moved, in milliseconds since 1970.
    pub ms: u64,
    /// The same in UTC.
    pub moved: Option<String>,
    /// Tells it from a tag of the same name that was lost.
    pub incarnation: u32,
}

/// What one server has of a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TagServerReport {
    pub server: String,
    /// Whether it is a standby server.
    pub standby: bool,
    /// When the tag last moved as far as it knows, in milliseconds since 1970; `None` if it has no version that counts.
    pub ms: Option<u64>,
    /// Why it did not tell.
    pub failure: Option<String>,
}

/// The place of a key in the other list of servers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ElsewhereReport {
    /// Which list that is.
    pub list: OtherList,
    /// Whether it is the same server.
    pub same_server: bool,
    pub place: PlaceReport,
    /// What stands there; `None` if it is the same server.
    pub item: Option<ItemReport>,
}

/// The other list of servers of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherList {
    /// `next`
    Next,
    /// `previous`
    Previous,
}

/// A server that has a reserved key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoundReport {
    pub pool: String,
    pub server: String,
    pub item: ItemReport,
    /// What it records, if it is a lock.
    pub lock: Option<LockReport>,
}

/// What only a sidecar knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LocalReport {
    /// The leases that its clients hold.
    pub leases: Vec<LeaseReport>,
    /// Misses of its clients whose `set` still counts.
    pub misses: usize,
    /// Requests that wait for another client's build.
    pub waiters: usize,
    /// How often in a row the key was claimed and not filled.
    pub unfilled: u8,
    /// For how many milliseconds no reader waits for it because of that.
    pub no_wait_ms: u64,
    /// The workers that may serve it without asking a server.
    pub near: Vec<NearReport>,
    /// Whether it is built or kept because its server gives no answer.
    pub outage: Option<OutageReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseReport {
    /// The number of the client's connection, unique in the process.
    pub connection: u64,
    /// Since when, in UTC.
    pub since: Option<String>,
    /// Milliseconds until it ends unless it is filled.
    pub ends_in_ms: u64,
    /// Whether a renewal is in progress.
    pub renewing: bool,
    /// Its client has disconnected, and it ends with the renewal in progress.
    pub orphan: bool,
}

/// A value that a worker keeps near.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NearReport {
    /// The index of the worker.
    pub worker: usize,
    /// For how many milliseconds it may serve the value.
    pub for_ms: u64,
}

/// A key whose server gives no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutageReport {
    /// Clients of the sidecar that build it.
    pub builders: usize,
    /// Requests that wait for them.
    pub waiters: usize,
    /// For how many milliseconds a value is kept; `None` if none is.
    pub kept_ms: Option<u64>,
    pub kept_bytes: Option<usize>,
}

/// Bytes as text: printable characters as they are; backslashes, bytes that are no UTF-8, and characters that are invisible or change how
/// others are shown as `\xNN`.
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if !is_printable(character) || character == '\\' {
                let mut buffer = [0; 4];
                escape(character.encode_utf8(&mut buffer).as_bytes(), &mut text);
            } else {
                text.push(character);
            }
        }
        escape(chunk.invalid(), &mut text);
    }
    text
}

fn escape(bytes: &[u8], text: &mut String) {
    use std::fmt::Write;
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_so_that_no_two_keys_look_the_same_and_no_terminal_is_controlled() {
        for (bytes, expected) in [
            (&b"blog:7"[..], "blog:7"),
            ("Zürich".as_bytes(), "Zürich"),
            (b"a b", "a b"),
            (b"a\x1b[2J", "a\\x1b[2J"),
            (b"a\\x1b", "a\\x5cx1b"),
            (b"\xff\x00", "\\xff\\x00"),
            ("\u{85}".as_bytes(), "\\xc2\\x85"),
            ("a\u{202e}b".as_bytes(), "a\\xe2\\x80\\xaeb"),
            ("\u{2028}\u{200b}".as_bytes(), "\\xe2\\x80\\xa8\\xe2\\x80\\x8b"),
        ] {
            assert_eq!(shown(bytes), expected);
        }
    }
}
