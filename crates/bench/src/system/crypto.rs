//! The same cryptography for every peer that encrypts: TLS 1.3 with AES-128-GCM and X25519MLKEM768 by
//! aws-lc-rs, which is what whimbrel's endpoints agree on among themselves.

use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The name in the servers' certificates.
pub(super) const SERVER_NAME: &str = "localhost";
pub(crate) const ALPN: &[u8] = b"bench";

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519MLKEM768, aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    })
}

/// A server's configuration, and its certificate for clients to trust.
pub(super) fn server() -> Result<(ServerConfig, String)> {
    let (mut config, certificate) = server_at(vec![SERVER_NAME.to_owned()])?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok((config, to_hex(&certificate)))
}

/// The configuration of a server that is called so, names or addresses, and its certificate.
pub(crate) fn server_at(names: Vec<String>) -> Result<(ServerConfig, CertificateDer<'static>)> {
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let certificate = CertificateParams::new(names)?.self_signed(&key)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.into())?;
    Ok((config, certificate.der().clone()))
}

/// A client's configuration; it trusts this certificate alone.
pub(super) fn client(certificate: &str) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(from_hex(certificate)?))?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| {
            let pair = text.get(at..at + 2).context("half a byte")?;
            u8::from_str_radix(pair, 16).context("not hexadecimal")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_as_text() {
        assert_eq!(from_hex(&to_hex(&[0, 15, 255])).ok(), Some(vec![0, 15, 255]));
        assert!(from_hex("0").is_err() && from_hex("zz").is_err());
    }
}
