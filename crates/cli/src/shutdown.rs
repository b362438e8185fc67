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
    /// The terminal, or the program that started us, is gone.
    Hangup,
    /// Standard input ended, with `--until-eof`.
    Eof,
}

impl Request {
    /// How a command ends that was cut short: the customary codes, and nothing to say.
    pub(crate) fn error(self) -> anyhow::Error {
        Failure::silent(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
            Self::Eof => 1,
        })
    }
}

/// Catches the signals from now on.
pub(crate) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    until_eof: bool,
}

impl Shutdown {
    pub(crate) fn catch(until_eof: bool) -> Result<Self> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hangup: None,
            until_eof,
        })
    }

    /// Ends on a hang-up too. Not for commands that people start with nohup: it would undo that.
    pub(crate) fn with_hangup(mut self) -> Result<Self> {
        self.hangup = Some(signal(SignalKind::hangup()).context("cannot catch signals")?);
        Ok(self)
    }

    /// Waits until somebody asks for the end. Cancel-safe.
    pub(crate) async fn requested(&mut self) -> Request {
        let until_eof = self.until_eof;
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Request::Interrupt,
            _ = self.terminate.recv() => Request::Terminate,
            _ = hangup => Request::Hangup,
            () = input_ended(), if until_eof => Request::Eof,
        }
    }
}

async fn input_ended() {
    let mut input = tokio::io::stdin();
    let mut sink = [0; 256];
    while let Ok(1..) = input.read(&mut sink).await {}
}
