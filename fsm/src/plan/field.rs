//! What a field of a plan may be, and the error that says so.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

/// A field that is not what it has to be; its `Display` names the field, the value and the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field's name, as written in the query or configuration.
    pub field: String,
    /// The value that was given.
    pub value: String,
    /// What it has to be.
    pub expected: String,
}

impl FieldError {
    /// `field` was given as `value`; it has to be `expected`.
    pub fn new(field: &str, value: &str, expected: &str) -> Self {
        // An error goes into logs and answers: enough of a hostile value to recognise it, no more.
        const SHOWN: usize = 64;
        Self {
            field: field.chars().take(SHOWN).collect(),
            value: value.chars().take(SHOWN).collect(),
            expected: expected.to_owned(),
        }
    }

    /// There is no such field; these are.
    pub fn unknown(field: &str, value: &str, known: &[&str]) -> Self {
        Self::new(field, value, &format!("absent: the fields are {}", known.join(", ")))
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: got {:?}, must be {}", self.field, self.value, self.expected)
    }
}

impl core::error::Error for FieldError {}

/// `value` as a whole number within `bounds`.
///
/// # Errors
/// Anything else, naming the bounds.
pub(crate) fn whole_within(field: &str, value: &str, bounds: RangeInclusive<u64>) -> Result<u64, FieldError> {
    // `u64::from_str` takes a leading `+`, which in a query is somebody's encoded space.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse::<u64>().ok().filter(|number| digits && bounds.contains(number)).ok_or_else(|| {
        FieldError::new(field, value, &format!("a whole number from {} to {}", bounds.start(), bounds.end()))
    })
}

/// `value` as a duration in whole milliseconds within `bounds`.
///
/// # Errors
/// Anything else, naming the bounds.
pub(crate) fn millis_within(field: &str, value: &str, bounds: RangeInclusive<u64>) -> Result<Duration, FieldError> {
    whole_within(field, value, bounds).map(Duration::from_millis)
}

/// The value of that name.
pub(crate) fn named<T: Copy, const N: usize>(field: &str, value: &str, all: [(&str, T); N]) -> Result<T, FieldError> {
    all.iter()
        .find(|(name, _)| *name == value)
        .map(|(_, found)| *found)
        .ok_or_else(|| FieldError::new(field, value, &one_of(&all.map(|(name, _)| name))))
}

/// `value` as an HTTP status from `lowest` to 599.
pub(crate) fn status_within(field: &str, value: &str, lowest: u16, or: &str) -> Result<u16, FieldError> {
    let status = whole_within(field, value, u64::from(lowest)..=599);
    status
        .map(|status| u16::try_from(status).unwrap_or(u16::MAX))
        .map_err(|error| FieldError { expected: format!("{}{or}", error.expected), ..error })
}

/// `value` as a body: what a query can hold without escapes, and a balancer's receive string is likely to be.
pub(crate) fn body(field: &str, value: &str) -> Result<String, FieldError> {
    const LONGEST: usize = 64;
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"&#%+".contains(&byte);
    if (1..=LONGEST).contains(&value.len()) && value.bytes().all(plain) {
        return Ok(value.to_owned());
    }
    Err(FieldError::new(
        field,
        value,
        &format!("1 to {LONGEST} printable ASCII characters, none of them a space or & # % +"),
    ))
}

/// "one of a, b".
pub(crate) fn one_of(names: &[&str]) -> String {
    format!("one of {}", names.join(", "))
}
