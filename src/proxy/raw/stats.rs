//! `stats`: Kennel's own counters under memcached's names, and the sums of all servers.
//!
//! What concerns clients (commands, hits, connections, bytes) is counted here. What only the servers know (items, memory,
//! evictions) is requested from each of them and summed. An exporter that scrapes Kennel therefore sees one memcached as large
//! as all servers. Each line has exactly three words, because exporters refuse replies with other lines.

use std::rc::Rc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

mod merged;

use crate::error::Failure;
use crate::metrics::{Command, NO_RULE, Outcome, Totals, UpstreamOutcome, Usage};
use crate::protocol::number;
use crate::protocol::reply::Shape;
use crate::proxy::client::Client;
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::scope::CallScope;
use crate::proxy::state::server_info::ServerInfo;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{Reply, ReplyId};
use merged::{MergedStats, class};

const END: &[u8] = b"END\r\n";
const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line\r\n";
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const DETAIL_USAGE: &[u8] = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n";

/// The kinds of `stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    General,
    Settings,
    Items,
    Slabs,
    Sizes,
    /// Kennel's own counters under the names of memcached's proxy. No server is involved.
    Proxy,
    /// Kennel's metrics. No server is involved.
    Kennel,
    Reset,
}

/// A `stats` in flight.
pub(crate) struct Statistics {
    kind: Kind,
    requests: SmallVec<[(ReplyId, Rc<Connection>); 8]>,
}

/// How a `stats` begins.
pub(crate) enum StatsStart {
    /// Sent to the servers.
    Sent(Statistics),
    /// The reply is known.
    Reply(&'static [u8], Outcome),
}

impl Statistics {
    /// Begins a `stats`. Like memcached, it reads the first word only, and for `detail` the second. A kind that Kennel does not
    /// support receives the reply of a memcached without data, because clients wait for `END` or `OK`.
    pub(crate) fn begin(arguments: &[u8], proxy: &Proxy, client: &Client) -> StatsStart {
        let mut words = arguments.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        let kind = match words.next().unwrap_or(b"") {
            b"" => Kind::General,
            b"settings" => Kind::Settings,
            b"items" => Kind::Items,
            b"slabs" => Kind::Slabs,
            b"sizes" => Kind::Sizes,
            b"proxy" => Kind::Proxy,
            b"kennel" => Kind::Kennel,
            b"reset" => Kind::Reset,
            // The connections of the servers are those of Kennel, not of clients.
            b"conns" | b"extstore" => return StatsStart::Reply(END, Outcome::Ok),
            // Keys are not listed, because Kennel's own would be among them.
            b"cachedump" => {
                let numbers = [words.next(), words.next()].map(|word| word.map(number::u32));
                return match numbers {
                    [Some(Some(_)), Some(Some(_))] => StatsStart::Reply(END, Outcome::Ok),
                    [Some(_), Some(_)] => StatsStart::Reply(BAD_FORMAT, Outcome::ClientError),
                    _ => StatsStart::Reply(BAD_LINE, Outcome::ClientError),
                };
            }
            // There are no counters by prefix: clients could create any number of them.
            b"detail" => {
                return match words.next() {
                    Some(b"on" | b"off") => StatsStart::Reply(b"OK\r\n", Outcome::Ok),
                    Some(b"dump") => StatsStart::Reply(END, Outcome::Ok),
                    _ => StatsStart::Reply(DETAIL_USAGE, Outcome::ClientError),
                };
            }
            _ => return StatsStart::Reply(b"ERROR\r\n", Outcome::Error),
        };
        let line: &[u8] = match kind {
            Kind::General => b"stats\r\n",
            Kind::Settings => b"stats settings\r\n",
            Kind::Items => b"stats items\r\n",
            Kind::Slabs => b"stats slabs\r\n",
            Kind::Sizes => b"stats sizes\r\n",
            Kind::Reset => b"stats reset\r\n",
            Kind::Proxy | Kind::Kennel => {
                return StatsStart::Sent(Statistics { kind, requests: SmallVec::new() });
            }
        };
        let send = |connection: &Rc<Connection>| {
            let id = connection.send(&client.pending, Shape::Stats, |out| out.extend_from_slice(line));
            (id, Rc::clone(connection))
        };
        StatsStart::Sent(Statistics {
            kind,
            requests: proxy.distinct_servers().map(|(_, connection)| send(connection)).collect(),
        })
    }

    pub(crate) fn poll(&mut self, scope: &CallScope<'_>, out: &mut BytesMut) -> Poll<()> {
        let pending = &scope.client.pending;
        if !self.requests.iter().all(|(id, _)| pending.has_arrived(*id)) {
            return Poll::Pending;
        }
        let mut replies = Vec::new();
        let mut missing = Vec::new();
        let mut failed = None;
        let whole: &[u8] = if self.kind == Kind::Reset { b"RESET\r\n" } else { END };
        for (id, connection) in self.requests.drain(..) {
            let failure = match pending.take(id) {
                Some(Reply::Answered { bytes, .. }) if bytes.ends_with(whole) => {
                    replies.push(bytes);
                    continue;
                }
                Some(Reply::Answered { .. } | Reply::Part { .. }) => Failure::Refused,
                Some(Reply::Failed(failure)) => failure,
                Some(Reply::StaleCas) | None => Failure::Down,
            };
            failed = failed.or(Some(failure));
            missing.push(connection.server().label().to_owned());
        }
        let server_info = &scope.proxy.server_info;
        let outcome = match (self.kind, failed) {
            (Kind::Reset, failed) => {
                server_info.reset();
                out.extend_from_slice(failed.map_or(whole, Failure::line));
                if failed.is_none() { Outcome::Ok } else { Outcome::ServerError }
            }
            // Kennel has no lines of its own, and an empty reply would mean an empty pool.
            (Kind::Items | Kind::Slabs | Kind::Sizes | Kind::Settings, Some(failure))
                if replies.is_empty() =>
            {
                out.extend_from_slice(failure.line());
                Outcome::ServerError
            }
            _ => {
                self.write(&replies, &missing, scope.proxy, out);
                Outcome::Ok
            }
        };
        scope.count(NO_RULE, outcome, SeenKey::none);
        Poll::Ready(())
    }

    fn write(&self, replies: &[Bytes], missing: &[String], proxy: &Proxy, out: &mut BytesMut) {
        let server_info = &proxy.server_info;
        let mut pool = MergedStats::default();
        let first = if self.kind == Kind::Settings { 1 } else { replies.len() };
        replies[..first.min(replies.len())].iter().for_each(|reply| pool.add(reply));
        let mut own = match self.kind {
            Kind::General => {
                let mut own = proxy.general();
                own.extend(proxied(&server_info.totals(), proxy));
                own.push(("kennel_version", env!("CARGO_PKG_VERSION").to_owned()));
                own.push(("kennel_servers", (replies.len() + missing.len()).to_string()));
                own.push(("kennel_servers_answering", replies.len().to_string()));
                own
            }
            Kind::Settings => {
                let mut all = MergedStats::default();
                replies.iter().for_each(|reply| all.add(reply));
                pool.lines.retain(|(name, _)| !name.starts_with("ssl_"));
                let mut own = settings(server_info);
                own.extend(all.value("maxbytes").map(|sum| ("maxbytes", sum)));
                own
            }
            Kind::Proxy => {
                let totals = server_info.totals();
                let mut own = by_command(&totals);
                own.extend(proxied(&totals, proxy));
                own
            }
            Kind::Slabs => {
                let classes = pool.lines.iter().filter(|(name, _)| name.ends_with(":chunk_size")).count();
                pool.value("active_slabs")
                    .map(|_| ("active_slabs", classes.to_string()))
                    .into_iter()
                    .collect()
            }
            Kind::Kennel => {
                server_info.metrics.stats().iter().for_each(|(name, value)| line(out, name, value));
                Vec::new()
            }
            Kind::Items | Kind::Sizes | Kind::Reset => Vec::new(),
        };
        if matches!(self.kind, Kind::Items | Kind::Slabs | Kind::Sizes) {
            pool.lines.sort_by_key(|(name, _)| class(name));
        }
        for (name, value) in &pool.lines {
            match own.iter().position(|(owned, _)| owned == name) {
                Some(at) => line(out, name, &own.remove(at).1),
                None => line(out, name, &value.text()),
            }
        }
        own.iter().for_each(|(name, value)| line(out, name, value));
        // `stats items` and `stats sizes` have lines of classes only; exporters refuse others.
        if matches!(self.kind, Kind::General | Kind::Settings | Kind::Slabs) {
            for (number, address) in (1..).zip(missing) {
                line(out, &format!("kennel_missing_{number}"), address);
            }
        }
        out.extend_from_slice(END);
    }
}

impl Proxy {
    /// Kennel's own lines of plain `stats`, in memcached's order.
    fn general(&self) -> Vec<(&'static str, String)> {
        use {Command as C, Outcome as O};
        const HIT: &[Outcome] = &[O::Hit, O::Stale];
        const MISS: &[Outcome] = &[O::Miss, O::MissWon, O::MissHeld];
        const STORE: &[Command] = &[C::Set, C::Add, C::Replace, C::Append, C::Prepend, C::Cas];
        const META: &[Command] =
            &[C::MetaGet, C::MetaSet, C::MetaDelete, C::MetaArith, C::MetaNoop, C::MetaDebug];
        let server_info = &self.server_info;
        let (now, usage, totals) = (self.now(), Usage::read(), server_info.totals());
        let count = |commands: &[Command], outcomes: &[Outcome]| totals.answered(commands, outcomes);
        let get_hits = count(&[C::Get, C::Gets], HIT) + count(&[C::MetaGet], &[O::Hit, O::Stale, O::Ok]);
        let get_misses = count(&[C::Get, C::Gets, C::MetaGet], MISS);
        let touch_hits = count(&[C::Gat, C::Gats], HIT) + count(&[C::Touch], &[O::Touched]);
        let touch_misses = count(&[C::Gat, C::Gats], MISS) + count(&[C::Touch], &[O::NotFound]);
        let stored = [O::Stored, O::FillDropped, O::NotStored, O::Exists, O::NotFound];
        let cmd_set = count(STORE, &stored) + count(&[C::MetaSet], &stored) + count(&[C::MetaSet], &[O::Ok]);
        let delete_hits =
            count(&[C::Delete], &[O::Deleted, O::Bumped]) + count(&[C::MetaDelete], &[O::Ok, O::Deleted]);
        let incr_hits = count(&[C::Incr], &[O::Counted, O::Bumped])
            + count(&[C::MetaArith], &[O::Ok, O::Hit, O::Counted, O::Bumped]);
        let seconds = |micros: u64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        let full = totals.clients >= server_info.max_connections as u64;
        let mut own = vec![
            ("pid", std::process::id().to_string()),
            ("uptime", (now.mono / 1000).to_string()),
            ("time", (now.wall / 1000).to_string()),
            ("version", "1.6.45".to_owned()),
            ("pointer_size", usize::BITS.to_string()),
            ("rusage_user", seconds(usage.user)),
            ("rusage_system", seconds(usage.system)),
        ];
        let numbers = [
            ("max_connections", server_info.max_connections as u64),
            ("curr_connections", totals.clients),
            ("total_connections", totals.clients_accepted),
            ("rejected_connections", totals.clients_refused),
            ("connection_structures", totals.clients),
            ("cmd_get", get_hits + get_misses),
            ("cmd_set", cmd_set),
            ("cmd_flush", count(&[C::FlushAll], &[O::Ok])),
            ("cmd_touch", touch_hits + touch_misses),
            ("cmd_meta", count(META, Outcome::ALL)),
            ("get_hits", get_hits),
            ("get_misses", get_misses),
            ("delete_misses", count(&[C::Delete, C::MetaDelete], &[O::NotFound])),
            ("delete_hits", delete_hits),
            ("incr_misses", count(&[C::Incr, C::MetaArith], &[O::NotFound])),
            ("incr_hits", incr_hits),
            ("decr_misses", count(&[C::Decr], &[O::NotFound])),
            ("decr_hits", count(&[C::Decr], &[O::Counted])),
            ("cas_misses", count(&[C::Cas, C::MetaSet], &[O::NotFound])),
            ("cas_hits", count(&[C::Cas], &[O::Stored, O::FillDropped])),
            ("cas_badval", count(&[C::Cas, C::MetaSet], &[O::Exists])),
            ("touch_hits", touch_hits),
            ("touch_misses", touch_misses),
            ("store_too_large", totals.too_large),
            ("store_no_memory", totals.no_memory),
            ("auth_cmds", totals.passwords),
            ("auth_errors", totals.wrong_passwords),
            ("bytes_read", totals.bytes_read),
            ("bytes_written", totals.bytes_written),
            ("accepting_conns", u64::from(!full)),
            ("listen_disabled_num", 0),
            ("time_in_listen_disabled_us", 0),
            ("threads", server_info.workers as u64),
            ("conn_yields", 0),
        ];
        own.extend(numbers.map(|(name, number)| (name, number.to_string())));
        own
    }
}

/// The lines that memcached's proxy adds to plain `stats`.
fn proxied(totals: &Totals, proxy: &Proxy) -> Vec<(&'static str, String)> {
    use UpstreamOutcome as U;
    let errors = [Outcome::Error, Outcome::ServerError];
    [
        ("proxy_conn_requests", totals.answered(Command::ALL, Outcome::ALL)),
        ("proxy_conn_errors", totals.answered(Command::ALL, &errors)),
        ("proxy_conn_oom", 0),
        ("proxy_req_active", totals.in_flight),
        ("proxy_await_active", totals.waiters),
        ("proxy_backend_total", proxy.distinct_servers().count() as u64),
        ("proxy_backend_marked_bad", totals.servers_down),
        ("proxy_backend_failed", totals.upstream(&[U::Timeout, U::Down, U::Garbage])),
        ("proxy_request_failed_depth", totals.upstream(&[U::Overloaded])),
    ]
    .map(|(name, number)| (name, number.to_string()))
    .to_vec()
}

/// The lines of `stats proxy`: keys by command, because memcached's proxy counts each key of a get.
fn by_command(totals: &Totals) -> Vec<(&'static str, String)> {
    use Command as C;
    let limits = [("active_req_limit", "0".to_owned()), ("buffer_memory_limit", "0".to_owned())];
    let commands = [
        ("cmd_mg", C::MetaGet),
        ("cmd_ms", C::MetaSet),
        ("cmd_md", C::MetaDelete),
        ("cmd_mn", C::MetaNoop),
        ("cmd_ma", C::MetaArith),
        ("cmd_me", C::MetaDebug),
        ("cmd_get", C::Get),
        ("cmd_gat", C::Gat),
        ("cmd_set", C::Set),
        ("cmd_add", C::Add),
        ("cmd_cas", C::Cas),
        ("cmd_gets", C::Gets),
        ("cmd_gats", C::Gats),
        ("cmd_incr", C::Incr),
        ("cmd_decr", C::Decr),
        ("cmd_touch", C::Touch),
        ("cmd_append", C::Append),
        ("cmd_prepend", C::Prepend),
        ("cmd_delete", C::Delete),
        ("cmd_replace", C::Replace),
    ];
    let commands =
        commands.map(|(name, command)| (name, totals.answered(&[command], Outcome::ALL).to_string()));
    limits.into_iter().chain(commands).collect()
}

/// The lines of `stats settings` that Kennel replaces.
fn settings(server_info: &ServerInfo) -> Vec<(&'static str, String)> {
    let null = || "NULL".to_owned();
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    vec![
        ("maxconns", server_info.max_connections.to_string()),
        ("tcpport", server_info.tcp.as_ref().map_or(0, |(_, port)| *port).to_string()),
        ("udpport", "0".to_owned()),
        ("inter", server_info.tcp.as_ref().map_or_else(null, |(host, _)| host.clone())),
        ("verbosity", "0".to_owned()),
        ("domain_socket", server_info.unix.clone().unwrap_or_else(null)),
        ("umask", format!("{:o}", server_info.unix_mode)),
        ("shutdown_command", yes(false)),
        ("num_threads", server_info.workers.to_string()),
        ("detail_enabled", yes(false)),
        ("binding_protocol", "ascii".to_owned()),
        ("auth_enabled_sasl", yes(false)),
        ("auth_enabled_ascii", yes(false)),
        ("maxconns_fast", yes(true)),
        ("flush_enabled", yes(server_info.flush_all)),
        ("dump_enabled", yes(false)),
        ("idle_timeout", "0".to_owned()),
    ]
}

/// Appends a line. Spaces of the value are replaced, so that it is one word.
fn line(out: &mut BytesMut, name: &str, value: &str) {
    out.extend_from_slice(b"STAT ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b" ");
    out.extend(value.bytes().map(|byte| if byte.is_ascii_whitespace() { b'_' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_a_space_is_still_one_word() {
        let mut out = BytesMut::new();
        line(&mut out, "domain_socket", "/run/my app/k.sock");
        assert_eq!(&out[..], b"STAT domain_socket /run/my_app/k.sock\r\n");
    }
}
