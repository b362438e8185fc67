//! What commands print on standard output.

use std::io::{self, Write as _};

use anyhow::Result;
use serde::Serialize;

use crate::failure::Failure;

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

/// `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}
