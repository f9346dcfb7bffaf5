//! When the requests of a stream are due: one in each slot of 1/rate seconds, at a place drawn from the seed. So the rate
//! holds in every window, and yet no stream marches in step with another one or with the balancer's checks.

use std::time::Duration;

/// An endless schedule, as times from the load's beginning.
pub(super) struct Schedule {
    slot_s: f64,
    number: u64,
    random: SplitMix64,
}

impl Schedule {
    /// The stream's name is part of the seed, so that each stream has places of its own.
    pub(super) fn new(rate: f64, name: &str, seed: u64) -> Self {
        Self { slot_s: 1.0 / rate, number: 0, random: SplitMix64(seed ^ fnv1a(name)) }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let seconds = (self.number as f64 + self.random.unit()) * self.slot_s;
        self.number += 1;
        Some(Duration::from_secs_f64(seconds))
    }
}

/// Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014); the constants are theirs.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [0, 1), from the 53 bits that a double holds.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// FNV-1a with 64 bits; unlike std's hasher the same in every release.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(name: &str, seed: u64) -> Vec<Duration> {
        Schedule::new(50.0, name, seed).take(1000).collect()
    }

    #[test]
    fn a_schedule_is_decided_by_its_seed() {
        assert_eq!(first("page", 7), first("page", 7));
        assert_ne!(first("page", 7), first("page", 8));
    }

    #[test]
    fn streams_of_one_seed_do_not_march_in_step() {
        assert_ne!(first("page", 7), first("upload", 7));
    }

    #[test]
    fn the_rate_holds_in_every_second_while_the_gaps_differ() {
        let due = first("page", 7);
        assert!(due.is_sorted());
        for second in 0..20 {
            let within = due.iter().filter(|at| at.as_secs() == second).count();
            assert_eq!(within, 50, "in second {second}");
        }
        let gap = |pair: &[Duration]| pair[1] - pair[0];
        let (least, most) = (due.windows(2).map(gap).min().unwrap(), due.windows(2).map(gap).max().unwrap());
        assert!(least < Duration::from_millis(5) && most > Duration::from_millis(35), "{least:?} to {most:?}");
    }

    #[test]
    fn the_generator_is_the_published_one() {
        // The first numbers of Vigna's splitmix64.c for seed 1234567.
        let mut random = SplitMix64(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }
}
