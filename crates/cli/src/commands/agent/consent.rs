//! Whether the user wants a program started.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::{Mutex, mpsc};

use crate::options::Globals;

/// For an answer.
const ANSWER: Duration = Duration::from_secs(60);
/// For the desktop to take a notification.
const NOTICE: Duration = Duration::from_secs(20);
/// Lines that were typed while nothing was asked.
const LINES: usize = 8;

/// How the user is asked.
pub(super) enum Consent {
    /// Somebody at a terminal, one question after the other.
    Terminal(Mutex<mpsc::Receiver<String>>),
    /// There is no terminal to answer at. The desktop is told, if there is one.
    Desktop,
}

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    No,
    /// There was no answer.
    Nobody,
}

impl Consent {
    /// At this process's terminal, if it has one. Standard input is read from now on then.
    pub(super) fn new(globals: &Globals) -> Self {
        let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if !is_terminal || globals.until_eof {
            return Self::Desktop;
        }
        let (sender, lines) = mpsc::channel(LINES);
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                // What is typed while nothing is asked is no answer.
                if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(line) {
                    return;
                }
            }
        });
        Self::Terminal(Mutex::new(lines))
    }

    /// Asks. `how` says how the user does it without an answer.
    pub(super) async fn ask(&self, question: &str, how: &str) -> Answer {
        let Self::Terminal(lines) = self else {
            notify(&format!("{question} {how}")).await;
            return Answer::Nobody;
        };
        let mut lines = lines.lock().await;
        while lines.try_recv().is_ok() {}
        // If nobody reads it nobody answers.
        let _ = write!(std::io::stderr(), "{question}\n[y/N] ");
        let answer = tokio::time::timeout(ANSWER, lines.recv()).await;
        match answer.ok().flatten() {
            Some(text) if matches!(text.trim().to_lowercase().as_str(), "y" | "yes") => Answer::Yes,
            Some(_) => Answer::No,
            None => Answer::Nobody,
        }
    }
}

/// Tells the desktop, if this machine has a program for that.
pub(super) async fn notify(text: &str) {
    // Desktops take a few elements of HTML.
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut command = Command::new("notify-send");
    command.args(["--app-name=whimbrel", "--", "whimbrel", &text]).kill_on_drop(true);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let told = match spawned {
        Ok(mut child) => tokio::time::timeout(NOTICE, child.wait()).await.is_ok(),
        Err(_) => false,
    };
    tracing::debug!(told, "a notification for the desktop");
}
