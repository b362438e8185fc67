//! Modules beside each other do not import each other in a circle (`docs/architecture.md`), in no crate.
#![allow(clippy::unwrap_used)]

mod circles;
mod modules;
mod tokens;

use std::path::Path;

use crate::circles::{Circle, circles};
use crate::modules::Modules;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A circle that is there and should not be.
struct Known {
    /// The file that the crate begins in, below `crates`.
    root: &'static str,
    /// Whose children they are; empty for those of the crate itself.
    within: &'static str,
    modules: &'static [&'static str],
    why: &'static str,
}

/// Those that were not taken apart yet, with the modules that may be in them. One that is gone must not be here any
/// more.
const KNOWN: &[Known] = &[
    Known {
        root: "proxy/src/lib.rs",
        within: "sessions",
        modules: &["asking", "attached", "carrying"],
        why: "an attached session says how it was carried on, and is asked for by what carries it",
    },
    Known {
        root: "proxy/src/lib.rs",
        within: "sessions",
        modules: &["lasting", "line", "running", "seat", "server", "table"],
        why: "the table keeps the orders for what runs, which lists itself in the table; what halts is one value that each adds to",
    },
];

/// The files that crates begin in.
fn roots() -> Vec<String> {
    let crates = std::fs::read_dir(Path::new(ROOT).join("crates")).unwrap();
    let names = crates.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let roots = names.flat_map(|name| ["lib", "main"].map(|root| format!("{name}/src/{root}.rs")));
    let mut roots: Vec<String> =
        roots.filter(|root| Path::new(ROOT).join("crates").join(root).exists()).collect();
    roots.sort();
    assert!(roots.len() > 15, "{roots:?}");
    roots
}

fn is(known: &Known, root: &str, circle: &Circle) -> bool {
    (known.root, known.within) == (root, &circle.within[..])
        && circle.modules.iter().all(|module| known.modules.contains(&module.as_str()))
}

#[test]
fn modules_beside_each_other_do_not_import_each_other_in_a_circle() {
    let (mut unknown, mut seen, mut count) = (Vec::new(), vec![false; KNOWN.len()], 0);
    for root in roots() {
        let file = Path::new(ROOT).join("crates").join(&root);
        let modules = Modules::read(&file);
        count += modules.0.len();
        for circle in circles(&modules, file.parent().unwrap()) {
            match KNOWN.iter().position(|known| is(known, &root, &circle)) {
                Some(known) => seen[known] = true,
                None => unknown.push(format!(
                    "crates/{root}, within {:?}: {}\n{}",
                    circle.within,
                    circle.modules.join(" "),
                    circle.around
                )),
            }
        }
    }
    assert!(count > 700, "only {count} modules were found");
    assert!(unknown.is_empty(), "circles of imports:\n{}", unknown.join("\n"));
    let gone = KNOWN.iter().zip(seen).filter(|(_, seen)| !seen);
    let gone: Vec<String> = gone
        .map(|(known, _)| format!("{} {:?} {:?}: {}", known.root, known.within, known.modules, known.why))
        .collect();
    assert!(gone.is_empty(), "these circles are gone, so take them out of the list:\n{}", gone.join("\n"));
}

/// Writes a crate and returns its circles.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = directory.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let modules = Modules::read(&directory.path().join("lib.rs"));
    let circles = circles(&modules, directory.path());
    circles.iter().map(|circle| format!("{}: {}", circle.within, circle.modules.join(" "))).collect()
}

#[test]
fn a_circle_is_seen_however_it_is_written() {
    for (a, b) in [
        ("use crate::b::B;", "use crate::a::A;"),
        ("use super::b::B;", "fn f() { crate::a::f() }"),
        ("use crate::{b::{B, C}};", "use super::{a::{self, A as X}};"),
        ("mod inner { use super::super::b::B; }", "pub mod inner { mod more { type A = crate::a::A; } }"),
        ("#[cfg(feature = \"x\")] use crate::b::B;", "#[derive(D)] struct S(#[x(with = crate::a)] u8);"),
    ] {
        let lib = "mod a; mod b; mod c;";
        let found = circles_of(&[("lib.rs", lib), ("a.rs", a), ("b.rs", b), ("c.rs", "use crate::a::A;")]);
        assert_eq!(found, [": a b"], "{a} {b}");
    }
}

#[test]
fn a_circle_is_seen_although_a_module_above_hides_it() {
    let lib = "mod a; mod b; pub use a::A; use b::*;";
    for (a, b) in [
        ("pub struct A(super::B);", "pub struct B(crate::A);"),
        ("use super::*; pub struct A(B);", "use crate::A; pub struct B(A);"),
    ] {
        let (lib, a) = if a.contains('*') { (lib.replace("b::*", "b::B"), a) } else { (lib.to_owned(), a) };
        assert_eq!(circles_of(&[("lib.rs", &lib), ("a.rs", a), ("b.rs", b)]), [": a b"], "{a} {b}");
    }
}

#[test]
fn what_is_inside_of_modules_counts_at_the_level_where_they_part() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "mod one; mod two;"),
        ("a/one.rs", "mod deep; use super::two::X; use crate::b::B;"),
        ("a/two.rs", "use crate::a::one::deep::Y;"),
        ("a/one/deep.rs", ""),
        ("b.rs", "mod inner;"),
        ("b/inner.rs", "use crate::a::two::X;"),
    ];
    assert_eq!(circles_of(&files), [": a b", "a: one two"]);
}

#[test]
fn no_circle_is_a_room_with_what_is_inside_of_it_nor_what_tests_import() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A; #[cfg(test)] mod tests;"),
        ("a.rs", "mod inner; use inner::I; pub struct A; #[cfg(test)] mod tests { use crate::b::B; }"),
        ("a/inner.rs", "use super::A; use crate::a; #[cfg(test)] use crate::b::{B, C}; pub struct I;"),
        ("b.rs", "use crate::A; use std::fmt; use ::a::b; // crate::b"),
        ("tests.rs", "use crate::b::B;"),
    ];
    assert_eq!(circles_of(&files), Vec::<String>::new());
}
