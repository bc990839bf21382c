//! `kennel health`: is the sidecar beside me ready? For container and service checks, where there is no curl.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::time::timeout;

/// The admin's address when the configuration does not say.
pub const DEFAULT_ADMIN: &str = "127.0.0.1:9111";

/// From looking the name up to the last byte of the answer.
const LIMIT: Duration = Duration::from_secs(2);
/// No longer answer is read; `/readyz` says a word.
const MAX_ANSWER: u64 = 4096;

/// Why a sidecar is not ready, on one line.
#[derive(Debug)]
pub enum Unhealthy {
    /// It could not be asked.
    Io(io::Error),
    /// It did not answer in this time.
    Slow(Duration),
    /// It answered something else: the status, and the first line of the body.
    Says(u16, String),
    /// Whatever answers there does not speak HTTP.
    NotHttp,
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unhealthy::Io(error) => error.fmt(f),
            Unhealthy::Slow(limit) => write!(f, "no answer within {limit:?}"),
            Unhealthy::Says(status, body) => write!(f, "/readyz says {status} {body}"),
            Unhealthy::NotHttp => f.write_str("the answer is not HTTP: is this the admin's address?"),
        }
    }
}

impl std::error::Error for Unhealthy {}

impl From<io::Error> for Unhealthy {
    fn from(error: io::Error) -> Self {
        Unhealthy::Io(error)
    }
}

/// Asks the admin at `host:port` and says "ready" on stdout, with exit code 0; or on stderr why not, with exit code 1.
pub fn run(admin: &str) -> ExitCode {
    match ask(admin, LIMIT) {
        Ok(()) => {
            // The exit code is the answer, whether or not anybody reads.
            let _ = writeln!(io::stdout(), "ready");
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "kennel health: {admin}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the admin at `host:port` says within `limit` that clients are welcome.
///
/// # Errors
/// Anything but a 200.
pub fn ask(admin: &str, limit: Duration) -> Result<(), Unhealthy> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async { timeout(limit, readyz(admin)).await });
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    match answer {
        Ok(answer) => judge(&answer?),
        Err(_) => Err(Unhealthy::Slow(limit)),
    }
}

async fn readyz(admin: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn judge(answer: &[u8]) -> Result<(), Unhealthy> {
    let text = String::from_utf8_lossy(answer);
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    match status {
        Some(200) => Ok(()),
        Some(status) => {
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            Err(Unhealthy::Says(status, body.lines().next().unwrap_or_default().to_owned()))
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
    use crate::config::Config;

    fn free() -> (TcpListener, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// What `ask` says of a server that gives this answer and closes.
    fn of(answer: &'static str) -> Result<(), Unhealthy> {
        let (listener, address) = free();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let n = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        let said = ask(&address, LIMIT);
        assert!(server.join().unwrap().starts_with("GET /readyz HTTP/1.1\r\n"));
        said
    }

    #[test]
    fn a_running_sidecar_is_ready_and_a_stopped_one_is_not() {
        let toml = "listen.tcp = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\n\
                    pools.main.servers = [\"embedded:1MiB\"]\n";
        let app = App::start(&Config::read("test.toml", toml, []).unwrap()).unwrap();
        let admin = app.admin().unwrap().to_string();
        ask(&admin, LIMIT).unwrap();
        assert_eq!(run(&admin), ExitCode::SUCCESS);
        app.stop();
        assert!(matches!(ask(&admin, LIMIT), Err(Unhealthy::Io(_))));
        assert_eq!(run(&admin), ExitCode::FAILURE);
    }

    #[test]
    fn a_sidecar_that_drains_says_so_in_one_line() {
        let why = of("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 8\r\n\r\ndraining").unwrap_err();
        assert_eq!(why.to_string(), "/readyz says 503 draining");
    }

    #[test]
    fn whatever_is_not_an_admin_is_not_ready() {
        for answer in ["ERROR\r\n", "", "HTTP/1.1 ", "VERSION 1.6.18\r\n"] {
            let said = of(answer);
            assert!(matches!(said, Err(Unhealthy::NotHttp)), "{answer:?}: {said:?}");
        }
        assert!(matches!(of("HTTP/1.1 404 Not Found\r\n\r\nnot found: try /"), Err(Unhealthy::Says(404, _))));
    }

    #[test]
    fn a_server_that_never_answers_is_given_up() {
        let (listener, address) = free();
        let start = Instant::now();
        let limit = Duration::from_millis(200);
        assert!(matches!(ask(&address, limit), Err(Unhealthy::Slow(_))));
        assert!((limit..limit + Duration::from_secs(1)).contains(&start.elapsed()));
        drop(listener);
    }

    #[test]
    fn a_mistyped_address_is_an_error_and_not_a_panic() {
        for address in ["", "9111", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(matches!(ask(address, LIMIT), Err(Unhealthy::Io(_))), "{address}");
        }
    }
}
