//! A thread's callback, step by step.

use softclose_fsm::{DistrustReason, Effect, Input, step};

use crate::check;
use crate::record::{NOW, Phase, Rec, plan};
use crate::world::{Arming, At, Bug, DUE, Held, Job, LOOK, LOOKED, Life, Role, Seen, Setup, Trap, World};

impl<const N: usize> World<N> {
    pub(crate) fn run(&mut self, setup: &Setup, at: usize) {
        let next = self.workers[at].at;
        match next {
            At::Idle => {}
            At::Load(Job::Begin) => self.workers[at].at = At::Commit(Job::Begin, Held::Fresh, Seen::NOTHING),
            At::Load(job) => self.workers[at].at = self.loaded(job),
            At::Read(job, held) => {
                let seen = self.seen(self.held(held).drains);
                self.workers[at].at = At::Commit(job, held, seen);
            }
            At::Commit(job, held, seen) => self.commit(setup, at, job, held, seen),
            At::Ring(job, held) => {
                self.ring(setup);
                self.finish(setup, at, job, held);
            }
            At::Finish(job, held, ahead) => {
                let forgotten = ahead & !self.held(held).ahead() != 0 && job != Job::Enter;
                self.finish(setup, at, job, held);
                if forgotten && setup.arming == Arming::LaterByTheStep {
                    let worker = &mut self.workers[at];
                    worker.vm(worker.heeder(setup, job.role())).tick |= DUE;
                }
            }
            At::TakeShare(role) => {
                self.take_share(at);
                let last = setup.trap == Trap::WithWill;
                self.workers[at].at = if last { At::Idle } else { At::Load(Job::Will(role)) };
                if last {
                    self.bury(setup, at, role);
                }
            }
            At::Publish if setup.bug == Some(Bug::LostBell) => {
                let worker = &mut self.workers[at];
                (worker.at, worker.answered, worker.count.life) = (At::Idle, Some(worker.born), Life::Lives);
                self.news();
            }
            At::Publish => {
                let worker = &mut self.workers[at];
                (worker.at, worker.born, worker.count.life) = (At::Keep, self.record.drains, Life::Young);
            }
            At::Keep => {
                let worker = &mut self.workers[at];
                worker.count.draining = self.record.is_draining();
                // The first tick proves that the VM lives.
                (worker.at, worker.count.tick) = (At::Idle, DUE);
            }
            At::KeepUnpublished => {
                let worker = &mut self.workers[at];
                worker.count.draining = self.record.is_draining();
                (worker.at, worker.count.tick) = (At::Publish, self.record.ahead());
                worker.born = self.record.drains;
            }
        }
    }

    fn held(&self, held: Held) -> Rec {
        match held {
            Held::Fresh => self.record,
            Held::Stale(record, _) => record,
        }
    }

    /// The record is read; the ledger next, unless the record's state does not depend on it.
    pub(crate) fn loaded(&self, job: Job) -> At {
        if self.record.is_draining() { At::Read(job, Held::Fresh) } else { At::Commit(job, Held::Fresh, Seen::NOTHING) }
    }

    /// A bell or a tick: the record is read, the roll call answered; in OPEN that is all.
    pub(crate) fn heed(&mut self, setup: &Setup, at: usize, role: Role) {
        let drains = self.record.drains;
        if role == Role::Count && setup.bug != Some(Bug::NeverPays) {
            self.pay(at);
        }
        let worker = &mut self.workers[at];
        let young = worker.vm(role).life == Life::Young;
        worker.vm(role).life = Life::Lives;
        let mut published = young;
        match role {
            Role::Count if worker.answered.is_none_or(|answered| answered < drains) => {
                worker.answered = Some(drains);
                published = true;
            }
            Role::Gate if young => self.gate_slots += 1,
            Role::Count | Role::Gate => {}
        }
        if published {
            self.news();
        }
        if self.record.phase == Phase::Open {
            self.finish(setup, at, Job::Heed(role), Held::Fresh);
        } else {
            self.workers[at].at = self.loaded(Job::Heed(role));
        }
    }

    /// Takes what ended in OPEN out of the ledger.
    fn pay(&mut self, at: usize) {
        let owed = std::mem::take(&mut self.workers[at].owed);
        if owed > 0 {
            self.ledger -= owed;
            self.news();
        }
    }

    fn commit(&mut self, setup: &Setup, at: usize, job: Job, held: Held, seen: Seen) {
        let from = self.held(held);
        if job == Job::Begin {
            return self.create(setup, at, held);
        }
        let mut reading = check::reading(seen);
        if setup.bug == Some(Bug::EdgeOnlyIdle) && job != Job::Exit && check::begins_to_count(from) {
            reading.active = 1;
        }
        let input = match job {
            Job::Drain => Input::Drain(plan(setup.deadline)),
            Job::CloseLb => Input::CloseLb,
            Job::Reopen => Input::Reopen,
            Job::Will(_) => Input::Distrust(DistrustReason::Trap),
            Job::Enter | Job::Exit | Job::Heed(_) | Job::Wait(_) | Job::Begin => Input::Tick,
        };
        let concrete = from.concrete();
        let done = step(&concrete, NOW, reading, &input);
        if done.record == concrete {
            check::unchanged(self, from, held);
            return self.decided(setup, at, job, held);
        }
        if !self.may_store(setup, held) {
            self.workers[at].at = At::Load(job);
            return;
        }
        let to = Rec::of(&done.record);
        check::committed(self, job, &to, &done.effects, seen);
        self.replace(to);
        self.workers[at].at = At::Ring(job, Held::Fresh);
        if !done.effects.contains(&Effect::Ring) {
            self.decided(setup, at, job, Held::Fresh);
        }
    }

    /// Nothing is to be rung: the callback ends at once, or after a while.
    fn decided(&mut self, setup: &Setup, at: usize, job: Job, held: Held) {
        match setup.arming {
            Arming::AtOnce => self.finish(setup, at, job, held),
            Arming::Later | Arming::LaterByTheStep => {
                self.workers[at].at = At::Finish(job, held, self.held(held).ahead());
            }
        }
    }

    /// Whether a compare-and-swap against what was read succeeds.
    fn may_store(&self, setup: &Setup, held: Held) -> bool {
        held == Held::Fresh || matches!(held, Held::Stale(_, true)) && setup.bug == Some(Bug::BlindFirstWrite)
    }

    /// A VM that is being configured writes the record if it found none. Losing this race is fine: then there is one.
    fn create(&mut self, setup: &Setup, at: usize, held: Held) {
        let absent = match held {
            Held::Fresh => !self.exists,
            Held::Stale(_, absent) => absent,
        };
        if absent && self.may_store(setup, held) {
            check::committed(self, Job::Begin, &Rec::OPEN, &[], Seen::NOTHING);
            self.replace(Rec::OPEN);
        }
        self.workers[at].at = if setup.bug == Some(Bug::LostBell) { At::KeepUnpublished } else { At::Publish };
    }

    /// Commits a record: what others have read is out of date.
    fn replace(&mut self, to: Rec) {
        let (old, absent) = (self.record, !self.exists);
        for worker in &mut self.workers {
            let (At::Read(_, held) | At::Commit(_, held, _) | At::Ring(_, held) | At::Finish(_, held, _)) =
                &mut worker.at
            else {
                continue;
            };
            if *held == Held::Fresh {
                *held = Held::Stale(old, absent);
            }
        }
        (self.record, self.exists) = (to, true);
        self.news();
    }

    /// Ends a callback: keeps the record, answers whoever waits, arms the tick.
    fn finish(&mut self, setup: &Setup, at: usize, job: Job, held: Held) {
        let record = self.held(held);
        let worker = &mut self.workers[at];
        let role = worker.heeder(setup, job.role());
        let vm = worker.vm(role);
        vm.draining = record.is_draining();
        if vm.draining && role == Role::Count && setup.bug != Some(Bug::NeverPays) {
            self.pay(at);
        }
        let worker = &mut self.workers[at];
        let vm = worker.vm(role);
        let looked = vm.tick & LOOKED != 0;
        let armed = record.ahead() | if vm.draining && setup.look { if looked { LOOKED } else { LOOK } } else { 0 };
        worker.at = At::Idle;
        match job {
            Job::Enter => {}
            Job::Exit | Job::Drain | Job::CloseLb | Job::Reopen => worker.vm(role).tick = armed,
            Job::Heed(_) => {
                worker.vm(role).tick = armed;
                let answers = role == Role::Gate || setup.one_vm;
                if let (true, Some((wait, known))) = (answers, worker.waiter) {
                    match wait.until().status(&record.concrete(), u64::from(known)) {
                        // Whoever is told of a change that is not the awaited one asks again.
                        Some(202) => worker.waiter = Some((wait, record.changes)),
                        Some(_) => worker.waiter = None,
                        None => {}
                    }
                }
            }
            Job::Wait(wait) => {
                worker.vm(role).tick = armed;
                let waits = wait.until().status(&record.concrete(), u64::from(record.changes)).is_none();
                // One place for a waiter on each worker is enough: a second one is told the same at the same time.
                worker.waiter = if waits { Some((wait, record.changes)) } else { worker.waiter };
            }
            Job::Will(role) => {
                if setup.trap == Trap::WithWill {
                    worker.at = At::TakeShare(role);
                } else {
                    self.bury(setup, at, role);
                }
            }
            Job::Begin => panic!("enrolling ends otherwise"),
        }
    }

    fn ring(&mut self, setup: &Setup) {
        for worker in &mut self.workers {
            for role in [Role::Count, Role::Gate] {
                let heeder = worker.heeder(setup, role);
                let vm = worker.vm(heeder);
                vm.bell |= matches!(vm.life, Life::Young | Life::Lives);
            }
        }
    }
}
