//! Waiting: for a condition, with a deadline. Nothing else in the lab may sleep, except for the pace of a scenario.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until `condition` gives a value, at most `limit`; the error says what was waited for.
pub(crate) async fn until<T>(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition().await {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("waited {:.1} s in vain: {what}", limit.as_secs_f64());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The scenario's own pace ("delete the pod two seconds in"). Not for waiting until something is ready.
pub(crate) async fn pace_until(moment: Instant) {
    tokio::time::sleep_until(moment.into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_that_never_holds_is_named_in_the_error() {
        let error = until("the moon is green", Duration::from_millis(20), async || None::<()>).await.unwrap_err();
        assert!(error.to_string().contains("the moon is green"));
    }
}
