//! Modules beside each other do not import each other in a circle (`docs/architecture.md`), in no crate.
#![allow(clippy::unwrap_used)]

mod circles;
mod modules;
mod tokens;

use std::path::Path;

use circles::{Circle, circles};
use modules::Modules;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

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

#[test]
fn modules_beside_each_other_do_not_import_each_other_in_a_circle() {
    let (mut found, mut count) = (Vec::new(), 0);
    for root in roots() {
        let file = Path::new(ROOT).join("crates").join(&root);
        let modules = Modules::read(&file);
        count += modules.0.len();
        let in_words = |circle: Circle| {
            let Circle { within, modules, around } = circle;
            format!("crates/{root}, within {within:?}: {}\n{around}", modules.join(" "))
        };
        found.extend(circles(&modules, file.parent().unwrap()).into_iter().map(in_words));
    }
    assert!(count > 700, "only {count} modules were found");
    assert!(found.is_empty(), "circles of imports:\n{}", found.join("\n"));
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
