//! Packets of the binary protocol, and a client that sends and reads them.

use std::net::SocketAddr;

use crate::client::Client;

pub(crate) const GET: u8 = 0x00;
pub(crate) const SET: u8 = 0x01;
pub(crate) const ADD: u8 = 0x02;
pub(crate) const REPLACE: u8 = 0x03;
pub(crate) const DELETE: u8 = 0x04;
pub(crate) const INCREMENT: u8 = 0x05;
pub(crate) const DECREMENT: u8 = 0x06;
pub(crate) const QUIT: u8 = 0x07;
pub(crate) const FLUSH: u8 = 0x08;
pub(crate) const GETQ: u8 = 0x09;
pub(crate) const NOOP: u8 = 0x0a;
pub(crate) const VERSION: u8 = 0x0b;
pub(crate) const GETK: u8 = 0x0c;
pub(crate) const GETKQ: u8 = 0x0d;
pub(crate) const APPEND: u8 = 0x0e;
pub(crate) const PREPEND: u8 = 0x0f;
pub(crate) const STAT: u8 = 0x10;
pub(crate) const SETQ: u8 = 0x11;
pub(crate) const DELETEQ: u8 = 0x14;
pub(crate) const TOUCH: u8 = 0x1c;
pub(crate) const GAT: u8 = 0x1d;
pub(crate) const GATQ: u8 = 0x1e;
pub(crate) const SASL_LIST: u8 = 0x20;
pub(crate) const SASL_AUTH: u8 = 0x21;
pub(crate) const SASL_STEP: u8 = 0x22;
pub(crate) const GATK: u8 = 0x23;
pub(crate) const GATKQ: u8 = 0x24;

pub(crate) const SUCCESS: u16 = 0;
pub(crate) const NOT_FOUND: u16 = 1;
pub(crate) const EXISTS: u16 = 2;
pub(crate) const TOO_LARGE: u16 = 3;
pub(crate) const INVALID: u16 = 4;
pub(crate) const NOT_STORED: u16 = 5;
pub(crate) const AUTH_ERROR: u16 = 0x20;
pub(crate) const AUTH_CONTINUE: u16 = 0x21;
pub(crate) const UNKNOWN_COMMAND: u16 = 0x81;
pub(crate) const SERVER_ERROR: u16 = 0x82;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Packet {
    pub(crate) opcode: u8,
    pub(crate) extras: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) cas: u64,
    pub(crate) opaque: u32,
    /// The body length in the header, if it is not the true one.
    pub(crate) body: Option<u32>,
}

impl Packet {
    pub(crate) fn new(opcode: u8, key: impl AsRef<[u8]>) -> Packet {
        Packet { opcode, key: key.as_ref().to_vec(), ..Packet::default() }
    }

    /// `set`, `add` or `replace`.
    pub(crate) fn store(opcode: u8, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, exptime: u32) -> Packet {
        Packet { value: value.as_ref().to_vec(), ..Packet::new(opcode, key) }.with_extras(&[5, exptime])
    }

    /// `increment` or `decrement` by 1.
    pub(crate) fn count(opcode: u8, key: impl AsRef<[u8]>, initial: u64, exptime: u32) -> Packet {
        let (high, low) = ((initial >> 32) as u32, initial as u32);
        Packet::new(opcode, key).with_extras(&[0, 1, high, low, exptime])
    }

    pub(crate) fn with_extras(self, numbers: &[u32]) -> Packet {
        Packet { extras: numbers.iter().flat_map(|number| number.to_be_bytes()).collect(), ..self }
    }

    pub(crate) fn with_value(self, value: impl AsRef<[u8]>) -> Packet {
        Packet { value: value.as_ref().to_vec(), ..self }
    }

    pub(crate) fn with_cas(self, cas: u64) -> Packet {
        Packet { cas, ..self }
    }

    pub(crate) fn with_opaque(self, opaque: u32) -> Packet {
        Packet { opaque, ..self }
    }

    pub(crate) fn with_body(self, body: u32) -> Packet {
        Packet { body: Some(body), ..self }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Packet { opcode, extras, key, value, cas, opaque, body } = self;
        let body = body.unwrap_or((extras.len() + key.len() + value.len()) as u32);
        let mut bytes = vec![0x80, *opcode];
        bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
        bytes.extend_from_slice(&body.to_be_bytes());
        bytes.extend_from_slice(&opaque.to_be_bytes());
        bytes.extend_from_slice(&cas.to_be_bytes());
        [&bytes[..], extras, key, value].concat()
    }
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) opcode: u8,
    pub(crate) status: u16,
    pub(crate) extras: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) opaque: u32,
    pub(crate) cas: u64,
}

impl Answer {
    /// The first reply in these bytes, and its length; `None` if it is incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Answer, usize)> {
        let header = bytes.get(..24)?;
        let number = |at: usize, length: usize| {
            header[at..at + length].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        assert_eq!((header[0], header[5]), (0x81, 0), "no reply: {}", bytes.escape_ascii());
        let (key, extras, body) = (number(2, 2) as usize, usize::from(header[4]), number(8, 4) as usize);
        let body = bytes.get(24..24 + body)?;
        let answer = Answer {
            opcode: header[1],
            status: number(6, 2) as u16,
            extras: body[..extras].to_vec(),
            key: body[extras..extras + key].to_vec(),
            value: body[extras + key..].to_vec(),
            opaque: number(12, 4) as u32,
            cas: number(16, 8),
        };
        Some((answer, 24 + body.len()))
    }

    /// All replies in these bytes, which must be complete.
    pub(crate) fn read_all(mut bytes: &[u8]) -> Vec<Answer> {
        let mut answers = Vec::new();
        while !bytes.is_empty() {
            let (answer, length) = Answer::read(bytes).unwrap_or_else(|| panic!("{}", bytes.escape_ascii()));
            answers.push(answer);
            bytes = &bytes[length..];
        }
        answers
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.value).into_owned()
    }

    /// The value of a counting command.
    pub(crate) fn number(&self) -> u64 {
        u64::from_be_bytes(self.value[..].try_into().expect("eight bytes"))
    }
}

/// A client of the binary protocol.
pub(crate) struct BinaryClient(pub(crate) Client);

impl BinaryClient {
    pub(crate) fn new(address: SocketAddr) -> BinaryClient {
        BinaryClient(Client::tcp(address))
    }

    /// Sends these packets in one write.
    pub(crate) fn send(&mut self, packets: &[Packet]) {
        let bytes: Vec<u8> = packets.iter().flat_map(Packet::bytes).collect();
        self.0.send(&bytes);
    }

    /// The next reply.
    pub(crate) fn receive(&mut self) -> Answer {
        let header = self.0.bytes(24);
        let length = u32::from_be_bytes(header[8..12].try_into().expect("four bytes")) as usize;
        let body = self.0.bytes(length);
        Answer::read(&[header, body].concat()).expect("it is complete").0
    }

    /// Sends a packet and returns the reply.
    pub(crate) fn ask(&mut self, packet: Packet) -> Answer {
        self.send(&[packet]);
        self.receive()
    }

    /// Sends these packets and a `noop` in one write, and returns the replies before that of the `noop`.
    pub(crate) fn pipeline(&mut self, packets: &[Packet]) -> Vec<Answer> {
        const LAST: u32 = 0x6e6f_6f70;
        let noop = Packet::new(NOOP, b"").with_opaque(LAST);
        self.send(&[packets, &[noop]].concat());
        let mut answers = Vec::new();
        loop {
            let answer = self.receive();
            if (answer.opcode, answer.opaque) == (NOOP, LAST) {
                return answers;
            }
            answers.push(answer);
        }
    }

    /// The value of a key.
    pub(crate) fn get(&mut self, key: &str) -> Option<String> {
        let answer = self.ask(Packet::new(GET, key));
        match answer.status {
            SUCCESS => Some(answer.text()),
            NOT_FOUND => None,
            _ => panic!("{answer:?}"),
        }
    }

    /// Stores a value and returns the status.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> u16 {
        self.ask(Packet::store(SET, key, value, 60)).status
    }
}
