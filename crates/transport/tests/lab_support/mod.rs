//! What the lab tests of several crates share: networks with an endpoint on each host, traffic that can be
//! compared byte by byte, and peers in processes of their own.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub(crate) mod net;
pub(crate) mod paths;
pub(crate) mod process;
pub(crate) mod traffic;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Held by tests that need the machine's cores for themselves to be fast, or that measure.
static HEAVY: Mutex<()> = Mutex::new(());

pub(crate) fn heavy() -> MutexGuard<'static, ()> {
    HEAVY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
pub(crate) fn log() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
