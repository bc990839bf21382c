//! A client's connection, and a program that sends random commands and records them.

use std::rc::Rc;
use std::time::Duration;

use kennel::random::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::dialect::Dialect;
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

    /// Sends bytes and reads the reply, of which `complete` tells the length once it is there. `None`: there was none in time, or the
    /// connection was closed.
    pub async fn reply(
        &mut self,
        command: &[u8],
        complete: impl Fn(&[u8]) -> Option<usize>,
    ) -> Option<Vec<u8>> {
        let reading = async {
            self.stream.write_all(command).await.ok()?;
            loop {
                if let Some(length) = complete(&self.buffer) {
                    return Some(self.buffer.drain(..length).collect());
                }
                match self.stream.read_buf(&mut self.buffer).await {
                    Ok(length) if length > 0 => {}
                    _ => return None,
                }
            }
        };
        timeout(PATIENCE, reading).await.ok().flatten()
    }

    /// Sends a line of the classic protocol, and reads the reply.
    pub async fn exchange(&mut self, command: &str) -> Option<String> {
        let reply = self.reply(command.as_bytes(), |bytes| Dialect::Classic.complete(bytes, false)).await?;
        String::from_utf8(reply).ok()
    }

    /// Sends lines of the classic protocol in one piece, and reads so many replies.
    pub async fn exchange_all(&mut self, commands: &str, replies: usize) -> Vec<String> {
        let mut all = Vec::new();
        for at in 0..replies {
            let commands = if at == 0 { commands.as_bytes() } else { b"" };
            let reply = self.reply(commands, |bytes| Dialect::Classic.complete(bytes, false)).await;
            all.push(String::from_utf8(reply.expect("a reply")).expect("text"));
        }
        all
    }

    /// Sends a command, and tells what the reply means. `None`: there was none, and the connection is of no use any more.
    async fn call(
        &mut self,
        dialect: Dialect,
        key: &str,
        command: &Command,
        exptime: u32,
        quiet: bool,
    ) -> Option<Response> {
        let bytes = dialect.encode(key, command, exptime, quiet);
        let reply = self.reply(&bytes, |bytes| dialect.complete(bytes, quiet)).await?;
        Some(dialect.decode(command, &reply))
    }
}

/// A command of the program. `number`: one that no other command of the run has.
pub fn command(random: &mut Random, seen: &mut Option<u64>, number: u64, value: String) -> Command {
    let delta = random.below(3);
    match random.below(24) {
        0..8 => Command::Get,
        8..11 => Command::Set(value),
        11 => Command::Set(number.to_string()),
        12 => Command::Add(value),
        13 => Command::Replace(value),
        14 => Command::Append(value),
        15 => Command::Prepend(value),
        16 => Command::Touch,
        17 => Command::Count { delta, decr: random.below(2) == 0, initial: None },
        18 => Command::Count { delta, decr: false, initial: Some(number) },
        19..22 => match seen.take() {
            Some(unique) => Command::Cas { unique, value },
            None => Command::Get,
        },
        _ => Command::Delete,
    }
}

/// A client: one connection at a time to one sidecar, in a dialect of its own. It records what it sends and is told.
pub struct Client {
    pub world: Rc<World>,
    pub random: Random,
    pub number: usize,
    pub sidecar: usize,
    /// Of what it stores.
    pub exptime: u32,
    /// Whether some of its commands are quiet.
    pub is_quiet: bool,
    dialect: Dialect,
    connection: Connection,
}

impl Client {
    pub fn new(world: Rc<World>) -> Client {
        let mut random = world.fork();
        let sidecar = random.below(world.setup.sidecars as u64) as usize;
        let number = world.number();
        let connection = Connection::open(&world, sidecar, &format!("c{number}-s{sidecar}"));
        let dialect = Dialect::of(number);
        Client { world, random, number, sidecar, exptime: 0, is_quiet: true, dialect, connection }
    }

    /// A number below this.
    pub fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    pub async fn pause(&mut self, longest: Duration) {
        sleep(longest.mul_f64(self.random.unit())).await;
    }

    /// The pause before a command.
    pub async fn wait(&mut self) {
        self.pause(self.world.setup.pause).await;
    }

    pub fn reconnect(&mut self) {
        let name = format!("c{}-s{}", self.number, self.sidecar);
        self.connection = Connection::open(&self.world, self.sidecar, &name);
    }

    /// Sends a command, and does not record it. What is told of it has the command, and its reply.
    pub async fn ask(&mut self, key: &str, command: Command) -> Invocation {
        let command = match command {
            Command::Count { delta, decr, .. } if self.dialect == Dialect::Classic => {
                Command::Count { delta, decr, initial: None }
            }
            command => command,
        };
        let quiet = self.is_quiet && self.random.below(2) == 0 && self.dialect.can_be_quiet(&command);
        let (invoked, connection) = (self.world.net.trace.now(), self.connection.number);
        let response = self.connection.call(self.dialect, key, &command, self.exptime, quiet).await;
        if response.is_none() {
            self.reconnect();
        }
        let (response, responded) = (response.unwrap_or(Response::Unknown), self.world.net.trace.now());
        Invocation { connection, client: self.number, invoked, responded, command, response }
    }

    pub fn record(&self, key: &str, invocation: Invocation) {
        self.world.history.borrow_mut().push((key.to_owned(), invocation));
    }

    /// Sends a command and records it.
    pub async fn call(&mut self, key: &str, command: Command) -> Response {
        let told = self.ask(key, command).await;
        let response = told.response.clone();
        self.record(key, told);
        response
    }
}

/// Sends so many random commands for these keys. Values are never repeated.
pub async fn random_commands(world: Rc<World>, keys: Vec<String>, count: usize) {
    let mut client = Client::new(world);
    let mut seen = vec![None; keys.len()];
    for n in 0..count {
        client.wait().await;
        let at = client.below(keys.len());
        let number = (client.number * 1_000 + n) as u64 * 1_000;
        let value = format!("v{}.{n};", client.number);
        let command = command(&mut client.random, &mut seen[at], number, value);
        if let Response::Hit { unique: Some(unique), .. } = client.call(&keys[at], command).await {
            seen[at] = Some(unique);
        }
    }
}
