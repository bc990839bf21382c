//! `kennel health`: checks whether a sidecar is ready. For container and service checks without curl.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::admin_client::{AdminClient, Failed, Reply};
use crate::config::Location;

/// The longest time from resolving the name to the last byte of the reply.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why a sidecar does not count as ready.
#[derive(Debug)]
pub enum Unhealthy {
    /// It did not reply.
    Failed(Failed),
    /// It replied with another status than 200: the status, and the first line of the body.
    Status(u16, String),
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unhealthy::Failed(failed) => failed.fmt(f),
            Unhealthy::Status(status, body) => write!(f, "/readyz returned {status} {body}"),
        }
    }
}

impl std::error::Error for Unhealthy {}

impl From<Failed> for Unhealthy {
    fn from(failed: Failed) -> Self {
        Unhealthy::Failed(failed)
    }
}

/// Checks the sidecar with the admin address `admin`, which is `host:port`; without it, the sidecar of the configuration file and the
/// environment. Prints "ready" to stdout and returns 0, or prints the reason to stderr and returns 1.
pub fn run(location: &Location, admin: Option<&str>) -> ExitCode {
    let client = match admin {
        Some(admin) => Ok(AdminClient::plain(admin)),
        None => configured(location),
    };
    let why = client.and_then(|client| {
        is_ready(&client, TIMEOUT).map_err(|error| format!("{}: {error}", client.address))
    });
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

/// Sends a request to `/readyz` at the admin address `host:port`.
///
/// # Errors
/// Everything but a reply with status 200 within `limit`.
pub fn ready(admin: &str, limit: Duration) -> Result<(), Unhealthy> {
    is_ready(&AdminClient::plain(admin), limit)
}

fn is_ready(client: &AdminClient, limit: Duration) -> Result<(), Unhealthy> {
    match client.ask("/readyz", limit)? {
        Reply { status: 200, .. } => Ok(()),
        Reply { status, body } => {
            Err(Unhealthy::Status(status, body.lines().next().unwrap_or_default().to_owned()))
        }
    }
}

/// The sidecar of a configuration.
fn configured(location: &Location) -> Result<AdminClient, String> {
    let client = AdminClient::new(location, None)?;
    match client.address.is_empty() {
        true => Err("admin.listen is \"\": there is no admin listener to ask".to_owned()),
        false => Ok(client),
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
        assert_eq!(run(&Location::BuiltIn, Some(&admin)), ExitCode::SUCCESS);
        app.stop();
        assert!(matches!(ready(&admin, TIMEOUT), Err(Unhealthy::Failed(Failed::Io(_)))));
        assert_eq!(run(&Location::BuiltIn, Some(&admin)), ExitCode::FAILURE);
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
            assert_eq!(configured(&Location::Named(path.clone())).unwrap().address, format!("{at}:{port}"));
            assert_eq!(run(&Location::Named(path.clone()), None), ExitCode::SUCCESS);
            app.stop();
            assert_eq!(run(&Location::Named(path.clone()), None), ExitCode::FAILURE);
        }
        std::fs::write(&path, "admin.listen = \"\"").unwrap();
        assert!(configured(&Location::Named(path.clone())).unwrap_err().contains("no admin listener"));
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
            assert!(matches!(result, Err(Unhealthy::Failed(Failed::NotHttp))), "{reply:?}: {result:?}");
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
        assert!(matches!(ready(&address, limit), Err(Unhealthy::Failed(Failed::TimedOut(_)))));
        assert!((limit..limit + Duration::from_secs(1)).contains(&start.elapsed()));
        drop(listener);
    }

    #[test]
    fn a_mistyped_address_is_an_error_and_not_a_panic() {
        for address in ["", "9111", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(matches!(ready(address, TIMEOUT), Err(Unhealthy::Failed(Failed::Io(_)))), "{address}");
        }
    }
}
