//! What a run of the busy gateway had to show: that the gateway was busy, that what was promised held, and that what the pod
//! said of itself was true.

use softclose_fsm::Preset;

use super::departure::{Departure, least};
use super::record::{Place, Record};
use super::world::World;
use crate::mode::Mode;

/// The load has to reach this share of its rate while the pod leaves: a machine that cannot bear it measures itself.
const REACHED: f64 = 0.9;

/// Between two looks at Envoy and between two at the balancer (20 ms each) requests come and go: this much of what a pod gets
/// in a second may be between the count at DOWN and what DOWN cut...
const LOOKS_S: f64 = 0.04;
/// ...and the same is allowed for the ends of looks that a busy machine makes late.
const LATE_LOOKS: f64 = 5.0;

impl Record {
    /// Why the run says nothing, or not what was promised; empty if it does.
    pub(crate) fn complaints(&self) -> Vec<String> {
        [self.not_busy(), self.broken_promises(), self.untrue()].concat()
    }

    /// Why the gateway was not the busy one that the run is about.
    fn not_busy(&self) -> Vec<String> {
        let idle = self.departures.iter().filter(|gone| gone.least_in_flight(self.busy_until_s(gone)) == Some(0));
        let idle = idle.map(|gone| format!("{} was idle while the balancer still sent to it", gone.pod));
        idle.chain(self.unfit()).map(|why| format!("precondition: {why}")).collect()
    }

    /// What the machine did not bear, or did not show: nothing that the mode did.
    pub(crate) fn unfit(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for gone in self.departures.iter().filter(|gone| gone.least_in_flight(self.busy_until_s(gone)).is_none()) {
            missing.push(format!("{} did not always say how many requests were in flight", gone.pod));
        }
        // What stays is as busy all the time; so would the one that left have been.
        for staying in &self.staying {
            let (from_s, to_s) = self.window();
            if least(staying, from_s, to_s).is_none_or(|count| count == 0) {
                missing.push(format!("{} saw an idle gateway, or did not always answer", staying.source));
            }
        }
        match self.rates() {
            Some((reached, wanted)) if reached < REACHED * wanted => {
                missing.push(format!("the load reached {reached:.1} requests a second of {wanted:.1}"));
            }
            Some(_) => {}
            None => missing.push("no request was sent while the pod left".to_owned()),
        }
        missing
    }

    /// What this preset promises in this world and did not keep.
    fn broken_promises(&self) -> Vec<String> {
        match self.promise() {
            Promise::NothingLost => {
                let failures = self.failures().map(ToString::to_string);
                let doubled = self.doubled.iter().map(|id| format!("{id}: the application ran it twice"));
                let exits = self.departures.iter().filter_map(|gone| match &gone.said {
                    Some(said) if said.exit == 0 => None,
                    Some(said) => Some(format!("{}: {}", gone.pod, said.message)),
                    None => Some(format!("{}: the preStop command had no last word", gone.pod)),
                });
                failures.chain(doubled).chain(exits).collect()
            }
            Promise::WhatIsInFlight => self.departures.iter().filter_map(|gone| self.not_as_counted(gone)).collect(),
            Promise::Nothing => Vec::new(),
        }
    }

    /// In the plain world DOWN cuts what is in flight, no more and no less.
    fn not_as_counted(&self, gone: &Departure) -> Option<String> {
        let Some(in_flight) = gone.in_flight_at_down else {
            return Some(format!("{}: nobody saw how many requests were in flight at DOWN", gone.pod));
        };
        let of_a_second = self.rates().map_or(0.0, |(reached, _)| reached / f64::from(self.replicas.max(1)));
        let noise = LATE_LOOKS + of_a_second * LOOKS_S;
        let cut = self.cut();
        let apart = (cut as f64 - in_flight as f64).abs();
        (apart > noise)
            .then(|| format!("{cut} requests lost, {in_flight} in flight at DOWN: more than {noise:.0} apart"))
    }

    /// Where a pod's last word fell short of what its clients lost.
    pub(crate) fn untrue(&self) -> Vec<String> {
        if self.preset == Some(Preset::HaproxyRetry) && self.world == World::Retry425Only {
            // What had not been read when the sockets closed, or when DOWN cut, is in nobody's count.
            return Vec::new();
        }
        let cut = self.counted_cut() as u64;
        match self.cut_at_most() {
            Some(at_most) if at_most < cut => {
                vec![format!("untrue: {cut} requests lost, and it said cut at most {at_most}")]
            }
            Some(_) => Vec::new(),
            // Whoever does not know must not end as if all were well.
            None => {
                let clean = |gone: &&Departure| gone.said.as_ref().is_some_and(|said| said.exit == 0);
                let word = |gone: &Departure| format!("untrue: {} exits 0 and knows no bound", gone.pod);
                self.departures.iter().filter(clean).map(word).collect()
            }
        }
    }

    /// Failures that a pod can have had in its count. Where no other pod is left, what comes to closed sockets after its last try, and
    /// what is connecting at DOWN, ends in HAProxy: the application never saw it, and no more did the pod.
    fn counted_cut(&self) -> usize {
        let nowhere_else = self.preset == Some(Preset::HaproxyRetry) && self.staying.is_empty();
        self.failures().filter(|lost| lost.place == Place::Leaving && (lost.fate.runs > 0 || !nowhere_else)).count()
    }

    fn promise(&self) -> Promise {
        let alone = self.replicas < 2 || self.staying.is_empty();
        match (self.mode, self.preset) {
            _ if alone => Promise::Nothing,
            (Mode::Softclose, Some(Preset::HaproxySoft)) if self.world == World::Soft => Promise::NothingLost,
            (Mode::Softclose, Some(Preset::HaproxyRetry)) if self.world == World::Retry => Promise::NothingLost,
            (Mode::Softclose, Some(Preset::Nlb)) if self.world == World::Nlb => Promise::NothingLost,
            (Mode::Softclose, Some(Preset::Haproxy)) if self.world == World::Plain => Promise::WhatIsInFlight,
            _ => Promise::Nothing,
        }
    }

    /// Until when requests certainly came to a pod that leaves. One that refuses them gets them to the end, but has to answer only
    /// those that it had.
    fn busy_until_s(&self, gone: &Departure) -> f64 {
        let refuses = self.preset == Some(Preset::HaproxyRetry);
        let deleted_s = gone.deletion.deleted_s;
        if refuses { deleted_s } else { gone.sent_until_s().unwrap_or(gone.deletion.gone_s) }
    }

    fn window(&self) -> (f64, f64) {
        let deleted = self.departures.iter().map(|gone| gone.deletion.deleted_s).fold(f64::INFINITY, f64::min);
        (deleted, self.departures.iter().map(|gone| gone.deletion.gone_s).fold(0.0, f64::max))
    }
}

/// What a mode promises in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// No request lost, none run twice, and the pod says so.
    NothingLost,
    /// No more is lost than is in flight at DOWN.
    WhatIsInFlight,
    /// The truth alone.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy::record::tests::{lost_on_the_way, record};

    #[test]
    fn a_busy_gateway_that_lost_nothing_and_says_so_is_as_promised() {
        let record = record(Preset::HaproxySoft, World::Soft);
        assert_eq!(record.complaints(), Vec::<String>::new());
    }

    #[test]
    fn a_gateway_that_was_idle_while_it_got_requests_proves_nothing() {
        let mut record = record(Preset::HaproxySoft, World::Soft);
        record.departures[0].seen.active.changes[0].value = "0+0".into();
        assert!(record.complaints().iter().any(|why| why.contains("was idle")), "{:?}", record.complaints());
    }

    #[test]
    fn a_load_that_fell_short_of_its_rate_proves_nothing() {
        let mut record = record(Preset::HaproxySoft, World::Soft);
        record.summary[0].rate = Some(100.0);
        assert!(record.complaints().iter().any(|why| why.contains("100.0 requests a second of 170.0")));
    }

    #[test]
    fn a_lost_request_breaks_a_promise_and_a_bound_of_nothing_is_untrue() {
        let mut record = record(Preset::HaproxyRetry, World::Retry);
        let lost = lost_on_the_way(&record);
        record.lost.push(lost);
        let complaints = record.complaints();
        assert!(complaints.iter().any(|why| why.starts_with("page-h1-7")), "{complaints:?}");
        assert!(complaints.iter().any(|why| why.starts_with("untrue: 1 requests lost")), "{complaints:?}");
    }

    #[test]
    fn in_the_plain_world_what_is_lost_is_what_was_in_flight_and_no_more_than_was_said() {
        let mut record = record(Preset::Haproxy, World::Plain);
        let lost = lost_on_the_way(&record);
        record.lost = vec![lost; 30];
        record.departures[0].in_flight_at_down = Some(31);
        record.departures[0].said.as_mut().unwrap().cut_at_most = Some(33);
        assert_eq!(record.complaints(), Vec::<String>::new());
        record.departures[0].in_flight_at_down = Some(3);
        assert!(record.complaints().iter().any(|why| why.contains("3 in flight at DOWN")));
        record.departures[0].said.as_mut().unwrap().cut_at_most = Some(29);
        assert!(record.complaints().iter().any(|why| why.contains("said cut at most 29")));
    }

    #[test]
    fn a_pod_whose_balancer_drops_what_it_never_read_is_not_held_to_its_word() {
        let mut record = record(Preset::HaproxyRetry, World::Retry425Only);
        let lost = lost_on_the_way(&record);
        record.lost.push(lost);
        assert_eq!(record.complaints(), Vec::<String>::new());
    }

    #[test]
    fn what_ended_in_the_balancer_of_an_only_pod_is_not_held_against_it() {
        let mut record = record(Preset::HaproxyRetry, World::Retry);
        let lost = lost_on_the_way(&record);
        record.lost.push(lost);
        assert!(!record.untrue().is_empty());
        (record.replicas, record.staying) = (1, Vec::new());
        assert_eq!(record.untrue(), Vec::<String>::new());
        record.lost[0].fate.runs = 1;
        assert!(!record.untrue().is_empty());
    }

    #[test]
    fn a_request_that_found_no_server_is_no_loss_of_the_pod_that_left() {
        let mut record = record(Preset::HaproxySoft, World::Soft);
        let mut lost = lost_on_the_way(&record);
        lost.place = Place::NoServer;
        record.lost.push(lost);
        (record.replicas, record.staying) = (1, Vec::new());
        assert_eq!(record.complaints(), Vec::<String>::new());
    }
}
