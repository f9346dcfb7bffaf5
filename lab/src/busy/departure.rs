//! How one pod left a busy gateway: what was seen of it from outside, and what it said of itself.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::MissedTickBehavior;

use super::play::{Plan, Stage};
use super::world;
use crate::gate::{number, text};
use crate::ground::Gateway;
use crate::http::{AbortOnDrop, Client};
use crate::kubelet::{self, Deletion};
use crate::mode::Mode;
use crate::network::Pod;
use crate::observe::{Observers, Seen};
use crate::process;
use crate::story::Story;
use crate::timeline::{self, Clock, Event, Kind};
use crate::wait;
use crate::watch::{Change, Series, Watch, lock};

/// The pace at which the gate's account and Envoy's processor time are read.
const ACCOUNT_PACE: Duration = Duration::from_millis(100);

/// One pod that left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Departure {
    pub(crate) pod: String,
    pub(crate) deletion: Deletion,
    /// The last word of `softclose prestop`.
    pub(crate) said: Option<Said>,
    pub(crate) order: String,
    pub(crate) events: Vec<Event>,
    /// By Envoy's own count at the last look before the balancer said DOWN.
    pub(crate) in_flight_at_down: Option<u64>,
    /// Processor time of its Envoy from the deletion to its end.
    pub(crate) cpu_s: f64,
    /// The gate's own account, as it went.
    pub(crate) account: Series,
    pub(crate) seen: Seen,
}

/// What the preStop command said at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) exit: u64,
    /// None if it did not know.
    pub(crate) cut_at_most: Option<u64>,
    pub(crate) message: String,
}

impl Departure {
    /// Deletes the pod of `gateway`; returns when it is gone and the balancer has noticed, or had the time to.
    pub(crate) async fn of(plan: &Plan, stage: &Stage<'_>, gateway: &mut Gateway) -> Result<Self> {
        let Stage { times, api, clock, story, .. } = stage;
        let pod = gateway.pod.clone();
        let observers = Observers::start(&plan.network, &pod, plan.mode.answers(), *api, *clock, story);
        observers.have_looked().await?;
        let account = watch_account(&pod, *clock, story);
        let meter = Meter::start(gateway.agent.envoy()?)?;
        let deletion = if plan.mode == Mode::Softclose {
            let command = world::pre_stop(&pod, plan.preset, plan.world, times)?;
            let grace = Duration::from_secs(times.times.grace_s.into());
            kubelet::delete_with(command, &mut gateway.agent, grace, *clock, story).await?
        } else {
            kubelet::delete(plan.mode, &times.times, gateway, *clock, story).await?
        };
        let cpu_s = meter.seconds();
        let down = async || observers.seen().balancer.first(0.0, |value| value.starts_with("DOWN")).map(|_| ());
        let detection = Duration::from_millis(4 * times.times.check_inter_ms) + Duration::from_secs(2);
        wait::until("HAProxy notices that the pod is gone", detection, down).await?;
        let seen = observers.seen();
        let events = seen.events(deletion.deleted_s, &[]);
        Ok(Self {
            pod: pod.name,
            said: Said::of(&deletion.pre_stop_output),
            order: timeline::order(&events),
            in_flight_at_down: seen.in_flight_at_lb_down(&events).map(|active| active.downstream),
            events,
            deletion,
            cpu_s,
            account: account.series(),
            seen,
        })
    }

    /// When the balancer was seen to say DOWN.
    pub(crate) fn down_s(&self) -> Option<f64> {
        timeline::find(&self.events, Kind::LbDown).map(|event| event.at_s)
    }

    /// Until when the balancer certainly went on sending: the last look before it said `NOLB` or DOWN.
    pub(crate) fn sent_until_s(&self) -> Option<f64> {
        let stopped = |value: &str| value.starts_with("NOLB") || value.starts_with("DOWN");
        self.seen.balancer.first(self.deletion.deleted_s, stopped).map(|change| change.after_s)
    }

    /// The fewest requests that Envoy counted at any look from the deletion until `to_s`; None if it did not always answer.
    pub(crate) fn least_in_flight(&self, to_s: f64) -> Option<u64> {
        least(&self.seen.active, self.deletion.deleted_s, to_s)
    }

    pub(crate) fn seconds_to_exit(&self) -> f64 {
        self.deletion.gone_s - self.deletion.deleted_s
    }

    /// The balancer took it for DOWN although its health had not failed: nothing that the mode did.
    pub(crate) fn ground_failure(&self) -> bool {
        let failed = timeline::find(&self.events, Kind::HealthFail);
        match (timeline::find(&self.events, Kind::LbDown), failed) {
            (Some(down), Some(failed)) => down.before(failed),
            (Some(down), None) => down.at_s < self.deletion.gone_s,
            (None, _) => false,
        }
    }
}

impl Said {
    /// From its lines, of which the last that names an exit code is the last word.
    fn of(lines: &[String]) -> Option<Self> {
        let read = |line: &String| -> Option<Self> {
            let line: Value = serde_json::from_str(line).ok()?;
            let (exit, message) = (number(&line, "/exit")?, text(&line, "/message").to_owned());
            Some(Self { exit, cut_at_most: number(&line, "/cut_at_most"), message })
        };
        lines.iter().rev().find_map(read)
    }
}

/// The fewest downstream requests of a series of `downstream+upstream` in that time; None if it has another word there, or none.
pub(crate) fn least(active: &Series, from_s: f64, to_s: f64) -> Option<u64> {
    let before = active.value_at(from_s)?;
    let within = active.changes.iter().filter(|change| change.at_s > from_s && change.at_s <= to_s);
    let words = std::iter::once(before).chain(within.map(|change| change.value.as_str()));
    let counts = words.map(|word| word.split_once('+')?.0.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    counts.into_iter().min()
}

/// Follows what the gate says of late requests and of those that may have been cut.
fn watch_account(pod: &Pod, clock: Clock, story: &Story) -> Watch {
    let story = story.clone();
    let (client, at) = (Client::on(pod.operator(), Duration::from_secs(1)), pod.control());
    let look = move || async move {
        let Ok(answer) = client.get(at, "/status").await else { return "no answer".to_owned() };
        let document: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let shown = |pointer: &str| number(&document, pointer).map_or("none".to_owned(), |count| count.to_string());
        format!("{}, late {}, cut at most {}", text(&document, "/state"), shown("/late"), shown("/cut_at_most"))
    };
    let tell = move |change: &Change| story.tell_at(change.at_s, format!("gate: {}", change.value));
    Watch::start("GET /status", ACCOUNT_PACE, clock, look, tell)
}

/// Envoy's processor time, read as long as it can be: what it used in the last instant before its end is not in it.
struct Meter {
    used: Arc<Mutex<(Duration, Duration)>>,
    _task: AbortOnDrop<()>,
}

impl Meter {
    fn start(envoy: i32) -> Result<Self> {
        let now = process::cpu(envoy)?;
        let used = Arc::new(Mutex::new((now, now)));
        let shared = Arc::clone(&used);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(ACCOUNT_PACE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // Threads that end one after the other would make it seem to run backwards.
                let Ok(now) = process::cpu(envoy) else { return };
                let mut used = lock(&shared);
                used.1 = used.1.max(now);
            }
        });
        Ok(Self { used, _task: AbortOnDrop(task) })
    }

    fn seconds(&self) -> f64 {
        let (began, now) = *lock(&self.used);
        now.saturating_sub(began).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(changes: &[(f64, &str)]) -> Series {
        let change = |&(at_s, value): &(f64, &str)| Change { after_s: at_s - 0.02, at_s, value: value.to_owned() };
        Series { changes: changes.iter().map(change).collect(), ..Series::default() }
    }

    #[test]
    fn the_fewest_in_flight_are_those_of_the_time_in_question() {
        let active = series(&[(0.0, "0+0"), (1.0, "5+5"), (2.0, "3+3"), (3.0, "7+7"), (4.0, "0+0")]);
        assert_eq!(least(&active, 1.5, 3.5), Some(3));
        assert_eq!(least(&active, 3.1, 3.2), Some(7));
        assert_eq!(least(&active, 1.5, 4.0), Some(0));
    }

    #[test]
    fn an_envoy_that_did_not_answer_is_not_busy() {
        assert_eq!(least(&series(&[(1.0, "5+5"), (2.0, "unknown"), (3.0, "5+5")]), 1.0, 3.0), None);
        assert_eq!(least(&series(&[(1.0, "5+5")]), 0.5, 3.0), None);
    }

    #[test]
    fn the_last_word_of_the_pre_stop_command_is_its_exit_code_and_its_bound() {
        let lines = [
            r#"{"softclose":"prestop","message":"health is 503"}"#,
            r#"{"softclose":"prestop","message":"done: late","exit":10,"cut_at_most":7}"#,
            "no line of its own",
        ];
        let said = Said::of(&lines.map(str::to_owned)).unwrap();
        assert_eq!((said.exit, said.cut_at_most, said.message.as_str()), (10, Some(7), "done: late"));
        let unknown = Said::of(&[r#"{"message":"m","exit":11,"cut_at_most":null}"#.to_owned()]).unwrap();
        assert_eq!(unknown.cut_at_most, None);
        assert_eq!(Said::of(&["balancer path answers 503".to_owned()]), None);
    }
}
