//! The notation of durations, sizes, addresses and names. Each error completes a sentence that begins with the key and its
//! value.

use std::path::PathBuf;
use std::time::Duration;

use crate::listener::ListenAddress;
use crate::upstream::Address;

/// The longest path of a Unix socket, in bytes (`sun_path` without its NUL).
const UNIX_PATH_MAX: usize = 107;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The allowed memory limits of an embedded server, in bytes.
const EMBEDDED: std::ops::RangeInclusive<u64> = MIB..=64 * GIB;

const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 4] = [("B", 1), ("KiB", KIB), ("MiB", MIB), ("GiB", GIB)];

/// A whole number and a unit: `250ms`, `5s`, `1m`, `2h`, `30d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match scaled(text, &DURATIONS) {
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err("must be a whole number with a unit (ms, s, m, h, d): \"250ms\", \"5s\"".into()),
    }
}

/// A whole number and a unit: `100B`, `512KiB`, `64MiB`, `1GiB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    scaled(text, &SIZES)
        .ok_or_else(|| "must be a whole number with a unit (B, KiB, MiB, GiB): \"64MiB\"".into())
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (_, scale) = units.iter().find(|(unit, _)| *unit == &text[digits..])?;
    text[..digits].parse::<u64>().ok()?.checked_mul(*scale)
}

/// A duration in configuration notation, in the largest unit that divides it.
pub(crate) fn show_duration(d: Duration) -> String {
    let ms = u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let (unit, scale) = match ms {
        0 => ("s", 1000),
        _ => DURATIONS.into_iter().rfind(|(_, scale)| ms.is_multiple_of(*scale)).unwrap_or(("ms", 1)),
    };
    // Below 10 minutes and 2 days, "60s" and "24h" are more usual for time-outs than "1m" and "1d".
    match unit {
        "m" if ms < 600_000 => format!("{}s", ms / 1000),
        "d" if ms < 172_800_000 => format!("{}h", ms / 3_600_000),
        _ => format!("{}{unit}", ms / scale),
    }
}

/// A size in configuration notation, in the largest unit that divides it.
pub(crate) fn show_size(bytes: u64) -> String {
    let (unit, scale) =
        SIZES.into_iter().rfind(|(_, scale)| bytes.is_multiple_of(*scale)).unwrap_or(("B", 1));
    format!("{}{unit}", bytes / scale)
}

/// `host:port` of a listener. The host is an IPv4 address, an IPv6 address in brackets or a name. With port 0 the system
/// chooses a free port.
pub(super) fn listen_address(text: &str) -> Result<ListenAddress, String> {
    let (host, port) = host_port(text, "must be host:port, as in \"127.0.0.1:11211\"")?;
    let port = port.parse().map_err(|_| format!("has the invalid port {port:?}: must be 0 to 65535"))?;
    Ok(ListenAddress { host, port })
}

/// A server's address: `host:port`, `unix:/path` or `embedded:64MiB`.
pub(super) fn server_address(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path(path).map(Address::Unix);
    }
    if let Some(limit) = text.strip_prefix("embedded:") {
        let limit =
            size(limit).map_err(|what| format!("has an invalid size after \"embedded:\", which {what}"))?;
        return match EMBEDDED.contains(&limit) {
            true => Ok(Address::Embedded { limit }),
            false => Err("must be between embedded:1MiB and embedded:64GiB".into()),
        };
    }
    if text.starts_with('/') {
        return Err(format!("is a path: write \"unix:{text}\""));
    }
    let (host, port) = host_port(text, "has no port: add :11211")?;
    match port.parse() {
        Ok(port) if port > 0 => Ok(Address::Tcp { host, port }),
        _ => Err(format!("has the invalid port {port:?}: must be 1 to 65535, usually 11211")),
    }
}

fn host_port<'a>(text: &'a str, no_port: &str) -> Result<(String, &'a str), String> {
    if let Some(inside) = text.strip_prefix('[') {
        let Some((host, rest)) = inside.split_once(']') else {
            return Err("has an unclosed [: write \"[::1]:11211\"".into());
        };
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("has {host:?} in brackets, which is not an IPv6 address"));
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host.to_owned(), port)),
            None => Err(no_port.to_owned()),
        };
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| no_port.to_owned())?;
    if text.parse::<std::net::Ipv6Addr>().is_ok() || host.contains(':') {
        return Err("has more than one colon: write an IPv6 address in brackets, \"[::1]:11211\"".into());
    }
    if host.is_empty() {
        return Err(
            "has no host: use 0.0.0.0 or [::] for all addresses, 127.0.0.1 for this machine only".into()
        );
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match host.chars().find(|c| !legal(*c)) {
        Some(c) => {
            Err(format!("has the invalid character {c:?} in its host: use an IP address or a host name"))
        }
        None if host.len() > 253 => Err("has a host longer than 253 bytes, the limit of DNS".into()),
        None => Ok((host.to_owned(), port)),
    }
}

/// The path of a Unix socket.
pub(super) fn unix_path(text: &str) -> Result<PathBuf, String> {
    if text.starts_with("unix:") {
        Err("must be the path alone, without \"unix:\"".into())
    } else if !text.starts_with('/') {
        Err("must be an absolute path".into())
    } else if text.ends_with('/') || text.contains('\0') {
        Err("must be the path of a socket".into())
    } else if text.len() > UNIX_PATH_MAX {
        Err(format!("must be at most {UNIX_PATH_MAX} bytes, not {}", text.len()))
    } else {
        Ok(text.into())
    }
}

/// A permission mode in octal digits: `0660`.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if digits && mode <= 0o777 => Ok(mode),
        _ => Err("must be 3 or 4 octal digits, at most \"0777\": \"0660\"".into()),
    }
}

/// The name of a pool or a rule.
pub(super) fn name(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    match (1..=64).contains(&text.len()) && text.chars().all(legal) {
        true => Ok(text.to_owned()),
        false => Err("must be 1 to 64 of the characters A-Z a-z 0-9 _ . -".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        for (text, ms) in [("0ms", 0), ("250ms", 250), ("5s", 5000), ("1m", 60_000), ("2h", 7_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
        }
        for text in ["", "5", "s", "1.5s", "-1s", "5 s", "5S", "5sec", "99999999999999999d", "5s "] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_whole_numbers_with_a_unit() {
        for (text, n) in [("100B", 100), ("512KiB", 524_288), ("64MiB", 67_108_864), ("1GiB", 1 << 30)] {
            assert_eq!(size(text), Ok(n));
            assert_eq!(show_size(n), text);
        }
        for text in ["", "64", "64MB", "64mib", "17179869184GiB"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_formatted_duration_parses_to_itself() {
        for ms in [0, 1, 250, 1500, 5000, 60_000, 90_000, 600_000, 3_600_000, 86_400_000, 2_592_000_000] {
            let d = Duration::from_millis(ms);
            assert_eq!(duration(&show_duration(d)), Ok(d));
        }
        assert_eq!(show_duration(Duration::from_secs(60)), "60s");
    }

    #[test]
    fn address_errors_name_what_is_missing() {
        let tcp = |host: &str, port| Ok(Address::Tcp { host: host.into(), port });
        assert_eq!(server_address("cache-1.internal:11211"), tcp("cache-1.internal", 11211));
        assert_eq!(server_address("[::1]:1"), tcp("::1", 1));
        assert_eq!(server_address("unix:/run/m.sock"), Ok(Address::Unix("/run/m.sock".into())));
        assert_eq!(server_address("embedded:64MiB"), Ok(Address::Embedded { limit: 64 << 20 }));
        for (text, expected) in [
            ("10.0.0.1", "add :11211"),
            ("[::1]", "add :11211"),
            ("::1", "brackets"),
            ("::1:11211", "brackets"),
            ("[::1:11211", "unclosed"),
            ("[x]:1", "not an IPv6"),
            ("a:0", "1 to 65535"),
            ("a:65536", "1 to 65535"),
            (":11211", "no host"),
            ("a b:1", "' '"),
            ("/run/m.sock", "unix:/run/m.sock"),
            ("unix:m.sock", "absolute"),
            ("embedded:64MB", "embedded:"),
            ("embedded:1KiB", "1MiB"),
            ("embedded:65GiB", "64GiB"),
        ] {
            let error = server_address(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert_eq!(listen_address("127.0.0.1:0").map(|a| a.port), Ok(0));
        assert!(listen_address("127.0.0.1").is_err());
    }

    #[test]
    fn a_unix_path_ends_at_107_bytes() {
        let path = |n: usize| format!("/{}", "p".repeat(n - 1));
        assert!(unix_path(&path(107)).is_ok());
        assert!(unix_path(&path(108)).unwrap_err().contains("107"));
    }

    #[test]
    fn a_mode_is_octal() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("600"), Ok(0o600));
        for text in ["", "66", "0860", "1777", "+660", "00660"] {
            assert!(mode(text).is_err(), "{text:?}");
        }
    }
}
