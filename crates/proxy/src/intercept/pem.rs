//! PEM (RFC 7468), as it is written; rustls reads it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Characters of a line.
const LINE: usize = 64;

/// Writes what has this label.
pub(super) fn write(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    for (n, character) in BASE64_STANDARD.encode(der).chars().enumerate() {
        if n > 0 && n % LINE == 0 {
            text.push('\n');
        }
        text.push(character);
    }
    text.push_str(&format!("\n-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    #[test]
    fn what_is_written_is_read_again() {
        for length in [1, 47, 48, 49, 1000] {
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let text = write("CERTIFICATE", &bytes);
            assert!(text.lines().all(|line| line.len() <= LINE), "{text}");
            assert_eq!(CertificateDer::from_pem_slice(text.as_bytes()).unwrap().as_ref(), &bytes[..]);
        }
    }
}
