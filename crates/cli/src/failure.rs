//! How the program fails: one line that says what is wrong and what to do, and an exit code.

use std::io;

use whimbrel::{GroupError, UserError};
use whimbrel_names::{AskError, ErrorCode, KnownPeersError, ProofError, TrustError};
use whimbrel_proxy::SessionError;
use whimbrel_transport::{CloseCode, ConnectError, ListenError, ResolveError};

/// What the exit codes mean: `whimbrel help exit-codes`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done; also after Ctrl-C or SIGTERM, for commands that run until they are stopped
  1    failed
  2    wrong usage or configuration
  3    no such name
  4    the peer or the name service can't be reached
  5    refused: this key is not allowed, or the name belongs to another key
  6    not trusted: another key than the known one is said to have a name (`whimbrel trust`), or the name service is
       not the one that --prove-domain finds
  130  interrupted (Ctrl-C), for commands that end by themselves; 143 after SIGTERM";

/// An error with an exit code of its own.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub(crate) const USAGE: u8 = 2;
    pub(crate) const NOT_FOUND: u8 = 3;
    pub(crate) const UNREACHABLE: u8 = 4;
    pub(crate) const REFUSED: u8 = 5;
    pub(crate) const UNTRUSTED: u8 = 6;

    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
        Self::new(Self::USAGE, message).into()
    }

    /// An end by a signal: nothing needs to be said.
    pub(crate) fn silent(code: u8) -> anyhow::Error {
        Self::new(code, "").into()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What is wrong with a group, with the exit code that the program has for it, and its own words for what to
/// do.
pub(crate) fn of_group(error: GroupError) -> anyhow::Error {
    match error {
        GroupError::Names(error) => error.into(),
        GroupError::TooManyReaders(name) => Failure::usage(format!(
            "{name} has more members than its record can have readers; say who may look it up, as by --readers any"
        )),
        error => Failure::usage(error.to_string()),
    }
}

/// The exit code for an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of).unwrap_or(1)
}

fn code_of(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return Some(failure.code);
    }
    if let Some(error) = error.downcast_ref::<UserError>() {
        return match error {
            UserError::Taken(_) => Some(Failure::REFUSED),
            UserError::Names(error) => code_of(error),
            UserError::Trust(_) | UserError::Known(_) => Some(Failure::UNTRUSTED),
            UserError::Record(_) => None,
            _ => Some(Failure::USAGE),
        };
    }
    if let Some(error) = error.downcast_ref::<ConnectError>() {
        return match error {
            ConnectError::NotFound(_) => Some(Failure::NOT_FOUND),
            ConnectError::NoResolver(_) | ConnectError::Target(_) | ConnectError::Group(_) => {
                Some(Failure::USAGE)
            }
            ConnectError::NoAddress(_) | ConnectError::TimedOut { .. } => Some(Failure::UNREACHABLE),
            ConnectError::Refused { code: CloseCode::NOT_ALLOWED, .. } => Some(Failure::REFUSED),
            ConnectError::Refused { code: CloseCode::NO_LISTENER, .. } => Some(Failure::NOT_FOUND),
            ConnectError::Resolve { source, .. } | ConnectError::Find { source, .. } => code_of(source),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<ListenError>() {
        return match error {
            ListenError::NoResolver(_) => Some(Failure::USAGE),
            ListenError::Publish { source, .. } => code_of(source),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<AskError>() {
        return match (error, error.code()) {
            (_, Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked)) => {
                Some(Failure::NOT_FOUND)
            }
            (AskError::Refused { .. }, _) => Some(Failure::REFUSED),
            (AskError::Unreachable(_), _) => Some(Failure::UNREACHABLE),
            (AskError::Unproven(ProofError::Unreachable { .. }), _) => Some(Failure::UNREACHABLE),
            (AskError::Untrusted(_) | AskError::Unproven(_), _) => Some(Failure::UNTRUSTED),
            _ => None,
        };
    }
    if error.is::<TrustError>() || error.is::<KnownPeersError>() {
        return Some(Failure::UNTRUSTED);
    }
    if let Some(error) = error.downcast_ref::<SessionError>() {
        return match error {
            SessionError::None(_) => Some(Failure::NOT_FOUND),
            SessionError::Unreachable(_) | SessionError::Silent { .. } => Some(Failure::UNREACHABLE),
            SessionError::Refused(_) | SessionError::KnowsNoFilms => Some(Failure::REFUSED),
            _ => None,
        };
    }
    match error.downcast_ref::<ResolveError>()? {
        ResolveError::NotFound => Some(Failure::NOT_FOUND),
        ResolveError::Unreachable(_) => Some(Failure::UNREACHABLE),
        ResolveError::Refused(_) => Some(Failure::REFUSED),
        ResolveError::Untrusted(_) => Some(Failure::UNTRUSTED),
        _ => None,
    }
}

/// An error and its causes in one line. A cause that the error above it quotes is not said twice.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
}

/// Whether an error says that a disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn causes_are_said_once_and_in_one_line() {
        let inner = ResolveError::Unreachable("no\nanswer".into());
        let name: whimbrel_base::Name = match "a@b".parse() {
            Ok(name) => name,
            Err(error) => panic!("{error}"),
        };
        let error = anyhow::Error::new(ConnectError::Resolve { name, source: inner }).context("outer");
        assert_eq!(line(&error), "outer: cannot look up a@b: the name service does not answer: no answer");
        assert_eq!(code(&error), Failure::UNREACHABLE);
        let other: anyhow::Result<()> = Err(io::Error::other("x")).context("y");
        assert_eq!(other.map_err(|e| code(&e)), Err(1));
    }
}
