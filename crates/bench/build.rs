//! Tells the program which commit it was built from, so that each result can say what it judged.

use std::process::Command;

/// Paths whose changes make the program another one.
const SOURCES: [&str; 3] = ["..", "../../Cargo.toml", "../../Cargo.lock"];

fn main() {
    SOURCES.iter().for_each(|path| println!("cargo::rerun-if-changed={path}"));
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changes = git(&[&["status", "--porcelain", "--"], &SOURCES[..]].concat());
    let mark = if changes.is_some_and(|changes| !changes.is_empty()) { " and changes" } else { "" };
    println!("cargo::rustc-env=WHIMBREL_COMMIT={commit}{mark}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
