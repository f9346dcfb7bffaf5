//! The six events from outside. Each has one source, and none of them is the gate's own record:
//!
//! | event | source |
//! |---|---|
//! | 1 `health_fail` | a probe of the balancer path, fresh connection each time |
//! | 2 `readiness_fail` | the same of the readiness path |
//! | 3 `envoy_drain_start` | the first `connection: close` of Envoy's status listener (Istio's 15021): no client's way |
//! | 4 `active_zero` | Envoy's admin: downstream plus upstream requests in flight |
//! | 5 `lb_down` | HAProxy's `show stat` |
//! | 6 `rst` | a client whose waiting request was cut; an RST that nobody was waiting behind is not event 6 |

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::curl::Outcome;
use crate::envoy::Admin;
use crate::ground::Answers;
use crate::haproxy::{Api, Check};
use crate::http::{Answer, Client, Failure};
use crate::network::{Network, Pod};
use crate::story::Story;
use crate::timeline::{self, Clock, Event, Kind};
use crate::watch::{Change, Series, Watch};
use crate::{topology, wait};

/// The pace of looking. Event 5 within this of a client's failure cannot be told from it.
const PACE: Duration = Duration::from_millis(20);
/// Between the failing readiness answer and Envoy's end lie only a few milliseconds when preStop exits at once.
const READINESS_PACE: Duration = Duration::from_millis(5);
/// A look that takes longer shows nothing of use.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// The running watches of a run.
pub(crate) struct Observers {
    health: Watch,
    readiness: Watch,
    drain: Watch,
    active: Watch,
    balancer: Watch,
}

/// What they have seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// `200 OPEN`, `503`, `refused`...
    pub(crate) health: Series,
    pub(crate) readiness: Series,
    /// `keep` or `close`.
    pub(crate) drain: Series,
    /// Downstream and upstream requests in flight, `2+2`.
    pub(crate) active: Series,
    /// HAProxy's word for the gateway.
    pub(crate) balancer: Series,
}

/// Requests in flight when the balancer cut.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InFlight {
    pub(crate) downstream: u64,
    pub(crate) upstream: u64,
}

impl Observers {
    /// Watches one pod, which answers the balancer like this, on that network.
    pub(crate) fn start(network: &Network, pod: &Pod, answers: Answers, api: Api, clock: Clock, story: &Story) -> Self {
        let probe = |address: IpAddr| Client::on(network.probe(address), LOOK_LIMIT);
        let (health, readiness) = (probe(topology::HEALTH_PROBE), probe(topology::READINESS_PROBE));
        let drain = probe(topology::DRAIN_PROBE);
        let admin = Admin::of(pod);
        let at = |check: Check| SocketAddr::new(pod.outside, check.port);
        let (health_path, readiness_path) = (answers.check().path, answers.readiness().path);
        let (health_at, readiness_at, status_at) = (at(answers.check()), at(answers.readiness()), pod.status());
        let server = pod.name.clone();
        Self {
            health: Watch::start(
                &format!("probe of GET {health_path}"),
                PACE,
                clock,
                move || async move { word(health.get(health_at, health_path).await) },
                tell(story, "health answer"),
            ),
            readiness: Watch::start(
                &format!("probe of GET {readiness_path}"),
                READINESS_PACE,
                clock,
                move || async move { word(readiness.get(readiness_at, readiness_path).await) },
                tell(story, "readiness answer"),
            ),
            drain: Watch::start(
                "`connection: close` of Envoy's status listener",
                PACE,
                clock,
                move || async move {
                    match drain.get(status_at, "/healthz/ready").await {
                        Ok(answer) if answer.header("connection") == Some("close") => "close".to_owned(),
                        Ok(_open) => "keep".to_owned(),
                        Err(failure) => short(&failure),
                    }
                },
                tell(story, "envoy says connection:"),
            ),
            active: Watch::start(
                "admin: http.outbound_*.downstream_rq_active + cluster.outbound*.upstream_rq_active",
                PACE,
                clock,
                move || async move {
                    let active = admin.active().await;
                    active.map_or_else(|_gone| "unknown".to_owned(), |a| format!("{}+{}", a.downstream, a.upstream))
                },
                tell(story, "in flight (downstream+upstream)"),
            ),
            balancer: Watch::start(
                "HAProxy: show stat",
                PACE,
                clock,
                move || {
                    let server = server.clone();
                    async move {
                        let said = api.server(&server).await;
                        said.map_or_else(|_silent| "silent".to_owned(), |server| server.status)
                    }
                },
                tell(story, "haproxy says"),
            ),
        }
    }

    /// Waits until every watch has looked once: what changes from here on is seen.
    pub(crate) async fn have_looked(&self) -> Result<()> {
        let all = async || {
            let seen = self.seen();
            let series = [&seen.health, &seen.readiness, &seen.drain, &seen.active, &seen.balancer];
            series.iter().all(|series| series.samples > 0).then_some(())
        };
        wait::until("every watch has looked once", Duration::from_secs(5), all).await
    }

    pub(crate) fn seen(&self) -> Seen {
        Seen {
            health: self.health.series(),
            readiness: self.readiness.series(),
            drain: self.drain.series(),
            active: self.active.series(),
            balancer: self.balancer.series(),
        }
    }
}

impl Seen {
    /// The events of a run whose pod was deleted at `deleted_s`, in order.
    pub(crate) fn events(&self, deleted_s: f64, clients: &[Outcome]) -> Vec<Event> {
        let mut events = Vec::new();
        let mut add = |kind: Kind, series: &Series, wanted: &dyn Fn(&str) -> bool| {
            // Zero before the clients came is no event; whatever else happens too early is one, and spoils the order.
            let from_s = if kind == Kind::ActiveZero { deleted_s } else { 0.0 };
            if let Some(change) = series.first(from_s, wanted) {
                events.push(Event::new(kind, change.after_s, change.at_s, &series.source, &change.value));
            }
        };
        // A soft answer fails nothing: it only asks for nothing new.
        add(Kind::HealthFail, &self.health, &|value| !value.starts_with("200") && !value.starts_with("404"));
        add(Kind::ReadinessFail, &self.readiness, &|value| !value.starts_with("200"));
        add(Kind::EnvoyDrainStart, &self.drain, &|value| value == "close");
        add(Kind::ActiveZero, &self.active, &|value| value == "0+0");
        add(Kind::LbDown, &self.balancer, &|value| value.starts_with("DOWN"));
        let first_cut = clients.iter().filter(|client| !client.whole()).min_by(|a, b| a.over_s.total_cmp(&b.over_s));
        if let Some(cut) = first_cut {
            let detail =
                format!("{} {}: status {}, curl exit {}", cut.id, cut.protocol.name(), cut.status, cut.curl_exit);
            events.push(Event::new(Kind::Rst, cut.over_s, cut.ended_s, "the client's own failure", &detail));
        }
        timeline::sort(&mut events);
        events
    }

    /// Requests in flight at the last sample before the balancer was seen DOWN.
    pub(crate) fn in_flight_at_lb_down(&self, events: &[Event]) -> Option<InFlight> {
        let down = timeline::find(events, Kind::LbDown)?;
        let (downstream, upstream) = self.active.value_at(down.after_s)?.split_once('+')?;
        Some(InFlight { downstream: downstream.parse().ok()?, upstream: upstream.parse().ok()? })
    }
}

fn word(answer: Result<Answer, Failure>) -> String {
    match answer {
        Ok(answer) => match answer.state() {
            Some(state) => format!("{} {state}", answer.status),
            None => answer.status.to_string(),
        },
        Err(failure) => short(&failure),
    }
}

/// A failure in one word: its full text would make a change of every look.
fn short(failure: &Failure) -> String {
    match failure {
        Failure::Refused => "refused".to_owned(),
        Failure::Timeout => "timeout".to_owned(),
        Failure::Broken(_why) => "broken".to_owned(),
    }
}

fn tell(story: &Story, what: &str) -> impl FnMut(&Change) + Send + use<> {
    let (story, what) = (story.clone(), what.to_owned());
    move |change| story.tell_at(change.at_s, format!("{what} {}", change.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(changes: &[(f64, f64, &str)]) -> Series {
        let change = |&(after_s, at_s, value): &(f64, f64, &str)| Change { after_s, at_s, value: value.to_owned() };
        Series { changes: changes.iter().map(change).collect(), ..Series::default() }
    }

    #[test]
    fn requests_in_flight_at_lb_down_are_those_before_the_cut_and_not_after_it() {
        let seen = Seen {
            active: series(&[(0.0, 0.1, "2+2"), (3.98, 4.0, "0+0")]),
            balancer: series(&[(0.0, 0.1, "UP"), (3.97, 4.01, "DOWN")]),
            ..Seen::default()
        };
        let events = seen.events(2.0, &[]);
        assert_eq!(seen.in_flight_at_lb_down(&events).unwrap().downstream, 2);
        assert_eq!(timeline::order(&events), "5=4");
    }

    #[test]
    fn a_gateway_that_was_idle_before_its_deletion_is_not_at_zero_yet() {
        let seen =
            Seen { active: series(&[(0.0, 0.1, "0+0"), (0.1, 0.2, "1+1"), (9.0, 9.1, "0+0")]), ..Seen::default() };
        let events = seen.events(2.0, &[]);
        assert_eq!(events.len(), 1);
        assert!((events[0].at_s - 9.1).abs() < 1e-9);
    }

    #[test]
    fn a_balancer_that_goes_down_before_the_deletion_is_noticed() {
        let seen =
            Seen { balancer: series(&[(0.0, 0.1, "UP"), (1.0, 1.1, "DOWN"), (3.0, 3.1, "UP")]), ..Seen::default() };
        assert_eq!(timeline::order(&seen.events(2.0, &[])), "5");
    }
}
