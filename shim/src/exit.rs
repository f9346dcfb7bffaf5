//! Exit codes. They are an interface: any but 0 makes kubelet record a `FailedPreStopHook` event, and people alert on them. The
//! event of a newer kubelet names no code; they stand in the last line of the container's log. A number never changes its meaning.

/// Nothing was cut.
pub(crate) const CLEAN: u8 = 0;
/// A command was refused by the gate (409).
pub(crate) const REFUSED: u8 = 1;
/// The deadline, or an operator, came while requests were in flight, or requests came after the flip: some may have been cut.
pub(crate) const CUT: u8 = 10;
/// The count of requests in flight was not to be believed, or the drain's end was not seen.
pub(crate) const DISTRUSTED: u8 = 11;
/// No softclose in this Envoy; by Envoy's own counters nothing was cut.
pub(crate) const FALLBACK_CLEAN: u8 = 12;
/// No softclose in this Envoy, and not known to be clean.
pub(crate) const FALLBACK_UNKNOWN: u8 = 13;
/// Reserved: streams that never end were left behind.
pub(crate) const STREAMS_LEFT: u8 = 14;
/// Clean in the end, but somebody reopened the gate in between.
pub(crate) const REOPENED: u8 = 15;
/// Envoy does not listen any more.
pub(crate) const ENVOY_GONE: u8 = 16;
/// The grace period was about to end.
pub(crate) const BUDGET_SPENT: u8 = 17;
/// Nothing was cut here, but the pod left before every prober had been told: what its balancer still sends is lost.
pub(crate) const UNTOLD: u8 = 18;
/// Nothing was cut here, but nobody ever asked for health: no balancer was told.
pub(crate) const UNWATCHED: u8 = 19;
/// `status --verify`: a drain would not be counted whole, or not happen.
pub(crate) const NOT_AS_IT_SHOULD_BE: u8 = 20;
/// The arguments were not understood: `EX_USAGE` of sysexits(3).
pub(crate) const USAGE: u8 = 64;
/// `install` cannot read the module, or itself: `EX_NOINPUT` of sysexits(3).
pub(crate) const NO_SOURCE: u8 = 66;
/// A command did not reach the gate: `EX_UNAVAILABLE` of sysexits(3).
pub(crate) const UNAVAILABLE: u8 = 69;
/// `install` found no room for the files.
pub(crate) const NO_SPACE: u8 = 72;
/// `install` may not write into the directory, or there is none: `EX_CANTCREAT` of sysexits(3).
pub(crate) const NO_DIRECTORY: u8 = 73;
/// `install` could not write for another reason: `EX_IOERR` of sysexits(3).
pub(crate) const IO: u8 = 74;
/// Another `install` is at work there and does not end: `EX_TEMPFAIL` of sysexits(3).
pub(crate) const BUSY: u8 = 75;
/// The installed copy does not run where it is: a shell's code for what cannot be executed.
pub(crate) const NOT_RUNNABLE: u8 = 126;

/// What `prestop` may end with, for `--help`.
pub(crate) const OF_PRESTOP: [(u8, &str); 12] = [
    (CLEAN, "clean: nothing was cut"),
    (CUT, "the deadline (or an operator) came with requests in flight, or some came late: cut at most n"),
    (
        DISTRUSTED,
        "the count was not to be believed, or the end not seen; the last line says why, and what Envoy's stats said",
    ),
    (FALLBACK_CLEAN, "softclose's filter did not answer: polled Envoy's counters instead, and they read zero"),
    (FALLBACK_UNKNOWN, "the same, but the deadline came first or the counters are missing: not known to be clean"),
    (STREAMS_LEFT, "reserved: streams that never end were left"),
    (REOPENED, "clean, but somebody reopened the gate in between"),
    (ENVOY_GONE, "Envoy is gone: nothing listens on admin or control"),
    (BUDGET_SPENT, "budget spent: the grace period ends in a second"),
    (UNTOLD, "nothing was cut here, but the pod left before every prober had been told; the last line says how many"),
    (
        UNWATCHED,
        "nothing was cut here, but nobody asked for health, so nobody was told; --probers none where that is right",
    ),
    (USAGE, "the arguments were not understood; the drain was carried out with defaults"),
];

/// What the other commands may end with.
pub(crate) const OF_COMMANDS: [(u8, &str); 5] = [
    (CLEAN, "done"),
    (REFUSED, "refused; the reason is printed"),
    (NOT_AS_IT_SHOULD_BE, "status --verify: not as it should be; each reason is printed"),
    (USAGE, "the arguments were not understood; nothing was done"),
    (
        UNAVAILABLE,
        "the control listener (for status --verify: admin) did not answer, or what answered is not softclose",
    ),
];

/// What `install` may end with.
pub(crate) const OF_INSTALL: [(u8, &str); 8] = [
    (CLEAN, "binary and module are in place, and the binary runs there"),
    (USAGE, "the arguments were not understood; nothing was done"),
    (NO_SOURCE, "the module, or the binary itself, cannot be read"),
    (NO_SPACE, "there is no room in the directory"),
    (NO_DIRECTORY, "the directory is not there, or this user may not write into it"),
    (IO, "writing failed otherwise"),
    (BUSY, "another install is at work there and does not end"),
    (NOT_RUNNABLE, "the copy does not run there: a volume mounted noexec, or another architecture"),
];
