//! SASL of one binary connection, with the mechanism PLAIN (RFC 4616).
//!
//! The replies are those of a memcached that was started with `-S`. As there, each message but the last one of a successful
//! authentication leaves the connection unauthenticated, and so does a request for the list of mechanisms.

use std::sync::Arc;

use super::{Users, Verdict};
use crate::protocol::binary::Status;
use crate::protocol::binary::parse::{Access, SaslMessage};

/// The only mechanism that clients are offered.
const PLAIN: &[u8] = b"PLAIN";

/// The authentication of one connection.
#[derive(Debug)]
pub struct Sasl {
    users: Arc<Users>,
    is_authenticated: bool,
    /// The client has named the mechanism, and must send the password in the next step.
    awaits_password: bool,
    /// How many wrong passwords it has sent.
    wrong: u32,
}

/// The reply to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// How far the authentication has come.
    pub status: Status,
    /// What the packet has as its value.
    pub text: &'static [u8],
    /// The result of an attempt, if the message was one.
    pub verdict: Option<Verdict>,
}

impl Sasl {
    /// A connection that has not authenticated.
    pub fn new(users: Arc<Users>) -> Sasl {
        Sasl { users, is_authenticated: false, awaits_password: false, wrong: 0 }
    }

    /// A connection that another process has authenticated.
    pub fn authenticated(users: Arc<Users>) -> Sasl {
        Sasl { is_authenticated: true, ..Sasl::new(users) }
    }

    /// Whether the connection may send commands.
    pub fn access(&self) -> Access {
        if self.is_authenticated { Access::Authenticated } else { Access::Unauthenticated }
    }

    /// How many wrong passwords it has sent.
    pub fn wrong(&self) -> u32 {
        self.wrong
    }

    /// Processes a message of the client.
    pub fn answer(&mut self, message: &SaslMessage<'_>) -> Answer {
        self.is_authenticated = false;
        let awaits_password = std::mem::take(&mut self.awaits_password);
        let failed = |verdict| Answer {
            status: Status::AuthError,
            text: Status::AuthError.text(),
            verdict: Some(verdict),
        };
        match *message {
            SaslMessage::List => {
                self.awaits_password = awaits_password;
                Answer { status: Status::Success, text: PLAIN, verdict: None }
            }
            SaslMessage::Auth { mechanism, .. } if !mechanism.eq_ignore_ascii_case(PLAIN) => {
                failed(Verdict::Malformed)
            }
            SaslMessage::Auth { data: b"", .. } => {
                self.awaits_password = true;
                Answer { status: Status::AuthContinue, text: b"", verdict: None }
            }
            SaslMessage::Step { .. } if !awaits_password => failed(Verdict::Malformed),
            SaslMessage::Auth { data, .. } | SaslMessage::Step { data } => match credentials(data) {
                None => failed(Verdict::Malformed),
                Some((user, password)) if self.users.accept(user, password) => {
                    self.is_authenticated = true;
                    Answer {
                        status: Status::Success,
                        text: b"Authenticated",
                        verdict: Some(Verdict::Accepted),
                    }
                }
                Some(_) => {
                    self.wrong += 1;
                    failed(Verdict::Wrong)
                }
            },
        }
    }
}

/// The user and password of a message of PLAIN. A client that asks to act as another user is refused.
fn credentials(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = data.split(|byte| *byte == 0);
    let (identity, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !user.is_empty() && !password.is_empty();
    (is_whole && (identity.is_empty() || identity == user)).then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sasl() -> Sasl {
        Sasl::new(Arc::new(Users::parse(b"ann:s3cret\nbob:a:b").unwrap()))
    }

    fn auth<'a>(mechanism: &'a str, data: &'a str) -> SaslMessage<'a> {
        SaslMessage::Auth { mechanism: mechanism.as_bytes(), data: data.as_bytes() }
    }

    #[test]
    fn a_password_is_accepted_for_its_own_user_only() {
        for (data, verdict) in [
            ("\0ann\0s3cret", Verdict::Accepted),
            ("ann\0ann\0s3cret", Verdict::Accepted),
            ("\0bob\0a:b", Verdict::Accepted),
            ("bob\0ann\0s3cret", Verdict::Malformed),
            ("\0ann\0a:b", Verdict::Wrong),
            ("\0ann\0s3cret\0", Verdict::Malformed),
            ("\0ann\0", Verdict::Malformed),
            ("\0\0s3cret", Verdict::Malformed),
            ("ann s3cret", Verdict::Malformed),
        ] {
            let mut sasl = sasl();
            let answer = sasl.answer(&auth("PLAIN", data));
            assert_eq!(answer.verdict, Some(verdict), "{data:?}");
            let accepted = verdict == Verdict::Accepted;
            assert_eq!(sasl.access() == Access::Authenticated, accepted);
            assert_eq!(answer.status, if accepted { Status::Success } else { Status::AuthError });
        }
    }

    #[test]
    fn the_password_may_follow_in_a_step_and_only_in_the_next_one() {
        let mut sasl = sasl();
        let step = SaslMessage::Step { data: b"\0ann\0s3cret" };
        assert_eq!(sasl.answer(&step).status, Status::AuthError);
        assert_eq!(sasl.answer(&auth("plain", "")).status, Status::AuthContinue);
        assert_eq!(sasl.answer(&SaslMessage::List).text, b"PLAIN");
        assert_eq!(sasl.answer(&step).text, b"Authenticated");
        assert_eq!(sasl.answer(&step).status, Status::AuthError);
        assert_eq!(sasl.access(), Access::Unauthenticated);
    }

    #[test]
    fn every_message_ends_the_authentication_before_it() {
        for message in [SaslMessage::List, auth("CRAM-MD5", ""), auth("PLAIN", ""), auth("PLAIN", "x")] {
            let mut sasl = sasl();
            sasl.answer(&auth("PLAIN", "\0ann\0s3cret"));
            assert_eq!(sasl.access(), Access::Authenticated);
            sasl.answer(&message);
            assert_eq!(sasl.access(), Access::Unauthenticated, "{message:?}");
        }
    }
}
