//! A program's end of a session, and how far the program is.

use std::io::{self, ErrorKind, IoSlice, Read as _};
use std::net::Shutdown;
#[cfg(target_os = "linux")]
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

#[cfg(target_os = "linux")]
mod queues;
mod under_way;

pub use under_way::UnderWay;

/// What a program's kernel has room for.
pub(super) enum Room {
    /// So many bytes.
    Known(usize),
    /// It is on another host, or this one's kernel does not say.
    Unknown,
}

/// Of one end of a connection.
struct Queues {
    /// What came, and was not read.
    unread: u32,
    /// What was written, and is not acknowledged.
    unsent: u32,
    /// All that came, ever.
    received: Option<u64>,
    /// What the other end has room for, behind what is acknowledged.
    window: Option<u32>,
}

/// What this side's kernel holds for a program that does not read: little, because it does not move with the
/// session.
const SEND_BUFFER: usize = 64 * 1024;
/// A program that has not all yet is looked at so often.
#[cfg(target_os = "linux")]
const LOOK: Duration = Duration::from_millis(5);

/// A program, behind its TCP connection to this process.
pub(super) struct Program {
    socket: TcpStream,
    /// Of the socket: they stay the same, and are asked about often.
    #[cfg(target_os = "linux")]
    ends: Option<(SocketAddr, SocketAddr)>,
    /// What its kernel has received beyond what was written here, such as the answers of a proxy, when that
    /// was known last.
    before: Option<i64>,
    /// That was when all that was written had arrived: it stays so.
    is_sure: bool,
    /// It was seen on this host.
    is_here: bool,
    /// What its kernel had room for when it was asked last, and was not written since.
    room: usize,
}

impl Program {
    /// One that gets bytes from an offset on.
    pub(super) fn new(socket: TcpStream, offset: u64) -> Self {
        let options = socket2::SockRef::from(&socket);
        // Both only make it better.
        let _ = options.set_tcp_nodelay(true);
        let _ = options.set_send_buffer_size(SEND_BUFFER);
        let mut program = Self {
            #[cfg(target_os = "linux")]
            ends: socket.local_addr().ok().zip(socket.peer_addr().ok()),
            socket,
            before: None,
            is_sure: false,
            is_here: false,
            room: 0,
        };
        program.break_off();
        // What was written until now has arrived: on one host that is so at once.
        let other = program.queues().and_then(|(_, other)| other);
        program.is_here = other.is_some();
        program.before = other.and_then(|other| beyond(other.received, offset));
        program
    }

    /// Waits until something can be read or written, whatever is wanted. Cancel-safe.
    pub(super) async fn ready(&self, reads: bool, writes: bool) -> io::Result<Ready> {
        let interest = match (reads, writes) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => return std::future::pending().await,
        };
        self.socket.ready(interest).await
    }

    /// What the program has sent: `None` if that is nothing just now.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        maybe(self.socket.try_read(into))
    }

    /// The same, asked of the system itself: also where it was not noticed yet that something came.
    pub(super) fn read_now(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        maybe((&mut &*socket2::SockRef::from(&self.socket)).read(into))
    }

    /// Whether the program has sent something that was not read.
    pub(super) fn has_said_more(&self) -> bool {
        let mut one = [std::mem::MaybeUninit::uninit()];
        socket2::SockRef::from(&self.socket).peek(&mut one).is_ok_and(|n| n > 0)
    }

    /// Gives the program some of these bytes.
    pub(super) fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = maybe(self.socket.try_write_vectored(pieces))?.unwrap_or_default();
        self.room = self.room.saturating_sub(written);
        Ok(written)
    }

    /// So many bytes count as written, and are not for the program: its kernel never receives them.
    pub(super) fn skips(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).ok();
        self.before = self.before.zip(bytes).and_then(|(before, bytes)| before.checked_sub(bytes));
    }

    /// The server has said all.
    pub(super) fn end(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.socket).shutdown(Shutdown::Write)
    }

    /// How much of what was written, up to this offset, is not in the hands of the program's kernel. Known to
    /// the byte where that is this host's; else what is not acknowledged, and 0 if nothing is known.
    pub(super) fn undelivered(&mut self, written: u64) -> u64 {
        self.queues().map_or(0, |(own, other)| self.on_the_way(&own, other.as_ref(), written))
    }

    /// The same, of what both ends said.
    fn on_the_way(&mut self, own: &Queues, other: Option<&Queues>, written: u64) -> u64 {
        let beyond = other.and_then(|other| beyond(other.received, written));
        if own.unsent == 0 {
            (self.before, self.is_sure) = (beyond, beyond.is_some());
            return 0;
        }
        let left = beyond.zip(self.before).map(|(beyond, before)| before - beyond);
        left.map_or(own.unsent.into(), |left| u64::try_from(left).unwrap_or_default())
    }

    /// How much can be written that reaches the program's kernel at once: what waits in this side's does not
    /// move with the session. Its kernel is asked only where so much is `wanted` that it is not known to have
    /// room for: what it had room for it has room for until that is written (RFC 9293, §3.8.6).
    pub(super) fn room(&mut self, wanted: usize) -> Room {
        if self.room < wanted.max(1) {
            match self.window() {
                Some(room) => self.room = room,
                None => return Room::Unknown,
            }
        }
        Room::Known(self.room)
    }

    fn window(&mut self) -> Option<usize> {
        // Asking costs more than a small write: where the program is stays the same.
        let own = match self.is_here {
            true => self.own_queues()?,
            false => {
                let (own, other) = self.queues()?;
                other?;
                self.is_here = true;
                own
            }
        };
        Some(own.window?.saturating_sub(own.unsent) as usize)
    }

    /// Bytes that were written and that the program has not read, as far as that is known.
    pub(super) fn unread(&mut self, written: u64) -> u64 {
        if let Some(unread) = self.unread_there(written) {
            return unread;
        }
        let Some((own, other)) = self.queues() else { return 0 };
        let unread = other.as_ref().map_or(0, |other| other.unread);
        self.on_the_way(&own, other.as_ref(), written) + u64::from(unread)
    }

    /// The same by what the program's end says alone, if it is known what had come there before. It is asked
    /// so often that each question counts.
    fn unread_there(&self, written: u64) -> Option<u64> {
        let before = self.before.filter(|_| self.is_sure)?;
        let other = self.other_queues()?;
        let left = before - beyond(other.received, written)?;
        Some(u64::try_from(left).unwrap_or_default() + u64::from(other.unread))
    }

    /// Has the program's kernel not be heard any more: that it has room, when the program reads again. Some
    /// of what is written may still be sent when a timer ends.
    pub(super) fn freeze(&self) {
        #[cfg(target_os = "linux")]
        {
            // BPF_RET | BPF_K of `linux/bpf_common.h`: of each packet, take nothing.
            let nothing = socket2::SockFilter::new(0x06, 0, 0, 0);
            // Without it a program that begins to read at this very moment may get some bytes twice.
            let _ = socket2::SockRef::from(&self.socket).attach_filter(&[nothing]);
        }
    }

    /// The connection ends in order. Until this is said its end is a break, also if this process is killed:
    /// the program learns that bytes are missing.
    pub(super) fn is_whole(&self) {
        // Without it the program sees a break, and asks again.
        let _ = socket2::SockRef::from(&self.socket).set_linger(None);
    }

    fn break_off(&self) {
        // Without it the end is an ordinary one, which is the best that is left then.
        let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }

    /// Of this end, and of the program's if that is on this host.
    #[cfg(target_os = "linux")]
    fn queues(&self) -> Option<(Queues, Option<Queues>)> {
        let (own, other) = self.ends?;
        Some((queues::of(own, other)?, queues::of(other, own)))
    }

    #[cfg(target_os = "linux")]
    fn own_queues(&self) -> Option<Queues> {
        let (own, other) = self.ends?;
        queues::of(own, other)
    }

    #[cfg(target_os = "linux")]
    fn other_queues(&self) -> Option<Queues> {
        let (own, other) = self.ends?;
        queues::of(other, own)
    }

    #[cfg(not(target_os = "linux"))]
    fn own_queues(&self) -> Option<Queues> {
        None
    }

    #[cfg(not(target_os = "linux"))]
    fn other_queues(&self) -> Option<Queues> {
        None
    }

    #[cfg(not(target_os = "linux"))]
    fn queues(&self) -> Option<(Queues, Option<Queues>)> {
        None
    }
}

/// Waits until a program's kernel has all that was written to it, where that is known: what is written behind
/// it is counted from there. It ends likewise if the connection is over.
#[cfg(target_os = "linux")]
pub(super) async fn has_arrived(connection: &TcpStream) -> io::Result<()> {
    let (own, other) = (connection.local_addr()?, connection.peer_addr()?);
    while queues::of(own, other).is_some_and(|own| own.unsent > 0) {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// It is not known here what a program's kernel has.
#[cfg(not(target_os = "linux"))]
pub(super) async fn has_arrived(_: &TcpStream) -> io::Result<()> {
    Ok(())
}

/// The user whose program is at the other end of a connection of this host, where that is known.
#[cfg(target_os = "linux")]
pub fn user_of(connection: &TcpStream) -> Option<u32> {
    queues::owner_of(connection.peer_addr().ok()?, connection.local_addr().ok()?)
}

/// The user whose program is at the other end of a connection of this host, where that is known.
#[cfg(not(target_os = "linux"))]
pub fn user_of(_: &TcpStream) -> Option<u32> {
    None
}

/// How much more a program's kernel has received than was written to it here.
fn beyond(received: Option<u64>, written: u64) -> Option<i64> {
    Some(i64::try_from(received?).ok()? - i64::try_from(written).ok()?)
}

fn maybe(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(20);

    fn pair(address: &str) -> (Program, std::net::TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let program = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        accepted.set_nonblocking(true).unwrap();
        program.set_read_timeout(Some(LIMIT)).unwrap();
        (Program::new(TcpStream::from_std(accepted).unwrap(), 0), program)
    }

    /// Writes until nothing more fits, and looks so often again.
    async fn filled(program: &mut Program, patience: u64) -> u64 {
        let (mut written, mut still) = (0, 0);
        while still <= patience {
            let _ = program.ready(false, true).now_or_never();
            match program.write(&[IoSlice::new(&[7; 4096])]).unwrap() {
                0 => still += 1,
                n => (written, still) = (written + n as u64, 0),
            }
            if still > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        written
    }

    trait NowOrNever: Future + Sized {
        fn now_or_never(self) -> Option<Self::Output> {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            match std::pin::pin!(self).poll(&mut context) {
                std::task::Poll::Ready(done) => Some(done),
                std::task::Poll::Pending => None,
            }
        }
    }

    impl<F: Future> NowOrNever for F {}

    #[tokio::test]
    async fn what_a_program_has_not_read_is_known_to_the_byte() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut program, mut other) = pair(address);
            assert_eq!(program.unread(0), 0);
            program.ready(false, true).await.unwrap();
            assert_eq!(program.write(&[IoSlice::new(&[1; 1000])]).unwrap(), 1000);
            let begun = Instant::now();
            while program.undelivered(1000) > 0 {
                assert!(begun.elapsed() < LIMIT);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(program.unread(1000), 1000);
            other.read_exact(&mut [0; 400]).unwrap();
            assert_eq!(program.unread(1000), 600);
        }
    }

    #[tokio::test]
    async fn what_was_written_has_arrived_once_the_programs_kernel_has_all_of_it() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let connecting = socket.connect(listener.local_addr().unwrap());
        let (program, accepted) = tokio::join!(connecting, listener.accept());
        let (mut program, mut accepted) = (program.unwrap(), accepted.unwrap().0);
        has_arrived(&accepted).await.unwrap();
        // More than its kernel takes, and less than this side's does.
        let all = vec![7; 32 * 1024];
        tokio::time::timeout(LIMIT, accepted.write_all(&all)).await.unwrap().unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), has_arrived(&accepted)).await;
        assert!(early.is_err(), "the program reads nothing");
        let mut read = vec![0; all.len()];
        tokio::time::timeout(LIMIT, program.read_exact(&mut read)).await.unwrap().unwrap();
        tokio::time::timeout(LIMIT, has_arrived(&accepted)).await.unwrap().unwrap();
        assert_eq!(read, all);
    }

    #[tokio::test]
    async fn what_was_skipped_is_not_taken_for_unread() {
        let (mut program, _other) = pair("127.0.0.1:0");
        program.ready(false, true).await.unwrap();
        assert_eq!(program.write(&[IoSlice::new(&[1; 100])]).unwrap(), 100);
        let begun = Instant::now();
        // From then on only its own end is asked.
        while program.undelivered(100) > 0 || !program.is_sure {
            assert!(begun.elapsed() < LIMIT);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        program.skips(50);
        assert_eq!(program.unread(150), 100);
    }

    #[tokio::test]
    async fn what_a_program_has_room_for_is_asked_again_once_that_is_used_up() {
        let (mut program, _other) = pair("127.0.0.1:0");
        program.ready(false, true).await.unwrap();
        let mut known = |wanted: usize, written: usize| {
            if written > 0 {
                assert_eq!(program.write(&[IoSlice::new(&vec![7; written])]).unwrap(), written);
            }
            let Room::Known(room) = program.room(wanted) else { panic!("it is on this host") };
            room
        };
        let room = known(1, 0);
        assert!(room > 4096, "{room}");
        // Its kernel may have room for more by now, which is not asked.
        assert_eq!(known(room - 4096, 4096), room - 4096);
        // More than that is asked about.
        assert!(known(room, 0) >= room / 2, "of {room}");
    }

    #[tokio::test]
    async fn a_program_that_is_let_go_gets_what_its_kernel_has_and_not_a_byte_more() {
        for turn in 0..20 {
            let (mut program, mut other) = pair("127.0.0.1:0");
            let written = filled(&mut program, turn).await;
            // It begins to read some just now: its kernel has room again, and timers run.
            let there = written - program.undelivered(written);
            let mut some = vec![0; usize::try_from(there * turn / 20).unwrap()];
            other.read_exact(&mut some).unwrap();
            tokio::time::sleep(Duration::from_millis(turn * 20)).await;
            program.freeze();
            let delivered = written - program.undelivered(written);
            drop(program);
            let mut rest = Vec::new();
            let error = other.read_to_end(&mut rest).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert_eq!((some.len() + rest.len()) as u64, delivered);
        }
    }
}
