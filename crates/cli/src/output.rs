//! What commands print on standard output.

use std::io::{self, Write as _};

use anyhow::Result;
use serde::Serialize;

use crate::failure::Failure;

/// Columns where no terminal says how many it has.
const COLUMNS: usize = 80;
/// In fewer nothing can be read.
const LEAST_COLUMNS: usize = 40;

/// Prints a line. A reader that went away ends the program without a word, as is usual in pipes.
pub(crate) fn line(text: impl AsRef<str>) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{}", text.as_ref()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(1)),
        other => Ok(other?),
    }
}

/// Prints an object on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string(value)?)
}

/// Tells the user something that is no result, on standard error.
pub(crate) fn note(quiet: bool, text: impl AsRef<str>) {
    if !quiet {
        // If nobody reads it there is nobody to tell.
        let _ = writeln!(io::stderr(), "{}", text.as_ref());
    }
}

/// The columns to write in: the terminal's, or 80 where there is none.
pub(crate) fn width() -> usize {
    terminal_width().unwrap_or(COLUMNS).max(LEAST_COLUMNS)
}

/// The terminal's columns, if standard output is one.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    // One that was told no size has none.
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Breaks lines at spaces so that none is wider than `width`, where words let it. What goes on is indented
/// by `hanging` columns more than its line.
pub(crate) fn fit(text: &str, width: usize, hanging: usize) -> String {
    let mut all = Vec::new();
    for line in text.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        let mut now = " ".repeat(indent);
        let mut begun = false;
        for word in words.split(' ') {
            if begun && now.chars().count() + 1 + word.chars().count() > width {
                all.push(now);
                now = " ".repeat(indent + hanging);
                begun = false;
            }
            if begun {
                now.push(' ');
            }
            now.push_str(word);
            begun = true;
        }
        all.push(now);
    }
    all.join("\n")
}

/// `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_lose_no_word() {
        let text = "  from abc: sent 1.00 MiB, received 2.00 MiB → done\n    0 tcp 127.0.0.1:1\nend";
        for width in [20, 30, 200] {
            let fitted = fit(text, width, 4);
            assert!(fitted.lines().all(|line| line.chars().count() <= width), "{fitted}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&fitted), words(text));
        }
        assert_eq!(fit(text, 200, 4), text);
        assert_eq!(fit("  a b", 4, 4), "  a\n      b");
    }
}
