//! Making the file, so that it is there as a whole or not at all.
//!
//! redb fills a new file in several steps, and refuses one that it finds half made. So a new file is made
//! under another name and then given its own. A death in between leaves a small file `….new-…` behind, which
//! can be deleted.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::BuildHasher as _;
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError};

/// Opens the database in `file`, and makes it, as a whole or not at all, if there is none. Others than this
/// user can neither read nor write it.
///
/// # Errors
/// [`DatabaseError`], also if another process has it open.
pub fn open(file: &Path) -> Result<Database, DatabaseError> {
    if !file.try_exists()? {
        make(file)?;
    }
    close_to_others(file)?;
    Database::create(file)
}

/// Takes the rights of others from a file that an older program made.
fn close_to_others(file: &Path) -> io::Result<()> {
    let mode = fs::metadata(file)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(file, Permissions::from_mode(mode & 0o700))?;
    }
    Ok(())
}

fn make(file: &Path) -> Result<(), DatabaseError> {
    let mut draft = file.as_os_str().to_owned();
    draft.push(format!(".new-{:016x}", RandomState::new().hash_one(())));
    let draft = PathBuf::from(draft);
    // Who is registered, and who may read what, is nobody else's business.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let made = Database::create(&draft)
        .and_then(|database| database.close())
        .and_then(|()| Ok(publish(&draft, file)?));
    // The file has its own name now, or is of no use.
    let _ = fs::remove_file(&draft);
    made
}

/// Gives the draft its name, unless another process made the file meanwhile: that one may hold records
/// already.
fn publish(draft: &Path, file: &Path) -> io::Result<()> {
    match fs::hard_link(draft, file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        // Not every file system has links.
        Err(_) if !file.try_exists()? => fs::rename(draft, file)?,
        Err(_) => return Ok(()),
    }
    sync_folder(file)
}

/// A file is not safe on the disk before its name is.
fn sync_folder(file: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}
