//! What a server shows: a certificate and its key, from two files that may be renewed while it runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::{BadFile, provider, read};

/// Renewals come weeks before they are needed; somebody who mends a mistake should not wait for long.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A server's side of TLS. Cloning shares everything.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    files: Arc<Files>,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    shown: Arc<Shown>,
    /// What was read last, whether it made sense or not.
    seen: Mutex<Contents>,
}

#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// What the next client gets to see.
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ServerTls {
    /// Certificates with the server's own first, and the key of that one; both in PEM form.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, BadFile> {
        let contents = Contents { certificate: read(certificate)?, key: read(key)? };
        let shown = Arc::new(Shown(RwLock::new(Arc::new(certified(certificate, key, &contents)?))));
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().expect("ring speaks TLS 1.2 and 1.3");
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(&shown) as _);
        // Agents speak HTTP/2; everybody else may.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let files = Files { certificate, key, shown, seen: Mutex::new(contents) };
        Ok(Self { config: Arc::new(config), files: Arc::new(files) })
    }

    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Takes up what is new on disk, for as long as it is polled.
    pub async fn keep_fresh(self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.look() {
                Ok(true) => tracing::info!(
                    certificate = %self.files.certificate.display(),
                    "the certificate was renewed; new connections get to see it"
                ),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the certificate on disk cannot be used; the one before it is still shown");
                }
            }
        }
    }

    /// Whether something else is shown from now on. The same mistake is told once.
    pub fn look(&self) -> Result<bool, BadFile> {
        let files = &*self.files;
        // A file that is away for a moment, because it is being replaced, is looked at again.
        let (Ok(certificate), Ok(key)) = (read(&files.certificate), read(&files.key)) else {
            return Ok(false);
        };
        let contents = Contents { certificate, key };
        let mut seen = files.seen.lock().expect("no panic while holding what was seen");
        if *seen == contents {
            return Ok(false);
        }
        *seen = contents.clone();
        drop(seen);
        let fresh = certified(&files.certificate, &files.key, &contents)?;
        *files.shown.0.write().expect("no panic while holding what is shown") = Arc::new(fresh);
        Ok(true)
    }
}

fn certified(certificate: &Path, key: &Path, contents: &Contents) -> Result<CertifiedKey, BadFile> {
    let nonsense = |path: &Path, error: String| BadFile::Nonsense { path: path.to_owned(), error };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&contents.certificate)
        .collect::<Result<_, _>>()
        .map_err(|error| nonsense(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(BadFile::NoCertificate { path: certificate.to_owned() });
    }
    let secret = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => BadFile::NoKey { path: key.to_owned() },
        error => nonsense(key, error.to_string()),
    })?;
    CertifiedKey::from_der(chain, secret, &provider()).map_err(|error| BadFile::Mismatch {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        error: error.to_string(),
    })
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().expect("no panic while holding what is shown")))
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("certificate", &self.files.certificate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pair {
        folder: tempfile::TempDir,
    }

    impl Pair {
        fn new() -> Self {
            let pair = Self { folder: tempfile::tempdir().unwrap() };
            pair.renew();
            pair
        }

        fn certificate(&self) -> PathBuf {
            self.folder.path().join("server.crt")
        }

        fn key(&self) -> PathBuf {
            self.folder.path().join("server.key")
        }

        fn renew(&self) -> Vec<u8> {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
            std::fs::write(self.certificate(), made.cert.pem()).unwrap();
            std::fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
            made.cert.der().to_vec()
        }

        fn load(&self) -> Result<ServerTls, BadFile> {
            ServerTls::load(&self.certificate(), &self.key())
        }
    }

    fn shown(tls: &ServerTls) -> Vec<u8> {
        tls.files.shown.0.read().unwrap().cert[0].to_vec()
    }

    #[test]
    fn a_renewed_certificate_is_taken_up_and_a_broken_one_is_not() {
        let pair = Pair::new();
        let tls = pair.load().unwrap();
        assert_eq!(tls.look(), Ok(false), "nothing new");
        let second = pair.renew();
        assert_eq!(tls.look(), Ok(true));
        assert_eq!(shown(&tls), second);

        // Half of a renewal: a certificate whose key is still to come.
        let old_key = std::fs::read(pair.key()).unwrap();
        let third = pair.renew();
        let new_key = std::fs::read(pair.key()).unwrap();
        std::fs::write(pair.key(), old_key).unwrap();
        assert!(matches!(tls.look(), Err(BadFile::Mismatch { .. })));
        assert_eq!(tls.look(), Ok(false), "told once");
        assert_eq!(shown(&tls), second);
        std::fs::write(pair.key(), new_key).unwrap();
        assert_eq!(tls.look(), Ok(true));
        assert_eq!(shown(&tls), third);

        std::fs::remove_file(pair.key()).unwrap();
        assert_eq!(tls.look(), Ok(false), "a file that is away for a moment");
        assert_eq!(shown(&tls), third);
    }

    #[test]
    fn what_is_wrong_with_the_files_is_told_by_file() {
        let pair = Pair::new();
        let said = |pair: &Pair| pair.load().unwrap_err().to_string();
        std::fs::write(pair.key(), "nothing").unwrap();
        assert!(said(&pair).contains("server.key holds no private key"), "{}", said(&pair));
        pair.renew();
        std::fs::write(pair.certificate(), "nothing").unwrap();
        assert!(said(&pair).contains("server.crt holds no certificate"), "{}", said(&pair));
        std::fs::remove_file(pair.certificate()).unwrap();
        assert!(said(&pair).contains("cannot read"), "{}", said(&pair));
    }
}
