//! What of a value its type does not know.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The paths below `at` of what is lost, or another, after reading `value` as a `T` and writing it again.
pub(crate) fn unknown<T: DeserializeOwned + Serialize>(value: &Value, at: &str) -> Vec<String> {
    match serde_json::from_value::<T>(value.clone()) {
        Ok(typed) => {
            let mut lost = Vec::new();
            compare(value, &serde_json::to_value(typed).unwrap(), at, &mut lost);
            lost
        }
        Err(error) => vec![format!("{at}: {error}")],
    }
}

/// The same for a list of them.
pub(crate) fn unknown_in_each<T: DeserializeOwned + Serialize>(value: &Value, at: &str) -> Vec<String> {
    let Some(items) = value.as_array() else { return vec![format!("{at}: no list")] };
    items.iter().enumerate().flat_map(|(number, item)| unknown::<T>(item, &format!("{at}/{number}"))).collect()
}

fn compare(before: &Value, after: &Value, at: &str, lost: &mut Vec<String>) {
    match (before, after) {
        // `key: null` removes a field in a patch and is none in a document.
        (Value::Null, _) => {}
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before.iter().filter(|(_, value)| !value.is_null()) {
                let at = format!("{at}/{key}");
                match after.get(key) {
                    Some(after) => compare(value, after, &at, lost),
                    None => lost.push(at),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (number, (before, after)) in before.iter().zip(after).enumerate() {
                compare(before, after, &format!("{at}/{number}"), lost);
            }
        }
        (before, after) if before == after => {}
        (before, after) => lost.push(format!("{at}: {before} is read as {after}")),
    }
}
