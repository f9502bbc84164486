//! What a failed handshake means, in words for people.

use std::error::Error;
use std::io;

use jiff::Timestamp;
use rustls::CertificateError;
use rustls::pki_types::{ServerName, UnixTime};

/// `None`: it was not TLS that failed.
pub fn explain(error: &(dyn Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return Some(words(error));
        }
        // What an I/O error carries is not among its causes.
        let carried = cause.downcast_ref::<io::Error>()?.get_ref()?;
        explain(carried)
    })
}

fn words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(problem) => certificate(problem),
        rustls::Error::InvalidMessage(_) => {
            "what answers there does not speak TLS: write http:// instead of https://, or give that server a \
             certificate (--tls-cert, --tls-key)"
                .into()
        }
        rustls::Error::AlertReceived(alert) => format!("the TLS handshake was refused ({alert:?})"),
        other => format!("TLS failed: {other}"),
    }
}

fn certificate(problem: &CertificateError) -> String {
    match problem {
        CertificateError::UnknownIssuer => {
            "certificate not trusted: give its authority with --ca FILE or TENURE_CA".into()
        }
        CertificateError::Expired => "its certificate has expired: renew it there".into(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("its certificate has expired on {}: renew it there", day(*not_after))
        }
        CertificateError::NotValidYet => {
            "its certificate is not valid yet: check the clocks of both machines".into()
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "its certificate is not valid before {}: check the clocks of both machines",
            day(*not_before)
        ),
        CertificateError::NotValidForName => {
            "its certificate is not for this host name: use a name that it has, or have one made for this name"
                .into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is not for the host name {}{}: use a name that it has, or have one made for this name",
            name(expected),
            match presented.as_slice() {
                [] => String::new(),
                names => format!(", but for {}", names.join(", ")),
            }
        ),
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority, which no server may show: have one made for the server, signed \
             by that authority"
                .into()
        }
        other => format!("its certificate cannot be used: {other}"),
    }
}

fn name(name: &ServerName<'_>) -> String {
    name.to_str().into_owned()
}

fn day(time: UnixTime) -> String {
    let at = i64::try_from(time.as_secs()).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    at.map_or_else(|| "some day".into(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_found_however_it_is_wrapped() {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, unknown());
        let twice = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, unknown()));
        for error in [&unknown() as &(dyn Error + 'static), &wrapped, &twice] {
            let said = explain(error).unwrap();
            assert!(said.contains("certificate not trusted") && said.contains("--ca"), "{said}");
        }
        assert_eq!(explain(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }

    #[test]
    fn each_kind_of_trouble_names_its_way_out() {
        let certificate = rustls::Error::InvalidCertificate;
        let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        for (error, word) in [
            (certificate(CertificateError::Expired), "expired"),
            (
                certificate(CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) }),
                "1970-01-01T00:00:00Z",
            ),
            (certificate(CertificateError::NotValidForName), "host name"),
            (
                certificate(CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("a.example").unwrap(),
                    presented: vec!["b.example".into()],
                }),
                "a.example, but for b.example",
            ),
            (rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), "http://"),
        ] {
            let said = explain(&error).unwrap();
            assert!(said.contains(word), "{said}");
        }
    }
}
