use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Instant;

/// Ends within so long of the first belong together: a balancer that cuts does so in one turn of its loop, and the ends were seen to
/// reach Envoy's workers within 10 ms. Much less than the time in which several clients give up by chance.
const TOGETHER: Duration = Duration::from_millis(50);

/// Requests that were ended by whoever asked, not by their answer: a client that gave up, or a balancer that cut.
///
/// A balancer that cuts a server's sessions cuts all of them at once. So ends that come together, and are at least half of what was
/// in flight, may be its doing; one of many is a client that left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerEnds {
    /// All of them.
    pub all: u64,
    /// Of those, how many may have been cut by a balancer.
    pub perhaps_cut: u64,
    /// When the newest came.
    #[serde(rename = "last_us")]
    pub last: Option<Instant>,
    /// The newest that came together.
    #[serde(default)]
    together: Together,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Together {
    since_us: Instant,
    ended: u64,
    of: u64,
}

impl PeerEnds {
    /// Notes one at `now`, with `active` in flight, itself among them.
    pub(crate) fn add(&mut self, active: u64, now: Instant) {
        let joins = self.last.is_some() && now.since(self.together.since_us) <= TOGETHER;
        let before = if joins { self.together } else { Together { since_us: now, ended: 0, of: active } };
        let together = Together { ended: before.ended.saturating_add(1), ..before };
        let counted = if before.is_suspect() { before.ended } else { 0 };
        if together.is_suspect() {
            self.perhaps_cut = self.perhaps_cut.saturating_add(together.ended - counted);
        }
        self.all = self.all.saturating_add(1);
        self.last = Some(now);
        self.together = together;
    }

    /// Whether several ended in one instant that were at least half of what was in flight: no balancer needs to say more.
    pub(crate) fn look_like_a_cut(&self) -> bool {
        self.together.ended >= 2 && self.together.is_suspect()
    }
}

impl Together {
    fn is_suspect(&self) -> bool {
        self.ended > 0 && self.ended.saturating_mul(2) >= self.of
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::{PeerEnds, TOGETHER};
    use crate::time::Instant;

    const START: Instant = Instant::from_micros(1_000_000);

    fn ended(ends: &[(u64, Instant)]) -> PeerEnds {
        let mut noted = PeerEnds::default();
        for (active, now) in ends {
            noted.add(*active, *now);
        }
        noted
    }

    #[test]
    fn all_of_several_at_once_look_like_a_cut() {
        let cut = ended(&[(3, START), (2, START), (1, START)]);
        assert!(cut.look_like_a_cut());
        assert_eq!((cut.all, cut.perhaps_cut), (3, 3));
    }

    #[test]
    fn half_of_what_was_in_flight_is_the_least_that_looks_so() {
        assert!(ended(&[(4, START), (3, START)]).look_like_a_cut());
        assert!(!ended(&[(5, START), (4, START)]).look_like_a_cut());
    }

    #[test]
    fn ends_together_are_those_within_the_instant() {
        let late = START.after(TOGETHER);
        let later = Instant::from_micros(late.as_micros() + 1);
        assert!(ended(&[(2, START), (1, late)]).look_like_a_cut());
        assert!(!ended(&[(2, START), (1, later)]).look_like_a_cut());
    }

    #[test]
    fn one_alone_may_have_been_cut_and_one_of_many_was_not() {
        let alone = ended(&[(1, START)]);
        assert_eq!((alone.all, alone.perhaps_cut, alone.look_like_a_cut()), (1, 1, false));
        let of_many = ended(&[(20, START)]);
        assert_eq!((of_many.all, of_many.perhaps_cut), (1, 0));
    }
}
