//! Who this user is: the key file, and the delegations that were accepted for it.
//!
//! Both are in the configuration directory: `identity`, and one file a delegation in `delegations/`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use whimbrel_base::{Delegation, Name, NameKind, SecretKey, UnixTime};

use crate::options::Globals;
use crate::{output, places};

/// In front of the seed, so that nobody mistakes another file for a key.
const HEADER: &str = "whimbrel-identity-v1";

/// The key in a file, and whether it was made just now.
pub(crate) struct Identity {
    pub(crate) key: SecretKey,
    pub(crate) file: PathBuf,
    pub(crate) created: bool,
}

/// This user's key. Says so if it had to be made.
pub(crate) fn of_user(globals: &Globals) -> Result<Identity> {
    let file = match &globals.identity {
        Some(file) => file.clone(),
        None => places::config()?.join("identity"),
    };
    let identity = load_or_create(&file)?;
    if identity.created {
        output::note(globals.quiet, format!("made a new identity in {}", identity.file.display()));
    }
    Ok(identity)
}

/// Reads the key from `file`. If there is none yet, makes one.
pub(crate) fn load_or_create(file: &Path) -> Result<Identity> {
    match fs::metadata(file) {
        Ok(metadata) => {
            check_access(file, &metadata)?;
            let key = read(file)?;
            Ok(Identity { key, file: file.to_owned(), created: false })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => create(file),
        Err(error) => Err(error).with_context(|| unreadable(file)),
    }
}

fn unreadable(file: &Path) -> String {
    format!("cannot read the identity {}; check who owns it and its directory", file.display())
}

fn check_access(file: &Path, metadata: &fs::Metadata) -> Result<()> {
    if !metadata.is_file() {
        bail!("the identity {} is not a file; move it away, or name another with --identity", file.display());
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        bail!(
            "the identity {0} can be read by others (mode {mode:04o}), so it may be known to them; \
             run `chmod 600 {0}` if you are sure that it is not, or move it away to get a new one",
            file.display()
        );
    }
    Ok(())
}

fn read(file: &Path) -> Result<SecretKey> {
    let text = fs::read_to_string(file).with_context(|| unreadable(file))?;
    let seed = text.trim().strip_prefix(HEADER).and_then(|hex| parse_hex(hex.trim()));
    let Some(seed) = seed else {
        bail!(
            "{} is not an identity, or is damaged; restore it, or move it away to get a new one",
            file.display()
        );
    };
    Ok(SecretKey::from_bytes(&seed))
}

/// Makes a key and its file, in one step: nobody ever sees half a file, and of two processes that
/// do this at once, one wins and both use its key.
fn create(file: &Path) -> Result<Identity> {
    let directory = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    private_directory(directory)?;
    let failed = || format!("cannot write the identity {}", file.display());
    let key = SecretKey::generate();
    let mut temporary =
        tempfile::Builder::new().prefix(".identity-").tempfile_in(directory).with_context(failed)?;
    writeln!(temporary, "{HEADER} {}", hex(&key.to_bytes())).with_context(failed)?;
    temporary.as_file().sync_all().with_context(failed)?;
    match temporary.persist_noclobber(file) {
        Ok(_) => Ok(Identity { key, file: file.to_owned(), created: true }),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {
            Ok(Identity { key: read(file)?, file: file.to_owned(), created: false })
        }
        Err(error) => Err(error.error).with_context(failed),
    }
}

/// Makes a directory that only this user can look into, if there is none.
pub(crate) fn private_directory(directory: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))
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

/// Keeps a delegation, so that [`delegation_for`] finds it.
pub(crate) fn store_delegation(config: &Path, delegation: &Delegation) -> Result<PathBuf> {
    let directory = config.join("delegations");
    private_directory(&directory)?;
    let file = directory.join(delegation.name().as_str());
    let failed = || format!("cannot write {}", file.display());
    let temporary = directory.join(format!(".{}-{}", delegation.name(), std::process::id()));
    let mut written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .with_context(failed)?;
    writeln!(written, "{delegation}").and_then(|()| written.sync_all()).with_context(failed)?;
    fs::rename(&temporary, &file).with_context(failed)?;
    Ok(file)
}

/// The accepted delegation by which `key` may use `name`: for the name itself, or for its device.
pub(crate) fn delegation_for(config: &Path, name: &Name, key: &SecretKey) -> Result<Option<Delegation>> {
    let now = UnixTime::from(SystemTime::now());
    let mut lapsed = None;
    for candidate in [Some(name.clone()), name.device()].into_iter().flatten() {
        if candidate.kind() == NameKind::User {
            continue;
        }
        let file = config.join("delegations").join(candidate.as_str());
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        let delegation: Delegation =
            text.trim().parse().with_context(|| format!("{} is damaged; accept it again", file.display()))?;
        if delegation.id() != key.id() || !delegation.covers(name) {
            continue;
        }
        if delegation.is_expired(now) {
            lapsed = Some(delegation);
            continue;
        }
        return Ok(Some(delegation));
    }
    match lapsed {
        Some(old) => bail!(
            "the delegation of {} has expired; have its user run `whimbrel id delegate {} --to {}`",
            old.name(),
            old.name(),
            key.id()
        ),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep/er/identity");
        let first = load_or_create(&file).unwrap();
        assert!(first.created);
        let again = load_or_create(&file).unwrap();
        assert!(!again.created);
        assert_eq!(first.key.id(), again.key.id());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let error = load_or_create(&file).err().unwrap().to_string();
        assert!(error.contains("mode 0640") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_damaged_key_is_kept_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("identity");
        for content in ["", "whimbrel-identity-v1 12", "something else", "whimbrel-identity-v1 é"] {
            let _ = fs::remove_file(&file);
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(load_or_create(&file).is_err());
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
        }
    }

    #[test]
    fn delegations_are_found_for_the_device_and_its_services() {
        let dir = tempfile::tempdir().unwrap();
        let (user, laptop) = (SecretKey::generate(), SecretKey::generate());
        let now = UnixTime::from(SystemTime::now());
        let name: Name = "laptop.user@example.org".parse().unwrap();
        let sign = |from: UnixTime, until: UnixTime| {
            Delegation::sign(name.clone(), laptop.id(), from, until, &user).unwrap()
        };
        let good = sign(now, now.saturating_add(Duration::from_secs(60)));
        store_delegation(dir.path(), &good).unwrap();
        let service: Name = "ssh.laptop.user@example.org".parse().unwrap();
        assert_eq!(delegation_for(dir.path(), &service, &laptop).unwrap(), Some(good.clone()));
        assert_eq!(delegation_for(dir.path(), &name, &laptop).unwrap(), Some(good));
        assert_eq!(delegation_for(dir.path(), &service, &user).unwrap(), None);
        let other: Name = "ssh.phone.user@example.org".parse().unwrap();
        assert_eq!(delegation_for(dir.path(), &other, &laptop).unwrap(), None);
        store_delegation(dir.path(), &sign(UnixTime::from_secs(1), UnixTime::from_secs(2))).unwrap();
        assert!(delegation_for(dir.path(), &service, &laptop).is_err());
    }
}
