//! A client's connection, and a program that sends random commands and records them.

use std::rc::Rc;
use std::time::Duration;

use kennel::random::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::linearizability::{Command, Invocation, Response};
use super::net::End;
use super::world::World;

/// How long a client waits for a reply. Above every wait of the rules.
const PATIENCE: Duration = Duration::from_secs(10);

/// One connection to a sidecar.
pub struct Connection {
    stream: End,
    buffer: Vec<u8>,
    number: usize,
}

impl Connection {
    pub fn open(world: &World, sidecar: usize, name: &str) -> Connection {
        Connection { stream: world.client(sidecar, name), buffer: Vec::new(), number: world.number() }
    }

    /// Sends bytes and reads the reply: up to the line that ends it. `None`: there was none in time, or the connection was closed.
    pub async fn exchange(&mut self, command: &str) -> Option<String> {
        let retrieves = command.starts_with("get") || command.starts_with("gat");
        let reading = async {
            self.stream.write_all(command.as_bytes()).await.ok()?;
            loop {
                if let Some(reply) = self.complete(retrieves) {
                    return Some(reply);
                }
                match self.stream.read_buf(&mut self.buffer).await {
                    Ok(length) if length > 0 => {}
                    _ => return None,
                }
            }
        };
        timeout(PATIENCE, reading).await.ok().flatten()
    }

    /// Takes a complete reply out of the buffer. Values are short and have no line ends.
    fn complete(&mut self, retrieves: bool) -> Option<String> {
        let text = std::str::from_utf8(&self.buffer).ok()?;
        let first = text.find("\r\n")? + 2;
        let end = if retrieves && text.starts_with("VALUE ") { text.find("END\r\n")? + 5 } else { first };
        let reply = text[..end].to_owned();
        self.buffer.drain(..end);
        Some(reply)
    }
}

/// A command of the program, as text and as what it means.
fn command(random: &mut Random, key: &str, seen: &mut Option<u64>, value: String) -> (String, Command) {
    let store = |word: &str, value: &str| format!("{word} {key} 0 0 {}\r\n{value}\r\n", value.len());
    match random.below(20) {
        0..5 => (format!("get {key}\r\n"), Command::Get),
        5..8 => (format!("gets {key}\r\n"), Command::Get),
        8..11 => (store("set", &value), Command::Set(value)),
        11 => (store("add", &value), Command::Add(value)),
        12 => (store("replace", &value), Command::Replace(value)),
        13 => (store("append", &value), Command::Append(value)),
        14 => (store("prepend", &value), Command::Prepend(value)),
        // A touch of a value with two copies is a change, which has a new CAS.
        15 if !key.starts_with("copied") => (format!("touch {key} 0\r\n"), Command::Touch),
        16..18 => match seen.take() {
            Some(unique) => (
                format!("cas {key} 0 0 {} {unique}\r\n{value}\r\n", value.len()),
                Command::Cas { unique, value },
            ),
            None => (format!("gets {key}\r\n"), Command::Get),
        },
        _ => (format!("delete {key}\r\n"), Command::Delete),
    }
}

/// What the reply means.
fn response(reply: Option<&str>) -> Response {
    let Some(reply) = reply else { return Response::Unknown };
    match reply.trim_end() {
        "END" => Response::Miss,
        "STORED" => Response::Stored,
        "NOT_STORED" => Response::NotStored,
        "EXISTS" => Response::Exists,
        "NOT_FOUND" => Response::NotFound,
        "DELETED" => Response::Deleted,
        "TOUCHED" => Response::Touched,
        text if text.starts_with("SERVER_ERROR") => Response::Unknown,
        text if text.starts_with("VALUE ") => {
            let mut lines = text.split("\r\n");
            let (header, value) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
            let unique = header.split(' ').nth(4).and_then(|unique| unique.parse().ok());
            Response::Hit { value: value.to_owned(), unique }
        }
        text => panic!("no reply of memcached: {text:?}"),
    }
}

/// Sends so many random commands for these keys through one sidecar, each after up to `pause`. Values are never repeated.
pub async fn random_commands(world: Rc<World>, keys: Vec<String>, count: usize, pause: Duration) {
    let mut random = world.fork();
    let sidecar = random.below(world.setup.sidecars as u64) as usize;
    let client = world.number();
    let name = format!("c{client}-s{sidecar}");
    let mut connection = Connection::open(&world, sidecar, &name);
    let mut seen = vec![None; keys.len()];
    for n in 0..count {
        sleep(pause.mul_f64(random.unit())).await;
        let at = random.below(keys.len() as u64) as usize;
        let (text, command) = command(&mut random, &keys[at], &mut seen[at], format!("v{client}.{n};"));
        let invoked = world.net.trace.now();
        let reply = connection.exchange(&text).await;
        let response = response(reply.as_deref());
        if let Response::Hit { unique: Some(unique), .. } = &response {
            seen[at] = Some(*unique);
        }
        let responded = world.net.trace.now();
        let number = connection.number;
        let invocation =
            Invocation { connection: number, client: number, invoked, responded, command, response };
        world.history.borrow_mut().push((keys[at].clone(), invocation));
        if reply.is_none() {
            connection = Connection::open(&world, sidecar, &name);
        }
    }
}
