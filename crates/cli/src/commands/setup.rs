//! `whimbrel setup`: makes other programs use whimbrel.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

use crate::options::{Globals, after};
use crate::{output, places};

const BEGIN: &str = "# >>> whimbrel >>>";
const END: &str = "# <<< whimbrel <<<";
/// What the file was before, beside it.
const BACKUP: &str = "before-whimbrel";

/// Make other programs use whimbrel
#[derive(Args)]
#[command(after_help = after("Example:\n  whimbrel setup ssh --print"))]
pub(crate) struct Setup {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Let ssh, scp, rsync and git reach peers by name
    ///
    /// Writes a few lines into ~/.ssh/config, between markers, and leaves the rest as it is; what was
    /// there before is kept in ~/.ssh/config.before-whimbrel. In host names of ssh, '+' stands for the
    /// '@' of a peer's name, since ssh takes what is before an '@' for a user.
    #[command(after_help = after("\
Examples:
  whimbrel setup ssh
  whimbrel setup ssh --print
then: ssh ada@ssh.home.ada+example.org"))]
    Ssh {
        /// Only print the lines
        #[arg(long)]
        print: bool,
    },
}

pub(crate) fn run(globals: &Globals, args: Setup) -> Result<()> {
    let What::Ssh { print } = args.what;
    let stanza = stanza(globals)?;
    if print {
        return output::line(stanza.trim_end());
    }
    let file = places::home()?.join(".ssh/config");
    let changed = write(&file, &stanza)?;
    let how = if changed { "has now" } else { "had already" };
    output::line(format!(
        "{} {how} what ssh needs: ssh USER@NAME, with '+' for the '@' of the name",
        file.display()
    ))
}

fn stanza(globals: &Globals) -> Result<String> {
    let program = super::ssh::this_program(globals)?;
    Ok(format!("{BEGIN}\nHost *+*\n    ProxyCommand {program} pipe -- %h\n{END}\n"))
}

/// Puts the stanza into the file. Returns whether that changed it.
fn write(file: &Path, stanza: &str) -> Result<bool> {
    // A link, as people have who keep such files elsewhere, stays one.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let failed = || format!("cannot write {}", file.display());
    let directory = file.parent().unwrap_or(Path::new("."));
    let old = match fs::read(&file) {
        Ok(bytes) => Some(String::from_utf8(bytes).ok().with_context(|| {
            format!("{} is no text; add by hand what `whimbrel setup ssh --print` says", file.display())
        })?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let text = old.as_deref().unwrap_or_default();
    let new = merged(text, stanza).with_context(|| {
        format!("{} was changed by hand: its markers do not match; mend or remove them", file.display())
    })?;
    if new == text {
        return Ok(false);
    }
    whimbrel::private_directory(directory).with_context(failed)?;
    let mode = match &old {
        Some(_) => fs::metadata(&file).with_context(failed)?.permissions(),
        None => Permissions::from_mode(0o600),
    };
    if old.is_some() {
        let mut backup = file.clone().into_os_string();
        backup.push(format!(".{BACKUP}"));
        replace(Path::new(&backup), text, &mode).with_context(failed)?;
    }
    replace(&file, &new, &mode).with_context(failed)?;
    Ok(true)
}

/// Writes a file at once, or not at all.
fn replace(file: &Path, text: &str, mode: &Permissions) -> Result<()> {
    let mut new = tempfile::NamedTempFile::new_in(file.parent().unwrap_or(Path::new(".")))?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(mode.clone())?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}

/// The text with the stanza in the place of the one that it has, or at its end: in front, it would take the
/// options of all hosts that a file may begin with for its own.
fn merged(text: &str, stanza: &str) -> Result<String> {
    let lines = |marker: &str| text.lines().filter(|line| line.trim() == marker).count();
    match (lines(BEGIN), lines(END)) {
        (0, 0) => {
            let gap = match text {
                "" => "",
                text if text.ends_with('\n') => "\n",
                _ => "\n\n",
            };
            Ok(format!("{text}{gap}{stanza}"))
        }
        (1, 1) => {
            let (mut new, mut inside) = (String::new(), false);
            for line in text.split_inclusive('\n') {
                match line.trim() {
                    BEGIN => {
                        new.push_str(stanza);
                        inside = true;
                    }
                    END if inside => inside = false,
                    END => bail!("the end is before the beginning"),
                    _ if inside => {}
                    _ => new.push_str(line),
                }
            }
            Ok(new)
        }
        _ => bail!("the markers are not a pair"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    const STANZA: &str = "# >>> whimbrel >>>\nHost *+*\n# <<< whimbrel <<<\n";

    #[test]
    fn the_stanza_is_put_in_once_and_the_rest_stays() {
        for text in ["", "User x\n", "Host a\n  User b", "\n\n# é\r\nHost c\n"] {
            let once = merged(text, STANZA).unwrap();
            assert!(once.starts_with(text) && once.ends_with(STANZA), "{once:?}");
            assert_eq!(merged(&once, STANZA).unwrap(), once);
            let newer = STANZA.replace("Host", "Host z");
            let behind = format!("{once}Host last\n");
            let changed = merged(&behind, &newer).unwrap();
            assert_eq!(changed, behind.replace(STANZA, &newer));
        }
        for wrong in ["# >>> whimbrel >>>\n", "# <<< whimbrel <<<\n# >>> whimbrel >>>\n", &STANZA.repeat(2)] {
            merged(wrong, STANZA).unwrap_err();
        }
    }

    #[test]
    fn the_files_mode_is_kept_and_the_old_one_too() {
        let dir = tempfile::tempdir().unwrap();
        let (real, file) = (dir.path().join("dotfile"), dir.path().join("config"));
        fs::write(&real, "Host a\n").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        symlink(&real, &file).unwrap();
        assert!(write(&file, STANZA).unwrap());
        assert!(file.is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_to_string(dir.path().join("dotfile.before-whimbrel")).unwrap(), "Host a\n");
        let text = fs::read_to_string(&real).unwrap();
        assert!(!write(&file, STANZA).unwrap());
        assert_eq!(fs::read_to_string(&real).unwrap(), text);
        let new = dir.path().join("home/.ssh/config");
        write(&new, STANZA).unwrap();
        assert_eq!(fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(new.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
