//! The file of `--limits`: `[[limit]]` tables in TOML, read again when it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::{Limits, MAX_RULES, Rule};
use crate::failure::{self, Failure};
use crate::output;

/// Between two looks at the file.
const LOOK: Duration = Duration::from_millis(300);
/// No such file is larger.
const MAX_FILE: u64 = 1024 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    limit: Vec<Rule>,
}

/// Reads the rules.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn read(file: &Path) -> Result<Vec<Rule>> {
    let shown = file.display();
    if fs::metadata(file).is_ok_and(|metadata| metadata.len() > MAX_FILE) {
        return Err(Failure::usage(format!("{shown} is larger than 1 MiB; is it the right file?")));
    }
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let read: File = toml::from_str(&text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1);
        let what = error.message().lines().next().unwrap_or_default().to_owned();
        Failure::usage(format!("{shown}:{line}: {what}"))
    })?;
    if read.limit.len() > MAX_RULES {
        return Err(Failure::usage(format!("{shown} has more than {MAX_RULES} limits")));
    }
    for rule in &read.limit {
        rule.check().map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    }
    Ok(read.limit)
}

/// Reads whatever stands in the file. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_anything(text: &str) {
    if let Ok(read) = toml::from_str::<File>(text) {
        let _ = read.limit.iter().try_for_each(Rule::check);
    }
}

/// Follows the file for as long as the program runs. One that can't be understood, or read, changes nothing.
pub(super) async fn watch(limits: Limits, file: PathBuf) {
    let mut seen = version(&file);
    loop {
        tokio::time::sleep(LOOK).await;
        let found = version(&file);
        if found == seen {
            continue;
        }
        seen = found;
        match read(&file) {
            Ok(rules) => {
                tracing::info!(file = %file.display(), rules = rules.len(), "limits read again");
                limits.put_from_file(rules);
            }
            Err(error) => {
                let line = failure::line(&error);
                output::note(false, format!("{line}; the limits from before stay in force"));
            }
        }
    }
}

/// What tells one version of the file from another; `None` if it can't be looked at.
fn version(file: &Path) -> Option<(Option<SystemTime>, u64, u64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.modified().ok(), metadata.len(), std::os::unix::fs::MetadataExt::ino(&metadata)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Rate, Who};
    use super::*;

    #[test]
    fn rules_are_read_and_mistakes_are_told_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("limits.toml");
        let peer = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        let text = format!(
            "[[limit]]\nrate = \"10Mbit\"\n[[limit]]\nname = \"a@b\"\nurgency = 7\nrate = 62500\n\
             [[limit]]\npeer = \"{peer}\"\nrate = \"1Mbit\"\n"
        );
        fs::write(&file, text).unwrap();
        let rules = read(&file).unwrap();
        let rate = |text: &str| text.parse::<Rate>().unwrap();
        assert_eq!(rules[0], Rule::new(rate("10Mbit"), Who::default()));
        let who = Who { name: Some("a@b".to_owned()), urgency: Some(7), ..Who::default() };
        assert_eq!(rules[1], Rule::new(rate("500kbit"), who));
        assert_eq!(rules[2].who().peer, Some(peer));
        fs::write(&file, "").unwrap();
        assert_eq!(read(&file).unwrap(), []);
        for (wrong, says) in [
            ("[[limit]]\nrate = \"fast\"\n", "limits.toml:2: write it as a number"),
            ("\n[[limit]]\nrate = \"1Mbit\"\nnmae = \"x\"\n", "limits.toml:4: unknown field `nmae`"),
            ("[[limit]]\nname = \"x\"\n", "missing field `rate`"),
            ("[[limit]]\nrate = \"1Mbit\"\nurgency = 8\n", "0 (first) to 7 (last)"),
        ] {
            fs::write(&file, wrong).unwrap();
            let error = read(&file).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
