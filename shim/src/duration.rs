//! Durations as people write them in manifests: `60s`, `1500ms`, `2m`; a bare number is seconds.

use std::time::Duration;

/// The longest: a day is longer than any grace period in use, and what the gate takes for a deadline.
const LONGEST: Duration = Duration::from_secs(86_400);

/// What a duration has to look like, for error messages.
pub(crate) const EXPECTED: &str = "a whole number with ms, s, m or h (bare: seconds), at most 24h";

/// `text` as a duration; none if it is anything but [`EXPECTED`].
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let millis_per_unit = match unit {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let millis = digits.parse::<u64>().ok()?.checked_mul(millis_per_unit)?;
    Some(Duration::from_millis(millis)).filter(|span| *span <= LONGEST)
}

/// Whole milliseconds, as the control calls take them.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// For people: seconds, with a tenth below ten.
pub(crate) fn text(span: Duration) -> String {
    if span < Duration::from_secs(10) && span.subsec_millis() >= 50 {
        format!("{:.1} s", span.as_secs_f64())
    } else {
        format!("{:.0} s", span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{parse, text};

    #[test]
    fn units_are_understood_and_a_bare_number_is_seconds() {
        assert_eq!(parse("60s"), Some(Duration::from_secs(60)));
        assert_eq!(parse("60"), Some(Duration::from_secs(60)));
        assert_eq!(parse("1500ms"), Some(Duration::from_millis(1500)));
        assert_eq!(parse("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse("1h"), Some(Duration::from_secs(3600)));
        assert_eq!(parse("0"), Some(Duration::ZERO));
        assert_eq!(parse("007s"), Some(Duration::from_secs(7)));
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "s",
            "ms",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            " 1s",
            "1s ",
            "1S",
            "1d",
            "1ss",
            "1m30s",
            "1e3",
            "0x10",
            "\u{0661}s",
            "s1",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_day_is_the_longest_and_nothing_overflows() {
        assert_eq!(parse("24h"), Some(Duration::from_secs(86_400)));
        assert_eq!(parse("86400001ms"), None);
        assert_eq!(parse("25h"), None);
        assert_eq!(parse("18446744073709551615"), None);
        assert_eq!(parse("18446744073709551616ms"), None);
        assert_eq!(parse("99999999999999999999999999999999h"), None);
    }

    #[test]
    fn durations_read_as_people_say_them() {
        assert_eq!(text(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(text(Duration::from_secs(2)), "2 s");
        assert_eq!(text(Duration::from_millis(32_400)), "32 s");
        assert_eq!(text(Duration::ZERO), "0 s");
    }
}
