//! Raw requests as they are sent to servers.

use bytes::BytesMut;

use crate::protocol::request::{Meta, MetaVerb, Request, Store, Verb};
use crate::proxy::replies::text::{put_key, put_number};

/// Appends a command that writes one key, without noreply.
pub(super) fn put(out: &mut BytesMut, request: &Request<'_>) {
    match *request {
        Request::Store(Store { verb, key, flags, exptime, data, .. }) => {
            let word: &[u8] = match verb {
                Verb::Set => b"set",
                Verb::Add => b"add",
                Verb::Replace => b"replace",
                Verb::Append => b"append",
                Verb::Prepend => b"prepend",
                Verb::Cas(_) => b"cas",
            };
            out.reserve(data.len() + key.len() + 64);
            out.extend_from_slice(word);
            put_key(out, key);
            put_number(out, flags);
            put_number(out, exptime);
            put_number(out, data.len());
            if let Verb::Cas(cas) = verb {
                put_number(out, cas);
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(data);
        }
        Request::Arith { key, decr, delta, .. } => {
            out.extend_from_slice(if decr { b"decr" } else { b"incr" });
            put_key(out, key);
            put_number(out, delta);
        }
        Request::Touch { key, exptime, .. } => {
            out.extend_from_slice(b"touch");
            put_key(out, key);
            put_number(out, exptime);
        }
        Request::Delete { key, .. } => {
            out.extend_from_slice(b"delete");
            put_key(out, key);
            // As the last word, memcached 1.6.45 would take the key for the option and not reply.
            if key == b"noreply" {
                out.extend_from_slice(b" 0");
            }
        }
        // No other command writes one key.
        _ => out.extend_from_slice(b"version"),
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a meta command in a form that older servers accept too, without `q`.
pub(super) fn put_meta(out: &mut BytesMut, meta: &Meta<'_>) {
    out.reserve(meta.data.len() + meta.key.len() + meta.flags.len() + 32);
    out.extend_from_slice(match meta.verb {
        MetaVerb::Get => b"mg",
        MetaVerb::Set => b"ms",
        MetaVerb::Delete => b"md",
        MetaVerb::Arith => b"ma",
        MetaVerb::Noop => b"mn",
        MetaVerb::Debug => b"me",
    });
    put_key(out, meta.key);
    if meta.verb == MetaVerb::Set {
        put_number(out, meta.data.len());
    }
    for (flag, token) in meta.tokens() {
        // Flags that memcached 1.6.45 ignores, older versions refuse.
        let token = match flag {
            // Only the number of flags matters to `me`.
            _ if meta.verb == MetaVerb::Debug => token,
            b'q' => continue,
            b'x' if meta.verb != MetaVerb::Delete => continue,
            b'M' if !matches!(meta.verb, MetaVerb::Set | MetaVerb::Arith) => continue,
            b'M' => &token[..1],
            b'N' | b'T' | b'R' if token == b"-" => b"0",
            _ => token,
        };
        out.extend_from_slice(&[b' ', flag]);
        out.extend_from_slice(token);
    }
    out.extend_from_slice(b"\r\n");
    if meta.verb == MetaVerb::Set {
        out.extend_from_slice(meta.data);
        out.extend_from_slice(b"\r\n");
    }
}
