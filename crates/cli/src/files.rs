//! How many files and sockets this process may have open.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process open as many files as the system allows it. Programs usually begin with 1024.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::info!(%error, "cannot raise the limit of open files");
    }
}

/// Whether an error says that no more files can be opened for now.
pub(crate) fn are_used_up(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What to tell when they are.
pub(crate) const USED_UP: &str = "no more sockets can be opened: raise the limit of open files (`ulimit -n`); until \
                                  then new connections wait for others to end";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_system_allows() {
        raise_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
