//! TLS towards servers, whose certificates are verified as a browser would.

use super::{HTTP, HTTP2, InterceptError};
use crate::{Destination, Duplex};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, RootCertStore, SignatureScheme};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// For a handshake with a server.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// No authority signs with these yet, and the released program leaves them out (`scripts/link-folded.sh`).
const NOT_OFFERED: [SignatureScheme; 3] =
    [SignatureScheme::ML_DSA_44, SignatureScheme::ML_DSA_65, SignatureScheme::ML_DSA_87];

/// Speaks TLS 1.3 to servers.
pub(crate) struct Servers {
    config: ClientConfig,
}

/// That of rustls, without what is not offered.
fn provider() -> CryptoProvider {
    static SIGNATURES: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
        let known = aws_lc_rs::default_provider().signature_verification_algorithms;
        let offered = known.mapping.iter().filter(|(scheme, _)| !NOT_OFFERED.contains(scheme));
        WebPkiSupportedAlgorithms { mapping: offered.copied().collect::<Vec<_>>().leak(), ..known }
    });
    CryptoProvider { signature_verification_algorithms: *SIGNATURES, ..aws_lc_rs::default_provider() }
}

/// Why nothing is said to a server.
pub(crate) enum Unsecured {
    /// Its certificate is not valid, or not for this host.
    Certificate(String),
    /// It wants what only the browser has, or speaks another TLS: they may speak with each other.
    Unsuited(String),
    /// The handshake failed.
    Failed(io::Error),
}

impl Servers {
    /// Verifies servers by the certificates of authorities in this PEM file; without one, by the system's.
    ///
    /// # Errors
    /// When there are none.
    pub(crate) fn new(file: Option<&Path>) -> Result<Self, InterceptError> {
        let roots = match file {
            Some(file) => of_file(file)?,
            None => of_system()?,
        };
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(InterceptError::making)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self { config })
    }

    /// Agrees on TLS with the server of a new connection, once that has shown that it is `to`. For what wants
    /// to be `alone` on it HTTP/2 is not offered.
    ///
    /// # Errors
    /// Why not. Nothing but the handshake has been said then.
    pub(crate) async fn secure(
        &self,
        to: &Destination,
        stream: Box<dyn Duplex>,
        alone: bool,
    ) -> Result<TlsStream<Box<dyn Duplex>>, Unsecured> {
        let name = ServerName::try_from(to.host().to_owned());
        let name = name.map_err(|_| Unsecured::Unsuited("its name is none of TLS".to_owned()))?;
        let asked = Arc::new(Asked::default());
        let mut config = self.config.clone();
        config.client_auth_cert_resolver = asked.clone();
        config.alpn_protocols.retain(|protocol| !alone || protocol != HTTP2);
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let connected = tokio::time::timeout(HANDSHAKE, connecting).await;
        let connected = connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        match connected.map_err(Unsecured::of) {
            Err(Unsecured::Certificate(why)) => Err(Unsecured::Certificate(why)),
            _ if asked.0.load(Ordering::Relaxed) => {
                Err(Unsecured::Unsuited("it asks for a certificate of the user's".to_owned()))
            }
            connected => connected,
        }
    }
}

impl Unsecured {
    fn of(error: io::Error) -> Self {
        match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
            Some(cause @ (Error::InvalidCertificate(_) | Error::NoCertificatesPresented)) => {
                Self::Certificate(cause.to_string())
            }
            Some(
                cause @ (Error::AlertReceived(_) | Error::PeerIncompatible(_) | Error::NoApplicationProtocol),
            ) => Self::Unsuited(cause.to_string()),
            _ => Self::Failed(error),
        }
    }
}

/// Whether a server asked for a certificate. It gets none: that would be the browser's to show.
#[derive(Debug, Default)]
struct Asked(AtomicBool);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

fn of_system() -> Result<RootCertStore, InterceptError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "not all of the system's authorities are read");
    }
    let mut roots = RootCertStore::empty();
    // Some of a system's are so old that they cannot be read; nothing is verified by these.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 { Err(InterceptError::NoRoots) } else { Ok(roots) }
}

fn of_file(file: &Path) -> Result<RootCertStore, InterceptError> {
    let wrong = |why: String| InterceptError::File { path: file.to_owned(), why };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() { Err(wrong("there is no certificate in it".to_owned())) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_that_the_released_program_cannot_check_are_not_offered_to_servers() {
        let offered = provider().signature_verification_algorithms.supported_schemes();
        assert!(NOT_OFFERED.iter().all(|scheme| !offered.contains(scheme)), "{offered:?}");
        let common = [SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256];
        assert!(common.iter().all(|scheme| offered.contains(scheme)), "{offered:?}");
    }
}
