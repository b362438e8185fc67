//! HAR files as they are: from several browsers, with what is missing in them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use whimbrel_pageload::har::Har;
use whimbrel_pageload::page::{Kind, Page, Reading};

fn entry(started: &str, time: &str, url: &str, response: &str) -> String {
    format!(
        r#"{{"startedDateTime":"{started}","time":{time},"request":{{"method":"GET","url":"{url}"}},"response":{response},"timings":{{"wait":5}}}}"#
    )
}

fn page(entries: &[String], reading: Reading) -> Result<Page, String> {
    let text = format!(r#"{{"log":{{"version":"1.2","entries":[{}]}}}}"#, entries.join(","));
    let har = Har::parse("x.har", text.as_bytes()).map_err(|error| error.to_string())?;
    Page::new(&har, reading).map_err(|error| error.to_string())
}

const KB: &str = r#"{"headersSize":100,"bodySize":900}"#;

#[test]
fn an_entry_waits_for_the_last_that_ended_before_it_started() {
    let entries = [
        entry("2020-01-01T00:00:00.000+00:00", "100", "https://a.org/", KB),
        entry("2020-01-01T00:00:00.050+00:00", "20", "https://a.org/x", KB),
        entry("2020-01-01T00:00:00.090+00:00", "10", "https://a.org/y", KB),
        entry("2020-01-01T00:00:00.200+00:00", "10", "https://b.org/z", KB),
    ];
    let page = page(&entries, Reading::Paper).unwrap();
    assert_eq!(page.roots, [0, 1]);
    assert_eq!((page.children(0), page.children(1)), (&[][..], &[2u16][..]));
    // The first and y both ended at 100 ms; of equals the later in page order is the parent.
    assert_eq!(page.children(2), [3]);
    assert_eq!(page.hosts, ["a.org", "b.org"]);
}

#[test]
fn zones_and_order_are_honoured_by_the_modern_reading_only() {
    let entries = [
        entry("2020-01-01T01:00:00.100+01:00", "10", "https://a.org/b", KB),
        entry("2020-01-01T00:00:00.000Z", "10", "https://a.org/a", KB),
    ];
    let modern = page(&entries, Reading::Modern).unwrap();
    assert_eq!(modern.transfers[0].url, "https://a.org/a");
    assert!((modern.transfers[1].started - 0.1).abs() < 1e-12);
    let error = page(&entries, Reading::Paper).unwrap_err();
    assert!(error.starts_with("x.har: entry 1 (https://a.org/a): starts before the first entry"), "{error}");
}

#[test]
fn sizes_come_from_wherever_they_are_stated() {
    let size = |response: &str| {
        page(&[entry("2020-01-01T00:00:00Z", "1", "https://a.org/", response)], Reading::Modern)
            .map(|page| page.transfers[0].size)
    };
    assert_eq!(size(r#"{"headersSize":-1,"bodySize":-1,"_transferSize":777}"#), Ok(777.0));
    assert_eq!(size(r#"{"headersSize":-1,"bodySize":-1,"content":{"size":55}}"#), Ok(55.0));
    assert_eq!(size(r#"{"headers":[{"name":"content-length","value":"40"}],"headersSize":2}"#), Ok(42.0));
    let error = size(r#"{"bodySize":-1}"#).unwrap_err();
    assert_eq!(error, "x.har: no entry has a size: save the HAR with response sizes");
    let error = size(r#"{"headers":[{"name":"Content-Length","value":"many"}]}"#).unwrap_err();
    assert!(error.contains("entry 0 (https://a.org/): Content-Length is `many`"), "{error}");
}

#[test]
fn kinds_come_from_types_or_names() {
    let entries = [
        entry("2020-01-01T00:00:00Z", "1", "https://a.org/", KB),
        entry("2020-01-01T00:00:01Z", "1", "https://a.org/s.css?v=1", KB),
        entry(
            "2020-01-01T00:00:02Z",
            "1",
            "https://a.org/i",
            r#"{"bodySize":1,"content":{"mimeType":"image/png"}}"#,
        ),
        entry(
            "2020-01-01T00:00:03Z",
            "1",
            "https://a.org/j",
            r#"{"bodySize":1,"content":{"mimeType":"text/javascript"}}"#,
        ),
    ];
    let kinds: Vec<Kind> =
        page(&entries, Reading::Modern).unwrap().transfers.iter().map(|transfer| transfer.kind).collect();
    assert_eq!(kinds, [Kind::Document, Kind::Style, Kind::Other, Kind::Script]);
}

#[test]
fn every_recorded_page_can_be_read_both_ways() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/pages.jsonl.gz");
    let hars = whimbrel_pageload::pages::read(&file).unwrap();
    assert_eq!(hars.len(), 240);
    for har in &hars {
        for reading in [Reading::Paper, Reading::Modern] {
            let page = Page::new(har, reading).unwrap();
            let waiting: usize = (0..page.transfers.len()).map(|n| page.children(n as u16).len()).sum();
            assert_eq!(waiting + page.roots.len(), page.transfers.len(), "{}", har.name);
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// What the fuzz target does for longer: nothing that is nearly a HAR file makes the reader panic.
    #[test]
    fn damaged_files_are_read_or_refused(
        at in proptest::collection::vec((0..4000usize, proptest::prelude::any::<u8>()), 0..4), cut in 0..4000usize,
    ) {
        let entries = [
            entry("2020-01-01T00:00:00.000+00:00", "100", "https://a.org/", KB),
            entry("2020-01-01T00:00:00.050Z", "20.5", "http://a.org/x", r#"{"content":{"size":3}}"#),
            entry("2020-01-01T00:00:00-0130", "1e3", "x", r#"{"headers":[{"name":"Content-Length","value":"9"}]}"#),
        ];
        let mut text = format!(r#"{{"log":{{"version":"1.2","entries":[{}]}}}}"#, entries.join(",")).into_bytes();
        let length = text.len();
        at.iter().for_each(|(place, byte)| text[place % length] = *byte);
        if cut < length / 8 {
            text.truncate(length - cut);
        }
        if let Ok(har) = Har::parse("x.har", &text) {
            for reading in [Reading::Paper, Reading::Modern] {
                let _ = Page::new(&har, reading);
            }
        }
    }
}
