//! Reading: from the socket through TLS to segments.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::net::RecvFlags;
use tokio::io::Interest;

use super::TcpCarrier;
use crate::carrier::segments::assemble;
use crate::carrier::{Flow, PathError, Segments, lock};
use crate::tls::{Opener, TlsError};

/// Room for one read: many records at once.
const READ_SIZE: usize = 128 * 1024;

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
}

/// What came in and is not whole yet. The lock keeps reads in order.
pub(super) struct Incoming {
    /// Opens records, once the handshake is over.
    opener: Option<Opener>,
    /// An incomplete record.
    ciphertext: Vec<u8>,
    /// An incomplete segment.
    plaintext: Vec<u8>,
}

/// What a read came to.
pub(super) struct Came {
    pub(super) flow: Flow,
    /// Whether there is something to send then; `None` if nobody looked.
    pub(super) has_segment: Option<bool>,
}

impl Incoming {
    /// `ciphertext` was read already.
    pub(super) fn new(ciphertext: Vec<u8>) -> Self {
        Self { opener: None, ciphertext, plaintext: Vec::new() }
    }

    /// Joins plaintext that arrived another way to whole segments.
    pub(super) fn feed(
        &mut self,
        plaintext: &[u8],
        take: impl FnMut(&[u8]) -> Result<(), PathError>,
    ) -> Result<(), PathError> {
        assemble(&mut self.plaintext, plaintext, take)
    }
}

impl TcpCarrier {
    /// Reads once, and hands whole segments to the engine.
    pub(super) fn read(&self, engine: &impl Segments) -> Result<Came, PathError> {
        let result = READ_BUFFER.with_borrow_mut(|buffer| self.read_into(buffer, engine));
        match result {
            // Looking says that the path takes more.
            Ok((flow, Some(now))) if !self.is_blocked() => {
                Ok(Came { flow, has_segment: Some(engine.announce_and_look(now, self.id)) })
            }
            result => {
                engine.announce();
                result.map(|(flow, _)| Came { flow, has_segment: None })
            }
        }
    }

    /// Tells beside it when something came.
    fn read_into(
        &self,
        buffer: &mut [u8],
        engine: &impl Segments,
    ) -> Result<(Flow, Option<Instant>), PathError> {
        let mut incoming = lock(&self.incoming);
        let Incoming { opener, ciphertext, plaintext } = &mut *incoming;
        let held = ciphertext.len();
        buffer[..held].copy_from_slice(ciphertext);
        let (n, flow) = match self.read_socket(&mut buffer[held..])? {
            Some((0, _)) => return Err(PathError::Closed),
            Some(read) => read,
            None => return Ok((Flow::Blocked, None)),
        };
        let end = held + n;
        let now = Instant::now();
        let mut result = Ok(());
        let mut sink = |plain: &[u8]| {
            if result.is_ok() {
                result = assemble(plaintext, plain, |segment| engine.take_segment(now, self.id, segment));
            }
        };
        let used = match opener {
            Some(opener) => {
                let used = opener.open(&mut buffer[..end], sink).inspect_err(|error| self.refuse(error))?;
                if opener.owes_update() {
                    self.owes.store(true, Ordering::Relaxed);
                }
                used
            }
            None => {
                let mut tls = lock(&self.tls);
                let used = tls.receive(&mut buffer[..end], &mut sink)?;
                *opener = tls.release(&buffer[used..end])?;
                self.fresh.store(opener.is_some(), Ordering::Relaxed);
                if !tls.outgoing().waiting().is_empty() {
                    self.owes.store(true, Ordering::Relaxed);
                }
                used
            }
        };
        result?;
        ciphertext.clear();
        ciphertext.extend_from_slice(&buffer[used..end]);
        if ciphertext.is_empty() {
            *ciphertext = Vec::new();
        }
        if ciphertext.len() >= READ_SIZE / 2 {
            return Err(TlsError::Internal("record without end").into());
        }
        Ok((flow, Some(now)))
    }

    /// Reads once; `None` if nothing is there. A short read has emptied the socket: saying so to the
    /// runtime at once (as its own reads do) spares the call that would only tell that.
    fn read_socket(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Flow)>> {
        let mut short = None;
        let result = self.socket.try_io(Interest::READABLE, || {
            // Not read(2), whose way through the kernel is longer.
            let (n, _) = rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty())?;
            if n > 0 && n < buffer.len() {
                short = Some(n);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(n)
        });
        match (result, short) {
            (_, Some(n)) => Ok(Some((n, Flow::Idle))),
            (Ok(n), None) => Ok(Some((n, Flow::More))),
            (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            (Err(error), None) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            (Err(error), None) => Err(error),
        }
    }
}
