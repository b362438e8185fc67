//! A program that is started for a session, without a shell.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::process::ExitStatus;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Where a program finds its session: all that can become a part of its command line.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// This host's address, and the port.
    pub(crate) at: SocketAddr,
    /// The same as a URL.
    pub(crate) url: String,
}

impl Place {
    /// An argument with this host's address in the place of its words. What was put in is not looked at
    /// again.
    pub(crate) fn fill(&self, word: &OsStr) -> OsString {
        let Some(text) = word.to_str() else { return word.to_owned() };
        let known = [
            ("{url}", self.url.clone()),
            ("{host}", self.at.ip().to_string()),
            ("{port}", self.at.port().to_string()),
        ];
        let (mut filled, mut rest) = (String::new(), text);
        while let Some(at) = rest.find('{') {
            let (before, behind) = rest.split_at(at);
            filled.push_str(before);
            let found = known.iter().find(|(name, _)| behind.starts_with(name));
            let (name, value) = found.map_or(("{", "{"), |(name, value)| (*name, value.as_str()));
            filled.push_str(value);
            rest = &behind[name.len()..];
        }
        filled.push_str(rest);
        filled.into()
    }
}

/// Starts a program, if one is given, without a shell. It ends when what is returned is dropped.
///
/// # Errors
/// When it cannot be run, or prepared.
pub(crate) fn start(
    words: &[impl AsRef<OsStr>],
    place: &Place,
    prepare: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<Option<Child>> {
    let Some((program, arguments)) = words.split_first() else { return Ok(None) };
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(arguments.iter().map(|word| place.fill(word.as_ref()))).kill_on_drop(true);
    prepare(&mut command)?;
    command.spawn().map(Some).with_context(|| format!("cannot run {}", program.display()))
}

/// Waits for the end of a program, if there is one.
pub(crate) async fn ended(program: &mut Option<Child>) -> Result<ExitStatus> {
    match program {
        Some(child) => child.wait().await.context("cannot wait for the program"),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_stand_for_this_hosts_address_and_nothing_else_is_changed() {
        let place = Place { at: "127.0.0.1:4000".parse().unwrap(), url: "http://127.0.0.1:4000/".to_owned() };
        let filled = |word: &str| place.fill(OsStr::new(word));
        assert_eq!(filled("{port}"), "4000");
        assert_eq!(filled("--to={url}"), "--to=http://127.0.0.1:4000/");
        assert_eq!(filled("{host}:{port}{"), "127.0.0.1:4000{");
        assert_eq!(filled("$(reboot);{x}"), "$(reboot);{x}");
        assert_eq!(filled("{{port}}"), "{4000}");
    }
}
