//! What the documents refer to is there: tests that they name, results of benches, pages, headings, files.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// What no page names, but that may be written in quotes as if it were a file here.
const ELSEWHERE: [&str; 0] = [];

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of all tables below a heading row that ends so.
fn tables(page: &str, heading: &str) -> Vec<Vec<Vec<String>>> {
    let text = read(&Path::new(ROOT).join(page));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let table = |behind: &str| {
        let rows = behind.lines().skip(1).take_while(|line| line.starts_with('|')).skip(1);
        rows.map(cells).collect()
    };
    text.split(heading).skip(1).map(table).collect()
}

/// The cells of the first of them.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    tables(page, heading).into_iter().next().unwrap_or_else(|| panic!("no {heading:?} in {page}"))
}

/// What stands in backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// All code of the workspace's crates.
fn code(directory: &Path, into: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            code(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&read(&path));
        }
    }
}

fn missing(named: &[String]) -> Vec<&String> {
    let mut all = String::new();
    code(&Path::new(ROOT).join("crates"), &mut all);
    named.iter().filter(|name| !all.contains(&format!("fn {name}("))).collect()
}

#[test]
fn the_tests_that_the_security_page_names_exist() {
    for (page, least) in [("docs/security.md", &[200, 20][..]), ("docs/devices.md", &[10; 4])] {
        let tables = tables(page, "| attack | test |");
        assert_eq!(tables.len(), least.len(), "another number of tables of attacks in {page}");
        for (rows, least) in tables.iter().zip(least.iter().copied()) {
            // Beside tests, a fuzz target may be named.
            let tests =
                |row: &Vec<String>| quoted(row.last().unwrap().split("; fuzz target").next().unwrap());
            let tests = rows.iter().map(|row| (row, tests(row)));
            let tests = tests.inspect(|(row, tests)| assert!(!tests.is_empty(), "no test: {row:?}"));
            let named: Vec<String> = tests.flat_map(|(_, tests)| tests).collect();
            assert!(named.len() > least, "a table of {page} is not where it was: {named:?}");
            let missing = missing(&named);
            assert!(missing.is_empty(), "{page} names tests that are not there: {missing:?}");
        }
    }
}

#[test]
fn the_tests_that_the_pages_of_what_it_does_name_exist() {
    for (page, least) in [
        ("docs/messages.md", 20),
        ("docs/suspend.md", 10),
        ("docs/durable.md", 10),
        ("docs/reach.md", 10),
        ("docs/access.md", 15),
        ("docs/manager.md", 10),
    ] {
        let rows = table(page, "| promise | test |");
        let named: Vec<String> = rows.iter().flat_map(|row| quoted(row.last().unwrap())).collect();
        assert!(named.len() > least, "the table is not where it was: {named:?}");
        let missing = missing(&named);
        assert!(missing.is_empty(), "{page} names tests that are not there: {missing:?}");
    }
}

/// What a program calls, in the column that says how.
#[test]
fn the_methods_that_the_page_of_the_api_names_exist() {
    let mut face = String::new();
    for name in ["whimbrel", "transport", "names", "base", "proto", "steering"] {
        code(&Path::new(ROOT).join("crates").join(name).join("src"), &mut face);
    }
    let rows = table("docs/api.md", "| to … | Whimbrel | quinn 0.11 | iroh 1.x |");
    let (mut count, mut wrong) = (0, Vec::new());
    for text in rows.iter().flat_map(|row| quoted(&row[1])) {
        for (at, _) in text.match_indices('(') {
            let before = text[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            count += 1;
            if !face.contains(&format!("fn {before}(")) && !face.contains(&format!("fn {before}<")) {
                wrong.push(format!("{before} in `{text}`"));
            }
        }
    }
    assert!(count > 40, "only {count} methods are named");
    assert!(wrong.is_empty(), "no such method: {wrong:#?}");
}

#[test]
fn each_claim_of_the_readme_is_there_and_so_is_what_shows_it() {
    let readme = read(&Path::new(ROOT).join("README.md"));
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let readme = plain(&readme);
    let rows = table("docs/claims.md", "| README says | tests | benches |");
    assert!(rows.len() > 25, "the table is not where it was: {rows:?}");
    let mut tests = Vec::new();
    for row in &rows {
        let [claim, shown, benches] = &row[..] else { panic!("not three cells: {row:?}") };
        assert!(readme.contains(&plain(claim)), "README does not say: {claim}");
        assert!(!shown.is_empty() || !benches.is_empty(), "nothing shows: {claim}");
        let (files, names): (Vec<_>, Vec<_>) = quoted(shown)
            .into_iter()
            .filter(|name| !name.starts_with("make "))
            .partition(|name| name.contains('/'));
        for file in files {
            assert!(Path::new(ROOT).join(&file).exists(), "no {file} for: {claim}");
        }
        tests.extend(names);
        for bench in quoted(benches) {
            let file = Path::new(ROOT).join(format!("bench/results/{bench}.json"));
            assert!(file.exists(), "no results of the bench {bench} for: {claim}");
        }
    }
    let missing = missing(&tests);
    assert!(missing.is_empty(), "docs/claims.md names tests that are not there: {missing:?}");
}

/// The pages that are prose.
fn pages() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ["", "docs", "docs/pageload"]
        .iter()
        .flat_map(|directory| std::fs::read_dir(Path::new(ROOT).join(directory)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    found.sort();
    assert!(found.len() > 10, "{found:?}");
    found
}

/// The lines of a page that are not code, numbered.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    lines.map(|(at, line)| (at + 1, line)).collect()
}

/// A heading as links write it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || "-_".contains(c) => Some(c),
            _ => None,
        })
        .collect()
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let text = read(page);
    prose(&text).iter().filter(|(_, line)| line.starts_with('#')).map(|(_, line)| anchor(line)).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        for (at, line) in prose(&text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                let (file, heading) = link.split_once('#').unwrap_or((link, ""));
                let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
                let there = target.exists() && (heading.is_empty() || anchors(&target).contains(heading));
                if !there {
                    wrong.push(format!("{}:{at}: {link}", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere: {wrong:#?}");
}

#[test]
fn every_file_of_the_repository_that_a_page_names_is_there() {
    const TOPS: [&str; 6] = ["crates/", "docs/", "scripts/", "packaging/", "bench/", "fuzz/"];
    let (mut wrong, mut named) = (Vec::new(), 0);
    // What was is in the changelog.
    for page in pages().into_iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = read(&page);
        for (at, line) in prose(&text) {
            for name in quoted(line)
                .into_iter()
                .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            {
                let is_file =
                    TOPS.iter().any(|top| name.starts_with(top)) && !name.contains(['*', '<', '{', '…']);
                if !is_file || ELSEWHERE.contains(&name.as_str()) {
                    continue;
                }
                named += 1;
                let path = name.trim_end_matches([',', '.', ';']).split(':').next().unwrap();
                if !Path::new(ROOT).join(path).exists() {
                    wrong.push(format!("{}:{at}: {name}", page.display()));
                }
            }
        }
    }
    assert!(named > 20, "only {named} files are named");
    assert!(wrong.is_empty(), "files that are not there: {wrong:#?}");
}

#[test]
fn prose_is_wrapped() {
    let mut wrong = Vec::new();
    // A program writes the page of results.
    for page in pages().into_iter().filter(|page| !page.ends_with("results.md")) {
        let text = read(&page);
        for (at, line) in prose(&text) {
            // Rows of a table, and words that cannot be broken, are as long as they are.
            let whole = line.trim_start().starts_with('|') || line.split_whitespace().count() < 3;
            if !whole && line.chars().count() > 110 {
                wrong.push(format!("{}:{at}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "lines of more than 110 columns: {wrong:#?}");
}

#[test]
fn both_sides_of_every_merge_were_put_together() {
    let mut wrong = Vec::new();
    for page in pages() {
        for (at, line) in read(&page).lines().enumerate() {
            // Seven of a kind, as git writes them.
            if ["<", ">", "|"].iter().any(|sign| line.starts_with(&format!("{} ", sign.repeat(7)))) {
                wrong.push(format!("{}:{}: {line}", page.display(), at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "marks of a merge that is not over: {wrong:#?}");
}

#[test]
fn every_fuzz_target_begins_with_a_few_small_inputs() {
    for target in std::fs::read_dir(Path::new(ROOT).join("fuzz/fuzz_targets")).unwrap() {
        let target = target.unwrap().path();
        let seeds = Path::new(ROOT).join("fuzz/seeds").join(target.file_stem().unwrap());
        let sizes: Vec<u64> = std::fs::read_dir(&seeds)
            .unwrap_or_else(|error| panic!("{}: {error}", seeds.display()))
            .map(|seed| seed.unwrap().metadata().unwrap().len())
            .collect();
        // What is longer is cut off by `make fuzz`.
        let is_small = sizes.iter().all(|size| *size <= 8192) && sizes.iter().sum::<u64>() <= 64 * 1024;
        assert!(sizes.len() >= 3 && is_small, "{}: {sizes:?}", seeds.display());
    }
}

#[test]
fn every_fuzz_target_is_run_by_make_fuzz() {
    let makefile = read(&Path::new(ROOT).join("Makefile"));
    let listed = makefile.lines().find_map(|line| line.strip_prefix("FUZZ_TARGETS := ")).unwrap();
    let listed: BTreeSet<String> = listed.split(' ').map(str::to_owned).collect();
    let targets = std::fs::read_dir(Path::new(ROOT).join("fuzz/fuzz_targets")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let there: BTreeSet<String> = targets.map(|entry| stem(entry.unwrap().path())).collect();
    assert_eq!(listed, there);
}
