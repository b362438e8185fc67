//! The terminal's second page, and every key for itself, until it is given back: whatever ends the program.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use crossterm::event::Event;
use crossterm::terminal;
use tokio::sync::mpsc;

/// Keys that were pressed and not looked at yet.
const BACKLOG: usize = 256;
/// Columns and rows where no terminal says how many it has.
const SIZE: (usize, usize) = (80, 24);

/// Whether the terminal is taken. A process has one.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A terminal that was taken. Dropped, also by a panic, it is as it was before.
pub(crate) struct FullScreen {
    events: mpsc::Receiver<Event>,
}

impl FullScreen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When it does not let itself be taken.
    pub(crate) fn open() -> Result<Self> {
        terminal::enable_raw_mode().context("cannot use the terminal")?;
        let (sender, events) = mpsc::channel(BACKLOG);
        // Made before anything that can fail: dropped, it gives the terminal back.
        let this = Self { events };
        IS_TAKEN.store(true, Ordering::SeqCst);
        tell_panics_on_the_first_page();
        put("\x1b[?1049h")?;
        // Nothing ends a read of the terminal but the end of the program.
        std::thread::spawn(move || {
            while let Ok(event) = crossterm::event::read() {
                if sender.blocking_send(event).is_err() {
                    return;
                }
            }
        });
        Ok(this)
    }

    /// The next key or change of size; `None` once the terminal is gone. Cancel-safe.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Writes to the terminal.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn put(&self, text: &str) -> io::Result<()> {
        put(text)
    }

    /// Columns and rows, of which there is one at least.
    pub(crate) fn size(&self) -> (usize, usize) {
        let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
        let size = size.map_or(SIZE, |size| (size.ws_col.into(), size.ws_row.into()));
        // One that does not know says 0.
        if size.0 == 0 || size.1 == 0 { SIZE } else { size }
    }

    /// Gives the terminal back; what is printed from then on stays.
    pub(crate) fn close(&mut self) {
        give_back();
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // A terminal that is gone needs nothing.
        let _ = put("\x1b[?25h\x1b[?1049l");
        let _ = terminal::disable_raw_mode();
    }
}

/// What a panic of this thread says would be gone with the second page. One of a task ends that task alone,
/// and the page stays.
fn tell_panics_on_the_first_page() {
    let (before, owner) = (std::panic::take_hook(), std::thread::current().id());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() == owner {
            give_back();
        }
        before(panic);
    }));
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
