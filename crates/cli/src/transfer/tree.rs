//! What the sender sends: files, and directories with all that is in them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, FileType};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::batch::MAX_ENTRIES;
use super::message::MAX_DEPTH;
use super::name;
use whimbrel_base::order;

/// One file, or an empty directory.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    /// The directories above it, as the receiver is to have them.
    pub(crate) above: Vec<String>,
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) directory: bool,
}

/// All that is to be sent.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) entries: Vec<Entry>,
    /// Names without a directory above them.
    pub(crate) roots: Vec<String>,
    /// What is left out, and why.
    pub(crate) skipped: Vec<String>,
}

impl Tree {
    /// Looks at what was named. `name` is another name for the only one.
    ///
    /// # Errors
    /// What is named cannot be sent. What is in a directory and cannot be sent is left out instead.
    pub(crate) fn of(paths: &[PathBuf], name: Option<&str>) -> Result<Self> {
        let mut tree = Self::default();
        let mut seen = HashSet::new();
        for path in paths {
            let failed = || format!("cannot read {}", path.display());
            let kind = fs::metadata(path).with_context(failed)?.file_type();
            let name = match name {
                Some(name) => name.to_owned(),
                None => own_name(path)?,
            };
            name::check(&name).with_context(|| format!("cannot send {}; use --as NAME", path.display()))?;
            if !seen.insert(name.clone()) {
                bail!("two of the files are called {name}; send one of them by itself with --as");
            }
            tree.roots.push(name.clone());
            if !kind.is_dir() && !kind.is_file() {
                bail!("{} is neither a file nor a directory; send its output with `send -`", path.display());
            }
            tree.add(path.clone(), &mut Vec::new(), name, kind).with_context(failed)?;
        }
        Ok(tree)
    }

    /// Whether it is one file, which every receiver understands.
    pub(crate) fn one_file(&self) -> Option<&Entry> {
        match &self.entries[..] {
            [entry] if !entry.directory && entry.above.is_empty() => Some(entry),
            _ => None,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size).sum()
    }

    fn add(&mut self, path: PathBuf, above: &mut Vec<String>, name: String, kind: FileType) -> Result<()> {
        if self.entries.len() as u64 >= MAX_ENTRIES {
            bail!("more than {MAX_ENTRIES} files are too many to be sent together; pack them with tar");
        }
        if !kind.is_dir() {
            let size = fs::metadata(&path)?.len();
            self.entries.push(Entry { path, above: above.clone(), name, size, directory: false });
            return Ok(());
        }
        if above.len() >= MAX_DEPTH {
            bail!("more than {MAX_DEPTH} directories in one another are too many; pack them with tar");
        }
        let before = self.entries.len();
        above.push(name.clone());
        let mut children = fs::read_dir(&path)?.collect::<Result<Vec<_>, _>>()?;
        order::by_key(&mut children, fs::DirEntry::file_name);
        for child in children {
            let (path, kind) = (child.path(), child.file_type()?);
            match allowed(&child.file_name(), kind) {
                Ok(name) => self.add(path, above, name, kind)?,
                Err(reason) => self.skipped.push(format!("{}: {reason}", path.display())),
            }
        }
        above.pop();
        if self.entries.len() == before {
            self.entries.push(Entry { path, above: above.clone(), name, size: 0, directory: true });
        }
        Ok(())
    }
}

/// The name of what is in a directory, if it can be sent.
fn allowed(name: &OsStr, kind: FileType) -> Result<String> {
    if kind.is_symlink() {
        bail!("it is a symbolic link");
    }
    if !kind.is_file() && !kind.is_dir() {
        bail!("it is neither a file nor a directory");
    }
    let name = name.to_str().context("its name is no text that every machine can read")?;
    name::check(name)?;
    Ok(name.to_owned())
}

fn own_name(path: &Path) -> Result<String> {
    let whole = fs::canonicalize(path).with_context(|| format!("cannot read {}", path.display()))?;
    // A link is sent under its own name; `.` and `..` under those that they stand for.
    let name = path.file_name().or(whole.file_name()).and_then(OsStr::to_str);
    let why = || format!("{} has no name that every machine can read; use --as NAME", path.display());
    Ok(name.with_context(why)?.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_is_sent_with_all_in_it_but_links_and_what_would_be_refused() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("sub/empty")).unwrap();
        for file in ["a", "sub/b", ".hidden", "-rf"] {
            fs::write(top.join(file), "x").unwrap();
        }
        symlink("/etc", top.join("link")).unwrap();
        // A link to what is above must not lead round and round.
        symlink("..", top.join("sub/up")).unwrap();
        let tree = Tree::of(std::slice::from_ref(&top), None).unwrap();
        let entries: Vec<String> = tree
            .entries
            .iter()
            .map(|entry| format!("{}/{} {}", entry.above.join("/"), entry.name, entry.directory))
            .collect();
        assert_eq!(entries, ["top/a false", "top/sub/b false", "top/sub/empty true"]);
        assert_eq!((tree.roots, tree.skipped.len()), (vec!["top".to_owned()], 4));
        Tree::of(&[top.join(".hidden")], None).unwrap_err();
        assert_eq!(Tree::of(&[top.join(".hidden")], Some("shown")).unwrap().entries[0].name, "shown");
        Tree::of(&[top.join("a"), top.join("a")], None).unwrap_err();
    }
}
