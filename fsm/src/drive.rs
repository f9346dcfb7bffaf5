use crate::effect::Effect;
use crate::input::{Input, Reply};
use crate::machine::step;
use crate::record::{Reading, Record};
use crate::time::Instant;

/// What the gate needs from the process that embeds it.
pub trait Host {
    /// Names one version of the shared record, for compare-and-swap.
    type Version: Copy;

    /// The monotonic clock that all workers share.
    fn now(&self) -> Instant;
    /// The shared record as it is now.
    fn load(&mut self) -> Loaded<Self::Version>;
    /// A fresh reading of the ledger, with the roll call that belongs to `record`.
    fn reading(&mut self, record: &Record) -> Reading;
    /// Replaces the shared record if it still is `version`.
    fn store(&mut self, record: &Record, version: Self::Version) -> Stored;
    /// Carries out one effect of a committed step.
    fn perform(&mut self, effect: &Effect, record: &Record);
}

/// The shared record, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<V> {
    /// The record, or [`Record::undecodable`].
    pub record: Record,
    /// What was read.
    pub version: V,
    /// Whether `record` is what was read. One that did not decode is replaced by a command only: it may be another
    /// version's, and a probe must not destroy it.
    pub decoded: bool,
}

/// What became of a [`Host::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The record is in place.
    Done,
    /// Another worker was first.
    Lost,
}

/// What an input came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// The record that holds.
    pub record: Record,
    /// What the asker is told.
    pub reply: Reply,
    /// The reading that decided.
    pub reading: Reading,
    /// When it was decided.
    pub now: Instant,
    /// Another worker was first, every time: nothing was changed or performed, and `record` is only what would have been.
    pub contended: bool,
}

/// How often a lost race is run again. Each loss means that another worker won, so with 128 workers at the same deadline
/// this is never reached; it bounds the time spent inside one callback.
const LOSSES_MAX: usize = 256;

/// The only way a host drives the gate: clock, record, ledger, step, commit; then, for the winner alone, the effects.
///
/// The ledger is read after the record: a +1 that clears `zero_since` in between makes the commit fail.
pub fn handle<H: Host>(host: &mut H, input: &Input) -> Handled {
    let mut losses = 0;
    loop {
        let loaded = host.load();
        let reading = host.reading(&loaded.record);
        let now = host.now();
        let next = step(&loaded.record, now, reading, input);
        let mut handled = Handled { record: next.record, reply: next.reply, reading, now, contended: false };
        let changed = handled.record != loaded.record;
        if changed && !loaded.decoded && !input.is_command() {
            return handled;
        }
        if changed && host.store(&handled.record, loaded.version) == Stored::Lost {
            losses += 1;
            if losses < LOSSES_MAX {
                continue;
            }
            handled.contended = true;
            return handled;
        }
        for effect in &next.effects {
            host.perform(effect, &handled.record);
        }
        return handled;
    }
}

impl Input {
    /// Whether somebody asked for a change, as opposed to a probe or the passing of time.
    fn is_command(&self) -> bool {
        match self {
            Self::Drain(_)
            | Self::CloseLb
            | Self::Close
            | Self::Reopen
            | Self::EnvoyDrainStarted
            | Self::Observe(_) => true,
            Self::Probe(_) | Self::PeerEnded | Self::Distrust(_) | Self::Tick => false,
        }
    }
}
