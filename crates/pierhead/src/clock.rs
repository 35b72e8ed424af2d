//! Whether this machine's clock can be right at all: one without a battery starts in 1970, or where it was built.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970: this program is younger. Of a release it is the date of the sources (SOURCE_DATE_EPOCH).
const WRITTEN: &str = env!("PIERHEAD_WRITTEN");

/// How a clock is set, here and on a DPU.
pub(crate) const FIX: &str = "`timedatectl set-ntp true`, or run chrony; on a DPU without a clock of its own, NTP must be \
                               reached (or `date -s` over its console)";

/// What is wrong with `now`, for people, if it is a time before this program was written.
pub(crate) fn wrong(now: SystemTime) -> Option<String> {
    (now < written()).then(|| {
        format!(
            "by this machine's clock it is {}, which is before this program was written: no certificate of a registry is \
             good by it",
            humantime::format_rfc3339_seconds(now.max(UNIX_EPOCH))
        )
    })
}

fn written() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(WRITTEN.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_program_are_wrong() {
        let written = written();
        assert!(written >= UNIX_EPOCH + Duration::from_secs(1_767_225_600));
        let second = Duration::from_secs(1);
        assert_eq!(wrong(written), None);
        assert_eq!(wrong(SystemTime::now()), None);
        let output = wrong(written - second).unwrap();
        let date = humantime::format_rfc3339_seconds(written - second).to_string();
        assert!(output.contains(&date), "{output}");
        for early in [UNIX_EPOCH, UNIX_EPOCH - second] {
            let output = wrong(early).unwrap();
            assert!(output.contains("1970-01-01T00:00:00Z"), "{output}");
        }
    }
}
