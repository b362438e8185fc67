//! Users whose agents hear of each other by and by.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::common::{LIMIT, World};

/// For what must come at all: agents wait between two tries.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so. Each look is a process: not too many of them.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Has one user's machine be introduced to another's.
pub(crate) fn introduce(world: &World, (from, invite): (&str, &[&str]), (to, join): (&str, &[&str])) {
    let mut inviting = world.start(from, &[&["invite", "--json", "-q"], invite].concat());
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    world.run(to, &[&["join", &code, "--json", "-q"], join].concat()).succeeded();
    inviting.output(LIMIT).succeeded();
}
