//! What a policy is tuned on and what it is judged by are kept apart.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use whimbrel_pageload::experiment::{Design, Purpose};

fn design(name: &str) -> Design {
    Design::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("designs").join(name)).unwrap()
}

#[test]
fn pages_for_tuning_and_for_judging_are_others_and_together_all() {
    for page in 0..240 {
        assert!(Purpose::Everything.takes(page));
        assert_ne!(Purpose::Tuning.takes(page), Purpose::Judging.takes(page), "page {page}");
    }
    assert_eq!((0..240).filter(|page| Purpose::Tuning.takes(*page)).count(), 30);
}

#[test]
fn whimbrel_is_judged_in_networks_that_it_was_not_tuned_in() {
    let (tuning, judging) = (design("whimbrel-tuning.toml"), design("whimbrel-judging.toml"));
    assert_eq!((tuning.purpose, judging.purpose), (Purpose::Tuning, Purpose::Judging));
    for (n, (tuned, judged)) in tuning.paths.iter().zip(&judging.paths).enumerate() {
        assert!(judged.rtt_ms.iter().all(|rtt| !tuned.rtt_ms.contains(rtt)), "path {}: {judged:?}", n + 1);
        assert!(judged.mbit.iter().all(|rate| !tuned.mbit.contains(rate)), "path {}: {judged:?}", n + 1);
    }
    let whimbrel = judging.policies.iter().find(|policy| policy.spec.name() == "whimbrel").unwrap();
    assert!(whimbrel.spec.settings().is_empty(), "what is judged is what is shipped");
}
