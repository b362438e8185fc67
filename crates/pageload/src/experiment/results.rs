//! The results of an experiment: a CSV file with a row for each page and setting, a column for each policy.

use super::design::{Design, Setting};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

/// One row: a page under one setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The page.
    pub page: String,
    /// Its size.
    pub bytes: f64,
    /// Round-trip time (ms) and rate (Mbit/s) of each path.
    pub levels: Vec<(f64, f64)>,
    /// The page load time in seconds under each policy.
    pub plts: Vec<f64>,
}

/// All rows of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// The labels of the policies.
    pub policies: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Why results can't be read or continued.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file can't be read or written.
    #[error("{file}: {error}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// It has results of something else.
    #[error("{0}: results of another design are in it; give another --out or delete it")]
    Other(String),
    /// A line is wrong.
    #[error("{file}: line {line}: not a row of results")]
    Line {
        /// The file.
        file: String,
        /// Its number, from 1.
        line: usize,
    },
}

/// The first line of a design's results.
pub(super) fn header(design: &Design) -> String {
    let mut header = "page,bytes".to_owned();
    for path in 1..=design.paths.len() {
        header += &format!(",rtt{path}_ms,rate{path}_mbit");
    }
    for policy in &design.policies {
        header += &format!(",{}", policy.label);
    }
    header
}

/// A row as text, without its line's end.
pub(super) fn line(page: &str, bytes: f64, setting: &Setting, plts: &[f64]) -> String {
    let mut line = format!("{},{bytes}", page.replace([',', '\n', '"'], "_"));
    for (rtt, rate) in &setting.levels {
        line += &format!(",{rtt},{rate}");
    }
    for plt in plts {
        line += &format!(",{plt}");
    }
    line
}

/// A file that grows row by row. After a kill, the half line at its end is cut off, and writing goes on
/// behind it.
pub(super) struct Writer {
    file: File,
    name: String,
    /// Rows that were there already.
    pub(super) rows: usize,
}

impl Writer {
    pub(super) fn open(path: &Path, design: &Design) -> Result<Self, ResultsError> {
        let name = path.display().to_string();
        let failed = |error| ResultsError::Io { file: name.clone(), error };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let wanted = format!("{}{}\n", fingerprint(design), header(design));
        let (mut whole, mut lines, mut start) = (0u64, 0usize, Vec::new());
        let mut reader = BufReader::new(&file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).map_err(failed)? > 0 {
            if line.last() == Some(&b'\n') {
                whole += line.len() as u64;
                lines += 1;
                if lines <= 2 {
                    start.extend_from_slice(&line);
                }
            }
            line.clear();
        }
        if lines >= 2 && start != wanted.as_bytes() {
            return Err(ResultsError::Other(name));
        }
        let keep = if lines >= 2 { whole } else { 0 };
        file.set_len(keep).map_err(failed)?;
        file.seek(SeekFrom::Start(keep)).map_err(failed)?;
        if keep == 0 {
            file.write_all(wanted.as_bytes()).map_err(failed)?;
        }
        Ok(Self { file, name, rows: lines.saturating_sub(2) })
    }

    pub(super) fn write(&mut self, rows: &str) -> Result<(), ResultsError> {
        let failed = |error| ResultsError::Io { file: self.name.clone(), error };
        self.file.write_all(rows.as_bytes()).map_err(failed)
    }
}

/// A comment that tells designs apart which have the same columns.
fn fingerprint(design: &Design) -> String {
    let text = toml::to_string(design).unwrap_or_default();
    // FNV-1a: stable over versions of Rust, which the standard hasher is not.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("# design {hash:016x}\n")
}

impl Results {
    /// # Errors
    /// [`ResultsError`] if the file can't be read or a line is no row.
    pub fn read(path: &Path) -> Result<Self, ResultsError> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| ResultsError::Io { file: name.clone(), error })?;
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
        let wrong = |line: usize| ResultsError::Line { file: name.clone(), line: line + 1 };
        let (_, header) = lines.next().ok_or_else(|| wrong(0))?;
        let columns: Vec<&str> = header.split(',').collect();
        let paths = columns.iter().filter(|column| column.starts_with("rtt")).count();
        let first = 2 + 2 * paths;
        if columns.len() <= first {
            return Err(wrong(0));
        }
        let rows = lines
            .map(|(number, line)| row(line, paths, columns.len()).ok_or_else(|| wrong(number)))
            .collect::<Result<_, _>>()?;
        Ok(Self { policies: columns[first..].iter().map(|label| (*label).to_owned()).collect(), rows })
    }

    /// The column of a policy.
    pub fn column(&self, label: &str) -> Option<usize> {
        self.policies.iter().position(|policy| policy == label)
    }
}

fn row(line: &str, paths: usize, columns: usize) -> Option<Row> {
    let (page, numbers) = line.split_once(',')?;
    let numbers: Vec<f64> = numbers.split(',').map(|text| text.parse().ok()).collect::<Option<_>>()?;
    if numbers.len() + 1 != columns {
        return None;
    }
    let levels = numbers[1..=2 * paths].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    Some(Row { page: page.to_owned(), bytes: numbers[0], levels, plts: numbers[1 + 2 * paths..].to_vec() })
}
