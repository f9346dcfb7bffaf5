//! How far prediction and measurement may be apart, and why. What a watch leaves open between two looks is not in here:
//! a measured event is an interval already.

/// Between what happens in a program and what an onlooker is told of it: one exchange over a fresh connection, on a machine
/// with more runnable threads than cores.
pub(super) const LOOK_S: f64 = 0.02;

/// From the deletion to Envoy's and the gate's drain by `softclose prestop`: exec, two calls of admin, two of control.
/// About 15 ms where nothing else runs.
pub(super) const SHIM_START_S: f64 = 0.15;

/// From CLOSED to the gateway's end: /wait is released, the command exits, SIGTERM, the agent kills Envoy. About 25 ms where
/// nothing else runs.
pub(super) const SHIM_END_S: f64 = 0.15;

/// Envoy's timers read the coarse clock and come at its next edge, 4 ms apart on a kernel with 250 Hz; the gate rearms its own
/// once when it came too early.
pub(super) const TIMER_EDGE_S: f64 = 0.008;

/// From a check's arrival at the gateway to the word of `show stat` and to the resets: the answer's way back, and HAProxy's next
/// turn.
pub(super) const VERDICT_S: f64 = 0.03;

/// HAProxy counts `inter` from the end of a check, and its timers have milliseconds: each check that is not on record may be
/// off by so much more.
pub(super) const CHECK_DRIFT_S: f64 = 0.005;

/// A request's way through the balancer: its client's stamps are this much before and after the gateway's.
pub(super) const TRANSIT_S: f64 = 0.01;

/// A zero shorter than this may fall between two looks at Envoy's admin, which are 20 ms apart and take a few milliseconds.
pub(super) const ZERO_SEEN_S: f64 = 0.06;

/// An event that was seen no more exactly than this agrees with nearly everything, which proves nothing.
pub(super) const WIDEST_LOOK_S: f64 = 0.5;

/// What a stamp of the wall clock may be off on the run's clock, and a check's stamp from the gate's decision.
pub(super) const STAMP_S: f64 = 0.003;
