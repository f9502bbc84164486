//! Whom a client trusts: the authorities of its system, and those that somebody names beside them.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, TrustAnchor};

use crate::{BadFile, read};

/// Authorities whose word on who a server is counts.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    authorities: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
}

impl Trust {
    /// The system's, and those in this file.
    pub fn load(ca: Option<&Path>) -> Result<Self, BadFile> {
        let mut trust = Self::default();
        // An authority of the system that makes no sense is not used, as everywhere.
        trust.add_parsable(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = ca {
            trust.add(path)?;
        }
        Ok(trust)
    }

    /// Those in this file, and nobody else.
    pub fn only(ca: &Path) -> Result<Self, BadFile> {
        let mut trust = Self::default();
        trust.add(ca)?;
        Ok(trust)
    }

    /// As certificates, in their binary form.
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// As what is needed of them to check others.
    pub fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    fn add(&mut self, path: &Path) -> Result<(), BadFile> {
        let nonsense = |error: String| BadFile::Nonsense {
            path: path.to_owned(),
            error: format!("a certificate in it: {error}"),
        };
        let text = read(path)?;
        let named: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| nonsense(error.to_string()))?;
        if named.is_empty() {
            return Err(BadFile::NoCertificate { path: path.to_owned() });
        }
        let mut roots = RootCertStore::empty();
        for certificate in &named {
            roots.add(certificate.clone()).map_err(|error| nonsense(error.to_string()))?;
        }
        self.authorities.extend(named);
        self.anchors.extend(roots.roots);
        Ok(())
    }

    fn add_parsable(&mut self, certificates: Vec<CertificateDer<'static>>) {
        for certificate in certificates {
            let mut roots = RootCertStore::empty();
            if roots.add(certificate.clone()).is_ok() {
                self.authorities.push(certificate);
                self.anchors.extend(roots.roots);
            }
        }
    }
}
