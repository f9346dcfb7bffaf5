//! What has to hold at each commit and at the end, by accounts that the gate has no part in.

use softclose_fsm::{Path, ROLL_CALL_WAIT, Reading, Record, State, StateName, Verdict};

use super::{Micro, Worker, World};

impl World {
    pub(super) fn check_commit(&mut self, from: &Record, to: &Record, reading: Reading) {
        let changes = to.state.since() != from.state.since() || to.state.name() != from.state.name();
        if !changes {
            return;
        }
        self.transitions_committed += 1;
        if from.aftermath.is_none() && to.aftermath.is_some() {
            (self.admitted_at_flip, self.hard_answers, self.most_exposed) = (reading.admitted, 0, 0);
        }
        if to.state.name() == StateName::Closing && to.verdict() == Some(Verdict::Clean) && self.soft_asked(from) {
            assert!(self.heard.iter().all(|heard| *heard), "a balancer has not heard the soft answer");
        }
        if to.state.name() == StateName::Closing && to.verdict() == Some(Verdict::Clean) {
            assert_eq!(reading.active, 0);
            assert!(reading.roll_call.complete());
            assert!(self.deaf.is_none(), "a worker that does not count was called idle");
        }
        if let State::Fault(fault) = &to.state {
            assert!(fault.since >= from.state.since().after(fault.plan.deadline.expect("a fault has a deadline")));
            assert!(from.waits_for_zero());
        }
    }

    pub(super) fn soft_asked(&self, record: &Record) -> bool {
        record.plan().is_some_and(|plan| plan.soft_status.is_some())
    }

    /// A balancer reads its answer.
    pub(super) fn answered(&mut self, balancer: usize) {
        let answer = self.record.answer(Path::Balancer);
        match (answer.state, answer.status) {
            (StateName::Draining, 404) => {
                self.soft_answers += 1;
                self.heard[balancer] = true;
            }
            (StateName::Closing | StateName::Closed | StateName::Fault, 503) => {
                self.hard_answers = self.record.aftermath.map_or(0, |aftermath| aftermath.hard);
            }
            (StateName::Open | StateName::Draining | StateName::Closing | StateName::Closed | StateName::Fault, _) => {}
        }
        self.expose();
    }

    /// Keeps the test's own account of what a balancer that acts on `fall` hard answers could cut.
    pub(super) fn expose(&mut self) {
        let Some(plan) = self.record.plan() else { return };
        if self.record.aftermath.is_some() && self.hard_answers >= u64::from(plan.fall) {
            // What has begun to end is over: nobody can cut it, although it is still in the ledger.
            let ends = |worker: &&Worker| worker.program.iter().any(|micro| matches!(micro, Micro::Ledger(-1)));
            let ending = self.workers.iter().filter(ends).count() as u64;
            self.most_exposed = self.most_exposed.max(self.ledger - ending);
        }
    }

    /// Late requests by the test's own account.
    pub(crate) fn late(&self) -> u64 {
        self.admitted - self.admitted_at_flip
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// The document's words on what came after the flip.
    pub(crate) fn account(&self) -> (Option<u64>, Option<u64>) {
        let roll_call = self.registry.roll_call(self.record.drains, self.record.state.since());
        let reading = Reading { blind: false, admitted: self.admitted, active: self.ledger, roll_call };
        (self.record.late(&reading), self.record.cut_at_most())
    }

    pub(super) fn check_end(&self) {
        assert_eq!(
            self.transitions_logged, self.transitions_committed,
            "each transition is logged by its winner alone"
        );
        assert!(self.requests_total == 0 || self.record.drains > 0 || self.record.state.name() == StateName::Open);
        if let State::Draining(draining) = &self.record.state {
            let overdue = draining.deadline.is_some() || self.now.since(draining.since) > ROLL_CALL_WAIT;
            assert!(
                !overdue || self.ledger > 0 || self.deaf.is_some(),
                "nobody will ever look again: {:?}",
                self.record
            );
        }
    }
}
