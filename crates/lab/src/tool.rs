//! Calls `ip` and `nft`.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Generous: on a loaded machine the kernel's network lock can be held for seconds while it clears away
/// namespaces.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Where system tools are, even if an ordinary user's PATH leaves it out.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Finds a program.
pub(crate) fn find(tool: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.map(PathBuf::from))
        .map(|folder| folder.join(tool))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| Error::ToolMissing { tool: tool.into() })
}

/// Runs `ip` commands, one a line, in the calling thread's network namespace.
pub(crate) fn ip(commands: &str) -> Result<()> {
    run("ip", &["-batch", "-"], commands)
}

/// Applies an nftables ruleset in the calling thread's network namespace, all of it or nothing.
pub(crate) fn nft(ruleset: &str) -> Result<()> {
    run("nft", &["-f", "-"], ruleset)
}

fn run(tool: &str, args: &[&str], input: &str) -> Result<()> {
    let failed = |message: String| Error::Tool { command: format!("{tool} {}", input.trim()), message };
    let mut child = Command::new(find(tool)?)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Spawn { what: tool.into(), source })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that stops reading says why on its standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let deadline = Instant::now() + TIME_LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_micros(500)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::ToolTimeout { command: tool.into(), limit: TIME_LIMIT });
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut message = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut message);
    }
    Err(failed(message.trim().replace('\n', "; ")))
}
