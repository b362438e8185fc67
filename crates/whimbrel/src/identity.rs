//! A key in a file, so that a program is the same one after a restart.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use whimbrel_base::SecretKey;

/// In front of the seed, so that nobody mistakes another file for a key.
const HEADER: &str = "whimbrel-identity-v1";

/// A key that lasts, and where it is.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let file = folder.path().join("clock/identity"); // or "/var/lib/clock/identity"
/// let identity = whimbrel::Identity::in_file(&file)?;
/// println!("I am {}", identity.key.id());
/// assert!(identity.is_new);
/// assert_eq!(whimbrel::Identity::in_file(&file)?.key.id(), identity.key.id());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Identity {
    /// The key.
    pub key: SecretKey,
    /// Its file.
    pub file: PathBuf,
    /// It was made just now.
    pub is_new: bool,
}

/// A key that can't be read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file can't be read.
    #[error("cannot read the identity {}: {source}; check who owns it and its directory", .file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something else is there.
    #[error("the identity {} is not a file; move it away, or name another", .0.display())]
    NoFile(PathBuf),
    /// Others can read it.
    #[error(
        "the identity {0} can be read by others (mode {mode:04o}), so it may be known to them; run \
         `chmod 600 {0}` if you are sure that it is not, or move it away to get a new one",
        .file.display()
    )]
    Exposed {
        /// Which.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is no key.
    #[error("{} is not an identity, or is damaged; restore it, or move it away to get a new one", .0.display())]
    Damaged(PathBuf),
    /// It can't be made.
    #[error("cannot write the identity {}: {source}", .file.display())]
    Write {
        /// Which.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Identity {
    /// Reads the key from a file that only this user can read. If there is none, makes a key, its file and
    /// the directories above, in one step: nobody ever sees half a file, and of two processes that do this at
    /// once, one wins and both use its key. Blocks as file access does.
    ///
    /// # Errors
    /// [`IdentityError`] says what to do. Nothing that is there is ever replaced.
    pub fn in_file(file: impl AsRef<Path>) -> Result<Self, IdentityError> {
        let file = file.as_ref();
        match fs::metadata(file) {
            Ok(metadata) => {
                check_access(file, &metadata)?;
                Ok(Self { key: read(file)?, file: file.to_owned(), is_new: false })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => create(file),
            Err(source) => Err(IdentityError::Read { file: file.to_owned(), source }),
        }
    }
}

fn check_access(file: &Path, metadata: &fs::Metadata) -> Result<(), IdentityError> {
    if !metadata.is_file() {
        return Err(IdentityError::NoFile(file.to_owned()));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::Exposed { file: file.to_owned(), mode });
    }
    Ok(())
}

fn read(file: &Path) -> Result<SecretKey, IdentityError> {
    let text = match fs::read(file) {
        Ok(bytes) => String::from_utf8(bytes).unwrap_or_default(),
        Err(source) => return Err(IdentityError::Read { file: file.to_owned(), source }),
    };
    let seed = text.trim().strip_prefix(HEADER).and_then(|hex| parse_hex(hex.trim()));
    seed.map(|seed| SecretKey::from_bytes(&seed)).ok_or_else(|| IdentityError::Damaged(file.to_owned()))
}

fn create(file: &Path) -> Result<Identity, IdentityError> {
    let failed = |source| IdentityError::Write { file: file.to_owned(), source };
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    private_directory(directory).map_err(failed)?;
    let key = SecretKey::generate();
    let mut temporary =
        tempfile::Builder::new().prefix(".identity-").tempfile_in(directory).map_err(failed)?;
    writeln!(temporary, "{HEADER} {}", hex(&key.to_bytes())).map_err(failed)?;
    temporary.as_file().sync_all().map_err(failed)?;
    match temporary.persist_noclobber(file) {
        Ok(_) => Ok(Identity { key, file: file.to_owned(), is_new: true }),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {
            Ok(Identity { key: read(file)?, file: file.to_owned(), is_new: false })
        }
        Err(error) => Err(failed(error.error)),
    }
}

/// Makes a directory that only this user can look into, and those above it, if there is none: for what a
/// program keeps beside its [`Identity`], as [known peers](crate::KnownPeers::in_file).
///
/// # Errors
/// When it cannot be made, or something else is there.
pub fn private_directory(directory: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep/er/identity");
        let first = Identity::in_file(&file).unwrap();
        assert!(first.is_new);
        let again = Identity::in_file(&file).unwrap();
        assert!(!again.is_new);
        assert_eq!(first.key.id(), again.key.id());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Identity::in_file(&file).unwrap_err().to_string();
        assert!(error.contains("mode 0640") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_damaged_key_is_kept_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("identity");
        for content in [&b""[..], b"whimbrel-identity-v1 12", b"something else", b"whimbrel-identity-v1 \xff"]
        {
            let _ = fs::remove_file(&file);
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(Identity::in_file(&file), Err(IdentityError::Damaged(_))));
            assert_eq!(fs::read(&file).unwrap(), content);
        }
    }
}
