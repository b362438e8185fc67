//! Asks the person at the terminal whether something may come.

use std::collections::{HashMap, HashSet};
use std::io::BufRead as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::mpsc;
use whimbrel_base::EndpointId;
use whimbrel_transport::Connection;

use crate::progress::Board;

/// How long a question waits for its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
/// After so many times "no" a peer is not asked about again.
const MOST_REFUSALS: u32 = 3;
/// Lines that are kept before anybody reads them.
const LINES: usize = 8;

/// Asks one question at a time.
pub(crate) struct Asker {
    lines: tokio::sync::Mutex<mpsc::Receiver<String>>,
    board: Board,
    waiting: Mutex<HashSet<EndpointId>>,
    refusals: Mutex<HashMap<EndpointId, u32>>,
}

impl Asker {
    /// Reads standard input from now on.
    pub(crate) fn new(board: Board) -> Self {
        let (sender, lines) = mpsc::channel(LINES);
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                // What is typed while nothing is asked is no answer.
                if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(line) {
                    return;
                }
            }
        });
        Self {
            lines: tokio::sync::Mutex::new(lines),
            board,
            waiting: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Asks, and waits for the answer while the peer is there.
    ///
    /// # Errors
    /// Without a yes; for the peer to read.
    pub(super) async fn ask(&self, connection: &Connection, question: &str) -> Result<()> {
        let peer = connection.peer_id();
        let refusals = || self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals().get(&peer).is_some_and(|times| *times >= MOST_REFUSALS) {
            bail!("the receiver said no, several times");
        }
        let _waiting = Waiting::new(&self.waiting, peer)?;
        let mut lines = self.lines.lock().await;
        while lines.try_recv().is_ok() {}
        self.board.ask(&format!("{question}\n[y/N] "));
        let answer = tokio::select! {
            answer = tokio::time::timeout(ANSWER_LIMIT, lines.recv()) => answer,
            _ = connection.closed() => {
                self.board.note("the sender went away");
                bail!("the sender went away");
            }
        };
        match answer {
            Ok(Some(text)) if matches!(text.trim().to_lowercase().as_str(), "y" | "yes") => Ok(()),
            Ok(Some(_)) => {
                *refusals().entry(peer).or_default() += 1;
                bail!("the receiver said no")
            }
            Ok(None) => bail!("nobody is there to say yes; start `whimbrel receive` with --yes"),
            Err(_) => bail!("nobody answered the question whether it may come"),
        }
    }
}

/// A peer whose question waits: it has no second one.
struct Waiting<'a> {
    all: &'a Mutex<HashSet<EndpointId>>,
    peer: EndpointId,
}

impl<'a> Waiting<'a> {
    fn new(all: &'a Mutex<HashSet<EndpointId>>, peer: EndpointId) -> Result<Self> {
        if !all.lock().unwrap_or_else(PoisonError::into_inner).insert(peer) {
            bail!("another offer of this sender waits for an answer; wait for it");
        }
        Ok(Self { all, peer })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.peer);
    }
}
