//! The lines that a program says, read by a thread as they come.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// The lines of this output. The thread ends with it, or when nobody takes them any more.
pub(crate) fn of(output: impl Read + Send + 'static) -> (Receiver<String>, JoinHandle<()>) {
    let (sender, lines) = channel();
    let reading = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    (lines, reading)
}
