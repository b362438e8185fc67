//! A command in a host of the lab that goes on, and the lines that it says.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::cell::RefCell;
use std::process::Stdio;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use whimbrel_lab::{HostChild, HostCommand};

use crate::lines;

/// For whatever must come at all.
pub const LIMIT: Duration = Duration::from_secs(40);

/// When a test fails, what each of them has said is part of its output.
pub struct Running {
    pub child: HostChild,
    pub lines: Receiver<String>,
    said: RefCell<Vec<String>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.said.get_mut().extend(self.lines.try_iter());
            eprintln!("--- a command said:\n{}", self.said.get_mut().join("\n"));
        }
    }
}

impl Running {
    /// Starts a command, whose standard output is read.
    pub fn start(command: HostCommand) -> Self {
        let command = command.with(|command| {
            command.stdin(Stdio::null()).stdout(Stdio::piped());
        });
        let mut child = command.spawn().unwrap();
        let output = child.child().stdout.take().unwrap();
        let (lines, _) = lines::of(output);
        Self { child, lines, said: RefCell::default() }
    }

    #[track_caller]
    pub fn next(&self) -> String {
        let line = self.lines.recv_timeout(LIMIT).unwrap();
        self.said.borrow_mut().push(line.clone());
        line
    }

    /// Waits for a line that this holds for.
    #[track_caller]
    pub fn until(&self, what: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            let line = self.next();
            if what(&line) {
                return line;
            }
            assert!(Instant::now() < end, "the last line was {line}");
        }
    }

    /// Waits for the end: the exit code, and the lines that were not read yet.
    #[track_caller]
    pub fn finish(&mut self) -> (Option<i32>, Vec<String>) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.child().try_wait().unwrap() {
                break status;
            }
            assert!(
                start.elapsed() < LIMIT,
                "still running; it said {:?}",
                self.lines.try_iter().collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        // What it started may go on with its output; nobody waits for that.
        let mut said = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(200)) {
            said.push(line);
        }
        (status.code(), said)
    }

    /// As `kill -9` does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
    }
}
