//! Progress of a file: a bar on a terminal, a plain line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

const PLAIN_EVERY: Duration = Duration::from_secs(2);
const TEMPLATE: &str =
    "{msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// Where the progress of all files is shown.
#[derive(Clone)]
pub(crate) struct Board {
    bars: MultiProgress,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bars,
    Plain,
    None,
}

impl Board {
    pub(crate) fn new(quiet: bool) -> Self {
        let kind = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Kind::None,
            (false, true) => Kind::Bars,
            (false, false) => Kind::Plain,
        };
        let target =
            if kind == Kind::Bars { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { bars: MultiProgress::with_draw_target(target), kind }
    }

    /// A file of `size` bytes of which `done` are there already.
    pub(crate) fn file(&self, name: &str, size: u64, done: u64) -> Progress {
        let bar = self.bars.add(ProgressBar::new(size));
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(name.to_owned());
        bar.set_position(done);
        // What was there before says nothing about the rate now.
        bar.reset_eta();
        let started = Instant::now();
        Progress { bar, kind: self.kind, name: name.to_owned(), size, begun_at: done, started, told: started }
    }

    /// A board that shows nothing: for the parts of what is shown as a whole.
    pub(crate) fn nowhere(&self) -> Self {
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()), kind: Kind::None }
    }

    /// Prints a question, whose answer is typed below it.
    pub(crate) fn ask(&self, text: &str) {
        self.bars.suspend(|| {
            let mut errors = std::io::stderr().lock();
            // If nobody reads it, nobody answers.
            let _ = errors.write_all(text.as_bytes()).and_then(|()| errors.flush());
        });
    }

    /// Prints a line above the bars.
    pub(crate) fn note(&self, text: &str) {
        match self.kind {
            Kind::Bars => self.bars.suspend(|| output::note(false, text)),
            Kind::Plain => output::note(false, text),
            Kind::None => {}
        }
    }
}

/// One file's progress.
pub(crate) struct Progress {
    bar: ProgressBar,
    kind: Kind,
    name: String,
    size: u64,
    begun_at: u64,
    started: Instant,
    told: Instant,
}

impl Progress {
    pub(crate) fn at(&mut self, done: u64) {
        self.bar.set_position(done);
        if self.kind == Kind::Plain && self.told.elapsed() >= PLAIN_EVERY {
            self.told = Instant::now();
            output::note(false, self.plain(done));
        }
    }

    fn plain(&self, done: u64) -> String {
        let rate = done.saturating_sub(self.begun_at) as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        let left = self.size.saturating_sub(done) as f64 / rate.max(1.0);
        format!(
            "{}: {} of {} ({} %), {}/s, {left:.0} s left",
            self.name,
            output::bytes(done),
            output::bytes(self.size),
            // Another device may say any number.
            100 * u128::from(done) / u128::from(self.size.max(1)),
            output::bytes(rate as u64),
        )
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
