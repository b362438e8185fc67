//! Waits until something is so.
#![allow(unreachable_pub)]

use std::time::{Duration, Instant};

/// Looks again and again, for so long at most.
#[track_caller]
pub fn wait_within<T>(limit: Duration, what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begun.elapsed() < limit, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
