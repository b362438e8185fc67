//! Servers that speak TLS with certificates of a test's own authority, clients that do, and what intercepts
//! them.
#![allow(clippy::unwrap_used, unreachable_pub)]

use crate::support::{LIMIT, read_head};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use whimbrel_proxy::{InterceptAuthority, Interception};

/// Signs servers' certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let text = BASE64_STANDARD.encode(certificate.der());
        // rustls and OpenSSL read lines of any length.
        let text = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        fs::write(&file, text).unwrap();
        Self { issuer: Issuer::new(params, key), file, _folder: folder }
    }

    /// What a server of this host speaks.
    pub fn config(&self, host: &str) -> ServerConfig {
        self.config_with(host, |_| {})
    }

    /// The same with another certificate.
    pub fn config_with(&self, host: &str, change: impl FnOnce(&mut CertificateParams)) -> ServerConfig {
        let (certificate, key) = self.certificate(host, change);
        builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap()
    }

    /// A certificate and its key.
    pub fn certificate(
        &self,
        host: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        (certificate.der().clone(), key)
    }
}

/// What a server speaks whose certificate nobody signed but itself.
pub fn self_signed(host: &str) -> ServerConfig {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![host.to_owned()]).unwrap().self_signed(&key).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    builder().with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap()
}

/// What a server speaks, to begin with.
pub fn builder() -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap()
}

/// The authorities in a file.
pub fn roots(file: &Path) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
    roots
}

/// A server that speaks TLS, and remembers what it was asked.
pub struct SecureOrigin {
    pub port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

/// A connection of a client, on the server's side.
pub type Served = StreamOwned<ServerConnection, TcpStream>;

impl SecureOrigin {
    /// `answer` gets the head of a request, and says whether the connection goes on.
    pub fn start(
        config: ServerConfig,
        answer: impl Fn(&str, &mut Served) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), config, answer)
    }

    pub fn on(
        listener: TcpListener,
        config: ServerConfig,
        answer: impl Fn(&str, &mut Served) -> bool + Send + Sync + 'static,
    ) -> Self {
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (config, answer, seeing) = (Arc::new(config), Arc::new(answer), Arc::clone(&seen));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seeing));
                std::thread::spawn(move || {
                    stream.set_read_timeout(Some(3 * LIMIT)).unwrap();
                    let mut stream = StreamOwned::new(connection, stream);
                    while let Some(head) = head_of(&mut stream) {
                        seen.lock().unwrap().push(head.clone());
                        if !answer(&head, &mut stream) {
                            break;
                        }
                    }
                    stream.conn.send_close_notify();
                    // Who has left does not need it.
                    let _ = stream.flush();
                });
            }
        });
        Self { port, seen }
    }

    /// Gives everybody this.
    pub fn saying(config: ServerConfig, answer: &'static str) -> Self {
        Self::start(config, move |_, stream| stream.write_all(answer.as_bytes()).is_ok())
    }

    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }
}

/// Reads up to the end of a head, and no further.
pub fn head_of(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// A key that was made for this test.
pub struct Key {
    folder: tempfile::TempDir,
}

impl Key {
    /// For these domains.
    pub fn made_for(domains: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let domains: Vec<String> = domains.iter().map(|domain| (*domain).to_owned()).collect();
        InterceptAuthority::create(&folder.path().join("ca"), &domains).unwrap();
        Self { folder }
    }

    /// Its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("ca").join("intercept-ca.crt")
    }

    /// Intercepts these hosts, whose servers are verified by that authority.
    pub fn intercepts(&self, hosts: &[&str], authority: &Path) -> Interception {
        let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        let read = InterceptAuthority::read(&self.folder.path().join("ca")).unwrap();
        Interception::new(hosts, read, Some(authority)).unwrap()
    }
}

/// A client in a tunnel of the proxy behind this connection, to this host and port, that trusts this
/// authority.
pub fn client(
    stream: TcpStream,
    to: (&str, u16),
    authority: &Path,
) -> StreamOwned<ClientConnection, TcpStream> {
    client_of(stream, to, authority, aws_lc_rs::default_provider())
}

/// The same with other algorithms.
pub fn client_of(
    stream: TcpStream,
    to: (&str, u16),
    authority: &Path,
    provider: CryptoProvider,
) -> StreamOwned<ClientConnection, TcpStream> {
    client_speaking(stream, to, authority, provider, &[b"http/1.1"])
}

/// The same, which speaks one of these.
pub fn client_speaking(
    stream: TcpStream,
    (host, port): (&str, u16),
    authority: &Path,
    provider: CryptoProvider,
    protocols: &[&[u8]],
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut stream = stream;
    let words = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    stream.write_all(words.as_bytes()).unwrap();
    let head = read_head(&mut stream).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(authority))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

/// What curl gives.
pub struct Curled {
    pub code: Option<i32>,
    pub out: Vec<u8>,
    pub error: String,
}

impl Curled {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// Runs curl with this proxy and this authority, over HTTP/1.1.
pub fn curl(proxy: std::net::SocketAddr, authority: &Path, args: &[&str]) -> Curled {
    curl_of(proxy, authority, &[&["--http1.1"][..], args].concat())
}

/// The same as curl would by itself: over HTTP/2, if the other side speaks that.
pub fn curl_of(proxy: std::net::SocketAddr, authority: &Path, args: &[&str]) -> Curled {
    let mut command = Command::new("curl");
    for name in ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"]
    {
        command.env_remove(name);
    }
    // With -i it would give the head of the proxy's answer to CONNECT too.
    command.args(["-q", "-sS", "--suppress-connect-headers", "--max-time", "60"]);
    command.args(["--proxy", &format!("http://{proxy}"), "--cacert"]);
    let output = command.arg(authority).args(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    Curled { code: output.status.code(), out: output.stdout, error }
}
