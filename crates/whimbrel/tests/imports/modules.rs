//! The modules of a crate, and which others each of them names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::tokens::{Token, tokens};

/// A path inside a crate, from its root.
pub(crate) type Inside = Vec<String>;

/// What items begin with, after their visibility.
const ITEMS: [&str; 12] =
    ["fn", "mod", "use", "struct", "enum", "trait", "impl", "const", "static", "type", "unsafe", "async"];

/// How often a name may be imported from where it is imported too.
const HOPS: usize = 16;

/// Something of its own crate that a module names.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) to: Inside,
    pub(crate) line: usize,
}

/// One module, without what is only there in tests.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) references: Vec<Reference>,
    /// What it imports, under which name, re-exported or not: its children may take it from here.
    imports: BTreeMap<String, Inside>,
    /// All of what is imported from there.
    globs: Vec<Inside>,
    /// The items of its own.
    defines: BTreeSet<String>,
    /// Every name in it.
    names: BTreeMap<String, usize>,
}

/// All modules of a crate.
#[derive(Debug, Default)]
pub(crate) struct Modules(pub(crate) BTreeMap<Inside, Module>);

impl Modules {
    /// Reads the crate that begins in this file.
    pub(crate) fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        let directory = root.parent().unwrap().to_owned();
        modules.read_file(root, &directory, &[]);
        modules.take_all_of_globs();
        modules
    }

    fn read_file(&mut self, file: &Path, directory: &Path, at: &[String]) {
        let text =
            std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.read_module(&tokens(&text), file, directory, at);
    }

    /// Reads what stands in a module; files of modules inside it are in the directory.
    fn read_module(&mut self, code: &[Token<'_>], file: &Path, directory: &Path, at: &[String]) {
        let code = without_tests(code);
        let children = children(&code);
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let mut inner = Vec::new();
        let (mut i, mut depth) = (0, 0usize);
        while let Some(token) = code.get(i) {
            let behind = code.get(i + 1).map_or("", |token| token.text);
            match token.text {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                "mod" if code.get(i + 2).is_some_and(|token| token.text == "{") => {
                    let end = closing(&code, i + 2);
                    inner.push((behind.to_owned(), code[i + 3..end].to_vec()));
                    i = end;
                }
                "use" if behind != "<" => {
                    let end = (i..code.len()).find(|at| code[*at].text == ";").unwrap_or(code.len());
                    import(&mut module, at, &children, &code[i + 1..end]);
                    i = end;
                }
                "crate" | "self" | "super" if behind == "::" && !is_visibility(&code[..i]) => {
                    let (path, length) = path(&code[i..]);
                    module.references.extend(named(at, &path).map(|to| Reference { to, line: token.line }));
                    i += length - 1;
                }
                "struct" | "enum" | "union" | "trait" | "fn" | "type" | "const" | "static" if depth == 0 => {
                    module.defines.insert(behind.to_owned());
                }
                _ if token.is_name() => {
                    module.names.entry(token.text.to_owned()).or_insert(token.line);
                }
                _ => {}
            }
            i += 1;
        }
        self.0.insert(at.to_vec(), module);
        for (name, code) in inner {
            self.read_module(&code, file, &directory.join(&name), &[at, &[name]].concat());
        }
        for name in children {
            let at = [at, std::slice::from_ref(&name)].concat();
            if self.0.contains_key(&at) {
                continue;
            }
            let (beside, inside) =
                (directory.join(format!("{name}.rs")), directory.join(&name).join("mod.rs"));
            let file = if beside.exists() { beside } else { inside };
            self.read_file(&file, &directory.join(&name), &at);
        }
    }

    /// Names that a module has because it imports all of another one count as imports of theirs.
    fn take_all_of_globs(&mut self) {
        let mut more = Vec::new();
        for (at, module) in &self.0 {
            let globs = module.globs.iter().filter_map(|glob| self.0.get(&self.find(glob)));
            for from in globs {
                for (name, line) in &module.names {
                    let own = module.imports.contains_key(name) || module.defines.contains(name);
                    if let Some(to) = from.imports.get(name).filter(|_| !own) {
                        more.push((at.clone(), Reference { to: to.clone(), line: *line }));
                    }
                }
            }
        }
        for (at, reference) in more {
            self.0.get_mut(&at).unwrap().references.push(reference);
        }
    }

    /// The module where what is named there is defined, wherever it can be imported from.
    pub(crate) fn find(&self, path: &[String]) -> Inside {
        self.find_within(path, HOPS)
    }

    fn find_within(&self, path: &[String], hops: usize) -> Inside {
        let is_module = |length: &usize| self.0.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module).unwrap_or(0);
        let (at, rest) = path.split_at(length);
        let Some((name, behind)) = rest.split_first().filter(|_| hops > 0) else { return at.to_vec() };
        let module = &self.0[at];
        if module.defines.contains(name) {
            return at.to_vec();
        }
        if let Some(from) = module.imports.get(name) {
            return self.find_within(&[&from[..], behind].concat(), hops - 1);
        }
        let has = |glob: &&Inside| {
            let from = self.0.get(*glob);
            from.is_some_and(|from| from.defines.contains(name) || from.imports.contains_key(name))
        };
        match module.globs.iter().find(has) {
            Some(glob) => self.find_within(&[&glob[..], rest].concat(), hops - 1),
            None => at.to_vec(),
        }
    }
}

/// The modules that are declared at a module's own level, or anywhere in it.
fn children(code: &[Token<'_>]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut i = 0;
    while i + 2 < code.len() {
        if code[i].text == "mod" {
            found.insert(code[i + 1].text.to_owned());
            if code[i + 2].text == "{" {
                i = closing(code, i + 2);
            }
        }
        i += 1;
    }
    found
}

/// Takes the tree of one `use` in.
fn import(module: &mut Module, at: &[String], children: &BTreeSet<String>, tree: &[Token<'_>]) {
    for leaf in leaves(&[], tree) {
        let mut path = leaf.path;
        let is_here =
            path.first().is_some_and(|first| children.contains(first) || module.imports.contains_key(first));
        if is_here {
            path.insert(0, "self".to_owned());
        }
        let Some(mut to) = named(at, &path) else { continue };
        let line = leaf.line;
        if to.last().is_some_and(|last| last == "*") {
            to.pop();
            module.globs.push(to.clone());
        } else if let Some(name) = leaf.alias.or_else(|| to.last().cloned()) {
            module.imports.insert(name, to.clone());
        }
        module.references.push(Reference { to, line });
    }
}

struct Leaf {
    path: Vec<String>,
    alias: Option<String>,
    line: usize,
}

/// Every path of the tree of a `use`.
fn leaves(before: &[String], tree: &[Token<'_>]) -> Vec<Leaf> {
    let mut path = before.to_vec();
    let mut i = 0;
    while let Some(token) = tree.get(i) {
        match token.text {
            "{" => {
                let inside = &tree[i + 1..closing(tree, i)];
                return parts(inside).into_iter().flat_map(|part| leaves(&path, part)).collect();
            }
            "as" => {
                let (alias, line) = (tree.get(i + 1).map(|token| token.text.to_owned()), token.line);
                return vec![Leaf { path, alias, line }];
            }
            // From another crate.
            "::" if path.is_empty() => return Vec::new(),
            "::" => {}
            // What stands before it is meant.
            "self" if !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
        i += 1;
    }
    let line = tree.first().map_or(0, |token| token.line);
    if path.is_empty() { Vec::new() } else { vec![Leaf { path, alias: None, line }] }
}

/// What commas part, at the outermost level.
fn parts<'t, 'a>(list: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0;
    list.split(|token| {
        depth += i32::from(token.text == "{") - i32::from(token.text == "}");
        depth == 0 && token.text == ","
    })
    .filter(|part| !part.is_empty())
    .collect()
}

/// A path that begins with a name here, and how many tokens it has.
fn path(code: &[Token<'_>]) -> (Vec<String>, usize) {
    let mut path = vec![code[0].text.to_owned()];
    let mut length = 1;
    while let [colons, name, ..] = &code[length..]
        && colons.text == "::"
        && name.is_name()
    {
        path.push(name.text.to_owned());
        length += 2;
    }
    (path, length)
}

/// A path from the root of the crate. `None` for what is of another one.
fn named(at: &[String], path: &[String]) -> Option<Inside> {
    let mut from = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => at.to_vec(),
        "super" => at.split_last()?.1.to_vec(),
        _ => return None,
    };
    for name in &path[1..] {
        if name == "super" {
            from.pop();
        } else {
            from.push(name.clone());
        }
    }
    Some(from)
}

/// Whether what follows is the place in `pub(in place)`.
fn is_visibility(before: &[Token<'_>]) -> bool {
    matches!(before, [.., first, open, within]
        if first.text == "pub" && open.text == "(" && within.text == "in")
}

/// Where the bracket that opens there is closed.
fn closing(code: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in code.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// Leaves out what is only there in tests.
fn without_tests<'a>(code: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut kept, mut i) = (Vec::new(), 0);
    while i < code.len() {
        let open = i + 1 + usize::from(code.get(i + 1).is_some_and(|token| token.text == "!"));
        let is_attribute = code[i].text == "#" && code.get(open).is_some_and(|token| token.text == "[");
        if !is_attribute {
            kept.push(code[i]);
            i += 1;
            continue;
        }
        let end = closing(code, open);
        if !is_of_tests(&code[open + 1..end]) {
            kept.extend_from_slice(&code[i..=end]);
            i = end + 1;
        } else if open > i + 1 {
            // Of the whole file.
            return Vec::new();
        } else {
            i = behind_item(code, end + 1);
        }
    }
    kept
}

/// `cfg(test)`, or `cfg(all(test, …))`.
fn is_of_tests(attribute: &[Token<'_>]) -> bool {
    let words: Vec<&str> = attribute.iter().map(|token| token.text).filter(|text| *text != "(").collect();
    matches!(&words[..], ["cfg", "test", ..] | ["cfg", "all", "test", ..])
}

/// Where that ends which has an attribute: an item, a field, a variant or a statement.
fn behind_item(code: &[Token<'_>], begin: usize) -> usize {
    let mut i = begin;
    while code.get(i).is_some_and(|token| token.text == "#") {
        i = closing(code, i + 1) + 1;
    }
    let mut is_item = false;
    let mut is_import = false;
    while let Some(token) = code.get(i) {
        match token.text {
            "{" | "(" | "[" => {
                let (is_block, end) = (token.text == "{", closing(code, i));
                i = end;
                if is_block && !is_import {
                    return end + 1;
                }
            }
            ";" => return i + 1,
            "," if !is_item => return i + 1,
            "}" | ")" | "]" => return i,
            name => {
                is_item |= ITEMS.contains(&name);
                is_import |= name == "use";
            }
        }
        i += 1;
    }
    i
}
