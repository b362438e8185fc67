//! Who this user is: the key file, and the delegations that were accepted for it.
//!
//! Both are in the configuration directory: `identity`, and one file a delegation in `delegations/`.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use whimbrel::Identity;
use whimbrel_base::{Delegation, EndpointId, Name, NameKind, SecretKey, UnixTime};

use crate::options::Globals;
use crate::{output, places};
use whimbrel_base::order;

/// This user's key. Says so if it had to be made.
pub(crate) fn of_user(globals: &Globals) -> Result<Identity> {
    let file = match &globals.identity {
        Some(file) => file.clone(),
        None => places::config()?.join("identity"),
    };
    let identity = Identity::in_file(&file)?;
    if identity.is_new {
        output::note(globals.quiet, format!("made a new identity in {}", identity.file.display()));
    }
    Ok(identity)
}

/// Makes a directory that only this user can look into, if there is none.
pub(crate) fn private_directory(directory: &Path) -> Result<()> {
    whimbrel::private_directory(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))
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

/// The accepted delegation by which `key` may use `name`: for the name itself, or for its device. One that
/// has expired only if there is no other: it may have been renewed meanwhile.
pub(crate) fn delegation_for(config: &Path, name: &Name, key: &SecretKey) -> Result<Option<Delegation>> {
    let now = UnixTime::from(SystemTime::now());
    let mut lapsed = None;
    for candidate in [Some(name.clone()), name.device()].into_iter().flatten() {
        if candidate.kind() == NameKind::User {
            continue;
        }
        let Some(delegation) = read_delegation(&config.join("delegations").join(candidate.as_str()))? else {
            continue;
        };
        if delegation.id() != key.id() || !delegation.covers(name) {
            continue;
        }
        if !delegation.is_expired(now) {
            return Ok(Some(delegation));
        }
        lapsed = lapsed.or(Some(delegation));
    }
    Ok(lapsed)
}

/// All delegations that were accepted for this key, by name.
pub(crate) fn held(config: &Path, id: EndpointId) -> Result<Vec<Delegation>> {
    let directory = config.join("delegations");
    let failed = || format!("cannot read {}", directory.display());
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(failed)?,
    };
    let mut held = Vec::new();
    for entry in entries {
        let entry = entry.with_context(failed)?;
        // What was not written to its end begins with a dot.
        if !entry.file_name().to_string_lossy().starts_with('.') {
            held.extend(read_delegation(&entry.path())?.filter(|delegation| delegation.id() == id));
        }
    }
    order::by(&mut held, |one, other| one.name().as_str().cmp(other.name().as_str()));
    Ok(held)
}

fn read_delegation(file: &Path) -> Result<Option<Delegation>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    text.trim().parse().map(Some).with_context(|| format!("{} is damaged; accept it again", file.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

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
        let lapsed = delegation_for(dir.path(), &service, &laptop).unwrap().unwrap();
        assert!(lapsed.is_expired(now), "it may have been renewed");
    }
}
