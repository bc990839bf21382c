//! A command that changes a raw key which a guard may have stored: what it is, and what its reply tells.

use std::ops::RangeInclusive;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::item::put_whole_look;
use crate::guard::envelope::MAX_HEADER;
use crate::protocol::binary::parse::{self as binary, Command};
use crate::protocol::decimal::write_decimal;
use crate::protocol::reply::{Shape, Status, meta};
use crate::protocol::request::{Meta, MetaVerb, Request, Store, Verb};
use crate::proxy::raw::shown::{flags_of, put_expiry, put_look, shows_stub};
use crate::proxy::replies::meta::miss;
use crate::proxy::server_key::is_text;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, Reply, ReplyId};

/// What memcached stores besides the key and the value in bytes, and the shortest header.
const SEALED_OVERHEAD: usize = 48 + 8 + 1 + 2 + 24;

/// The sizes of a placeholder in bytes: it is a header with at least one tag. Its flags are 0.
const PLACEHOLDER: RangeInclusive<u64> = 34..=MAX_HEADER as u64;

/// The TTL in seconds from which on a guard may replace a stale value by a stub.
const ENDS_SOON: u64 = 2;

/// A command that may meet what a guard has stored.
pub(super) struct Change {
    /// The command as it is sent.
    pub(super) command: Bytes,
    pub(super) sender: Sender,
    /// The length of the value that it stores.
    pub(super) stores: usize,
    pub(super) kind: ChangeKind,
    /// It stores a value where there is none, although it extends or counts.
    pub(super) creates: bool,
    /// The CAS that the client compares with.
    pub(super) compares: Option<u64>,
    pub(super) state: State,
    /// The reply to what has been sent before the command.
    pub(super) before: Option<ReplyId>,
    pub(super) looks: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Add,
    Replace,
    Append,
    Prepend,
    /// A store or delete that compares the CAS.
    Compare,
    /// A delete that leaves the item, marked stale or without its value.
    Mark,
    Count,
    /// With this exptime.
    Touch(i64),
}

/// How the command is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Line,
    Meta,
    /// For a binary client.
    Guard,
}

#[derive(Debug)]
pub(super) enum State {
    /// The command has been sent.
    Sent,
    /// The same, and its reply is passed on.
    Last,
    /// The same, with the CAS of the item that has been looked at.
    Conditional,
    /// What there is besides the value is looked at, before anything is sent.
    Sizing,
    /// The item is looked at. The command has had this reply, if it has been sent; before it, the item ended within so many seconds.
    Looking(Option<Reply>, Option<u32>),
    /// The value is stored without its header.
    Unwrapping,
    /// The stub or placeholder is deleted, or a win given back. Then the command is sent.
    Dropping,
    /// It is read which CAS the item has that the command has marked.
    Marking(Reply),
    /// One more command is sent, whose reply does not matter.
    Ending(Reply),
}

impl Change {
    /// `None`: what such a command does is the same for what the client sees. `key` is decoded.
    pub(super) fn classic(request: &Request<'_>, write: impl FnOnce(&mut BytesMut)) -> Option<Change> {
        let (kind, stores, compares) = match *request {
            Request::Store(Store { verb, data, .. }) => {
                let (kind, compares) = match verb {
                    Verb::Set => return None,
                    Verb::Add => (ChangeKind::Add, None),
                    Verb::Replace => (ChangeKind::Replace, None),
                    Verb::Append => (ChangeKind::Append, None),
                    Verb::Prepend => (ChangeKind::Prepend, None),
                    Verb::Cas(cas) => (ChangeKind::Compare, Some(cas)),
                };
                (kind, data.len(), compares)
            }
            Request::Arith { .. } => (ChangeKind::Count, 0, None),
            Request::Touch { exptime, .. } => (ChangeKind::Touch(exptime), 0, None),
            _ => return None,
        };
        Some(Change::new(kind, Sender::Line, stores, false, compares, write))
    }

    /// The same for a meta command.
    pub(super) fn meta(command: &Meta<'_>, write: impl FnOnce(&mut BytesMut)) -> Option<Change> {
        let compares = command.token(b'C').map(|cas| number(cas).unwrap_or(0));
        let mode = command.token(b'M').and_then(|mode| mode.first()).map(u8::to_ascii_uppercase);
        let kind = match (command.verb, mode) {
            (MetaVerb::Set, Some(b'E')) => ChangeKind::Add,
            (MetaVerb::Set, Some(b'R')) => ChangeKind::Replace,
            (MetaVerb::Set, Some(b'A')) => ChangeKind::Append,
            (MetaVerb::Set, Some(b'P')) => ChangeKind::Prepend,
            (MetaVerb::Set | MetaVerb::Delete, _) if compares.is_some() => ChangeKind::Compare,
            (MetaVerb::Delete, _) if command.has_any(b"Ix") => ChangeKind::Mark,
            (MetaVerb::Arith, _) => ChangeKind::Count,
            _ => return None,
        };
        let creates = command.token(b'N').is_some();
        Some(Change::new(kind, Sender::Meta, command.data.len(), creates, compares, write))
    }

    /// The same for a command of a binary client.
    pub(super) fn binary(command: &Command<'_>, write: impl FnOnce(&mut BytesMut)) -> Option<Change> {
        let (kind, stores, creates, cas) = match *command {
            Command::Store(binary::Store { verb, data, cas, .. }) => {
                let kind = match verb {
                    Verb::Append => ChangeKind::Append,
                    Verb::Prepend => ChangeKind::Prepend,
                    _ if cas != 0 => ChangeKind::Compare,
                    Verb::Add => ChangeKind::Add,
                    Verb::Replace => ChangeKind::Replace,
                    _ => return None,
                };
                (kind, data.len(), false, cas)
            }
            Command::Count { create, cas, .. } => (ChangeKind::Count, 0, create.is_some(), cas),
            Command::Touch { exptime, .. } => (ChangeKind::Touch(exptime), 0, false, 0),
            Command::Delete { cas, .. } if cas != 0 => (ChangeKind::Compare, 0, false, cas),
            _ => return None,
        };
        Some(Change::new(kind, Sender::Guard, stores, creates, (cas != 0).then_some(cas), write))
    }

    fn new(
        kind: ChangeKind,
        sender: Sender,
        stores: usize,
        creates: bool,
        compares: Option<u64>,
        write: impl FnOnce(&mut BytesMut),
    ) -> Change {
        let mut command = BytesMut::new();
        write(&mut command);
        let (command, state) = (command.freeze(), State::Sent);
        Change { command, sender, stores, kind, creates, compares, state, before: None, looks: 0 }
    }

    /// Sends what comes first. Returns where its reply arrives.
    pub(super) fn begin(
        &mut self,
        key: &[u8],
        connection: &Connection,
        pending: &Rc<PendingReplies>,
    ) -> ReplyId {
        let fits = SEALED_OVERHEAD + key.len() + self.stores <= connection.server().item_size();
        match self.kind {
            // No reply tells, and it must not take effect on a header, on a stub or on a placeholder.
            ChangeKind::Prepend | ChangeKind::Replace if fits => {
                (self.state, self.looks) = (State::Looking(None, None), 1);
                return connection.send_guard(pending, None, |out| put_whole_look(key, out));
            }
            // What does not fit next to a header is not stored there, and another command could have another effect.
            ChangeKind::Prepend | ChangeKind::Replace => self.state = State::Last,
            // Nor on a stub or on a placeholder only.
            ChangeKind::Append | ChangeKind::Mark => {
                (self.state, self.looks) = (State::Sizing, 1);
                return connection.send_guard(pending, None, |out| put_look(key, None, out));
            }
            // Older servers reply to `me` with other bytes of a key as they are.
            ChangeKind::Touch(_) if !is_text(key) => {}
            ChangeKind::Touch(_) => {
                let look = |out: &mut BytesMut| put_expiry(key, out);
                self.before = Some(connection.send(pending, Shape::Meta, look));
            }
            ChangeKind::Add | ChangeKind::Compare | ChangeKind::Count => {}
        }
        self.send(connection, pending)
    }

    /// Sends the command as it is.
    pub(super) fn send(&self, connection: &Connection, pending: &Rc<PendingReplies>) -> ReplyId {
        let write = |out: &mut BytesMut| out.extend_from_slice(&self.command);
        match self.sender {
            Sender::Line => connection.send(pending, Shape::Line, write),
            Sender::Meta => connection.send(pending, Shape::Meta, write),
            Sender::Guard => connection.send_guard(pending, None, write),
        }
    }

    /// Whether the item is looked at before anything else.
    pub(super) fn looks_first(&self) -> bool {
        matches!(self.state, State::Looking(None, _) | State::Sizing)
    }

    /// Whether the reply could be another one if the client's view of the item were stored.
    pub(super) fn is_suspect(&self, reply: &[u8]) -> bool {
        match self.kind {
            ChangeKind::Add => reply.starts_with(b"NS") || reply.starts_with(b"NOT_STORED"),
            ChangeKind::Compare => reply.starts_with(b"EX"),
            ChangeKind::Count => {
                reply.starts_with(b"EX")
                    || reply.starts_with(b"CLIENT_ERROR")
                        && memchr::memmem::find(reply, b"non-numeric").is_some()
            }
            ChangeKind::Touch(_) => reply.starts_with(b"TOUCHED") || reply.starts_with(b"HD"),
            ChangeKind::Append | ChangeKind::Mark => reply.starts_with(b"EX"),
            ChangeKind::Replace | ChangeKind::Prepend => false,
        }
    }

    /// What the reply to the look before everything says.
    pub(super) fn sized(&self, reply: &Reply, is_won: bool) -> Sized {
        let Reply::Answered { bytes, epoch } = reply else { return Sized::Unknown };
        let parsed = meta(bytes);
        let cas = parsed.number(b'c').unwrap_or(0);
        match (parsed.status, parsed.number(b's')) {
            (Status::En, _) => Sized::Gone,
            (Status::Hd, Some(0)) if shows_stub(&parsed, is_won) => Sized::Stub { cas, epoch: *epoch },
            (Status::Hd, Some(size)) if PLACEHOLDER.contains(&size) && flags_of(&parsed) == Some(0) => {
                Sized::MayBePlaceholder
            }
            (Status::Hd, _) => {
                let ends_soon = parsed.number(b't').is_some_and(|ttl| ttl <= ENDS_SOON);
                Sized::Value { cas, ends_soon }
            }
            _ => Sized::Unknown,
        }
    }

    /// The command, which takes effect on the item with this CAS only.
    pub(super) fn with_cas(&self, key: &[u8], cas: u64) -> Bytes {
        let mut out = BytesMut::with_capacity(self.command.len() + 24);
        let end = memchr::memmem::find(&self.command, b"\r\n").unwrap_or(self.command.len());
        let (line, rest) = self.command.split_at(end);
        match self.sender {
            Sender::Line => {
                out.extend_from_slice(b"ms ");
                out.extend_from_slice(key);
                out.extend_from_slice(b" ");
                write_decimal(&mut out, self.stores);
                out.extend_from_slice(if self.kind == ChangeKind::Append { b" MA" } else { b" MP" });
            }
            Sender::Meta | Sender::Guard => {
                let words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
                // The command, its key, and the length.
                let named = if line.starts_with(b"ms") { 3 } else { 2 };
                for (at, word) in words.enumerate().filter(|(at, word)| *at < named || word[0] != b'C') {
                    out.extend_from_slice(if at > 0 { b" " } else { b"" });
                    out.extend_from_slice(word);
                }
            }
        }
        out.extend_from_slice(b" C");
        write_decimal(&mut out, cas);
        out.extend_from_slice(rest);
        out.freeze()
    }

    /// The server's reply if there is no item.
    pub(super) fn absent(&self, key: &[u8]) -> Bytes {
        let stores = matches!(self.kind, ChangeKind::Replace | ChangeKind::Append | ChangeKind::Prepend);
        match (self.sender, stores) {
            (Sender::Line, true) => Bytes::from_static(b"NOT_STORED\r\n"),
            (Sender::Line, false) => Bytes::from_static(b"NOT_FOUND\r\n"),
            (_, _) => {
                let end = memchr::memmem::find(&self.command, b"\r\n").unwrap_or(self.command.len());
                // `miss` reads flags, of which the name and the length are none that it repeats.
                let named = if self.command.starts_with(b"ms") { 3 } else { 2 };
                let mut words = self.command[..end].split(|byte| *byte == b' ');
                let flags = words.by_ref().skip(named).collect::<Vec<_>>().join(&b' ');
                let line = miss(&Meta { verb: MetaVerb::Get, key, flags: &flags, data: b"" }, key);
                let status: &[u8] = if stores { b"NS" } else { b"NF" };
                [status, &line[2..]].concat().into()
            }
        }
    }
}

/// What a look without the value tells.
pub(super) enum Sized {
    /// The server has not told.
    Unknown,
    Gone,
    Stub {
        cas: u64,
        epoch: u32,
    },
    MayBePlaceholder,
    Value {
        cas: u64,
        /// A guard may replace it by a stub.
        ends_soon: bool,
    },
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
