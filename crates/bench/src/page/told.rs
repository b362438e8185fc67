//! What other documents say of kept results is what is kept.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use super::{Kept, read};

/// The README's table of moves.
const MOVES: &str = "| ↓ lab, from a usable new address to the first new byte, ";
const RTTS: [u32; 4] = [20, 50, 100, 200];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn result(name: &str) -> Kept {
    let file = format!("{name}.json");
    read(&root().join("bench/results")).unwrap().into_iter().find(|one| one.file == file).unwrap()
}

/// A figure's median, in whole milliseconds.
fn median(of: &Kept, case: &str, system: &str) -> String {
    let summaries = of.json["summaries"].as_array().unwrap();
    let found = summaries
        .iter()
        .find(|one| one["case"] == case && one["system"] == system && one["metric"] == "recovery");
    format!("{:.0}", found.unwrap()["median"].as_f64().unwrap())
}

#[test]
fn the_readmes_moves_are_those_that_are_kept() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut lines = readme.lines().skip_while(|line| !line.starts_with(MOVES));
    let kept = result("recovery");
    let trials = kept.json["trials"].as_array().unwrap();
    let rounds = trials.iter().filter_map(|trial| trial["round"].as_u64()).max().unwrap() + 1;
    let head = format!("{MOVES}{rounds} moves each:");
    assert!(lines.next().unwrap().starts_with(&head), "the README's table should begin with {head:?}");
    for (row, mover) in lines.skip(1).take(3).zip(["client", "server", "both"]) {
        let cells = RTTS.map(|rtt| {
            let system = format!("whimbrel {mover} {rtt} ms");
            let [any, tcp] = ["any carrier", "TCP only"].map(|case| median(&kept, case, &system));
            format!("{any} / {tcp} ms")
        });
        let cells = cells.join(" | ");
        assert!(row.ends_with(&format!("| {cells} |")), "the README says {row:?}; kept is {cells}");
    }
}

#[test]
fn every_miss_has_a_cause_or_is_said_to_have_none_that_is_known() {
    let page = fs::read_to_string(root().join("docs/measurements.md")).unwrap();
    let (_, causes) = page.split_once("\n## What misses, and why\n").unwrap();
    let causes = causes.split("\n## ").next().unwrap();
    for kept in read(&root().join("bench/results")).unwrap() {
        if kept.verdicts().any(|verdict| !verdict.is_met()) {
            let bench = kept.text(&["bench"]);
            assert!(
                causes.contains(&format!("`{bench}`")),
                "docs/measurements.md gives no cause for {bench}"
            );
        }
    }
}
