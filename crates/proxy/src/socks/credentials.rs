//! Who may use the proxy.

use sha2::{Digest as _, Sha256};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file with more is refused.
const MOST: u64 = 64 * 1024;

/// User names with their passwords.
pub struct Credentials {
    /// Of both, so that a comparison says nothing about them by the time that it takes.
    digests: Vec<[u8; 32]>,
}

/// Why a file of credentials is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadCredentials {
    /// It cannot be read.
    #[error("cannot read {file}: {source}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Others could read it.
    #[error("{0} can be read by others; run `chmod 600` on it")]
    Open(PathBuf),
    /// A line that is none.
    #[error("{file}:{line}: write USER:PASSWORD, each of 1 to 255 bytes")]
    Line {
        /// The file.
        file: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
    /// There is nobody in it, or more than there can be.
    #[error("{0} has no line USER:PASSWORD, or more than 64 KiB")]
    Size(PathBuf),
}

impl Credentials {
    /// Reads a file with a line `USER:PASSWORD` for each. Lines that are empty or begin with `#` are none.
    ///
    /// # Errors
    /// When the file is not to be trusted, or a line is wrong.
    pub fn read(path: &Path) -> Result<Self, BadCredentials> {
        let unreadable = |source| BadCredentials::Unreadable { file: path.to_owned(), source };
        let file = fs::File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.mode() & 0o077 != 0 {
            return Err(BadCredentials::Open(path.to_owned()));
        }
        let mut text = String::new();
        file.take(MOST + 1).read_to_string(&mut text).map_err(unreadable)?;
        let mut digests = Vec::new();
        for (line, text) in
            (1..).zip(text.lines()).filter(|(_, text)| !text.is_empty() && !text.starts_with('#'))
        {
            let fits = |part: &str| (1..=255).contains(&part.len());
            match text.split_once(':') {
                Some((user, password)) if fits(user) && fits(password) => {
                    digests.push(digest(user.as_bytes(), password.as_bytes()));
                }
                _ => return Err(BadCredentials::Line { file: path.to_owned(), line }),
            }
        }
        if digests.is_empty() || text.len() as u64 > MOST {
            return Err(BadCredentials::Size(path.to_owned()));
        }
        Ok(Self { digests })
    }

    /// Whether this user has this password.
    pub(super) fn has(&self, user: &[u8], password: &[u8]) -> bool {
        self.digests.contains(&digest(user, password))
    }
}

fn digest(user: &[u8], password: &[u8]) -> [u8; 32] {
    // The length keeps `a` and `bc` apart from `ab` and `c`.
    let length = u64::try_from(user.len()).unwrap_or(u64::MAX);
    Sha256::new()
        .chain_update(length.to_be_bytes())
        .chain_update(user)
        .chain_update(password)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn the_password_of_a_user_is_right_and_no_other() {
        let known = file("# who\nada:secret:with:colons\n\nbob:x\n", 0o600);
        let known = Credentials::read(known.path()).unwrap();
        assert!(known.has(b"ada", b"secret:with:colons") && known.has(b"bob", b"x"));
        for (user, password) in
            [("ada", "x"), ("bob", ""), ("", ""), ("ad", "asecret:with:colons"), ("# who", "")]
        {
            assert!(!known.has(user.as_bytes(), password.as_bytes()), "{user}");
        }
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_what_is() {
        let says = |text: &str, mode| Credentials::read(file(text, mode).path()).err().unwrap().to_string();
        assert!(says("ada:x\n", 0o644).contains("chmod 600"));
        assert!(says("ada:x\nbob\n", 0o600).contains(":2: write USER:PASSWORD"));
        assert!(says("ada:\n", 0o600).contains(":1: "));
        assert!(says("# nobody\n", 0o600).contains("no line USER:PASSWORD"));
        assert!(says(&"ada:x\n".repeat(11_000), 0o600).contains("64 KiB"));
        assert!(Credentials::read(Path::new("/nowhere")).is_err());
    }
}
