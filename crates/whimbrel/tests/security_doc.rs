//! `docs/security.md` names a test for each attack; they must be there.
#![allow(clippy::unwrap_used)]

use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The names in the last column of the page's table.
fn named() -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/security.md")).unwrap();
    let (_, table) = page.split_once("| attack | test |").unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|')).skip(1);
    rows.map(|row| row.rsplit('`').nth(1).unwrap().to_owned()).collect()
}

/// All code of the workspace's crates.
fn code(directory: &Path, into: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            code(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_tests_that_the_security_page_names_exist() {
    let mut all = String::new();
    code(&Path::new(ROOT).join("crates"), &mut all);
    let named = named();
    assert!(named.len() > 50, "the table is not where it was: {named:?}");
    let missing: Vec<_> = named.iter().filter(|name| !all.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "docs/security.md names tests that are not there: {missing:?}");
}
