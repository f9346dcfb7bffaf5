//! What happens without another worker in between: one action each.

use crate::record::{Moment, Phase};
use crate::world::{At, DUE, Job, LOOK, LOOKED, Life, Role, Setup, Trap, Wait, Worker, World};

/// One step of the process; the number is a worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The thread goes on with its callback.
    Run(usize),
    Bell(usize, Role),
    Tick(usize, Role),
    /// The tick comes although nothing is due: for a zero that did not last, or as the regular look.
    Look(usize, Role),
    Arrive(usize),
    Leave(usize),
    LeaveUncounted(usize),
    Reload(usize),
    Pass(Moment),
    /// From here on: what the environment may do or not.
    Command(usize, Job),
    Configure(usize),
    Trap(usize),
}

impl Action {
    /// Whether it happens sooner or later, as opposed to perhaps.
    pub(crate) fn must(self) -> bool {
        match self {
            Self::Run(_)
            | Self::Bell(..)
            | Self::Tick(..)
            | Self::Look(..)
            | Self::Leave(_)
            | Self::LeaveUncounted(_)
            | Self::Reload(_)
            | Self::Pass(_) => true,
            Self::Arrive(_) | Self::Command(..) | Self::Configure(_) | Self::Trap(_) => false,
        }
    }
}

impl<const N: usize> World<N> {
    /// What may happen. Where nothing can change the record any more, the order of what is left means nothing: one order is
    /// enough, and commands come last.
    pub(crate) fn actions(&self, setup: &Setup, actions: &mut Vec<Action>) {
        self.all_actions(setup, actions);
        if self.is_final()
            && let Some(first) = actions.iter().copied().find(|action| action.must())
        {
            actions.clear();
            actions.push(first);
        }
    }

    fn all_actions(&self, setup: &Setup, actions: &mut Vec<Action>) {
        for (at, worker) in self.workers.iter().enumerate() {
            if worker.at == At::Idle {
                self.callbacks(at, worker, actions);
            } else {
                actions.push(Action::Run(at));
                if self.left.traps > 0 && may_trap(setup, worker) {
                    actions.push(Action::Trap(at));
                }
            }
        }
        actions.extend(Moment::ALL.into_iter().filter(|at| self.record.passed(*at).is_some()).map(Action::Pass));
    }

    fn callbacks(&self, at: usize, worker: &Worker, actions: &mut Vec<Action>) {
        for (role, vm) in [(Role::Count, worker.count), (Role::Gate, worker.gate)] {
            if vm.bell {
                actions.push(Action::Bell(at, role));
            }
            if vm.tick & DUE != 0 {
                actions.push(Action::Tick(at, role));
            } else if vm.tick & LOOK != 0 || vm.tick & Moment::Settled.bit() & !self.record.ahead() != 0 {
                actions.push(Action::Look(at, role));
            }
        }
        if worker.share > 0 {
            actions.push(Action::Leave(at));
        }
        if worker.orphans > 0 {
            actions.push(Action::LeaveUncounted(at));
        }
        if self.left.requests > 0 && worker.count.life == Life::Lives {
            actions.push(Action::Arrive(at));
        }
        if worker.count.life == Life::Unborn {
            actions.push(Action::Configure(at));
        }
        if worker.gate.life == Life::Trapped {
            actions.push(Action::Reload(at));
            return;
        }
        let left = self.left;
        if left.drains > 0 {
            actions.push(Action::Command(at, Job::Drain));
        }
        if self.record.phase == Phase::Open {
            // All others are refused or told at once, and change nothing.
            return;
        }
        for (left, job) in [
            (left.reopens, Job::Reopen),
            (left.close_lbs, Job::CloseLb),
            (left.waits_closing, Job::Wait(Wait::Closing)),
            (left.waits_exit, Job::Wait(Wait::Exit)),
        ] {
            if left > 0 {
                actions.push(Action::Command(at, job));
            }
        }
    }

    pub(crate) fn act(&mut self, setup: &Setup, action: Action) {
        self.carry_out(setup, action);
        self.tidy();
    }

    fn carry_out(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Run(at) => self.run(setup, at),
            Action::Bell(at, role) => {
                self.workers[at].vm(role).bell = false;
                self.heed(setup, at, role);
            }
            Action::Tick(at, role) | Action::Look(at, role) => {
                let vm = self.workers[at].vm(role);
                // The tick is periodic and is armed anew, or ended, by every callback that looks at it.
                vm.tick = if vm.tick & (LOOK | LOOKED) != 0 { LOOKED } else { 0 };
                self.heed(setup, at, role);
            }
            Action::Arrive(at) => {
                self.left.requests -= 1;
                let worker = &mut self.workers[at];
                worker.share += 1;
                if worker.owed > 0 {
                    worker.owed -= 1;
                } else {
                    self.ledger += 1;
                    self.news();
                }
                self.workers[at].at = if self.workers[at].count.draining { At::Load(Job::Enter) } else { At::Idle };
            }
            Action::Leave(at) => {
                let worker = &mut self.workers[at];
                worker.share -= 1;
                if worker.count.draining {
                    worker.at = At::Load(Job::Exit);
                    self.ledger -= 1;
                    self.news();
                } else {
                    worker.owed += 1;
                    let heeder = worker.heeder(setup, Role::Count);
                    worker.vm(heeder).tick |= DUE;
                }
            }
            Action::LeaveUncounted(at) => self.workers[at].orphans -= 1,
            Action::Reload(at) => {
                let vm = &mut self.workers[at].gate;
                (vm.life, vm.tick) = (Life::Young, DUE);
            }
            Action::Pass(moment) => self.pass(moment),
            Action::Command(at, job) => {
                let left = &mut self.left;
                *match job {
                    Job::Drain => &mut left.drains,
                    Job::Reopen => &mut left.reopens,
                    Job::CloseLb => &mut left.close_lbs,
                    Job::Wait(Wait::Closing) => &mut left.waits_closing,
                    Job::Wait(Wait::Exit) => &mut left.waits_exit,
                    Job::Enter | Job::Exit | Job::Heed(_) | Job::Will(_) | Job::Begin => panic!("no command: {job:?}"),
                } -= 1;
                self.workers[at].at = self.loaded(job);
            }
            Action::Configure(at) => {
                let worker = &mut self.workers[at];
                (worker.count.life, worker.at) = (Life::Configuring, At::Load(Job::Begin));
            }
            Action::Trap(at) => self.trap(setup, at),
        }
    }

    fn pass(&mut self, moment: Moment) {
        if let Some(record) = self.record.passed(moment) {
            self.record = record;
            self.news();
        }
        for vm in self.workers.iter_mut().flat_map(Worker::vms) {
            if vm.tick & moment.bit() != 0 {
                vm.tick = DUE;
            }
        }
    }

    /// Forgets what cannot matter any more, so that worlds which differ in nothing else are one.
    fn tidy(&mut self) {
        if self.record.is_draining() {
            return;
        }
        let ends_with_the_drain = Moment::Settled.bit() | Moment::RollCall.bit() | Moment::Deadline.bit();
        for vm in self.workers.iter_mut().flat_map(Worker::vms) {
            vm.tick &= !ends_with_the_drain;
        }
        let to_read =
            |worker: &Worker| matches!(worker.at, At::Read(..) | At::Load(Job::Drain) | At::Commit(Job::Drain, ..));
        if self.left.drains > 0 || self.workers.iter().any(to_read) {
            return;
        }
        // No drain is to come: nobody will believe or disbelieve a reading.
        (self.ledger, self.left.requests) = (0, 0);
        for worker in &mut self.workers {
            (worker.share, worker.owed, worker.orphans) = (0, 0, 0);
        }
    }

    /// Whether no command or passing of time can change the record any more.
    fn is_final(&self) -> bool {
        let under_way = |wanted: Job| {
            self.workers.iter().any(|worker| match worker.at {
                At::Load(job) | At::Read(job, _) | At::Commit(job, ..) | At::Ring(job, _) | At::Finish(job, ..) => {
                    job == wanted
                }
                At::Idle | At::TakeShare(_) | At::Publish | At::Keep | At::KeepUnpublished => false,
            })
        };
        match self.record.phase {
            Phase::Closed { .. } => true,
            Phase::Fault { may_exit, .. } => may_exit && self.left.reopens == 0 && !under_way(Job::Reopen),
            Phase::Open => self.left.drains == 0 && !under_way(Job::Drain),
            Phase::Draining { .. } | Phase::Closing { .. } => false,
        }
    }

    /// Something is different: the next regular look may find it.
    pub(crate) fn news(&mut self) {
        for vm in self.workers.iter_mut().flat_map(Worker::vms) {
            if vm.tick & LOOKED != 0 {
                vm.tick = vm.tick & !LOOKED | LOOK;
            }
        }
    }

    fn trap(&mut self, setup: &Setup, at: usize) {
        self.left.traps -= 1;
        let (At::Load(job) | At::Read(job, _) | At::Commit(job, ..) | At::Ring(job, _) | At::Finish(job, ..)) =
            self.workers[at].at
        else {
            panic!("no callback to trap in");
        };
        let role = job.role();
        match setup.trap {
            Trap::WithWill => self.workers[at].at = At::Load(Job::Will(role)),
            Trap::WithHastyWill => self.workers[at].at = At::TakeShare(role),
            Trap::Silent => self.bury(setup, at, role),
        }
    }

    pub(crate) fn take_share(&mut self, at: usize) {
        // A gate VM has no share.
        let worker = &mut self.workers[at];
        let At::TakeShare(Role::Count) = worker.at else { return };
        self.ledger -= worker.share + worker.owed;
        worker.orphans += worker.share;
        (worker.share, worker.owed) = (0, 0);
        self.news();
    }

    /// A VM is gone; what was in the ledger stays there, and its requests live on.
    pub(crate) fn bury(&mut self, setup: &Setup, at: usize, role: Role) {
        let worker = &mut self.workers[at];
        let vm = worker.vm(role);
        let heard = *vm;
        (vm.life, vm.draining, vm.bell, vm.tick) = (Life::Trapped, false, false, 0);
        worker.at = At::Idle;
        match role {
            Role::Count => {
                worker.orphans += worker.share;
                (worker.share, worker.owed) = (0, 0);
                if setup.one_vm {
                    (worker.gate.draining, worker.gate.bell, worker.gate.tick) =
                        (heard.draining, heard.bell, heard.tick);
                }
            }
            Role::Gate => worker.waiter = None,
        }
    }
}

/// Whether a VM is in a callback of its own, which may trap it.
fn may_trap(setup: &Setup, worker: &Worker) -> bool {
    match worker.at {
        At::Load(job) | At::Read(job, _) | At::Commit(job, ..) | At::Ring(job, _) | At::Finish(job, ..) => {
            !matches!(job, Job::Will(_) | Job::Begin) && (job.role() == Role::Count || !setup.one_vm)
        }
        At::Idle | At::TakeShare(_) | At::Publish | At::Keep | At::KeepUnpublished => false,
    }
}
