//! Ends in order: on Ctrl-C, on SIGTERM, and with whoever started us.

use anyhow::{Context as _, Result};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// What asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Interrupt,
    Terminate,
    /// Standard input ended, with `--until-eof`.
    Eof,
}

impl Request {
    /// How a command ends that was cut short: the customary codes, and nothing to say.
    pub(crate) fn error(self) -> anyhow::Error {
        Failure::silent(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Eof => 1,
        })
    }
}

/// Catches the signals from now on.
pub(crate) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    until_eof: bool,
}

impl Shutdown {
    pub(crate) fn catch(until_eof: bool) -> Result<Self> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            until_eof,
        })
    }

    /// Waits until somebody asks for the end. Cancel-safe.
    pub(crate) async fn requested(&mut self) -> Request {
        let until_eof = self.until_eof;
        tokio::select! {
            _ = self.interrupt.recv() => Request::Interrupt,
            _ = self.terminate.recv() => Request::Terminate,
            () = input_ended(), if until_eof => Request::Eof,
        }
    }
}

async fn input_ended() {
    let mut input = tokio::io::stdin();
    let mut sink = [0; 256];
    while let Ok(1..) = input.read(&mut sink).await {}
}
