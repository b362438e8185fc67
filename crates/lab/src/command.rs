//! Programs run inside a host.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal};

use crate::{Error, Host, Result, sys};

/// A program to be run inside a host's namespace. Like [`std::process::Command`].
pub struct HostCommand {
    host: Host,
    command: Command,
}

impl Host {
    /// Prepares a program to be run inside the namespace.
    pub fn command(&self, program: &str) -> HostCommand {
        HostCommand { host: self.clone(), command: Command::new(program) }
    }
}

impl HostCommand {
    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Changes anything else about the command.
    pub fn with(mut self, change: impl FnOnce(&mut Command)) -> Self {
        change(&mut self.command);
        self
    }

    /// Starts the program. It is killed, with its process group, when the returned guard is dropped, and it
    /// dies with the host or with this process.
    pub fn spawn(self) -> Result<HostChild> {
        self.start().map(|(_, child)| HostChild(child))
    }

    /// Runs the program to its end and collects what it prints.
    pub fn output(mut self) -> Result<Output> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (what, child) = self.start()?;
        child.wait_with_output().map_err(|source| Error::Spawn { what, source })
    }

    fn start(mut self) -> Result<(String, Child)> {
        let what = format!("{:?} in {}", self.command.get_program(), self.host.name());
        self.command.process_group(0);
        sys::die_with_parent(&mut self.command);
        let started = self.host.call(move || self.command.spawn())?;
        match started {
            Ok(child) => Ok((what, child)),
            Err(source) => Err(Error::Spawn { what, source }),
        }
    }
}

/// A running program, killed when dropped.
pub struct HostChild(Child);

impl HostChild {
    /// The process itself, for its pipes and number.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Waits for the program's end.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }

    /// Kills the program and its process group, and waits for its end.
    pub fn kill(&mut self) -> io::Result<()> {
        if self.0.try_wait()?.is_some() {
            return Ok(());
        }
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            rustix::process::kill_process_group(group, Signal::KILL)?;
        }
        self.0.wait().map(drop)
    }
}

impl Drop for HostChild {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
