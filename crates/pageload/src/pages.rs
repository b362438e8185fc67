//! Sets of pages: a HAR file, a folder of them, or many in one compressed file.

use crate::har::{Har, HarError, MAX_BYTES};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// One line of a `.jsonl.gz` file.
#[derive(Deserialize)]
struct Line<'a> {
    name: String,
    #[serde(borrow)]
    har: &'a RawValue,
}

/// Read all pages that a path stands for, sorted by name: a `.har` file, a folder with `.har` files, or a
/// `.jsonl.gz` file of lines `{"name": …, "har": {…}}`.
///
/// # Errors
/// [`HarError`] for the first file or entry that can't be used.
pub fn read(path: &Path) -> Result<Vec<Har>, HarError> {
    let mut hars = if path.is_dir() {
        folder(path)?.iter().map(|file| Har::read(file)).collect::<Result<Vec<_>, _>>()?
    } else if path.extension().is_some_and(|end| end == "gz") {
        compressed(path)?
    } else {
        vec![Har::read(path)?]
    };
    hars.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(hars)
}

fn folder(path: &Path) -> Result<Vec<PathBuf>, HarError> {
    let failed = |error| HarError::Read { file: path.display().to_string(), error };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        if file.extension().is_some_and(|end| end == "har") {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(HarError::File {
            file: path.display().to_string(),
            what: "no .har file in it".to_owned(),
        });
    }
    Ok(files)
}

fn compressed(path: &Path) -> Result<Vec<Har>, HarError> {
    let file = path.display().to_string();
    let failed = |error| HarError::Read { file: file.clone(), error };
    let plain = flate2::read::GzDecoder::new(File::open(path).map_err(failed)?).take(MAX_BYTES);
    let mut hars = Vec::new();
    for line in BufReader::new(plain).lines() {
        let line = line.map_err(failed)?;
        let line: Line<'_> = serde_json::from_str(&line)
            .map_err(|error| HarError::Json { file: format!("{file}, line {}", hars.len() + 1), error })?;
        hars.push(Har::parse(&line.name, line.har.get().as_bytes())?);
    }
    Ok(hars)
}
