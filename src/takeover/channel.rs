//! Messages with open files, between two processes of one user.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::message::Message;

/// The longest message, in bytes.
pub(super) const MAX_MESSAGE: usize = 128 * 1024;
/// The most open files of one message: the sockets of one listener with the most workers.
const MAX_FILES: usize = 64;

/// One end of a conversation. Each message arrives whole or not at all.
#[derive(Debug)]
pub struct Channel {
    /// Of type SOCK_SEQPACKET.
    socket: UnixStream,
    process: u32,
}

/// A message, and the open files that came with it.
#[derive(Debug)]
pub struct Received {
    /// What the other process says.
    pub message: Message,
    /// Files that came with the message.
    pub files: Vec<OwnedFd>,
}

impl Channel {
    /// A connected socket of type SOCK_SEQPACKET.
    ///
    /// # Errors
    /// The other process belongs to another user, or the system refuses it.
    pub(super) fn new(socket: UnixStream) -> io::Result<Channel> {
        let peer = socket.peer_cred()?;
        let process = peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
        let (theirs, ours) = (peer.uid(), rustix::process::geteuid().as_raw());
        if theirs != ours {
            let why = format!(
                "process {process} belongs to user {theirs} and this one to user {ours}: both must be of one user"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Channel { socket, process })
    }

    /// The process at the other end.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Sends a message with open files, at most 64.
    ///
    /// # Errors
    /// The other end is closed, or does not read for this long.
    pub async fn send(&self, message: &Message, files: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
        let bytes = message.encode();
        if files.len() > MAX_FILES {
            return Err(io::Error::other("too many open files for one message"));
        }
        let sending = self.socket.async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                // There is room for as many as were checked.
                control.push(SendAncillaryMessage::ScmRights(files));
            }
            Ok(sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?)
        });
        timeout(limit, sending).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(())
    }

    /// Receives a message.
    ///
    /// # Errors
    /// The other end is closed (`UnexpectedEof`), nothing arrives for this long (`TimedOut`), or what arrives is no message
    /// (`InvalidData`).
    pub async fn receive(&self, limit: Duration) -> io::Result<Received> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let receiving = self.socket.async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
            let mut files = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    files.extend(rights);
                }
            }
            let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
            Ok((received.bytes, files, is_cut))
        });
        let (length, files, is_cut) =
            timeout(limit, receiving).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if is_cut {
            let why = "a message is too long, or the limit on open files is too low for what it carries";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let message = Message::decode(&bytes[..length]);
        let message = message.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        Ok(Received { message, files })
    }

    /// Refuses what the other end asks for. It may not read the reason.
    pub async fn refuse(&self, why: impl Into<String>) {
        let _ = self.send(&Message::Refused(why.into()), &[], Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
pub(super) fn pair() -> (Channel, Channel) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let channel = |socket| Channel::new(UnixStream::from_std(std::os::unix::net::UnixStream::from(socket))?);
    (channel(a).unwrap(), channel(b).unwrap())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_message_arrives_with_its_open_files() {
        let (here, there) = pair();
        assert_eq!(here.process(), std::process::id());
        let (mut near, far) = StdStream::pair().unwrap();
        let files = vec![far.as_fd(); MAX_FILES];
        here.send(&Message::Ready, &files, LONG).await.unwrap();
        drop(far);
        let Received { message, mut files } = there.receive(LONG).await.unwrap();
        assert_eq!((message, files.len()), (Message::Ready, MAX_FILES));
        let mut far = StdStream::from(files.pop().unwrap());
        far.write_all(b"x").unwrap();
        let mut read = [0];
        near.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"x");
    }

    #[tokio::test]
    async fn silence_an_end_and_nonsense_are_errors() {
        let (here, there) = pair();
        assert_eq!(there.receive(SHORT).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        rustix::net::send(&here.socket, b"get k\r\n", SendFlags::empty()).unwrap();
        assert_eq!(there.receive(LONG).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        rustix::net::send(&here.socket, &vec![b'x'; MAX_MESSAGE + 1], SendFlags::empty()).unwrap();
        assert!(there.receive(LONG).await.unwrap_err().to_string().contains("too long"));
        let file = here.socket.as_fd();
        assert!(here.send(&Message::Ready, &[file; MAX_FILES + 1], LONG).await.is_err());
        drop(here);
        assert_eq!(there.receive(LONG).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(there.send(&Message::Ready, &[], LONG).await.is_err());
    }

    #[tokio::test]
    async fn who_does_not_read_is_given_up() {
        let (here, _there) = pair();
        let message = Message::Refused("x".repeat(60_000));
        let error = async {
            loop {
                here.send(&message, &[], SHORT).await?;
            }
        };
        let error: io::Result<()> = timeout(LONG, error).await.unwrap();
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
