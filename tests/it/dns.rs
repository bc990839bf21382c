//! A DNS server on loopback, over UDP and TCP, and a memcached that answers `config get cluster`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use crate::world::free_address;

/// What it answers to a question.
#[derive(Clone)]
pub(crate) enum Zone {
    /// These addresses and TTL.
    Addresses(Vec<IpAddr>, u32),
    /// These targets and ports, and TTL.
    Services(Vec<(String, u16)>, u32),
    /// SERVFAIL.
    Fails,
    /// Nothing at all.
    Silent,
}

/// A DNS server. It stops when it is dropped.
pub(crate) struct Dns {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    zones: Mutex<BTreeMap<String, Zone>>,
    /// Questions that were answered, or not, by name and type.
    questions: Mutex<BTreeMap<String, usize>>,
    over_tcp: AtomicUsize,
    ended: AtomicBool,
}

impl Dns {
    pub(crate) fn start() -> Dns {
        let (address, udp, tcp) = loop {
            let address = free_address();
            if let (Ok(udp), Ok(tcp)) = (UdpSocket::bind(address), TcpListener::bind(address)) {
                break (address, udp, tcp);
            }
        };
        let shared = Arc::new(Shared::default());
        udp.set_read_timeout(Some(Duration::from_millis(50))).expect("a time-out above zero");
        tcp.set_nonblocking(true).expect("a socket of ours");
        let over_udp = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut question = [0; 4096];
                while !shared.ended.load(SeqCst) {
                    let Ok((n, from)) = udp.recv_from(&mut question) else { continue };
                    if let Some(answer) = shared.answer(&question[..n], 512) {
                        let _ = udp.send_to(&answer, from);
                    }
                }
            })
        };
        let over_tcp = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                while !shared.ended.load(SeqCst) {
                    match tcp.accept() {
                        Ok((stream, _)) => {
                            shared.over_tcp.fetch_add(1, SeqCst);
                            let _ = shared.serve(stream);
                        }
                        Err(_) => thread::sleep(Duration::from_millis(5)),
                    }
                }
            })
        };
        Dns { address, shared, threads: vec![over_udp, over_tcp] }
    }

    /// `127.0.0.1:5353`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on it answers this to questions for a name.
    pub(crate) fn set(&self, name: &str, zone: Zone) {
        self.shared.zones.lock().expect("no panic").insert(name.to_owned(), zone);
    }

    /// A name with these addresses, in this order.
    pub(crate) fn addresses(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        self.set(name, Zone::Addresses(addresses, 1));
    }

    /// A service with these targets and ports, in this order.
    pub(crate) fn services(&self, name: &str, services: &[(&str, u16)]) {
        let services = services.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect();
        self.set(name, Zone::Services(services, 1));
    }

    /// From now on, there is no such name.
    pub(crate) fn remove(&self, name: &str) {
        self.shared.zones.lock().expect("no panic").remove(name);
    }

    /// How often it was asked for a name and type.
    pub(crate) fn asked(&self, name: &str, kind: &str) -> usize {
        let questions = self.shared.questions.lock().expect("no panic");
        questions.get(&format!("{name} {kind}")).copied().unwrap_or_default()
    }

    /// How often it was asked over TCP.
    pub(crate) fn asked_over_tcp(&self) -> usize {
        self.shared.over_tcp.load(SeqCst)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut question)?;
        if let Some(answer) = self.answer(&question, usize::from(u16::MAX)) {
            stream.write_all(&(answer.len() as u16).to_be_bytes())?;
            stream.write_all(&answer)?;
        }
        Ok(())
    }

    /// The answer in at most so many bytes, truncated if it is longer.
    fn answer(&self, question: &[u8], most: usize) -> Option<Vec<u8>> {
        let question = Message::from_vec(question).ok()?;
        let query = question.queries.first()?.clone();
        let asked = query.name().to_ascii().to_ascii_lowercase();
        let name = asked.trim_end_matches('.').to_owned();
        *self
            .questions
            .lock()
            .expect("no panic")
            .entry(format!("{name} {}", query.query_type()))
            .or_default() += 1;
        let zone = self.zones.lock().expect("no panic").get(&name).cloned();
        let mut answer = question.into_response();
        answer.metadata.recursion_available = true;
        let mut add = |ttl, data| {
            answer.add_answer(Record::from_rdata(query.name().clone(), ttl, data));
        };
        match (zone, query.query_type()) {
            (Some(Zone::Silent), _) => return None,
            (Some(Zone::Fails), _) => answer.metadata.response_code = ResponseCode::ServFail,
            (None, _) => answer.metadata.response_code = ResponseCode::NXDomain,
            (Some(Zone::Addresses(all, ttl)), kind) => all.iter().for_each(|ip| match (ip, kind) {
                (IpAddr::V4(ip), RecordType::A) => add(ttl, RData::A(A(*ip))),
                (IpAddr::V6(ip), RecordType::AAAA) => add(ttl, RData::AAAA(AAAA(*ip))),
                _ => {}
            }),
            (Some(Zone::Services(all, ttl)), RecordType::SRV) => {
                for (host, port) in all {
                    let target = Name::from_ascii(format!("{host}.")).expect("a name");
                    add(ttl, RData::SRV(SRV::new(0, 1, port, target)));
                }
            }
            (Some(Zone::Services(..)), _) => {}
        }
        let bytes = answer.to_vec().ok()?;
        match bytes.len() <= most {
            true => Some(bytes),
            false => answer.truncate().to_vec().ok(),
        }
    }
}

/// The configuration endpoint of a cluster: answers `config get cluster`, or only the key of older engines, and forwards everything
/// else to a memcached.
pub(crate) struct Endpoint {
    address: SocketAddr,
    reply: Arc<Mutex<Vec<u8>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// In front of this memcached. `is_old`: it knows the key, and not the command.
    pub(crate) fn start(memcached: SocketAddr, is_old: bool) -> Endpoint {
        Endpoint::start_at(free_address(), memcached, is_old)
    }

    /// The same at this address.
    pub(crate) fn start_at(address: SocketAddr, memcached: SocketAddr, is_old: bool) -> Endpoint {
        let listener = TcpListener::bind(address).expect("a free address");
        listener.set_nonblocking(true).expect("a socket of ours");
        let (reply, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (reply, ended) = (Arc::clone(&reply), Arc::clone(&ended));
            thread::spawn(move || {
                while !ended.load(SeqCst) {
                    match listener.accept() {
                        Ok((client, _)) => {
                            let reply = Arc::clone(&reply);
                            thread::spawn(move || relay(client, memcached, &reply, is_old));
                        }
                        Err(_) => thread::sleep(Duration::from_millis(5)),
                    }
                }
            })
        };
        Endpoint { address, reply, ended, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on it names these servers, `host|ip|port`.
    pub(crate) fn name(&self, version: u64, servers: &[String]) {
        let body = format!("{version}\n{}\n", servers.join(" "));
        self.reply_with(format!("CONFIG cluster 0 {}\r\n{body}\r\nEND\r\n", body.len()).as_bytes());
    }

    /// From now on it replies this.
    pub(crate) fn reply_with(&self, bytes: &[u8]) {
        *self.reply.lock().expect("no panic") = bytes.to_vec();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        self.thread.take().map(JoinHandle::join);
    }
}

fn relay(mut client: TcpStream, memcached: SocketAddr, reply: &Mutex<Vec<u8>>, is_old: bool) -> Option<()> {
    client.set_nonblocking(false).ok()?;
    let mut server = TcpStream::connect(memcached).ok()?;
    let (mut back, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut back, &mut to_client));
    let mut input = [0; 4096];
    loop {
        let n = client.read(&mut input).ok().filter(|n| *n > 0)?;
        let reply = || reply.lock().expect("no panic").clone();
        match (&input[..n], is_old) {
            (b"config get cluster\r\n", false) => client.write_all(&reply()).ok()?,
            (b"config get cluster\r\n", true) => client.write_all(b"ERROR\r\n").ok()?,
            (b"get AmazonElastiCache:cluster\r\n", true) => {
                let reply = String::from_utf8(reply()).ok()?;
                let reply = reply.replace("CONFIG cluster", "VALUE AmazonElastiCache:cluster");
                client.write_all(reply.as_bytes()).ok()?;
            }
            (other, _) => server.write_all(other).ok()?,
        }
    }
}
