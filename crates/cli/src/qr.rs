//! QR codes (ISO/IEC 18004) in a terminal: for a code that a camera reads more easily than somebody types it.
//!
//! ```text
//! codewords    bytes with their error correction, in the order of the symbol
//! symbol       where they are in the square
//! ```

mod codewords;
mod symbol;

use std::io::IsTerminal as _;

use anyhow::Result;

use self::codewords::{Level, MAX_VERSION};
use self::symbol::Symbol;
use crate::output;

/// Modules of nothing around a symbol.
const QUIET: usize = 4;
/// Black on white, whatever the terminal's colours are.
const ON_WHITE: &str = "\u{1b}[0;30;107m";
const AS_BEFORE: &str = "\u{1b}[0m";

/// Prints a text as a QR code, if there is a terminal in which it fits. Says so if not: the text is printed
/// beside it anyway.
///
/// # Errors
/// When nobody reads it.
pub(crate) fn print(quiet: bool, text: &str) -> Result<()> {
    if !std::io::stdout().is_terminal() {
        output::note(quiet, "--qr is for terminals, and this is none");
        return Ok(());
    }
    let lines = lines(text, output::width());
    if lines.is_none() {
        output::note(quiet, "the QR code does not fit in this terminal");
    }
    lines.into_iter().flatten().try_for_each(|line| output::line(format!("{ON_WHITE}{line}{AS_BEFORE}")))
}

/// A text's code in lines of half blocks. `None` if it is too long or wide.
fn lines(text: &str, columns: usize) -> Option<Vec<String>> {
    let symbol = smallest(text.as_bytes())?;
    let all = symbol.size() + 2 * QUIET;
    if all > columns {
        return None;
    }
    let is_dark = |x: usize, y: usize| {
        let at = |place: usize| place.checked_sub(QUIET).filter(|place| *place < symbol.size());
        at(x).zip(at(y)).is_some_and(|(x, y)| symbol.is_dark(x, y))
    };
    let half = |x: usize, y: usize| match (is_dark(x, y), is_dark(x, y + 1)) {
        (true, true) => '█',
        (true, false) => '▀',
        (false, true) => '▄',
        (false, false) => ' ',
    };
    Some((0..all).step_by(2).map(|y| (0..all).map(|x| half(x, y)).collect()).collect())
}

/// The smallest symbol that has these bytes, with the best correction that it has room for.
fn smallest(bytes: &[u8]) -> Option<Symbol> {
    let mut all = (1..=MAX_VERSION).flat_map(|version| [(version, Level::M), (version, Level::L)]);
    let (version, level, words) =
        all.find_map(|(version, level)| Some((version, level, codewords::of(bytes, version, level)?)))?;
    Some(Symbol::clearest(version, level, &words))
}

#[cfg(test)]
mod tests;
