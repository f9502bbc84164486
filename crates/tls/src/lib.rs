//! TLS, in the three places where Tenure meets it: what a server shows, whom a client trusts, and what to say when the
//! two do not come together.
//!
//! Promises: a certificate that was renewed on disk is shown to the next client without a restart, and one that makes no
//! sense never replaces one that does. What went wrong is told in words that name the way out.
//!
//! Does not promise anything about who a client is: that is what tokens and identities are for.

mod explain;
mod served;
mod trust;

use std::path::PathBuf;

pub use explain::explain;
pub use served::ServerTls;
pub use trust::Trust;

/// A file that does not hold what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFile {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: String },
    #[error("{} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} holds no private key in PEM form (-----BEGIN PRIVATE KEY-----)", path.display())]
    NoKey { path: PathBuf },
    #[error("{} makes no sense: {error}", path.display())]
    Nonsense { path: PathBuf, error: String },
    #[error(
        "the key in {} is not the one of the first certificate in {}: {error}",
        key.display(),
        certificate.display()
    )]
    Mismatch { certificate: PathBuf, key: PathBuf, error: String },
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, BadFile> {
    std::fs::read(path)
        .map_err(|error| BadFile::Unreadable { path: path.to_owned(), error: error.to_string() })
}

/// Which algorithms are used is decided here, and not by whichever crate comes first.
fn provider() -> std::sync::Arc<rustls::crypto::CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::ring::default_provider())
}
