//! What a client says first in a tunnel: whether it is TLS that can end here, or something that passes
//! through untouched.

use super::HTTP;
use crate::Destination;
use rustls::CipherSuite;
use rustls::server::{Acceptor, ClientHello};

/// More than this no client says before it waits for an answer.
pub(crate) const MAX_HELLO: usize = 16 << 10;
/// A record's content type: handshake.
const HANDSHAKE: u8 = 22;

/// What is to become of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hello {
    /// That cannot be told yet.
    More,
    /// It is TLS for the host of the tunnel, in which HTTP is spoken.
    Ours,
    /// It passes through untouched, for this reason.
    Other(&'static str),
}

/// Judges the first bytes of a client in a tunnel to `to`.
pub(crate) fn judge(bytes: &[u8], to: &Destination) -> Hello {
    match bytes.first() {
        None => return Hello::More,
        Some(&HANDSHAKE) => {}
        Some(_) => return Hello::Other("it is no TLS"),
    }
    let mut acceptor = Acceptor::default();
    let mut left = bytes;
    while !left.is_empty() {
        if !acceptor.read_tls(&mut left).is_ok_and(|count| count > 0) {
            return Hello::Other("its TLS cannot be read");
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return of(&accepted.client_hello(), to),
            Ok(None) => {}
            Err(_) => return Hello::Other("its TLS cannot be read"),
        }
    }
    if bytes.len() < MAX_HELLO { Hello::More } else { Hello::Other("its ClientHello is too large") }
}

fn of(hello: &ClientHello<'_>, to: &Destination) -> Hello {
    // Without a name it is for whatever is there, and with another one (also that of an encrypted
    // ClientHello) it is not for the host that the user named.
    if !hello.server_name().is_some_and(|name| name.eq_ignore_ascii_case(to.host())) {
        return Hello::Other("its TLS names another host, or none");
    }
    if !hello.alpn().is_some_and(|mut protocols| protocols.any(|protocol| protocol == HTTP)) {
        return Hello::Other("it does not say that it speaks HTTP/1.1");
    }
    let is_of_1_3 = |suite: &CipherSuite| {
        matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS13_AES_256_GCM_SHA384
                | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        )
    };
    if !hello.cipher_suites().iter().any(is_of_1_3) {
        return Hello::Other("it does not speak TLS 1.3");
    }
    Hello::Ours
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use rustls::client::Resumption;
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use std::sync::Arc;

    /// The first words of a client.
    fn hello(host: &str, protocols: &[&[u8]], sni: bool) -> Vec<u8> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config.enable_sni = sni;
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    fn judged(bytes: &[u8]) -> Hello {
        judge(bytes, &Destination::new("example.org", 443).unwrap())
    }

    #[test]
    fn only_tls_for_the_host_of_the_tunnel_that_speaks_http_ends_here() {
        let both: &[&[u8]] = &[b"h2", b"http/1.1"];
        let ours = hello("example.org", both, true);
        assert_eq!(judged(&ours), Hello::Ours);
        assert_eq!(judged(&hello("Example.ORG", both, true)), Hello::Ours);
        let others = [
            hello("www.example.org", both, true),
            hello("example.org", both, false),
            hello("example.org", &[], true),
            hello("example.org", &[b"h2"], true),
            hello("192.0.2.1", both, true),
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"SSH-2.0-OpenSSH\r\n".to_vec(),
            b"\x16\x03\x01\x00\x05hello".to_vec(),
            b"\x16\xff\xff\xff\xff".to_vec(),
        ];
        for bytes in others {
            assert!(matches!(judged(&bytes), Hello::Other(_)), "{bytes:?}");
        }
    }

    #[test]
    fn it_is_waited_for_all_of_a_clienthello_and_no_longer_than_it_can_be() {
        let ours = hello("example.org", &[HTTP], true);
        for length in 0..ours.len() {
            assert_eq!(judged(&ours[..length]), Hello::More, "{length} of {}", ours.len());
        }
        // Records of one byte each, of a message that never ends.
        let endless: Vec<u8> = [22, 3, 1, 0, 4, 1, 0, 255, 255]
            .into_iter()
            .chain(std::iter::repeat_n([22, 3, 1, 0, 1, 0], MAX_HELLO / 6 + 1).flatten())
            .collect();
        assert!(matches!(judged(&endless), Hello::Other(_)));
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_judged(
            at in 0_usize..2000,
            cut in 0_usize..2000,
            changed in any::<u8>(),
            more in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = hello("example.org", &[HTTP], true);
            let (at, cut) = (at % bytes.len(), cut % bytes.len());
            bytes[at] = changed;
            judged(&bytes);
            bytes.truncate(cut);
            bytes.extend(more);
            judged(&bytes);
        }
    }
}
