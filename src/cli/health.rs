//! `kennel health`: checks whether a sidecar is ready. For container and service checks without curl.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::time::timeout;

use crate::config;
use crate::listener::ListenAddress;

/// The longest time from resolving the name to the last byte of the reply.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest reply that is read, in bytes.
const MAX_REPLY: u64 = 4096;

/// Why a sidecar does not count as ready.
#[derive(Debug)]
pub enum Unhealthy {
    /// The connection failed.
    Io(io::Error),
    /// It did not reply within this time.
    TimedOut(Duration),
    /// It replied with another status than 200: the status, and the first line of the body.
    Status(u16, String),
    /// The reply is not HTTP.
    NotHttp,
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unhealthy::Io(error) => error.fmt(f),
            Unhealthy::TimedOut(limit) => write!(f, "no reply within {limit:?}"),
            Unhealthy::Status(status, body) => write!(f, "/readyz returned {status} {body}"),
            Unhealthy::NotHttp => f.write_str("the reply is not HTTP: is this the admin address?"),
        }
    }
}

impl std::error::Error for Unhealthy {}

impl From<io::Error> for Unhealthy {
    fn from(error: io::Error) -> Self {
        Unhealthy::Io(error)
    }
}

/// Checks the sidecar with the admin address `admin`, which is `host:port`; without it, the sidecar of the configuration file at
/// `path` and the environment. Prints "ready" to stdout and returns 0, or prints the reason to stderr and returns 1.
pub fn run(path: Option<&Path>, admin: Option<&str>) -> ExitCode {
    let result = match admin {
        Some(admin) => Ok(admin.to_owned()),
        None => configured(path),
    };
    let why = match result {
        Ok(admin) => ready(&admin, TIMEOUT).map_err(|error| format!("{admin}: {error}")),
        Err(error) => Err(error),
    };
    match why {
        Ok(()) => {
            // The exit code matters even if stdout is closed.
            let _ = writeln!(io::stdout(), "ready");
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "kennel health: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Where to connect to the admin listener of a configuration.
fn configured(path: Option<&Path>) -> Result<String, String> {
    match config::admin_address(path, config::environment())? {
        Some(listen) => Ok(reachable(listen).to_string()),
        None => Err("admin.listen is \"\": there is no admin listener to ask".to_owned()),
    }
}

/// An address that listens on all interfaces is reached over loopback.
fn reachable(mut listen: ListenAddress) -> ListenAddress {
    match &*listen.host {
        "0.0.0.0" => listen.host = "127.0.0.1".to_owned(),
        "::" => listen.host = "::1".to_owned(),
        _ => {}
    }
    listen
}

/// Sends a request to `/readyz` at the admin address `host:port`.
///
/// # Errors
/// Everything but a reply with status 200 within `limit`.
pub fn ready(admin: &str, limit: Duration) -> Result<(), Unhealthy> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let reply = runtime.block_on(async { timeout(limit, readyz(admin)).await });
    // Do not wait for a host name that is still being resolved.
    runtime.shutdown_background();
    match reply {
        Ok(reply) => check(&reply?),
        Err(_) => Err(Unhealthy::TimedOut(limit)),
    }
}

async fn readyz(admin: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = Vec::new();
    stream.take(MAX_REPLY).read_to_end(&mut reply).await?;
    Ok(reply)
}

fn check(reply: &[u8]) -> Result<(), Unhealthy> {
    let text = String::from_utf8_lossy(reply);
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    match status {
        Some(200) => Ok(()),
        Some(status) => {
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            Err(Unhealthy::Status(status, body.lines().next().unwrap_or_default().to_owned()))
        }
        None => Err(Unhealthy::NotHttp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use tokio::time::Instant;

    use crate::app::App;
    use crate::config;

    fn free() -> (TcpListener, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// The result for a server that sends this reply and closes.
    fn result_of(reply: &'static str) -> Result<(), Unhealthy> {
        let (listener, address) = free();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let n = stream.read(&mut request).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        let result = ready(&address, TIMEOUT);
        assert!(server.join().unwrap().starts_with("GET /readyz HTTP/1.1\r\n"));
        result
    }

    #[test]
    fn a_running_sidecar_is_ready_and_a_stopped_one_is_not() {
        let toml = "listen.tcp = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\n\
                    pools.main.servers = [\"embedded:1MiB\"]\n";
        let app = App::start(config::read("test.toml", toml, []).unwrap()).unwrap();
        let admin = app.admin().unwrap().to_string();
        ready(&admin, TIMEOUT).unwrap();
        assert_eq!(run(None, Some(&admin)), ExitCode::SUCCESS);
        app.stop();
        assert!(matches!(ready(&admin, TIMEOUT), Err(Unhealthy::Io(_))));
        assert_eq!(run(None, Some(&admin)), ExitCode::FAILURE);
    }

    #[test]
    fn the_sidecar_of_a_configuration_is_found_even_if_it_listens_on_all_interfaces() {
        let path = std::env::temp_dir().join(format!("kennel-health-{}.toml", std::process::id()));
        for (host, at) in [("0.0.0.0", Ipv4Addr::LOCALHOST.to_string()), ("[::]", "[::1]".to_owned())] {
            let text = |port| {
                format!(
                    "listen.tcp = [\"127.0.0.1:0\"]\nadmin.listen = \"{host}:{port}\"\n\
                     pools.main.servers = [\"embedded:1MiB\"]\n"
                )
            };
            let app = App::start(config::read("test.toml", &text(0), []).unwrap()).unwrap();
            let port = app.admin().unwrap().port();
            std::fs::write(&path, text(port)).unwrap();
            assert_eq!(configured(Some(&path)), Ok(format!("{at}:{port}")));
            assert_eq!(run(Some(&path), None), ExitCode::SUCCESS);
            app.stop();
            assert_eq!(run(Some(&path), None), ExitCode::FAILURE);
        }
        std::fs::write(&path, "admin.listen = \"\"").unwrap();
        assert!(configured(Some(&path)).unwrap_err().contains("no admin listener"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_draining_sidecar_is_reported_in_one_line() {
        let why =
            result_of("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 8\r\n\r\ndraining").unwrap_err();
        assert_eq!(why.to_string(), "/readyz returned 503 draining");
    }

    #[test]
    fn a_server_that_is_no_sidecar_is_not_ready() {
        for reply in ["ERROR\r\n", "", "HTTP/1.1 ", "VERSION 1.6.18\r\n"] {
            let result = result_of(reply);
            assert!(matches!(result, Err(Unhealthy::NotHttp)), "{reply:?}: {result:?}");
        }
        assert!(matches!(
            result_of("HTTP/1.1 404 Not Found\r\n\r\nnot found: try /"),
            Err(Unhealthy::Status(404, _))
        ));
    }

    #[test]
    fn a_server_that_does_not_reply_times_out() {
        let (listener, address) = free();
        let start = Instant::now();
        let limit = Duration::from_millis(200);
        assert!(matches!(ready(&address, limit), Err(Unhealthy::TimedOut(_))));
        assert!((limit..limit + Duration::from_secs(1)).contains(&start.elapsed()));
        drop(listener);
    }

    #[test]
    fn a_mistyped_address_is_an_error_and_not_a_panic() {
        for address in ["", "9111", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(matches!(ready(address, TIMEOUT), Err(Unhealthy::Io(_))), "{address}");
        }
    }
}
