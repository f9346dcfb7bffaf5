use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, Sockets, Watch};
use crate::time::Instant;

/// How many probers are remembered: more balancers than any known gateway has.
pub const PROBERS_MAX: usize = 64;

/// Longer than any IPv6 address with port; what a host hands in beyond that is cut.
const ADDRESS_MAX: usize = 64;

/// The slowest health check that a known balancer offers (AWS NLB: 300 s). Whoever asks more rarely is a stranger each time.
const SLOWEST: Duration = Duration::from_secs(300);

/// A prober that was silent for so many of its own intervals has gone.
const SILENT_INTERVALS: u32 = 5;

/// A pace that is learnt from two probes in the same millisecond says nothing about silence. Ten checks a second are more than
/// any balancer is known to make.
const SHORTEST: Duration = Duration::from_millis(100);

/// How many gaps between probes are remembered, to learn a prober's pace from: enough to tell one that is out of line from the
/// rest, and from several balancers that take turns behind one address.
const GAPS_KEPT: usize = 8;

/// From so many gaps on a prober is steady: nobody misses an operator who looked twice before a drain, and the second-longest of
/// three is out of line only if two are.
const GAPS_STEADY: usize = 3;

/// How much earlier a prober is missed than it can have counted its failures.
const MISSED_EARLY: Duration = Duration::from_millis(250);

/// Those who ask the balancer path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probers {
    seen: Vec<Prober>,
    /// A stranger found no room among known probers, so somebody may be watching whom the table does not name.
    overflowed: bool,
}

/// What those who ask the balancer path had been told when the pod was free to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audience {
    /// Served `fall` hard answers, and given their margin; with closed sockets: given the time of so many refused checks.
    pub told: u32,
    /// Still asking, and not told enough when the hold ended.
    pub untold: u32,
    /// Asked when the drain began, and has been silent for five of its intervals.
    pub gone: u32,
    /// More asked than are remembered.
    #[serde(default)]
    pub unnamed: bool,
}

impl Audience {
    /// Whether nobody asked whom anybody could have told.
    pub fn is_empty(&self) -> bool {
        self.told == 0 && self.untold == 0 && self.gone == 0 && !self.unnamed
    }
}

/// One who asks the balancer path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prober {
    /// Peer address, without port.
    pub address: String,
    /// How often it asked.
    pub asked: u64,
    /// When it asked last.
    #[serde(rename = "last_us")]
    pub last: Instant,
    /// Its learnt interval in microseconds: rises at once to the longest gap, falls slowly. None before the second probe.
    pub interval_us: Option<u64>,
    /// 503 answers served to it since the flip.
    pub hard: u64,
    /// Soft answers served to it in DRAINING.
    #[serde(default)]
    pub soft: u64,
    /// When it was served enough of them: its `fall`-th 503, or in DRAINING its first soft answer.
    #[serde(rename = "told_us")]
    pub told: Option<Instant>,
    /// Its newest gaps in microseconds, oldest first.
    #[serde(default)]
    gaps_us: Vec<u64>,
    /// Its pace in microseconds when the newest drain began; none if it did not ask then.
    #[serde(default)]
    pace_us: Option<u64>,
}

impl Probers {
    /// Notes that `address` asks at `now`. Known probers are never evicted by a stranger.
    pub(crate) fn asked(&mut self, address: &str, now: Instant) {
        let address: String = address.chars().take(ADDRESS_MAX).collect();
        self.seen.retain(|prober| prober.address == address || !prober.known() || !prober.silent(now));
        if let Some(prober) = self.seen.iter_mut().find(|prober| prober.address == address) {
            prober.ask(now);
            return;
        }
        if self.seen.len() >= PROBERS_MAX {
            let stranger = (0..self.seen.len()).filter(|at| self.seen.get(*at).is_some_and(|prober| !prober.known()));
            match stranger.min_by_key(|at| self.seen.get(*at).map(|prober| prober.last)) {
                Some(oldest) => drop(self.seen.remove(oldest)),
                None => {
                    self.overflowed = true;
                    return;
                }
            }
        }
        self.seen.push(Prober::stranger(address, now));
    }

    /// A drain begins: notes whom it expects to hear, and how often. Who is silent already, or is not steady, is not expected.
    pub(crate) fn expect(&mut self, now: Instant) {
        for prober in &mut self.seen {
            prober.pace_us = if prober.silent(now) { None } else { prober.pace() };
        }
    }

    /// From when on somebody whom the drain expects to hear may have counted `fall` failed checks, if nobody asks until then.
    pub(crate) fn unheard_from(&self, fall: u32) -> Option<Instant> {
        self.seen.iter().filter_map(|prober| prober.heard_until(fall)).map(past).min()
    }

    /// Whether everybody whom the drain expects to hear has asked later than `since`.
    pub(crate) fn asked_since(&self, since: Instant) -> bool {
        self.seen.iter().filter(|prober| prober.pace_us.is_some()).all(|prober| prober.last > since)
    }

    /// What is known by `now` of those who were to hear the hard answer that is given since `since`.
    pub(crate) fn audience(&self, since: Instant, plan: &Plan, now: Instant) -> Audience {
        let mut audience = Audience { unnamed: self.overflowed, ..Audience::default() };
        let refused = plan.sockets_closing == Sockets::Close;
        for prober in &self.seen {
            if prober.silent(now) && prober.pace_us.is_some() {
                audience.gone = audience.gone.saturating_add(1);
            } else if prober.known() && !prober.silent(now) {
                let told = prober.had_its_time(since, plan, plan.fall, refused).is_some_and(|over| over <= now);
                let count = if told { &mut audience.told } else { &mut audience.untold };
                *count = count.saturating_add(1);
            }
        }
        audience
    }

    /// Notes that `address` is served a hard answer at `now`; after `fall` of them a balancer knows.
    pub(crate) fn told(&mut self, address: &str, fall: u32, now: Instant) {
        if let Some(prober) = self.named(address) {
            prober.hard = prober.hard.saturating_add(1);
            if prober.hard >= u64::from(fall) && prober.told.is_none() {
                prober.told = Some(now);
            }
        }
    }

    /// Notes that `address` is served a soft answer at `now`. One is enough: HAProxy takes a server out of rotation at the first
    /// 404, whatever its `fall`.
    pub(crate) fn told_softly(&mut self, address: &str, now: Instant) {
        if let Some(prober) = self.named(address) {
            prober.soft = prober.soft.saturating_add(1);
            prober.told.get_or_insert(now);
        }
    }

    /// Begins a phase with an answer of its own: nobody has been told yet.
    pub(crate) fn forget_answers(&mut self) {
        for prober in &mut self.seen {
            prober.hard = 0;
            prober.soft = 0;
            prober.told = None;
        }
        self.overflowed = false;
    }

    /// When the soft answer that is given since `since` has been heard, as far as known at `now`: every known prober was served
    /// it, and had its margin for the requests that were on their way; never before the plan's shortest hold. None while one that
    /// still probes was not served: only its next probe or its silence changes that.
    ///
    /// Where nobody is known to probe, or somebody may who is not named, it takes the longest hold; the shortest, if by plan nobody
    /// is expected to.
    pub(crate) fn heard(&self, since: Instant, plan: &Plan, now: Instant) -> Option<Instant> {
        if let Some(hold) = self.hold_of_the_unknown(plan, now) {
            return Some(since.after(hold));
        }
        self.had_their_time(since, plan, 1, false, now)
    }

    /// When a hold that began at `since` is over, as far as known at `now`: every known prober was served `fall` hard answers
    /// and had its margin; never before the plan's shortest hold nor after its longest. Whose connections are refused is served
    /// nothing more, and has the time for so many checks.
    pub(crate) fn hold_over(&self, since: Instant, plan: &Plan, now: Instant) -> Instant {
        if let Some(hold) = self.hold_of_the_unknown(plan, now) {
            return since.after(hold);
        }
        let longest = since.after(plan.hold_max);
        let refused = plan.sockets_closing == Sockets::Close;
        self.had_their_time(since, plan, plan.fall, refused, now).map_or(longest, |over| over.min(longest))
    }

    /// How long the hold is where it is not known whom to wait for; none where it is.
    fn hold_of_the_unknown(&self, plan: &Plan, now: Instant) -> Option<Duration> {
        let nobody = self.listening(now).next().is_none();
        match plan.probers {
            Watch::Expected | Watch::None if self.overflowed => Some(plan.hold_max),
            Watch::Expected => nobody.then_some(plan.hold_max),
            Watch::None => nobody.then_some(plan.hold_min),
        }
    }

    /// When all who listen were told, in `answers` answers since `since`, and had their margin; none while one was not told,
    /// unless `refused`: then its checks fail without being seen here.
    fn had_their_time(
        &self,
        since: Instant,
        plan: &Plan,
        answers: u32,
        refused: bool,
        now: Instant,
    ) -> Option<Instant> {
        let mut over = since.after(plan.hold_min);
        for prober in self.listening(now) {
            over = over.max(prober.had_its_time(since, plan, answers, refused)?);
        }
        Some(over)
    }

    /// The next time after `now` at which a prober counts as gone, which may end a hold earlier.
    pub(crate) fn next_silence(&self, now: Instant) -> Option<Instant> {
        self.listening(now).filter_map(Prober::silent_after).map(past).filter(|at| *at > now).min()
    }

    /// All that are remembered, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Prober> {
        self.seen.iter()
    }

    fn named(&mut self, address: &str) -> Option<&mut Prober> {
        let address: String = address.chars().take(ADDRESS_MAX).collect();
        self.seen.iter_mut().find(|prober| prober.address == address)
    }

    fn listening(&self, now: Instant) -> impl Iterator<Item = &Prober> {
        self.seen.iter().filter(move |prober| prober.known() && !prober.silent(now))
    }
}

impl Prober {
    /// Asked at least twice: once is a stranger passing by.
    pub fn known(&self) -> bool {
        self.asked >= 2
    }

    /// When it was told, in `answers` answers since `since`, and had its margin; none while it was not, unless its checks are
    /// `refused` and fail without being seen here.
    fn had_its_time(&self, since: Instant, plan: &Plan, answers: u32, refused: bool) -> Option<Instant> {
        let interval = self.interval().unwrap_or_default();
        let margin = plan.margin.max(interval);
        let told = match self.told {
            Some(told) => told.after(margin),
            None if refused => since,
            None => return None,
        };
        Some(told.max(since.after(interval.saturating_mul(answers).saturating_add(margin))))
    }

    fn stranger(address: String, now: Instant) -> Self {
        Self {
            address,
            asked: 1,
            last: now,
            interval_us: None,
            hard: 0,
            soft: 0,
            told: None,
            gaps_us: Vec::new(),
            pace_us: None,
        }
    }

    fn ask(&mut self, now: Instant) {
        if self.silent(now) || now.since(self.last) > SLOWEST {
            // A drain that expects it goes on doing so.
            *self = Self { pace_us: self.pace_us, ..Self::stranger(self.address.to_owned(), now) };
            return;
        }
        let gap = u64::try_from(now.since(self.last).as_micros()).unwrap_or(u64::MAX);
        // A late probe must lengthen the hold at once; a quick one (`fastinter`, two probes at start) must not shorten it at once.
        let slower = |old: u64| old.saturating_mul(3).saturating_add(gap) / 4;
        self.interval_us = Some(self.interval_us.map_or(gap, |old| gap.max(slower(old))));
        if self.gaps_us.len() >= GAPS_KEPT {
            self.gaps_us.remove(0);
        }
        self.gaps_us.push(gap);
        self.asked = self.asked.saturating_add(1);
        self.last = now;
    }

    fn interval(&self) -> Option<Duration> {
        self.interval_us.map(Duration::from_micros)
    }

    /// How often it asks, in microseconds, if it is steady. Unlike the learnt interval, which one late probe lengthens for long,
    /// this must not be longer than the truth: of the newest gaps the second-longest, which neither one lost check nor quick ones
    /// change. None if it is faster than any balancer: somebody looks in a loop, and stops when done.
    fn pace(&self) -> Option<u64> {
        let mut gaps = self.gaps_us.clone();
        gaps.sort_unstable();
        let balancer = |pace: &u64| gaps.len() >= GAPS_STEADY && Duration::from_micros(*pace) >= SHORTEST;
        gaps.iter().rev().nth(1).copied().filter(balancer)
    }

    /// Up to when it cannot have counted `fall` failed checks, if the drain expects to hear it.
    ///
    /// Answered at t, it fails at t + i, t + 2i and so on, i being its interval, if connections are refused; a frozen process costs
    /// it its own timeout on top. So it may be DOWN at t + `fall` x i. To wait for its next check, at t + (`fall` + 1) x i, would
    /// be too late: what it cut ends in the moment in which the process goes on, and that check would be taken for a good one. A
    /// little is taken off, for a pace that was learnt too long and an answer that was given late; not so much that a check whose
    /// SYN was lost once (Linux sends it again after a second) is missed at the usual two seconds. Half an interval late is still
    /// heard, whatever `fall`: with `fall` 1 a failure that short goes unnoticed, and so does a balancer that checks faster after
    /// a failure (`fastinter`).
    fn heard_until(&self, fall: u32) -> Option<Instant> {
        let pace = Duration::from_micros(self.pace_us?);
        let span = pace.saturating_mul(fall).saturating_sub(MISSED_EARLY.min(pace / 4));
        let bound = self.last.after(span.max(pace.saturating_mul(3) / 2));
        // Past that it is taken for gone, and the next one who asks has it forgotten.
        Some(self.silent_after().map_or(bound, |silent| bound.min(silent)))
    }

    fn silent_after(&self) -> Option<Instant> {
        self.interval().map(|interval| self.last.after(interval.max(SHORTEST).saturating_mul(SILENT_INTERVALS)))
    }

    fn silent(&self, now: Instant) -> bool {
        self.silent_after().is_some_and(|bound| now > bound)
    }
}

/// One microsecond later, because at the bound itself a prober is still there.
fn past(bound: Instant) -> Instant {
    bound.after(Duration::from_micros(1))
}

#[cfg(test)]
mod tests;
