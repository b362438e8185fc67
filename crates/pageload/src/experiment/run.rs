//! Running a design on all cores.

use super::design::{Design, DesignError, Setting};
use super::results::{ResultsError, Writer, line};
use crate::har::HarError;
use crate::page::Page;
use crate::pages;
use crate::scenario::Outcome;
use crate::simulator::{Conditions, Simulator};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use whimbrel_access::{Policy, PolicyError};

/// Rows that a worker computes at once.
const CHUNK: usize = 16;
/// Chunks that may wait for an earlier one to be written.
const AHEAD: usize = 256;

/// Told how it goes on.
pub trait Progress: Sync {
    /// So many rows are there already, of so many.
    fn begin(&self, rows: usize, of: usize);
    /// So many more rows.
    fn rows(&self, count: usize);
}

/// Why an experiment stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The design is wrong.
    #[error(transparent)]
    Design(#[from] DesignError),
    /// A page is wrong.
    #[error(transparent)]
    Har(#[from] HarError),
    /// Results can't be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A policy is wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A worker ended early.
    #[error("a worker ended early")]
    Worker,
}

/// Simulate everything in a design that `out` has not yet, on so many threads. Blocks until all is done.
///
/// The file is the same whatever the number of threads, and however often the run was interrupted.
///
/// # Errors
/// [`RunError`] if the design, a page or the file can't be used.
pub fn run(design: &Design, out: &Path, threads: usize, progress: &dyn Progress) -> Result<(), RunError> {
    let settings = design.settings()?;
    let pages = pages::read(&design.pages)?
        .iter()
        .enumerate()
        .filter(|(position, _)| design.purpose.takes(*position))
        .map(|(_, har)| Page::new(har, design.model.reading()))
        .collect::<Result<Vec<_>, _>>()?;
    if pages.is_empty() {
        let pages = design.pages.display();
        return Err(DesignError::Sense(format!("{pages} has no page for this purpose")).into());
    }
    let mut writer = Writer::open(out, design)?;
    let rows = pages.len() * settings.len();
    progress.begin(writer.rows.min(rows), rows);
    let work = Work { design, settings: &settings, pages: &pages, next: AtomicUsize::new(writer.rows) };
    let work = &work;
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(AHEAD);
        for _ in 0..threads.max(1) {
            let send = send.clone();
            scope.spawn(move || work.until_done(&send, stop));
        }
        drop(send);
        let written = write_in_order(&mut writer, &receive, rows, progress);
        stop.store(true, Ordering::Relaxed);
        written
    })
}

type Chunk = Result<(usize, usize, String), RunError>;

/// Rows come in any order and are written in theirs.
fn write_in_order(
    writer: &mut Writer,
    chunks: &mpsc::Receiver<Chunk>,
    rows: usize,
    progress: &dyn Progress,
) -> Result<(), RunError> {
    let mut next = writer.rows;
    let mut early = BTreeMap::new();
    for chunk in chunks {
        let (first, count, text) = chunk?;
        early.insert(first, (count, text));
        progress.rows(count);
        while let Some((count, text)) = early.remove(&next) {
            writer.write(&text)?;
            next += count;
        }
    }
    if next < rows { Err(RunError::Worker) } else { Ok(()) }
}

struct Work<'a> {
    design: &'a Design,
    settings: &'a [Setting],
    pages: &'a [Page],
    /// The first row that nobody has taken.
    next: AtomicUsize,
}

impl Work<'_> {
    fn until_done(&self, send: &mpsc::SyncSender<Chunk>, stop: &AtomicBool) {
        let mut worker = match Worker::new(self.design) {
            Ok(worker) => worker,
            Err(error) => return drop(send.send(Err(error))),
        };
        let rows = self.pages.len() * self.settings.len();
        while !stop.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(CHUNK, Ordering::Relaxed);
            if first >= rows {
                return;
            }
            let count = CHUNK.min(rows - first);
            let text = (first..first + count).map(|row| self.row(&mut worker, row)).collect();
            if send.send(Ok((first, count, text))).is_err() {
                return;
            }
        }
    }

    fn row(&self, worker: &mut Worker, row: usize) -> String {
        let page = &self.pages[row / self.settings.len()];
        let setting = &self.settings[row % self.settings.len()];
        let plts = worker.load_all(page, setting, self.design, row as u64);
        line(&page.name, page.bytes(), setting, &plts) + "\n"
    }
}

/// A simulator with its policies.
struct Worker {
    simulator: Simulator,
    policies: Vec<Box<dyn Policy>>,
    outcome: Outcome,
}

impl Worker {
    fn new(design: &Design) -> Result<Self, RunError> {
        let policies = design.policies.iter().map(|policy| policy.spec.build()).collect::<Result<_, _>>()?;
        Ok(Self { simulator: Simulator::new(), policies, outcome: Outcome::default() })
    }

    fn load_all(&mut self, page: &Page, setting: &Setting, design: &Design, row: u64) -> Vec<f64> {
        // All policies of a row meet the same chances; another row meets others.
        let seed = design.seed ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (networks, settings) = (&setting.networks, &design.modern);
        let conditions = Conditions { model: design.model, networks, settings, seed };
        let mut plts = Vec::with_capacity(self.policies.len());
        for policy in &mut self.policies {
            self.simulator.load(page, conditions, policy.as_mut(), &mut self.outcome);
            plts.push(self.outcome.plt);
        }
        plts
    }
}
