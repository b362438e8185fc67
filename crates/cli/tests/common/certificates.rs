//! Certificates for servers of a test, made by openssl.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// How openssl makes a key with what is signed.
pub const NEW_KEY: [&str; 6] = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

pub fn openssl(args: &[&str]) {
    let made = Command::new("openssl").args(args).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The files of a server that is called `localhost`.
pub struct Files {
    pub key: String,
    pub certificate: String,
    /// Whose certificate it is by which that one is verified.
    pub authority: String,
}

/// Makes them in this folder.
pub fn for_localhost(folder: &Path) -> Files {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (authority, signing) = (file("servers.pem"), file("servers.key"));
    let (key, asking, certificate) = (file("host.key"), file("host.req"), file("host.pem"));
    let own = [&NEW_KEY[..], &["-x509", "-days", "1", "-subj", "/CN=authority of a test"]].concat();
    openssl(&[&own[..], &["-keyout", &signing, "-out", &authority]].concat());
    openssl(&[&NEW_KEY[..], &["-subj", "/CN=localhost", "-keyout", &key, "-out", &asking]].concat());
    let extensions = file("host.cnf");
    fs::write(&extensions, "subjectAltName=DNS:localhost\n").unwrap();
    let signed = ["x509", "-req", "-in", &asking, "-CA", &authority, "-CAkey", &signing, "-CAcreateserial"];
    openssl(&[&signed[..], &["-days", "1", "-extfile", &extensions, "-out", &certificate]].concat());
    Files { key, certificate, authority }
}
