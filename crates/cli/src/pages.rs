//! Manual pages and shell completions, made from the description of the command line itself.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::{Command, ValueEnum as _};
use clap_complete::Shell;

use crate::failure::Failure;

/// Writes a manual page for the program and for each of its commands into a directory, which is made if there
/// is none.
pub(crate) fn manual(command: Command, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))
}

/// The completions for a shell, as a script that the shell reads.
pub(crate) fn completions(mut command: Command, shell: &str) -> Result<String> {
    let Ok(shell) = Shell::from_str(shell, false) else {
        let known: Vec<String> = Shell::value_variants().iter().map(ToString::to_string).collect();
        return Err(Failure::usage(format!(
            "there are no completions for `{shell}`; there are: {}",
            known.join(", ")
        )));
    };
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8(script).context("the completions are no text")
}
