//! The thread behind a link: carries frames between two TAP devices as the shapers say.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::frame::Frame;
use crate::shaper::Shaper;
use crate::{Direction, Error, LinkSpec, Result, Shape, Stats, sys};

/// Frames read from one end before the other gets its turn.
const BATCH: usize = 64;
const LARGEST_FRAME: usize = 65_535 + 18;

/// A running link. Ends with its last handle.
pub(crate) struct Emulator {
    wire: Arc<Wire>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the handles share.
struct Wire {
    began: Instant,
    taps: [File; 2],
    state: Mutex<State>,
    wake: OwnedFd,
    stop: AtomicBool,
    /// The thread rests for so long after each round of work.
    grain: Duration,
}

/// Shapers and cables, by the end that sends: end 0 is the first host's.
struct State {
    shapers: [Shaper<Frame>; 2],
    plugged: [bool; 2],
}

impl Emulator {
    pub(crate) fn start(taps: [File; 2], spec: &LinkSpec) -> Result<Self> {
        let failed = |source| Error::Spawn { what: "a link's thread".into(), source };
        let shapers = [
            Shaper::new(spec.forward.clone(), spec.seed),
            Shaper::new(spec.backward.clone(), spec.seed.wrapping_add(1)),
        ];
        let wake = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let wire = Arc::new(Wire {
            began: Instant::now(),
            taps,
            state: Mutex::new(State { shapers, plugged: [true; 2] }),
            wake: wake.map_err(|errno| failed(errno.into()))?,
            stop: AtomicBool::new(false),
            grain: spec.grain,
        });
        let runner = wire.clone();
        let thread =
            thread::Builder::new().name("lab-link".into()).spawn(move || runner.run()).map_err(failed)?;
        Ok(Self { wire, thread: Some(thread) })
    }

    pub(crate) fn change(&self, direction: Direction, change: impl Fn(&mut Shape)) {
        let now = self.wire.now();
        let mut state = self.wire.lock();
        for (shaper, chosen) in state.shapers.iter_mut().zip(chosen(direction)) {
            if chosen {
                let mut shape = shaper.shape().clone();
                change(&mut shape);
                shaper.set_shape(now, shape);
            }
        }
        drop(state);
        self.wire.wake_up();
    }

    pub(crate) fn shape(&self, end: usize) -> Shape {
        self.wire.lock().shapers[end].shape().clone()
    }

    pub(crate) fn stats(&self, direction: Direction) -> Stats {
        let state = self.wire.lock();
        let selected = state.shapers.iter().zip(chosen(direction)).filter(|(_, chosen)| *chosen);
        selected.fold(Stats::default(), |sum, (shaper, _)| sum + shaper.stats())
    }

    pub(crate) fn set_carrier(&self, end: usize, plugged: bool) -> std::io::Result<()> {
        self.wire.lock().plugged[end] = plugged;
        sys::set_tap_carrier(&self.wire.taps[end], plugged)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.wire.stop.store(true, Ordering::Release);
        self.wire.wake_up();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn chosen(direction: Direction) -> [bool; 2] {
    [direction.includes_forward(), direction.includes_backward()]
}

impl Wire {
    fn run(&self) {
        if let Err(error) = be_punctual() {
            tracing::debug!(%error, "link runs at ordinary priority");
        }
        let mut buffer = vec![0; LARGEST_FRAME];
        while !self.stop.load(Ordering::Acquire) {
            let next = self.deliver_due();
            if !self.wait(next) {
                tracing::debug!("a link's device is gone");
                return;
            }
            (0..2).for_each(|end| self.take_in(end, &mut buffer));
            if !self.grain.is_zero() {
                thread::sleep(self.grain);
            }
        }
    }

    /// Writes what has arrived and says when more will.
    fn deliver_due(&self) -> Option<Duration> {
        let mut state = self.lock();
        let State { shapers, plugged } = &mut *state;
        let now = self.now();
        for (from, shaper) in shapers.iter_mut().enumerate() {
            let to = 1 - from;
            while let Some(frame) = shaper.take_due(now) {
                if plugged[to] {
                    self.write(to, &frame);
                }
            }
        }
        shapers.iter().filter_map(Shaper::next_due).min()
    }

    /// Waits for frames, for a changed setting, or for the next arrival. False if a device is gone.
    fn wait(&self, next: Option<Duration>) -> bool {
        let timeout = next.map(|next| {
            let wait = next.saturating_sub(self.now());
            Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos() as _ }
        });
        let [first, second] = &self.taps;
        let mut fds = [
            PollFd::new(first, PollFlags::IN),
            PollFd::new(second, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return true;
        }
        if fds[2].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        !fds[..2].iter().any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::NVAL))
    }

    /// Reads a batch of frames from one end and gives them to its shaper.
    fn take_in(&self, end: usize, buffer: &mut [u8]) {
        let mut frames = Vec::new();
        while frames.len() < BATCH {
            match (&self.taps[end]).read(buffer) {
                Ok(length) => frames.push(Frame(buffer[..length].to_vec())),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if frames.is_empty() {
            return;
        }
        let mut state = self.lock();
        let now = self.now();
        let State { shapers, plugged } = &mut *state;
        for frame in frames {
            if !plugged[0] || !plugged[1] {
                shapers[end].count_swallowed();
            } else if frame.is_group_chatter() {
                // A radio must be able to sleep: what a kernel tells to groups is not the traffic of any
                // test.
            } else if frame.is_address_resolution() && !shapers[end].shape().blackhole {
                self.write(1 - end, &frame);
            } else {
                shapers[end].offer(now, frame);
            }
        }
    }

    fn write(&self, end: usize, frame: &Frame) {
        if let Err(error) = (&self.taps[end]).write(&frame.0) {
            // The interface is down: a real one would not notice the frame either.
            tracing::trace!(%error, "frame not taken");
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_up(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Asks for wake-ups to the microsecond, and at once.
fn be_punctual() -> std::io::Result<()> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    sys::prefer_this_thread()
}
