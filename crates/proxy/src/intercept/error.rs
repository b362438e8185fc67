//! What is wrong with the key that hosts are intercepted with, or with what servers are verified by.

use std::path::PathBuf;

/// Why hosts cannot be intercepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterceptError {
    /// A file cannot be read or written, or there is something else in it.
    #[error("{}: {why}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Others could pose as each of the hosts towards the browser.
    #[error(
        "{} can be used by others (mode {mode:03o}): make a new one with `whimbrel proxy intercept-ca`, and \
         remove this one from the browser",
        .path.display()
    )]
    Exposed {
        /// The file of the key.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There is a key already, which browsers may trust.
    #[error("{} is there already: remove it from the browser, and then both files", .path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// The certificate is too old.
    #[error("{} ended on {day}: make a new one with `whimbrel proxy intercept-ca`", .path.display())]
    Expired {
        /// The file of the certificate.
        path: PathBuf,
        /// Its last day.
        day: String,
    },
    /// There is nothing to verify servers by.
    #[error(
        "no certificates of authorities are found on this system: install ca-certificates, or name a file with \
         --upstream-ca"
    )]
    NoRoots,
    /// A certificate of this key would not be valid for the host.
    #[error("the key was not made for {host}: {why}")]
    NotFor {
        /// The host.
        host: String,
        /// What a browser would say.
        why: String,
    },
    /// The name is none of a host or a domain.
    #[error("{name:?} is no domain: write it as example.org, or `*` for all")]
    BadDomain {
        /// The name.
        name: String,
    },
    /// No certificate could be made.
    #[error("no certificate can be made: {0}")]
    Making(String),
}

impl InterceptError {
    /// For all that goes wrong where certificates are made.
    pub(super) fn making(error: impl std::fmt::Display) -> Self {
        Self::Making(error.to_string())
    }
}
