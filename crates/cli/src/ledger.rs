//! A list in a file beside the user's key, which several commands read and change.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// No ledger is larger.
const MAX_FILE: u64 = 1024 * 1024;
const FORMAT: u64 = 1;

/// Entries of one kind. Each change is made under a lock beside the file, on the newest state, and replaces
/// the file in one step; nothing is written over a file that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Ledger<T> {
    file: PathBuf,
    kind: &'static str,
    /// What to do instead of restoring a damaged file.
    advice: &'static str,
    entries: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned + PartialEq + Clone> Ledger<T> {
    /// The one for entries of a kind, beside the key file.
    pub(crate) fn beside(identity: &Path, kind: &'static str, advice: &'static str) -> Self {
        let file = with_suffix(identity, &format!(".{kind}"));
        Self { file, kind, advice, entries: PhantomData }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// All entries.
    pub(crate) fn all(&self) -> Result<Vec<T>> {
        let Some(entries) = read(&self.file, self.kind, self.advice)? else { return Ok(Vec::new()) };
        serde_json::from_value(entries).with_context(|| damaged(&self.file, self.advice))
    }

    /// Changes the entries. What `decide` does is kept unless it fails.
    pub(crate) fn change<R>(&self, decide: impl FnOnce(&mut Vec<T>) -> Result<R>) -> Result<R> {
        let failed = || format!("cannot write {}", self.file.display());
        let _lock = lock(&with_suffix(&self.file, ".lock")).with_context(failed)?;
        let before = self.all()?;
        let mut entries = before.clone();
        let result = decide(&mut entries)?;
        if entries != before {
            let text = serde_json::to_string_pretty(&json!({ "format": FORMAT, (self.kind): entries }))?;
            replace(&self.file, &text).with_context(failed)?;
        }
        Ok(result)
    }
}

/// The entries of this kind in a file, if there is one. Apart, so that it is there once for entries of all
/// types.
fn read(file: &Path, kind: &str, advice: &str) -> Result<Option<Value>> {
    let text = match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Ok(found) if found.len() > MAX_FILE => Err(std::io::Error::other("it is too large")),
        _ => fs::read_to_string(file),
    };
    let shown = file.display();
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let parsed = serde_json::from_slice::<Value>(text.as_bytes());
    let mut contents = parsed.with_context(|| damaged(file, advice))?;
    match contents["format"].as_u64() {
        Some(FORMAT) => Ok(Some(contents[kind].take())),
        Some(other) => bail!("{shown} has the format {other}, and this program reads {FORMAT}; update it"),
        None => bail!(damaged(file, advice)),
    }
}

fn damaged(file: &Path, advice: &str) -> String {
    let shown = file.display();
    format!("{shown} is damaged, and was left as it is; restore it, or move it aside and {advice}")
}

/// Waits for its turn to change the file; held until dropped. Others hold it for the time of one write.
fn lock(file: &Path) -> std::io::Result<File> {
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file)?;
    opened.lock()?;
    Ok(opened)
}

fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let new = with_suffix(file, ".new");
    let mut written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    writeln!(written, "{text}")?;
    written.sync_all()?;
    fs::rename(&new, file)
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
