//! What files and directories may be called that come from somebody else.

use anyhow::{Result, bail};

pub(super) const SUFFIX: &str = ".whimbrel-part";
/// Most file systems take no longer names.
const MAX_NAME: usize = 255;

/// Names that are devices on Windows, with and without an extension.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

/// The name of what is on its way, if this is where it is.
pub(super) fn of_part(part: &str) -> Option<&str> {
    part.strip_prefix('.')?.strip_suffix(SUFFIX).filter(|name| !name.is_empty())
}

/// Checks a name: one component of a path that shells, terminals and file systems take for nothing else.
///
/// # Errors
/// One line that says what is wrong with it.
pub(crate) fn check(name: &str) -> Result<()> {
    if let Some(reason) = wrong(name) {
        bail!("the name {name:?} is refused: it {reason}");
    }
    Ok(())
}

fn wrong(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is empty");
    }
    if name.contains(['/', '\\']) || name == ".." || name == "." {
        return Some("is a path");
    }
    if name.chars().any(char::is_control) {
        return Some("has control characters");
    }
    if name.chars().any(misleads) {
        return Some("has characters that are not seen or change the direction of text");
    }
    match name.chars().next() {
        Some('.') => return Some("begins with a dot"),
        Some('-') => return Some("begins with '-', as options do"),
        Some('~') => return Some("begins with '~', as home directories do"),
        _ => {}
    }
    if name.ends_with(['.', ' ']) {
        return Some("ends with a dot or a space");
    }
    if is_device(name) {
        return Some("is that of a device on some systems");
    }
    if name.ends_with(SUFFIX) {
        return Some("is that of a file on its way");
    }
    // What arrives has a dot and the suffix more until it is whole.
    (name.len() + SUFFIX.len() + 1 > MAX_NAME).then_some("is too long")
}

/// Marks of direction, separators of lines, and what has no width but is no part of a word.
fn misleads(c: char) -> bool {
    matches!(c,
        '\u{061c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_lowercase();
    let numbered = ["com", "lpt"].iter().any(|kind| {
        stem.strip_prefix(kind).is_some_and(|rest| {
            let mut rest = rest.chars();
            let digit = rest.next().is_some_and(|c| c.is_ascii_digit() || matches!(c, '¹' | '²' | '³'));
            digit && rest.next().is_none()
        })
    });
    numbered || DEVICES.contains(&stem.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ordinary_names_are_taken() {
        let long = "x".repeat(MAX_NAME - SUFFIX.len() - 1);
        for name in [
            "a",
            "a b.tar.gz",
            "é",
            "日本語.txt",
            "a-b",
            "a~",
            "console",
            "com",
            "com10",
            "nullable",
            "שלום",
            &long,
        ] {
            check(name).unwrap();
        }
    }

    #[test]
    fn names_that_are_treated_specially_are_refused_in_one_line() {
        let long = "x".repeat(MAX_NAME - SUFFIX.len());
        for name in [
            "",
            ".",
            "..",
            "/",
            "/etc/passwd",
            "../a",
            "a/b",
            "a/",
            "./a",
            "a\\b",
            "a\n",
            "a\0",
            "a\u{7f}",
            "a\u{9b}",
            "...",
            ".bashrc",
            "-rf",
            "--help",
            "~",
            "~root",
            "a.",
            "a ",
            "con",
            "CON.txt",
            "nul ",
            "nul .txt",
            "Com1",
            "lpt9.x",
            "COM²",
            "conin$",
            "gpj\u{202e}.exe",
            "a\u{2066}b",
            "a\u{200f}",
            "\u{feff}a",
            "a\u{200b}",
            "a.whimbrel-part",
            &long,
        ] {
            let error = check(name).unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
