//! The program `whimbrel-pageload`: from a recording to a picture, and what is wrong with a recording.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const HAR: &str = r#"{"log":{"entries":[
    {"startedDateTime":"2026-05-01T10:00:00.000Z","time":80,"request":{"url":"https://example.org/"},
     "response":{"headersSize":200,"bodySize":20000}},
    {"startedDateTime":"2026-05-01T10:00:00.100Z","time":300,"request":{"url":"https://example.org/picture.jpg"},
     "response":{"headersSize":200,"bodySize":900000}}]}}"#;

/// Runs the program in a folder that holds the recording `page.har`.
fn run(folder: &Path, args: &str) -> Output {
    fs::write(folder.join("page.har"), HAR).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_whimbrel-pageload"));
    command.args(args.split(' ')).current_dir(folder).output().unwrap()
}

#[track_caller]
fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The program failed with this code, and what it said has all of these in it.
#[track_caller]
fn failed(output: Output, code: i32, says: &[&str]) -> String {
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{told}");
    for part in says {
        assert!(told.contains(part), "no {part:?} in: {told}");
    }
    told
}

#[test]
fn a_recording_becomes_a_waterfall() {
    let folder = tempfile::tempdir().unwrap();
    assert!(printed(run(folder.path(), "waterfall page.har -o page.svg")).contains("page.svg"));
    let drawn = fs::read_to_string(folder.path().join("page.svg")).unwrap();
    for part in ["https://example.org/picture.jpg", "path 1: 20ms,6mbit", "path 2: 50ms,20mbit"] {
        assert!(drawn.contains(part), "{part}");
    }
    assert!(fs::read(folder.path().join("page.png")).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn policies_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let line = printed(run(folder.path(), "load page.har --policy eaf --json"));
    let load: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(load["objects"].as_array().unwrap().len(), 2);
    let output = run(folder.path(), "load page.har --policy fastest");
    assert_eq!(failed(output, 1, &["whimbrel-pageload: ", "fastest", "there are"]).lines().count(), 1);
}

#[test]
fn what_is_wrong_with_a_recording_is_told_with_file_and_entry() {
    let folder = tempfile::tempdir().unwrap();
    let broken = HAR.replace("2026-05-01T10:00:00.100Z", "yesterday");
    fs::write(folder.path().join("broken.har"), broken).unwrap();
    let output = run(folder.path(), "waterfall broken.har");
    let told = failed(output, 1, &["broken.har", "entry 1", "picture.jpg", "yesterday"]);
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn every_part_has_help_with_an_example() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["load", "waterfall", "experiment", "report", "bench"] {
        let help = printed(run(folder.path(), &format!("{part} --help")));
        assert!(help.contains(&format!("Example:\n  whimbrel-pageload {part} ")), "{part}: {help}");
    }
    failed(run(folder.path(), "load"), 2, &["<PAGES>", "whimbrel-pageload load", "--help"]);
}
