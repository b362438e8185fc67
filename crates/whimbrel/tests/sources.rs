//! Papers that comments and documents cite are listed, so that a reader can find them. And what programs are
//! told by enums may become more.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const LIST: &str = "docs/lessons.md";
/// What follows a key: a section, or figures.
const PLACES: [&str; 2] = [" §", " fig"];

/// Whose enums programs match.
const FACE: [&str; 12] = [
    "base",
    "proto",
    "names",
    "transport",
    "portmap",
    "lan",
    "relay",
    "whimbrel",
    "access",
    "multiaccess",
    "steering",
    "devices",
];
/// The engine's, which its driver alone sees, and is to handle whole.
const ENGINE: [&str; 2] = ["pub enum Event {", "pub enum JoinError {"];

/// All code and documents of the repository.
fn texts(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            into.push(path);
        }
    }
}

/// The keys in brackets in a text: words in small letters, with a place in the paper or one of `known`.
fn cited<'a>(text: &'a str, known: &[&str]) -> Vec<&'a str> {
    let inner = text.split('[').skip(1).filter_map(|rest| rest.split_once(']')).map(|(inner, _)| inner);
    let key = |inner: &'a str| {
        let end = inner.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(inner.len());
        let (key, place) = inner.split_at(end);
        let has_place = PLACES.iter().any(|begins| place.starts_with(begins));
        (!key.is_empty() && (has_place || known.contains(&key))).then_some(key)
    };
    inner.filter_map(key).collect()
}

#[test]
fn every_paper_that_is_cited_is_in_the_list_of_sources() {
    let root = Path::new(ROOT);
    let list = std::fs::read_to_string(root.join(LIST)).unwrap();
    let (_, sources) = list.split_once("\n## Sources\n").unwrap();
    let known: Vec<&str> =
        sources.split("- **[").skip(1).filter_map(|one| one.split_once("]**")).map(|(key, _)| key).collect();
    assert!(known.len() >= 5, "{known:?}");
    let mut files = Vec::new();
    ["crates", "docs"].iter().for_each(|directory| texts(&root.join(directory), &mut files));
    let mut citations = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for key in cited(&text, &known) {
            assert!(known.contains(&key), "{} cites [{key}], which {LIST} does not list", file.display());
            citations += 1;
        }
    }
    assert!(citations > 20, "only {citations} citations were found");
}

/// What may be told to a program: why something failed, what happened, what became of a message.
fn is_told(line: &str) -> bool {
    let name = line.strip_prefix("pub enum ").and_then(|rest| rest.split([' ', '<']).next());
    name.is_some_and(|name| name.ends_with("Error") || name.ends_with("Event") || name == "Outcome")
}

#[test]
fn errors_events_and_outcomes_may_become_more_without_breaking_programs() {
    let (mut count, mut wrong) = (0, Vec::new());
    for name in FACE {
        let mut files = Vec::new();
        texts(&Path::new(ROOT).join("crates").join(name).join("src"), &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_told(line)) {
                let mut above = lines[..at].iter().rev().take_while(|line| !line.is_empty());
                count += 1;
                if !above.any(|line| *line == "#[non_exhaustive]") && !ENGINE.contains(line) {
                    wrong.push(format!("{}:{}: {line}", file.display(), at + 1));
                }
            }
        }
    }
    assert!(count > 40, "only {count} were found");
    assert!(wrong.is_empty(), "without #[non_exhaustive]: {wrong:#?}");
}

/// Where a term of the field says the same.
#[test]
fn comments_and_documents_have_no_pictures_where_there_is_a_term() {
    // Escaped, because this file is read, too.
    let pictures = [
        ("in va\u{69}n", "without success"),
        ("as ev\u{65}r", "as before"),
        ("cannot l\u{69}e", "is checked"),
    ];
    let mut files = Vec::new();
    ["crates", "docs"].iter().for_each(|directory| texts(&Path::new(ROOT).join(directory), &mut files));
    assert!(files.len() > 500, "{}", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (at, line) in text.lines().enumerate() {
            for (picture, term) in pictures {
                let stands_alone = |at: usize| {
                    let (before, rest) = line.split_at(at);
                    let after = &rest[picture.len()..];
                    !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
                };
                if line.match_indices(picture).any(|(at, _)| stands_alone(at)) {
                    wrong.push(format!("{}:{}: {picture:?}: say {term:?}", file.display(), at + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_citation_is_a_key_with_a_place() {
    // Escaped, because the other test reads this file too.
    let text = "[one \u{a7}III-B], [two \u{66}igs. 1 and 2], [`three`], [four](#five), [six], a[seven], [Eight \u{a7}1]";
    assert_eq!(cited(text, &["six"]), ["one", "two", "six"]);
}

/// What is in a table or in code of a comment is as wide as it is.
#[test]
fn comments_are_wrapped() {
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    texts(&Path::new(ROOT).join("crates"), &mut files);
    for file in files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let (text, mut inside) = (std::fs::read_to_string(&file).unwrap(), false);
        for (at, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let comment = comment.trim_start_matches(['/', '!']);
            let fence = comment.trim_start().starts_with("```");
            inside ^= fence;
            let whole =
                inside || fence || comment.trim_start().starts_with('|') || comment.starts_with("     ");
            if !whole && line.chars().count() > 110 && !comment.trim_start().starts_with("[`") {
                wrong.push(format!("{}:{}", file.display(), at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "comments of more than 110 columns: {wrong:#?}");
}

/// Where a crate's tests are one program, a file that is not named there would never run.
#[test]
fn every_file_of_tests_is_run() {
    let mut checked = 0;
    for directory in std::fs::read_dir(Path::new(ROOT).join("crates")).unwrap() {
        let directory = directory.unwrap().path();
        let Ok(all) = std::fs::read_to_string(directory.join("tests/all.rs")) else {
            continue;
        };
        let manifest = std::fs::read_to_string(directory.join("Cargo.toml")).unwrap();
        for file in std::fs::read_dir(directory.join("tests")).unwrap() {
            let file = file.unwrap().path();
            let (name, kind) = (file.file_stem().unwrap().to_str().unwrap(), file.extension());
            if kind.is_none_or(|kind| kind != "rs") || name == "all" {
                continue;
            }
            let module = all.lines().any(|line| line == format!("mod {name};"));
            let program = manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
            assert!(
                module != program,
                "{} is run {}",
                file.display(),
                if module { "twice" } else { "nowhere" }
            );
            checked += 1;
        }
    }
    assert!(checked > 200, "{checked}");
}
