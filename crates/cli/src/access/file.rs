//! The file of `--allow-from`: an entry a line, read again when it changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

use super::{Access, Entry};
use crate::failure::{self, Failure};
use crate::output;

/// Between two looks at the file: whoever is removed is out within a second.
const LOOK: Duration = Duration::from_millis(300);
/// No such file is larger.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// Reads the entries. Empty lines and what follows a `#` count for nothing.
///
/// # Errors
/// What is wrong, and in which line.
pub(super) fn read(file: &Path) -> Result<Vec<Entry>> {
    let size = fs::metadata(file).map(|metadata| metadata.len());
    if size.is_ok_and(|size| size > MAX_FILE) {
        return Err(Failure::usage(format!(
            "{} is larger than 4 MiB; is it the right file?",
            file.display()
        )));
    }
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut entries = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        let entry = entry
            .parse()
            .map_err(|error| Failure::usage(format!("{}:{}: {error}", file.display(), at + 1)))?;
        entries.push(entry);
    }
    Ok(entries)
}

/// Follows the file for as long as the program runs. A file that can't be understood changes nothing; one
/// that is gone for longer than an editor needs lets nobody in.
pub(super) async fn watch(access: Access, file: PathBuf) {
    let mut seen = Some(version(&file));
    let mut missing = false;
    loop {
        tokio::time::sleep(LOOK).await;
        let found = version(&file);
        let is_missing = matches!(&found, Err(error) if *error == io::ErrorKind::NotFound);
        if is_missing && !std::mem::replace(&mut missing, is_missing) {
            continue;
        }
        missing = is_missing;
        if seen.as_ref() == Some(&found) {
            continue;
        }
        seen = Some(found);
        let quiet = access.inner.quiet;
        let rules = if is_missing {
            output::note(quiet, format!("{} is gone: nobody in it is let in any more", file.display()));
            Ok(Vec::new())
        } else {
            read(&file).and_then(|entries| access.rules_of(&entries))
        };
        if let Err(error) = rules.and_then(|rules| access.put(None, rules)) {
            let line = failure::line(&error);
            output::note(false, format!("{line}; the entries from before stay in force"));
        }
    }
}

type Version = std::result::Result<(Option<SystemTime>, u64, u64), io::ErrorKind>;

/// What tells one version of the file from another.
fn version(file: &Path) -> Version {
    let metadata = fs::metadata(file).map_err(|error| error.kind())?;
    Ok((metadata.modified().ok(), metadata.len(), std::os::unix::fs::MetadataExt::ino(&metadata)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::who::Who;

    #[test]
    fn comments_and_empty_lines_count_for_nothing_and_mistakes_are_told_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allow");
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        fs::write(&file, format!("# friends\n\n{id}  # bob\nany\n")).unwrap();
        assert_eq!(read(&file).unwrap(), [Entry::Who(Who::Id(id)), Entry::Who(Who::Any)]);
        fs::write(&file, format!("{id}\nbob@\n")).unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains("allow:2:"), "{error}");
    }
}
