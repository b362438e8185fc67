//! HAR files from anywhere. What can be read makes a page in which everything is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_pageload::har::Har;
use whimbrel_pageload::page::{Page, Reading};

fuzz_target!(|bytes: &[u8]| {
    let Ok(har) = Har::parse("fuzz.har", bytes) else { return };
    for reading in [Reading::Paper, Reading::Modern] {
        if let Ok(page) = Page::new(&har, reading) {
            let waiting: usize = (0..page.transfers.len()).map(|n| page.children(n as u16).len()).sum();
            assert_eq!(waiting + page.roots.len(), page.transfers.len());
        }
    }
});
