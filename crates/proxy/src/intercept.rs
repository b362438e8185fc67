//! HTTPS that ends in the proxy: for hosts that the user named, with a key that was made on this machine for
//! one browser profile. Off unless it is asked for; the proxy for HTTP (`crate::http`) uses it.
//!
//! ```text
//! hosts      which hosts are intercepted: those that are named, and no others
//! hello      whether a client's first words are for us (pure)
//! authority  the key, its certificate, and those of hosts, signed by it
//! pem        how both are written
//! validity   how long a certificate is valid (pure)
//! servers    TLS towards servers, whose certificates are verified
//! error      what is wrong
//! ```

mod authority;
mod error;
mod hello;
mod hosts;
mod pem;
mod servers;
mod validity;

pub use authority::{InterceptAuthority, InterceptFiles};
pub use error::InterceptError;
pub use hosts::{BadInterceptHost, InterceptHost};

pub(crate) use hello::{Hello, MAX_HELLO, judge};
pub(crate) use hosts::InterceptHosts;
pub(crate) use servers::{Servers, Unsecured};

use std::path::Path;

/// What an HTTP proxy needs to intercept HTTPS.
pub struct Interception {
    pub(crate) hosts: InterceptHosts,
    pub(crate) authority: InterceptAuthority,
    pub(crate) servers: Servers,
}

impl Interception {
    /// Intercepts these hosts, with certificates of this authority. Servers are verified by the certificates
    /// of authorities in this PEM file; without one, by the system's.
    ///
    /// # Errors
    /// [`InterceptError::NoRoots`] and [`InterceptError::File`] where there are none to verify servers by.
    pub fn new(
        hosts: Vec<InterceptHost>,
        authority: InterceptAuthority,
        upstream_ca: Option<&Path>,
    ) -> Result<Self, InterceptError> {
        let servers = Servers::new(upstream_ca)?;
        Ok(Self { hosts: InterceptHosts::new(hosts), authority, servers })
    }

    /// Hosts that were named, and that the authority was not made for: they pass through untouched.
    pub fn left_untouched(&self) -> Vec<String> {
        let names = self.hosts.names().filter(|host| self.authority.server_for(host).is_err());
        names.map(str::to_owned).collect()
    }
}

/// What is spoken in a tunnel that is intercepted.
const HTTP: &[u8] = b"http/1.1";
/// And what is preferred.
pub(crate) const HTTP2: &[u8] = b"h2";
