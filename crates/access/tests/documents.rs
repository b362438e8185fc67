//! The page about access policies has every intent, with a test that is there.
#![allow(clippy::unwrap_used)]

use whimbrel_access::Key;

#[test]
fn every_intent_has_a_row_in_the_page_and_a_test_that_is_there() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = std::fs::read_to_string(format!("{root}/docs/access.md")).unwrap();
    let tests = std::fs::read_to_string(format!("{root}/crates/access/tests/table_one.rs")).unwrap();
    let (_, table) = page.split_once("| intent | what it changes | test |").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let keys: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    assert!(keys.iter().copied().eq(Key::ALL.iter().map(|key| key.as_str())), "{keys:?}");
    for row in &rows {
        let test = row[2].trim_matches('`');
        assert!(tests.contains(&format!("fn {test}()")), "{}: there is no test {test}", row[0]);
    }
}
