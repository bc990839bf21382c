//! A value that a client sends, and the command that stores it in an envelope.

use bytes::{Bytes, BytesMut};

use super::command::{Cas, ItemRef, Operation, ServerCommand, StoreMode, Stored};
use super::envelope::{Envelope, MAGIC, TagName, TagNames, Tags, built_at};
use super::expiry::Expiry;
use super::inputs::{Inputs, Now};
use super::stub::StubId;

/// A value as sent by the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewValue {
    /// Value that the client sent.
    pub body: Bytes,
    /// Client flags of the value.
    pub flags: u32,
    /// How long it is fresh. [`Expiry::Expired`] is not allowed: the caller sends a delete instead.
    pub expiry: Expiry,
    /// `E`: the CAS that the client assigns.
    pub explicit: Option<u64>,
    /// The tags that the client sent with it, besides those of the rule. They are among the inputs' tags, as
    /// if they had been added.
    pub tags: TagNames,
}

impl NewValue {
    /// The same value, to be stored as stale.
    pub(super) fn stale(&self) -> NewValue {
        // It is past its fresh time, at the start of `stale_for`.
        NewValue { expiry: Expiry::Seconds(0), ..self.clone() }
    }

    /// The tags to seal it with: those of the rule and its own. `version` returns the version of each.
    pub(super) fn tags(&self, inputs: &Inputs<'_>, version: impl Fn(&TagName) -> u64) -> Tags {
        let own = inputs.rule_tags();
        let names = own.iter().chain(self.tags.iter().filter(|name| !own.contains(name)));
        names.map(|name| (name.clone(), version(name))).collect()
    }

    /// The command that stores the value in an envelope, sealed with the versions that were read before it
    /// was built, and whether it is stored plain. `built`: when the rebuild began, and its duration in
    /// milliseconds. `stub`: the stub over which it is stored, if known.
    ///
    /// A value that would be too large with an envelope is stored plain, unless it has tags, because a bump must
    /// reach it, or begins as an envelope does: then it would be read as one. The server refuses such a value.
    pub(super) fn store(
        self,
        mode: StoreMode,
        cas: Option<Cas>,
        tags: Tags,
        built: (Now, u64),
        stub: Option<StubId>,
        inputs: &Inputs<'_>,
    ) -> (ServerCommand, bool) {
        let (began, rebuild) = built;
        let expiry = self.expiry.at_most(inputs.policy.max_ttl.as_secs());
        let (stale_for, outlives) = inputs.policy.stale_period(match expiry {
            Expiry::Seconds(seconds) => Some(seconds),
            Expiry::Expired | Expiry::Never => None,
        });
        let mut header = BytesMut::new();
        let untagged = tags.is_empty();
        let sealed = Envelope {
            stale_for,
            built_at: built_at(began.wall, stub.map_or(0, StubId::number)),
            rebuild: u32::try_from(rebuild).unwrap_or(u32::MAX),
            fence: inputs.fence,
            tags,
        }
        .seal(&mut header);
        let fits = sealed.is_ok() && header.len() + self.body.len() <= inputs.max_value;
        let plain = untagged && !fits && !self.body.starts_with(&MAGIC);
        let (header, extra) = if plain { (Bytes::new(), 0) } else { (header.freeze(), outlives) };
        let exptime = expiry.exptime(extra, inputs.now);
        let value = Stored { header, body: self.body };
        let operation =
            Operation::Store { mode, value, flags: self.flags, exptime, cas, explicit: self.explicit };
        (ServerCommand { item: ItemRef::Value, operation }, plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::envelope::{Header, Opened};
    use crate::guard::fixtures;
    use crate::guard::policy::Policy;

    #[test]
    fn what_is_stored_is_read_as_it_was_sent() {
        let policy = Policy::default();
        let inputs = Inputs { max_value: 100, ..fixtures::inputs(&policy, &[]) };
        let bodies = [&b"v"[..], &MAGIC, b"\xf7\xcb\xce", &[&MAGIC[..], &[1, 24, 0]].concat()];
        for (body, length) in
            bodies.into_iter().flat_map(|body| [1, 76, 77, 100, 120].map(|length| (body, length)))
        {
            let mut body = body.to_vec();
            body.resize(length.max(body.len()), b'x');
            let value = NewValue {
                body: body.clone().into(),
                flags: 0,
                expiry: Expiry::Never,
                explicit: None,
                tags: TagNames::new(),
            };
            let (command, plain) =
                value.store(StoreMode::Set, None, Tags::new(), (inputs.now, 0), None, &inputs);
            let Operation::Store { value: Stored { header, body: stored }, .. } = command.operation else {
                panic!("not a store")
            };
            assert_eq!((plain, &stored[..]), (header.is_empty(), &body[..]));
            let item = [&header[..], &stored[..]].concat();
            match Header::open(&item) {
                Opened::Plain => assert!(plain),
                Opened::Sealed { payload_at, .. } => assert_eq!((plain, payload_at), (false, header.len())),
                Opened::Unreadable(why) => panic!("{why}"),
            }
        }
    }
}
