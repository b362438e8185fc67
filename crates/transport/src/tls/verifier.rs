//! Who may be at the other end: exactly the expected server, or any client with a key of its own
//! (whether it is let in is decided by the listener, once its identity is known).

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use whimbrel_base::EndpointId;

fn verify(
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
}

const TLS12: Error = Error::PeerIncompatible(rustls::PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig);

/// What both kinds of verifier say of signatures: TLS 1.3, Ed25519 and raw keys only.
macro_rules! raw_ed25519_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(TLS12)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify(message, key, signature, &self.0)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// Client side: the server must show the key that its TLS name spells.
#[derive(Debug)]
pub(super) struct ExpectedServer(WebPkiSupportedAlgorithms);

impl ExpectedServer {
    pub(super) fn new(provider: &CryptoProvider) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for ExpectedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = EndpointId::from_spki_der(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if server_name.to_str() != shown.to_string() {
            return Err(Error::InvalidCertificate(CertificateError::NotValidForName));
        }
        Ok(ServerCertVerified::assertion())
    }

    raw_ed25519_signatures!();
}

/// Client side, over TCP: the server must show this key, whatever its TLS name.
#[derive(Debug)]
pub(super) struct ExactServer(WebPkiSupportedAlgorithms, EndpointId);

impl ExactServer {
    pub(super) fn new(provider: &CryptoProvider, peer: EndpointId) -> Self {
        Self(provider.signature_verification_algorithms, peer)
    }
}

impl ServerCertVerifier for ExactServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match EndpointId::from_spki_der(end_entity) {
            Ok(shown) if shown == self.1 => Ok(ServerCertVerified::assertion()),
            Ok(_) => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
            Err(_) => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    raw_ed25519_signatures!();
}

/// Server side: any Ed25519 key whose owner signs the handshake.
#[derive(Debug)]
pub(super) struct AnyPeer(WebPkiSupportedAlgorithms);

impl AnyPeer {
    pub(super) fn new(provider: &CryptoProvider) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

impl ClientCertVerifier for AnyPeer {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        EndpointId::from_spki_der(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        Ok(ClientCertVerified::assertion())
    }

    raw_ed25519_signatures!();
}
