//! Certificates of a fabric: an authority, and for each node (or service, or person) a certificate whose name is its identity. For tests and for fabrics that
//! have no authority of their own; certificates from elsewhere serve as well if they carry a DNS name. Keys are written to files that only their
//! owner reads, and are never printed.

use crate::error::FabricError;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an authority is good.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * DAY.as_secs());
/// How long a node's certificate is good unless asked otherwise.
pub const NODE_VALIDITY: Duration = Duration::from_secs(90 * DAY.as_secs());
/// How far a certificate's beginning lies in the past, for hosts whose clocks are behind.
pub const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// The files of a node's credentials in their folder: whom it trusts, its certificate, its key.
pub const FILES: [&str; 3] = ["ca.pem", "node.pem", "node.key"];

/// Who signs: its certificate and its key.
pub struct Authority {
    certificate_pem: String,
    key: KeyPair,
}

/// What one node needs to speak TLS: whom it trusts, its certificate, its key. All PEM.
#[derive(Clone)]
pub struct Credentials {
    /// Certificates of the authorities whose nodes are believed; several while an authority is being replaced.
    pub authorities_pem: String,
    /// Own certificate, intermediate ones behind it.
    pub certificate_pem: String,
    /// Own key, PKCS #8. Never printed.
    pub key_pem: String,
}

impl Authority {
    /// A new authority, good for [`AUTHORITY_VALIDITY`] from now.
    pub fn new(name: &str) -> Result<Self, FabricError> {
        let key = KeyPair::generate().map_err(cannot)?;
        let now = SystemTime::now();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = ((now - CLOCK_SKEW).into(), (now + AUTHORITY_VALIDITY).into());
        let certificate_pem = params.self_signed(&key).map_err(cannot)?.pem();
        Ok(Self { certificate_pem, key })
    }

    /// An authority from its two files: `ca.pem` and `ca.key`.
    pub fn load(folder: &Path) -> Result<Self, FabricError> {
        let certificate_pem = read(&folder.join("ca.pem"))?;
        let path = folder.join("ca.key");
        let key = KeyPair::from_pem(&read(&path)?).map_err(|_| {
            FabricError::misuse(format!(
                "{} holds no private key in PEM: restore it, or make a new authority",
                path.display()
            ))
        })?;
        let authority = Self { certificate_pem, key };
        authority.issuer().map_err(|error| error.during(format!("reading {}", folder.join("ca.pem").display())))?;
        Ok(authority)
    }

    /// Writes `ca.pem` and `ca.key`. Files that are there already are not touched: an error says so.
    pub fn save(&self, folder: &Path) -> Result<(), FabricError> {
        write(&folder.join("ca.key"), &self.key.serialize_pem(), 0o600)?;
        write(&folder.join("ca.pem"), &self.certificate_pem, 0o644)
    }

    /// Its certificate, for those who shall trust it.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Credentials for a node, good for [`NODE_VALIDITY`] from now. `name` is its identity: a DNS name such as `node3` or `node3.rack1`.
    /// `addresses` are those at which peers may reach it without naming it.
    pub fn issue(&self, name: &str, addresses: &[IpAddr]) -> Result<Credentials, FabricError> {
        let now = SystemTime::now();
        self.issue_for(name, addresses, now - CLOCK_SKEW..now + NODE_VALIDITY)
    }

    /// The same, good from and to the times given.
    pub fn issue_for(
        &self,
        name: &str,
        addresses: &[IpAddr],
        valid: Range<SystemTime>,
    ) -> Result<Credentials, FabricError> {
        let bad_name = |_| {
            FabricError::misuse(format!("`{name}` is no DNS name: letters, digits, `-` and `.`, such as node3.rack1"))
        };
        rustls_pki_types::DnsName::try_from(name).map_err(|_| ()).map_err(bad_name)?;
        let mut params = CertificateParams::new([name.to_owned()]).map_err(|_| ()).map_err(bad_name)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (valid.start.into(), valid.end.into());
        let key = KeyPair::generate().map_err(cannot)?;
        let certificate = params.signed_by(&key, &self.issuer()?).map_err(cannot)?;
        Ok(Credentials {
            authorities_pem: self.certificate_pem.clone(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }

    fn issuer(&self) -> Result<Issuer<'_, &KeyPair>, FabricError> {
        Issuer::from_ca_cert_pem(&self.certificate_pem, &self.key).map_err(|_| {
            FabricError::misuse("the authority's certificate is none, or not an authority's: restore ca.pem")
        })
    }
}

impl Credentials {
    /// From a folder's `ca.pem`, `node.pem` and `node.key`.
    pub fn load(folder: &Path) -> Result<Self, FabricError> {
        let [authorities, certificate, key] = FILES;
        Ok(Self {
            authorities_pem: read(&folder.join(authorities))?,
            certificate_pem: read(&folder.join(certificate))?,
            key_pem: read(&folder.join(key))?,
        })
    }

    /// Writes `ca.pem`, `node.pem` and `node.key`. Files that are there already are not touched: an error says so.
    pub fn save(&self, folder: &Path) -> Result<(), FabricError> {
        write(&folder.join("node.key"), &self.key_pem, 0o600)?;
        write(&folder.join("node.pem"), &self.certificate_pem, 0o644)?;
        write(&folder.join("ca.pem"), &self.authorities_pem, 0o644)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

fn cannot(error: rcgen::Error) -> FabricError {
    FabricError::environment(format!("a certificate cannot be made: {error}"))
}

fn read(path: &Path) -> Result<String, FabricError> {
    std::fs::read_to_string(path).map_err(|error| {
        FabricError::environment(format!(
            "cannot read {}: {error}; certificates are made once for a fabric and copied to its nodes",
            path.display()
        ))
    })
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), FabricError> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| FabricError::environment(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    #[test]
    fn credentials_come_back_from_their_files_and_files_are_never_overwritten() {
        let folder = std::env::temp_dir().join(format!("sfab-certificate-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let authority = Authority::new("test").unwrap();
        authority.save(&folder).unwrap();
        let again = Authority::load(&folder).unwrap();
        assert_eq!(again.certificate_pem(), authority.certificate_pem());
        assert_eq!(again.save(&folder).unwrap_err().fault, Fault::Environment);
        let node = folder.join("node");
        std::fs::create_dir_all(&node).unwrap();
        let credentials = again.issue("node3", &[]).unwrap();
        credentials.save(&node).unwrap();
        assert_eq!(Credentials::load(&node).unwrap().key_pem, credentials.key_pem);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(node.join("node.key")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!format!("{credentials:?}").contains("PRIVATE"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_name_that_is_no_dns_name_is_refused() {
        let authority = Authority::new("test").unwrap();
        for name in ["", "a b", "node/3", "*"] {
            assert_eq!(authority.issue(name, &[]).unwrap_err().fault, Fault::Misuse, "{name}");
        }
    }
}
