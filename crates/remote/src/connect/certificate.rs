//! Explains why pierhead refused a server's certificate: an unknown authority, a wrong certificate,
//! or most likely a wrong clock of this machine.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use rustls::CertificateError;
use rustls_pki_types::UnixTime;

/// The cause of the refusal of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateFault {
    /// Most likely this machine's clock is wrong: by the clock, the certificate is not valid yet,
    /// or expired years ago.
    Clock,
    /// This machine trusts no authority in the chain of the certificate.
    Issuer,
    /// The server presents the certificate of an authority as its own.
    Authority,
    /// The certificate of the server is wrong, or this machine trusts the wrong authorities.
    Certificate,
}

/// Age in seconds above which an expired certificate is a sign of a wrong clock, because registries
/// renew their certificates every few months.
const CLOCK_ERROR_AGE: u64 = 365 * 24 * 3600;
/// The last second (Unix time) that an HTTP date can express: 9999-12-31T23:59:59Z.
const MAX_HTTP_DATE: u64 = 253_402_300_799;

/// Returns the cause and a hint for a failed handshake. `None` if the certificate is not the cause.
pub fn certificate_fault(error: &io::Error) -> Option<(CertificateFault, String)> {
    let cause = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let rustls::Error::InvalidCertificate(why) = cause else {
        return None;
    };
    Some(match why {
        CertificateError::NotValidYetContext { time, not_before } => (
            CertificateFault::Clock,
            format!(
                "; by this machine's clock it is {}, and the certificate is valid from {} on: {CLOCK}",
                date(*time),
                date(*not_before)
            ),
        ),
        CertificateError::ExpiredContext { time, not_after } => {
            let since = time.as_secs().saturating_sub(not_after.as_secs());
            let (which, fix) = match since > CLOCK_ERROR_AGE {
                true => (CertificateFault::Clock, CLOCK),
                false => (CertificateFault::Certificate, RENEW),
            };
            let (now, end) = (date(*time), date(*not_after));
            let hint = format!(
                "; by this machine's clock it is {now}, and the certificate expired on {end}: {fix}"
            );
            (which, hint)
        }
        CertificateError::UnknownIssuer => (CertificateFault::Issuer, ISSUER.to_owned()),
        // rustls wraps this error of the webpki library. This crate does not depend on webpki, so
        // the text of the error is compared.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            (CertificateFault::Authority, AUTHORITY.to_owned())
        }
        _ => (CertificateFault::Certificate, String::new()),
    })
}

const CLOCK: &str = "most likely the clock is wrong. Set it (`timedatectl set-ntp true`, or chrony; a DPU without a clock \
                     of its own takes the time from its host or by NTP). If it is right, the server needs a new certificate";
const ISSUER: &str = "; this machine trusts no authority that issued it";
const AUTHORITY: &str = "; it is the certificate of an authority, which pierhead refuses of a server: the server needs one with \
                         `basicConstraints=critical,CA:FALSE`";
const RENEW: &str = "the server needs a new one, unless the clock is wrong";

fn date(time: UnixTime) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(time.as_secs().min(MAX_HTTP_DATE)))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa};
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;

    use super::*;

    fn fault_of(why: CertificateError) -> (CertificateFault, String) {
        let error = io::Error::other(rustls::Error::InvalidCertificate(why));
        certificate_fault(&error).unwrap()
    }

    #[test]
    fn a_wrong_clock_and_an_expired_certificate_have_different_hints() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let (now, year) = (1_800_000_000, 366 * 24 * 3600);
        let (which, hint) = fault_of(CertificateError::NotValidYetContext {
            time: at(now),
            not_before: at(now + 1),
        });
        assert_eq!(which, CertificateFault::Clock);
        assert!(hint.contains("Fri, 15 Jan 2027 08:00:00 GMT"), "{hint}");
        assert!(hint.contains("Fri, 15 Jan 2027 08:00:01 GMT"), "{hint}");
        assert!(hint.contains("the clock is wrong"), "{hint}");
        for (since, expected) in [
            (1, CertificateFault::Certificate),
            (year, CertificateFault::Clock),
        ] {
            let (which, hint) = fault_of(CertificateError::ExpiredContext {
                time: at(now),
                not_after: at(now - since),
            });
            assert_eq!(which, expected, "{hint}");
            assert!(hint.contains("clock is wrong"), "{hint}");
        }
        let (which, hint) = fault_of(CertificateError::BadSignature);
        assert_eq!((which, hint.as_str()), (CertificateFault::Certificate, ""));
        assert_eq!(certificate_fault(&io::Error::other("cut")), None);
    }

    /// In a test, returns the error of rustls for a self-signed certificate, which is trusted or
    /// not.
    fn refusal(is_ca: IsCa, trusted: bool) -> rustls::Error {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut about = CertificateParams::new(["a.b".to_owned()]).unwrap();
        about.is_ca = is_ca;
        let shown = about.self_signed(&key).unwrap();
        about.distinguished_name.push(DnType::CommonName, "other");
        let other = about.self_signed(&rcgen::KeyPair::generate().unwrap());
        let root = if trusted {
            shown.clone()
        } else {
            other.unwrap()
        };
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let provider = rustls::crypto::ring::default_provider().into();
        let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let (name, now) = ("a.b".try_into().unwrap(), UnixTime::now());
        let verifier = builder.build().unwrap();
        let verdict = verifier.verify_server_cert(shown.der(), &[], &name, &[], now);
        verdict.map(|_| ()).unwrap_err()
    }

    #[test]
    fn the_certificate_of_an_authority_and_an_untrusted_one_have_different_hints() {
        let authority = IsCa::Ca(BasicConstraints::Unconstrained);
        let told = certificate_fault(&io::Error::other(refusal(authority, true))).unwrap();
        assert_eq!(told, (CertificateFault::Authority, AUTHORITY.to_owned()));
        let told =
            certificate_fault(&io::Error::other(refusal(IsCa::ExplicitNoCa, false))).unwrap();
        assert_eq!(told, (CertificateFault::Issuer, ISSUER.to_owned()));
    }

    #[test]
    fn a_date_beyond_the_last_http_date_does_not_panic() {
        assert!(date(UnixTime::since_unix_epoch(Duration::MAX)).contains("9999"));
    }
}
