//! The key that hosts are intercepted with, and what it signs.

use super::{HTTP, HTTP2, InterceptError, pem, validity};
use crate::Destination;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SerialNumber, date_time_ymd,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The files in the folder of an authority.
const CERTIFICATE: &str = "intercept-ca.crt";
const KEY: &str = "intercept-ca.key";
/// What is read of a file.
const MOST: u64 = 64 << 10;
/// How long the key may be used: whoever forgets it in a browser is safe from it after that.
const AUTHORITY_LASTS: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a certificate of a host is valid. It is made again before, and lives in memory alone.
const HOST_LASTS: Duration = Duration::from_secs(30 * 24 * 3600);
/// Certificates begin so long ago: a browser in a machine beside may have another time.
const BEFORE: Duration = Duration::from_secs(3600);
/// A name that stands for every domain.
const ALL: &str = "*";

/// A key that one browser profile trusts, which was made on this machine.
pub struct InterceptAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// The file of its certificate, and the end of that.
    path: PathBuf,
    end: String,
    /// The key of all hosts' certificates. It never leaves this process.
    host_key: KeyPair,
    /// Checks hosts' certificates as the browser will.
    verifier: Arc<WebPkiServerVerifier>,
    provider: Arc<CryptoProvider>,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterceptFiles {
    /// The certificate, which the browser is told to trust.
    pub certificate: PathBuf,
    /// The key, which nobody but this user can read.
    pub key: PathBuf,
    /// What the certificate is called in a browser's list.
    pub name: String,
    /// Its last day, as `YYYY-MM-DD`.
    pub ends: String,
}

impl InterceptAuthority {
    /// Makes a key and its certificate in a folder, which is made too. It can be used for these domains and
    /// what is below them alone (RFC 5280, §4.2.1.10), or for all if one of them is `*`; for addresses never;
    /// and for a year.
    ///
    /// # Errors
    /// [`InterceptError::Exists`] where there is one; [`InterceptError::BadDomain`]; or what the system says.
    pub fn create(folder: &Path, domains: &[String]) -> Result<InterceptFiles, InterceptError> {
        let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
        let pair = KeyPair::generate().map_err(InterceptError::making)?;
        let mut params = params(&pair);
        params.name_constraints = Some(constraints(domains)?);
        params.serial_number = Some(serial(&aws_lc_rs::default_provider())?);
        lasts(&mut params, AUTHORITY_LASTS)?;
        let signed = params.self_signed(&pair).map_err(InterceptError::making)?;
        for path in [&certificate, &key] {
            if path.symlink_metadata().is_ok() {
                return Err(InterceptError::Exists { path: path.clone() });
            }
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| wrong(folder, error))?;
        write(&key, 0o600, &pem::write("PRIVATE KEY", pair.serialized_der()))?;
        if let Err(error) = write(&certificate, 0o644, &pem::write("CERTIFICATE", signed.der())) {
            // Without its certificate it is of no use, and would be in the way of the next one.
            let _ = fs::remove_file(&key);
            return Err(error);
        }
        let ends = validity::end(signed.der()).map(|end| day(&end)).unwrap_or_default();
        Ok(InterceptFiles { certificate, key, name: name(&pair), ends })
    }

    /// Reads the key of a folder.
    ///
    /// # Errors
    /// [`InterceptError::Exposed`] where others can read the key, [`InterceptError::Expired`], and what is
    /// wrong with the files.
    pub fn read(folder: &Path) -> Result<Self, InterceptError> {
        let (path, key_path) = (folder.join(CERTIFICATE), folder.join(KEY));
        let secret = read_secret(&key_path)?;
        let secret = PrivateKeyDer::from_pem_slice(secret.as_bytes());
        let secret = secret.map_err(|error| wrong(&key_path, error))?;
        let pair = KeyPair::try_from(&secret).map_err(|error| wrong(&key_path, error))?;
        let text = read(&open(&path)?).map_err(|error| wrong(&path, error))?;
        let certificate = CertificateDer::from_pem_slice(text.as_bytes());
        let certificate = certificate.map_err(|error| wrong(&path, error))?;
        let end = validity::end(&certificate).ok_or_else(|| wrong(&path, "it is no certificate"))?;
        still_valid(&path, &end)?;
        let public = pair.public_key_raw();
        if !certificate.windows(public.len()).any(|bytes| bytes == public) {
            return Err(wrong(&path, "it is the certificate of another key"));
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(certificate).map_err(|error| wrong(&path, error))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        Ok(Self {
            verifier: verifier.build().map_err(|error| wrong(&path, error))?,
            issuer: Issuer::new(params(&pair), pair),
            host_key: KeyPair::generate().map_err(InterceptError::making)?,
            provider,
            path,
            end,
        })
    }

    /// Speaks TLS 1.3 as this host, with a certificate for it alone.
    ///
    /// # Errors
    /// [`InterceptError::NotFor`] and [`InterceptError::Expired`] where the browser would refuse it.
    pub(crate) fn server_for(&self, host: &str) -> Result<Arc<ServerConfig>, InterceptError> {
        // A proxy may run for longer than that.
        still_valid(&self.path, &self.end)?;
        let certificate = self.certificate(host)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.host_key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(InterceptError::making)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(InterceptError::making)?;
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP.to_vec()];
        // Between programs of one machine a handshake is cheap, and what is not kept needs no bound.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn certificate(&self, host: &str) -> Result<CertificateDer<'static>, InterceptError> {
        let mut params = CertificateParams::new(vec![host.to_owned()]).map_err(InterceptError::making)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Whimbrel interception");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        // Browsers refuse two certificates of one issuer and one number.
        params.serial_number = Some(serial(&self.provider)?);
        lasts(&mut params, HOST_LASTS)?;
        let signed = params.signed_by(&self.host_key, &self.issuer).map_err(InterceptError::making)?;
        let certificate = signed.der().clone();
        let not_for = |why: String| InterceptError::NotFor { host: host.to_owned(), why };
        let named = ServerName::try_from(host).map_err(|error| not_for(error.to_string()))?;
        let verified = self.verifier.verify_server_cert(&certificate, &[], &named, &[], UnixTime::now());
        verified.map_err(|error| not_for(error.to_string()))?;
        Ok(certificate)
    }
}

/// What the certificate of this key says of its issuer, the same whenever it is asked.
fn params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name(key));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// The name in a browser's list. It differs for each key, so that the right one is removed again.
fn name(key: &KeyPair) -> String {
    let digest = Sha256::digest(key.public_key_raw());
    let short: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("Whimbrel interception {short}")
}

/// What the key can be used for.
fn constraints(domains: &[String]) -> Result<NameConstraints, InterceptError> {
    let is_for_all = domains.iter().any(|domain| domain == ALL);
    let mut permitted = Vec::new();
    for domain in domains.iter().filter(|_| !is_for_all) {
        permitted.push(subtree(domain)?);
    }
    if permitted.is_empty() && !is_for_all {
        return Err(InterceptError::BadDomain { name: String::new() });
    }
    let addresses = [CidrSubnet::V4([0; 4], [0; 4]), CidrSubnet::V6([0; 16], [0; 16])];
    Ok(NameConstraints {
        permitted_subtrees: permitted,
        excluded_subtrees: addresses.map(GeneralSubtree::IpAddress).to_vec(),
    })
}

/// A domain and what is below it.
fn subtree(domain: &str) -> Result<GeneralSubtree, InterceptError> {
    let to = Destination::new(domain, 443).ok().filter(|to| to.address().is_none());
    let to = to.ok_or_else(|| InterceptError::BadDomain { name: domain.to_owned() })?;
    Ok(GeneralSubtree::DnsName(to.host().to_owned()))
}

/// From a little while ago until so long from now.
fn lasts(params: &mut CertificateParams, long: Duration) -> Result<(), InterceptError> {
    let (epoch, now) = (date_time_ymd(1970, 1, 1), since_1970()?);
    params.not_before = epoch + now.saturating_sub(BEFORE);
    params.not_after = epoch + now.saturating_add(long);
    Ok(())
}

/// Checks that a certificate has not ended.
fn still_valid(path: &Path, end: &str) -> Result<(), InterceptError> {
    if *end > *time(since_1970()?) {
        return Ok(());
    }
    Err(InterceptError::Expired { path: path.to_owned(), day: day(end) })
}

fn since_1970() -> Result<Duration, InterceptError> {
    SystemTime::now().duration_since(UNIX_EPOCH).map_err(InterceptError::making)
}

/// A time as [`validity::end`] has it.
fn time(since_1970: Duration) -> String {
    let time = date_time_ymd(1970, 1, 1) + since_1970;
    let (month, day) = (u8::from(time.month()), time.day());
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    format!("{:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}Z", time.year())
}

/// The day of such a time.
fn day(time: &str) -> String {
    match (time.get(..4), time.get(4..6), time.get(6..8)) {
        (Some(year), Some(month), Some(day)) => format!("{year}-{month}-{day}"),
        _ => time.to_owned(),
    }
}

fn serial(provider: &CryptoProvider) -> Result<SerialNumber, InterceptError> {
    let mut bytes = [0; 16];
    provider.secure_random.fill(&mut bytes).map_err(|_| InterceptError::making("no random number"))?;
    // Positive, and always of the same length.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn wrong(path: &Path, why: impl std::fmt::Display) -> InterceptError {
    InterceptError::File { path: path.to_owned(), why: why.to_string() }
}

fn write(path: &Path, mode: u32, text: &str) -> Result<(), InterceptError> {
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        // Half a file would be in the way of the next one.
        written.inspect_err(|_| drop(fs::remove_file(path)))
    };
    written().map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => InterceptError::Exists { path: path.to_owned() },
        _ => wrong(path, error),
    })
}

fn open(path: &Path) -> Result<File, InterceptError> {
    File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => wrong(path, "there is none; make it with `whimbrel proxy intercept-ca`"),
        _ => wrong(path, error),
    })
}

fn read(file: &File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// The text of a file that nobody else can read or write. What is looked at is the file that is read.
fn read_secret(path: &Path) -> Result<String, InterceptError> {
    let file = open(path)?;
    let of = file.metadata().map_err(|error| wrong(path, error))?;
    if of.mode() & 0o077 != 0 {
        return Err(InterceptError::Exposed { path: path.to_owned(), mode: of.mode() & 0o777 });
    }
    if of.uid() != rustix::process::geteuid().as_raw() {
        return Err(wrong(path, "it belongs to another user"));
    }
    read(&file).map_err(|error| wrong(path, error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    fn made(domains: &[&str]) -> (tempfile::TempDir, Result<InterceptFiles, InterceptError>) {
        let folder = tempfile::tempdir().unwrap();
        let domains: Vec<String> = domains.iter().map(|domain| (*domain).to_owned()).collect();
        let files = InterceptAuthority::create(&folder.path().join("ca"), &domains);
        (folder, files)
    }

    fn at(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("ca")
    }

    #[test]
    fn the_key_is_for_its_user_alone_and_is_refused_when_others_can_read_it() {
        let (folder, files) = made(&["example.org"]);
        let files = files.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&files.key), mode(&at(&folder))), (0o600, 0o700));
        assert!(InterceptAuthority::read(&at(&folder)).is_ok());
        for exposed in [0o644, 0o640, 0o604, 0o620, 0o610] {
            fs::set_permissions(&files.key, Permissions::from_mode(exposed)).unwrap();
            let error = InterceptAuthority::read(&at(&folder)).err().unwrap();
            assert!(matches!(error, InterceptError::Exposed { mode, .. } if mode == exposed), "{error}");
        }
        let again = InterceptAuthority::create(&at(&folder), &["example.org".to_owned()]).unwrap_err();
        assert!(matches!(again, InterceptError::Exists { .. }), "{again}");
    }

    #[test]
    fn a_key_is_never_overwritten_and_a_certificate_without_one_neither() {
        let (folder, files) = made(&["example.org"]);
        let files = files.unwrap();
        let key = fs::read(&files.key).unwrap();
        let create = || InterceptAuthority::create(&at(&folder), &["example.org".to_owned()]);
        assert!(matches!(create(), Err(InterceptError::Exists { .. })));
        assert_eq!(fs::read(&files.key).unwrap(), key);
        fs::remove_file(&files.key).unwrap();
        assert!(matches!(create(), Err(InterceptError::Exists { path }) if path == files.certificate));
        assert!(!files.key.exists());
        fs::remove_file(&files.certificate).unwrap();
        assert!(create().is_ok());
    }

    #[test]
    fn the_key_is_for_its_domains_and_no_other_host() {
        let (folder, files) = made(&["example.org", "Shop.Example.net."]);
        assert!(files.unwrap().name.starts_with("Whimbrel interception "));
        let authority = InterceptAuthority::read(&at(&folder)).unwrap();
        for host in ["example.org", "www.example.org", "shop.example.net"] {
            assert!(authority.server_for(host).is_ok(), "{host}");
        }
        for host in ["example.net", "notexample.org", "example.org.evil.example", "192.0.2.1"] {
            let error = authority.server_for(host).err().unwrap();
            assert!(matches!(error, InterceptError::NotFor { .. }), "{host}: {error}");
        }
        let (folder, files) = made(&["*"]);
        files.unwrap();
        let all = InterceptAuthority::read(&at(&folder)).unwrap();
        assert!(all.server_for("anything.example").is_ok() && all.server_for("192.0.2.1").is_err());
        for wrong in [&[][..], &[""], &["192.0.2.1"], &["*.example.org"], &["a b"]] {
            assert!(matches!(made(wrong).1, Err(InterceptError::BadDomain { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn no_two_certificates_have_one_number() {
        let (folder, files) = made(&["example.org"]);
        files.unwrap();
        let authority = InterceptAuthority::read(&at(&folder)).unwrap();
        let one = authority.certificate("example.org").unwrap();
        assert_ne!(one, authority.certificate("example.org").unwrap());
        let random = serial(&authority.provider).unwrap();
        assert_ne!(random, serial(&authority.provider).unwrap());
        assert_eq!(random.len(), 16);
    }

    #[test]
    fn what_is_old_or_of_another_key_is_refused() {
        let (folder, files) = made(&["example.org"]);
        let files = files.unwrap();
        let pair = KeyPair::try_from(&PrivateKeyDer::from_pem_file(&files.key).unwrap()).unwrap();
        let mut params = params(&pair);
        params.not_after = date_time_ymd(2024, 2, 3);
        let old = pem::write("CERTIFICATE", params.self_signed(&pair).unwrap().der());
        fs::write(&files.certificate, old).unwrap();
        let error = InterceptAuthority::read(&at(&folder)).err().unwrap();
        assert!(matches!(&error, InterceptError::Expired { day, .. } if day == "2024-02-03"), "{error}");
        // One that ends while it is used signs nothing from then on.
        let (other, files_of_other) = made(&["example.org"]);
        files_of_other.unwrap();
        let mut used = InterceptAuthority::read(&at(&other)).unwrap();
        used.end = "20240203000000Z".to_owned();
        assert!(matches!(used.server_for("example.org"), Err(InterceptError::Expired { .. })));
        let (_other, others) = made(&["example.org"]);
        fs::copy(&others.unwrap().certificate, &files.certificate).unwrap();
        let error = InterceptAuthority::read(&at(&folder)).err().unwrap();
        assert!(error.to_string().contains("another key"), "{error}");
        fs::write(&files.certificate, "nonsense").unwrap();
        assert!(matches!(InterceptAuthority::read(&at(&folder)), Err(InterceptError::File { .. })));
        fs::remove_file(&files.key).unwrap();
        let error = InterceptAuthority::read(&at(&folder)).err().unwrap();
        assert!(error.to_string().contains("intercept-ca"), "{error}");
    }

    #[test]
    fn times_are_written_as_certificates_have_them() {
        assert_eq!(time(Duration::from_secs(951_827_696)), "20000229123456Z");
        assert_eq!(day("20000229123456Z"), "2000-02-29");
    }
}
