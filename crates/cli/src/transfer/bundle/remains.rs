//! A directory that an earlier transfer was filling and has left: whoever filled it was killed, or lost its
//! sender for good.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustix::fs::FileType;

use super::super::destination::Destination;
use super::super::directory::{Directory, on_its_way};
use super::super::filling::{self, Mark};
use super::{Pack, Roots};

/// Directories of one name that are set aside.
const MOST_ASIDE: u32 = 9;

/// What became of such a directory.
pub(super) enum Remains {
    /// It is of the same batch, and goes on being filled.
    Same(Directory),
    /// It is not there any more: everything in it was a copy.
    Removed,
    /// It may be all that there is of another batch, and has this name now.
    Aside(String),
}

/// Makes room for a directory of this batch where an earlier transfer has left one of the same name. Blocks.
///
/// # Errors
/// When another transfer has it still, or it cannot be moved.
pub(super) fn settle(destination: &Arc<Destination>, name: &str, id: u64) -> Result<Remains> {
    let (all, part) = (&destination.directory, on_its_way(name));
    let found = all.entry(&part).context("cannot look into the directory")?;
    if !found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()) {
        let shown = all.shown(&part);
        bail!(
            "{} is there, which another transfer has left; move it away, or say another --dir",
            shown.display()
        );
    }
    // No other process has it until this is dropped.
    let directory = filling::open(all, name)?;
    match Mark::of(&directory) {
        Some(Mark::Arrived(of)) if of == id => return Ok(Remains::Same(directory)),
        Some(Mark::Copy(_)) => remove(destination, name, &directory),
        _ => {}
    }
    if all.entry(&part)?.is_none() {
        return Ok(Remains::Removed);
    }
    let aside = free_name(all, name)?;
    all.rename_new(&part, &aside)?;
    Ok(Remains::Aside(aside))
}

/// Removes what transfers put into it. What is left is somebody else's, or cannot be removed.
fn remove(destination: &Arc<Destination>, name: &str, directory: &Directory) {
    let roots = Roots::new(destination.clone(), [(name.to_owned(), directory.clone())].into());
    match Pack::new(roots, Vec::new()) {
        Ok(pack) => pack.remove(),
        Err(error) => tracing::info!(%error, "what an earlier transfer has left cannot be removed"),
    }
}

/// A name that is not longer than that of what is on its way: most file systems take no longer ones.
fn free_name(all: &Directory, name: &str) -> Result<String> {
    for number in 1..=MOST_ASIDE {
        let aside = format!(".{name}.whimbrel-old{number}");
        if all.entry(&aside)?.is_none() {
            return Ok(aside);
        }
    }
    bail!(
        "{} and {} more are there, which other transfers have left; remove them, or say another --dir",
        all.shown(&format!(".{name}.whimbrel-old1")).display(),
        MOST_ASIDE - 1
    )
}
