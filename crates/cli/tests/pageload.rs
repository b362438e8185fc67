//! `whimbrel pageload`: from a recording to a picture, and what is wrong with a recording.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::World;

const HAR: &str = r#"{"log":{"entries":[
    {"startedDateTime":"2026-05-01T10:00:00.000Z","time":80,"request":{"url":"https://example.org/"},
     "response":{"headersSize":200,"bodySize":20000}},
    {"startedDateTime":"2026-05-01T10:00:00.100Z","time":300,"request":{"url":"https://example.org/picture.jpg"},
     "response":{"headersSize":200,"bodySize":900000}}]}}"#;

#[test]
fn a_recording_becomes_a_waterfall() {
    let world = World::new();
    let (har, picture) = (world.path("page.har"), world.path("page.svg"));
    fs::write(&har, HAR).unwrap();
    let args = ["pageload", "waterfall", har.to_str().unwrap(), "-o", picture.to_str().unwrap()];
    assert!(world.run("a", &args).succeeded().stdout.contains("page.svg"));
    let drawn = fs::read_to_string(&picture).unwrap();
    for part in ["https://example.org/picture.jpg", "path 1: 20ms,6mbit", "path 2: 50ms,20mbit"] {
        assert!(drawn.contains(part), "{part}");
    }
    assert!(fs::read(world.path("page.png")).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn policies_are_compared() {
    let world = World::new();
    let har = world.path("page.har");
    fs::write(&har, HAR).unwrap();
    let output = world.run("a", &["pageload", "load", har.to_str().unwrap(), "--policy", "eaf", "--json"]);
    assert_eq!(output.succeeded().json()["objects"].as_array().unwrap().len(), 2);
    let output = world.run("a", &["pageload", "load", har.to_str().unwrap(), "--policy", "fastest"]);
    output.failed(1, &["fastest", "there are", "whimbrel"]);
}

#[test]
fn what_is_wrong_with_a_recording_is_told_with_file_and_entry() {
    let world = World::new();
    let har = world.path("broken.har");
    fs::write(&har, HAR.replace("2026-05-01T10:00:00.100Z", "yesterday")).unwrap();
    let output = world.run("a", &["pageload", "waterfall", har.to_str().unwrap()]);
    output.failed(1, &["broken.har", "entry 1", "picture.jpg", "yesterday"]);
}

#[test]
fn every_part_has_help_with_an_example() {
    let world = World::new();
    for part in ["load", "waterfall", "experiment", "report", "bench"] {
        let output = world.run("a", &["pageload", part, "--help"]);
        assert!(
            output.succeeded().stdout.contains(&format!("Example:\n  whimbrel pageload {part} ")),
            "{part}"
        );
    }
    world.run("a", &["pageload", "load"]).failed(2, &["whimbrel pageload load --help"]);
}
