//! Detects a clock that is years off, as on a machine without a battery, whose clock starts in 1970
//! or at a build date.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Date of the sources in seconds since 1970 (`SOURCE_DATE_EPOCH` in a release). A correct clock
/// shows a later date.
const SOURCE_DATE: &str = env!("PIERHEAD_SOURCE_DATE");

/// The advice for a wrong clock, on a host and on a DPU.
pub(crate) const FIX: &str = "`timedatectl set-ntp true`, or run chrony; a DPU without a battery-backed clock must reach an NTP server \
                               (or set it by `date -s` on its console)";

/// Returns a message for the operator if `now` is before the date of the sources.
pub(crate) fn problem(now: SystemTime) -> Option<String> {
    (now < source_date()).then(|| {
        format!(
            "this machine's clock says {}, which is before pierhead was built: every certificate of a registry is invalid \
             at that time",
            humantime::format_rfc3339_seconds(now.max(UNIX_EPOCH))
        )
    })
}

fn source_date() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(SOURCE_DATE.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_the_date_of_the_sources_is_a_problem() {
        let source_date = source_date();
        assert!(source_date >= UNIX_EPOCH + Duration::from_secs(1_767_225_600));
        let second = Duration::from_secs(1);
        assert_eq!(problem(source_date), None);
        assert_eq!(problem(pierhead_host::clock::now()), None);
        let output = problem(source_date - second).unwrap();
        let date = humantime::format_rfc3339_seconds(source_date - second).to_string();
        assert!(output.contains(&date), "{output}");
        for early in [UNIX_EPOCH, UNIX_EPOCH - second] {
            let output = problem(early).unwrap();
            assert!(output.contains("1970-01-01T00:00:00Z"), "{output}");
        }
    }
}
