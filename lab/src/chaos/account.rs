//! What became of a deletion with a fault in it, by everybody's word, and whether those words are true.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::backend::Visit;
use crate::checks::Checks;
use crate::curl::Outcome;
use crate::kubelet::Deletion;
use crate::observe::Seen;
use crate::story::Line;
use crate::timeline::Event;

/// Exit codes of `softclose prestop` (README.md) by which nothing was cut: clean, clean by Envoy's own counters, clean after
/// a reopening.
const NOTHING_CUT: [i32; 3] = [0, 12, 15];

/// On a busy machine the command's end is seen this much late, in seconds.
const SEEN_LATE: f64 = 0.5;

/// All that is known of it; `account.json`.
#[derive(Serialize)]
pub(crate) struct Account {
    /// What the preStop command was told of the grace period.
    pub(crate) told: Duration,
    pub(crate) clients: Vec<Outcome>,
    /// Every request that reached the application.
    pub(crate) visits: Vec<Visit>,
    pub(crate) deletion: Deletion,
    /// The last state that the health listener named.
    pub(crate) state: String,
    /// The order of the events, `=` between those that the samples cannot tell apart.
    pub(crate) order: String,
    pub(crate) events: Vec<Event>,
    pub(crate) seen: Seen,
    pub(crate) story: Vec<Line>,
}

impl Account {
    /// Clients that were not answered whole.
    pub(crate) fn cut(&self) -> usize {
        self.clients.iter().filter(|client| !client.whole()).count()
    }

    /// The preStop command's last line, without name and time.
    pub(crate) fn last_words(&self) -> &str {
        let line = self.deletion.pre_stop_output.last().map_or("nothing", String::as_str);
        line.strip_prefix("softclose ").and_then(|rest| rest.split_once(' ')).map_or(line, |(_time, words)| words)
    }

    /// Whether it said so at any time.
    pub(crate) fn said(&self, words: &str) -> bool {
        self.deletion.pre_stop_output.iter().any(|line| line.contains(words))
    }

    /// From the deletion to the end of the preStop command.
    pub(crate) fn seconds(&self) -> f64 {
        self.deletion.sigterm_s - self.deletion.deleted_s
    }

    /// What clients saw, alike ones together: `2 x h1 200 whole 36/36`.
    pub(crate) fn clients(&self) -> String {
        let mut alike: BTreeMap<String, usize> = BTreeMap::new();
        for client in &self.clients {
            let bytes = format!("{}/{}", client.answer_bytes(), client.expected_bytes);
            let fate = if client.whole() { "whole".to_owned() } else { format!("CUT (curl {})", client.curl_exit) };
            *alike.entry(format!("{} {} {fate} {bytes}", client.protocol.name(), client.status)).or_default() += 1;
        }
        let words = alike.into_iter().map(|(word, count)| if count == 1 { word } else { format!("{count} x {word}") });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Its row in the table, after the fault's name.
    pub(crate) fn cells(&self) -> Vec<String> {
        let exit = self.deletion.pre_stop_exit.map_or_else(|| "killed".to_owned(), |code| code.to_string());
        let seconds = format!("{:.1}", self.seconds());
        vec![self.clients(), self.state.clone(), exit, self.last_words().to_owned(), seconds]
    }

    /// Checks what must be true whatever the fault.
    pub(crate) fn judge(&self, checks: &mut Checks) {
        let (exit, cut) = (self.deletion.pre_stop_exit, self.cut());
        let seen = format!("exit {exit:?}, {}: {}", self.clients(), self.last_words());
        let says_clean = exit.is_some_and(|code| NOTHING_CUT.contains(&code));
        checks.check(!says_clean || cut == 0, "whoever says that nothing was cut is right", seen);
        if let Some(most) = most_cut(self.last_words()) {
            checks.check(cut <= most, "no more were cut than said", format!("{cut} cut, at most {most} said"));
        }
        if exit.is_some() {
            let reasoned = self.last_words().contains("done: ");
            checks.check(reasoned, "the last line says what it came to", self.last_words());
        }
        let told = self.told.as_secs_f64();
        let seen = format!("{:.1} s of {told:.0} s", self.seconds());
        checks.check(
            self.seconds() <= told + SEEN_LATE,
            "the command ends within the grace period that it was told",
            seen,
        );
        // FAULT is another matter: there the balancer is told because time is up.
        let flip = self.seen.health.first(self.deletion.deleted_s, |value| value == "503 CLOSING");
        if let Some(flip) = flip {
            let last = self.clients.iter().map(|client| client.over_s).fold(0.0, f64::max);
            let seen = format!("last request over at {last:.2} s, told by {:.2} s", flip.at_s);
            checks.check(last <= flip.at_s, "the balancer is told after the last request", seen);
        }
        if says_clean {
            let before = |at_s: f64| at_s <= self.deletion.sigterm_s;
            let word = self.seen.balancer.changes.iter().rfind(|change| before(change.at_s));
            let word = word.map_or("nothing", |change| change.value.as_str());
            checks.check(word.starts_with("DOWN"), "the balancer has noticed before the pod ends", word);
        }
        let ids = self.visits.iter().filter(|visit| !visit.id.is_empty()).map(|visit| visit.id.as_str());
        let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
        for id in ids {
            *runs.entry(id).or_default() += 1;
        }
        let twice: Vec<&str> = runs.into_iter().filter(|(_, runs)| *runs > 1).map(|(id, _)| id).collect();
        checks.check(twice.is_empty(), "the application ran each request once", twice.join(" "));
    }

    /// Checks that this fault cost no request, and the exit code.
    pub(crate) fn kept(&self, checks: &mut Checks, exit: i32) {
        checks.check(self.cut() == 0, "no request was cut", self.clients());
        self.exits(checks, exit);
    }

    pub(crate) fn exits(&self, checks: &mut Checks, exit: i32) {
        let seen = format!("{:?}: {}", self.deletion.pre_stop_exit, self.last_words());
        checks.check(self.deletion.pre_stop_exit == Some(exit), format!("the command exits {exit}"), seen);
    }

    /// Checks that it said so.
    pub(crate) fn says(&self, checks: &mut Checks, words: &str) {
        let seen = if self.said(words) { String::new() } else { self.deletion.pre_stop_output.join(" | ") };
        checks.check(self.said(words), format!("it says {words:?}"), seen);
    }
}

/// The number in `cut at most 3`.
fn most_cut(words: &str) -> Option<usize> {
    let (_, rest) = words.split_once("cut at most ")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curl::Protocol;
    use crate::watch::{Change, Series};

    fn client(id: &str, whole: bool, over_s: f64) -> Outcome {
        Outcome {
            id: id.to_owned(),
            protocol: Protocol::H1,
            path: "/fast".to_owned(),
            started_s: 0.0,
            over_s,
            ended_s: over_s,
            status: if whole { 200 } else { 502 },
            seconds: over_s,
            curl_exit: 0,
            curl_error: String::new(),
            bytes: 36,
            expected_bytes: 36,
        }
    }

    fn account(exit: Option<i32>, last: &str, clients: Vec<Outcome>) -> Account {
        with_down_at(8.0, exit, last, clients)
    }

    fn with_down_at(down_s: f64, exit: Option<i32>, last: &str, clients: Vec<Outcome>) -> Account {
        let series = |at_s, value: &str| {
            let change = Change { after_s: at_s - 0.1, at_s, value: value.to_owned() };
            Series { changes: vec![change], ..Series::default() }
        };
        let seen = Seen { health: series(7.0, "503 CLOSING"), balancer: series(down_s, "DOWN"), ..Seen::default() };
        Account {
            told: Duration::from_secs(30),
            clients,
            visits: Vec::new(),
            deletion: Deletion {
                deleted_s: 1.0,
                pre_stop_exit: exit,
                pre_stop_output: vec![format!("softclose +8.0s {last}")],
                sigterm_s: 9.0,
                gone_s: 9.1,
                killed: false,
            },
            state: "CLOSED".to_owned(),
            order: String::new(),
            events: Vec::new(),
            seen,
            story: Vec::new(),
        }
    }

    fn lies(account: &Account) -> usize {
        let mut checks = Checks::default();
        account.judge(&mut checks);
        checks.failed()
    }

    #[test]
    fn a_clean_exit_with_a_cut_client_is_a_lie() {
        let clean = "done: clean; cut at most 0; exit code 0";
        assert_eq!(lies(&account(Some(0), clean, vec![client("a", true, 6.0)])), 0);
        assert_eq!(lies(&account(Some(0), clean, vec![client("a", false, 6.0)])), 2, "the exit code and the bound");
        let gone = "error: done: Envoy is gone; how many were cut is not known; exit code 16";
        assert_eq!(lies(&account(Some(16), gone, vec![client("a", false, 6.0)])), 0);
    }

    #[test]
    fn more_cut_than_said_is_a_lie() {
        let one = "error: done: the deadline came with requests in flight; cut at most 1; exit code 10";
        assert_eq!(lies(&account(Some(10), one, vec![client("a", false, 6.0)])), 0);
        assert_eq!(lies(&account(Some(10), one, vec![client("a", false, 6.0), client("b", false, 6.0)])), 1);
    }

    #[test]
    fn a_balancer_that_is_told_before_the_last_request_is_a_lie() {
        let clean = "done: clean; cut at most 0; exit code 0";
        assert_eq!(lies(&account(Some(0), clean, vec![client("a", true, 7.5)])), 1);
    }

    #[test]
    fn a_clean_end_before_the_balancer_has_noticed_is_a_lie() {
        let clean = "done: clean; cut at most 0; exit code 0";
        assert_eq!(lies(&with_down_at(9.5, Some(0), clean, vec![client("a", true, 6.0)])), 1);
    }

    #[test]
    fn clients_that_fared_alike_are_told_together() {
        let clients = vec![client("a", true, 6.0), client("b", false, 6.0), client("c", true, 6.0)];
        assert_eq!(account(None, "", clients).clients(), "2 x h1 200 whole 36/36, h1 502 CUT (curl 0) 0/36");
    }
}
