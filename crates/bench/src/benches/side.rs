//! A side of a bench that is a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::child::{Reply, Request};
use crate::system::{Address, Kind};

/// A child process that is one side.
pub(super) struct Side {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Side {
    /// Starts a server, and says where it is.
    pub(super) fn server(system: Kind) -> Result<(Self, Address)> {
        Self::start(system, &[])?.with_address()
    }

    /// Starts a server that does nothing with its connections, and says where it is.
    pub(super) fn keeper(system: Kind) -> Result<(Self, Address)> {
        Self::start(system, &["--keep"])?.with_address()
    }

    fn with_address(mut self) -> Result<(Self, Address)> {
        match self.hear()? {
            Reply::Ready(Some(address)) => Ok((self, address)),
            other => bail!("the server has no address: {other:?}"),
        }
    }

    /// Starts a client of that server, and waits until it is warm.
    pub(super) fn client(system: Kind, server: &Address) -> Result<Self> {
        Self::warm(system, server, &[])
    }

    /// Starts a client of whimbrel that dials that server over QUIC alone, and waits until it is warm.
    pub(super) fn client_over_quic(server: &Address) -> Result<Self> {
        Self::warm(Kind::Whimbrel, server, &["--quic"])
    }

    fn warm(system: Kind, server: &Address, more: &[&str]) -> Result<Self> {
        let server = serde_json::to_string(server)?;
        let mut side = Self::start(system, &[&["--server", &server][..], more].concat())?;
        side.hear()?;
        Ok(side)
    }

    fn start(system: Kind, more: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["idle-child", "--system", &system.to_string()]).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, input, output })
    }

    pub(super) fn hear(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).context("one side died; its message is above")
    }

    pub(super) fn tell(&mut self, request: &Request) -> Result<()> {
        writeln!(self.input, "{}", serde_json::to_string(request)?).context("one side is gone")
    }

    pub(super) fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.tell(request)?;
        self.hear()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It holds nothing that would be lost.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
