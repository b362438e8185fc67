//! What the repository promises about building, checked against what it holds.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// `1.91` or `1.91.2`.
fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|part| part.parse().unwrap()).collect()
}

/// Clippy's `incompatible_msrv` checks our own code against the same version.
#[test]
fn no_package_needs_a_newer_rust_than_we_promise() {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let own = packages.iter().find(|package| package["name"] == "whimbrel-cli").unwrap();
    let promised = version(own["rust_version"].as_str().unwrap());
    let mut checked = 0;
    for package in packages {
        if let Some(needed) = package["rust_version"].as_str() {
            assert!(version(needed) <= promised, "{} needs Rust {needed}", package["name"]);
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} packages tell what they need");
}
