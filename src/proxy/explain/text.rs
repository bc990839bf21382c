//! The report as text, to be read, and pasted into a ticket.

use std::fmt::{self, Display, Write};

use super::copy_report::{CopyReport, CopyState};
use super::describe;
use super::report::{
    Class, ElsewhereReport, Explanation, ItemReport, ItemState, ItemsReport, LocalReport, LockReport,
    OtherList, PlaceReport, TagReport, TagServerReport, TagSource, TagStatus, ViewReport,
};

/// The width of the column of names.
const NAME: usize = 10;

impl Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.key.text, self.summary)?;
        let mut lines = Lines(f);
        self.key_lines(&mut lines)?;
        self.rule_lines(&mut lines)?;
        if let Some(place) = &self.place {
            lines.line("place", &show_place(place))?;
        }
        if let Some(item) = &self.item {
            item_lines("item", item, &mut lines)?;
        }
        if let Some(items) = self.structure.as_ref().and_then(|structure| structure.items.as_ref()) {
            lines.line("items", &show_items(items))?;
        }
        for (at, copy) in self.structure.iter().flat_map(|structure| &structure.copies).enumerate() {
            lines.line(if at == 0 { "copies" } else { "" }, &show_copy(copy))?;
        }
        if let (Some(lock), Some(item)) = (&self.lock, &self.item) {
            lines.line("lock", &show_lock(lock, item))?;
        }
        for tag in &self.tags {
            lines.line("tag", &show_tag(tag))?;
        }
        if let Some(elsewhere) = &self.elsewhere {
            elsewhere_lines(elsewhere, &mut lines)?;
        }
        for found in &self.found {
            let (pool, server) = (&found.pool, &found.server);
            lines.line("found", &format!("on {server} of pool {pool}"))?;
            item_lines("", &found.item, &mut lines)?;
            if let Some(lock) = &found.lock {
                lines.line("", &show_lock(lock, &found.item))?;
            }
        }
        if let (Some(local), Class::Guarded) = (&self.local, self.class) {
            local_lines(local, &mut lines)?;
        }
        for note in &self.notes {
            lines.line("note", note)?;
        }
        lines.line("asked", &format!("{}; {}; nothing was changed", self.at, describe::asked_by(self)))
    }
}

impl Explanation {
    fn key_lines(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let class = match self.class {
            Class::Guarded => "guarded",
            Class::Raw => "raw",
            Class::Structure => self.structure.as_ref().map_or("structure", |structure| structure.kind),
            Class::Tag => "the key of a tag",
            Class::Reserved => "reserved: clients must not use it",
        };
        lines.line("key", &format!("{} bytes, base64 {}, {class}", self.key.bytes, self.key.base64))
    }

    fn rule_lines(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        match &self.rule {
            Some(rule) => {
                let mut text = format!("{} (rules[{}]), match {:?}", rule.name, rule.index, rule.pattern);
                for capture in &rule.captures {
                    // Writing to a String cannot fail.
                    let _ = write!(text, ", {{{}}} = {}", capture.name, capture.value);
                }
                lines.line("rule", &text)?;
            }
            None if self.class == Class::Tag => return Ok(()),
            None => lines.line("rule", "none matches")?,
        }
        for rule in &self.earlier_rules.last {
            lines.line(
                "",
                &format!("not {} (rules[{}]): {:?} does not match", rule.name, rule.index, rule.pattern),
            )?;
        }
        match self.earlier_rules.count - self.earlier_rules.last.len() {
            0 => Ok(()),
            more => lines.line("", &format!("nor {more} rules before these")),
        }
    }
}

/// Writes lines with a name each.
struct Lines<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Lines<'_, '_> {
    fn line(&mut self, name: &str, text: &str) -> fmt::Result {
        writeln!(self.0, "  {name:NAME$}{text}")
    }
}

fn show_items(items: &ItemsReport) -> String {
    let ItemsReport { all, found, memory_bytes, gone_in_s, failure } = items;
    let mut text = format!("{found} of {all} are there, {memory_bytes} bytes of memory");
    // Writing to a String cannot fail.
    let _ = gone_in_s.map(|seconds| write!(text, ", the last is gone in {seconds} s"));
    let _ = failure.as_ref().map(|why| write!(text, "; not all are known: {why}"));
    text
}

fn show_copy(copy: &CopyReport) -> String {
    let CopyReport { server, standby, fence, state, failure, life, change, ends, value_bytes, flags } = copy;
    let standby = if *standby { ", a standby" } else { "" };
    let fence = fence.as_ref().map_or(", no valid view".to_owned(), |fence| format!(", fence {fence}"));
    let what = match (state, life, change) {
        (CopyState::Unknown, ..) => failure.clone().unwrap_or_else(|| "the server did not tell".to_owned()),
        (CopyState::Unreadable, ..) => "an item that is no copy".to_owned(),
        (_, Some(life), Some(change)) => format!("change {change} of life {life}"),
        _ => "none".to_owned(),
    };
    let value = match (value_bytes, flags) {
        (Some(bytes), Some(flags)) => format!(", value {bytes} bytes, flags {flags}"),
        _ if *state == CopyState::Empty => ", without a value".to_owned(),
        _ => String::new(),
    };
    let ends = ends.as_ref().map_or(String::new(), |ends| format!(", until {ends}"));
    format!("{server}{standby}{fence}: {what}{value}{ends}")
}

fn show_place(place: &PlaceReport) -> String {
    let PlaceReport { pool, server, home, standby, view, fence } = place;
    let fence = fence.as_ref().map_or(String::new(), |fence| format!(", fence {fence}"));
    let standby = standby.as_deref().unwrap_or("-");
    match view {
        ViewReport::Fixed => format!("{server} of pool {pool}, which the key does not leave"),
        ViewReport::Own => format!("{server} of pool {pool}, valid view{fence}; its standby is {standby}"),
        ViewReport::Standby => {
            format!("{server} of pool {pool}, the standby of {home}, which is away; valid view{fence}")
        }
        ViewReport::None => format!("{home} of pool {pool} or its standby {standby}: no valid view"),
    }
}

fn item_lines(name: &str, item: &ItemReport, lines: &mut Lines<'_, '_>) -> fmt::Result {
    let state = match item.state {
        ItemState::Unknown => {
            return lines.line(name, item.failure.as_deref().unwrap_or("the server did not tell"));
        }
        ItemState::Nothing => return lines.line(name, "none"),
        ItemState::Fresh if item.header.is_none() => "plain",
        ItemState::Fresh => "fresh",
        ItemState::Stale => "stale",
        ItemState::Hidden => "not served",
        ItemState::Stub => "stub",
        ItemState::FreeStub => "free stub",
        ItemState::Present => "stored",
    };
    let mut parts = vec![state.to_owned()];
    if let Some(since) = &item.stale_since {
        parts.push(format!("stale since {since}"));
    }
    if let (ItemState::Fresh, Some(seconds)) = (item.state, item.fresh_for_s) {
        parts.push(format!("fresh for {seconds} s"));
    }
    parts.push(match item.ttl_s {
        Some(seconds) => format!("gone in {seconds} s"),
        None => "never gone by itself".to_owned(),
    });
    lines.line(name, &parts.join(", "))?;
    for why in &item.why {
        lines.line("", why)?;
    }
    if let Some(stub) = &item.stub {
        let renewed = stub.renewed_s.map_or(String::new(), |seconds| format!(", renewed {seconds} s ago"));
        let built = match stub.building_for_ms {
            // Neither has it been renewed.
            0 => "the build has just begun, or has not been renewed yet".to_owned(),
            ms => format!("built for {ms} ms at least{renewed}"),
        };
        lines.line("", &built)?;
    }
    let mut parts = Vec::new();
    if let (Some(value), Some(stored)) = (item.value_bytes, item.stored_bytes) {
        parts.push(format!("value {value} bytes, stored {stored}"));
    }
    if let Some(memory) = item.memory_bytes {
        parts.push(format!("{memory} bytes of memory"));
    }
    if let Some(flags) = item.flags {
        parts.push(format!("flags {flags}"));
    }
    if let Some(cas) = item.cas {
        parts.push(format!("CAS {cas}"));
    }
    if let (Some(seconds), Some(fetched)) = (item.last_access_s, item.fetched) {
        let fetched = if fetched { "read since it was stored" } else { "not read since it was stored" };
        parts.push(format!("last used {seconds} s ago, {fetched}"));
    }
    lines.line("", &parts.join(", "))?;
    let Some(header) = &item.header else { return Ok(()) };
    let began = header.build_began.as_deref().unwrap_or("unknown");
    let fence = match (&header.fence, header.fence_counts) {
        (None, true) => String::new(),
        (None, false) => ", no fence, which does not count here".to_owned(),
        (Some(fence), true) => format!(", fence {fence}"),
        (Some(fence), false) => format!(", fence {fence}, which does not count here"),
    };
    let (bytes, stale_for, took) = (header.bytes, header.stale_for_s, header.build_took_ms);
    lines.line(
        "",
        &format!(
            "header {bytes} bytes: stale_for {stale_for} s, build began {began} and took {took} ms{fence}"
        ),
    )
}

fn show_lock(lock: &LockReport, item: &ItemReport) -> String {
    let ends = lock.ttl_s.map_or(String::new(), |seconds| format!(", ends in {seconds} s"));
    match (lock.held, &lock.holder) {
        (None, _) => lock.failure.clone().unwrap_or_else(|| "the server did not tell".to_owned()),
        (Some(false), _) if item.state == ItemState::Stub => {
            "none: the stub is the right to build".to_owned()
        }
        (Some(false), _) => "free".to_owned(),
        (Some(true), None) => format!("held{ends}; {}", lock.failure.as_deref().unwrap_or("holder unknown")),
        (Some(true), Some(holder)) => {
            let this = if lock.holder_is_this == Some(true) { " (this one)" } else { "" };
            let since = lock.since.as_deref().unwrap_or("unknown");
            let renewed =
                lock.renewed_s.map_or(String::new(), |seconds| format!(", renewed {seconds} s ago"));
            let outdated = if lock.outdated { "; its build is out of date" } else { "" };
            format!("held by sidecar {holder}{this} since {since}{renewed}{ends}{outdated}")
        }
    }
}

fn show_tag(tag: &TagReport) -> String {
    let from = match tag.from {
        TagSource::Rule | TagSource::Key => "",
        TagSource::Value => " (came with the value)",
    };
    let status = match tag.status {
        TagStatus::Unchanged => "unchanged since the value was built",
        TagStatus::Moved => "MOVED since the value was built",
        TagStatus::Missing => "has no version: lost, or never used",
        TagStatus::NotSealed => "NOT in the value, although its rule names it",
        TagStatus::Unread => "its version cannot be read",
        TagStatus::NoValue => "no value was built with it",
    };
    let status = if tag.from == TagSource::Key { String::new() } else { format!(": {status}") };
    let version = tag.version.as_ref().map_or(String::new(), |version| {
        let moved = version.moved.as_deref().unwrap_or("an unknown time");
        format!("; version {}, moved {moved}", version.ms)
    });
    let sealed = match (&tag.sealed, tag.status) {
        (Some(sealed), TagStatus::Moved) => format!("; value has version {}", sealed.ms),
        _ => String::new(),
    };
    let servers = show_servers(&tag.servers);
    let elsewhere = match tag.elsewhere.is_empty() {
        true => String::new(),
        false => format!("; in the other list {}", show_servers(&tag.elsewhere)),
    };
    format!("{}{from}{status}{version}{sealed}; {servers}{elsewhere}", tag.name)
}

fn show_servers(servers: &[TagServerReport]) -> String {
    let show = |report: &TagServerReport| {
        let standby = if report.standby { " (standby)" } else { "" };
        let what = match (&report.failure, report.ms) {
            (Some(failure), _) => format!(": {failure}"),
            (None, None) => " without a version".to_owned(),
            (None, Some(_)) => String::new(),
        };
        format!("{}{standby}{what}", report.server)
    };
    format!("on {}", servers.iter().map(show).collect::<Vec<_>>().join(" and "))
}

fn elsewhere_lines(elsewhere: &ElsewhereReport, lines: &mut Lines<'_, '_>) -> fmt::Result {
    let name = match elsewhere.list {
        OtherList::Next => "next",
        OtherList::Previous => "previous",
    };
    if elsewhere.same_server {
        return lines.line(name, &format!("{}, the same server", elsewhere.place.server));
    }
    lines.line(name, &show_place(&elsewhere.place))?;
    match &elsewhere.item {
        Some(item) => item_lines("", item, lines),
        None => Ok(()),
    }
}

fn local_lines(local: &LocalReport, lines: &mut Lines<'_, '_>) -> fmt::Result {
    match local.leases.is_empty() {
        true => lines.line("leases", "no client of this sidecar builds it")?,
        false => {
            for lease in &local.leases {
                let since = lease.since.as_deref().unwrap_or("unknown");
                let more = match (lease.orphan, lease.renewing) {
                    (true, _) => ", its client has left",
                    (_, true) => ", being renewed",
                    _ => "",
                };
                let (connection, ends) = (lease.connection, lease.ends_in_ms);
                lines.line(
                    "lease",
                    &format!("connection {connection}, since {since}, ends in {ends} ms{more}"),
                )?;
            }
        }
    }
    let mut waiting =
        format!("{} waiting here, {} misses whose set still counts", local.waiters, local.misses);
    if local.no_wait_ms > 0 {
        let (unfilled, ms) = (local.unfilled, local.no_wait_ms);
        let _ = write!(waiting, "; claimed {unfilled} times and not filled, so nobody waits for {ms} ms");
    }
    lines.line("waiters", &waiting)?;
    let near = match local.near.is_empty() {
        true => "not kept".to_owned(),
        false => {
            let show = |near: &super::NearReport| format!("worker {} for {} ms", near.worker, near.for_ms);
            local.near.iter().map(show).collect::<Vec<_>>().join(", ")
        }
    };
    lines.line("near", &near)?;
    let Some(outage) = &local.outage else { return lines.line("outage", "no") };
    let kept = match (outage.kept_ms, outage.kept_bytes) {
        (Some(ms), Some(bytes)) => format!(", a value of {bytes} bytes is kept for {ms} ms"),
        _ => String::new(),
    };
    let (builders, waiters) = (outage.builders, outage.waiters);
    lines
        .line("outage", &format!("its server gave no answer: {builders} build it here, {waiters} wait{kept}"))
}
