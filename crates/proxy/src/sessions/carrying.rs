//! A session on a device: its bytes between the gateway and a program.

mod ending;
mod stopping;
mod underway;

pub use ending::Outcome;

use super::alarm::Alarm;
use super::budget::MOST_DOWN;
use super::frame::{Frame, LONGEST, Paused};
use super::line::{Heard, LAST, Line};
use super::message::Granted;
use super::program::{Program, Room};
use super::window::Window;
use bytes::Bytes;
use ending::{broken, last_word};
use futures_util::FutureExt;
use std::io;
use std::time::Duration;
use stopping::{Phase, Stopped, let_go};
use tokio::io::Ready;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;
use underway::{Down, Up};
use whimbrel_transport::Stream;

/// What is sent before the server has taken it. While the device stops it may be more, up to what the gateway
/// allows, so that all that the program sent is among it.
const UP: u64 = 256 * 1024;
const UP_STOPPING: u64 = 1024 * 1024;
/// For a program to take something of what its server said before it broke the connection.
const BROKEN: Duration = Duration::from_secs(60);
/// What is written at once.
const WRITE: usize = 64 * 1024;
/// How far a program is, is asked so often while it takes much, and little.
const OFTEN: Duration = Duration::from_millis(5);
const SELDOM: Duration = Duration::from_millis(100);
/// A program's kernel that has no room is asked again after so long, at first and later.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(250);
/// The longest until a program that reads nothing is asked again how far it is.
const STANDS: Duration = Duration::from_secs(1);

/// A session and its program.
pub(super) struct Carrying {
    line: Line,
    program: Program,
    down: Down,
    up: Up,
    phase: Phase,
    /// The gateway is gone. It had said that the server broke the connection: what it said before is passed
    /// on.
    is_left: bool,
}

impl Carrying {
    /// A program that gets what comes, but for so many bytes.
    pub(super) fn new(granted: &Granted, stream: Stream, program: TcpStream, skip: u64) -> Self {
        let mut line = Line::new(stream, &[]);
        // The program is there.
        line.say(&Frame::Count(granted.offset));
        let down = Down::new(granted.offset, skip);
        let up = Up { sent: 0, taken: 0, has_ended: granted.has_ended };
        let program = Program::new(program, granted.offset);
        Self { line, program, down, up, phase: Phase::Active, is_left: false }
    }

    /// These bytes came before the gateway knew where the program before is.
    pub(super) fn with_ahead(mut self, ahead: Window) -> Self {
        self.down.ahead = ahead;
        self
    }

    /// Carries until it is over. These bytes of the program come first.
    pub(super) async fn run(
        mut self,
        early: &[u8],
        mut second: oneshot::Receiver<Stream>,
    ) -> io::Result<Outcome> {
        if !self.up.has_ended {
            self.send(early);
        }
        let result = self.carry(&mut second).await;
        let Self { line, mut program, phase, down, .. } = self;
        if let (Ok(None), Phase::Stopped(_)) = (&result, &phase) {
            // Before anything else: how far it is was known a moment ago.
            drop(program);
            return last_word(line).await;
        }
        let result = result.map(|outcome| outcome.unwrap_or(Outcome::Ended));
        match &result {
            Ok(Outcome::Ended) => program.is_whole(),
            Ok(Outcome::Moved) => let_go(&mut program, down.queue.base(), down.promised).await,
            Err(_) => {
                let mut line = line;
                // Behind what the program said before.
                line.say(&Frame::Broken);
                tokio::spawn(FutureExt::boxed(async move {
                    // A gateway that does not listen is left.
                    let _ = tokio::time::timeout(LAST, line.finish()).await;
                }));
                let_go(&mut program, down.queue.base(), down.promised).await;
            }
        }
        result
    }

    /// Carries until it is known how that ended, or, which is `None`, the program must be let go at once
    /// because it does not read.
    async fn carry(&mut self, second: &mut oneshot::Receiver<Stream>) -> io::Result<Option<Outcome>> {
        let (mut waits, mut alarm) = (true, Alarm::new());
        loop {
            self.prepare()?;
            if let Phase::Stopped(Stopped::Still(_)) = self.phase {
                return Ok(None);
            }
            let (reads, writes, time) = (self.reads(), self.writes(), self.time());
            // What has come already is written with one call: a call costs as much for a part of it.
            let is_enough = self.down.queue.len() >= WRITE;
            tokio::select! {
                biased;
                stream = &mut *second, if waits => {
                    waits = false;
                    if let Ok(stream) = stream {
                        self.line.set_control(stream, &[]);
                    }
                }
                ready = self.program.ready(reads, writes), if is_enough => self.go_on(ready?)?,
                heard = self.line.next(), if !self.is_left => {
                    if let Some(outcome) = self.hear(heard)? {
                        return Ok(Some(outcome));
                    }
                }
                ready = self.program.ready(reads, writes), if !is_enough => self.go_on(ready?)?,
                () = alarm.until(time) => {
                    if let Phase::Over(until) = self.phase && self.up.is_taken() && Instant::now() >= until {
                        return Ok(Some(Outcome::Ended));
                    }
                }
            }
        }
    }

    /// What follows from how things are.
    fn prepare(&mut self) -> io::Result<()> {
        if self.is_broken_off() {
            self.down.promised = self.down.queue.base();
            self.tell(self.down.promised);
            return Err(broken("the server, or the gateway, broke it"));
        }
        if let Phase::Stopping(stopping) = &mut self.phase
            && let Some(stopped) = stopping.has_stopped(&mut self.program, self.down.queue.base())
        {
            self.stop(stopped)?;
        }
        if !matches!(self.phase, Phase::Active) {
            return Ok(());
        }
        if self.down.has_ended && self.down.queue.is_empty() && !self.down.is_shut {
            self.down.is_shut = true;
            self.program.end()?;
        }
        if self.down.is_shut && self.up.has_ended {
            self.tell(self.down.queue.base());
            self.phase = Phase::Over(Instant::now() + LAST);
        } else {
            self.count();
        }
        Ok(())
    }

    /// Whether the server broke the connection, and the program has what it said before. Until then the
    /// session may still move.
    fn is_broken_off(&self) -> bool {
        let Some(until) = self.down.broken else { return false };
        match self.phase {
            Phase::Active => self.down.queue.is_empty() || Instant::now() >= until,
            Phase::Over(_) => true,
            Phase::Stopping(_) | Phase::Stopped(_) => self.is_left,
        }
    }

    /// Tells the gateway how far the program is, now and then.
    fn count(&mut self) {
        let (written, now) = (self.down.queue.base(), Instant::now());
        if written == self.down.told || now < self.next_count() {
            return;
        }
        self.down.asked = now;
        let unread = self.program.unread(written);
        let taken = written.saturating_sub(unread);
        let longer = (2 * self.down.stands).clamp(OFTEN, STANDS);
        self.down.stands = if taken > self.down.told { Duration::ZERO } else { longer };
        if taken > self.down.told {
            self.down.pace.takes(taken - self.down.told, now);
        }
        self.tell(taken);
    }

    fn next_count(&self) -> Instant {
        let pause = if self.is_much() { OFTEN } else { SELDOM };
        self.down.asked.max(self.down.wrote) + pause.max(self.down.stands)
    }

    /// Whether much was written that the gateway does not know to be taken.
    fn is_much(&self) -> bool {
        self.down.queue.base() - self.down.told >= self.down.pace.much(Instant::now())
    }

    fn tell(&mut self, taken: u64) {
        if taken > self.down.told {
            self.down.told = taken;
            self.line.say_first(&Frame::Count(taken));
        }
    }

    fn reads(&self) -> bool {
        !self.up.has_ended && self.room() > 0 && self.line.has_room() && self.down.broken.is_none()
    }

    /// What may be read at once.
    fn room(&self) -> usize {
        match self.phase {
            Phase::Active => self.up.room(UP),
            Phase::Stopping(_) => self.up.room(UP_STOPPING),
            Phase::Stopped(_) | Phase::Over(_) => 0,
        }
    }

    fn writes(&self) -> bool {
        let is_full = Instant::now() < self.down.full.until;
        matches!(self.phase, Phase::Active) && !self.down.queue.is_empty() && !is_full
    }

    /// When something is to be done if nothing else happens.
    fn time(&self) -> Instant {
        let never = Instant::now() + Duration::from_secs(3600);
        match &self.phase {
            Phase::Active => {
                let is_counted = self.down.queue.base() == self.down.told;
                let count = if is_counted { never } else { self.next_count() };
                let waits = !self.down.queue.is_empty() && !self.writes();
                let next = if waits { count.min(self.down.full.until) } else { count };
                self.down.broken.map_or(next, |until| next.min(until))
            }
            Phase::Stopping(stopping) => stopping.next(),
            Phase::Over(until) if self.up.is_taken() => *until,
            Phase::Over(_) | Phase::Stopped(_) => never,
        }
    }

    fn go_on(&mut self, ready: Ready) -> io::Result<()> {
        if ready.is_writable() && self.writes() {
            self.write()?;
        }
        if ready.is_readable() && self.reads() {
            let (mut some, room) = ([0; LONGEST], self.room());
            let read = self.program.read(&mut some[..room])?;
            self.take(read.map(|n| &some[..n]));
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let wanted = self.down.queue.len().min(WRITE);
        let most = match self.program.room(wanted) {
            Room::Known(0) => {
                self.down.full.until = Instant::now() + self.down.full.pause;
                self.down.full.pause = (2 * self.down.full.pause).min(LATER);
                return Ok(());
            }
            Room::Known(room) => room.min(WRITE),
            Room::Unknown => WRITE,
        };
        self.down.full.pause = SOON;
        self.down.stands = Duration::ZERO;
        let (base, was_much) = (self.down.queue.base(), self.is_much());
        let n = self.program.write(&self.down.queue.first(most))?;
        self.down.queue.release(base + n as u64);
        if base == self.down.told || was_much != self.is_much() {
            self.down.wrote = Instant::now();
        }
        if let Some(until) = self.down.broken.as_mut().filter(|_| n > 0) {
            *until = Instant::now() + BROKEN;
        }
        Ok(())
    }

    /// Takes what was read of a program; nothing is its end. False if there was nothing to read, for now or
    /// for good.
    fn take(&mut self, read: Option<&[u8]>) -> bool {
        match read {
            None => false,
            Some([]) => {
                self.up.has_ended = true;
                self.line.say(&Frame::End);
                false
            }
            Some(bytes) => {
                self.send(bytes);
                true
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        bytes.chunks(LONGEST).for_each(|piece| self.line.say_data(Bytes::copy_from_slice(piece)));
        self.up.sent += bytes.len() as u64;
    }

    /// Says how far the program is, now that it has stopped.
    fn stop(&mut self, stopped: Stopped) -> io::Result<()> {
        while !self.up.has_ended && self.up.room(UP_STOPPING) > 0 {
            let (mut some, room) = ([0; LONGEST], self.up.room(UP_STOPPING));
            let read = self.program.read_now(&mut some[..room])?;
            if !self.take(read.map(|n| &some[..n])) {
                break;
            }
        }
        // What is left of the program's words cannot be taken along.
        let is_whole = self.up.has_ended || !self.program.has_said_more();
        let written = self.down.queue.base();
        let stopped = match stopped {
            Stopped::Still(_) if is_whole => {
                self.program.freeze();
                Stopped::Still(self.program.undelivered(written))
            }
            // It does not move then.
            Stopped::Still(_) | Stopped::Reading => Stopped::Reading,
            Stopped::All => Stopped::All,
        };
        // If it does not move, what was written may still not reach the program.
        let taken = if is_whole { written.saturating_sub(stopped.undelivered()) } else { self.down.told };
        self.down.promised = self.down.promised.max(taken);
        self.say_paused(taken.max(self.down.told), is_whole);
        self.phase = Phase::Stopped(stopped);
        Ok(())
    }

    fn say_paused(&mut self, taken: u64, is_whole: bool) {
        let Up { sent, has_ended, .. } = self.up;
        self.line.say_first(&Frame::Paused(Paused { taken, sent, is_whole, has_ended }));
    }

    fn hear(&mut self, heard: Heard) -> io::Result<Option<Outcome>> {
        let frame = match heard {
            Heard::Nothing => return Ok(None),
            // Also while it was about to move.
            Heard::Gone if self.is_whole() => return Ok(Some(Outcome::Ended)),
            Heard::Gone if self.down.broken.is_some() => {
                self.is_left = true;
                return Ok(None);
            }
            Heard::Gone => return Err(broken("the gateway, or the way to it, ended")),
            Heard::Frame(frame) => frame,
        };
        match frame {
            Frame::Data(bytes) if !self.down.has_ended => {
                let mut skipped = self.down.push(bytes);
                while let Some(more) = self.line.bytes_at_hand() {
                    skipped += self.down.push(more);
                }
                self.has_come(skipped)?;
            }
            Frame::Ahead(to) if !self.down.has_ended && self.down.has_ahead(to) => {
                let skipped = self.down.push_ahead(to);
                self.has_come(skipped)?;
            }
            Frame::End => self.down.has_ended = true,
            Frame::Count(taken) if taken <= self.up.sent => {
                self.up.taken = self.up.taken.max(taken);
                if let Phase::Over(until) = &mut self.phase {
                    *until = Instant::now() + LAST;
                }
            }
            Frame::Pause => self.phase.pause(),
            Frame::Resume => {
                if let Phase::Stopping(_) = self.phase {
                    // Every PAUSE is answered.
                    self.say_paused(self.down.told, false);
                }
                self.phase.resume();
            }
            Frame::Moved => return Ok(Some(Outcome::Moved)),
            // The program gets what the server said before.
            Frame::Broken => self.down.broken = Some(Instant::now() + BROKEN),
            Frame::Data(_) | Frame::Ahead(_) | Frame::Count(_) | Frame::Paused(_) => {
                return Err(broken("the gateway breaks the rules"));
            }
        }
        Ok(None)
    }

    /// Bytes have come of which so many are not for the program.
    fn has_come(&mut self, skipped: u64) -> io::Result<()> {
        self.program.skips(skipped);
        match self.down.queue.len() > MOST_DOWN {
            true => Err(broken("the gateway sends more than it may")),
            false => Ok(()),
        }
    }

    /// Whether both directions have ended, and all was taken.
    fn is_whole(&self) -> bool {
        let Self { down, up, .. } = self;
        down.has_ended && down.queue.is_empty() && up.has_ended && up.is_taken()
    }
}
